//! Measures a policy on a graph, once it has settled.

use std::time::Duration;

use analytics::{Counters, Policy, Trigger};
use hdrhistogram::Histogram;

use super::graphs::Case;
use super::judge::Judge;
use super::world::World;
use fenxi::exit::Failure;

/// A control period, ns.
pub const PERIOD_NS: u64 = 100_000_000;

/// How many control periods are looked at, after how many that are not, and with how many seeds.
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

impl World {
    /// What each task has counted.
    pub fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.manager.tasks().iter().map(|task| task.counters())
    }

    /// How long devices have worked.
    fn busy_ns(&self) -> u64 {
        self.clock.busy_ns()
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Series that found their ring full.
    pub fn shed_at_rings(&self) -> u64 {
        self.flows.shed
    }
}

/// What a policy came to, with one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The part of the time in which the device works.
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

/// The median over all seeds.
pub fn median(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    let mut values: Vec<f64> = outcomes.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The largest value of all seeds.
pub fn largest(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).fold(0.0, f64::max)
}

/// Runs `run` with each seed; the results.
///
/// # Errors
/// `run` fails.
pub fn with_seeds<T>(
    case: &Case,
    seeds: u64,
    run: impl Fn(&Case) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    (1..=seeds).map(|seed| run(&case.with_seed(seed))).collect()
}

/// Runs a policy on a graph.
///
/// # Errors
/// When the manager refuses it.
pub fn manager(
    case: &Case,
    policies: &[Policy],
    goals: &[Duration],
    length: Length,
) -> Result<Outcome, Failure> {
    Ok(measure(World::new(case, policies)?, goals, length))
}

fn measure(mut world: World, goals: &[Duration], length: Length) -> Outcome {
    world.run_until(length.warm_up * PERIOD_NS);
    let began: Vec<Counters> = world.counters().cloned().collect();
    let (began_ns, began_busy_ns, began_shed) =
        (world.now_ns(), world.busy_ns(), world.shed_at_rings());
    let mut judge = Judge::new(goals, world.counters());
    let mut violated = 0;
    for period in 1..=length.periods {
        world.run_until((length.warm_up + period) * PERIOD_NS);
        violated += u64::from(judge.is_violated(world.counters()));
    }
    let ns = (world.now_ns() - began_ns) as f64;
    let mut outcome = Outcome {
        load: (world.busy_ns() - began_busy_ns) as f64 / ns,
        labels_per_s: 0.0,
        batch: 0.0,
        p99_by_goal: 0.0,
        violated: violated as f64 / length.periods as f64,
        shed: world.shed_at_rings() - began_shed,
        means: Vec::new(),
        missed: 0,
    };
    let (mut labels, mut batches, mut rows) = (0, 0, 0);
    for (number, (before, now)) in began.iter().zip(world.counters()).enumerate() {
        let times = between(before, now);
        labels += times.len();
        outcome.means.push(Duration::from_secs_f64(times.mean() / 1e6));
        if let Some(goal) = goals.get(number) {
            let p99_us = times.value_at_quantile(0.99) as f64;
            let by_goal = p99_us / (goal.as_secs_f64() * 1e6);
            outcome.p99_by_goal = outcome.p99_by_goal.max(by_goal);
            outcome.missed += usize::from(by_goal > 1.0);
        }
        let (batches_before, rows_before) = fired(before);
        let (batches_now, rows_now) = fired(now);
        batches += batches_now - batches_before;
        rows += rows_now - rows_before;
        outcome.shed += unlabelled(now) - unlabelled(before);
    }
    outcome.labels_per_s = labels as f64 / ns * 1e9;
    outcome.batch = rows as f64 / (batches.max(1)) as f64;
    outcome
}

/// Times to label of those that came in between.
fn between(before: &Counters, now: &Counters) -> Histogram<u64> {
    let mut times = now.time_to_inferred_label_us.clone();
    // Both have the same bounds, and the later one has all that the earlier one has.
    let _ = times.subtract(&before.time_to_inferred_label_us);
    times
}

/// Batches and their series.
fn fired(counters: &Counters) -> (u64, u64) {
    let of = Trigger::ALL.map(|trigger| counters.batches(trigger));
    of.iter().fold((0, 0), |(batches, series), it| (batches + it.batches, series + it.series))
}

fn unlabelled(counters: &Counters) -> u64 {
    counters.shed() + counters.failed() + counters.post_mortem
}
