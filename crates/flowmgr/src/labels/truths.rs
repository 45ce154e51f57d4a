//! Whether labels that are bands held: counts at the packets that decided, until the flow ends.

use std::io;

use cring::WORDS_MAX;

use super::Labels;
use crate::entry::{Counts, Entries};
use crate::flows::Flows;
use crate::ids::{DepthId, TaskId};
use crate::memory::{Array, Zeroed};
use crate::record::{DecidedBy, Decision};
use crate::target::Came;
use crate::tasks::Tasks;

/// A flow at the packet that completed a depth's series.
#[derive(Clone, Copy, Debug)]
struct Noted {
    /// Bytes since the flow's last record; below 0, wrapping, once records have taken more.
    bytes: u64,
    /// The packet's time, µs; [`NOT_YET`] before it.
    time_us: i64,
}

const NOT_YET: i64 = i64::MIN;

/// Bytes that a flow takes for each such depth.
pub(crate) const TRUTH_BYTES: usize = size_of::<Noted>();

#[expect(unsafe_code, reason = "a promise about a type of integers")]
mod zeroed {
    // SAFETY: integers only.
    unsafe impl super::Zeroed for super::Noted {}
}

/// What is kept for the depths of tasks with a target, or with samples for all; nothing where there
/// are none.
pub(crate) struct Truths {
    noted: Array<Noted>,
    /// Where each depth has its place among a flow's.
    places: [Option<u8>; WORDS_MAX],
    per_flow: usize,
}

impl Truths {
    /// Of depths of tasks with a target; of all, if `of_all`.
    pub fn new(entries: usize, tasks: &Tasks, of_all: bool) -> io::Result<Truths> {
        let (mut places, mut per_flow) = ([None; WORDS_MAX], 0);
        for (depth, place) in tasks.depth_ids().zip(&mut places) {
            if of_all || tasks.task(tasks.of_depth(depth)).config.target.is_some() {
                *place = Some(per_flow);
                per_flow += 1;
            }
        }
        let per_flow = usize::from(per_flow);
        Ok(Truths { noted: Array::new(entries * per_flow)?, places, per_flow })
    }

    #[inline]
    pub fn begin(&mut self, index: u32) {
        if self.per_flow == 0 {
            return;
        }
        self.of_flow(index).iter_mut().for_each(|noted| noted.time_us = NOT_YET);
    }

    /// The flow was reported with these counts.
    pub fn report(&mut self, index: u32, counts: &Counts) {
        let bytes = counts.bytes_total();
        for noted in self.of_flow(index) {
            noted.bytes = noted.bytes.wrapping_sub(bytes);
        }
    }

    fn of_flow(&mut self, index: u32) -> &mut [Noted] {
        let from = index as usize * self.per_flow;
        &mut self.noted[from..from + self.per_flow]
    }

    /// The packet of this time, which was counted, has completed the series of a depth.
    pub fn note(&mut self, entries: &Entries, depth: DepthId, index: u32, time_us: i64) {
        if let Some(place) = self.places[depth.index()] {
            let bytes = entries.bytes_total(index);
            self.of_flow(index)[usize::from(place)] = Noted { bytes, time_us };
        }
    }

    /// When that packet came, µs; `None` if it has not.
    pub fn asked_us(&self, depth: DepthId, index: u32) -> Option<i64> {
        self.noted(depth, index).map(|noted| noted.time_us)
    }

    fn noted(&self, depth: DepthId, index: u32) -> Option<Noted> {
        let place = usize::from(self.places[depth.index()]?);
        let noted = self.noted[index as usize * self.per_flow + place];
        (noted.time_us != NOT_YET).then_some(noted)
    }

    /// What came behind that packet.
    pub fn came(&self, entries: &Entries, depth: DepthId, index: u32) -> Option<Came> {
        let Noted { bytes, time_us } = self.noted(depth, index)?;
        let last_us = entries.hot(index).last_us();
        Some(Came {
            bytes: entries.bytes_total(index).wrapping_sub(bytes),
            us: last_us.saturating_sub(time_us).max(0) as u64,
        })
    }
}

impl Labels {
    /// Holds a task's label of a flow that ends against what came behind the packet that decided,
    /// counts that, and returns the band of which the flow proved to be, if the task has a target
    /// and the band is known. Only an answer that was there while the flow went on counts.
    /// `is_cut`: the flow may have gone on.
    pub fn judge(
        &self,
        flows: &mut Flows,
        task: TaskId,
        index: u32,
        said: &Decision,
        is_cut: bool,
    ) -> Option<u16> {
        let config = &self.tasks.task(task).config;
        let target = config.target.as_ref()?;
        let is_answer = matches!(said.decided_by, DecidedBy::Model | DecidedBy::Cache);
        if !is_answer || said.time_to_label_us.is_none() {
            return None;
        }
        let mut depths = self.tasks.task(task).asked_depths();
        let decided = depths.find(|&depth| self.tasks.k(depth) == usize::from(said.depth))?;
        let came = self.truths.came(&flows.entries, decided, index)?;
        let band = match is_cut {
            true => target.band_of_cut(came, said.class),
            false => Some(target.band(came)),
        };
        if let Some(scores) = flows.counters.scores.get_mut(task.index()) {
            scores.count(said, band, came.bytes);
        }
        band
    }
}
