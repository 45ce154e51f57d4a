//! Samples of one interval, by band: where one band is seldom, all of it is kept.

use std::sync::Arc;

use dataplane::tasks::TaskNames;
use flowmgr::TaskId;
use flowmgr::hash::split_mix;
use flowmgr::record::Sample;

use super::frame;

/// Samples that a band keeps of an interval, where frames have room.
const KEPT_MAX: usize = 256;

/// Samples by task and by the band of which their flows proved to be; those that were cut, whose
/// band is not known, by themselves. Without a target, by the class that the model said.
pub struct Strata {
    tasks: Arc<[TaskNames]>,
    by_task: Vec<Vec<Reservoir>>,
    /// Samples that each band keeps.
    most: usize,
    random: u64,
}

/// As many of those seen as there is room for, each with the same chance (algorithm R, Vitter
/// 1985). LiteFlow overwrites a random one each time, so early ones fade.
#[derive(Default)]
struct Reservoir {
    kept: Vec<Sample>,
    seen: usize,
}

impl Reservoir {
    fn push(&mut self, sample: Sample, most: usize, random: &mut u64) {
        self.seen += 1;
        if self.kept.len() < most {
            self.kept.push(sample);
            return;
        }
        // The high half of the product is a number below `seen`.
        let at = (u128::from(split_mix(random)) * self.seen as u128) >> 64;
        if let Some(place) = self.kept.get_mut(at as usize) {
            *place = sample;
        }
    }
}

impl Strata {
    pub fn new(tasks: Arc<[TaskNames]>) -> Strata {
        // Where a task has more classes than fit, the last ones share a place.
        let room = frame::SAMPLES_BYTES / tasks.len().max(1);
        let classes = |it: &TaskNames| it.classes.len().min(room / frame::bytes_max(it));
        let bytes: usize = tasks.iter().map(|it| classes(it) * frame::bytes_max(it)).sum();
        let reservoirs = |it| (0..classes(it)).map(|_| Reservoir::default()).collect();
        Strata {
            by_task: tasks.iter().map(reservoirs).collect(),
            most: (frame::SAMPLES_BYTES / bytes.max(1)).min(KEPT_MAX),
            random: 0,
            tasks,
        }
    }

    /// Whether the classes of a task are bands, so that flows themselves tell the truth.
    pub fn has_bands(&self, task: TaskId) -> bool {
        self.tasks.get(task.index()).is_some_and(|names| names.target.is_some())
    }

    pub fn push(&mut self, sample: Sample) {
        let Some(names) = self.tasks.get(sample.task.index()) else { return };
        let band = match &names.target {
            Some(_) if sample.is_cut => None,
            Some(target) => Some(target.band(sample.came)),
            None => sample.answer.map(|answer| answer.class),
        };
        let reservoirs = &mut self.by_task[sample.task.index()];
        // The last class is `unknown`, which no band is.
        let last = reservoirs.len().saturating_sub(1);
        let at = band.map_or(last, |band| last.min(usize::from(band)));
        if let Some(reservoir) = reservoirs.get_mut(at) {
            reservoir.push(sample, self.most, &mut self.random);
        }
    }

    /// The samples of the interval, each with its task's names and how many it stands for. The next
    /// interval begins.
    pub fn take(&mut self) -> Vec<(Sample, &TaskNames, f64)> {
        let mut taken = Vec::new();
        for (names, reservoirs) in self.tasks.iter().zip(&mut self.by_task) {
            for Reservoir { kept, seen } in reservoirs.iter_mut().map(std::mem::take) {
                let weight = seen as f64 / kept.len().max(1) as f64;
                taken.extend(kept.into_iter().map(|sample| (sample, names, weight)));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use flowmgr::Came;

    use super::super::frame::tests::{names, sample};
    use super::*;

    fn with_bytes(flow_id: u64, bytes: u64) -> Sample {
        Sample { flow_id, came: Came { bytes, us: 7 }, ..sample() }
    }

    #[test]
    fn each_sample_of_a_band_has_the_same_chance_and_a_rare_band_is_kept_whole() {
        let mut strata = Strata::new(names());
        let (mut early, rounds, seen) = (0, 50, 2000);
        for _ in 0..rounds {
            (0..seen).for_each(|flow_id| strata.push(with_bytes(flow_id, 10)));
            (0..5).for_each(|flow_id| strata.push(with_bytes(seen + flow_id, 1 << 20)));
            strata.push(Sample { is_cut: true, ..with_bytes(9999, 10) });
            let taken = strata.take();
            let weights = |of: f64| taken.iter().filter(|(.., weight)| *weight == of).count();
            assert_eq!((weights(1.0), weights(seen as f64 / KEPT_MAX as f64)), (6, KEPT_MAX));
            let is_early = |sample: &Sample| sample.flow_id < seen / 4;
            early += taken.iter().filter(|(sample, ..)| is_early(sample)).count();
        }
        // A quarter of 12,800, whose standard deviation is below 50.
        let expected = rounds * KEPT_MAX / 4;
        assert!(early.abs_diff(expected) < 200, "{early} instead of {expected}");
        assert_eq!(strata.take().len(), 0);
    }

    /// However the tasks are called, and however many classes they have.
    #[test]
    fn a_frame_has_its_size() {
        let many = |classes: usize| TaskNames {
            name: "\"\u{1}".repeat(20).into(),
            classes: (0..classes).map(|it| format!("{it}\"\u{1}")).collect(),
            target: None,
            ..names()[0].clone()
        };
        for tasks in [names(), vec![many(30); 8].into(), vec![many(4000); 2].into()] {
            let mut strata = Strata::new(tasks.clone());
            let (most, places) = (strata.most, strata.by_task.iter().map(Vec::len).sum::<usize>());
            for (task, names) in tasks.iter().enumerate() {
                for class in 0..names.classes.len() * (most + 1) {
                    strata.push(frame::tests::largest(task, class, names));
                }
            }
            let taken = strata.take();
            assert_eq!(taken.len(), places * most, "each place is full");
            let text = frame::text(i64::MAX, &taken);
            let frame = frame::before(u64::MAX, &text).len() + text.len();
            assert!((1 << 18..=4 + (1 << 20)).contains(&frame), "{frame} bytes");
        }
    }
}
