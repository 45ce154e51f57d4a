//! State that the threads of a run share in addition to rings and label words.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use crossbeam_utils::CachePadded;
use packetio::LinkEvent;

use crate::threads::label_waker::{self, LabelWaker};
use crate::threads::waker::Waker;

/// How long a thread that waits for others sleeps once spinning has not helped.
pub const PAUSE: Duration = Duration::from_micros(50);

/// Events that may wait for the control thread. More come only from a fault that repeats itself.
const EVENTS: usize = 256;

/// An event for the log. The data path does not log itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something is wrong.
    Warning(String),
    /// Something works again.
    Info(String),
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Event {
        match event {
            LinkEvent::Down(line) | LinkEvent::Warning(line) => Event::Warning(line),
            LinkEvent::Up(line) => Event::Info(line),
        }
    }
}

/// Progress of one flow worker, on a cache line of its own because the worker writes it in every
/// round.
#[derive(Default)]
struct Progress {
    rounds: AtomicU64,
    packets: AtomicU64,
}

/// The state that all threads of a run share.
pub struct Run {
    /// Start of the run's clock: `emitted_ns` and `now_ns` count from here.
    pub started: Instant,
    /// Flow workers that have not emitted their last series yet.
    pub inputs_open: AtomicUsize,
    /// In a replay: the latest packet time, µs, of the flow workers whose input has ended.
    pub ended_us: AtomicI64,
    /// An analytics worker has died, so some series will never get a label.
    pub analytics_died: AtomicBool,
    /// Set to end the run: by a signal handler, or after a port or an output failed.
    pub stop: Arc<AtomicBool>,
    /// Wakes the analytics workers; used by flow workers that emitted series.
    pub waker: Waker,
    /// Wake each flow worker when an analytics worker has given labels.
    label_wakers: Box<[CachePadded<LabelWaker>]>,
    progress: Box<[CachePadded<Progress>]>,
    events: Sender<Event>,
    events_lost: AtomicU64,
}

impl Run {
    /// The state of a run that begins now. `woken` is the number of analytics workers that are
    /// woken: 0 in a replay, where they poll. The receiver gets the events.
    pub fn new(flow_workers: usize, woken: usize) -> (Run, Receiver<Event>) {
        let (events, received) = bounded(EVENTS);
        let run = Run {
            started: Instant::now(),
            inputs_open: AtomicUsize::new(flow_workers),
            ended_us: AtomicI64::new(i64::MIN),
            analytics_died: AtomicBool::new(false),
            stop: Arc::default(),
            waker: Waker::new(woken),
            label_wakers: (0..flow_workers).map(|_| CachePadded::default()).collect(),
            progress: (0..flow_workers).map(|_| CachePadded::default()).collect(),
            events,
            events_lost: AtomicU64::new(0),
        };
        (run, received)
    }

    /// Nanoseconds since the run began.
    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Asks all threads to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reports an event to the control thread. Where it is behind by `EVENTS`, the event is dropped
    /// and counted.
    pub fn report(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.events_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Events that were dropped because the control thread was behind.
    pub fn events_lost(&self) -> u64 {
        self.events_lost.load(Ordering::Relaxed)
    }

    /// What wakes a flow worker for labels.
    pub(crate) fn label_waker(&self, flow_worker: usize) -> &LabelWaker {
        &self.label_wakers[flow_worker]
    }

    /// Labels were published: wakes the flow workers that sleep and wait for some.
    pub(crate) fn wake_for_labels(&self) {
        label_waker::wake(self.label_wakers.iter().map(|waker| &**waker));
    }

    /// A flow worker has finished a round of `packets` packets.
    pub(crate) fn count_round(&self, flow_worker: usize, packets: u64) {
        // Only this worker writes the two, so a load and a store are enough.
        let Progress { rounds, packets: sum } = &*self.progress[flow_worker];
        rounds.store(rounds.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if packets > 0 {
            sum.store(sum.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
        }
    }

    /// Rounds that each flow worker has finished: a worker whose number stands still is stuck.
    pub fn rounds(&self) -> impl Iterator<Item = u64> + '_ {
        let progress = self.progress.iter();
        progress.map(|progress| progress.rounds.load(Ordering::Relaxed))
    }

    /// Packets that all flow workers have processed.
    pub fn packets(&self) -> u64 {
        let progress = self.progress.iter();
        progress.map(|progress| progress.packets.load(Ordering::Relaxed)).sum()
    }
}
