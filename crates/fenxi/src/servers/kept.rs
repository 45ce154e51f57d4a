//! Reads the file at the start; a thread gathers the memories of the workers, and writes it.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use config::Config;
use config::checked::Servers;
use dataplane::inline::FlowManager;
use dataplane::placement::Thread;
use dataplane::servers::Portion;
use dataplane::sink::Sink;
use dataplane::snapshot::{Looked, Publisher, Subscriber, snapshots};
use dataplane::tasks::OpenTask;
use flowmgr::ServerCells;
use tracing::{info, warn};

use super::{file, merge};
use crate::access::may_make;
use crate::exit::Failure;
use crate::metric::{Family, count};
use crate::sinks::queue::ends_by;
use crate::sinks::{Report, Rights, SinkControl, SinkKind, Start};

/// Between two looks at workers that are asked: with packets, without, and while none is.
const PAUSES: [Duration; 3] =
    [Duration::from_micros(500), Duration::from_millis(20), Duration::from_millis(100)];
/// How long the end of the run waits for the file.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// The thread's ends of the workers' memories, and the lock of the file.
pub type Memories = Mutex<(Vec<Subscriber<Portion>>, Option<File>)>;

/// Both ends of a flow manager's memory, of each; none if there is nothing to keep.
pub type Ends = (Vec<Publisher<Portion>>, Memories);

/// Tells the flow managers what the file knows.
///
/// # Errors
/// The file cannot be written, or another instance keeps it. One that cannot be used is only
/// logged.
pub fn recall(
    config: &Config,
    tasks: &[OpenTask],
    managers: &mut [(Thread, FlowManager)],
    is_recorded: bool,
) -> Result<Ends, Failure> {
    let Some(path) = config.servers.path.as_deref() else { return Ok(Ends::default()) };
    probe(path)?;
    if OpenTask::servers(config, tasks).is_none() {
        warn!("servers.path is not used: no model reads the memory of servers");
        return Ok(Ends::default());
    }
    if is_recorded {
        warn!("servers.path is not used: a recording begins with an empty memory of servers");
        return Ok(Ends::default());
    }
    let lock = file::lock(path).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Failure::unavailable(format!(
            "servers.path: another instance of fenxi keeps {}; give each a file of its own",
            path.display()
        )),
        _ => Failure::creating(path, &error),
    })?;
    match file::read(path, config.servers.entries, now_us()) {
        Ok(None) => {}
        Ok(Some(known)) => {
            managers.iter_mut().for_each(|(_, manager)| manager.recall_servers(&known));
            let cells = known.cells.len();
            info!("{}: {cells} cells of the memory of servers", path.display());
        }
        Err(why) => {
            warn!("{}: {why}; the memory of servers is empty at first", path.display());
        }
    }
    let (publishers, subscribers) = managers.iter().map(|_| snapshots(Portion::default)).unzip();
    Ok((publishers, Mutex::new((subscribers, Some(lock)))))
}

/// Why the file that is there cannot be used.
pub fn unusable(servers: &Servers) -> Option<String> {
    let read = file::read(servers.path.as_deref()?, servers.entries, now_us());
    read.err().map(|why| why.to_string())
}

/// Keeps the memory of servers in a file.
pub struct Kept;

impl SinkKind for Kept {
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let (subscribers, lock) = std::mem::take(&mut *locked(start.servers));
        let servers = &start.config.servers;
        let Some(path) = servers.path.clone().filter(|_| !subscribers.is_empty()) else {
            return Ok(None);
        };
        let counts = Arc::new(Counts::default());
        let keeper = Keeper {
            path,
            every: servers.every,
            entries: servers.entries,
            workers: subscribers.into_iter().map(Worker::new).collect(),
            counts: counts.clone(),
            is_failing: false,
            _lock: lock,
        };
        let builder = std::thread::Builder::new().name("servers".to_owned());
        let thread = builder.spawn(move || keeper.run()).map_err(|error| {
            Failure::unavailable(format!("cannot start the servers thread: {error}"))
        })?;
        Ok(Some(Box::new(KeptControl { thread: Mutex::new(Some(thread)), counts })))
    }

    fn rights(&self, config: &Config, _records: Option<&Path>) -> Rights {
        Rights { written: config.servers.path.iter().cloned().collect(), ..Rights::none() }
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        match config.servers.path.as_deref().filter(|path| !is_exempt(path)) {
            Some(path) => probe(path),
            None => Ok(()),
        }
    }

    fn empty_report(&self) -> Report {
        report(&Counts::default())
    }
}

/// Checks that the file can be written.
fn probe(path: &Path) -> Result<(), Failure> {
    may_make(path).map_err(|error| Failure::creating(path, &error))
}

struct KeptControl {
    thread: Mutex<Option<JoinHandle<()>>>,
    counts: Arc<Counts>,
}

impl SinkControl for KeptControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        None
    }

    fn report(&self) -> Report {
        report(&self.counts)
    }

    /// The workers' last portions are on their way. What is not written by the deadline is lost:
    /// the file of before stays.
    fn finish(&self, _: Instant) -> Result<(), Failure> {
        if let Some(thread) = locked(&self.thread).take()
            && !ends_by(&thread, Instant::now() + WRITTEN_WITHIN)
        {
            warn!("the memory of servers was not written within {} s", WRITTEN_WITHIN.as_secs());
        }
        Ok(())
    }
}

#[derive(Default)]
struct Counts {
    written: AtomicU64,
    failed: AtomicU64,
}

fn report(counts: &Counts) -> Report {
    let [written, failed] = [&counts.written, &counts.failed].map(|it| it.load(Ordering::Relaxed));
    Report {
        metrics: vec![Family::counter(
            "fenxi_server_files_total",
            "files",
            &["outcome"],
            "Attempts to write servers.path: written; failed.",
            [count(&["written"], written), count(&["failed"], failed)],
        )],
        ..Report::default()
    }
}

/// The thread that gathers and writes.
struct Keeper {
    path: PathBuf,
    every: Duration,
    /// The most cells of the file.
    entries: usize,
    workers: Vec<Worker>,
    counts: Arc<Counts>,
    /// The last attempt failed.
    is_failing: bool,
    _lock: Option<File>,
}

/// A flow worker, and what has been gathered of its memory.
struct Worker {
    subscriber: Subscriber<Portion>,
    gathered: ServerCells,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unasked,
    Asked,
    /// Everything is gathered.
    Gathered,
    /// Everything is gathered, and no more will come.
    Ended,
    Died,
}

impl Keeper {
    /// Writes the file every interval, and once all workers have ended.
    fn run(mut self) {
        let mut due = Instant::now() + self.every;
        loop {
            let mut has_moved = false;
            for worker in &mut self.workers {
                has_moved |= worker.poll();
            }
            let all = |states: &[State]| self.workers.iter().all(|it| states.contains(&it.state));
            let is_over = all(&[State::Ended]);
            if self.workers.iter().any(|it| it.state == State::Died) {
                // The run has failed.
                return;
            }
            if all(&[State::Gathered, State::Ended]) {
                self.write();
                if is_over {
                    return;
                }
                due = Instant::now() + self.every;
                self.workers.iter_mut().for_each(Worker::rest);
            } else if Instant::now() >= due {
                self.workers.iter_mut().for_each(Worker::ask);
            }
            let is_asking = self.workers.iter().any(|it| it.state == State::Asked);
            let pause = if has_moved { 0 } else { 2 - usize::from(is_asking) };
            std::thread::sleep(PAUSES[pause]);
        }
    }

    fn write(&mut self) {
        let now_us = now_us();
        let gathered = self.workers.iter().map(|worker| &worker.gathered);
        let Some(all) = merge::merged(gathered, self.entries, now_us) else { return };
        let written = file::write(&self.path, &all, now_us);
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        let path = self.path.display();
        match written {
            Ok(()) => {
                self.counts.written.fetch_add(1, Ordering::Relaxed);
                if was_failing {
                    info!("{path}: the memory of servers is written again");
                }
            }
            Err(error) => {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                if !was_failing {
                    warn!("{path}: the memory of servers cannot be written: {error}");
                }
            }
        }
    }
}

impl Worker {
    fn new(subscriber: Subscriber<Portion>) -> Worker {
        Worker { subscriber, gathered: ServerCells::with_sets(0), state: State::Unasked }
    }

    fn ask(&mut self) {
        if self.state == State::Unasked && self.subscriber.ask() {
            self.state = State::Asked;
            self.gathered.cells.clear();
        }
    }

    /// Until it is asked again, its cells take no memory.
    fn rest(&mut self) {
        if self.state == State::Gathered {
            (self.state, self.gathered) = (State::Unasked, ServerCells::with_sets(0));
        }
    }

    /// Takes a portion, and asks for the next; whether there was one.
    fn poll(&mut self) -> bool {
        if self.state == State::Ended {
            return false;
        }
        match self.subscriber.poll() {
            Looked::Nothing => return false,
            Looked::Answer(portion) => {
                let Portion { next, cells } = &*portion;
                self.gathered.cells.extend_from_slice(&cells.cells);
                (self.gathered.secret, self.gathered.all) = (cells.secret, cells.all);
                let is_done = next.is_none();
                self.subscriber.give_back(portion);
                if is_done || !self.subscriber.ask() {
                    self.state = State::Gathered;
                }
            }
            Looked::Last(portion) => (self.gathered, self.state) = (portion.cells, State::Ended),
            Looked::Died => self.state = State::Died,
        }
        true
    }
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
