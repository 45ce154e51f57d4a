//! Batchy's grid (§5, Table 2) with tasks of this program: several on one thread, by the policy that plans their batches.
//!
//! The manager is the real one, with its controller; only its clock is the bench's, and its devices take virtual time. So the
//! figures are the same on every machine. [`graphs`] has the tasks and the flows, [`world`] runs them, [`measure`] counts, and
//! [`changes`] shows what happens when goals or rates change.

mod changes;
mod device;
mod flows;
mod graphs;
mod judge;
mod measure;
mod shares;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use analytics::Policy;
use flowmgr::Pages;

use super::report::{Figure, Report};
use super::threads::joined;
use crate::cli::BenchArgs;
use fenxi::exit::Failure;
use fenxi::machine::{Machine, cores};
use graphs::Case;
use measure::{Length, Outcome};

/// Control periods, after as many as a plan needs to settle.
const PERIODS: u64 = 100;
const WARM_UP: u64 = 30;
/// At least, for trying things out.
const PERIODS_MIN: u64 = 3;
/// Goals, as in the paper: so much of the mean time to label with the policy `max`; and no less than so many turnarounds.
const OF_MAX: f64 = 0.8;
const TURNAROUNDS: u32 = 2;
/// δ as in the paper, aggressive and cautious, with the part of the control periods that may be violated.
const DELTAS: [(f64, f64); 2] = [(0.05, 0.09), (0.2, 0.0)];
/// How many times less the device has to do than without batches, at least.
const GAIN: f64 = 1.5;
/// The least part of the labels that the policy `max` gives.
const THROUGHPUT: f64 = 0.95;
/// The graphs for changes.
const CHANGED: [&str; 3] = [
    "chain of 2, batches to 256",
    "split of 4, batches to 256",
    "split and join, batches to 256",
];

/// A case's figures.
type Figures = Vec<Figure>;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let periods = ((args.seconds * 1e9) as u64 / measure::PERIOD_NS).clamp(PERIODS_MIN, PERIODS);
    let length = Length {
        warm_up: WARM_UP.min(periods),
        periods,
    };
    let cases = graphs::cases();
    let of_cases = in_parallel(cases.len(), |number| figures(&cases[number], length))?;
    Ok(Report {
        bench: "tasks",
        title: "Tasks on one thread: load of the device by policy, virtual time",
        x: "tasks",
        machine: Machine::here(Pages::Plain),
        figures: of_cases.into_iter().flatten().collect(),
        skipped: Vec::new(),
    })
}

/// All policies on one graph.
fn figures(case: &Case, length: Length) -> Result<Figures, Failure> {
    let tasks = case.nodes.len();
    let max = measure::manager(case, &vec![Policy::Max; tasks], &[], length)?;
    let goals = goals(case, &max)?;
    let run = |policy: &dyn Fn(Duration) -> Policy| {
        measure::manager(case, &world::with_goals(&goals, policy), &goals, length)
    };
    let (null, max) = (run(&|_| Policy::None)?, run(&|_| Policy::Max)?);
    let on_off = run(&|latency_goal| Policy::OnOff {
        latency_goal,
        delta: DELTAS[0].0,
    })?;
    let mut figures = Vec::new();
    let mut tell = |policy: &str, outcome: &Outcome, bars: Option<f64>| {
        figures.extend(told(case, policy, outcome, (&null, &max), bars));
    };
    tell("none", &null, None);
    tell("max", &max, None);
    tell(
        "equal shares",
        &measure::shares(case, &goals, length)?,
        None,
    );
    tell("on-off", &on_off, None);
    for (delta, violated) in DELTAS {
        let slo = run(&|goal| changes::slo(goal, delta))?;
        tell(&format!("slo {delta}"), &slo, Some(violated));
    }
    if CHANGED.contains(&case.name.as_str()) {
        for (delta, _) in DELTAS {
            figures.extend(changes::figures(case, &goals, delta, length)?);
        }
    }
    Ok(figures)
}

fn goals(case: &Case, max: &Outcome) -> Result<Vec<Duration>, Failure> {
    let least = TURNAROUNDS * case.turnaround()?;
    let of_max = max.means.iter().map(|mean| mean.mul_f64(OF_MAX));
    Ok(of_max.map(|goal| goal.max(least)).collect())
}

/// What a policy came to, beside none and `max`. Bars are for a policy whose periods may be violated to this part.
fn told(
    case: &Case,
    policy: &str,
    outcome: &Outcome,
    (null, max): (&Outcome, &Outcome),
    bars: Option<f64>,
) -> Figures {
    let figure = |what: &str, unit, value| {
        let line = match case.x {
            Some(_) => format!("split, batches to {}, {policy}: {what}", case.cap),
            None => format!("{}, {policy}: {what}", case.name),
        };
        Figure {
            x: case.x,
            ..Figure::one(line, unit, value)
        }
    };
    let load = Figure {
        line: match case.x {
            Some(_) => format!("{policy}: load of splits"),
            None => format!("{}, {policy}: load", case.name),
        },
        ..figure("", "busy", outcome.load)
    };
    let mut gain = figure("load of none by this", "ratio", null.load / outcome.load);
    let part = outcome.labels_per_s / max.labels_per_s;
    let mut by_max = figure("throughput by that of max", "ratio", part);
    let mut violated = figure("control periods in violation", "share", outcome.violated);
    if let Some(most) = bars {
        by_max = by_max.at_least(THROUGHPUT);
        // In an overload there is no load to save, and no goal can be kept.
        if !case.is_overload {
            gain = gain.at_least(GAIN);
            violated = violated.at_most(most);
        }
    }
    vec![
        load,
        gain,
        figure("throughput", "k labels/s", outcome.labels_per_s / 1e3),
        by_max,
        figure("series in a batch", "series", outcome.batch),
        figure("p99 by goal, worst task", "ratio", outcome.p99_by_goal),
        violated,
        figure("series without a label", "series", outcome.shed as f64),
    ]
}

/// Runs so many pieces of work on all cores; their results in order.
fn in_parallel<T: Send>(
    pieces: usize,
    work: impl Fn(usize) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<T, Failure>>>> =
        (0..pieces).map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        let worker = || {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                let Some(result) = results.get(piece) else {
                    return;
                };
                let done = work(piece);
                if let Ok(mut result) = result.lock() {
                    *result = Some(done);
                }
            }
        };
        let threads: Vec<_> = (0..cores()).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().for_each(joined);
    });
    let results = results.into_iter();
    results
        .filter_map(|it| it.into_inner().ok().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::measure::Runs;
    use super::*;

    /// Labels of each task in a second.
    fn labels(mut world: impl Runs) -> Vec<u64> {
        world.run_until(1_000_000_000);
        assert_eq!(world.shed_at_rings(), 0);
        let counters = world.counters().inspect(|it| assert_eq!(it.post_mortem, 0));
        counters.map(|it| it.inferred).collect()
    }

    #[test]
    fn tasks_are_asked_as_the_classes_of_flows_say_in_one_manager_and_in_several() {
        for case in graphs::cases().iter().filter(|it| it.cap == 32) {
            let nodes = case.nodes.len();
            let one = labels(world::World::new(case, &vec![Policy::None; nodes]).unwrap());
            let several = labels(shares::Shares::new(case).unwrap());
            for (number, node) in case.nodes.iter().enumerate() {
                let is_asked = |class: usize| {
                    node.emitted[class] && node.after.iter().all(|(_, wanted)| wanted[class])
                };
                let classes = (0..case.shares.len()).filter(|class| is_asked(*class));
                // A join is asked where all are that it follows.
                let share: f64 = match case.name.starts_with("split and join") && number == 3 {
                    true => case.shares[2],
                    false => classes.map(|class| case.shares[class]).sum(),
                };
                for labels in [one[number], several[number]] {
                    let part = labels as f64 / (share * case.rate);
                    assert!((0.97..1.03).contains(&part), "{}: {part}", case.name);
                }
            }
        }
    }

    #[test]
    fn the_bench_and_the_manager_count_the_same_violations() {
        let cases = graphs::cases();
        let case = cases.iter().find(|it| it.name.starts_with("split of 2"));
        // The first goal is shorter than a batch of the other task.
        let goals = [30, 20_000].map(Duration::from_micros);
        let policies = world::with_goals(&goals, |goal| changes::slo(goal, 0.05));
        let mut world = world::World::new(case.unwrap(), &policies).unwrap();
        let mut judge = judge::Judge::new(&goals, world.counters());
        let violated = (1..=20).filter(|period| {
            // A little later, so that the manager has ended the period.
            Runs::run_until(&mut world, period * (measure::PERIOD_NS + 100_000));
            judge.is_violated(world.counters())
        });
        let violated = violated.count() as u64;
        let counted: Vec<_> = world.counters().map(|it| it.slo).collect();
        assert!(violated >= 10 && counted[1].violations == 0);
        assert!(counted[0].periods >= 19 && counted[0].violations.abs_diff(violated) <= 1);
    }
}
