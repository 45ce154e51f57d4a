//! One flow, one model: a flow is answered at all its depths by the model that answered it first.
//!
//! After a swap the task keeps the model before until the next swap. It answers
//!
//! * series that waited at the commit, because it may have answered their flows at another depth;
//! * series of flows that it has answered, or is about to answer, at a lesser depth.
//!
//! They are the retries of a [`Dispatch`] of its own: fired as soon as one of its devices is free,
//! whatever the policy, and without the cache. All other series are for the model in use.
//!
//! A flow whose model has gone, two swaps ago, gets no further answer: those that it has decide.
//!
//! A flow's model is found in its label words. Only its task writes answers there, and a flow's
//! series come down one ring in their order, so a look at the lesser depths is enough.

use super::rings::Rings;
use super::swap::Swaps;
use crate::DeviceState;
use crate::counters::Phases;
use crate::device_slot::{DeviceSlot, Model};
use crate::dispatch::Dispatch;
use crate::rows::{Retry, Row};
use cring::{FlowRef, Label, Labels, Series, Slot, Source};

/// The least number of series that a kept model has room for.
const ROOM_LEAST: usize = 256;

/// The devices of a model that is not in use any more, and the series that are for it.
pub(super) struct Kept {
    pub generation: u16,
    pub dispatch: Dispatch,
    /// The devices' places in the task.
    numbers: Vec<usize>,
    /// How many series may wait for it.
    room: usize,
}

/// A flow's answers at lesser depths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lesser {
    /// There are none, and none is on its way.
    None,
    /// One is on its way.
    Pending,
    /// By the model of this generation.
    By(u16),
}

impl Lesser {
    /// `words`: the label word of the least depth, and the word of the depth that asks.
    pub fn of(labels: &dyn Labels, words: (u8, u8), flow: FlowRef) -> Lesser {
        let mut lesser = Lesser::None;
        for word in words.0..words.1 {
            match labels.word(word, flow.index).label(flow.generation) {
                Some(Label::Class { source: Source::Model | Source::Cache, model, .. }) => {
                    return Lesser::By(model);
                }
                Some(Label::Pending) => lesser = Lesser::Pending,
                _ => {}
            }
        }
        lesser
    }

    /// Whether a label for the next depth comes from the same model.
    pub fn agrees(self, label: Label) -> bool {
        match (self, label) {
            (Lesser::By(generation), Label::Class { model, .. }) => model == generation,
            _ => true,
        }
    }
}

/// The models that a task has, while it sorts out series.
pub(super) struct Models<'a> {
    /// The label word of the least depth.
    pub word: u8,
    pub in_use: &'a Dispatch,
    pub swaps: &'a mut Swaps,
}

/// Which model a series is for.
pub(super) enum Whose<'a> {
    InUse,
    Before(&'a mut Kept),
    /// One that is not there any more.
    Gone,
}

impl Models<'_> {
    /// Whether flows may have begun with another model than the one in use.
    pub fn are_several(&self) -> bool {
        self.swaps.model.swap > 0
    }

    pub fn whose(&mut self, labels: &dyn Labels, ring_input: usize, slot: &Slot) -> Whose<'_> {
        let (flow, Swaps { before, swap, model, .. }) = (slot.flow, &mut *self.swaps);
        match Lesser::of(labels, (self.word, slot.series.task), flow) {
            Lesser::By(generation) if generation != model.generation => match before {
                Some(before) if before.generation == generation => Whose::Before(before),
                _ => Whose::Gone,
            },
            Lesser::Pending => {
                let has = |kept: &Kept| kept.has(ring_input, flow);
                let leaving = swap.as_ref().and_then(|swap| swap.leaving.as_ref());
                let mut rows = self.in_use.in_flight();
                let is_old =
                    |(by, row): (Model, &Row)| by.swap != model.swap && row.is_of(ring_input, flow);
                match before {
                    Some(before) if has(before) || rows.any(is_old) => Whose::Before(before),
                    _ if leaving.is_some_and(has) => Whose::Gone,
                    _ => Whose::InUse,
                }
            }
            _ => Whose::InUse,
        }
    }
}

impl Kept {
    /// Without devices and series yet.
    pub fn new(generation: u16) -> Kept {
        Kept { generation, dispatch: Dispatch::new(Vec::new()), numbers: Vec::new(), room: 0 }
    }

    /// Takes over all series that wait for the devices in use, and makes room for those to come.
    /// Allocates.
    pub fn take_over(
        &mut self,
        in_use: &mut Dispatch,
        rings: &mut Rings,
        now_ns: u64,
        phases: &mut Phases,
    ) {
        let series = rings.waiting() + in_use.retries.len();
        self.room = series.max(ROOM_LEAST);
        // A batch that fails comes back.
        self.dispatch.retries.reserve(self.room + in_use.capacity());
        self.dispatch.retries.append(&mut in_use.retries);
        let retries = &mut self.dispatch.retries;
        rings.hand_over(|row, series, seen_ns| {
            phases.ring_waited(seen_ns.saturating_sub(row.emitted_ns));
            phases.batch_waited(now_ns.saturating_sub(seen_ns), 1);
            retries.push_back(Retry { row, series: *series });
        });
    }

    /// A series of a flow that began with this model.
    pub fn take(&mut self, row: Row, series: &Series) {
        self.dispatch.retries.push_back(Retry { row, series: *series });
    }

    /// Takes the device with this number, which was in use until now.
    pub fn add(&mut self, number: usize, device: DeviceSlot) {
        let at = self.numbers.partition_point(|it| *it < number);
        self.numbers.insert(at, number);
        self.dispatch.device_slots.insert(at, device);
    }

    /// Whether another series may be taken.
    pub fn has_room(&self) -> bool {
        self.dispatch.retries.len() < self.room
    }

    /// Whether a series of this flow is under way here.
    pub fn has(&self, ring_input: usize, flow: FlowRef) -> bool {
        let retries = self.dispatch.retries.iter().map(|retry| &retry.row);
        let mut rows = retries.chain(self.dispatch.in_flight().map(|(_, row)| row));
        rows.any(|row| row.is_of(ring_input, flow))
    }

    /// Whether none of its devices hangs, so that it can be brought back into use.
    pub fn can_come_back(&self) -> bool {
        self.dispatch.device_slots.iter().all(|slot| slot.state() != DeviceState::Hung)
    }
}
