//! A manager and its feed in real time: a busy thread each, on a core of its own where there are two.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use analytics::Manager;

use super::feed::Feed;
use crate::commands::bench::frames::Draws;
use crate::commands::bench::machine::{joined, pin};

/// What a run leaves behind.
pub struct Outcome {
    pub manager: Manager,
    /// Series that found the ring full.
    pub shed: u64,
    /// From the first arrival to the last label.
    pub elapsed: Duration,
}

/// Feeds `manager` with a Poisson process until `is_over` at a time in ns since the start, and runs it until the last
/// series has its fate. `between_rounds` is called by the manager's thread.
///
/// A series is emitted when it is really pushed, be that late: a time to label is the manager's own.
pub fn run(
    mut manager: Manager,
    mut feed: Feed,
    rate_per_s: f64,
    is_over: impl Fn(u64) -> bool + Send,
    mut between_rounds: impl FnMut(&mut Manager) + Send,
) -> Outcome {
    let ready = &Barrier::new(2);
    let started = Instant::now();
    let now_ns = || started.elapsed().as_nanos() as u64;
    thread::scope(|scope| {
        let feeder = scope.spawn(move || {
            pin(1);
            ready.wait();
            arrive(&mut feed, rate_per_s, is_over, now_ns);
            // Dropping the feed closes the ring.
            feed.shed
        });
        let worker = scope.spawn(move || {
            pin(0);
            ready.wait();
            let began = Instant::now();
            while !manager.is_done() {
                manager.round(now_ns());
                between_rounds(&mut manager);
            }
            (manager, began.elapsed())
        });
        let shed = joined(feeder);
        let (manager, elapsed) = joined(worker);
        Outcome {
            manager,
            shed,
            elapsed,
        }
    })
}

/// Over after so many seconds.
pub fn after(seconds: f64) -> impl Fn(u64) -> bool {
    move |now_ns| now_ns as f64 >= seconds * 1e9
}

/// Pushes each series when it is due; what has come due meanwhile is published at once.
fn arrive(
    feed: &mut Feed,
    rate_per_s: f64,
    is_over: impl Fn(u64) -> bool,
    now_ns: impl Fn() -> u64,
) {
    let mut draws = Draws::new(1);
    let mut gap_ns = || (draws.gap(rate_per_s) * 1e9) as u64;
    let mut due_ns = now_ns() + gap_ns();
    while !is_over(due_ns) {
        let now_ns = now_ns();
        if now_ns < due_ns {
            // Leaves the core to whoever wants it: the manager, where there is only one.
            thread::yield_now();
            continue;
        }
        while due_ns <= now_ns {
            feed.push(now_ns);
            due_ns += gap_ns();
        }
        feed.publish();
    }
}
