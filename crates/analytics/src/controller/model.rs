//! What the plan predicts: delays of paths, load of devices, and how both change with batches.
//!
//! Times are in µs, rates in series per µs. b = 0 means that a task's buffer is short-circuited:
//! its batches are as large as what comes at once, and nothing waits.

use super::PERIOD;
use super::graph::{Goal, Graph, Path, Task};
use super::measure::{PathMeasure, TaskMeasure};
use accel::Profile;

/// How much of its time a device may be busy.
pub(super) const BUSY_MAX: f64 = 0.9;
/// A rate this far from the last one is taken at once, not averaged: it has leapt.
const LEAP: f64 = 2.0;
/// Avoids division by zero; in µs.
const TIME_LEAST: f64 = 1e-9;
/// Rates below one series in a thousand seconds count as none.
const RATE_LEAST: f64 = 1e-9;

/// A task, as measured and as planned.
pub(super) struct TaskState {
    pub profile: Profile,
    /// B.
    pub largest: f64,
    /// The smallest batch that the device takes; smaller ones are padded.
    pub smallest: f64,
    pub device_set: usize,
    pub is_controlled: bool,
    /// It fires whenever a device is idle, so the device's load does not show what it needs.
    pub is_eager: bool,
    /// r̃.
    pub rate: f64,
    /// b̃in.
    pub batch_in: f64,
    /// b̃.
    pub batch: f64,
    /// 1/x̃. After periods without a batch what is sure: it is longer than these. So what is known
    /// of it does not depend on where goals longer than a period have their batches.
    pub apart_us: f64,
    /// Periods since the last batch.
    quiet_us: f64,
    /// Too few of its series wait for an earlier task's label, so earlier tasks do not count in its
    /// delay.
    pub is_source: bool,
    /// b, as planned.
    pub b: f64,
}

impl TaskState {
    fn new(task: &Task) -> Self {
        Self {
            profile: task.profile,
            largest: task.sizes.largest() as f64,
            smallest: task.sizes.fitting(1).unwrap_or(1) as f64,
            device_set: task.device_set,
            is_controlled: task.goal.is_some(),
            is_eager: false,
            rate: 0.0,
            batch_in: 0.0,
            batch: 0.0,
            apart_us: f64::INFINITY,
            quiet_us: f64::INFINITY,
            is_source: task.follows.is_empty(),
            b: 0.0,
        }
    }

    pub fn is_buffered(&self) -> bool {
        self.is_controlled && self.b > 0.0
    }

    /// Time from one series to the next.
    pub fn between_us(&self) -> f64 {
        1.0 / self.rate.max(RATE_LEAST)
    }

    /// ∂t/∂b of a path that the task is on.
    pub fn slope(&self) -> f64 {
        self.between_us() + self.profile.t1_us
    }

    /// How many series a batch has.
    pub fn series(&self) -> f64 {
        let series = match (self.is_controlled, self.is_buffered()) {
            (_, true) => self.b,
            (true, false) => self.batch_in,
            (false, _) => self.batch,
        };
        series.clamp(1.0, self.largest)
    }

    /// What a batch takes, including padding.
    pub fn service_us(&self) -> f64 {
        self.profile.t0_us + self.profile.t1_us * self.series().max(self.smallest)
    }

    /// How long the first series of a batch waits for the last.
    pub fn wait_us(&self) -> f64 {
        if self.is_buffered() {
            self.b * self.between_us()
        } else if self.is_controlled {
            0.0
        } else {
            (self.series() - 1.0) * self.between_us()
        }
    }

    /// The share of one device's time that it takes.
    pub fn load(&self) -> f64 {
        self.rate * self.service_us() / self.series()
    }

    /// The share of one device's time that it needs. An eager task takes what is left, in small
    /// batches; where others need the device, its batches grow by themselves, up to the largest.
    pub fn needed_load(&self) -> f64 {
        match self.is_eager {
            true => self.rate * (self.profile.t0_us / self.largest + self.profile.t1_us),
            false => self.load(),
        }
    }

    /// Keeps what was measured, and what was planned where that is still possible.
    fn go_on_from(&mut self, before: &TaskState) {
        self.rate = before.rate;
        self.batch_in = before.batch_in;
        self.batch = before.batch;
        (self.apart_us, self.quiet_us) = (before.apart_us, before.quiet_us);
        self.is_source = before.is_source;
        self.b = match self.is_controlled {
            true => before.b.min(self.largest),
            false => 0.0,
        };
    }

    fn take(&mut self, measure: &TaskMeasure, waits_least: f64) {
        let rate = measure.rate_per_s / 1e6;
        let leaps = rate > LEAP * self.rate || self.rate > LEAP * rate;
        self.rate = if leaps { rate } else { (self.rate + rate) / 2.0 };
        self.batch_in = measure.batch_in;
        self.batch = measure.batch;
        let has_batches = measure.batches_per_s > 0.0;
        self.quiet_us = match has_batches {
            true => 0.0,
            false => self.quiet_us + PERIOD.as_secs_f64() * 1e6,
        };
        self.apart_us = match has_batches {
            true => 1e6 / measure.batches_per_s,
            false => self.quiet_us,
        };
        self.profile = measure.profile;
        self.is_source = measure.waited < waits_least;
    }
}

/// A path, as measured and as planned.
pub(super) struct PathState {
    pub tasks: Vec<usize>,
    /// How many of its first tasks do not count now.
    pub skipped: usize,
    /// The set of the others.
    pub on: u64,
    pub goal: Goal,
    /// What the model may plan with, up to the aim.
    pub budget_us: f64,
    /// Measured, in the last period that had labels.
    pub p95_us: f64,
}

impl PathState {
    fn new(path: &Path) -> Self {
        Self {
            tasks: path.tasks.clone(),
            skipped: 0,
            on: path.tasks.iter().map(|task| 1 << task).sum(),
            goal: path.goal,
            budget_us: path.goal.aim_us(),
            p95_us: 0.0,
        }
    }

    /// Keeps what was measured. The budget is the same part of the new goal as of the old one, or
    /// all of it.
    fn go_on_from(&mut self, before: &PathState) {
        (self.skipped, self.on) = (before.skipped, before.on);
        self.p95_us = before.p95_us;
        self.budget_us = before.budget_us;
        if self.goal != before.goal {
            let part = (before.budget_us / before.goal.aim_us()).min(1.0);
            self.budget_us = part * self.goal.aim_us();
        }
    }

    /// The tasks that count in its delay, in order.
    pub fn tasks(&self) -> &[usize] {
        &self.tasks[self.skipped..]
    }

    pub fn last(&self) -> usize {
        self.tasks.last().copied().unwrap_or_default()
    }

    pub fn has(&self, task: usize) -> bool {
        self.on >> task & 1 == 1
    }
}

/// How tasks that share a path's devices, but are not on it, count in its delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turnaround {
    /// Constant, whatever the plan: the paper's model.
    Constant,
    /// With their planned batches: ∂t/∂b is their part of T₁.
    Planned,
}

/// All tasks and paths.
pub(super) struct Model {
    pub tasks: Vec<TaskState>,
    pub paths: Vec<PathState>,
    /// The tasks of each device set.
    pub device_sets: Vec<u64>,
    /// Devices of each device set.
    pub devices: Vec<f64>,
    /// What part of its time each device set is busy, by the plan of the last period.
    busy: Vec<f64>,
    /// The tasks that get series at all.
    running: u64,
    /// The tasks whose devices work off a backlog.
    overloaded: u64,
    pub turnaround: Turnaround,
}

impl Model {
    pub fn new(graph: &Graph) -> Self {
        let set_of = |number| {
            let tasks = graph.tasks().iter().enumerate();
            tasks.filter(|(_, task)| task.device_set == number).map(|(task, _)| 1 << task).sum()
        };
        Self {
            tasks: graph.tasks().iter().map(TaskState::new).collect(),
            paths: graph.paths().iter().map(PathState::new).collect(),
            device_sets: (0..graph.devices().len()).map(set_of).collect(),
            devices: graph.devices().iter().map(|n| *n as f64).collect(),
            busy: vec![0.0; graph.devices().len()],
            running: 0,
            overloaded: 0,
            turnaround: Turnaround::Planned,
        }
    }

    /// Takes the measures of a period.
    pub fn take(&mut self, tasks: &[TaskMeasure], paths: &[PathMeasure], waits_least: f64) {
        for (task, measure) in self.tasks.iter_mut().zip(tasks) {
            task.take(measure, waits_least);
        }
        for (path, measure) in self.paths.iter_mut().zip(paths) {
            if measure.labels > 0 {
                path.p95_us = measure.p95_us;
            }
            let last_source = |task: &usize| self.tasks[*task].is_source;
            path.skipped = path.tasks.iter().rposition(last_source).unwrap_or(0);
            path.on = path.tasks().iter().map(|task| 1 << task).sum();
        }
        self.find_running();
    }

    /// Continues from the model of the same tasks on other devices, or with other goals.
    pub fn go_on_from(&mut self, before: &Model) {
        for (task, before) in self.tasks.iter_mut().zip(&before.tasks) {
            task.go_on_from(before);
        }
        for path in &mut self.paths {
            let mut same = before.paths.iter().filter(|it| it.tasks == path.tasks);
            if let Some(before) = same.next() {
                path.go_on_from(before);
            }
        }
        self.find_running();
    }

    /// The tasks that get series, and how busy devices are with them.
    fn find_running(&mut self) {
        let running = self.tasks.iter().enumerate();
        let running = running.filter(|(_, task)| task.rate > RATE_LEAST);
        self.running = running.map(|(number, _)| 1 << number).sum();
        for device_set in 0..self.device_sets.len() {
            self.busy[device_set] = self.load(device_set).min(1.0);
        }
    }

    /// Which device sets work off a backlog: they were busy all the time, and paths through them
    /// are late beyond what bursts and hold-ups do. Eager tasks count with what they need;
    /// otherwise a device that they share would always seem to be in a backlog.
    pub fn find_overloads(&mut self, measures: &[TaskMeasure], paths: &[PathMeasure]) {
        let late = self.paths.iter().zip(paths);
        let late = late.filter(|(path, measure)| measure.p95_us > path.goal.goal_us());
        let late = late.fold(0, |set, (path, _)| set | path.on);
        self.overloaded = 0;
        for (number, set) in self.device_sets.iter().enumerate() {
            let times = members(*set).map(|task| {
                if self.tasks[task].is_eager {
                    return self.tasks[task].needed_load();
                }
                let Profile { t0_us, t1_us } = measures[task].profile;
                let rows = measures[task].batch.max(self.tasks[task].smallest);
                measures[task].batches_per_s / 1e6 * (t0_us + t1_us * rows)
            });
            let is_busy = times.sum::<f64>() >= BUSY_MAX * self.devices[number];
            if is_busy && set & late != 0 {
                self.overloaded |= set;
            }
        }
    }

    /// Whether a task's devices work off a backlog.
    pub fn is_overloaded(&self, task: usize) -> bool {
        self.overloaded >> task & 1 == 1
    }

    /// Whether a path goes through devices that work off a backlog.
    pub fn is_path_overloaded(&self, path: usize) -> bool {
        self.overloaded & self.paths[path].on != 0
    }

    /// How much of its devices' time a device set takes, by the plan.
    pub fn load(&self, device_set: usize) -> f64 {
        let loads = members(self.device_sets[device_set]).map(|task| self.tasks[task].load());
        loads.sum::<f64>() / self.devices[device_set]
    }

    /// The same for what its tasks need.
    pub fn needed_load(&self, device_set: usize) -> f64 {
        let members = members(self.device_sets[device_set]);
        let loads = members.map(|task| self.tasks[task].needed_load());
        loads.sum::<f64>() / self.devices[device_set]
    }

    /// t: from emission to label, on a path.
    pub fn delay_us(&self, path: usize) -> f64 {
        let on = self.paths[path].tasks().iter().map(|&task| {
            let task = &self.tasks[task];
            task.wait_us() + task.service_us()
        });
        on.sum::<f64>() + self.turnaround_us(path)
    }

    /// How long a path waits for other tasks on its devices: about the longest of their batches,
    /// which cannot be interrupted, and each other one with the probability that the device is
    /// busy.
    ///
    /// The longest is the norm (Σ t⁴)^¼, because a maximum has a kink where two are alike, and
    /// steps along a gradient stop at a kink.
    pub fn turnaround_us(&self, path: usize) -> f64 {
        let shared = self.shared_by(path);
        let times = shared.map(|(number, others)| {
            let times = || members(others).map(|task| self.tasks[task].service_us());
            let (sum, longest) = (times().sum::<f64>(), norm(times()));
            let busy = self.busy[number];
            (busy * sum + (1.0 - busy) * longest) / self.devices[number]
        });
        times.sum()
    }

    /// The device sets of a path, and the other tasks there.
    fn shared_by(&self, path: usize) -> impl Iterator<Item = (usize, u64)> {
        let on = self.paths[path].on;
        let sets = self.device_sets.iter().enumerate();
        let shared = sets.filter(move |(_, set)| *set & on != 0);
        shared.map(move |(number, set)| (number, set & !on & self.running))
    }

    /// ∂t/∂b of a path by each task.
    pub fn slopes(&self, path: usize, slopes: &mut [f64]) {
        slopes.fill(0.0);
        let on = self.paths[path].on;
        for task in members(on).filter(|task| self.tasks[*task].is_buffered()) {
            slopes[task] = self.tasks[task].slope();
        }
        if self.turnaround == Turnaround::Constant {
            return;
        }
        for (number, others) in self.shared_by(path) {
            let longest = norm(members(others).map(|task| self.tasks[task].service_us()));
            let busy = self.busy[number];
            for task in members(others).filter(|task| self.tasks[*task].is_buffered()) {
                let task_state = &self.tasks[task];
                let part = (task_state.service_us() / longest.max(TIME_LEAST)).powi(3);
                let part = busy + (1.0 - busy) * part;
                slopes[task] = part * task_state.profile.t1_us / self.devices[number];
            }
        }
    }

    /// The paths that a task is on.
    pub fn paths_through(&self, task: usize) -> impl Iterator<Item = usize> {
        let paths = self.paths.iter().enumerate();
        paths.filter_map(move |(number, path)| path.has(task).then_some(number))
    }

    /// How much more than its budget a path is predicted to take.
    pub fn excess_us(&self, path: usize) -> f64 {
        self.delay_us(path) - self.paths[path].budget_us
    }
}

/// (Σ t⁴)^¼.
fn norm(times_us: impl Iterator<Item = f64>) -> f64 {
    let sum: f64 = times_us.map(|us| us.powi(4)).sum();
    sum.sqrt().sqrt()
}

/// The numbers in a set.
pub(super) fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(next)
    })
}
