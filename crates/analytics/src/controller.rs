//! Batchy's control of several tasks that share devices (§3 and §4): batches as large as all goals
//! allow.
//!
//! A *path* leads from a task that follows none to one with a goal. Its delay is, in Batchy's
//! model,
//!
//! ```text
//!     t = W + Σ (b/r̃ + T₀ + T₁·b)        over its tasks
//! ```
//!
//! where W is what other tasks take on its devices. The load that a plan can change is Σ r̃·T₀/b.
//! Once per control period the controller takes what was [measured](TaskMeasure), and sets for each
//! task with the policy `slo`
//!
//! * the *trigger*: how many series a batch waits for; 0 where what is there goes at once (the
//!   buffer is *short-circuited*),
//! * the *budget*: within what time of its emission the oldest series is to have this task's label.
//!   The manager fires what is there when the oldest's age and its time on the device reach the
//!   budget. For a task that others follow this leaves their part of the path's time.
//!
//! A period is planned in this order: `recovery` short-circuits useless buffers, brings paths back
//! to their budgets and inserts buffers; `projection` follows the gradient of the load; devices
//! that would not keep up get larger batches, whatever the goals, because otherwise their queues
//! and every delay would grow; and `rounding` finds sizes that devices take.
//!
//! # What differs from the paper, and why
//!
//! * *Several steps a period*. The paper takes one step along the projected gradient, because the
//!   next period measures where it led. A step ends where the first path becomes tight, so n paths
//!   take n periods. The model costs microseconds, so up to `STEPS` steps are taken. Triggers go up
//!   by a quarter (`GROWTH`) of the plan per period, so that measuring still comes first, and go
//!   down at once. `projection` lists the differences within a step.
//! * *Feedback*. The paper adds predicted changes to the measured t̃. But t̃ says little here:
//!   where age fires batches, it is the budget, whatever the trigger is. So each path has a budget.
//!   It begins at D(1 − δ), is halved as soon as a period is sure to be in violation (more than 1 %
//!   of its labels late), shrinks by a 32nd of D(1 − δ) when more than 1 % took longer than D(1 −
//!   δ), and grows by a 32nd otherwise. It grows beyond D(1 − δ) where the 99th percentile stays
//!   well below that, and does not fall below a 16th. The measured t̃ only says, as in the paper,
//!   which paths are tight. Labels that are late because the thread was held up for longer than D
//!   are left out while they are exceptions, because they are late whatever the batches are.
//! * *Turnaround*. In the paper W is constant, the sum of all tasks' largest batches. That leaves
//!   nothing for goals of one or two turnarounds, and no task makes room for another's short goal.
//!   Here W follows from the plan, and counts in the gradient (`model`). In the simulated plant, 16
//!   tasks of which 15 follow one then need a fifth less of the device (tests,
//!   `the_turnaround_is_part_of_the_plan`).
//! * *Backlogs*. Where devices were busy all the time and labels late, age would fire one small
//!   batch after the other. Until the backlog is over the largest batches go, whatever the age, and
//!   no budget is cut. A task with the policy `none` fires whenever a device is idle and may keep
//!   it busy without end, so only what it needs counts.
//!
//! Where a plan may be off: delays are added as if all stages of a path were slow for the same
//! series; b/r̃ is too long where series come in bursts, as from a task before; and series that
//! come on several paths are not told apart. All of this errs towards smaller batches, and feedback
//! corrects it.
//!
//! Sources: Batchy, §3.2 to §4, Appendices C to E, and its public code for what the paper leaves
//! open.

mod baselines;
mod decompose;
mod graph;
mod linear;
mod measure;
mod model;
mod projection;
mod recovery;
mod rounding;

pub use graph::{
    GRAPH_TASKS_MAX, Goal, Graph, GraphError, InherentViolation, PATHS_MAX, Path, Task,
    inherent_violations,
};
pub use measure::{PathMeasure, TaskMeasure};
use model::{Model, members};
use projection::Projection;
use recovery::Recovery;
use std::time::Duration;

/// Length of a control period.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Labels that a path needs to be judged; fewer have no 99th percentile.
const LABELS_MIN: u64 = 100;
/// Periods after which it is judged in any case.
const PERIODS_MAX: u32 = 10;
/// One label in this many may be late.
const LATE_ONE_IN: u64 = 100;
/// Steps from nothing to the whole budget of a path.
const BUDGET_STEPS: f64 = 32.0;
/// The least part of D(1 − δ) that a budget has. Labels that are still late are late because the
/// thread is held up for longer, and smaller batches would only cost.
const BUDGET_LEAST: f64 = 1.0 / 16.0;
/// The largest part. The model adds up times that are seldom long together, so a plan for longer
/// than D(1 − δ) may well be kept; for how much longer, only measuring says.
const BUDGET_MOST: f64 = 1.5;
/// The budget grows beyond D(1 − δ) only where the plan uses this part of it, and the 99th
/// percentile is below the same part of D(1 − δ).
const ROOM: f64 = 0.9;
/// A task that follows others counts as a source if less than this share of its series had to wait
/// for their labels.
const WAITS_LEAST: f64 = 0.05;
/// Steps along the projected gradient in a period, at most.
const STEPS: usize = 4;
/// In a backlog a task waits at most for what comes in this part of a period.
const BACKLOG_PART: f64 = 0.25;
/// A trigger goes up by this part of the plan per period.
const GROWTH: f64 = 0.25;

/// Which controller it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Batchy's full controller.
    Slo,
    /// No batching: everything goes at once.
    Null,
    /// The largest batches, whatever the delay.
    Max,
    /// The largest batches or none, as the delay budget allows.
    OnOff,
}

/// What a task is to do.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Output {
    trigger: usize,
    budget: Duration,
}

/// What has been seen of a path since it was last judged.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    periods: u32,
    labels: u64,
    late: u64,
    near: u64,
    /// The budget was halved in this period.
    has_cut: bool,
}

/// Plans triggers and budgets of all tasks of a graph.
pub struct Controller {
    kind: Kind,
    graph: Graph,
    model: Model,
    projection: Projection,
    recovery: Recovery,
    /// The plan as it was: before steps along the gradient, and before rounding.
    before: Vec<f64>,
    seen: Vec<Seen>,
    /// The tasks whose batches were halved in this period.
    halved: u64,
    outputs: Vec<Output>,
}

impl Controller {
    /// A controller of these tasks, at first without batching. Allocates everything that a step
    /// needs.
    pub fn new(graph: Graph, kind: Kind) -> Self {
        let (tasks, paths) = (graph.tasks().len(), graph.paths().len());
        let mut controller = Self {
            kind,
            model: Model::new(&graph),
            projection: Projection::new(tasks, paths),
            recovery: Recovery::new(tasks, paths),
            before: vec![0.0; tasks],
            seen: vec![Seen::default(); paths],
            halved: 0,
            outputs: vec![Output { trigger: 0, budget: Duration::ZERO }; tasks],
            graph,
        };
        controller.publish();
        controller
    }

    /// A task without a goal fires whenever a device is idle, as with the policy `none`. It may
    /// then keep the device busy all the time without needing it.
    pub fn set_eager(&mut self, task: usize) {
        self.model.tasks[task].is_eager = true;
    }

    /// Which controller it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What is controlled.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many series this task waits for; 0 where what is there goes at once.
    pub fn trigger(&self, task: usize) -> usize {
        self.outputs[task].trigger
    }

    /// Within what time of its emission a series is to have this task's label.
    pub fn budget(&self, task: usize) -> Duration {
        self.outputs[task].budget
    }

    /// Ends a control period: one measure for each task and each path, in the order of the graph.
    pub fn step(&mut self, tasks: &[TaskMeasure], paths: &[PathMeasure]) {
        self.model.take(tasks, paths, WAITS_LEAST);
        self.model.find_overloads(tasks, paths);
        for (path, measure) in paths.iter().enumerate().take(self.seen.len()) {
            self.judge(path, measure);
        }
        self.halved = 0;
        match self.kind {
            Kind::Slo => self.plan(),
            Kind::OnOff => baselines::on_off(&mut self.model, &mut self.recovery),
            Kind::Null | Kind::Max => {}
        }
        self.publish();
    }

    /// Within a period, `late` of a path's `labels` have been late so far. Cuts the batches at once
    /// if the period is sure to be in violation, at most once per period; returns whether it did.
    pub fn cut(&mut self, path: usize, late: u64, labels: u64) -> bool {
        let last = &self.model.tasks[self.model.paths[path].last()];
        let expected = (last.rate * PERIOD.as_secs_f64() * 1e6) as u64;
        let is_sure = exceed(late, labels.max(expected).max(LABELS_MIN));
        // Smaller batches would only make a backlog last.
        let is_backlog = self.model.is_path_overloaded(path);
        if self.kind != Kind::Slo || self.seen[path].has_cut || !is_sure || is_backlog {
            return false;
        }
        self.halve(path);
        self.seen[path].has_cut = true;
        self.recovery.recover(&mut self.model);
        self.recovery.keep_up(&mut self.model);
        self.publish();
        true
    }

    /// Continues from another controller of the same tasks, which had other goals, devices or
    /// sizes: takes its plan, as far as that is still in time. So a shorter goal is planned for at
    /// once, and a task where nothing has changed keeps its batches.
    pub fn go_on_from(&mut self, before: &Controller) {
        if self.kind != before.kind || self.outputs.len() != before.outputs.len() {
            return;
        }
        self.model.go_on_from(&before.model);
        self.outputs.clone_from(&before.outputs);
        for (path, seen) in self.model.paths.iter().zip(&mut self.seen) {
            let same = before.model.paths.iter().zip(&before.seen);
            let mut same = same.filter(|(it, _)| (&it.tasks, it.goal) == (&path.tasks, path.goal));
            *seen = match same.next() {
                Some((_, seen)) => *seen,
                // Series that already wait may be late by the new goal. That says nothing about the
                // new plan.
                None => Seen { has_cut: true, ..Seen::default() },
            };
        }
        if self.kind == Kind::Slo {
            self.recovery.recover(&mut self.model);
            self.recovery.keep_up(&mut self.model);
        }
        self.publish();
    }

    /// Halves a path's budget, and what the path waits for in batches of its own. Paths that end at
    /// one task are late together; a task that several of them share is still halved only once in a
    /// period.
    fn halve(&mut self, path: usize) {
        let state = &mut self.model.paths[path];
        let least_us = BUDGET_LEAST * state.goal.aim_us();
        if state.budget_us <= least_us {
            return;
        }
        state.budget_us = (state.budget_us / 2.0).max(least_us);
        for task in members(state.on & !self.halved) {
            let b = &mut self.model.tasks[task].b;
            *b = if *b >= 2.0 { *b / 2.0 } else { 0.0 };
        }
        self.halved |= state.on;
    }

    /// Sets a path's budget by how well its goal was met.
    fn judge(&mut self, path: usize, measure: &PathMeasure) {
        let seen = &mut self.seen[path];
        seen.periods += 1;
        seen.labels += measure.labels;
        seen.late += measure.late;
        seen.near += measure.near;
        if seen.labels < LABELS_MIN && seen.periods < PERIODS_MAX {
            return;
        }
        let seen = std::mem::take(seen);
        if exceed(seen.late, seen.labels) {
            if !seen.has_cut && !self.model.is_path_overloaded(path) {
                self.halve(path);
            }
        } else if seen.labels > 0 {
            let planned_us = self.model.delay_us(path);
            let state = &mut self.model.paths[path];
            let aim_us = state.goal.aim_us();
            let step_us = aim_us / BUDGET_STEPS;
            let has_room = measure.labels >= LABELS_MIN
                && measure.p99_us < ROOM * aim_us
                && planned_us >= ROOM * state.budget_us;
            state.budget_us = if exceed(seen.near, seen.labels) {
                (state.budget_us - step_us).max(BUDGET_LEAST * aim_us)
            } else if state.budget_us < aim_us {
                (state.budget_us + step_us).min(aim_us)
            } else if has_room {
                (state.budget_us + step_us / 2.0).min(BUDGET_MOST * aim_us)
            } else {
                state.budget_us
            };
        }
    }

    /// One control action.
    fn plan(&mut self) {
        let model = &mut self.model;
        recovery::short_circuit(model);
        self.recovery.recover(model);
        self.recovery.insert(model);
        for (before, task) in self.before.iter_mut().zip(&model.tasks) {
            *before = task.b;
        }
        self.projection.begin();
        for _ in 0..STEPS {
            if !self.projection.step(model) {
                break;
            }
            self.recovery.recover(model);
        }
        self.recovery.recover(model);
        self.slow_down();
        recovery::short_circuit_fragmenting(&mut self.model);
        self.recovery.keep_up(&mut self.model);
    }

    /// Limits how fast batches grow.
    fn slow_down(&mut self) {
        for (task, before) in self.model.tasks.iter_mut().zip(&self.before) {
            if task.b > *before {
                let step = (GROWTH * task.b).max(1.0);
                task.b = task.b.min(before + step);
            }
        }
    }

    /// Turns the plan into what the tasks are to do.
    fn publish(&mut self) {
        for (before, task) in self.before.iter_mut().zip(&self.model.tasks) {
            *before = task.b;
        }
        let outputs = &self.outputs;
        let before = |task: usize| outputs[task].trigger;
        rounding::round(&mut self.model, &self.graph, self.recovery.raised, before);
        for task in 0..self.outputs.len() {
            self.outputs[task] = self.output(task);
        }
        // The next period goes on from the plan, because sizes may be far apart.
        for (task, before) in self.model.tasks.iter_mut().zip(&self.before) {
            task.b = *before;
        }
    }

    /// What a task is to do.
    fn output(&self, task: usize) -> Output {
        let sizes = &self.graph.tasks()[task].sizes;
        let trigger = rounding::trigger(&self.model.tasks[task], sizes);
        match self.kind {
            Kind::Slo if self.model.is_overloaded(task) => self.work_off(task),
            Kind::Slo => Output { trigger, budget: self.planned_budget(task) },
            Kind::Null => Output { trigger: 0, budget: Duration::ZERO },
            // The baselines ignore age.
            Kind::Max => Output { trigger: sizes.largest(), budget: Duration::MAX },
            Kind::OnOff => Output { trigger, budget: Duration::MAX },
        }
    }

    /// Works off a backlog in the largest batches, whatever the age, because all series are late
    /// and smaller batches make more late. A task that would not fill one in a quarter of a period
    /// does not wait for it.
    fn work_off(&self, task: usize) -> Output {
        let state = &self.model.tasks[task];
        let sizes = &self.graph.tasks()[task].sizes;
        let comes = (state.rate * PERIOD.as_secs_f64() * 1e6 * BACKLOG_PART) as usize;
        Output { trigger: comes.min(sizes.largest()), budget: Duration::MAX }
    }

    /// What each path has left for the task, less what comes behind it and what is in the way.
    fn planned_budget(&self, task: usize) -> Duration {
        let budgets = self.model.paths_through(task).map(|number| {
            let path = &self.model.paths[number];
            let behind = path.tasks().iter().rev().take_while(|it| **it != task);
            let behind_us = behind.map(|it| {
                let it = &self.model.tasks[*it];
                it.wait_us() + it.service_us()
            });
            // Whatever the budget, series that are old enough go: they must be in time where
            // nothing is in the way.
            let own_us =
                (path.budget_us - self.model.turnaround_us(number)).min(path.goal.aim_us());
            own_us - behind_us.sum::<f64>()
        });
        let state = &self.model.tasks[task];
        let mut budget_us = budgets.fold(f64::INFINITY, f64::min);
        if self.recovery.raised >> task & 1 == 1 {
            // Firing smaller ones by age would not keep up.
            budget_us = budget_us.max(state.wait_us() + state.service_us());
        }
        duration_us(budget_us)
    }
}

/// Whether more than one label in a hundred is late.
fn exceed(late: u64, labels: u64) -> bool {
    late * LATE_ONE_IN > labels
}

fn duration_us(us: f64) -> Duration {
    if us.is_finite() { Duration::from_nanos((us * 1e3) as u64) } else { Duration::MAX }
}

#[cfg(test)]
mod tests;
