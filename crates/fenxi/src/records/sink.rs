//! The thread that writes records, behind a bounded queue.
//!
//! The packet path hands over records and never formats or writes one. In a replay as fast as possible a full queue
//! waits; in a paced one and live the newest record is dropped and counted.
//!
//! A replay ends where writing breaks off. A live run goes on: what cannot be written is kept, up to a bound, and tried
//! again every second; what comes beyond the bound is dropped and counted. A reader that takes nothing holds up this
//! thread, then fills the queue, and is never felt in front of it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use flowmgr::record::Record;

use super::lines::Lines;
use super::live::Live;
use super::output::Output;
use crate::config::checked::Rotate;
use crate::exit::Failure;

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

/// The packet path's end of the queue.
pub struct RecordSender {
    /// `None`: nobody asked for records.
    queue: Option<Sender<Record>>,
    waits: bool,
    dropped: u64,
}

impl RecordSender {
    /// A sender whose records nobody wants.
    pub fn nobody() -> RecordSender {
        RecordSender {
            queue: None,
            waits: true,
            dropped: 0,
        }
    }

    /// A sender to the same queue, for another thread.
    pub fn another(&self) -> RecordSender {
        RecordSender {
            queue: self.queue.clone(),
            waits: self.waits,
            dropped: 0,
        }
    }

    /// Whether anybody asked for records.
    pub fn is_wanted(&self) -> bool {
        self.queue.is_some()
    }

    /// Hands a record over.
    pub fn send(&mut self, record: Record) {
        let Some(queue) = &self.queue else {
            return;
        };
        // The thread reads to the end even after an error, so a send can only
        // fail for want of room.
        if self.waits {
            let _ = queue.send(record);
        } else if gives_way(&record) && queue.len() * 2 >= queue.capacity().unwrap_or(usize::MAX) {
            self.dropped += 1;
        } else if let Err(TrySendError::Full(_)) = queue.try_send(record) {
            self.dropped += 1;
        }
    }

    /// Records that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// What became of the records that the thread took from the queue: written, failed or held.
#[derive(Debug, Default)]
pub struct RecordCounts {
    written: AtomicU64,
    failed: AtomicU64,
    held: AtomicU64,
}

impl RecordCounts {
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

/// Takes what came of an order; Err: why all is as before.
pub type Answer = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Where a live run's file can be opened anew, by whoever moved the old one away.
#[derive(Clone)]
pub struct Reopener(Sender<Answer>);

impl Reopener {
    /// Asks for it: what was taken so far is written to the old file, all else to the one that has its name from now on,
    /// which is created where it is not there. `answer` is called once it is done.
    pub fn reopen(&self, answer: Answer) {
        if let Err(TrySendError::Full(answer) | TrySendError::Disconnected(answer)) =
            self.0.try_send(answer)
        {
            answer(Err("the thread that writes records is held up".to_owned()));
        }
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
    orders: Sender<Answer>,
    /// Never received from: it tells how much is left.
    backlog: Receiver<Record>,
}

impl RecordSink {
    /// For a replay: creates `output` (`-`: standard output) and starts the thread. `waits` says what a full queue does;
    /// `stop` is raised when writing breaks off, if the rest of the replay is of no use then.
    ///
    /// # Errors
    /// The output cannot be created.
    pub fn start(
        output: &Path,
        classes: Arc<[String]>,
        queue_length: usize,
        waits: bool,
        stop: Option<Arc<AtomicBool>>,
    ) -> Result<(RecordSink, RecordSender), Failure> {
        let mut output =
            Output::create(output).map_err(|error| Failure::creating(output, &error))?;
        let counts = Arc::new(RecordCounts::default());
        let (sender, receiver) = bounded(queue_length);
        let shared = counts.clone();
        let thread = spawn(move || {
            let mut lines = Lines::new(classes);
            let written = write_all(&receiver, &mut output, &mut lines, &shared);
            written.map_err(|error| {
                if let Some(stop) = &stop {
                    stop.store(true, Ordering::Relaxed);
                }
                receiver.iter().for_each(drop);
                Failure::writing(output.name(), &error)
            })
        })?;
        let sink = RecordSink {
            thread,
            counts,
            live: None,
        };
        Ok((sink, sender_to(sender, waits)))
    }

    /// For a live run: opens `output` (`-`: standard output) behind what is there and starts the thread.
    ///
    /// # Errors
    /// The output cannot be opened.
    pub fn start_live(
        output: &Path,
        rotate: Option<Rotate>,
        classes: Arc<[String]>,
        queue_length: usize,
    ) -> Result<(RecordSink, RecordSender), Failure> {
        let output =
            Output::append(output, rotate).map_err(|error| Failure::creating(output, &error))?;
        let name = output.name().to_owned();
        let counts = Arc::new(RecordCounts::default());
        let (sender, receiver) = bounded(queue_length);
        let (orders, ordered) = bounded(1);
        let backlog = receiver.clone();
        let live = Live::new(output, Lines::new(classes), counts.clone());
        let thread = spawn(move || live.run(&receiver, &ordered))?;
        let sink = RecordSink {
            thread,
            counts,
            live: Some(LiveEnd {
                name,
                orders,
                backlog,
            }),
        };
        Ok((sink, sender_to(sender, false)))
    }

    /// What became of the records, for those who look in.
    pub fn counts(&self) -> Arc<RecordCounts> {
        self.counts.clone()
    }

    /// Where the file can be opened anew, if the run is live.
    pub fn reopener(&self) -> Option<Reopener> {
        let live = self.live.as_ref();
        live.map(|live| Reopener(live.orders.clone()))
    }

    /// Waits until everything is written. All senders must be gone.
    ///
    /// # Errors
    /// Writing broke off.
    pub fn finish(self) -> Result<(), Failure> {
        let died = |_| Failure::software("the record writer died");
        self.thread.join().map_err(died)?
    }

    /// The same, but only so long: where nobody reads, what is left is lost and counted as failed.
    ///
    /// # Errors
    /// As above, and how much was lost.
    pub fn finish_within(self, limit: Duration) -> Result<(), Failure> {
        let until = Instant::now() + limit;
        while !self.thread.is_finished() {
            if let Some(live) = self.live.as_ref().filter(|_| Instant::now() >= until) {
                let lost = live.backlog.len() as u64 + self.counts.held.load(Ordering::Relaxed);
                self.counts.fail(lost);
                return Err(Failure::io(format!(
                    "{}: nobody took the last records within {} s; {lost} are lost",
                    live.name,
                    limit.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.finish()
    }
}

fn sender_to(queue: Sender<Record>, waits: bool) -> RecordSender {
    RecordSender {
        queue: Some(queue),
        waits,
        dropped: 0,
    }
}

fn spawn(
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<JoinHandle<Result<(), Failure>>, Failure> {
    let thread = std::thread::Builder::new().name("records".to_owned());
    thread
        .spawn(work)
        .map_err(|error| Failure::unavailable(format!("no thread for records: {error}")))
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
            series: None,
        })
    }

    #[test]
    fn records_of_half_open_flows_leave_half_of_the_queue_where_nobody_waits() {
        let (queue, records) = bounded(8);
        let mut sender = RecordSender {
            queue: Some(queue),
            waits: false,
            dropped: 0,
        };
        (0..100).for_each(|_| sender.send(record(true)));
        assert_eq!((records.len(), sender.dropped()), (4, 96));
        (0..5).for_each(|_| sender.send(record(false)));
        assert_eq!((records.len(), sender.dropped()), (8, 97));
        records.try_iter().for_each(drop);
        sender.waits = true;
        (0..8).for_each(|_| sender.send(record(true)));
        assert_eq!((records.len(), sender.dropped()), (8, 97));
    }
}
