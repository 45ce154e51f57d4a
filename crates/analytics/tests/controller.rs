//! The controller of several tasks allocates when it is made, and never again: a step and a cut run
//! on the thread that labels series.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

use std::time::Duration;

use accel::{Profile, Sizes};
use allocation_counter::measure;
use analytics::controller::{Controller, Goal, Graph, Kind, PathMeasure, Task, TaskMeasure};

/// Tasks on one device: cascades of four, each task with its own goal.
fn cascades(tasks: usize) -> Graph {
    let tasks = (0..tasks).map(|i| Task {
        profile: Profile { t0_us: 5.0 + (i % 4) as f64 * 5.0, t1_us: 1.7 + (i % 3) as f64 },
        sizes: Sizes::Any { cap: 256 },
        device_set: 0,
        follows: if i % 4 == 0 { vec![] } else { vec![i - 1] },
        goal: Some(Goal { latency: Duration::from_millis(10 + 5 * (i as u64 % 4)), delta: 0.05 }),
    });
    Graph::new(tasks.collect(), vec![1]).unwrap()
}

/// What was measured of each task, at `rate_per_s` series a second.
fn tasks(graph: &Graph, rate_per_s: f64) -> Vec<TaskMeasure> {
    let of = |task: &Task| TaskMeasure {
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
        let graph = cascades(16);
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
