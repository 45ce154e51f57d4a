//! The controller of a manager's tasks: measures in each control period, and gives each task its
//! plan.

use crate::batching::SloPlan;
use crate::controller::{
    Controller, Goal, Graph, Kind, PERIOD, PathMeasure, TaskMeasure, inherent_violations,
};
use crate::{Policy, Task, controller};
use accel::{Profile, Sizes};

/// The assumed time of a batch on a device that nobody has measured, before it has run one.
const UNMEASURED: Profile = Profile { t0_us: 100.0, t1_us: 10.0 };

/// The controller, and room for its inputs.
pub(super) struct Control {
    controller: Controller,
    tasks: Vec<TaskMeasure>,
    paths: Vec<PathMeasure>,
    began_ns: u64,
    /// How many of its first devices each task leaves to others, and the drifts of profiles by
    /// which that was decided.
    homes: Vec<usize>,
    drifts: u64,
}

impl Control {
    /// `None` unless some task has a goal. Continues from the controller before, and gives tasks
    /// their plans at once, because their old ones may be far too long for a new goal.
    pub fn new(tasks: &mut [Task], before: Option<Control>, now_ns: u64) -> Option<Control> {
        tasks.iter_mut().for_each(|task| task.dispatch_mut().spread(0, None));
        let mut kinds = tasks.iter().filter_map(|task| match task.terms().policy {
            Policy::Slo { .. } => Some(Kind::Slo),
            Policy::OnOff { .. } => Some(Kind::OnOff),
            _ => None,
        });
        // The check of a configuration ensures that all are of one kind.
        let kind = kinds.next()?;
        // Always fits: a configuration has `cring::TASKS_MAX` tasks at most, and those have fewer
        // chains than a controller takes, because chains that others cover are left out. Sizes,
        // profiles and circles were checked with it.
        let shared = graph(tasks).ok()?;
        let homes = match kind {
            Kind::Slo => shared.homes(),
            Kind::Null | Kind::Max | Kind::OnOff => vec![0; tasks.len()],
        };
        let graph = shared.decomposed(&homes);
        spread(tasks, &graph, &homes);
        let paths = graph.paths().len();
        let nothing = TaskMeasure {
            rate_per_s: 0.0,
            batches_per_s: 0.0,
            batch: 0.0,
            batch_in: 0.0,
            profile: UNMEASURED,
            waited: 0.0,
        };
        let mut controller = Controller::new(graph, kind);
        let eager = tasks.iter().enumerate();
        let eager = eager.filter(|(_, task)| task.terms().policy == Policy::None);
        eager.for_each(|(number, _)| controller.set_eager(number));
        if let Some(before) = &before {
            controller.go_on_from(&before.controller);
        }
        let control = Control {
            controller,
            tasks: vec![nothing; tasks.len()],
            paths: vec![PathMeasure::default(); paths],
            // What tasks have measured since still counts.
            began_ns: before.map_or(now_ns, |it| it.began_ns),
            homes,
            drifts: drifts(tasks),
        };
        control.publish(tasks);
        Some(control)
    }

    /// Cuts where that is due, and ends the control period when it is over. Returns whether the
    /// devices' times have changed since tasks were spread over them, so that this has to be
    /// decided again.
    pub fn control(&mut self, tasks: &mut [Task], now_ns: u64) -> bool {
        let length_ns = now_ns.saturating_sub(self.began_ns);
        if u128::from(length_ns) < PERIOD.as_nanos() {
            self.cut(tasks);
            return false;
        }
        self.began_ns = now_ns;
        let seconds = length_ns as f64 / 1e9;
        let labels = tasks.iter_mut().enumerate().map(|(number, task)| {
            let profile = task.dispatch().profile().unwrap_or(UNMEASURED);
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
        let drifts = drifts(tasks);
        std::mem::replace(&mut self.drifts, drifts) != drifts && self.is_outdated(tasks)
    }

    /// Whether tasks would be spread over the devices differently by now. Allocates, but only after
    /// a drift.
    fn is_outdated(&self, tasks: &mut [Task]) -> bool {
        let Ok(shared) = graph(tasks) else {
            return false;
        };
        if self.controller.kind() == Kind::Slo && shared.homes() != self.homes {
            return true;
        }
        spread(tasks, &shared.decomposed(&self.homes), &self.homes);
        false
    }

    /// Plans at once for a goal that is sure to be missed in this period.
    fn cut(&mut self, tasks: &mut [Task]) {
        let mut has_cut = false;
        for path in 0..self.paths.len() {
            let last = self.controller.graph().paths()[path].last();
            let (late, labels) = tasks[last].measure_mut().late();
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
            task.follow(SloPlan {
                trigger: self.controller.trigger(number).max(1),
                budget: self.controller.budget(number),
            });
        }
    }
}

/// Tells the tasks which devices they leave to others, and which goals are out of reach.
fn spread(tasks: &mut [Task], graph: &Graph, homes: &[usize]) {
    let violations = inherent_violations(graph);
    for (number, (task, home)) in tasks.iter_mut().zip(homes).enumerate() {
        let own = violations.iter().filter(|it| it.task == number);
        let unreachable = own.map(|it| it.turnaround).max();
        task.dispatch_mut().spread(*home, unreachable);
    }
}

fn drifts(tasks: &[Task]) -> u64 {
    tasks.iter().map(|task| task.dispatch().drifts()).sum()
}

/// The tasks as the controller sees them: whose devices exclude each other, and which task follows
/// which.
///
/// Limit: tasks share devices only with tasks that have exactly the same ones. Sets that overlap in
/// part count as separate, as where one task has a device and another one has that and a second.
/// Neither then plans for the batches of the other: its goal is kept only by what is measured, and
/// a backlog on the common device may go unnoticed. One common set would be wrong in another way,
/// because a task cannot use the time of devices that it does not have.
fn graph(tasks: &[Task]) -> Result<Graph, controller::GraphError> {
    let mut device_sets: Vec<Vec<u8>> = Vec::new();
    let of = |task: &Task| {
        let mut executors: Vec<u8> = task.dispatch().executors().collect();
        executors.sort_unstable();
        executors.dedup();
        let known = device_sets.iter().position(|set| *set == executors);
        let device_set = known.unwrap_or(device_sets.len());
        if known.is_none() {
            device_sets.push(executors);
        }
        controller::Task {
            profile: task.dispatch().profile().unwrap_or(UNMEASURED),
            sizes: sizes(task),
            device_set,
            follows: follows(tasks, task),
            goal: task.terms().policy.goal().map(|(latency, delta)| Goal { latency, delta }),
        }
    };
    let of_tasks = tasks.iter().map(of).collect();
    let devices = device_sets.iter().map(Vec::len).collect();
    Graph::new(of_tasks, devices)
}

/// The numbers of the tasks of this manager that a task waits for. Labels of tasks elsewhere are
/// not planned for.
fn follows(tasks: &[Task], task: &Task) -> Vec<usize> {
    let words = task.rings().waits_for();
    let numbers = words.filter_map(|word| tasks.iter().position(|it| it.terms().word == word));
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn sizes(task: &Task) -> Sizes {
    // A task has a device.
    task.dispatch().sizes().cloned().unwrap_or(Sizes::Any { cap: 1 })
}
