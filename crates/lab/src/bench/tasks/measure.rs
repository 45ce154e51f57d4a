//! Measures a policy on a graph, once it has settled.

use std::time::Duration;

use analytics::{Counters, Policy, Trigger};

use super::graphs::Case;
use super::world::World;
use fenxi::exit::Failure;

/// A control period, ns.
pub const PERIOD_NS: u64 = 100_000_000;
/// Minimum labels for a 99th percentile. Fewer are judged together with the next periods' labels,
/// as in the manager.
const LABELS_MIN: u64 = 100;
/// Periods after which fewer labels are judged anyway.
const PERIODS_MAX: u32 = 10;
/// One label in 100 may be late.
const LATE_ONE_IN: u64 = 100;

/// How many control periods are measured, after how many that are not, and with how many seeds.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    pub warm_up: u64,
    pub periods: u64,
    pub seeds: u64,
}

impl Length {
    pub fn at_most(self, other: Length) -> Length {
        Length {
            warm_up: self.warm_up.min(other.warm_up),
            periods: self.periods.min(other.periods),
            seeds: self.seeds.min(other.seeds),
        }
    }
}

/// What a policy came to, with one seed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The part of the time in which devices work.
    pub load: f64,
    /// Labels per second.
    pub labels_per_s: f64,
    /// Series in a batch.
    pub batch: f64,
    /// The largest of all tasks: 99th percentile of the time to label by the goal; 0 without goals.
    pub p99_by_goal: f64,
    /// The part of the control periods in which a task's 99th percentile was above its goal.
    pub violated: f64,
    /// Series that were to have a label and got none.
    pub shed: u64,
    /// Mean time to label of each task.
    pub means: Vec<Duration>,
    /// How many tasks' 99th percentile was above their goal; 0 without goals.
    pub missed: usize,
}

/// Runs a policy for each task on a graph.
///
/// # Errors
/// The manager refuses a policy.
pub fn measured(
    case: &Case,
    policies: &[Policy],
    goals: &[Duration],
    length: Length,
    seed: u64,
) -> Result<Outcome, Failure> {
    let mut world = World::new(case, policies, seed)?;
    world.run_until(length.warm_up * PERIOD_NS);
    let began: Vec<Counters> = world.counters().cloned().collect();
    let (began_ns, began_shed) = (world.now_ns(), world.flows.shed);
    let mut judge = Judge::new(goals, world.counters());
    let mut violated = 0;
    for period in 1..=length.periods {
        world.run_until((length.warm_up + period) * PERIOD_NS);
        violated += u64::from(judge.is_violated(world.counters()));
    }
    let mut outcome = Outcome {
        violated: violated as f64 / length.periods as f64,
        shed: world.flows.shed - began_shed,
        ..Outcome::default()
    };
    let (mut labels, mut batches, mut rows, mut busy_us) = (0, 0, 0, 0.0);
    for (number, (before, now)) in began.iter().zip(world.counters()).enumerate() {
        let mut times = now.time_to_inferred_label_us.clone();
        // Both have the same bounds, and the later one has all that the earlier one has.
        let _ = times.subtract(&before.time_to_inferred_label_us);
        labels += times.len();
        outcome.means.push(Duration::from_secs_f64(times.mean() / 1e6));
        if let Some(goal) = goals.get(number) {
            let by_goal = times.value_at_quantile(0.99) as f64 / (goal.as_secs_f64() * 1e6);
            outcome.p99_by_goal = outcome.p99_by_goal.max(by_goal);
            outcome.missed += usize::from(by_goal > 1.0);
        }
        let [of_batches, of_rows] = fired(now);
        let [batches_before, rows_before] = fired(before);
        let (of_batches, of_rows) = (of_batches - batches_before, of_rows - rows_before);
        let profile = case.nodes[number].profile;
        busy_us += profile.t0_us * of_batches as f64 + profile.t1_us * of_rows as f64;
        batches += of_batches;
        rows += of_rows;
        outcome.shed += unlabelled(now) - unlabelled(before);
    }
    let seconds = (world.now_ns() - began_ns) as f64 / 1e9;
    outcome.load = busy_us / 1e6 / seconds;
    outcome.labels_per_s = labels as f64 / seconds;
    outcome.batch = rows as f64 / batches.max(1) as f64;
    Ok(outcome)
}

/// Batches and their series.
fn fired(counters: &Counters) -> [u64; 2] {
    let of = Trigger::ALL.map(|trigger| counters.batches(trigger));
    of.iter().fold([0; 2], |[batches, series], it| [batches + it.batches, series + it.series])
}

fn unlabelled(counters: &Counters) -> u64 {
    counters.shed() + counters.failed() + counters.post_mortem
}

/// Judges period after period: one is violated if more than 1 % of a task's labels were later than
/// its goal.
///
/// The manager counts the same for policies that have a goal ([`analytics::SloCounters`]); here all
/// policies are judged.
pub struct Judge {
    tasks: Vec<Judged>,
}

#[derive(Clone, Copy)]
struct Judged {
    goal_us: u64,
    /// Labels so far, and how many of them were in time.
    before: [u64; 2],
    periods: u32,
    labels: u64,
    late: u64,
}

impl Judge {
    /// From now on, by these goals.
    pub fn new<'a>(goals: &[Duration], tasks: impl Iterator<Item = &'a Counters>) -> Judge {
        let judged = |(goal, counters): (&Duration, &Counters)| {
            let goal_us = goal.as_micros() as u64;
            Judged { goal_us, before: in_time(counters, goal_us), periods: 0, labels: 0, late: 0 }
        };
        Judge { tasks: goals.iter().zip(tasks).map(judged).collect() }
    }

    /// Ends a period: whether a task that is judged now was late.
    pub fn is_violated<'a>(&mut self, tasks: impl Iterator<Item = &'a Counters>) -> bool {
        let mut is_violated = false;
        for (judged, counters) in self.tasks.iter_mut().zip(tasks) {
            let now = in_time(counters, judged.goal_us);
            let labels = now[0] - judged.before[0];
            judged.periods += 1;
            judged.labels += labels;
            judged.late += labels - (now[1] - judged.before[1]);
            judged.before = now;
            if judged.labels >= LABELS_MIN || judged.periods >= PERIODS_MAX {
                is_violated |= judged.late * LATE_ONE_IN > judged.labels;
                (judged.periods, judged.labels, judged.late) = (0, 0, 0);
            }
        }
        is_violated
    }
}

/// Labels, and how many of them met the goal.
fn in_time(counters: &Counters, goal_us: u64) -> [u64; 2] {
    let times = &counters.time_to_inferred_label_us;
    [times.len(), times.count_between(0, goal_us)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_labels_are_judged_together_and_one_in_a_hundred_may_be_late() {
        let mut counters = Counters::none();
        let mut judge = Judge::new(&[Duration::from_millis(2)], [&counters].into_iter());
        let mut period = |counters: &mut Counters, in_time: u64, late: u64| {
            let times = &mut counters.time_to_inferred_label_us;
            times.record_n(1000, in_time).unwrap();
            times.record_n(2100, late).unwrap();
            judge.is_violated([&*counters].into_iter())
        };
        assert!(!period(&mut counters, 99, 1));
        assert!(period(&mut counters, 98, 2));
        assert!(!period(&mut counters, 40, 2));
        assert!(period(&mut counters, 60, 0), "2 of 102");
    }
}
