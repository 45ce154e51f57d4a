//! Batchy's grid (§5, Table 2) with tasks of this program: several on one thread, by the policy
//! that plans their batches.
//!
//! The manager is the real one, with its controller; only its clock is the bench's, and its
//! devices take virtual time. So the figures are the same on every machine. [`graphs`] has the
//! tasks and the flows, [`world`] runs them, [`measure`] counts, and [`changes`] shows what
//! happens when goals or rates change.

mod changes;
mod figures;
mod graphs;
mod measure;
mod plans;
mod world;

use std::thread;

use flowmgr::Pages;

use super::report::{Figure, Report};
use super::threads::joined;
use crate::cli::BenchArgs;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use graphs::Case;
use measure::Length;
use plans::DELTAS;

/// Control periods that are looked at with each seed, after as many as a plan needs to settle
/// (Batchy's took 5 to 10).
const PERIODS: u64 = 40;
const WARM_UP: u64 = 20;
/// At least, for trying things out.
const PERIODS_MIN: u64 = 3;
/// Seeds if there are at least [`PERIODS_OF_SEEDS`] periods; one will do for trying things out.
const SEEDS: u64 = 5;
const PERIODS_OF_SEEDS: u64 = 10;
/// Where flows are too many, rings are full soon, and one period is like the next.
const SATURATED: Length = Length { warm_up: 10, periods: 10, seeds: 2 };

/// The graphs for changes.
const CHANGED: [&str; 3] = ["chain of 2", "split of 4", "split and join"];

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let length = length(args.seconds);
    let cases = chosen(&args.graphs)?;
    let of_cases: Result<Vec<_>, Failure> = thread::scope(|scope| {
        let begin = |case| scope.spawn(move || of_case(case, length));
        let threads: Vec<_> = cases.iter().map(begin).collect();
        threads.into_iter().map(joined).collect()
    });
    Ok(Report {
        bench: "tasks",
        title: "Tasks on one thread: load of the device by policy, virtual time",
        x: "tasks",
        machine: Machine::here(Pages::Plain),
        figures: of_cases?.into_iter().flatten().collect(),
        skipped: Vec::new(),
    })
}

/// The graphs of these names, or all.
fn chosen(names: &[String]) -> Result<Vec<Case>, Failure> {
    let all = graphs::cases();
    let unknown = |name: &&String| !all.iter().any(|case| case.is_of(name));
    if let Some(name) = names.iter().find(unknown) {
        let line = format!("--graph {name}: no such graph; docs/bench.md lists them");
        return Err(Failure::usage(line));
    }
    let is_chosen = |case: &Case| names.is_empty() || names.iter().any(|name| case.is_of(name));
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn length(seconds: f64) -> Length {
    let periods = ((seconds * 1e9) as u64 / measure::PERIOD_NS).clamp(PERIODS_MIN, PERIODS);
    Length {
        warm_up: WARM_UP.min(periods),
        periods,
        seeds: if periods >= PERIODS_OF_SEEDS { SEEDS } else { 1 },
    }
}

/// All plans on one graph, with flows that can be kept up with and with too many, and changes.
fn of_case(case: &Case, length: Length) -> Result<Vec<Figure>, Failure> {
    let goals = plans::goals(case, length)?;
    let outcomes = plans::outcomes(case, &goals, length)?;
    let mut told = figures::of_plans(case, &outcomes);
    told.extend(figures::of_goals(case, &goals));
    let saturated = case.saturated();
    let outcomes = plans::outcomes(&saturated, &goals, length.at_most(SATURATED))?;
    told.extend(figures::of_saturation(&saturated, &outcomes));
    if CHANGED.iter().any(|name| case.is_of(name)) {
        for (delta, _) in DELTAS {
            told.extend(changes::figures(case, &goals, delta, length)?);
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use analytics::Policy;
    use std::time::Duration;

    /// Labels of each task in a second.
    fn labels(mut world: world::World) -> Vec<u64> {
        world.run_until(1_000_000_000);
        assert_eq!(world.flows.shed, 0);
        let counters = world.counters().inspect(|it| assert_eq!(it.post_mortem, 0));
        counters.map(|it| it.inferred).collect()
    }

    #[test]
    fn tasks_are_asked_as_the_classes_of_flows_say() {
        for case in graphs::cases().iter().filter(|it| it.cap == 32) {
            let nodes = case.nodes.len();
            let one = labels(world::World::new(case, &vec![Policy::None; nodes], 1).unwrap());
            for (number, labels) in one.into_iter().enumerate() {
                let part = labels as f64 / (case.asked(number) * case.rate);
                assert!((0.97..1.03).contains(&part), "{}: {part}", case.name);
            }
        }
    }

    #[test]
    fn the_bench_and_the_manager_count_the_same_violations() {
        let cases = graphs::cases();
        let case = cases.iter().find(|it| it.name.starts_with("split of 2"));
        // The first goal is shorter than a batch of the other task.
        let goals = [30, 20_000].map(Duration::from_micros);
        let policies = goals.map(|goal| plans::slo(goal, 0.05));
        let mut world = world::World::new(case.unwrap(), &policies, 1).unwrap();
        let mut judge = measure::Judge::new(&goals, world.counters());
        let violated = (1..=20).filter(|period| {
            // A little later, so that the manager has ended the period.
            world.run_until(period * (measure::PERIOD_NS + 100_000));
            judge.is_violated(world.counters())
        });
        let violated = violated.count() as u64;
        let counted: Vec<_> = world.counters().map(|it| it.slo).collect();
        assert!(violated >= 10 && counted[1].violations == 0);
        assert!(counted[0].periods >= 19 && counted[0].violations.abs_diff(violated) <= 1);
    }
}
