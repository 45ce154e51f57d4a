//! A writing thread behind a bounded queue.
//!
//! Callers enqueue updates without waiting; if the queue is full, the update is dropped and
//! counted. The thread takes up to a batch and passes it to the function it was started with.
//!
//! An atomic word per class holds what is written, so it can change at any time, and callers
//! neither wait nor see half a change. The function defines the meaning of words.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::conntrack::Tuple;
use crate::counts::{Fate, UpdateCounts};
use crate::latest::{Latest, Settled};
use crate::socket::{BATCH, Reply};

/// Polling interval while updates are frequent; the maximum delay of a mark.
const POLL_EVERY: Duration = Duration::from_micros(500);

/// When an update that found no connection is tried again. Conntrack enters a connection when its
/// first packet has passed the last hook, and a port may name the flow before that.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// The most updates that wait for this; those beyond are tried again at once.
const RETRIES_MAX: usize = 4096;

/// Why nothing can be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum StartError {
    #[error("{what} needs CAP_NET_ADMIN")]
    Capability { what: &'static str },
    #[error("this kernel takes no {what} over netlink ({error}); load the module {module}")]
    Kernel { what: &'static str, error: io::Error, module: &'static str },
    #[error("{0}")]
    Unfit(String),
    #[error("cannot start the thread {name}: {error}")]
    Thread { name: String, error: io::Error },
}

impl StartError {
    /// The error of a first request with this outcome; `doing` needs the capability.
    pub(crate) fn from_outcome<Found>(
        outcome: Reply<Found>,
        doing: &'static str,
        kernel: impl Fn(io::Error) -> StartError,
    ) -> StartError {
        let error = match outcome {
            Reply::Refused(errno) => io::Error::from_raw_os_error(errno),
            _ => io::Error::other("no answer"),
        };
        match error.kind() {
            io::ErrorKind::PermissionDenied => StartError::Capability { what: doing },
            _ => kernel(error),
        }
    }
}

/// A label on its way to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// The flow's forward direction.
    pub tuple: Tuple,
    /// The word to write; not 0.
    pub word: u64,
    /// The word of the previous label, which is replaced; 0: none.
    pub before: u64,
    /// The new label writes nothing: clear the previous bits.
    pub clears: bool,
    /// Time of the label.
    pub asked: Instant,
    /// The connection is known under this tuple and to have none of our bits.
    pub(crate) is_found: bool,
    /// Connections: none had the tuple at the first try.
    pub(crate) is_retry: bool,
}

impl Update {
    /// An update for a flow's first label.
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

/// Counts and latest results of a writer's thread.
#[derive(Debug, Clone)]
pub struct Tally(Arc<Mutex<(UpdateCounts, Latest)>>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, (UpdateCounts, Latest)> {
        // Both are consistent between any two statements, so a panic elsewhere does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running writer. On drop, waiting updates are still written.
pub struct Writer {
    /// By class; 0: nothing to write.
    words: Box<[AtomicU64]>,
    /// `None` only while dropping, which ends the thread.
    queue: Option<Sender<Update>>,
    thread: Option<JoinHandle<()>>,
    asked: AtomicU64,
    dropped: AtomicU64,
    tally: Tally,
}

impl Writer {
    /// Starts the thread with a queue of `queue_length` updates. `write` writes a batch and counts
    /// the results; what it leaves in the batch is tried once more.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        name: &str,
        words: impl Iterator<Item = u64>,
        queue_length: usize,
        write: impl FnMut(&mut Vec<Update>, &Tally) + Send + 'static,
    ) -> Result<Writer, StartError> {
        let (sender, receiver) = bounded(queue_length);
        let tally = Tally(Arc::new(Mutex::new((UpdateCounts::none(), Latest::default()))));
        let shared = tally.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || write_all(&receiver, write, &shared))
            .map_err(|error| StartError::Thread { name: name.to_owned(), error })?;
        Ok(Writer {
            words: words.map(AtomicU64::new).collect(),
            queue: Some(sender),
            thread: Some(thread),
            asked: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            tally,
        })
    }

    /// Enqueues the word of `class` for a flow's first label.
    pub fn set(&self, tuple: Tuple, class: u16) {
        self.replace_word(tuple, 0, self.word_of(class));
    }

    /// Enqueues a change of label: the bits of `before` are replaced, or cleared if `word` is 0.
    pub fn replace_word(&self, tuple: Tuple, before: u64, word: u64) {
        let clears = word == 0;
        let word = if clears { before } else { word };
        self.ask(Update { before, clears, ..Update::new(tuple, word) });
    }

    /// Enqueues a word that replaces any existing bits.
    pub fn overwrite_word(&self, tuple: Tuple, word: u64) {
        self.ask(Update { is_found: true, ..Update::new(tuple, word) });
    }

    fn ask(&self, update: Update) {
        let Some(queue) = self.queue.as_ref().filter(|_| update.word != 0) else {
            return;
        };
        // Before the result, so that a reader of the results first finds no more of them than
        // requests.
        self.asked.fetch_add(1, Ordering::Relaxed);
        if queue.try_send(update).is_err() {
            self.dropped.fetch_add(1, Ordering::Release);
        }
    }

    /// Sets the words of future updates, by the same classes. Waiting updates keep theirs.
    pub fn change(&self, words: impl Iterator<Item = u64>) {
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// Results so far.
    pub fn counts(&self) -> UpdateCounts {
        let mut counts = self.tally.lock().0.clone();
        counts.dropped = self.dropped.load(Ordering::Acquire);
        counts.asked = self.asked.load(Ordering::Relaxed);
        counts
    }

    /// The word of a class; 0: nothing to write.
    pub fn word_of(&self, class: u16) -> u64 {
        let word = self.words.get(usize::from(class));
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The latest update of a flow whose word `is_meant`, if still remembered.
    pub fn latest_of(&self, tuple: Tuple, is_meant: impl Fn(u64) -> bool) -> Option<Settled> {
        self.tally.lock().1.find(tuple, is_meant)
    }

    /// The latest word of those that `is_meant` which was written for a flow, whatever was kept or
    /// refused since.
    pub fn written_of(&self, tuple: Tuple, is_meant: impl Fn(u64) -> bool) -> Option<u64> {
        self.tally.lock().1.written(tuple, is_meant)
    }

    /// Updates without a result yet.
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
            // A panic of the thread was reported by its hook.
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

/// Waits for an update until one is `due` to be tried again. It polls once more before it blocks,
/// because waking a blocked thread costs the flow worker a system call. A poll costs about what a
/// wake-up does.
fn next(queue: &Receiver<Update>, due: Option<Instant>) -> Result<Update, RecvTimeoutError> {
    if let Ok(update) = queue.try_recv() {
        return Ok(update);
    }
    std::thread::sleep(POLL_EVERY);
    match due {
        Some(due) => queue.recv_deadline(due),
        None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// Counts updates whose result is known, and removes them from the batch.
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
            latest.note(Settled { tuple: update.tuple, word: update.word, fate, at });
            false
        }
    });
}
