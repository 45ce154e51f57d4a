//! The controller of several tasks allocates when it is made, and never again: a step and a cut run
//! on the thread that labels series.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

use allocation_counter::measure;
use analytics::controller::{Controller, Graph, Kind, PathMeasure, TaskMeasure};

/// What was measured of each task, at `rate_per_s` series a second.
fn tasks(graph: &Graph, rate_per_s: f64) -> Vec<TaskMeasure> {
    let of = |task: &analytics::controller::Task| TaskMeasure {
        rate_per_s,
        batches_per_s: rate_per_s / 2.0,
        batch: 2.0,
        batch_in: 1.2,
        profile: task.profile,
        waited: if task.follows.is_empty() { 0.0 } else { 0.5 },
    };
    graph.tasks().iter().map(of).collect()
}

#[test]
fn a_step_allocates_nothing() {
    for kind in [Kind::Slo, Kind::Null, Kind::Max, Kind::OnOff] {
        let graph = Graph::of_cascades(16).unwrap();
        let mut controller = Controller::new(graph.clone(), kind);
        for (period, rate_per_s) in [2000.0, 2000.0, 200.0, 9000.0, 9000.0].into_iter().enumerate()
        {
            let tasks = tasks(&graph, rate_per_s);
            let path = PathMeasure {
                p95_us: 3000.0,
                p99_us: 4000.0,
                labels: 1000,
                late: if period == 2 { 20 } else { 0 },
                near: 15,
            };
            let paths = vec![path; graph.paths().len()];
            let counted = measure(|| {
                controller.step(&tasks, &paths);
                controller.cut(period, 900, 1000);
            });
            assert_eq!(counted.count_total, 0, "{kind:?}, period {period}");
        }
    }
}
