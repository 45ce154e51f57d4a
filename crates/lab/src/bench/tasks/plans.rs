//! The goals of a graph, and the ways to plan batches that are compared.

use std::time::Duration;

use analytics::Policy;

use super::graphs::Case;
use super::measure::{Length, Outcome, measured};
use fenxi::exit::Failure;

/// A goal is this part of the mean time to label with the policy `max` (Batchy §5).
const OF_MAX: f64 = 0.8;
/// Goals of a turnaround and less cannot be promised (§4), so the shortest goal is longer by the
/// least that is counted.
const LONGER: Duration = Duration::from_micros(1);

/// δ as in the paper, aggressive and cautious, with the part of the control periods that may be
/// violated.
pub const DELTAS: [(f64, f64); 2] = [(0.05, 0.09), (0.2, 0.0)];

/// A way to plan batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    None,
    Max,
    OnOff,
    /// With this δ, and the part of the control periods that may be violated.
    Slo(f64, f64),
}

/// Without batches first, then full batches, so that all others can be compared with these.
const PLANS: [Plan; 5] = [
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
}

pub fn slo(latency_goal: Duration, delta: f64) -> Policy {
    Policy::Slo { latency_goal, delta }
}

/// The shortest goal that can be promised.
pub fn least_goal(case: &Case) -> Duration {
    case.turnaround() + LONGER
}

/// The goal of each task, by one run of `max`; they are the same for all seeds.
///
/// # Errors
/// The manager refuses a policy.
pub fn goals(case: &Case, length: Length) -> Result<Vec<Duration>, Failure> {
    let max = measured(case, &vec![Policy::Max; case.nodes.len()], &[], length, 1)?;
    let least = least_goal(case);
    Ok(max.means.iter().map(|mean| mean.mul_f64(OF_MAX).max(least)).collect())
}

/// The outcomes of each plan, with each seed.
///
/// # Errors
/// The manager refuses a policy.
pub fn outcomes(
    case: &Case,
    goals: &[Duration],
    length: Length,
) -> Result<Vec<(Plan, Vec<Outcome>)>, Failure> {
    let of_plan = |plan: Plan| {
        let policies: Vec<Policy> = goals.iter().map(|goal| plan.policy(*goal)).collect();
        let run = |seed| measured(case, &policies, goals, length, seed);
        Ok((plan, (1..=length.seeds).map(run).collect::<Result<_, Failure>>()?))
    };
    PLANS.into_iter().map(of_plan).collect()
}
