//! Which model of a task a series is for: the one that answered its flow first ([`super::kept`]).
//!
//! A flow's model is found in its label words. Only its task writes answers there, and a flow's
//! series come down one ring in their order, so a look at the lesser depths is enough.

use super::canary;
use super::kept::Kept;
use super::swap::Swaps;
use crate::device_slot::Model;
use crate::dispatch::Dispatch;
use crate::rows::Row;
use cring::{FlowRef, Label, Labels, Slot, Source};

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
    /// The one before, or the canary.
    Kept(&'a mut Kept),
    /// One that is not there any more.
    Gone,
}

impl Models<'_> {
    /// Whether flows may have begun, or begin, with another model than the one in use.
    pub fn are_several(&self) -> bool {
        self.swaps.come > 0
    }

    pub fn whose(&mut self, labels: &dyn Labels, ring_input: usize, slot: &Slot) -> Whose<'_> {
        let (flow, Swaps { before, swap, model, canary, .. }) = (slot.flow, &mut *self.swaps);
        match Lesser::of(labels, (self.word, slot.series.task), flow) {
            Lesser::By(generation) if generation != model.generation => {
                let mut kept = before.iter_mut().chain(canary);
                kept.find(|kept| kept.model.generation == generation)
                    .map_or(Whose::Gone, Whose::Kept)
            }
            Lesser::Pending => {
                let has = |kept: &Kept| kept.has(ring_input, flow);
                let leaving = swap.as_ref().and_then(|swap| swap.leaving.as_ref());
                let mut rows = self.in_use.in_flight();
                let is_old =
                    |(by, row): (Model, &Row)| by.swap != model.swap && row.is_of(ring_input, flow);
                match (before, canary) {
                    (Some(before), _) if has(before) || rows.any(is_old) => Whose::Kept(before),
                    (_, Some(canary)) if has(canary) => Whose::Kept(canary),
                    _ if leaving.is_some_and(has) => Whose::Gone,
                    _ => Whose::InUse,
                }
            }
            Lesser::None => match canary {
                Some(canary) if canary::takes(canary, self.word, slot) => Whose::Kept(canary),
                _ => Whose::InUse,
            },
            Lesser::By(_) => Whose::InUse,
        }
    }
}
