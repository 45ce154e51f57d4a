//! The controller's baselines (Batchy, §4): no batching, all batching, and all or nothing.

use super::model::{Model, members};
use super::recovery::{Recovery, short_circuit};

/// Short-circuits buffers or fills them to the largest batch, as the delay budget allows.
pub(super) fn on_off(model: &mut Model, recovery: &mut Recovery) {
    short_circuit(model);
    for path in 0..model.paths.len() {
        let measured_us = model.paths[path].p95_us;
        let mut over_us = measured_us.max(model.delay_us(path)) - model.paths[path].budget_us;
        while over_us > 0.0 {
            let buffered = members(model.paths[path].on).filter(|t| model.tasks[*t].is_buffered());
            let wait_us = |task: &usize| model.tasks[*task].wait_us();
            let Some(longest) = buffered.max_by(|a, b| wait_us(a).total_cmp(&wait_us(b))) else {
                break;
            };
            over_us -= wait_us(&longest);
            model.tasks[longest].b = 0.0;
        }
    }
    recovery.insert_by(model, |task| task.largest);
}
