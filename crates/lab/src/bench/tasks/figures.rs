//! The figures of a graph, and the bars.

use super::goals::Goal;
use super::graphs::Case;
use super::measure::{Outcome, largest, median};
use super::plans::Plan;
use crate::bench::report::Figure;

/// How many times less the device has to do than without batches, at least.
const GAIN: f64 = 1.5;
/// The least part of the labels that the policy `max` gives.
const THROUGHPUT: f64 = 0.95;

/// The goal of each task, and what set it.
pub fn of_goals(case: &Case, goals: &[Goal]) -> Vec<Figure> {
    let goals = goals.iter().enumerate();
    let figure = |(task, goal): (usize, &Goal)| {
        let line = format!("{}: goal of task {}, by {}", case.name, task + 1, goal.rule.name());
        Figure::one(line, "ms", goal.latency.as_secs_f64() * 1e3)
    };
    goals.map(figure).collect()
}

/// All plans, beside no batches and full ones, which come first.
pub fn of_plans(case: &Case, outcomes: &[(Plan, Vec<Outcome>)]) -> Vec<Figure> {
    let [(_, null), (_, max), ..] = outcomes else {
        return Vec::new();
    };
    let told = outcomes.iter().map(|(plan, outcomes)| {
        let mut told = of_plan(case, *plan, outcomes, null);
        told.push(throughput(case, *plan, outcomes, max));
        told
    });
    told.flatten().collect()
}

/// The same where flows are too many. There no load can be saved and no goal kept, so that only
/// the throughput has a bar.
pub fn of_saturation(case: &Case, outcomes: &[(Plan, Vec<Outcome>)]) -> Vec<Figure> {
    let Some((_, max)) = outcomes.iter().find(|(plan, _)| *plan == Plan::Max) else {
        return Vec::new();
    };
    let told = outcomes.iter().map(|(plan, outcomes)| {
        let batch = figure(case, *plan, "series in a batch", "series");
        [
            figure(case, *plan, "load", "busy").of(outcomes, |it| it.load),
            batch.of(outcomes, |it| it.batch),
            throughput(case, *plan, outcomes, max),
        ]
    });
    told.flatten().collect()
}

/// What a plan came to. Of loads the median of all seeds is told, of violations the worst.
fn of_plan(case: &Case, plan: Plan, outcomes: &[Outcome], null: &[Outcome]) -> Vec<Figure> {
    let load = Figure {
        line: match case.x {
            Some(_) => format!("{}: load of splits", plan.name()),
            None => format!("{}, {}: load", case.name, plan.name()),
        },
        ..figure(case, plan, "", "busy").of(outcomes, |it| it.load)
    };
    let mut gain = figure(case, plan, "load of none by this", "ratio");
    let [_, median, largest] = ratios(null, outcomes, |it| it.load);
    (gain.median, gain.best) = (median, largest);
    let violated = figure(case, plan, "control periods in violation, worst seed", "share");
    let mut violated = violated.worst(outcomes, |it| it.violated);
    if let Plan::Slo(_, most) = plan {
        gain = gain.at_least(GAIN);
        violated = violated.at_most(most);
    }
    let p99 = figure(case, plan, "p99 by goal, worst task and seed", "ratio");
    let missed = figure(case, plan, "tasks that miss their goal, worst seed", "tasks");
    let shed = figure(case, plan, "series without a label, worst seed", "series");
    vec![
        load,
        gain,
        figure(case, plan, "series in a batch", "series").of(outcomes, |it| it.batch),
        p99.worst(outcomes, |it| it.p99_by_goal),
        missed.worst(outcomes, |it| it.missed as f64),
        violated,
        shed.worst(outcomes, |it| it.shed as f64),
    ]
}

/// Labels relative to full batches, with the seed that gives the fewest.
fn throughput(case: &Case, plan: Plan, outcomes: &[Outcome], max: &[Outcome]) -> Figure {
    let mut figure = figure(case, plan, "throughput relative to max, worst seed", "ratio");
    let [least, _, largest] = ratios(outcomes, max, |it| it.labels_per_s);
    (figure.median, figure.best) = (least, largest);
    match plan {
        Plan::Slo(..) => figure.at_least(THROUGHPUT),
        _ => figure,
    }
}

fn figure(case: &Case, plan: Plan, what: &str, unit: &'static str) -> Figure {
    let plan = plan.name();
    let line = match case.x {
        Some(_) => format!("split, batches to {}, {plan}: {what}", case.cap),
        None => format!("{}, {plan}: {what}", case.name),
    };
    Figure { x: case.x, ..Figure::one(line, unit, 0.0) }
}

impl Figure {
    /// The median of all seeds, and the least.
    fn of(self, outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Figure {
        Figure {
            median: median(outcomes, &of),
            best: outcomes.iter().map(of).fold(f64::INFINITY, f64::min),
            ..self
        }
    }

    /// The largest of all seeds in place of the median.
    fn worst(self, outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Figure {
        Figure { median: largest(outcomes, &of), ..self.of(outcomes, of) }
    }
}

/// The least, the median and the largest of the ratios with each seed.
fn ratios(these: &[Outcome], those: &[Outcome], of: impl Fn(&Outcome) -> f64) -> [f64; 3] {
    let pairs = these.iter().zip(those);
    let mut ratios: Vec<f64> = pairs.map(|(this, that)| of(this) / of(that)).collect();
    ratios.sort_by(f64::total_cmp);
    let places = [0, ratios.len() / 2, ratios.len().saturating_sub(1)];
    places.map(|place| ratios.get(place).copied().unwrap_or_default())
}
