//! The thread that writes records, behind a bounded queue.
//!
//! The packet path hands over records and never formats or writes one. In a replay as fast as possible a full queue
//! waits; in a paced one and live the newest record is dropped and counted. At the end of a live run, when no packet is
//! read any more, a full queue waits as well, until [`Drain`] says that the time for it is over.
//!
//! A replay ends where writing breaks off. A live run goes on: what cannot be written is kept, up to a bound, and tried
//! again every second; what comes beyond the bound is dropped and counted. A reader that takes nothing holds up this
//! thread, then fills the queue, and is never felt in front of it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use crossbeam_utils::CachePadded;
use dataplane::sink::Sink;
use flowmgr::record::Record;

use super::lines::Lines;
use super::live::Live;
use super::output::Output;
use crate::exit::Failure;
use crate::sinks::ReplayStart;
use crate::sinks::reopen::Reopener;
use config::checked::Records;

/// A record is written at latest so long after it was taken from the queue, for those who follow the file, and because a
/// program that is killed loses what it still had.
pub const WRITE_WITHIN: Duration = Duration::from_millis(250);

/// Bytes that are worth a write by themselves.
pub const WRITE_AT: usize = 64 * 1024;

/// Whether a record leaves the second half of the queue to others: a flood of half-open flows ends as many per second as it
/// begins.
fn gives_way(record: &Record) -> bool {
    matches!(record, Record::Flow(flow) if flow.is_half_open)
}

fn is_half_full(queue: &Sender<Record>) -> bool {
    queue.capacity().is_some_and(|room| queue.len() * 2 >= room)
}

/// Time that the thread has to write the lines it holds once it is asked to give up, unless a slow reader delays it.
const GIVE_UP_WITHIN: Duration = Duration::from_millis(200);

/// The time that the end of a live run gives its records, in total: to the flow managers, whose last records may have to
/// wait for room in the queue, and to the thread that writes them.
#[derive(Debug)]
pub(super) struct Drain {
    within: Duration,
    /// Set by the first flow manager that has read its last packet.
    until: OnceLock<Instant>,
    /// Records that found no room in that time.
    lost: AtomicU64,
    is_over: AtomicBool,
}

impl Drain {
    pub(super) fn new(within: Duration) -> Drain {
        Drain {
            within,
            until: OnceLock::new(),
            lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// When the time is over; it begins with the first call.
    fn until(&self) -> Instant {
        *self.until.get_or_init(|| Instant::now() + self.within)
    }

    /// Whether the writing thread has to give up.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// What happens to a record that finds the queue full.
#[derive(Clone, Copy)]
enum WhenFull {
    Wait,
    Drop,
    /// Waits, but not beyond this time; then it is dropped.
    WaitUntil(Instant),
}

/// The packet path's end of the queue.
pub struct RecordSender {
    queue: Sender<Record>,
    when_full: WhenFull,
    /// Live only.
    drain: Option<Arc<Drain>>,
    counts: Arc<RecordCounts>,
}

impl RecordSender {
    /// A sender to the same queue, for another thread.
    pub fn another(&self) -> RecordSender {
        RecordSender {
            queue: self.queue.clone(),
            when_full: self.when_full,
            drain: self.drain.clone(),
            counts: self.counts.clone(),
        }
    }

    fn send(&mut self, record: Record) {
        let queue = &self.queue;
        // The thread reads to the end even after an error, so a send can only
        // fail for want of room.
        let is_sent = match self.when_full {
            WhenFull::Wait => queue.send(record).is_ok(),
            WhenFull::Drop if gives_way(&record) && is_half_full(queue) => false,
            WhenFull::Drop => queue.try_send(record).is_ok(),
            WhenFull::WaitUntil(until) => queue.send_deadline(record, until).is_ok(),
        };
        if !is_sent {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            if let (WhenFull::WaitUntil(_), Some(drain)) = (self.when_full, &self.drain) {
                drain.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Sink for RecordSender {
    fn record(&mut self, record: &Record) {
        self.send(record.clone());
    }

    /// From now on a record waits for room, until `records.drain_s` is over. That time begins with the first worker that
    /// drains.
    fn drain(&mut self) {
        if let Some(drain) = &self.drain {
            self.when_full = WhenFull::WaitUntil(drain.until());
        }
    }
}

/// What became of the records: dropped by a flow worker; or taken by the thread and written, failed or held.
#[derive(Debug, Default)]
pub struct RecordCounts {
    /// Apart from what the thread writes, so that flow workers that drop do not slow it down further.
    dropped: CachePadded<AtomicU64>,
    written: AtomicU64,
    failed: AtomicU64,
    held: AtomicU64,
}

impl RecordCounts {
    /// Records that found no room in the queue.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Records whose line is where it belongs.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Records dropped because they could not be written.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// So many more were written, and so many are left.
    pub(super) fn write(&self, written: u64, held: u64) {
        self.written.fetch_add(written, Ordering::Relaxed);
        self.hold(held);
    }

    pub(super) fn hold(&self, held: u64) {
        self.held.store(held, Ordering::Relaxed);
    }

    pub(super) fn fail(&self, records: u64) {
        self.failed.fetch_add(records, Ordering::Relaxed);
    }
}

/// The writing thread.
pub struct RecordSink {
    thread: JoinHandle<Result<(), Failure>>,
    counts: Arc<RecordCounts>,
    /// Live only.
    live: Option<LiveEnd>,
}

/// What only a live run's sink has.
struct LiveEnd {
    name: String,
    reopener: Reopener,
    /// Used only to see how many records are queued.
    backlog: Receiver<Record>,
    drain: Arc<Drain>,
}

impl RecordSink {
    /// For a replay: creates `output` (`-`: standard output) and starts the thread. `replay` says what a full queue does,
    /// and
    /// what is stopped when writing breaks off.
    ///
    /// # Errors
    /// The output cannot be created.
    pub fn start(
        output: &Path,
        queue_length: usize,
        lines: Lines,
        replay: &ReplayStart,
    ) -> Result<(RecordSink, RecordSender), Failure> {
        let mut output =
            Output::create(output).map_err(|error| Failure::creating(output, &error))?;
        let counts = Arc::new(RecordCounts::default());
        let (sender, receiver) = bounded(queue_length);
        let run = replay.stopped.clone();
        let shared = counts.clone();
        let thread = spawn(move || {
            let mut lines = lines;
            let written = write_all(&receiver, &mut output, &mut lines, &shared);
            written.map_err(|error| {
                if let Some(run) = &run {
                    run.stop();
                }
                receiver.iter().for_each(drop);
                Failure::writing(output.name(), &error)
            })
        })?;
        let when_full = match replay.waits {
            true => WhenFull::Wait,
            false => WhenFull::Drop,
        };
        let sender = RecordSender {
            queue: sender,
            when_full,
            drain: None,
            counts: counts.clone(),
        };
        let sink = RecordSink {
            thread,
            counts,
            live: None,
        };
        Ok((sink, sender))
    }

    /// For a live run: opens `output` (`-`: standard output) behind what is there and starts the thread.
    ///
    /// # Errors
    /// The output cannot be opened.
    pub fn start_live(
        output: &Path,
        config: &Records,
        lines: Lines,
    ) -> Result<(RecordSink, RecordSender), Failure> {
        let output = Output::append(output, config.rotate)
            .map_err(|error| Failure::creating(output, &error))?;
        let name = output.name().to_owned();
        let counts = Arc::new(RecordCounts::default());
        let (sender, receiver) = bounded(config.queue);
        let (reopener, commands) = Reopener::new();
        let backlog = receiver.clone();
        let drain = Arc::new(Drain::new(config.drain_within));
        let live = Live::new(output, lines, counts.clone(), drain.clone());
        let thread = spawn(move || live.run(&receiver, &commands))?;
        let sender = RecordSender {
            queue: sender,
            when_full: WhenFull::Drop,
            drain: Some(drain.clone()),
            counts: counts.clone(),
        };
        let sink = RecordSink {
            thread,
            counts,
            live: Some(LiveEnd {
                name,
                reopener,
                backlog,
                drain,
            }),
        };
        Ok((sink, sender))
    }

    /// What became of the records, for those who look in.
    pub fn counts(&self) -> Arc<RecordCounts> {
        self.counts.clone()
    }

    /// Takes requests to reopen the file; `None` in a replay.
    pub fn reopener(&self) -> Option<Reopener> {
        let live = self.live.as_ref();
        live.map(|live| live.reopener.clone())
    }

    /// Waits until everything is written. All senders must be gone.
    ///
    /// # Errors
    /// Writing broke off.
    pub fn finish(self) -> Result<(), Failure> {
        let died = |_| Failure::software("the record writer died");
        self.thread.join().map_err(died)?
    }

    /// The same for a live run, until `records.drain_s` is over. What is left then is lost and counted as failed.
    ///
    /// # Errors
    /// As above, and how many records were lost since the end began.
    pub fn finish_in_time(self) -> Result<(), Failure> {
        let Some(live) = &self.live else {
            return self.finish();
        };
        let failed_before = self.counts.failed();
        let is_late = !self.ends_by(live.drain.until());
        if is_late {
            live.drain.is_over.store(true, Ordering::Relaxed);
            if !self.ends_by(Instant::now() + GIVE_UP_WITHIN) {
                let left = live.backlog.len() as u64 + self.counts.held.load(Ordering::Relaxed);
                self.counts.fail(left);
            }
        }
        let mut lost = live.drain.lost.load(Ordering::Relaxed);
        if is_late {
            lost += self.counts.failed() - failed_before;
        }
        let late = (lost > 0).then(|| {
            Failure::io(format!(
                "{}: {lost} records were not written within {} s of the shutdown and are lost; see records.drain_s",
                live.name,
                live.drain.within.as_secs()
            ))
        });
        let written = match self.thread.is_finished() {
            true => self.finish(),
            false => Ok(()),
        };
        let failures = [late, written.err()];
        let failure = failures.into_iter().flatten().reduce(Failure::and);
        failure.map_or(Ok(()), Err)
    }

    /// Waits for the end of the thread, but no longer than this; whether it came.
    fn ends_by(&self, limit: Instant) -> bool {
        while !self.thread.is_finished() {
            if Instant::now() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

fn spawn(
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<JoinHandle<Result<(), Failure>>, Failure> {
    let thread = std::thread::Builder::new().name("records".to_owned());
    thread
        .spawn(work)
        .map_err(|error| Failure::unavailable(format!("cannot start the records thread: {error}")))
}

/// A replay's records, until there are no more or one cannot be written.
fn write_all(
    records: &Receiver<Record>,
    output: &mut Output,
    lines: &mut Lines,
    counts: &RecordCounts,
) -> io::Result<()> {
    loop {
        let is_over = match records.recv_timeout(WRITE_WITHIN) {
            Ok(record) => {
                lines.push(&record)?;
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if is_over || lines.is_due() {
            let result = output.write(lines);
            counts.write(lines.take_written(), lines.count());
            result?;
        }
        if is_over {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowmgr::Counts;
    use flowmgr::record::{EndReason, FlowName, FlowRecord};

    fn record(is_half_open: bool) -> Record {
        let end = |host: &str| (host.parse().unwrap(), 1);
        Record::Flow(FlowRecord {
            flow: FlowName {
                flow_id: 0,
                protocol: 6,
                source: end("192.0.2.1"),
                destination: end("192.0.2.2"),
                first_us: 0,
            },
            last_us: 0,
            midstream: false,
            counts: Counts::default(),
            reason: EndReason::Evicted,
            is_half_open,
            decision: None,
            others: Box::default(),
            series: None,
        })
    }

    #[test]
    fn records_of_half_open_flows_leave_half_of_the_queue_where_nobody_waits() {
        let (queue, records) = bounded(8);
        let mut sender = RecordSender {
            queue,
            when_full: WhenFull::Drop,
            drain: None,
            counts: Arc::default(),
        };
        (0..100).for_each(|_| sender.send(record(true)));
        assert_eq!((records.len(), sender.counts.dropped()), (4, 96));
        (0..5).for_each(|_| sender.send(record(false)));
        assert_eq!((records.len(), sender.counts.dropped()), (8, 97));
        records.try_iter().for_each(drop);
        sender.when_full = WhenFull::Wait;
        (0..8).for_each(|_| sender.send(record(true)));
        assert_eq!((records.len(), sender.counts.dropped()), (8, 97));
    }
}
