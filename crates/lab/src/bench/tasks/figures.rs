//! The figures of a graph, and the bars.

use std::time::Duration;

use super::graphs::Case;
use super::measure::Outcome;
use super::plans::{Plan, least_goal};
use crate::bench::report::Figure;

/// How many times less devices work than without batches, at least.
const GAIN: f64 = 1.5;
/// The least part of the labels that the policy `max` gives.
const THROUGHPUT: f64 = 0.95;

/// The goal of each task, and what set it.
pub fn of_goals(case: &Case, goals: &[Duration]) -> Vec<Figure> {
    let least = least_goal(case);
    let figure = |(task, goal): (usize, &Duration)| {
        let rule = if *goal == least { "one turnaround" } else { "0.8 of the mean of max" };
        let line = format!("{}: goal of task {}, by {rule}", case.name, task + 1);
        Figure::one(line, "ms", goal.as_secs_f64() * 1e3)
    };
    goals.iter().enumerate().map(figure).collect()
}

/// All plans, beside no batches and full ones, which come first. Loads are medians over seeds;
/// for violations the worst seed counts.
pub fn of_plans(case: &Case, outcomes: &[(Plan, Vec<Outcome>)]) -> Vec<Figure> {
    let [(_, null), (_, max), ..] = outcomes else {
        return Vec::new();
    };
    let told = outcomes.iter().flat_map(|(plan, outcomes)| {
        let figure = |what, unit| figure(case, *plan, what, unit);
        let load = Figure {
            line: match case.x {
                Some(_) => format!("{}: load of splits", plan.name()),
                None => format!("{}, {}: load", case.name, plan.name()),
            },
            ..figure("", "busy").over(outcomes, |it| it.load)
        };
        let [_, median, best] = ratios(null, outcomes, |it| it.load);
        let mut gain = Figure { median, best, ..figure("load of none by this", "ratio") };
        let violated = figure("control periods in violation, worst seed", "share");
        let mut violated = violated.worst(outcomes, |it| it.violated);
        if let Plan::Slo(_, most) = *plan {
            gain = gain.at_least(GAIN);
            violated = violated.at_most(most);
        }
        [
            load,
            gain,
            figure("series in a batch", "series").over(outcomes, |it| it.batch),
            figure("p99 by goal, worst task and seed", "ratio")
                .worst(outcomes, |it| it.p99_by_goal),
            figure("tasks that miss their goal, worst seed", "tasks")
                .worst(outcomes, |it| it.missed as f64),
            violated,
            figure("series without a label, worst seed", "series")
                .worst(outcomes, |it| it.shed as f64),
            throughput(case, *plan, outcomes, max),
        ]
    });
    told.collect()
}

/// The same where flows are too many. There no load can be saved and no goal kept, so that only
/// the throughput has a bar.
pub fn of_saturation(case: &Case, outcomes: &[(Plan, Vec<Outcome>)]) -> Vec<Figure> {
    let [_, (_, max), ..] = outcomes else {
        return Vec::new();
    };
    let told = outcomes.iter().flat_map(|(plan, outcomes)| {
        [
            figure(case, *plan, "load", "busy").over(outcomes, |it| it.load),
            figure(case, *plan, "series in a batch", "series").over(outcomes, |it| it.batch),
            throughput(case, *plan, outcomes, max),
        ]
    });
    told.collect()
}

/// Labels relative to full batches, with the seed that gives the fewest.
fn throughput(case: &Case, plan: Plan, outcomes: &[Outcome], max: &[Outcome]) -> Figure {
    let [median, _, best] = ratios(outcomes, max, |it| it.labels_per_s);
    let figure = figure(case, plan, "throughput relative to max, worst seed", "ratio");
    let figure = Figure { median, best, ..figure };
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
    fn over(self, outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Figure {
        let [best, median, _] = spread(outcomes.iter().map(of).collect());
        Figure { median, best, ..self }
    }

    /// The largest of all seeds in place of the median.
    fn worst(self, outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Figure {
        let [best, _, median] = spread(outcomes.iter().map(of).collect());
        Figure { median, best, ..self }
    }
}

/// The least, the median and the largest of the ratios with each seed.
fn ratios(these: &[Outcome], those: &[Outcome], of: impl Fn(&Outcome) -> f64) -> [f64; 3] {
    spread(these.iter().zip(those).map(|(this, that)| of(this) / of(that)).collect())
}

fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let places = [0, values.len() / 2, values.len().saturating_sub(1)];
    places.map(|place| values.get(place).copied().unwrap_or_default())
}
