//! A manager and its feed in real time, a thread each.
//!
//! Neither is pinned: a thread that is tied to its core waits there behind whatever the system
//! puts on it, such as one that loads a model, while another core is free.

use std::num::NonZeroU64;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rustix::thread::set_current_timer_slack;

use crate::bench::threads::{joined, thread_s};
use crate::rng::Rng;
use analytics::{Counters, Manager};
use dataplane::analytics_worker::{AnalyticsWorker, Hooks};
use dataplane::run::Run;
use fenxi_benches::series::Feed;

/// Sleep of the feeder.
const SLEEP: Duration = Duration::from_micros(20);
/// How much later than asked the system may wake the feeder, ns.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

/// What a run came to.
pub struct Ran {
    /// What the manager's task counted.
    pub counters: Counters,
    /// Series that found the ring full.
    pub shed: u64,
    /// CPU time of the worker, s.
    pub worker_s: f64,
    /// CPU time of the feeder, s.
    pub feeder_s: f64,
}

impl Ran {
    /// Series that got no label.
    pub fn unlabelled(&self) -> u64 {
        let counters = &self.counters;
        counters.series - counters.inferred + counters.post_mortem + self.shed
    }
}

/// Feeds a Poisson process for `seconds`, then closes the ring; meanwhile the worker of a live run
/// drives the manager.
///
/// A series is emitted when it is really pushed, be that late: a time to label is the manager's
/// own.
pub fn run(mut feed: Feed, rate_per_s: f64, seconds: f64, manager: Manager) -> Ran {
    let ready = &Barrier::new(2);
    let run = run_of_one();
    let clock = run.clone();
    thread::scope(|scope| {
        let feeder = scope.spawn(move || {
            ready.wait();
            arrive(&mut feed, rate_per_s, seconds, &clock);
            let shed = feed.shed;
            // Closes the ring. A worker that is parked would notice only when its time is over.
            drop(feed);
            clock.waker.wake();
            (shed, thread_s())
        });
        let worker = scope.spawn(move || {
            ready.wait();
            (work(manager, run), thread_s())
        });
        let (shed, feeder_s) = joined(feeder);
        let (counters, worker_s) = joined(worker);
        Ran { counters, shed, worker_s, feeder_s }
    })
}

/// What a feeder and one analytics worker share.
pub fn run_of_one() -> Arc<Run> {
    // A bench without ports has no events.
    let (run, _events) = Run::new(1, 1);
    Arc::new(run)
}

/// The work of a live run's worker, with the counters of its only task.
pub fn work(manager: Manager, run: Arc<Run>) -> Counters {
    let worker = AnalyticsWorker { manager, gathers: false, run, hooks: Hooks::default() };
    worker.run().swap_remove(0)
}

/// Pushes the series that are due and sleeps in between, so that the feeder takes little of the
/// cores that are measured.
fn arrive(feed: &mut Feed, rate_per_s: f64, seconds: f64, run: &Run) {
    // Where the system refuses, the sleeps are a little longer.
    let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
    let mut rng = Rng::new(1);
    let mut gap_ns = || (rng.gap(rate_per_s) * 1e9) as u64;
    let mut due_ns = run.now_ns() + gap_ns();
    while (due_ns as f64) < seconds * 1e9 {
        let now_ns = run.now_ns();
        if now_ns < due_ns {
            thread::sleep(SLEEP);
            continue;
        }
        while due_ns <= now_ns {
            feed.push(now_ns);
            due_ns += gap_ns();
        }
        feed.publish();
        run.waker.wake();
    }
}
