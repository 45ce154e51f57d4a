//! The bounded queue between flow workers and a thread that writes records, and the end of that
//! thread.
//!
//! The packet path hands over records and never formats or writes one. In a replay as fast as
//! possible a full queue waits; in a paced one and live the newest record is dropped and counted.
//! At the end of a live run, when no packet is read any more, a full queue waits as well, until
//! [`Drain`] says that the time for it is over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use crossbeam_utils::CachePadded;
use dataplane::rules::{KnownRule, RulesInForce};
use dataplane::sink::Sink;
use flowmgr::record::Record;

use crate::exit::Failure;
use crate::sinks::ReplayStart;

/// How often a thread with an empty queue looks into it.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Time that the thread has to write what it holds once it is asked to give up, unless a slow
/// reader delays it.
const GIVE_UP_WITHIN: Duration = Duration::from_millis(200);

/// Whether a record leaves the second half of the queue to others: a flood of half-open flows ends
/// as many per second as it begins.
fn gives_way(record: &Record) -> bool {
    matches!(record, Record::Flow(flow) if flow.is_half_open)
}

/// The time that the end of a live run gives its records, in total: to the flow managers, whose
/// last records may have to wait for room in the queue, and to the thread that writes them.
#[derive(Debug, Default)]
pub struct Drain {
    within: Duration,
    /// Set by the first flow manager that has read its last packet.
    until: OnceLock<Instant>,
    /// Records that found no room in that time.
    lost: AtomicU64,
    is_over: AtomicBool,
}

impl Drain {
    pub fn new(within: Duration) -> Drain {
        Drain { within, ..Drain::default() }
    }

    /// When the time is over; it begins with the first call.
    fn until(&self) -> Instant {
        *self.until.get_or_init(|| Instant::now() + self.within)
    }

    /// Whether the writing thread has to give up.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy)]
enum WhenFull {
    Wait,
    Drop,
    /// Waits, but not beyond this time; then it is dropped.
    WaitUntil(Instant),
}

pub struct Queued {
    pub record: Record,
    /// The rule of its flow when it was queued: the record's own number may have passed to another
    /// rule since.
    pub rule: Option<KnownRule>,
}

impl From<Record> for Queued {
    fn from(record: Record) -> Queued {
        Queued { record, rule: None }
    }
}

#[derive(Clone)]
pub struct RecordSender {
    queue: Sender<Queued>,
    /// In a worker with rules, if it hands on what they say.
    rules: Option<RulesInForce>,
    when_full: WhenFull,
    drain: Option<Arc<Drain>>,
    counts: Arc<RecordCounts>,
}

impl RecordSender {
    /// Hands a record over, or counts it as dropped.
    pub fn send(&mut self, record: Record) {
        let queue = &self.queue;
        let is_half_full = || queue.capacity().is_some_and(|room| queue.len() * 2 >= room);
        let gives_way = gives_way(&record);
        let rule = match (&self.rules, &record) {
            (Some(rules), Record::Flow(flow)) => flow.rule.and_then(|rule| rules.known(rule)),
            _ => None,
        };
        let queued = Queued { record, rule };
        // The thread reads to the end even after an error, so a send can only
        // fail for want of room.
        let is_sent = match self.when_full {
            WhenFull::Wait => queue.send(queued).is_ok(),
            WhenFull::Drop if gives_way && is_half_full() => false,
            WhenFull::Drop => queue.try_send(queued).is_ok(),
            // Sending yields to other threads, even once the time is over.
            WhenFull::WaitUntil(until) if Instant::now() >= until => queue.try_send(queued).is_ok(),
            WhenFull::WaitUntil(until) => queue.send_deadline(queued, until).is_ok(),
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
    fn take_rules(&mut self, rules: &RulesInForce) {
        self.rules = Some(rules.clone());
    }

    fn record(&mut self, record: &Record) {
        // A flow's own records have its behaviour.
        if matches!(record, Record::Label(_) | Record::Flow(_)) {
            self.send(record.clone());
        }
    }

    /// From now on a record waits for room, until `records.drain_s` is over. That time begins with
    /// the first worker that drains.
    fn drain(&mut self) {
        if let Some(drain) = &self.drain {
            self.when_full = WhenFull::WaitUntil(drain.until());
        }
    }
}

/// What became of the records: dropped by a flow worker; or taken by the thread and written, failed
/// or held.
#[derive(Debug, Default)]
pub struct RecordCounts {
    /// Apart from what the thread writes, so that flow workers that drop do not slow it down
    /// further.
    dropped: CachePadded<AtomicU64>,
    written: AtomicU64,
    failed: AtomicU64,
    held: AtomicU64,
}

impl RecordCounts {
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// `written` more records were written, and `held` are left.
    pub fn write(&self, written: u64, held: u64) {
        self.written.fetch_add(written, Ordering::Relaxed);
        self.hold(held);
    }

    /// `held` records are taken from the queue and not written yet.
    pub fn hold(&self, held: u64) {
        self.held.store(held, Ordering::Relaxed);
    }

    pub fn fail(&self, records: u64) {
        self.failed.fetch_add(records, Ordering::Relaxed);
    }
}

/// Takes a record, or waits for one, but no longer than this. It sleeps and looks again: a thread
/// that waits in the queue would have to be woken by a flow worker, with a system call.
pub fn receive(records: &Receiver<Queued>, within: Duration) -> Result<Queued, RecvTimeoutError> {
    let until = Instant::now() + within;
    loop {
        match records.try_recv() {
            Ok(queued) => return Ok(queued),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) if Instant::now() >= until => {
                return Err(RecvTimeoutError::Timeout);
            }
            Err(TryRecvError::Empty) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

pub struct WritingThread {
    /// What it writes to, as people know it.
    name: String,
    pub counts: Arc<RecordCounts>,
    live: Option<LiveEnd>,
    /// `None` once the end has begun.
    running: Mutex<Option<Running>>,
}

type Running = (JoinHandle<Result<(), Failure>>, RecordSender);

/// The run that a thread writes for; [`Drain`] bounds the end of a live one.
pub enum RunKind<'a> {
    Replay(&'a ReplayStart),
    Live(Arc<Drain>),
}

struct LiveEnd {
    /// Used only to see how many records are queued.
    backlog: Receiver<Queued>,
    drain: Arc<Drain>,
}

impl WritingThread {
    /// Starts a thread called `thread` that does `work` with records, of which `length` may wait.
    /// What it writes to is called `name`. A replay is stopped where the work fails.
    pub fn start(
        (thread, name): (&str, &str),
        length: usize,
        run: RunKind<'_>,
        counts: Arc<RecordCounts>,
        work: impl FnOnce(&Receiver<Queued>) -> Result<(), Failure> + Send + 'static,
    ) -> Result<WritingThread, Failure> {
        let (when_full, stopped, drain) = match run {
            RunKind::Replay(ReplayStart { waits: true, stopped }) => {
                (WhenFull::Wait, stopped.clone(), None)
            }
            RunKind::Replay(ReplayStart { stopped, .. }) => (WhenFull::Drop, stopped.clone(), None),
            RunKind::Live(drain) => (WhenFull::Drop, None, Some(drain)),
        };
        let is_replay = drain.is_none();
        let work = move |records: &Receiver<Queued>| {
            work(records).inspect_err(|_| {
                if let Some(run) = &stopped {
                    run.stop();
                }
                if is_replay {
                    records.iter().for_each(drop);
                }
            })
        };
        let (queue, records) = bounded(length);
        // In a replay nobody else holds the receiver, so senders notice where the thread dies.
        let live = drain.clone().map(|drain| LiveEnd { backlog: records.clone(), drain });
        let builder = std::thread::Builder::new().name(thread.to_owned());
        let started = builder.spawn(move || work(&records)).map_err(|error| {
            Failure::unavailable(format!("cannot start the {thread} thread: {error}"))
        });
        let sender = RecordSender { queue, rules: None, when_full, drain, counts: counts.clone() };
        let running = Mutex::new(Some((started?, sender)));
        Ok(WritingThread { name: name.to_owned(), counts, live, running })
    }

    /// The end of another flow worker; `None` once the end has begun.
    pub fn sender(&self) -> Option<RecordSender> {
        Some(self.running().as_ref()?.1.clone())
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        // Taken out as a whole, so a panic elsewhere spoils nothing.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything is written; the senders of all workers must be gone. Live, no longer
    /// than until `records.drain_s` is over. What is left then is lost and counted as failed.
    pub fn finish(&self) -> Result<(), Failure> {
        let Some((thread, sender)) = self.running().take() else {
            return Ok(());
        };
        drop(sender);
        let died = |_| Failure::software(format!("{}: the thread that writes died", self.name));
        let Some(LiveEnd { backlog, drain }) = &self.live else {
            return thread.join().map_err(died)?;
        };
        let failed_before = self.counts.failed();
        let is_late = !ends_by(&thread, drain.until());
        if is_late {
            drain.is_over.store(true, Ordering::Relaxed);
            if !ends_by(&thread, Instant::now() + GIVE_UP_WITHIN) {
                let left = backlog.len() as u64 + self.counts.held.load(Ordering::Relaxed);
                self.counts.fail(left);
            }
        }
        let mut lost = drain.lost.load(Ordering::Relaxed);
        if is_late {
            lost += self.counts.failed() - failed_before;
        }
        let late = (lost > 0).then(|| {
            Failure::io(format!(
                "{}: {lost} records were not written within {} s of the shutdown and are lost; see \
                 records.drain_s",
                self.name,
                drain.within.as_secs()
            ))
        });
        let written = match thread.is_finished() {
            true => thread.join().map_err(died)?,
            false => Ok(()),
        };
        Failure::all([late, written.err()])
    }
}

/// Waits for the end of the thread, but no longer than this; whether it came.
pub fn ends_by<T>(thread: &JoinHandle<T>, limit: Instant) -> bool {
    while !thread.is_finished() {
        if Instant::now() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::rules::RuleNames;
    use flowmgr::Counts;
    use flowmgr::record::{EndReason, FlowName, FlowRecord};
    use policy::rule::{Condition, RuleAction};
    use policy::{Names, Policy, RuleSet};

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
            decisions: [None; cring::TASKS_MAX],
            series: None,
            rule: None,
            behaviour: flowmgr::Behaviour::None,
            headers: Default::default(),
            measured: None,
        })
    }

    fn queue_of_eight() -> (RecordSender, Receiver<Queued>) {
        let (queue, records) = bounded(8);
        let (when_full, counts) = (WhenFull::Drop, Arc::default());
        (RecordSender { queue, rules: None, when_full, drain: None, counts }, records)
    }

    #[test]
    fn records_of_half_open_flows_leave_half_of_the_queue_where_nobody_waits() {
        let (mut sender, records) = queue_of_eight();
        (0..100).for_each(|_| sender.send(record(true)));
        assert_eq!((records.len(), sender.counts.dropped()), (4, 96));
        (0..5).for_each(|_| sender.send(record(false)));
        assert_eq!((records.len(), sender.counts.dropped()), (8, 97));
        records.try_iter().for_each(drop);
        sender.when_full = WhenFull::Wait;
        (0..8).for_each(|_| sender.send(record(true)));
        assert_eq!((records.len(), sender.counts.dropped()), (8, 97));
    }

    /// `count` rules; the last is named `name`.
    fn rules(count: u32, name: &str) -> RulesInForce {
        let mut set = RuleSet::default();
        for _ in 0..count {
            let (condition, action) = (Condition::default(), RuleAction::default());
            set.push(0, condition, action, (0, 0)).unwrap();
        }
        let names = RuleNames::default();
        names.extend([(count - 1, name)].into_iter());
        let policy = Policy::new(&set, &Names::default()).unwrap();
        RulesInForce { names: Arc::new(names), ..RulesInForce::of(Arc::new(policy), 0) }
    }

    #[test]
    fn a_record_that_waits_keeps_the_rule_that_its_flow_had() {
        let (mut sender, records) = queue_of_eight();
        let with = |rule| match record(false) {
            Record::Flow(flow) => Record::Flow(FlowRecord { rule, ..flow }),
            other => other,
        };
        sender.send(with(Some(1)));
        sender.take_rules(&rules(2, "before"));
        for rule in [None, Some(0), Some(1), Some(2)] {
            sender.send(with(rule));
        }
        sender.take_rules(&rules(3, "after"));
        sender.send(with(Some(2)));
        let known = records.try_iter().map(|queued| {
            let rule = queued.rule?;
            Some((rule.order, rule.name().as_deref().map(str::to_owned)))
        });
        let named = |order, name: &str| Some((order, Some(name.to_owned())));
        assert_eq!(
            known.collect::<Vec<_>>(),
            [None, None, Some((0, None)), named(1, "before"), None, named(2, "after")]
        );
    }

    #[test]
    fn a_thread_gets_what_is_there_and_learns_that_no_more_will_come() {
        let (queue, records) = bounded(8);
        let soon = Duration::from_millis(1);
        let received = || receive(&records, soon).map(|queued| queued.record);
        assert_eq!(received(), Err(RecvTimeoutError::Timeout));
        queue.send(record(false).into()).unwrap();
        drop(queue);
        assert_eq!(received(), Ok(record(false)));
        assert_eq!(received(), Err(RecvTimeoutError::Disconnected));
    }
}
