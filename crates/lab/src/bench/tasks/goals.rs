//! The goals of a graph, by Batchy's rule (§5): so much of the mean time to label with the policy
//! `max`. Where that is shorter than a turnaround, nobody can promise it (§4), and the shortest
//! goal that can be promised takes its place.

use std::time::Duration;

use super::graphs::Case;
use super::measure::Outcome;
use fenxi::exit::Failure;

/// So much of the mean time to label with `max`.
const OF_MAX: f64 = 0.8;
/// Goals of a turnaround and less are inherently violated, so it is longer by the least that is
/// counted.
const LONGER: Duration = Duration::from_micros(1);

/// What set a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Max,
    Turnaround,
}

impl Rule {
    pub fn name(self) -> &'static str {
        match self {
            Rule::Max => "0.8 of the mean of max",
            Rule::Turnaround => "one turnaround",
        }
    }
}

/// The goal of a task.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    pub latency: Duration,
    pub rule: Rule,
}

/// A goal for each task, by what `max` came to.
///
/// # Errors
/// When the graph is impossible.
pub fn of(case: &Case, max: &Outcome) -> Result<Vec<Goal>, Failure> {
    let least = case.turnaround()? + LONGER;
    let means = max.means.iter();
    Ok(means.map(|mean| goal(*mean, least)).collect())
}

fn goal(mean: Duration, least: Duration) -> Goal {
    let latency = mean.mul_f64(OF_MAX);
    match latency > least {
        true => Goal { latency, rule: Rule::Max },
        false => Goal { latency: least, rule: Rule::Turnaround },
    }
}

pub fn latencies(goals: &[Goal]) -> Vec<Duration> {
    goals.iter().map(|goal| goal.latency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_of_max_unless_that_is_shorter_than_a_turnaround() {
        let [short, long] = [1000, 5000].map(Duration::from_micros);
        assert_eq!(goal(long, short).latency, Duration::from_micros(4000));
        assert_eq!(goal(long, short).rule, Rule::Max);
        assert_eq!(goal(short, long).latency, long);
        assert_eq!(goal(short, long).rule, Rule::Turnaround);
    }
}
