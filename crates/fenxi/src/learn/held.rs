//! Samples of held-out flows, which nobody learns from.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use cring::{Context, TASKS_MAX};
use flowmgr::Target;
use flowmgr::hash::split_mix;
use flowmgr::record::Sample;

use super::judge::Question;

/// Samples kept of each task.
pub const KEPT: usize = 4096;

/// The samples of a run: the sink puts them in, and the reload thread judges by them.
#[derive(Clone, Default)]
pub struct SharedHeld(Arc<Mutex<Held>>);

impl SharedHeld {
    /// Does `work` with them.
    pub fn with<T>(&self, work: impl FnOnce(&mut Held) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The latest samples of each task.
#[derive(Default)]
pub struct Held {
    by_task: [VecDeque<Sample>; TASKS_MAX],
    /// How many there have been of each task.
    pushed: [u64; TASKS_MAX],
}

impl Held {
    /// Whether a flow is held out: one in four, with all its samples.
    pub fn takes(mut flow_id: u64) -> bool {
        split_mix(&mut flow_id) >> 62 == 0
    }

    pub fn push(&mut self, sample: Sample) {
        let task = sample.task.index();
        if let Some(kept) = self.by_task.get_mut(task) {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(sample);
            self.pushed[task] += 1;
        }
    }

    /// How many samples there have been of a task.
    pub fn pushed(&self, task: usize) -> u64 {
        self.pushed[task]
    }

    /// The samples of a task from the one of this number on, as far as they are kept.
    pub fn since(&self, task: usize, number: u64) -> impl Iterator<Item = &Sample> {
        let kept = &self.by_task[task];
        let first = self.pushed[task] - kept.len() as u64;
        kept.iter().skip(number.saturating_sub(first) as usize)
    }

    /// How many flows these samples are of.
    pub fn flows_since(&self, task: usize, number: u64) -> usize {
        flows(self.since(task, number))
    }

    /// How many of them the model of this generation has answered.
    pub fn flows_by(&self, task: usize, number: u64, generation: u16) -> usize {
        let is_by = |it: &&Sample| it.answer.is_some_and(|answer| answer.model == generation);
        flows(self.since(task, number).filter(is_by))
    }
}

fn flows<'a>(samples: impl Iterator<Item = &'a Sample>) -> usize {
    samples.map(|it| it.flow_id).collect::<HashSet<_>>().len()
}

/// What a sample asks models, and the truth; `None` if the flow was cut before that was known.
pub fn question(sample: &Sample, target: &Target) -> Option<Question> {
    let truth = match sample.is_cut {
        // Known where no band is higher.
        true => target.band_of_cut(sample.came, u16::MAX),
        false => Some(target.band(sample.came)),
    };
    let server_volume = |_| f64::from(Context::ServerVolume.value(&sample.series));
    truth.map(|truth| Question {
        flow_id: sample.flow_id,
        truth: usize::from(truth),
        worth: target.measured(sample.came) as f64,
        bytes_so_far: sample.bytes_so_far as f64,
        server_volume: sample.series.local().map(server_volume),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use cring::{Features, Series};
    use flowmgr::{Came, TargetOf, TaskId};

    /// A sample of a flow to which these bytes came.
    pub fn sample(flow_id: u64, bytes: u64) -> Sample {
        Sample {
            flow_id,
            task: TaskId::FIRST,
            depth: 1,
            began_us: 0,
            asked_after_us: 0,
            bytes_so_far: 60,
            series: Series::new(6, 1, Features::LENGTHS),
            answer: None,
            came: Came { bytes, us: 0 },
            is_cut: false,
        }
    }

    #[test]
    fn the_latest_stay_and_are_found_by_number() {
        let mut held = Held::default();
        (0..KEPT as u64 + 9).for_each(|flow_id| held.push(sample(flow_id, 0)));
        let first = |number| held.since(0, number).next().map(|it| it.flow_id);
        assert_eq!((first(0), held.since(0, 0).count()), (Some(9), KEPT));
        assert_eq!((first(20), held.flows_since(0, 20)), (Some(20), KEPT - 11));
        assert_eq!(first(held.pushed(0)), None);
        assert_eq!(held.since(1, 0).count(), 0);
    }

    #[test]
    fn a_quarter_of_the_flows_is_held_out() {
        // Flow managers number their flows in steps.
        for step in [1, 2, 4] {
            let held = (0..40_000).filter(|number| Held::takes(number * step)).count();
            assert!((9_700..10_300).contains(&held), "{held}");
        }
    }

    #[test]
    fn of_a_flow_that_was_cut_only_the_last_band_is_known() {
        let target = Target { of: TargetOf::Volume, edges: vec![1000] };
        let truth = |bytes, is_cut| {
            let asked = question(&Sample { is_cut, ..sample(1, bytes) }, &target)?;
            Some((asked.truth, asked.worth))
        };
        assert_eq!(truth(999, false), Some((0, 999.0)));
        assert_eq!(truth(999, true), None);
        assert_eq!(truth(1000, true), Some((1, 1000.0)));
        let mut with_servers = sample(1, 0);
        assert_eq!(question(&with_servers, &target).unwrap().server_volume, None);
        with_servers.series.set_local(&[7.0; cring::LOCAL]);
        assert_eq!(question(&with_servers, &target).unwrap().server_volume, Some(7.0));
    }
}
