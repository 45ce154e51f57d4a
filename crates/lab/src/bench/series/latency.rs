//! Time to label under Poisson arrivals.
//!
//! Live with device `cpu`, one thread does the whole series' walk. In virtual time with a device
//! with a fixed profile, the result depends on the policy alone, whatever else the machine does.
//! Runs of a few seconds are repeated and interleaved; for each quantile the median over the runs
//! is shown.

use std::time::Duration;

use accel::{Bundle, Profile, Sizes};
use analytics::{Counters, Policy};
use flowmgr::Pages;

use super::golden::golden_series;
use super::simulation::Simulation;
use super::{CARRY_OVER, SLOTS, bundle, live, manager, profiled};
use crate::bench::report::{Figure, Report};
use crate::bench::rounds::try_interleave;
use crate::cli::BenchArgs;
use dataplane::analytics_worker::Hooks;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use fenxi_benches::series::Feed;

/// Series per second.
const RATE: u32 = 50_000;
/// Shortest and longest run, s.
const RUN_S: (f64, f64) = (0.2, 5.0);
/// The share of control periods above their objective that Batchy reports at the same δ.
const VIOLATIONS_MOST: f64 = 0.09;

/// The device in virtual time: a CPU core with a model of some 100 k weights.
const PROFILE: Profile = Profile { t0_us: 5.0, t1_us: 4.0 };

/// A policy on a device with a largest batch.
struct Case<'a> {
    /// None in virtual time.
    bundle: Option<&'a Bundle>,
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
    let (live, simulated) = (cases(Some(&bundle)), cases(None));
    let seconds = (args.seconds / (4 * live.len()) as f64).clamp(RUN_S.0, RUN_S.1);
    let mut cases: Vec<Case> = live.into_iter().chain(simulated).collect();
    let rate = args.rate_or(RATE);
    try_interleave(args.seconds, cases.len(), |case| {
        // The case keeps the results of its runs.
        cases[case].run(rate, seconds).map(|()| 0.0)
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

fn cases(bundle: Option<&Bundle>) -> Vec<Case<'_>> {
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
    cases.map(case).into()
}

impl Case<'_> {
    /// One run with a manager of its own.
    fn run(&mut self, rate: f64, seconds: f64) -> Result<(), Failure> {
        let (counters, shed) = match self.bundle {
            Some(bundle) => self.live(bundle, rate, seconds)?,
            None => self.simulated(rate, seconds)?,
        };
        self.unlabelled += counters.series - counters.inferred + counters.post_mortem + shed;
        self.runs.push(counters);
        Ok(())
    }

    fn live(&self, bundle: &Bundle, rate: f64, seconds: f64) -> Result<(Counters, u64), Failure> {
        let (feed, inlet) = Feed::new(golden_series(bundle), SLOTS);
        let accelerator = profiled(bundle, self.cap)?;
        let manager = manager(self.policy, bundle.k(), inlet, vec![accelerator])?;
        Ok(live::run(feed, rate, live::after(seconds), |run| {
            live::work(manager, run, Hooks::default())
        }))
    }

    fn simulated(&self, rate: f64, seconds: f64) -> Result<(Counters, u64), Failure> {
        let sizes = Sizes::Any { cap: self.cap };
        let mut simulation = Simulation::new(self.policy, PROFILE, &sizes, 1)?;
        simulation.run(rate, seconds, |_| ());
        simulation.settle();
        let counters = simulation.manager.tasks()[0].counters().clone();
        Ok((counters, simulation.shed()))
    }

    fn figures(&self) -> Vec<Figure> {
        // The first run only warmed up.
        let runs = &self.runs[1..];
        let times: Vec<_> = runs.iter().map(|run| run.time_to_label_us()).collect();
        let device = self.bundle.map_or("virtual time", Bundle::name);
        let named = |name: &str| format!("{device}, {}: {name}", self.name);
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
