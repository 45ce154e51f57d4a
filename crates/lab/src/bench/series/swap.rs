//! What swaps of the model add to the time to label, under Poisson arrivals.
//!
//! Runs with one swap after the other take turns with runs without swaps. A swap is the one of the
//! program in full: a thread opens the bundle, opens a device, compares it with the golden
//! outputs, hands it over and drops the old one. Loading may delay a label more than the swap
//! itself does, so both count.

use std::sync::Arc;
use std::time::Duration;

use accel::Bundle;
use analytics::{Counters, Manager, Policy};
use flowmgr::Pages;

use super::golden::golden_series;
use super::{CARRY_OVER, SLOTS, bundle, live, manager};
use crate::bench::report::{Figure, Report};
use crate::bench::rounds::try_interleave;
use crate::cli::BenchArgs;
use config::Config;
use dataplane::analytics_worker::Hooks;
use dataplane::devices::Opener;
use dataplane::placement::{Cores, Role, Thread};
use dataplane::profiles::Profiles;
use dataplane::state::{SharedState, Swaps};
use dataplane::swap::{PeriodicSwapper, Plan, SwapPort};
use dataplane::tasks::OpenTask;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use fenxi_benches::series::Feed;

/// Series per second.
const RATE: u32 = 50_000;
/// Shortest and longest run, s.
const RUN_S: (f64, f64) = (0.2, 3.0);
/// Time from the end of one swap to the beginning of the next: far less than a swap takes.
const PAUSE: Duration = Duration::from_millis(1);
/// Swaps that an experiment of the default length must reach.
const SWAPS_LEAST: f64 = 100.0;

/// The analytics thread whose model is swapped.
const THREAD: Thread = Thread { instance: 0, role: Role::Analytics(0) };

/// One policy, with swaps or without.
struct Case<'a> {
    bundle: &'a Bundle,
    policy: Policy,
    swaps: bool,
    runs: Vec<Counters>,
    /// Series of all runs that got no label.
    unlabelled: u64,
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let bundle = bundle(args)?;
    let names = ["carry-over", "none"];
    let mut cases = Vec::new();
    for policy in [CARRY_OVER, Policy::None] {
        cases.extend([true, false].map(|swaps| Case {
            bundle: &bundle,
            policy,
            swaps,
            runs: Vec::new(),
            unlabelled: 0,
        }));
    }
    let seconds = (args.seconds / (4 * cases.len()) as f64).clamp(RUN_S.0, RUN_S.1);
    let rate = args.rate_or(RATE);
    try_interleave(args.seconds, cases.len(), |case| {
        // The case keeps the results of its runs.
        cases[case].run(rate, seconds).map(|()| 0.0)
    })?;
    let compared = names.iter().zip(cases.chunks_exact(2));
    Ok(Report {
        bench: "swap",
        title: "Time to label while models are swapped, Poisson arrivals",
        x: "",
        machine: Machine::here(Pages::Plain),
        figures: compared.flat_map(|(name, cases)| figures(name, cases)).collect(),
        skipped: Vec::new(),
    })
}

impl Case<'_> {
    /// One run with a manager of its own.
    fn run(&mut self, rate: f64, seconds: f64) -> Result<(), Failure> {
        let config = Config::load(None, &[])?;
        let cores = Cores::of(&config);
        let opener = Opener {
            config: &config,
            bundle: self.bundle,
            cores: &cores,
            golden_test: false,
            profiles: &Profiles::new(&[]),
        };
        let (feed, inlet) = Feed::new(golden_series(self.bundle), SLOTS);
        let accelerators = opener.accelerators(&THREAD)?;
        let manager = manager(self.policy, self.bundle.k(), inlet, accelerators)?;
        let analytics = [(THREAD, manager)];
        let swapper = match self.swaps {
            true => Some(self.start_swapper(&config, &cores, &analytics)?),
            false => None,
        };
        let (swapper, port) = swapper.unzip();
        let [(_, manager)] = analytics;
        let (counters, shed) = live::run(feed, rate, live::after(seconds), |run| {
            let hooks = Hooks { swaps: port.into_iter().collect(), ..Hooks::default() };
            live::work(manager, run, hooks)
        });
        if let Some(swapper) = swapper {
            refused(swapper.finish()?)?;
        }
        self.unlabelled += counters.series - counters.inferred + counters.post_mortem + shed;
        self.runs.push(counters);
        Ok(())
    }

    /// Swaps the model for itself, again and again.
    fn start_swapper(
        &self,
        config: &Config,
        cores: &Cores,
        analytics: &[(Thread, Manager)],
    ) -> Result<(PeriodicSwapper, SwapPort), Failure> {
        let model = self.bundle.model_path();
        let plan = Plan { bundle: model.parent().unwrap_or(&model).to_owned(), every: PAUSE };
        let state = Arc::new(SharedState::new(&[OpenTask::only(config, self.bundle)]));
        let (swapper, ports) =
            PeriodicSwapper::start(plan, config, cores, self.bundle, state, analytics)?;
        let port = ports.into_iter().next();
        let port = port.ok_or_else(|| Failure::software("no port for the analytics thread"))?;
        Ok((swapper, port))
    }
}

fn refused(swaps: Swaps) -> Result<(), Failure> {
    match swaps.last_refusal {
        Some(reason) => Err(Failure::data(format!("a model was refused: {reason}"))),
        None => Ok(()),
    }
}

/// One policy with swaps and without.
fn figures(name: &str, cases: &[Case]) -> Vec<Figure> {
    let [with, without] = cases else {
        return Vec::new();
    };
    let line = |what: &str| format!("{name}: {what}");
    let quantile = |case: &Case, what: &str, quantile| {
        // The first run only warmed up.
        let times: Vec<_> = case.runs[1..].iter().map(|run| run.time_to_label_us()).collect();
        Figure::quantile(line(what), "ms", 1e3, &times, quantile)
    };
    let p99 = [quantile(with, "p99 with swaps", 0.99), quantile(without, "p99 without", 0.99)];
    let largest =
        [quantile(with, "largest with swaps", 1.0), quantile(without, "largest without", 1.0)];
    let added =
        |what: &str, of: &[Figure; 2]| Figure::one(line(what), "ms", of[0].median - of[1].median);
    let added = [added("p99 added", &p99).at_most(5.0), added("largest added", &largest)];
    let swaps: u64 = with.runs.iter().map(|run| run.swaps).sum();
    let unlabelled = (with.unlabelled + without.unlabelled) as f64;
    let sums = [
        Figure::one(line("swaps"), "swaps", swaps as f64).at_least(SWAPS_LEAST),
        Figure::one(line("series without a label"), "series", unlabelled).at_most(0.0),
    ];
    p99.into_iter().chain(largest).chain(added).chain(sums).collect()
}
