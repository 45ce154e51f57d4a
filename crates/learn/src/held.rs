//! Samples of held-out flows, which nobody learns from, with what is known of the truth. A flow
//! that ends tells its band. Other classes are told by a teacher ([`Held::tell`]), for whom samples
//! wait.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use accel::Bundle;
use cring::{Context, TASKS_MAX};
use flowmgr::Target;
use flowmgr::hash::split_mix;
use flowmgr::record::Sample;

use super::judge::Question;

/// Samples kept of each task; as many more may wait for a teacher.
pub const KEPT: usize = 4096;

/// What tells a flow from others without addresses: its protocol, the ports of its first packet,
/// and when that came, µs since the epoch.
pub type FlowKey = (u8, [u16; 2], i64);

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
    by_task: [OfTask; TASKS_MAX],
}

#[derive(Default)]
struct OfTask {
    /// Those to judge by.
    kept: VecDeque<HeldSample>,
    /// How many of these there have been.
    pushed: u64,
    /// Those that a teacher has not told the class of.
    waiting: VecDeque<Sample>,
}

/// A sample to judge by.
pub struct HeldSample {
    pub sample: Sample,
    /// The class that a teacher has told; `None`: the classes are bands.
    pub told: Option<u16>,
}

impl OfTask {
    fn push(&mut self, sample: Sample, told: Option<u16>) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(HeldSample { sample, told });
        self.pushed += 1;
    }
}

impl Held {
    /// Whether a flow is held out: one in four, with all its samples.
    pub fn takes(mut flow_id: u64) -> bool {
        split_mix(&mut flow_id) >> 62 == 0
    }

    /// Takes a sample of a flow that has told its band.
    pub fn push(&mut self, sample: Sample) {
        if let Some(of_task) = self.by_task.get_mut(sample.task.index()) {
            of_task.push(sample, None);
        }
    }

    /// Takes a sample that waits for a teacher.
    pub fn wait(&mut self, sample: Sample) {
        if let Some(OfTask { waiting, .. }) = self.by_task.get_mut(sample.task.index()) {
            if waiting.len() == KEPT {
                waiting.pop_front();
            }
            waiting.push_back(sample);
        }
    }

    /// A teacher tells classes of flows. Returns how many flows of the task were waiting for that.
    pub fn tell(&mut self, task: usize, classes: &HashMap<FlowKey, u16>) -> usize {
        let of_task = &mut self.by_task[task];
        let number = of_task.pushed;
        for sample in std::mem::take(&mut of_task.waiting) {
            match classes.get(&(sample.series.protocol, sample.ports, sample.began_us)) {
                Some(class) => of_task.push(sample, Some(*class)),
                None => of_task.waiting.push_back(sample),
            }
        }
        self.flows_since(task, number)
    }

    /// How many flows of a task wait for a teacher.
    pub fn flows_waiting(&self, task: usize) -> usize {
        flows(self.by_task[task].waiting.iter())
    }

    /// How many samples of a task there have been to judge by.
    pub fn pushed(&self, task: usize) -> u64 {
        self.by_task[task].pushed
    }

    /// These samples from the one of this number on, as far as they are kept.
    pub fn since(&self, task: usize, number: u64) -> impl Iterator<Item = &HeldSample> {
        let OfTask { kept, pushed, .. } = &self.by_task[task];
        let first = pushed - kept.len() as u64;
        kept.iter().skip(number.saturating_sub(first) as usize)
    }

    /// How many flows these samples are of.
    pub fn flows_since(&self, task: usize, number: u64) -> usize {
        flows(self.since(task, number).map(|it| &it.sample))
    }

    /// How many of them the model of this generation has answered.
    pub fn flows_by(&self, task: usize, number: u64, generation: u16) -> usize {
        let is_by = |it: &&Sample| it.answer.is_some_and(|answer| answer.model == generation);
        flows(self.since(task, number).map(|it| &it.sample).filter(is_by))
    }
}

fn flows<'a>(samples: impl Iterator<Item = &'a Sample>) -> usize {
    samples.map(|it| it.flow_id).collect::<HashSet<_>>().len()
}

/// What a sample asks models, and the class that a teacher has told; `None` if this model has no
/// such class, as one without a column `unknown`.
pub fn told_question(sample: &Sample, told: u16, bundle: &Bundle) -> Option<Question> {
    let port = bundle.port(sample.series.protocol, sample.ports[1]);
    (usize::from(told) < bundle.shape().classes).then(|| Question {
        flow_id: sample.flow_id,
        truth: usize::from(told),
        worth: 1.0,
        by_port: Some(port.map_or(bundle.labels().len(), |port| port.label)),
        bytes_so_far: 0.0,
        server_volume: None,
    })
}

/// What a sample asks models, and its band; `None` if the flow was cut before that was known.
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
        by_port: None,
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
            ports: [40_000, 443],
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
        let first = |number| held.since(0, number).next().map(|it| it.sample.flow_id);
        assert_eq!((first(0), held.since(0, 0).count()), (Some(9), KEPT));
        assert_eq!((first(20), held.flows_since(0, 20)), (Some(20), KEPT - 11));
        assert_eq!(first(held.pushed(0)), None);
        assert_eq!(held.since(1, 0).count(), 0);
    }

    #[test]
    fn classes_wait_for_a_teacher() {
        let mut held = Held::default();
        // Two samples of each flow; all begin at once, so their ports tell them apart.
        let of_flow = |flow_id: u64| Sample { ports: [flow_id as u16, 443], ..sample(flow_id, 0) };
        let flows = KEPT as u64 / 2;
        (0..=flows).for_each(|flow_id| (0..2).for_each(|_| held.wait(of_flow(flow_id))));
        assert_eq!((held.flows_waiting(0), held.pushed(0)), (flows as usize, 0));
        let key = |port, began_us| (6, [port, 443], began_us);
        let told = [(key(0, 0), 1), (key(7, 0), 2), (key(8, 1), 3), (key(9, 0), 0)];
        assert_eq!(held.tell(0, &told.into()), 2, "the first has made room, one began later");
        assert_eq!(held.tell(0, &told.into()), 0, "once is enough");
        assert_eq!((held.flows_waiting(0), held.pushed(0)), (flows as usize - 2, 4));
        let known: Vec<_> = held.since(0, 0).map(|it| (it.sample.flow_id, it.told)).collect();
        assert_eq!(known, [(7, Some(2)), (7, Some(2)), (9, Some(0)), (9, Some(0))]);
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
