//! A thread that writes, behind a bounded queue.
//!
//! Whoever learns of a label hands the flow over and goes on: a full queue drops the update and counts it. The thread takes
//! what waits, up to a batch, and gives it to the function that it was started with.
//!
//! What is written for a class stands in one atomic word for each class, so that it can change under way and whoever hands
//! over a flow neither waits for a change nor sees half of one. What a word means is the function's business.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::conntrack::Tuple;
use crate::counts::{Counts, Fate};
use crate::socket::BATCH;

/// Why nothing can be written.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The capability is missing.
    #[error(
        "{what} needs CAP_NET_ADMIN; give it by `setcap cap_net_admin,cap_net_raw+ep` on the program or \
         AmbientCapabilities=CAP_NET_ADMIN in the unit"
    )]
    Capability {
        /// As in "marking connections".
        what: &'static str,
    },
    /// The kernel lacks a part.
    #[error("this kernel takes no {what} over netlink ({error}); load the module {module}")]
    Kernel {
        /// As in "connection marks".
        what: &'static str,
        /// What it said.
        error: io::Error,
        /// The module that has the part.
        module: &'static str,
    },
    /// What the user named does not fit; the text says what and how to cure it.
    #[error("{0}")]
    Unfit(String),
    /// No thread.
    #[error("cannot start the thread {name}: {error}")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        error: io::Error,
    },
}

/// A label on its way to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// The flow, as packets of its forward direction have it.
    pub tuple: Tuple,
    /// What is written for its class; not 0.
    pub word: u64,
    /// When the label came.
    pub asked: Instant,
    /// Connections: one has the tuple, and none of our bits.
    pub(crate) is_found: bool,
}

/// Where a writer's thread counts.
#[derive(Debug, Clone)]
pub struct Tally(Arc<Mutex<Counts>>);

impl Tally {
    /// Counts the fate of each of these updates.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Counts> {
        // Counts are whole between any two statements, so a panic elsewhere spoils nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes while it lives. Shared by reference; when it is dropped, what waits is still written.
pub struct Writer {
    /// By class; 0: nothing is written.
    words: Box<[AtomicU64]>,
    /// `None` only while dropping, which ends the thread.
    queue: Option<Sender<Update>>,
    thread: Option<JoinHandle<()>>,
    asked: AtomicU64,
    dropped: AtomicU64,
    tally: Tally,
}

impl Writer {
    /// Starts the thread. `queue_length` updates may wait for it; `write` writes a batch, counts what became of it, and
    /// leaves it empty.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(
        name: &str,
        words: impl Iterator<Item = u64>,
        queue_length: usize,
        write: impl FnMut(&mut Vec<Update>, &Tally) + Send + 'static,
    ) -> Result<Writer, StartError> {
        let (sender, receiver) = bounded(queue_length);
        let tally = Tally(Arc::new(Mutex::new(Counts::none())));
        let shared = tally.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || write_all(&receiver, write, &shared))
            .map_err(|error| StartError::Thread {
                name: name.to_owned(),
                error,
            })?;
        Ok(Writer {
            words: words.map(AtomicU64::new).collect(),
            queue: Some(sender),
            thread: Some(thread),
            asked: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            tally,
        })
    }

    /// Asks for what is written for `class`, and returns at once.
    pub fn set(&self, tuple: Tuple, class: u16) {
        let word = self.words.get(usize::from(class));
        let word = word.map_or(0, |word| word.load(Ordering::Relaxed));
        let Some(queue) = self.queue.as_ref().filter(|_| word != 0) else {
            return;
        };
        // Before its fate, so that whoever reads the fates first finds no more of them than were asked for.
        self.asked.fetch_add(1, Ordering::Relaxed);
        let update = Update {
            tuple,
            word,
            asked: Instant::now(),
            is_found: false,
        };
        if queue.try_send(update).is_err() {
            self.dropped.fetch_add(1, Ordering::Release);
        }
    }

    /// From now on labels get these words; they are of the same classes. Updates that wait keep theirs.
    pub fn change(&self, words: impl Iterator<Item = u64>) {
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// What became of the updates so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.tally.lock().clone();
        counts.dropped = self.dropped.load(Ordering::Acquire);
        counts.asked = self.asked.load(Ordering::Relaxed);
        counts
    }

    /// Updates that have met no fate yet.
    pub fn waiting(&self) -> usize {
        usize::try_from(self.counts().waiting()).unwrap_or(0)
    }

    /// The most that can be: in the queue, and in the thread's hands.
    pub fn room(&self) -> usize {
        let queue = self.queue.as_ref().and_then(Sender::capacity);
        queue.unwrap_or(0) + BATCH
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

fn write_all(
    queue: &Receiver<Update>,
    mut write: impl FnMut(&mut Vec<Update>, &Tally),
    tally: &Tally,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while let Ok(first) = queue.recv() {
        batch.push(first);
        batch.extend(queue.try_iter().take(BATCH - 1));
        write(&mut batch, tally);
    }
}

/// Counts the fates of updates at the moment at which they are known, and takes them out of a batch.
pub(crate) fn settle(
    batch: &mut Vec<Update>,
    tally: &Tally,
    mut fate: impl FnMut(&mut Update) -> Option<Fate>,
) {
    let now = Instant::now();
    let mut counts = tally.lock();
    batch.retain_mut(|update| match fate(update) {
        None => true,
        Some(fate) => {
            counts.add(fate, now.duration_since(update.asked));
            false
        }
    });
}
