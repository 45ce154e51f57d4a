//! The controller of a manager's tasks: measures in each control period, and gives each task its plan.

use crate::batching::Plan;
use crate::controller::{Controller, Goal, Graph, Kind, PERIOD, PathMeasure, TaskMeasure};
use crate::{Policy, Task, controller};
use accel::{Profile, Sizes};

/// What a batch is taken to need on a device that nobody has measured, before it has run one.
const UNMEASURED: Profile = Profile {
    t0_us: 100.0,
    t1_us: 10.0,
};

/// The controller, and room for what it is told.
pub(super) struct Control {
    controller: Controller,
    tasks: Vec<TaskMeasure>,
    paths: Vec<PathMeasure>,
    began_ns: u64,
}

impl Control {
    /// Of tasks of which some has a goal; `None` where none has one.
    pub fn of(tasks: &[Task], now_ns: u64) -> Option<Control> {
        let mut kinds = tasks.iter().filter_map(|task| match task.policy() {
            Policy::Slo { .. } => Some(Kind::Slo),
            Policy::OnOff { .. } => Some(Kind::OnOff),
            _ => None,
        });
        // The check of a configuration sees to it that all are of one kind.
        let kind = kinds.next()?;
        // As many tasks and chains as a configuration allows always fit, and sizes and profiles were checked.
        let graph = graph(tasks).ok()?;
        let paths = graph.paths().len();
        let nothing = TaskMeasure {
            rate_per_s: 0.0,
            batches_per_s: 0.0,
            batch: 0.0,
            batch_in: 0.0,
            profile: UNMEASURED,
            waited: 0.0,
        };
        Some(Control {
            controller: Controller::new(graph, kind),
            tasks: vec![nothing; tasks.len()],
            paths: vec![PathMeasure::default(); paths],
            began_ns: now_ns,
        })
    }

    /// Cuts where that is due, and ends the control period when it is over.
    pub fn control(&mut self, tasks: &mut [Task], now_ns: u64) {
        let length_ns = now_ns.saturating_sub(self.began_ns);
        if u128::from(length_ns) < PERIOD.as_nanos() {
            return self.cut(tasks);
        }
        self.began_ns = now_ns;
        let seconds = length_ns as f64 / 1e9;
        let labels = tasks.iter_mut().enumerate().map(|(number, task)| {
            let profile = task.profile().unwrap_or(UNMEASURED);
            let (measure, labels) = task.measured(seconds, profile);
            self.tasks[number] = measure;
            (number, labels)
        });
        for (number, labels) in labels {
            let paths = self.controller.graph().paths().iter();
            let ends = paths.zip(&mut self.paths);
            let ends = ends.filter(|(path, _)| path.last() == number);
            ends.for_each(|(_, measure)| *measure = labels);
        }
        self.controller.step(&self.tasks, &self.paths);
        self.publish(tasks);
    }

    /// A goal that is sure to be missed in this period is planned for at once.
    fn cut(&mut self, tasks: &mut [Task]) {
        let mut has_cut = false;
        for path in 0..self.paths.len() {
            let last = self.controller.graph().paths()[path].last();
            let (late, labels) = tasks[last].late();
            if late > 0 {
                has_cut |= self.controller.cut(path, late, labels);
            }
        }
        if has_cut {
            self.publish(tasks);
        }
    }

    /// Gives the tasks with a goal their plans.
    fn publish(&self, tasks: &mut [Task]) {
        for (number, task) in tasks.iter_mut().enumerate() {
            task.follow(Plan {
                trigger: self.controller.trigger(number).max(1),
                budget: self.controller.budget(number),
            });
        }
    }
}

/// The tasks as the controller sees them: whose devices exclude each other, and who follows whom.
fn graph(tasks: &[Task]) -> Result<Graph, controller::GraphError> {
    let mut device_sets: Vec<Vec<u8>> = Vec::new();
    let of = |task: &Task| {
        let mut lanes: Vec<u8> = task.lanes().collect();
        lanes.sort_unstable();
        lanes.dedup();
        let known = device_sets.iter().position(|set| *set == lanes);
        let device_set = known.unwrap_or(device_sets.len());
        if known.is_none() {
            device_sets.push(lanes);
        }
        controller::Task {
            profile: task.profile().unwrap_or(UNMEASURED),
            sizes: sizes(task),
            device_set,
            follows: follows(tasks, task),
            goal: task
                .policy()
                .goal()
                .map(|(latency, delta)| Goal { latency, delta }),
        }
    };
    let of_tasks = tasks.iter().map(of).collect();
    let devices = device_sets.iter().map(Vec::len).collect();
    Graph::new(of_tasks, devices)
}

/// The numbers of the tasks of this manager that a task waits for. Labels of tasks elsewhere are not planned for.
fn follows(tasks: &[Task], task: &Task) -> Vec<usize> {
    let words = task.waits_for();
    let numbers = words.filter_map(|word| tasks.iter().position(|it| it.word() == word));
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn sizes(task: &Task) -> Sizes {
    // A task has a device.
    task.sizes().cloned().unwrap_or(Sizes::Any { cap: 1 })
}
