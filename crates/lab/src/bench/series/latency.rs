//! Time to label under Poisson arrivals.
//!
//! One thread does the whole series' walk, with device `cpu`. Runs of a few seconds are repeated
//! and interleaved; for each quantile the median over the runs is shown. With `--goal-ms`, the
//! bench is [`most`] instead.

use std::time::Duration;

use accel::Bundle;
use analytics::{Counters, Policy};
use flowmgr::Pages;

use super::golden::golden_series;
use super::{CARRY_OVER, SLOTS, bundle, live, manager, most, profiled};
use crate::bench::report::{Figure, Report};
use crate::bench::rounds::try_interleave;
use crate::cli::BenchArgs;
use dataplane::bundle::context;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use fenxi_benches::series::Feed;

/// Shortest and longest run, s.
const RUN_S: (f64, f64) = (0.2, 5.0);
/// The share of control periods above their objective that Batchy reports at the same δ.
const VIOLATIONS_MOST: f64 = 0.09;

/// A policy with a largest batch.
struct Case<'a> {
    bundle: &'a Bundle,
    name: &'static str,
    policy: Policy,
    cap: usize,
    /// The bar of the 99th percentile, ms.
    p99_ms: Option<f64>,
    runs: Vec<Counters>,
    /// Series of all runs that got no label.
    unlabelled: u64,
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let bundle = bundle(args)?;
    if let Some(goal_ms) = args.goal_ms {
        return most::run(args, &bundle, goal_ms);
    }
    let mut cases = cases(&bundle);
    let seconds = (args.seconds / (4 * cases.len()) as f64).clamp(RUN_S.0, RUN_S.1);
    try_interleave(args.seconds, cases.len(), |case| {
        // The case keeps the results of its runs.
        cases[case].run(f64::from(args.rate), seconds).map(|()| 0.0)
    })?;
    Ok(Report {
        bench: "latency",
        title: "Time to label under Poisson arrivals, one core",
        x: "",
        machine: Machine::here(Pages::Plain),
        figures: cases.iter().flat_map(Case::figures).collect(),
        skipped: Vec::new(),
    })
}

fn cases(bundle: &Bundle) -> [Case<'_>; 3] {
    let slo = Policy::Slo { latency_goal: Duration::from_millis(2), delta: 0.05 };
    let cases = [
        (
            "carry-over T = 10 ms, batches to 1024",
            CARRY_OVER,
            1024,
            // Why the default goes to 256: here p99 is T and two times what 500 rows take.
            None,
        ),
        ("carry-over T = 10 ms, batches to 256", CARRY_OVER, 256, Some(10.0)),
        ("goal 2 ms, batches to 1024", slo, 1024, Some(2.0)),
    ];
    let case = |(name, policy, cap, p99_ms)| Case {
        bundle,
        name,
        policy,
        cap,
        p99_ms,
        runs: Vec::new(),
        unlabelled: 0,
    };
    cases.map(case)
}

impl Case<'_> {
    /// One run with a manager of its own.
    fn run(&mut self, rate: f64, seconds: f64) -> Result<(), Failure> {
        let (feed, inlet) = Feed::new(golden_series(self.bundle), SLOTS);
        let accelerator = profiled(self.bundle, self.cap)?;
        let (k, context) = (self.bundle.k(), context(self.bundle));
        let manager = manager(self.policy, k, context, inlet, vec![accelerator])?;
        let ran = live::run(feed, rate, seconds, manager);
        self.unlabelled += ran.unlabelled();
        self.runs.push(ran.counters);
        Ok(())
    }

    fn figures(&self) -> Vec<Figure> {
        // The first run only warmed up.
        let runs = &self.runs[1..];
        let times: Vec<_> = runs.iter().map(|run| run.time_to_label_us()).collect();
        let named = |name: &str| format!("{}, {}: {name}", self.bundle.name(), self.name);
        let figure = |name, quantile| Figure::quantile(named(name), "ms", 1e3, &times, quantile);
        let mut figures = vec![
            figure("p50", 0.5),
            match self.p99_ms {
                Some(most) => figure("p99", 0.99).at_most(most),
                None => figure("p99", 0.99),
            },
            figure("largest", 1.0),
        ];
        if let Policy::Slo { .. } = self.policy {
            let sum = |of: fn(&Counters) -> u64| runs.iter().map(of).sum::<u64>();
            let periods = sum(|run| run.slo.periods).max(1);
            let share = sum(|run| run.slo.violations) as f64 / periods as f64;
            let line = named("control periods in violation");
            figures.push(Figure::one(line, "share", share).at_most(VIOLATIONS_MOST));
        }
        let unlabelled = self.unlabelled as f64;
        figures
            .push(Figure::one(named("series without a label"), "series", unlabelled).at_most(0.0));
        figures
    }
}
