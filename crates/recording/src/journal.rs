//! The journal on which all threads record: one lock, one file, and bounds on both.
//!
//! A step holds the lock while it works and until its event is in the chunk; the chunk goes to a
//! thread that writes. Where that thread falls behind, steps wait, for [`PATIENCE`] at most: then,
//! as after an error of the disk, the recording ends with the events that were written, and the run
//! goes on. Once the file is full, each thread writes its counters before its next step and leaves;
//! behind the last of them the recording is closed. A thread's counters change in its own steps
//! only, so the last counters of all threads are of the same moment.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::{info, warn};

use super::event::Call;
use super::event::{Event, MAGIC, VERSION, put_event};
use super::header::Header;
use super::{EVENTS_FILE, HEADER_FILE};
use crate::error::RecordingError;

/// A chunk of this many bytes is sent to the writer.
const CHUNK: usize = 64 * 1024;
/// Chunks on their way to the disk, at most.
const CHUNKS: usize = 64;
/// Events are written after this time at latest, so a program that is killed loses no more.
const WRITE_WITHIN: Duration = Duration::from_millis(100);
/// The longest that steps wait for the disk.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest that the end of a run waits for it.
const LAST_WRITES_WITHIN: Duration = Duration::from_secs(1);
/// The longest that it waits for a step that is under way: a device that does not come back holds
/// the lock.
const LAST_STEP_WITHIN: Duration = Duration::from_millis(250);
/// This part of the file is kept for the last counters.
const RESERVE: u64 = 8;

/// The options of a recording.
pub struct RecorderPlan<'a> {
    /// The folder.
    pub dir: &'a Path,
    /// The most bytes of all files together.
    pub max_bytes: u64,
    /// The initial state of the run.
    pub header: &'a Header,
}

/// A recording under way; clones share it.
#[derive(Clone)]
pub struct Recorder(pub(super) Arc<Shared>);

pub struct Shared {
    journal: Mutex<Journal>,
    /// Whether steps are recorded.
    is_on: AtomicBool,
    /// Calls of devices and readings of the cost clock in the round under way. Rounds exclude each
    /// other.
    pub calls: Mutex<Calls>,
    disk: Arc<Disk>,
    /// Classes of the first task.
    pub classes: Vec<String>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the writer and the steps tell each other.
#[derive(Default)]
struct Disk {
    /// It accepts no more writes.
    has_failed: AtomicBool,
    /// The writer logs this at its end, since the data path does not log.
    last_words: Mutex<Option<String>>,
}

#[derive(Default)]
pub struct Calls {
    pub calls: Vec<Call>,
    pub costs: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    On,
    /// The file is full: each thread leaves at its next step.
    Ending,
    Over,
}

/// The events' file, as far as the lock's holder knows it.
pub struct Journal {
    state: State,
    /// Whole events that were not sent to the writer yet.
    chunk: Vec<u8>,
    sent: Instant,
    to_writer: Option<Sender<Vec<u8>>>,
    events: u64,
    bytes: u64,
    max_bytes: u64,
    /// Threads that record.
    open: usize,
    body: Vec<u8>,
}

impl Recorder {
    /// Makes the folder and its files, and begins.
    ///
    /// # Errors
    /// 73: the folder cannot be made, or holds something.
    pub fn start(plan: &RecorderPlan<'_>) -> Result<Recorder, RecordingError> {
        let RecorderPlan { dir, max_bytes, header } = plan;
        make(dir)?;
        let text = serde_json::to_string_pretty(header).unwrap_or_default() + "\n";
        let path = dir.join(HEADER_FILE);
        let mut file = create(&path)?;
        file.write_all(text.as_bytes()).map_err(|error| RecordingError::creating(&path, &error))?;
        let path = dir.join(EVENTS_FILE);
        let mut file = create(&path)?;
        let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        file.write_all(&head).map_err(|error| RecordingError::creating(&path, &error))?;

        let (to_writer, chunks) = bounded(CHUNKS);
        let disk = Arc::<Disk>::default();
        let writer = Writer { file, path, disk: disk.clone() };
        let thread = std::thread::Builder::new()
            .name("recording".to_owned())
            .spawn(move || writer.run(&chunks))
            .map_err(|error| RecordingError::NoThread(error.to_string()))?;
        warn!(
            "recording to {}, {} MiB at most: threads take turns while it lasts, which slows \
             packets down; the files hold addresses and ports",
            dir.display(),
            max_bytes >> 20
        );
        Ok(Recorder(Arc::new(Shared {
            journal: Mutex::new(Journal {
                state: State::On,
                chunk: Vec::with_capacity(2 * CHUNK),
                sent: Instant::now(),
                to_writer: Some(to_writer),
                events: 0,
                bytes: (text.len() + head.len()) as u64,
                max_bytes: *max_bytes,
                open: 0,
                body: Vec::new(),
            }),
            is_on: AtomicBool::new(true),
            calls: Mutex::default(),
            disk,
            classes: header.tasks.first().map_or_else(Vec::new, |task| task.classes.clone()),
            writer: Mutex::new(Some(thread)),
        })))
    }

    /// For people: a request to the run and its outcome.
    pub fn note(&self, text: String) {
        self.record(&Event::Note { text });
    }

    pub(super) fn record(&self, event: &Event<'_>) {
        let mut body = Vec::new();
        event.encode(&mut body);
        let mut journal = self.0.lock();
        if journal.takes(&self.0, body.len()) {
            journal.append(&self.0, &body);
        }
    }

    /// Writes what is left, after the run's threads have ended.
    pub fn finish(&self) {
        let began = Instant::now();
        let Some(mut journal) = self.0.lock_within(LAST_STEP_WITHIN) else {
            return warn!("the recording is not written to its end: a device does not come back");
        };
        journal.close(&self.0, "the run has ended");
        let (events, bytes) = (journal.events, journal.bytes);
        drop(journal);
        let writer = self.0.writer.lock();
        let Some(writer) = writer.unwrap_or_else(PoisonError::into_inner).take() else { return };
        while !writer.is_finished() && began.elapsed() < LAST_WRITES_WITHIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        match writer.is_finished() {
            true if !self.0.has_failed() => {
                info!("recorded {events} events in {} KiB", bytes.div_ceil(1024));
            }
            true => {}
            false => warn!("the recording is not written to its end: the disk takes nothing"),
        }
    }
}

impl Shared {
    /// The lock, unless the step under way holds it for longer than `limit`.
    fn lock_within(&self, limit: Duration) -> Option<MutexGuard<'_, Journal>> {
        let until = Instant::now() + limit;
        loop {
            match self.journal.try_lock() {
                Ok(journal) => return Some(journal),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call to the round's calls.
    pub fn note(&self, call: impl FnOnce() -> Call) {
        if self.is_on() {
            self.calls().calls.push(call());
        }
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn has_failed(&self) -> bool {
        self.disk.has_failed.load(Ordering::Relaxed)
    }

    fn set_last_words(&self, text: String) {
        let mut last_words = self.disk.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        last_words.get_or_insert(text);
    }
}

impl Journal {
    /// Whether a step is to be recorded, if its event has about `bytes` bytes.
    pub fn takes(&mut self, shared: &Shared, bytes: usize) -> bool {
        if shared.has_failed() {
            self.enter_state(shared, State::Over);
        }
        let most = self.max_bytes - self.max_bytes / RESERVE;
        if self.state == State::On && self.bytes + bytes as u64 > most {
            self.enter_state(shared, State::Ending);
        }
        self.state == State::On
    }

    /// A thread begins to record.
    pub fn enter(&mut self) -> bool {
        self.open += usize::from(self.state == State::On);
        self.state == State::On
    }

    /// A thread leaves; `last` has its counters.
    pub fn leave(&mut self, shared: &Shared, last: &Event<'_>) {
        if self.state != State::Over {
            let mut body = std::mem::take(&mut self.body);
            last.encode(&mut body);
            // The reserve is for this, but `max_bytes` holds for it as well.
            if self.bytes + body.len() as u64 + 64 <= self.max_bytes {
                self.append(shared, &body);
            }
            self.body = body;
        }
        self.open = self.open.saturating_sub(1);
        if self.open == 0 && self.state == State::Ending {
            shared.set_last_words(format!(
                "the recording is full at {} MiB and ends; the run goes on",
                self.max_bytes >> 20
            ));
            self.close(shared, "the recording is full");
        }
    }

    pub fn append(&mut self, shared: &Shared, body: &[u8]) {
        let before = self.chunk.len();
        put_event(&mut self.chunk, body);
        self.bytes += (self.chunk.len() - before) as u64;
        self.events += 1;
        if self.chunk.len() >= CHUNK || self.sent.elapsed() >= WRITE_WITHIN {
            self.send(shared);
        }
    }

    /// Sends the chunk to the writer; if that takes too long, the recording is over.
    fn send(&mut self, shared: &Shared) {
        self.sent = Instant::now();
        let Some(to_writer) = &self.to_writer else { return };
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(2 * CHUNK));
        if !chunk.is_empty() && to_writer.send_timeout(chunk, PATIENCE).is_err() {
            if !shared.has_failed() {
                shared.set_last_words(format!(
                    "the disk has taken nothing of the recording for {} s; it ends, and the run \
                     goes on",
                    PATIENCE.as_secs()
                ));
            }
            self.enter_state(shared, State::Over);
        }
    }

    fn close(&mut self, shared: &Shared, reason: &str) {
        if self.state != State::Over {
            let mut body = Vec::new();
            let reason = reason.to_owned();
            Event::End { reason }.encode(&mut body);
            self.append(shared, &body);
            self.send(shared);
        }
        self.enter_state(shared, State::Over);
    }

    fn enter_state(&mut self, shared: &Shared, state: State) {
        self.state = state;
        shared.is_on.store(state == State::On, Ordering::Relaxed);
        if state == State::Over {
            // The writer ends after the chunks that it was sent.
            self.to_writer = None;
            self.chunk = Vec::new();
        }
    }
}

struct Writer {
    file: File,
    path: PathBuf,
    disk: Arc<Disk>,
}

impl Writer {
    /// Writes whole chunks until the last one, or until one cannot be written.
    fn run(mut self, chunks: &Receiver<Vec<u8>>) {
        for chunk in chunks {
            if self.disk.has_failed.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(error) = self.file.write_all(&chunk) {
                self.disk.has_failed.store(true, Ordering::Relaxed);
                warn!("{}: the recording ends, and the run goes on: {error}", self.path.display());
            }
        }
        let last_words = self.disk.last_words.lock();
        if let Some(text) = last_words.unwrap_or_else(PoisonError::into_inner).take() {
            warn!("{}: {text}", self.path.display());
        }
    }
}

/// Makes the folder, for its owner alone: the files hold addresses.
///
/// # Errors
/// 73: it holds something, or cannot be made.
pub fn make(dir: &Path) -> Result<(), RecordingError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mut entries =
                std::fs::read_dir(dir).map_err(|error| RecordingError::creating(dir, &error))?;
            match entries.next() {
                None => Ok(()),
                Some(_) => Err(RecordingError::CannotCreate(format!(
                    "{}: a recording needs a new or empty folder, and this one holds files; name \
                     another",
                    dir.display()
                ))),
            }
        }
        Err(error) => Err(RecordingError::creating(dir, &error)),
    }
}

/// A new file in it, for its owner alone.
fn create(path: &Path) -> Result<File, RecordingError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map_err(|error| RecordingError::creating(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that takes nothing holds up one step, and no other: the recording is over.
    #[test]
    fn a_disk_that_takes_nothing_ends_the_recording() {
        let (to_writer, kept) = bounded(1);
        let shared = Shared {
            journal: Mutex::new(Journal {
                state: State::On,
                chunk: Vec::new(),
                sent: Instant::now(),
                to_writer: Some(to_writer),
                events: 0,
                bytes: 0,
                max_bytes: 1 << 30,
                open: 2,
                body: Vec::new(),
            }),
            is_on: AtomicBool::new(true),
            calls: Mutex::default(),
            disk: Arc::default(),
            classes: Vec::new(),
            writer: Mutex::default(),
        };
        let mut journal = shared.lock();
        let body = vec![0; 2 * CHUNK];
        let mut steps = 0;
        while journal.takes(&shared, body.len()) {
            journal.append(&shared, &body);
            steps += 1;
        }
        assert_eq!(steps, 2, "one finds room, the next none");
        assert!(!shared.is_on());
        let last_words = shared.disk.last_words.lock().unwrap();
        assert!(last_words.as_ref().unwrap().contains("the disk has taken nothing"));
        // What was on its way is whole.
        assert_eq!(kept.iter().count(), 1);
    }
}
