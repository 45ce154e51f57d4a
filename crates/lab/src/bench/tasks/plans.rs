//! The ways to plan batches that are compared.

use std::time::Duration;

use analytics::Policy;

use super::changes::slo;
use super::goals::{self, Goal};
use super::graphs::Case;
use super::measure::{self, Length, Outcome, with_seeds};
use super::world::with_goals;
use fenxi::exit::Failure;

/// δ as in the paper, aggressive and cautious, with the part of the control periods that may be
/// violated.
pub const DELTAS: [(f64, f64); 2] = [(0.05, 0.09), (0.2, 0.0)];

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    None,
    Max,
    OnOff,
    /// With this δ, and the part of the control periods that may be violated.
    Slo(f64, f64),
}

/// Without batches first, then full batches, so that all others can be compared with these.
pub const PLANS: [Plan; 5] = [
    Plan::None,
    Plan::Max,
    Plan::OnOff,
    Plan::Slo(DELTAS[0].0, DELTAS[0].1),
    Plan::Slo(DELTAS[1].0, DELTAS[1].1),
];

impl Plan {
    pub fn name(self) -> String {
        match self {
            Plan::None => "none".to_owned(),
            Plan::Max => "max".to_owned(),
            Plan::OnOff => "on-off".to_owned(),
            Plan::Slo(delta, _) => format!("slo {delta}"),
        }
    }

    fn policy(self, latency_goal: Duration) -> Policy {
        match self {
            Plan::None => Policy::None,
            Plan::Max => Policy::Max,
            Plan::OnOff => Policy::OnOff { latency_goal, delta: DELTAS[0].0 },
            Plan::Slo(delta, _) => slo(latency_goal, delta),
        }
    }

    fn outcome(self, case: &Case, goals: &[Duration], length: Length) -> Result<Outcome, Failure> {
        let policies = with_goals(goals, |goal| self.policy(goal));
        measure::manager(case, &policies, goals, length)
    }
}

/// The goals of a graph, by one run of `max`; they are the same for all seeds.
///
/// # Errors
/// When the manager refuses a policy.
pub fn goals(case: &Case, length: Length) -> Result<Vec<Goal>, Failure> {
    let policies = vec![Policy::Max; case.nodes.len()];
    goals::of(case, &measure::manager(case, &policies, &[], length)?)
}

/// The outcomes of each plan, with each seed.
///
/// # Errors
/// When the manager refuses a policy.
pub fn outcomes(
    case: &Case,
    goals: &[Duration],
    length: Length,
) -> Result<Vec<(Plan, Vec<Outcome>)>, Failure> {
    let of = |plan: Plan| {
        let run = |case: &Case| plan.outcome(case, goals, length);
        Ok((plan, with_seeds(case, length.seeds, run)?))
    };
    PLANS.into_iter().map(of).collect()
}
