//! Brings a plan into the feasible set, switches buffers on and off (Batchy, §4 and Appendix E),
//! and keeps batches large enough for devices to keep up.
//!
//! The paper takes a path's excess over its goal from one task after the other. Here all tasks that
//! the path waits for give the same part of what they have above 1, because the gradient then has
//! less to correct: a plan that has one task at 1 and another at 60 needs many small steps back.

use super::model::{BUSY_MAX, Model, PathState, TaskState, members};

/// A buffer is of no use if this much of the largest batch comes at once.
const INPUT_LARGE: f64 = 0.7;
/// Predictions that differ by less than this part are the same.
const SAME: f64 = 1e-7;

/// Room for the previous plan, for the gradient of a path, and for what paths have left.
pub(super) struct Recovery {
    before: Vec<f64>,
    slopes: Vec<f64>,
    slack_us: Vec<f64>,
    /// Tasks raised by [`Recovery::keep_up`].
    pub raised: u64,
}

impl Recovery {
    pub fn new(tasks: usize, paths: usize) -> Self {
        Self {
            before: vec![0.0; tasks],
            slopes: vec![0.0; tasks],
            slack_us: vec![0.0; paths],
            raised: 0,
        }
    }

    /// Brings each path back to its budget where there is a way.
    pub fn recover(&mut self, model: &mut Model) {
        (0..model.paths.len()).for_each(|path| self.recover_path(model, path));
    }

    fn recover_path(&mut self, model: &mut Model, path: usize) {
        let enough_us = model.paths[path].budget_us * (1.0 + SAME);
        if model.delay_us(path) <= enough_us {
            return;
        }
        model.slopes(path, &mut self.slopes);
        if !self.is_recoverable(model, path) {
            short_circuit_path(model, path);
            return;
        }
        for task in members(model.paths[path].on) {
            // A second series would come later than the first may wait.
            let is_rare = model.tasks[task].between_us() > model.paths[path].budget_us;
            if is_rare && model.tasks[task].is_buffered() {
                model.tasks[task].b = 0.0;
            }
        }
        // Usually once; more often if another task is the longest after each time.
        for _ in 0..model.tasks.len() {
            let excess_us = model.excess_us(path);
            if excess_us <= model.paths[path].budget_us * SAME {
                return;
            }
            model.slopes(path, &mut self.slopes);
            if !self.shrink(model, excess_us) {
                break;
            }
        }
        self.short_circuit_until_kept(model, path, enough_us);
    }

    /// Whether a path can be within its budget, with its own buffers short-circuited and the others
    /// at 1.
    fn is_recoverable(&mut self, model: &mut Model, path: usize) -> bool {
        let on = model.paths[path].on;
        for (number, task) in model.tasks.iter_mut().enumerate() {
            self.before[number] = task.b;
            if on >> number & 1 == 1 {
                task.b = 0.0;
            } else if self.slopes[number] > 0.0 {
                task.b = task.b.min(1.0);
            }
        }
        let is_recoverable = model.excess_us(path) <= 0.0;
        for (task, before) in model.tasks.iter_mut().zip(&self.before) {
            task.b = *before;
        }
        is_recoverable
    }

    /// Takes the same part of what is above 1 from all that the path waits for. Returns whether
    /// there was anything to take.
    fn shrink(&self, model: &mut Model, excess_us: f64) -> bool {
        let above = |b: f64| (b - 1.0).max(0.0);
        let tasks = model.tasks.iter().zip(&self.slopes);
        let gain_us: f64 = tasks.map(|(task, slope)| slope * above(task.b)).sum();
        if gain_us <= excess_us * SAME {
            return false;
        }
        let kept = 1.0 - (excess_us / gain_us).min(1.0);
        for (task, slope) in model.tasks.iter_mut().zip(&self.slopes) {
            if *slope > 0.0 && task.b > 1.0 {
                task.b = 1.0 + kept * above(task.b);
            }
        }
        true
    }

    /// Short-circuits buffers of a path, the longest wait first.
    fn short_circuit_until_kept(&self, model: &mut Model, path: usize, enough_us: f64) {
        while model.delay_us(path) > enough_us {
            let buffered = members(model.paths[path].on).filter(|t| model.tasks[*t].is_buffered());
            let wait_us = |task: &usize| model.tasks[*task].wait_us();
            let Some(longest) = buffered.max_by(|a, b| wait_us(a).total_cmp(&wait_us(b))) else {
                return;
            };
            model.tasks[longest].b = 0.0;
        }
    }

    /// Inserts buffers where all paths of a task have room for a batch just larger than what comes
    /// at once.
    pub fn insert(&mut self, model: &mut Model) {
        self.insert_by(model, |task| (task.batch_in + 1.0).min(task.largest));
    }

    /// Inserts buffers of this size where all paths have room for them. A path that is over its
    /// budget anyway prevents this only for its own tasks.
    pub fn insert_by(&mut self, model: &mut Model, size: impl Fn(&TaskState) -> f64) {
        for (path, slack_us) in self.slack_us.iter_mut().enumerate() {
            *slack_us = -model.excess_us(path);
        }
        for task in 0..model.tasks.len() {
            let state = &model.tasks[task];
            if !state.is_controlled || state.is_buffered() || is_useless(model, task) {
                continue;
            }
            let b = size(state);
            let longer_us = state.profile.t1_us * (b - state.series()).max(0.0);
            let wait_us = b * state.between_us();
            let set = model.device_sets[state.device_set];
            let more_us = |path: &PathState| match path.on & set {
                0 => 0.0,
                _ if path.has(task) => wait_us + longer_us,
                _ => longer_us,
            };
            let mut paths = model.paths.iter().zip(&self.slack_us);
            let has_room = paths.all(|(path, slack_us)| {
                more_us(path) <= *slack_us || (!path.has(task) && *slack_us < 0.0)
            });
            if has_room {
                for (path, slack_us) in model.paths.iter().zip(&mut self.slack_us) {
                    *slack_us -= more_us(path);
                }
                model.tasks[task].b = b;
            }
        }
    }

    /// Raises batches on device sets that would not keep up.
    ///
    /// The load is to be below [`BUSY_MAX`] with the least delay: min Σ c·b for Σ r·T₀/b ≤ L, with
    /// c = 1/r + T₁ and L what is left for all T₀. The solution is b = √(r·T₀/c)·Σ√(r·T₀·c)/L, so
    /// batches grow where they pay most.
    pub fn keep_up(&mut self, model: &mut Model) {
        self.raised = 0;
        for device_set in 0..model.device_sets.len() {
            if model.needed_load(device_set) > BUSY_MAX {
                self.raise(model, device_set);
            }
        }
    }

    fn raise(&mut self, model: &mut Model, device_set: usize) {
        let set = model.device_sets[device_set];
        let mut open = 0;
        let mut left = BUSY_MAX * model.devices[device_set];
        for task in members(set) {
            let state = &model.tasks[task];
            if state.is_controlled && state.profile.t0_us > 0.0 && state.rate > 0.0 {
                left -= state.rate * state.profile.t1_us;
                open |= 1 << task;
            } else {
                left -= state.needed_load();
            }
        }
        // Tasks that cannot be as large as they should leave more to the others.
        while open != 0 {
            let costs = members(open).map(|task| {
                let task = &model.tasks[task];
                (task.rate * task.profile.t0_us * task.slope()).sqrt()
            });
            let scale = if left > 0.0 { costs.sum::<f64>() / left } else { f64::MAX };
            let least = |model: &Model, task: usize| {
                let task = &model.tasks[task];
                (task.rate * task.profile.t0_us / task.slope()).sqrt() * scale
            };
            let capped = members(open).filter(|t| least(model, *t) >= model.tasks[*t].largest);
            let capped: u64 = capped.map(|task| 1 << task).sum();
            let settled = if capped == 0 { open } else { capped };
            for task in members(settled) {
                let b = least(model, task).min(model.tasks[task].largest);
                let state = &mut model.tasks[task];
                if b > state.series() {
                    state.b = b;
                    self.raised |= 1 << task;
                }
                left -= state.rate * state.profile.t0_us / b;
            }
            open &= !settled;
        }
    }
}

fn short_circuit_path(model: &mut Model, path: usize) {
    members(model.paths[path].on).for_each(|task| model.tasks[task].b = 0.0);
}

/// Whether a buffer is of no use, whatever its trigger: what comes at once is large enough, or
/// nothing comes within the goal (1/x̃ > D).
fn is_useless(model: &Model, task: usize) -> bool {
    let state = &model.tasks[task];
    let is_apart = |path: usize| state.apart_us > model.paths[path].goal.goal_us();
    state.batch_in >= INPUT_LARGE * state.largest || model.paths_through(task).any(is_apart)
}

/// Short-circuits buffers that are of no use.
pub(super) fn short_circuit(model: &mut Model) {
    for task in 0..model.tasks.len() {
        if model.tasks[task].is_buffered() && is_useless(model, task) {
            model.tasks[task].b = 0.0;
        }
    }
}

/// Short-circuits buffers that would fragment what comes.
pub(super) fn short_circuit_fragmenting(model: &mut Model) {
    for task in &mut model.tasks {
        if task.is_buffered() && task.b <= task.batch_in {
            task.b = 0.0;
        }
    }
}
