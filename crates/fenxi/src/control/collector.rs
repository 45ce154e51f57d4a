//! Takes snapshots of all threads of the data path, in an order that makes sums close.
//!
//! A round asks the analytics threads first, and the flow managers once those have answered. So the
//! snapshot of a flow manager is never older than the one of an analytics thread that it feeds, and
//! the difference between the two waits in a ring. If a flow manager does not answer in time, the
//! round's answers of the analytics threads are not used, for the same reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::host::{HostStats, NicDrops};
use crate::sinks::{Report, Sinks};
use dataplane::counters::{AnalyticsSnapshot, FlowSnapshot};
use dataplane::placement::{Role, Thread};
use dataplane::snapshot::{Looked, Publisher, Subscriber, snapshots};

/// How long a round waits for answers. A thread answers between two bursts or rounds, thus within a
/// device's batch, or the 20 ms that it sleeps at most.
const ANSWER_WITHIN: Duration = Duration::from_millis(100);

/// Time between the first two polls for answers; it doubles up to [`POLL_AGAIN_MAX`].
const POLL_AGAIN: Duration = Duration::from_millis(1);

/// Maximum time between two polls.
const POLL_AGAIN_MAX: Duration = Duration::from_millis(8);

/// Requests this soon after a round get its result, so that many requests do not burden the data
/// path.
const FRESH_FOR: Duration = Duration::from_millis(20);

/// Minimum time that rates are measured over.
const RATE_OVER: Duration = Duration::from_millis(900);

/// A thread that owes an answer for longer has stalled.
pub const STALLED_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Running,
    /// It has ended, with a last snapshot.
    Ended,
    /// It has ended without a last snapshot.
    Died,
}

/// A thread of the data path as the control thread sees it.
pub struct Watched<T> {
    pub thread: Thread,
    pub core: Option<usize>,
    /// Its snapshot of the last round in which all answered.
    pub latest: Box<T>,
    pub life: Life,
    /// Whether it has answered at all.
    pub is_known: bool,
    /// How often it has owed an answer for longer than [`STALLED_AFTER`].
    pub stalls: u64,
    subscriber: Subscriber<T>,
    /// Answer of this round, not in use yet.
    staged: Option<Box<T>>,
    /// When the open question was put.
    asked: Option<Instant>,
    /// Whether the open question was put in this round.
    is_of_round: bool,
    has_answered: bool,
    is_stalled: bool,
}

impl<T> Watched<T> {
    /// A thread that has not started, and its publisher. `empty` makes its first snapshots.
    pub fn new(
        thread: Thread,
        core: Option<usize>,
        empty: impl Fn() -> T,
    ) -> (Publisher<T>, Watched<T>) {
        let (publisher, subscriber) = snapshots(&empty);
        let watched = Watched {
            thread,
            core,
            latest: Box::new(empty()),
            life: Life::Running,
            is_known: false,
            stalls: 0,
            subscriber,
            staged: None,
            asked: None,
            is_of_round: false,
            has_answered: false,
            is_stalled: false,
        };
        (publisher, watched)
    }

    /// How long it has owed an answer.
    pub fn owes(&self) -> Duration {
        let is_running = self.life == Life::Running;
        let asked = self.asked.filter(|_| is_running);
        asked.map_or(Duration::ZERO, |asked| asked.elapsed())
    }

    fn begin(&mut self) {
        self.is_of_round = false;
        self.has_answered = self.life != Life::Running;
        if let Some(staged) = self.staged.take() {
            self.keep_or_give_back(staged);
        }
    }

    /// Asks and polls; true once it has answered in this round, or never will again.
    fn advance(&mut self) -> bool {
        while !self.has_answered {
            match self.subscriber.poll() {
                Looked::Answer(snapshot) => {
                    self.asked = None;
                    match self.is_of_round {
                        true => self.stage(snapshot),
                        // It may have been taken before the others of this round.
                        false => self.subscriber.give_back(snapshot),
                    }
                }
                Looked::Last(snapshot) => {
                    self.life = Life::Ended;
                    self.stage(snapshot);
                }
                Looked::Died => {
                    self.life = Life::Died;
                    self.has_answered = true;
                }
                Looked::Nothing if self.subscriber.ask() => {
                    self.asked = Some(Instant::now());
                    self.is_of_round = true;
                }
                Looked::Nothing => break,
            }
        }
        self.has_answered
    }

    fn stage(&mut self, snapshot: Box<T>) {
        self.staged = Some(snapshot);
        self.has_answered = true;
    }

    /// Returns an unused snapshot to the thread, but keeps a last one.
    fn keep_or_give_back(&mut self, snapshot: Box<T>) {
        match self.life {
            Life::Running => self.subscriber.give_back(snapshot),
            Life::Ended | Life::Died => (self.latest, self.is_known) = (snapshot, true),
        }
    }

    fn commit(&mut self) {
        if let Some(snapshot) = self.staged.take() {
            self.is_known = true;
            let before = std::mem::replace(&mut self.latest, snapshot);
            if self.life == Life::Running {
                self.subscriber.give_back(before);
            }
        }
    }

    fn count_stalls(&mut self) {
        let is_stalled = self.owes() > STALLED_AFTER;
        self.stalls += u64::from(is_stalled && !self.is_stalled);
        self.is_stalled = is_stalled;
    }
}

pub struct Collector {
    pub flows: Vec<Watched<FlowSnapshot>>,
    /// Those who answer series: flow workers that do it themselves, and analytics threads.
    pub analytics: Vec<Watched<AnalyticsSnapshot>>,
    pub dropped: Vec<NicDrops>,
    pub sinks: Vec<Report>,
    /// Packets per second, over the last second or somewhat more.
    pub packets_per_s: f64,
    /// Flows looked up among the rules per second, over the same time.
    pub lookups_per_s: f64,
    /// Bytes of flows per second, at the IP layer, over the same time.
    pub flow_bytes_per_s: f64,
    /// When rates were last computed; packets, look-ups and bytes at that time.
    rated: (Instant, [u64; 3]),
    host: Arc<HostStats>,
    pub run_sinks: Arc<Sinks>,
    collected: Option<Instant>,
}

impl Collector {
    /// Watches these threads, interfaces and sinks.
    pub fn new(
        flows: Vec<Watched<FlowSnapshot>>,
        analytics: Vec<Watched<AnalyticsSnapshot>>,
        host: Arc<HostStats>,
        sinks: Arc<Sinks>,
    ) -> Collector {
        Collector {
            flows,
            analytics,
            dropped: host.dropped(),
            sinks: sinks.reports(),
            packets_per_s: 0.0,
            lookups_per_s: 0.0,
            flow_bytes_per_s: 0.0,
            rated: (Instant::now(), [0; 3]),
            host,
            run_sinks: sinks,
            collected: None,
        }
    }

    /// Asks all threads for snapshots and waits up to [`ANSWER_WITHIN`] for each kind.
    pub async fn collect(&mut self) {
        let is_fresh = |collected: Instant| collected.elapsed() < FRESH_FOR;
        if self.collected.is_some_and(is_fresh) {
            return;
        }
        ask(&mut self.analytics).await;
        if ask(&mut self.flows).await {
            self.analytics.iter_mut().for_each(Watched::commit);
        }
        self.flows.iter_mut().for_each(Watched::commit);
        self.flows.iter_mut().for_each(Watched::count_stalls);
        self.analytics.iter_mut().for_each(Watched::count_stalls);
        self.dropped = self.host.dropped();
        self.sinks = self.run_sinks.reports();
        self.rate();
        self.collected = Some(Instant::now());
    }

    /// Packets taken from all ports, as many as on the wire.
    pub fn packets(&self) -> u64 {
        let flows = self.flows.iter();
        flows.map(|it| it.latest.counters.verdicts.total()).sum()
    }

    fn rate(&mut self) {
        let (then, before) = self.rated;
        let seconds = then.elapsed().as_secs_f64();
        if seconds >= RATE_OVER.as_secs_f64() {
            let lookups = self.flows.iter().map(|it| it.latest.rules.lookups);
            let bytes = self.flows.iter().map(|it| it.latest.counters.flow_bytes);
            let now = [self.packets(), lookups.sum(), bytes.sum()];
            let rate = |at: usize| (now[at] - before[at]) as f64 / seconds;
            (self.packets_per_s, self.lookups_per_s) = (rate(0), rate(1));
            self.flow_bytes_per_s = rate(2);
            self.rated = (Instant::now(), now);
        }
    }

    pub fn has_ended(&self) -> bool {
        let flows = self.flows.iter().map(|watched| watched.life);
        let analytics = self.analytics.iter().map(|watched| watched.life);
        flows.chain(analytics).all(|life| life != Life::Running)
    }

    /// The analytics threads, without flow workers that answer series themselves.
    pub fn analytics_threads(&self) -> impl Iterator<Item = &Watched<AnalyticsSnapshot>> {
        self.analytics.iter().filter(|it| !matches!(it.thread.role, Role::Flow(_)))
    }

    /// Adds the analytics threads, which start once the first model is open.
    pub fn add_analytics(&mut self, analytics: Vec<Watched<AnalyticsSnapshot>>) {
        self.analytics.extend(analytics);
        self.collected = None;
    }

    pub fn is_known(&self) -> bool {
        let flows = self.flows.iter().all(|watched| watched.is_known);
        flows && self.analytics.iter().all(|watched| watched.is_known)
    }
}

/// True when all have answered in time.
async fn ask<T>(watched: &mut [Watched<T>]) -> bool {
    watched.iter_mut().for_each(Watched::begin);
    let (began, mut pause) = (Instant::now(), POLL_AGAIN);
    loop {
        let mut all = true;
        for watched in watched.iter_mut() {
            all &= watched.advance();
        }
        if all || began.elapsed() >= ANSWER_WITHIN {
            return all;
        }
        sleep(pause).await;
        pause = POLL_AGAIN_MAX.min(2 * pause);
    }
}

#[cfg(test)]
mod tests {
    use dataplane::placement::Role;

    use super::*;

    fn watched() -> (Publisher<u64>, Watched<u64>) {
        let thread = Thread { instance: 0, role: Role::Flow(0) };
        Watched::new(thread, None, || 0)
    }

    /// Asks in a round of its own; true when all have answered.
    fn round(watched: &mut Watched<u64>) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.unwrap();
        runtime.block_on(ask(std::slice::from_mut(watched)))
    }

    #[test]
    fn what_was_answered_in_an_earlier_round_is_asked_anew() {
        let (publisher, mut watched) = watched();
        assert!(!round(&mut watched), "nobody publishes");
        publisher.publish(|snapshot| *snapshot = 1);
        watched.begin();
        assert!(!watched.advance(), "it may be older than the others of this round");
        publisher.publish(|snapshot| *snapshot = 2);
        assert!(watched.advance());
        assert_eq!(*watched.latest, 0, "not in use yet");
        watched.commit();
        assert_eq!((*watched.latest, watched.is_known), (2, true));
    }

    #[test]
    fn an_answer_that_does_not_come_into_use_makes_room_for_the_next() {
        let (publisher, mut watched) = watched();
        for snapshot in 1..4 {
            watched.begin();
            assert!(!watched.advance());
            publisher.publish(|buffer| *buffer = snapshot);
            assert!(watched.advance());
        }
        watched.commit();
        assert_eq!(*watched.latest, 3);
    }

    #[test]
    fn the_end_comes_into_use_whatever_the_round() {
        let (publisher, mut watched) = watched();
        publisher.finish(|snapshot| *snapshot = 7);
        assert!(round(&mut watched));
        assert_eq!(watched.life, Life::Ended);
        // This round was given up; ended threads are not asked again.
        assert!(round(&mut watched));
        assert_eq!(*watched.latest, 7);
        assert_eq!(watched.owes(), Duration::ZERO);
    }

    #[test]
    fn a_thread_that_owes_an_answer_has_stalled_once_until_it_answers() {
        let (publisher, mut watched) = watched();
        watched.begin();
        watched.advance();
        watched.count_stalls();
        assert_eq!(watched.stalls, 0);
        watched.asked = Instant::now().checked_sub(2 * STALLED_AFTER);
        watched.count_stalls();
        watched.count_stalls();
        assert_eq!(watched.stalls, 1);
        publisher.publish(|snapshot| *snapshot = 1);
        watched.advance();
        watched.count_stalls();
        assert_eq!((watched.owes(), watched.stalls), (Duration::ZERO, 1));
        drop(publisher);
        watched.begin();
        assert!(watched.advance());
        assert_eq!(watched.life, Life::Died);
    }
}
