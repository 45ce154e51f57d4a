//! A manager and its feed in real time, a thread each.
//!
//! Neither is pinned: a thread that is tied to its core waits there behind whatever the system puts on it, such as one that
//! loads a model, while another core is free.

use std::num::NonZeroU64;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rustix::thread::set_current_timer_slack;

use super::feed::Feed;
use crate::bench::machine::joined;
use crate::rng::Rng;
use dataplane::run::Run;

/// Rest of the feeder, and how much later than asked the system may wake it, ns.
const REST: Duration = Duration::from_micros(20);
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

/// Feeds a Poisson process until `is_over` at a time in ns since the start, then closes the ring; meanwhile `work` is the
/// analytics thread. Returns what that returned, and how many series found the ring full.
///
/// A series is emitted when it is really pushed, be that late: a time to label is the manager's own.
pub fn run<T: Send>(
    mut feed: Feed,
    rate_per_s: f64,
    is_over: impl Fn(u64) -> bool + Send,
    work: impl FnOnce(Arc<Run>) -> T + Send,
) -> (T, u64) {
    let ready = &Barrier::new(2);
    let run = Arc::new(Run::new(1));
    let clock = run.clone();
    thread::scope(|scope| {
        let feeder = scope.spawn(move || {
            ready.wait();
            arrive(&mut feed, rate_per_s, is_over, &clock);
            feed.shed
        });
        let worker = scope.spawn(move || {
            ready.wait();
            work(run)
        });
        let shed = joined(feeder);
        (joined(worker), shed)
    })
}

/// Over after so many seconds.
pub fn after(seconds: f64) -> impl Fn(u64) -> bool {
    move |now_ns| now_ns as f64 >= seconds * 1e9
}

/// Pushes what has come due, and rests a little: what is measured wants the cores.
fn arrive(feed: &mut Feed, rate_per_s: f64, is_over: impl Fn(u64) -> bool, clock: &Run) {
    // Without it the rests are a little longer, no more.
    let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
    let mut draws = Rng::new(1);
    let mut gap_ns = || (draws.gap(rate_per_s) * 1e9) as u64;
    let mut due_ns = clock.now_ns() + gap_ns();
    while !is_over(due_ns) {
        let now_ns = clock.now_ns();
        if now_ns < due_ns {
            thread::sleep(REST);
            continue;
        }
        while due_ns <= now_ns {
            feed.push(now_ns);
            due_ns += gap_ns();
        }
        feed.publish();
    }
}
