//! Batchy Table 1: how long the controller takes in a control period, by the number of tasks.
//!
//! Rates and delays change from period to period, so that paths are tight and loose and plans
//! move. Only [`Controller::step`] is timed: measuring is part of the rounds, and plans are copied
//! to the tasks of the same thread. Times are CPU times, because on a machine that others share
//! one step in a hundred is interrupted for milliseconds.

use analytics::controller::{Controller, Graph, Kind, PathMeasure, TaskMeasure};
use flowmgr::Pages;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::report::{Bar, Figure, Report};
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Numbers of tasks, and the response times of Batchy's controller with as many branches, ms.
const TASKS: [(usize, f64); 7] =
    [(1, 2.4), (2, 3.5), (4, 6.9), (8, 11.6), (16, 21.9), (32, 34.8), (64, 89.1)];
/// Control periods that are timed, after some that are not.
const STEPS: usize = 1000;
const WARM_UP: usize = 20;
/// Series a second of all tasks together.
const RATE: f64 = 60_000.0;
/// Interleaved runs; for each quantile the median over the runs is shown.
const RUNS: usize = 5;
/// The longest that a step of the most tasks may take in the median, µs.
const MOST_US: f64 = 1000.0;

pub fn run(_: &BenchArgs) -> Result<Report, Failure> {
    let mut runs = vec![Vec::new(); TASKS.len()];
    for _ in 0..RUNS {
        for (runs, (tasks, _)) in runs.iter_mut().zip(TASKS) {
            runs.push(steps(tasks)?);
        }
    }
    let mut figures = Vec::new();
    for (runs, (tasks, batchy_ms)) in runs.iter().zip(TASKS) {
        let step =
            |line, quantile| Figure::quantile(line, "µs", 1e3, runs, quantile).at(tasks as f64);
        figures.extend([
            step("step, median", 0.5),
            step("step, p99", 0.99),
            Figure::one("Batchy's, with transport", "µs", 1e3 * batchy_ms).at(tasks as f64),
        ]);
    }
    let most = figures.len() - 3;
    figures[most].bar = Some(Bar::AtMost(MOST_US));
    Ok(Report {
        bench: "controller",
        title: "Controller of several tasks: time of a step, 10 a second",
        x: "tasks",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

/// Times of steps, ns.
fn steps(tasks: usize) -> Result<Histogram<u64>, Failure> {
    let graph = Graph::of_cascades(tasks).map_err(|error| Failure::software(error.to_string()))?;
    let mut controller = Controller::new(graph, Kind::Slo);
    let mut rng = Rng::new(1);
    // An hour at most, exact to 0.1 %.
    let times_ns = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
    let mut times_ns = times_ns.map_err(|error| Failure::software(error.to_string()))?;
    for step in 0..WARM_UP + STEPS {
        let (measures, paths) = measured(&controller, &mut rng);
        let began_ns = cpu_time_ns();
        controller.step(&measures, &paths);
        let took_ns = cpu_time_ns() - began_ns;
        if step >= WARM_UP {
            times_ns.saturating_record(took_ns);
        }
    }
    Ok(times_ns)
}

/// CPU time of this thread so far.
fn cpu_time_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What tasks and paths may have measured that follow the controller's plan.
fn measured(controller: &Controller, rng: &mut Rng) -> (Vec<TaskMeasure>, Vec<PathMeasure>) {
    let graph = controller.graph();
    let tasks = graph.tasks().len();
    let measures = graph.tasks().iter().enumerate().map(|(number, task)| {
        let rate_per_s = RATE / tasks as f64 * (0.8 + 0.4 * rng.share());
        let batch = controller.trigger(number).max(1) as f64;
        TaskMeasure {
            rate_per_s,
            batches_per_s: rate_per_s / batch,
            batch,
            batch_in: 1.0 + 0.2 * rng.share(),
            profile: task.profile,
            waited: if task.follows.is_empty() { 0.0 } else { 0.5 },
        }
    });
    let measures = measures.collect();
    let paths = graph.paths().iter().map(|path| {
        let part = 0.8 + 0.22 * rng.share();
        let goal_us = path.goal.latency.as_secs_f64() * 1e6;
        PathMeasure {
            p95_us: part * goal_us,
            p99_us: part * goal_us,
            labels: 1000,
            late: if part > 1.0 { 11 } else { 0 },
            near: if part > 1.0 - path.goal.delta { 11 } else { 0 },
        }
    });
    (measures, paths.collect())
}
