//! Batchy Fig. 9: how soon goals are kept again when they are halved, and when ten times as many
//! flows come, or a tenth.

use std::time::Duration;

use analytics::Policy;

use super::graphs::Case;
use super::judge::Judge;
use super::measure::{self, Length, PERIOD_NS};
use super::world::{World, with_goals};
use crate::bench::report::Figure;
use fenxi::exit::Failure;

/// Periods measured after a change, at most, and periods to settle before it.
const AFTER: u64 = 20;
const BEFORE: u64 = 10;
/// How much the rate changes.
const LEAP: f64 = 10.0;

/// What changes in turn: its name, and how the world becomes so.
type Change = (&'static str, fn(&mut Changing) -> Result<(), Failure>);

const CHANGES: [Change; 3] = [
    ("goals halved", Changing::halve_goals),
    ("a tenth of the flows", Changing::fewer),
    ("ten times the flows", Changing::more),
];

/// When changes come: at the end of a control period, and in the middle of one.
const MOMENTS: [(&str, u64); 2] = [("", 0), (" in the middle of a period", PERIOD_NS / 2)];

/// A world that is changed again and again.
struct Changing {
    world: World,
    goals: Vec<Duration>,
    delta: f64,
    now_ns: u64,
    length: Length,
}

/// The changes of one graph, one after the other: first to these goals from twice as long ones. Of
/// all seeds the worst counts.
///
/// # Errors
/// When the manager refuses a goal.
pub fn figures(
    case: &Case,
    goals: &[Duration],
    delta: f64,
    length: Length,
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for (when, offset_ns) in MOMENTS {
        let run = |case: &Case| periods(case, goals, delta, (length, offset_ns));
        let of_seeds = measure::with_seeds(case, length.seeds, run)?;
        for (number, (what, _)) in CHANGES.iter().enumerate() {
            let line = format!("{}, slo {delta}, {what}{when}", case.name);
            let periods = of_seeds.iter().map(|of_changes| of_changes[number]);
            figures.push(figure(&line, periods));
        }
    }
    Ok(figures)
}

fn figure(line: &str, periods: impl Iterator<Item = u64> + Clone) -> Figure {
    let worst = periods.clone().max().unwrap_or_default();
    let best = periods.min().unwrap_or_default();
    let line = format!("{line}: periods until kept");
    Figure { best: best as f64, ..Figure::one(line, "periods", worst as f64).at_most(1.0) }
}

/// How many periods it takes after each change, with one seed.
fn periods(
    case: &Case,
    goals: &[Duration],
    delta: f64,
    (length, offset_ns): (Length, u64),
) -> Result<Vec<u64>, Failure> {
    let goals: Vec<Duration> = goals.iter().map(|goal| *goal * 2).collect();
    let mut changing = Changing {
        world: World::new(case, &with_goals(&goals, |goal| slo(goal, delta)))?,
        goals,
        delta,
        now_ns: offset_ns,
        length,
    };
    let changes = CHANGES.iter();
    changes.map(|(_, change)| changing.after(*change)).collect()
}

impl Changing {
    /// How many periods it takes until all goals are kept for good. They are counted from the
    /// change on.
    fn after(
        &mut self,
        change: impl Fn(&mut Changing) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        self.run(BEFORE.min(self.length.warm_up));
        change(self)?;
        let mut judge = Judge::new(&self.goals, self.world.counters());
        let mut last = 0;
        for period in 1..=AFTER.min(self.length.periods) {
            self.run(1);
            if judge.is_violated(self.world.counters()) {
                last = period;
            }
        }
        Ok(last)
    }

    fn run(&mut self, periods: u64) {
        self.now_ns += periods * PERIOD_NS;
        self.world.run_until(self.now_ns);
    }

    fn halve_goals(&mut self) -> Result<(), Failure> {
        self.goals.iter_mut().for_each(|goal| *goal /= 2);
        let delta = self.delta;
        let policies = with_goals(&self.goals, |goal| slo(goal, delta));
        self.world.reload(&policies)
    }

    fn fewer(&mut self) -> Result<(), Failure> {
        self.world.flows.rate /= LEAP;
        Ok(())
    }

    fn more(&mut self) -> Result<(), Failure> {
        self.world.flows.rate *= LEAP;
        Ok(())
    }
}

pub fn slo(latency_goal: Duration, delta: f64) -> Policy {
    Policy::Slo { latency_goal, delta }
}
