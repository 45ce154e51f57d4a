//! Batchy Fig. 9: how soon goals are kept again when they are halved, and when ten times as many flows come, or a tenth.

use std::time::Duration;

use analytics::Policy;

use super::graphs::Case;
use super::judge::Judge;
use super::measure::{Length, PERIOD_NS, Runs};
use super::world::{World, with_goals};
use crate::bench::report::Figure;
use fenxi::exit::Failure;

/// So many periods are looked at after a change, at most.
const AFTER: u64 = 20;
/// How much the rate changes.
const LEAP: f64 = 10.0;

/// A world that is changed again and again.
struct Changing {
    world: World,
    goals: Vec<Duration>,
    delta: f64,
    ended: u64,
    length: Length,
}

/// The changes of one graph, one after the other.
///
/// # Errors
/// When the manager refuses a goal.
pub fn figures(
    case: &Case,
    goals: &[Duration],
    delta: f64,
    length: Length,
) -> Result<Vec<Figure>, Failure> {
    let mut changing = Changing {
        world: World::new(case, &with_goals(goals, |goal| slo(goal, delta)))?,
        goals: goals.to_vec(),
        delta,
        ended: 0,
        length,
    };
    let line = |what: &str| format!("{}, slo {delta}, {what}: periods until kept", case.name);
    let figure =
        |what, periods: u64| Figure::one(line(what), "periods", periods as f64).at_most(1.0);
    Ok(vec![
        figure("goals halved", changing.after(Changing::halve_goals)?),
        figure("a tenth of the flows", changing.after(Changing::fewer)?),
        figure("ten times the flows", changing.after(Changing::more)?),
    ])
}

impl Changing {
    /// How many periods it takes until all goals are kept for good.
    fn after(
        &mut self,
        change: impl Fn(&mut Changing) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        self.run(self.length.warm_up);
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
        self.ended += periods;
        self.world.run_until(self.ended * PERIOD_NS);
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
    Policy::Slo {
        latency_goal,
        delta,
    }
}
