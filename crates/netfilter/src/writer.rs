//! A thread that writes, behind a bounded queue.
//!
//! Whoever learns of a label hands the flow over and goes on: a full queue drops the update and counts it. The thread takes
//! what waits, up to a batch, and gives it to the function that it was started with.
//!
//! What is written for a class stands in one atomic word for each class, so that it can change under way and whoever hands
//! over a flow neither waits for a change nor sees half of one. What a word means is the function's business.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::conntrack::Tuple;
use crate::counts::{Counts, Fate};
use crate::latest::{Latest, Settled};
use crate::socket::BATCH;

/// How often the thread looks for updates while they come often. A mark may be this late.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// When an update that found no connection is tried again. Conntrack enters a connection when its first packet has passed
/// the last hook, and a port may name the flow before that.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// The most updates that wait for this; those beyond are tried again at once.
const RETRIES_MAX: usize = 4096;

/// Why nothing can be written.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The capability is missing.
    #[error("{what} needs CAP_NET_ADMIN")]
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
    /// What a label before wrote, which gives way; 0: nothing does.
    pub before: u64,
    /// The new label writes nothing: what the one before wrote is taken away.
    pub clears: bool,
    /// When the label came.
    pub asked: Instant,
    /// Connections: one has the tuple, and none of our bits.
    pub(crate) is_found: bool,
    /// Connections: none had the tuple at the first try.
    pub(crate) is_retry: bool,
}

impl Update {
    /// For a label that is the first of its flow.
    fn new(tuple: Tuple, word: u64) -> Update {
        Update {
            tuple,
            word,
            before: 0,
            clears: false,
            asked: Instant::now(),
            is_found: false,
            is_retry: false,
        }
    }
}

/// Where a writer's thread counts, and remembers what became of the latest updates.
#[derive(Debug, Clone)]
pub struct Tally(Arc<Mutex<(Counts, Latest)>>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, (Counts, Latest)> {
        // Both are whole between any two statements, so a panic elsewhere spoils nothing.
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
    /// Starts the thread. `queue_length` updates may wait for it; `write` writes a batch and counts what became of it;
    /// what it leaves there is to be tried once more.
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
        let tally = Tally(Arc::new(Mutex::new((Counts::none(), Latest::default()))));
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
        self.set_word(tuple, self.word_of(class));
    }

    /// The same for a word that is not that of a class; 0: nothing is written.
    pub fn set_word(&self, tuple: Tuple, word: u64) {
        self.replace_word(tuple, 0, word);
    }

    /// The same where the label is another one than before: what that wrote gives way, also to nothing.
    pub fn replace_word(&self, tuple: Tuple, before: u64, word: u64) {
        let clears = word == 0;
        let word = if clears { before } else { word };
        self.ask(Update {
            before,
            clears,
            ..Update::new(tuple, word)
        });
    }

    /// The same, whatever the connection has in these bits.
    pub fn overwrite_word(&self, tuple: Tuple, word: u64) {
        self.ask(Update {
            is_found: true,
            ..Update::new(tuple, word)
        });
    }

    fn ask(&self, update: Update) {
        let Some(queue) = self.queue.as_ref().filter(|_| update.word != 0) else {
            return;
        };
        // Before its fate, so that whoever reads the fates first finds no more of them than were asked for.
        self.asked.fetch_add(1, Ordering::Relaxed);
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
        let mut counts = self.tally.lock().0.clone();
        counts.dropped = self.dropped.load(Ordering::Acquire);
        counts.asked = self.asked.load(Ordering::Relaxed);
        counts
    }

    /// What is written for a class; 0: nothing.
    pub fn word_of(&self, class: u16) -> u64 {
        let word = self.words.get(usize::from(class));
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// What became of the latest update of a flow with a word that is meant, if it is not too long ago.
    pub fn latest_of(&self, tuple: Tuple, is_meant: impl Fn(u64) -> bool) -> Option<Settled> {
        self.tally.lock().1.of(tuple, is_meant)
    }

    /// Updates that have met no fate yet.
    pub fn waiting(&self) -> usize {
        usize::try_from(self.counts().waiting()).unwrap_or(0)
    }

    /// The most that can be: in the queue, to be tried again, and in the thread's hands.
    pub fn room(&self) -> usize {
        let queue = self.queue.as_ref().and_then(Sender::capacity);
        queue.unwrap_or(0) + RETRIES_MAX + BATCH
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
    let mut retries = VecDeque::with_capacity(RETRIES_MAX);
    loop {
        let due = retries.front().map(|&(due, _)| due);
        let first = next(queue, due);
        let is_over = matches!(first, Err(RecvTimeoutError::Disconnected));
        batch.extend(first);
        batch.extend(queue.try_iter().take(BATCH - 1));
        if !batch.is_empty() {
            write(&mut batch, tally);
        }
        let due = Instant::now() + RETRY_AFTER;
        let room = batch.len().min(RETRIES_MAX - retries.len());
        retries.extend(batch.drain(..room).map(|update| (due, update)));

        let now = Instant::now();
        while let Some(&(due, update)) = retries.front() {
            if !is_over && due > now || batch.len() == BATCH {
                break;
            }
            retries.pop_front();
            batch.push(update);
        }
        if !batch.is_empty() {
            write(&mut batch, tally);
        }
        if is_over && retries.is_empty() {
            return;
        }
    }
}

/// The next update, waited for until one is `due` to be tried again. After a batch the thread looks once more by itself,
/// because a thread that waits in the queue has to be woken by a flow worker, with a system call. It does not look in vain for
/// long: a look costs about what being woken does.
fn next(queue: &Receiver<Update>, due: Option<Instant>) -> Result<Update, RecvTimeoutError> {
    if let Ok(update) = queue.try_recv() {
        return Ok(update);
    }
    std::thread::sleep(LOOK_EVERY);
    match due {
        Some(due) => queue.recv_deadline(due),
        None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// Counts the fates of updates at the moment at which they are known, and takes them out of a batch.
pub(crate) fn settle(
    batch: &mut Vec<Update>,
    tally: &Tally,
    mut fate: impl FnMut(&mut Update) -> Option<Fate>,
) {
    let (now, at) = (Instant::now(), SystemTime::now());
    let mut tally = tally.lock();
    let (counts, latest) = &mut *tally;
    batch.retain_mut(|update| match fate(update) {
        None => true,
        Some(fate) => {
            counts.add(fate, now.duration_since(update.asked));
            latest.note(Settled {
                tuple: update.tuple,
                word: update.word,
                fate,
                at,
            });
            false
        }
    });
}
