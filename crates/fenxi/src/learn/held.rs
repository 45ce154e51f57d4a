//! Samples of held-out flows, which nobody learns from.

use std::collections::VecDeque;

use cring::TASKS_MAX;
use flowmgr::hash::split_mix;
use flowmgr::record::Sample;

/// Samples kept of each task.
const KEPT: usize = 4096;

/// The latest samples of each task.
#[derive(Default)]
pub struct Held {
    by_task: [VecDeque<Sample>; TASKS_MAX],
}

impl Held {
    /// Whether a flow is held out: one in four, with all its samples.
    pub fn takes(mut flow_id: u64) -> bool {
        split_mix(&mut flow_id) >> 62 == 0
    }

    pub fn push(&mut self, sample: Sample) {
        if let Some(kept) = self.by_task.get_mut(sample.task.index()) {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::frame::tests::sample;

    #[test]
    fn the_latest_stay_and_a_quarter_of_the_flows_is_held_out() {
        let mut held = Held::default();
        (0..KEPT as u64 + 9).for_each(|flow_id| held.push(Sample { flow_id, ..sample() }));
        let [first, others @ ..] = &held.by_task;
        assert_eq!((first.len(), first[0].flow_id), (KEPT, 9));
        assert!(others.iter().all(VecDeque::is_empty));
        // Flow managers number their flows in steps.
        for step in [1, 2, 4] {
            let held = (0..40_000).filter(|number| Held::takes(number * step)).count();
            assert!((9_700..10_300).contains(&held), "{held}");
        }
    }
}
