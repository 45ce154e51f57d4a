//! FENXI Fig. 8: the time that a device with few batch sizes spends on padding, by policy, in
//! virtual time.
//!
//! Sizes 8 to 1024, Poisson arrivals, policies `timeout` and `carry-over` with the same T. The
//! share of a batch's rows that are padding is the share of its device time that counts as
//! padding. The bar is on the sums over all rates.

use accel::{Profile, Sizes};
use analytics::{Counters, Policy, Trigger};
use flowmgr::Pages;

use super::simulation::Simulation;
use super::{CARRY_OVER, MAX_WAIT, TIMEOUT};
use crate::bench::report::{Figure, Report};
use crate::cli::BenchArgs;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Series per second by default: eight rates per decade, evenly spaced. Sizes double, and the
/// result depends on where between two sizes the series per T fall.
const RATES: [u32; 17] = [
    1_000, 1_334, 1_778, 2_371, 3_162, 4_217, 5_623, 7_499, 10_000, 13_335, 17_783, 23_714, 31_623,
    42_170, 56_234, 74_989, 100_000,
];
/// The profile of the device `simulated`; the default of the configuration.
const PROFILE: Profile = Profile { t0_us: 100.0, t1_us: 2.0 };
/// Virtual seconds of each rate and policy, at least.
const SECONDS_MIN: f64 = 0.5;

/// The result of one policy at one rate.
struct Outcome {
    /// Shares of the time in which the device worked at all, and on padding.
    used: f64,
    padding: f64,
    /// 99th percentile of the time from emission to label, ms.
    p99_ms: f64,
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let rates = match args.rates.as_slice() {
        [] => &RATES,
        given => given,
    };
    let policies = [("timeout", Policy::Timeout { timeout: TIMEOUT }), ("carry-over", CARRY_OVER)];
    let seconds = args.seconds.max(SECONDS_MIN);
    let mut figures = Vec::new();
    let mut outcomes = Vec::new();
    for (name, policy) in policies {
        for &rate in rates {
            let outcome = simulate(policy, f64::from(rate), seconds)?;
            figures.extend(outcome.figures(name, f64::from(rate) / 1e3));
            outcomes.push(outcome);
        }
    }
    let (timeout, carry_over) = outcomes.split_at(rates.len());
    figures.extend(compared(rates, timeout, carry_over));
    Ok(Report {
        bench: "padding",
        title: "Device time on padding, batches of 8 to 1024, T = 10 ms, virtual time",
        x: "k series/s",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

impl Outcome {
    fn figures(&self, policy: &str, k_rate: f64) -> [Figure; 3] {
        let figure =
            |what, unit, value| Figure::one(format!("{policy}: {what}"), unit, value).at(k_rate);
        [
            figure("time on padding", "share", self.padding),
            figure("time in all", "share", self.used),
            figure("wait and device, p99", "ms", self.p99_ms),
        ]
    }
}

/// The two policies at each rate, and over all of them.
fn compared(rates: &[u32], timeout: &[Outcome], carry_over: &[Outcome]) -> Vec<Figure> {
    // No ratio where carry-over has no padding.
    let ratio = |line: &str, more: f64, less: f64| {
        (less > 0.0).then(|| Figure::one(line, "ratio", more / less))
    };
    let of_rates = rates.iter().zip(timeout).zip(carry_over);
    let mut figures: Vec<Figure> = of_rates
        .filter_map(|((&rate, timeout), carry_over)| {
            let figure = ratio("timeout by carry-over", timeout.padding, carry_over.padding)?;
            Some(figure.at(f64::from(rate) / 1e3))
        })
        .collect();
    let sum = |of: &[Outcome]| of.iter().map(|it| it.padding).sum::<f64>();
    let all = ratio("timeout by carry-over, all rates", sum(timeout), sum(carry_over));
    figures.extend(all.map(|figure| figure.at_least(5.0)));
    let longest_ms = carry_over.iter().map(|it| it.p99_ms).fold(0.0, f64::max);
    let bound_ms = (TIMEOUT + MAX_WAIT).as_secs_f64() * 1e3;
    let line = "carry-over: wait and device, largest p99";
    figures.push(Figure::one(line, "ms", longest_ms).at_most(bound_ms));
    figures
}

fn simulate(policy: Policy, rate: f64, seconds: f64) -> Result<Outcome, Failure> {
    let sizes = Sizes::Fixed((3..=10).map(|x| 1 << x).collect());
    let mut simulation = Simulation::new(policy, PROFILE, &sizes, 1)?;
    let mut before = (0, 0);
    let (mut used_s, mut padding_s) = (0.0, 0.0);
    simulation.run(rate, seconds, |manager| {
        // One device takes one batch a round at most.
        let now = rows(manager.tasks()[0].counters());
        let (series, padding) = (now.0 - before.0, now.1 - before.1);
        if series > 0 {
            let size = series + padding;
            let batch_s = PROFILE.latency(size as usize).as_secs_f64();
            used_s += batch_s;
            padding_s += batch_s * padding as f64 / size as f64;
            before = now;
        }
    });
    let time_to_label = &simulation.manager.tasks()[0].counters().time_to_label_us();
    Ok(Outcome {
        used: used_s / seconds,
        padding: padding_s / seconds,
        p99_ms: time_to_label.value_at_quantile(0.99) as f64 / 1e3,
    })
}

/// Rows given to the device so far: series, padding.
fn rows(counters: &Counters) -> (u64, u64) {
    let batches = Trigger::ALL.map(|trigger| counters.batches(trigger));
    batches.iter().fold((0, 0), |(series, padding), of| (series + of.series, padding + of.padding))
}
