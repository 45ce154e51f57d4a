//! The most series/s at which the 99th percentile of the time to label stays within a goal, under
//! Poisson arrivals: with the engine, and with ONNX Runtime.
//!
//! A series without a label counts as late.

use std::time::Duration;

use accel::{Bundle, DEFAULTS, Device, Provider, Sizes};
use analytics::Policy;
use config::Config;
use dataplane::bundle::context;
use dataplane::session::plain_device;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use fenxi_benches::series::Feed;
use flowmgr::Pages;

use super::golden::golden_series;
use super::{SLOTS, live, manager};
use crate::bench::report::{Figure, Report};
use crate::cli::BenchArgs;

/// A batch waits for more series as long as dynamic batchers usually do.
const POLICY: Policy = Policy::CarryOver {
    timeout: Duration::from_millis(1),
    phi: 0.2,
    max_wait: Duration::from_millis(5),
};
/// The largest batch.
const CAP: usize = 256;
/// How often the interval between a rate that keeps the goal and its double is halved: to 4 %.
const HALVINGS: usize = 4;
/// Runs of a search that begins within a factor of four, and their shortest and longest time, s.
const RUNS: usize = HALVINGS + 4;
const RUN_S: (f64, f64) = (0.2, 5.0);
/// The least rate that is tried, series/s: the shortest run still has some.
const RATE_MIN: f64 = 100.0;

pub fn run(args: &BenchArgs, bundle: &Bundle, goal_ms: f64) -> Result<Report, Failure> {
    let config = Config::load(None, &[])?;
    let seconds = args.seconds / (DEFAULTS.len() * RUNS) as f64;
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for provider in DEFAULTS.into_iter().filter_map(Provider::parse) {
        let search = Search { config: &config, bundle, provider, goal_ms };
        if let Err(error) = search.device() {
            skipped.push(format!("{}: {error}", provider.name));
            continue;
        }
        let name = format!("{}, {}, p99 within {goal_ms} ms", bundle.name(), provider.name);
        figures.extend(search.figures(&name, args.rate.into(), seconds.clamp(RUN_S.0, RUN_S.1))?);
    }
    Ok(Report {
        bench: "latency",
        title: "The most series/s within a latency goal under Poisson arrivals, one core",
        x: "",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped,
    })
}

struct Search<'a> {
    config: &'a Config,
    bundle: &'a Bundle,
    provider: &'static Provider,
    goal_ms: f64,
}

/// CPU time that a run took, us per series.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    worker_us: f64,
    feeder_us: f64,
}

impl Search<'_> {
    fn device(&self) -> Result<Box<dyn Device>, dataplane::Error> {
        plain_device(self.config, self.provider, self.bundle, Sizes::Any { cap: CAP })
    }

    fn figures(&self, name: &str, start: f64, seconds: f64) -> Result<[Figure; 3], Failure> {
        let mut best = Cost::default();
        let rate = most(start, |rate| {
            let cost = self.run(rate, seconds)?;
            best = cost.unwrap_or(best);
            Ok::<bool, Failure>(cost.is_some())
        })?;
        let figure = |of: &str, unit, value| Figure::one(format!("{name}: {of}"), unit, value);
        Ok([
            figure("most", "series/s", rate),
            figure("CPU of the worker", "us per series", best.worker_us),
            figure("CPU of the sender", "us per series", best.feeder_us),
        ])
    }

    /// One run; its cost if it kept the goal.
    fn run(&self, rate: f64, seconds: f64) -> Result<Option<Cost>, Failure> {
        let (feed, inlet) = Feed::new(golden_series(self.bundle), SLOTS);
        let (k, context) = (self.bundle.k(), context(self.bundle));
        let manager = manager(POLICY, k, context, inlet, vec![self.device()?.into()])?;
        let ran = live::run(feed, rate, seconds, manager);
        let times_us = ran.counters.time_to_label_us();
        let in_time = times_us.count_between(0, (self.goal_ms * 1e3) as u64);
        let series = ran.counters.series + ran.shed;
        let is_kept = (series - in_time) * 100 <= series;
        let us_per_series = |cpu_s: f64| cpu_s * 1e6 / series as f64;
        Ok(is_kept.then(|| Cost {
            worker_us: us_per_series(ran.worker_s),
            feeder_us: us_per_series(ran.feeder_s),
        }))
    }
}

/// The highest rate that `keeps` the goal: doubled or halved from `start` on, then searched for in
/// between. 0 if none does.
fn most<E>(start: f64, mut keeps: impl FnMut(f64) -> Result<bool, E>) -> Result<f64, E> {
    let mut low = start;
    while !keeps(low)? {
        low /= 2.0;
        if low < RATE_MIN {
            return Ok(0.0);
        }
    }
    let mut high = 2.0 * low;
    // Where `start` was halved, its double has failed already.
    while low >= start && keeps(high)? {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        match keeps(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn the_search_ends_within_a_twentieth_below_the_truth() {
        for truth in [150.0, 900.0, 1000.0, 1e6] {
            let Ok(found) = most(1000.0, |rate| Ok::<bool, Infallible>(rate <= truth));
            assert!((truth / 1.05..=truth).contains(&found), "{found} for {truth}");
        }
        let Ok(none) = most(1000.0, |_| Ok::<bool, Infallible>(false));
        assert_eq!(none, 0.0);
    }
}
