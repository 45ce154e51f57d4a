//! One step of the projected gradient (Batchy, Appendix D).
//!
//! The gradient of the load, g = −r̃·T₀/b², is projected on the planes of the paths that are tight,
//! and b goes along it as far as the other paths allow. Where no direction is left, or one path's
//! multiplier is negative, that path is released; where all are positive, the plan is optimal
//! (Karush, Kuhn, Tucker).
//!
//! Three things differ from the paper's pseudo-code:
//!
//! * *Scale*. The gradient is scaled by the inverse of the second derivative, S = b³/(2·r̃·T₀),
//!   before and in the projection: d = −S(g + Mᵀw), (M·S·Mᵀ)w = −M·S·g. Without it tasks of 100 and
//!   of 100,000 series a second, or of batches of 2 and of 200, have gradients that differ by 10⁴
//!   and more, and a step moves only one of them.
//! * *Line search*. The paper takes the least λ_v for all tasks, so one tight path stops every
//!   task. While no task shrinks, each can go by its own λ_v, and still no path exceeds its budget.
//!   λ is 1 at most where some shrink, because the optimum along the direction is there.
//! * *Bounds* of b are planes, too, but those are tasks to leave out, not rows of M.

use super::linear::{Square, dot};
use super::model::Model;

/// A path with less than this part of its budget left is tight.
const TIGHT: f64 = 1e-4;
/// A direction smaller than this part of b is none.
const STILL: f64 = 1e-4;
/// How often the set of tight paths and bounds is tried again in one period, so that a step with 64
/// paths takes less than a millisecond. The next period does the rest.
const TRIES: usize = 8;

/// How often a step is halved until the load falls.
const HALVINGS: usize = 8;

/// Room for the steps.
pub(super) struct Projection {
    tasks: usize,
    /// M: ∂t/∂b, a row for each path.
    slopes: Vec<f64>,
    /// What is left of each path's budget.
    slack: Vec<f64>,
    /// The paths that a step must not go beyond: those that hold now.
    is_kept: Vec<bool>,
    gradient: Vec<f64>,
    scale: Vec<f64>,
    /// A direction that is no longer than this is none.
    still: Vec<f64>,
    /// Tasks that may move.
    is_free: Vec<bool>,
    direction: Vec<f64>,
    tight: Vec<usize>,
    /// Indices of the tight paths that are not released.
    held: Vec<usize>,
    /// By held path.
    multipliers: Vec<f64>,
    /// M·S·Mᵀ and −M·S·g of the tight paths.
    products: Square,
    right: Vec<f64>,
    factor: Square,
    /// A row of M·S.
    scaled: Vec<f64>,
    /// How far the direction leads until each path has used up its budget.
    lengths: Vec<f64>,
    /// How often the set of tight paths and bounds may still be tried again in this period.
    tries: usize,
}

impl Projection {
    pub fn new(tasks: usize, paths: usize) -> Self {
        Self {
            tasks,
            slopes: vec![0.0; tasks * paths],
            slack: vec![0.0; paths],
            is_kept: vec![false; paths],
            gradient: vec![0.0; tasks],
            scale: vec![0.0; tasks],
            still: vec![0.0; tasks],
            is_free: vec![false; tasks],
            direction: vec![0.0; tasks],
            tight: Vec::with_capacity(paths),
            multipliers: Vec::with_capacity(paths),
            held: Vec::with_capacity(paths),
            products: Square::new(paths),
            right: vec![0.0; paths],
            factor: Square::new(paths),
            scaled: vec![0.0; tasks],
            lengths: vec![0.0; paths],
            tries: TRIES,
        }
    }

    fn row(&self, path: usize) -> &[f64] {
        &self.slopes[path * self.tasks..(path + 1) * self.tasks]
    }

    /// Begins a period.
    pub fn begin(&mut self) {
        self.tries = TRIES;
    }

    /// Takes one step. Returns whether there was one to take.
    pub fn step(&mut self, model: &mut Model) -> bool {
        if self.tries == 0 {
            return false;
        }
        self.look_at(model);
        self.multiply();
        while self.tries > 0 {
            self.tries -= 1;
            self.project();
            if self.release_path() {
                continue;
            }
            if !self.hold_at_bounds(model) {
                break;
            }
            self.multiply();
        }
        self.walk(model)
    }

    /// Computes gradients, and which paths and tasks take part.
    fn look_at(&mut self, model: &Model) {
        for (number, task) in model.tasks.iter().enumerate() {
            let (cost, b) = (task.rate * task.profile.t0_us, task.b);
            let is_free = task.is_buffered() && cost > 0.0;
            self.is_free[number] = is_free;
            self.still[number] = STILL * b;
            self.gradient[number] = if is_free { -cost / (b * b) } else { 0.0 };
            self.scale[number] = if is_free { b * b * b / (2.0 * cost) } else { 0.0 };
        }
        self.tight.clear();
        for (number, path) in model.paths.iter().enumerate() {
            let row = number * self.tasks..(number + 1) * self.tasks;
            model.slopes(number, &mut self.slopes[row]);
            self.slack[number] = -model.excess_us(number);
            let tolerance = TIGHT * path.budget_us;
            self.is_kept[number] = self.slack[number] >= -tolerance;
            if !self.is_kept[number] {
                // No plan keeps this path. Its own tasks do not grow, the others go on.
                path.tasks().iter().for_each(|task| self.is_free[*task] = false);
            } else if self.slack[number] <= tolerance || path.p95_us >= path.goal.aim_us() {
                self.tight.push(number);
            }
        }
        self.held.clear();
        self.held.extend(0..self.tight.len());
        for (number, task) in model.tasks.iter().enumerate() {
            // To begin with; the others may push it back.
            self.is_free[number] &= task.b < task.largest;
        }
    }

    /// M·S·Mᵀ of the tight paths and the tasks that may move.
    fn multiply(&mut self) {
        for i in 0..self.tight.len() {
            let row = self.tight[i] * self.tasks..(self.tight[i] + 1) * self.tasks;
            for task in 0..self.tasks {
                let scale = if self.is_free[task] { self.scale[task] } else { 0.0 };
                self.scaled[task] = scale * self.slopes[row.start + task];
            }
            self.right[i] = -dot(&self.scaled, &self.gradient);
            for j in 0..=i {
                let other = self.tight[j] * self.tasks..(self.tight[j] + 1) * self.tasks;
                self.products.set(i, j, dot(&self.scaled, &self.slopes[other]));
            }
        }
    }

    /// The direction, and the multipliers of the tight paths that still hold.
    fn project(&mut self) {
        self.multipliers.clear();
        for i in 0..self.held.len() {
            self.multipliers.push(self.right[self.held[i]]);
            for j in 0..=i {
                let product = self.products.get(self.held[i], self.held[j]);
                self.factor.set(i, j, product);
            }
        }
        self.factor.solve(self.held.len(), &mut self.multipliers);
        for task in 0..self.tasks {
            let d = -self.scale[task] * self.push(task);
            self.direction[task] = if self.is_free[task] { d } else { 0.0 };
        }
    }

    /// g + Mᵀw of a task.
    fn push(&self, task: usize) -> f64 {
        let held = self.held.iter().zip(&self.multipliers);
        let held = held.map(|(i, w)| w * self.slopes[self.tight[*i] * self.tasks + task]);
        self.gradient[task] + held.sum::<f64>()
    }

    /// Releases the path that holds the load up most. Returns whether there was one.
    fn release_path(&mut self) -> bool {
        let multipliers = self.multipliers.iter().enumerate();
        let least = multipliers.min_by(|a, b| a.1.total_cmp(b.1));
        let released = least.filter(|(_, w)| **w < 0.0).map(|(i, _)| i);
        if let Some(i) = released {
            self.held.remove(i);
        }
        released.is_some()
    }

    /// Stops tasks that would go beyond a bound, and frees tasks that are pushed away from one.
    fn hold_at_bounds(&mut self, model: &Model) -> bool {
        let mut has_changed = false;
        for (number, task) in model.tasks.iter().enumerate() {
            let is_low = task.b <= 1.0 && self.direction[number] < 0.0;
            if self.is_free[number] && is_low {
                self.is_free[number] = false;
                has_changed = true;
            }
            let is_high = task.is_buffered() && task.b >= task.largest;
            if is_high && !self.is_free[number] && self.push(number) > 0.0 {
                self.is_free[number] = true;
                has_changed = true;
            }
        }
        has_changed
    }

    /// Goes along the direction as far as paths and bounds allow.
    fn walk(&mut self, model: &mut Model) -> bool {
        // Rounding leaves a little less than nothing where paths leave none.
        let mut directions = self.direction.iter().zip(&self.still);
        let is_growth = directions.all(|(d, still)| *d >= -still);
        for path in 0..self.slack.len() {
            let is_capped = is_growth && self.is_held(path);
            self.lengths[path] = if is_capped { 1.0 } else { self.path_length(path) };
        }
        let all = if is_growth { 1.0 } else { self.length(model) };
        let mut has_moved = false;
        for number in 0..self.tasks {
            let d = self.direction[number];
            if d == 0.0 {
                continue;
            }
            let length = if is_growth { self.own_length(number) } else { all };
            let task = &mut model.tasks[number];
            let b = (task.b + length * d).clamp(1.0, task.largest);
            has_moved |= (b - task.b).abs() > STILL * task.b;
            task.b = b;
        }
        has_moved
    }

    /// λ for all tasks: 1, or as much as paths and bounds allow, or less where the load would not
    /// fall.
    fn length(&self, model: &Model) -> f64 {
        let paths = self.lengths.iter().copied();
        let shrinking = (0..self.tasks).filter(|task| self.direction[*task] < 0.0);
        let bounds = shrinking.map(|task| (model.tasks[task].b - 1.0) / -self.direction[task]);
        let mut length = paths.chain(bounds).fold(1.0, f64::min);
        for _ in 0..HALVINGS {
            if self.change(model, length) <= 0.0 {
                return length;
            }
            length /= 2.0;
        }
        0.0
    }

    /// How the load changes after a step of this length along the direction.
    fn change(&self, model: &Model, length: f64) -> f64 {
        let tasks = model.tasks.iter().zip(&self.direction);
        let moving = tasks.filter(|(_, d)| **d != 0.0);
        let changes = moving.map(|(task, d)| {
            let b = (task.b + length * d).clamp(1.0, task.largest);
            task.rate * task.profile.t0_us * (1.0 / b - 1.0 / task.b)
        });
        changes.sum()
    }

    /// λ_v, where no task shrinks. It is 1 at most where a tight path is in the way, which only
    /// rounding lets go on.
    fn own_length(&self, task: usize) -> f64 {
        let through = (0..self.slack.len()).filter(|path| self.row(*path)[task] > 0.0);
        let lengths = through.map(|path| self.lengths[path]);
        lengths.fold(f64::MAX, f64::min)
    }

    fn is_held(&self, path: usize) -> bool {
        self.held.iter().any(|i| self.tight[*i] == path)
    }

    /// How far the direction leads until a path has used up its budget.
    fn path_length(&self, path: usize) -> f64 {
        let growth = self.row(path).iter().zip(&self.direction);
        let growth: f64 = growth.map(|(slope, d)| slope * d).sum();
        let slack = self.slack[path].max(0.0);
        let is_along = growth <= 1e-9 * (slack + growth.abs()) || self.is_held(path);
        if !self.is_kept[path] || is_along { f64::INFINITY } else { slack / growth }
    }
}
