//! Batchy Fig. 9: how soon goals are kept again when they are halved, and when ten times as many
//! flows come, or a tenth.

use std::time::Duration;

use analytics::Policy;

use super::graphs::Case;
use super::measure::{Judge, Length, PERIOD_NS};
use super::plans::slo;
use super::world::World;
use crate::bench::report::Figure;
use fenxi::exit::Failure;

/// Periods measured after a change, at most, and periods to settle before it.
const AFTER: u64 = 20;
const BEFORE: u64 = 10;
/// How much the rate changes.
const LEAP: f64 = 10.0;

/// What changes in turn.
const CHANGES: [&str; 3] = ["goals halved", "a tenth of the flows", "ten times the flows"];

/// When changes come: at the end of a control period, and in the middle of one.
const MOMENTS: [(&str, u64); 2] = [("", 0), (" in the middle of a period", PERIOD_NS / 2)];

/// The changes of one graph, one after the other: first to these goals from twice as long ones.
/// The worst seed counts.
///
/// # Errors
/// The manager refuses a goal.
pub fn figures(
    case: &Case,
    goals: &[Duration],
    delta: f64,
    length: Length,
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for (when, offset_ns) in MOMENTS {
        let run = |seed| periods(case, goals, delta, length, (offset_ns, seed));
        let of_seeds = (1..=length.seeds).map(run).collect::<Result<Vec<_>, Failure>>()?;
        for (number, what) in CHANGES.iter().enumerate() {
            let line = format!("{}, slo {delta}, {what}{when}: periods until kept", case.name);
            let periods = of_seeds.iter().map(|of_changes| of_changes[number] as f64);
            let worst = periods.clone().fold(0.0, f64::max);
            let best = periods.fold(f64::INFINITY, f64::min);
            figures.push(Figure { best, ..Figure::one(line, "periods", worst).at_most(1.0) });
        }
    }
    Ok(figures)
}

/// How many periods it takes after each change until all goals are kept for good, with one seed.
/// They are counted from the change on.
fn periods(
    case: &Case,
    goals: &[Duration],
    delta: f64,
    length: Length,
    (offset_ns, seed): (u64, u64),
) -> Result<Vec<u64>, Failure> {
    let policies = |factor: u32| -> Vec<Policy> {
        goals.iter().map(|goal| slo(*goal * factor, delta)).collect()
    };
    let mut world = World::new(case, &policies(2), seed)?;
    let mut now_ns = offset_ns;
    let mut after = Vec::new();
    for change in 0..CHANGES.len() {
        now_ns += BEFORE.min(length.warm_up) * PERIOD_NS;
        world.run_until(now_ns);
        match change {
            0 => world.reload(&policies(1))?,
            1 => world.flows.rate /= LEAP,
            _ => world.flows.rate *= LEAP,
        }
        let mut judge = Judge::new(goals, world.counters());
        let mut last = 0;
        for period in 1..=AFTER.min(length.periods) {
            now_ns += PERIOD_NS;
            world.run_until(now_ns);
            if judge.is_violated(world.counters()) {
                last = period;
            }
        }
        after.push(last);
    }
    Ok(after)
}
