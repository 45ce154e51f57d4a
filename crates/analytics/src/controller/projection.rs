//! One step of the projected gradient (Batchy, Appendix D).
//!
//! The gradient of the load, g = −r̃·T₀/b², is projected on the planes of the paths that are tight, and b goes along it
//! as far as the other paths allow. Where no direction is left, or one path's multiplier is negative, that path is
//! released; where all are positive, the plan is optimal (Karush, Kuhn, Tucker).
//!
//! Three things differ from the paper's pseudo-code:
//!
//! * *Scale*. The gradient is scaled by the inverse of the second derivative, S = b³/(2·r̃·T₀), before and in the
//!   projection: d = −S(g + Mᵀw), (M·S·Mᵀ)w = −M·S·g. Without it tasks of 100 and of 100,000 series a second, or of
//!   batches of 2 and of 200, have gradients that differ by 10⁴ and more, and a step moves only one of them.
//! * *Line search*. The paper takes the least λ_v for all tasks, so one tight path stops everybody. While no task
//!   shrinks each can go by its own λ_v, and no path is beyond its budget all the same. λ is 1 at most where some
//!   shrink, because the optimum along the direction is there.
//! * *Bounds* of b are planes, too, but those are tasks to leave out, not rows of M.

use super::linear::Square;
use super::model::Model;

/// A path with less than this part of its budget left is tight.
const TIGHT: f64 = 1e-4;
/// A direction smaller than this part of b is none.
const STILL: f64 = 1e-4;
/// How often the set of tight paths and bounds is tried anew in one step.
const TRIES: usize = 24;

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
    /// Tasks that may move.
    is_free: Vec<bool>,
    direction: Vec<f64>,
    tight: Vec<usize>,
    multipliers: Vec<f64>,
    products: Square,
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
            is_free: vec![false; tasks],
            direction: vec![0.0; tasks],
            tight: Vec::with_capacity(paths),
            multipliers: Vec::with_capacity(paths),
            products: Square::new(paths),
        }
    }

    fn row(&self, path: usize) -> &[f64] {
        &self.slopes[path * self.tasks..(path + 1) * self.tasks]
    }

    /// Takes one step. Tells whether there was one to take.
    pub fn step(&mut self, model: &mut Model) -> bool {
        self.look_at(model);
        for _ in 0..TRIES {
            self.project();
            if !self.release_path() && !self.hold_at_bounds(model) {
                break;
            }
        }
        self.walk(model)
    }

    /// Gradients, and which paths and tasks take part.
    fn look_at(&mut self, model: &Model) {
        for (number, task) in model.tasks.iter().enumerate() {
            let (cost, b) = (task.rate * task.profile.t0_us, task.b);
            let is_free = task.is_buffered() && cost > 0.0;
            self.is_free[number] = is_free;
            self.gradient[number] = if is_free { -cost / (b * b) } else { 0.0 };
            self.scale[number] = if is_free {
                b * b * b / (2.0 * cost)
            } else {
                0.0
            };
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
                path.tasks()
                    .iter()
                    .for_each(|task| self.is_free[*task] = false);
            } else if self.slack[number] <= tolerance || path.p95_us >= path.goal.aim_us() {
                self.tight.push(number);
            }
        }
        for (number, task) in model.tasks.iter().enumerate() {
            // To begin with; the others may push it back.
            self.is_free[number] &= task.b < task.largest;
        }
    }

    /// The direction, and the multipliers of the tight paths.
    fn project(&mut self) {
        let n = self.tight.len();
        self.multipliers.clear();
        for i in 0..n {
            let row = self.row(self.tight[i]);
            let right = -self.scaled_product(row, &self.gradient);
            self.multipliers.push(right);
            for j in 0..=i {
                let product = self.scaled_product(self.row(self.tight[i]), self.row(self.tight[j]));
                self.products.set(i, j, product);
            }
        }
        self.products.solve(n, &mut self.multipliers);
        for task in 0..self.tasks {
            let push = self.push(task);
            let moves = self.is_free[task];
            self.direction[task] = if moves { -self.scale[task] * push } else { 0.0 };
        }
    }

    /// a·S·b over the tasks that may move.
    fn scaled_product(&self, a: &[f64], b: &[f64]) -> f64 {
        let free = (0..self.tasks).filter(|task| self.is_free[*task]);
        free.map(|task| a[task] * self.scale[task] * b[task]).sum()
    }

    /// g + Mᵀw of a task.
    fn push(&self, task: usize) -> f64 {
        let tight = self.tight.iter().zip(&self.multipliers);
        let held = tight.map(|(path, w)| w * self.slopes[path * self.tasks + task]);
        self.gradient[task] + held.sum::<f64>()
    }

    /// Releases the path that holds the load up most. Tells whether there was one.
    fn release_path(&mut self) -> bool {
        let multipliers = self.multipliers.iter().enumerate();
        let least = multipliers.min_by(|a, b| a.1.total_cmp(b.1));
        let released = least.filter(|(_, w)| **w < 0.0).map(|(i, _)| i);
        if let Some(i) = released {
            self.tight.swap_remove(i);
        }
        released.is_some()
    }

    /// Stops tasks that would go beyond a bound, and lets those go that are pushed away from one.
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
        let is_growth = self.direction.iter().all(|d| *d >= 0.0);
        let all = if is_growth {
            f64::INFINITY
        } else {
            self.length(model)
        };
        let mut has_moved = false;
        for number in 0..self.tasks {
            let d = self.direction[number];
            if d == 0.0 {
                continue;
            }
            let length = if is_growth {
                self.own_length(number)
            } else {
                all
            };
            let task = &mut model.tasks[number];
            let b = (task.b + length * d).clamp(1.0, task.largest);
            has_moved |= (b - task.b).abs() > STILL * task.b;
            task.b = b;
        }
        has_moved
    }

    /// λ for all tasks.
    fn length(&self, model: &Model) -> f64 {
        let paths = (0..self.slack.len()).map(|path| self.path_length(path));
        let shrinking = (0..self.tasks).filter(|task| self.direction[*task] < 0.0);
        let bounds = shrinking.map(|task| (model.tasks[task].b - 1.0) / -self.direction[task]);
        paths.chain(bounds).fold(1.0, f64::min)
    }

    /// λ_v, where no task shrinks.
    fn own_length(&self, task: usize) -> f64 {
        let through = (0..self.slack.len()).filter(|path| self.row(*path)[task] > 0.0);
        let lengths = through.map(|path| self.path_length(path));
        lengths.fold(f64::MAX, f64::min)
    }

    /// How far the direction can be gone until a path has used up its budget.
    fn path_length(&self, path: usize) -> f64 {
        let growth = self.row(path).iter().zip(&self.direction);
        let growth: f64 = growth.map(|(slope, d)| slope * d).sum();
        let slack = self.slack[path].max(0.0);
        let is_along = growth <= 1e-9 * (slack + growth.abs()) || self.tight.contains(&path);
        if !self.is_kept[path] || is_along {
            f64::INFINITY
        } else {
            slack / growth
        }
    }
}
