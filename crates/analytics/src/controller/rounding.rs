//! From the plan to sizes that devices take.
//!
//! A plan is rounded down, so that no path exceeds its budget. Where sizes are far apart that
//! leaves time unused, so tasks then take the next size where all paths have room for it, beginning
//! with the task whose load falls most.

use super::graph::Graph;
use super::model::{Model, TaskState};
use accel::Sizes;

/// Rounding must not make a whole number one less.
const ROUNDING: f64 = 1e-6;

/// Rounds each planned batch. Batches of `raised` are rounded up, because with less the devices
/// would not keep up. No trigger goes up by more than a size beyond `before`.
pub(super) fn round(
    model: &mut Model,
    graph: &Graph,
    raised: u64,
    before: impl Fn(usize) -> usize,
) {
    for (number, task) in graph.tasks().iter().enumerate() {
        let state = &mut model.tasks[number];
        if state.is_buffered() {
            let is_raised = raised >> number & 1 == 1;
            let size = size_within(&task.sizes, state.b, is_raised);
            // Below the smallest size age decides; the planned value stays.
            state.b = if size > 0 { size as f64 } else { state.b };
        }
    }
    let next = |number: usize, state: &TaskState| {
        let Sizes::Fixed(sizes) = &graph.tasks()[number].sizes else {
            return None;
        };
        let above = |b: f64| sizes.iter().copied().find(|size| *size as f64 > b);
        let limit = above(before(number) as f64)?;
        above(state.b).filter(|size| state.is_buffered() && *size <= limit)
    };
    let mut tried = 0_u64;
    loop {
        let tasks = model.tasks.iter().enumerate();
        let open = tasks.filter(|(number, _)| tried >> number & 1 == 0);
        let steps = open.filter_map(|(number, task)| Some((number, next(number, task)? as f64)));
        let gain = |&(number, size): &(usize, f64)| {
            let task = &model.tasks[number];
            task.rate * task.profile.t0_us * (1.0 / task.b - 1.0 / size)
        };
        let Some((number, size)) = steps.max_by(|a, b| gain(a).total_cmp(&gain(b))) else {
            return;
        };
        let b = std::mem::replace(&mut model.tasks[number].b, size);
        if !has_room(model, number) {
            model.tasks[number].b = b;
        }
        tried |= 1 << number;
    }
}

/// Whether all paths that wait for a task are within their budgets.
fn has_room(model: &Model, task: usize) -> bool {
    let set = model.device_sets[model.tasks[task].device_set];
    let mut paths = model.paths.iter().enumerate();
    paths.all(|(number, path)| path.on & set == 0 || model.excess_us(number) <= 0.0)
}

/// How many series a task with a rounded plan waits for: 0 without a buffer.
pub(super) fn trigger(state: &TaskState, sizes: &Sizes) -> usize {
    // If not even the smallest fits, it is padded when the oldest must go.
    let least = sizes.fitting(1).unwrap_or(1);
    if state.is_buffered() { (state.b as usize).max(least) } else { 0 }
}

/// The largest size within a planned batch, or if that is raised the smallest size that holds it; 0
/// if there is none.
fn size_within(sizes: &Sizes, b: f64, is_raised: bool) -> usize {
    if is_raised {
        return sizes.fitting(b.ceil() as usize).unwrap_or(sizes.largest());
    }
    let rows = (b + ROUNDING) as usize;
    match sizes {
        Sizes::Any { cap } => rows.min(*cap),
        Sizes::Fixed(sizes) => {
            let above = sizes.partition_point(|size| *size <= rows);
            sizes[..above].last().copied().unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_go_down_to_a_size_and_up_where_devices_would_not_keep_up() {
        let any = Sizes::Any { cap: 100 };
        let fixed = Sizes::Fixed(vec![16, 64]);
        let down = |sizes, b| size_within(sizes, b, false);
        let up = |sizes, b| size_within(sizes, b, true);
        assert_eq!([1.0, 8.9, 85.999_999_9, 200.0].map(|b| down(&any, b)), [1, 8, 86, 100]);
        assert_eq!([1.0, 16.0, 63.9, 64.0, 99.0].map(|b| down(&fixed, b)), [0, 16, 16, 64, 64]);
        assert_eq!([7.1, 8.0, 101.0].map(|b| up(&any, b)), [8, 8, 100]);
        assert_eq!([7.1, 16.1, 99.0].map(|b| up(&fixed, b)), [16, 64, 64]);
    }
}
