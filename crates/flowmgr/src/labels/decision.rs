//! What the answers of a flow's depths come to, and which label that is.

use cring::{Answers, FlowRef, Label, Source};

use super::Labels;
use super::kept::NOT_IN_EFFECT;
use super::walk::counts_at;
use crate::config::Effect;
use crate::entry::{STATE_EMITTED, STATE_IN_EFFECT};
use crate::flows::Flows;
use crate::ids::Awaited;
use crate::ids::{DepthId, TaskId};
use crate::outbox::{InEffect, InEffectByDepth};
use crate::record::Decision;

/// An answer that decides a label.
pub(crate) struct Deciding {
    /// The label, under its task's first depth.
    pub awaited: Awaited,
    /// The depth that gave it.
    pub by: DepthId,
    /// The flow had another label by its port before.
    pub contradicts: bool,
}

impl Labels {
    /// What the answers of a task's first `count` depths resolve to; of all depths if `None`.
    pub fn answers(&self, flows: &Flows, task: TaskId, index: u32, count: Option<u8>) -> Answers {
        let task = self.tasks.task(task);
        let count = count.unwrap_or(task.depths());
        if let Some(depth) = self.kept.decided(task.first, index)
            && depth < count
        {
            return Answers::Decided { depth };
        }
        let label = |depth| Some(flows.entries.word(task.first.behind(depth), index).read().1);
        task.resolve(count, label)
    }

    /// The class of a flow's label for a task, by the answers so far.
    pub fn class_of_task(&self, flows: &Flows, task: TaskId, index: u32) -> Option<u16> {
        let Answers::Decided { depth } = self.answers(flows, task, index, None) else {
            return self.class_by_port(flows, task, index);
        };
        let first = self.tasks.task(task).first;
        match flows.entries.word(first.behind(depth), index).read() {
            (_, Label::Class { class, .. }) => Some(class),
            _ => None,
        }
    }

    /// The class of a flow's label for a task, if the label counts at this time.
    pub fn class_at(&self, flows: &Flows, task: TaskId, index: u32, time_us: i64) -> Option<u16> {
        let class = self.class_of_task(flows, task, index)?;
        let Effect::PacketTime { delay_us } = flows.effect else { return Some(class) };
        let rank = match self.answers(flows, task, index, None) {
            Answers::Decided { depth } => depth,
            _ => 0,
        };
        let depth = self.tasks.task(task).first.behind(rank);
        let emitted_us = self.kept.emitted_at(&flows.entries, depth, index);
        counts_at(time_us, emitted_us, delay_us).then_some(class)
    }

    /// Whether a task has its label already, so that no greater depth has to be asked.
    pub fn is_decided(&mut self, flows: &mut Flows, index: u32, task: TaskId) -> bool {
        match task {
            TaskId::FIRST if self.class_by_port(flows, task, index).is_none() => {
                self.has_decided(flows, index)
            }
            _ => matches!(self.answers(flows, task, index, None), Answers::Decided { .. }),
        }
    }

    /// The label that an answer decides; `None` if it decides nothing.
    ///
    /// Among several depths it need not be the awaited one that decides: an earlier depth's answer
    /// may still be on its way, and then brings the label of both. The label counts as the first
    /// depth's.
    pub fn deciding(&mut self, flows: &mut Flows, awaited: Awaited) -> Option<Deciding> {
        let Awaited { flow, depth } = awaited;
        let task = self.tasks.of_depth(depth);
        let (first, depths) = self.tasks.span(task);
        if depths == 1 {
            let is_class = matches!(flows.entries.label_of(awaited), Some(Label::Class { .. }));
            return is_class.then_some(Deciding { awaited, by: depth, contradicts: false });
        }
        // The entry may be another flow's by now.
        flows.entries.label_of(awaited)?;
        let count = match flows.effect {
            Effect::Arrival => depths,
            // Deeper answers may be here already.
            Effect::PacketTime { .. } => depth.rank(first) + 1,
        };
        let answers = self.answers(flows, task, flow.index, Some(count));
        let Answers::Decided { depth: rank } = answers else {
            return None;
        };
        let contradicts = self
            .class_by_port(flows, task, flow.index)
            .filter(|_| rank > 0 && self.kept.contradicts(first, flow.index).is_none());
        match (task, flows.effect) {
            // The walk looks only at the first word.
            (TaskId::FIRST, Effect::Arrival) => {
                self.decide(flows, flow.index);
            }
            _ => self.kept.set_decided(first, flow.index, rank),
        }
        if let Some(class) = contradicts {
            // The flow has another label from now on, which is recorded again.
            self.kept.set_contradicts(first, flow.index, class);
            self.kept.set_time_to_label_us(&mut flows.entries, first, flow.index, None);
            flows.counters.depths[first.index()].flows_contradicting += 1;
        }
        Some(Deciding {
            awaited: Awaited { flow, depth: first },
            by: first.behind(rank),
            contradicts: contradicts.is_some(),
        })
    }

    /// The label that its port gave the flow of an answer, for the same task.
    pub fn named_by_port(
        &self,
        flows: &Flows,
        Awaited { flow, depth }: Awaited,
    ) -> Option<Awaited> {
        let task = self.tasks.of_depth(depth);
        let depth = self.tasks.task(task).first;
        let awaited = Awaited { flow, depth };
        // The entry may be another flow's by now.
        flows.entries.label_of(awaited)?;
        self.class_by_port(flows, task, flow.index).map(|_| awaited)
    }

    /// Whether a label may come yet for an answer that is awaited.
    pub fn is_on_its_way(&self, flows: &Flows, awaited: Awaited) -> bool {
        let task = self.tasks.of_depth(awaited.depth);
        let (first, depths) = self.tasks.span(task);
        match depths > 1 && flows.entries.label_of(awaited).is_some() {
            true => {
                let count = Some(awaited.depth.rank(first) + 1);
                self.answers(flows, task, awaited.flow.index, count) == Answers::Pending
            }
            false => flows.entries.is_pending(awaited),
        }
    }

    /// A task's label of a flow in the table by the answers so far, whether or not it was recorded,
    /// and the depth that decided.
    pub fn decision_now(&self, flows: &Flows, task: TaskId, index: u32) -> Option<(u8, Decision)> {
        let depth = match self.answers(flows, task, index, None) {
            Answers::Decided { depth } => depth,
            _ => self.class_by_port(flows, task, index).map(|_| 0)?,
        };
        let first = self.tasks.task(task).first;
        let took_us = self.kept.time_to_label_us(&flows.entries, first, index);
        let awaited = Awaited { flow: flows.entries.flow_ref(index), depth: first.behind(depth) };
        Some((depth, self.answer(flows, awaited, took_us)?))
    }

    /// The label of a flow for a task, by the number of its first depth; with several depths, the
    /// label that they have decided on.
    pub fn decision(&self, flows: &Flows, awaited: Awaited) -> Option<Decision> {
        let Awaited { flow, depth: first } = awaited;
        let time_to_label_us = self.kept.time_to_label_us(&flows.entries, first, flow.index);
        let task = self.tasks.of_depth(first);
        if self.tasks.task(task).depths() == 1 {
            return self.answer(flows, awaited, time_to_label_us);
        }
        let decided = self.kept.decided(first, flow.index);
        let by_port = self.class_by_port(flows, task, flow.index).map(|_| 0);
        let depth = first.behind(decided.or(by_port)?);
        debug_assert_eq!(self.tasks.of_depth(depth), task);
        self.answer(flows, Awaited { flow, depth }, time_to_label_us)
    }

    pub fn answer(
        &self,
        flows: &Flows,
        awaited: Awaited,
        time_to_label_us: Option<u32>,
    ) -> Option<Decision> {
        match flows.entries.label_of(awaited)? {
            Label::Class { class, confidence, source, model } => {
                let Awaited { flow, depth: by } = awaited;
                let depth = match source {
                    Source::Port | Source::Rule => 0,
                    Source::Model | Source::Cache => self.tasks.k(by) as u8,
                };
                let first = self.tasks.task(self.tasks.of_depth(by)).first;
                Some(Decision {
                    class,
                    confidence,
                    decided_by: source.into(),
                    depth,
                    model,
                    contradicts: self.kept.contradicts(first, flow.index),
                    time_to_label_us,
                    truth: None,
                })
            }
            _ => None,
        }
    }

    /// Packets and bytes since the last record for which the label counts, where
    /// packet time decides.
    #[inline]
    pub fn in_effect(&self, flows: &Flows, index: u32) -> InEffect {
        let is_arrival = flows.effect == Effect::Arrival;
        let hot = flows.entries.hot(index);
        if is_arrival || !hot.has(STATE_EMITTED | STATE_IN_EFFECT) {
            return InEffect::default();
        }
        let cold = flows.entries.cold(index);
        flows.since(index, cold.packets_before, cold.bytes_before)
    }

    /// The same for a depth of the first task, if its answer should decide.
    fn in_effect_of(&self, flows: &Flows, index: u32, rank: u8) -> InEffect {
        let Some(at) = usize::from(rank).checked_sub(1) else {
            return self.in_effect(flows, index);
        };
        match self.kept.deeper(index).get(at) {
            Some(depth) if depth.packets_before != NOT_IN_EFFECT => {
                flows.since(index, depth.packets_before, depth.bytes_before)
            }
            _ => InEffect::default(),
        }
    }

    /// The same for each depth.
    fn in_effect_by_depth(&self, flows: &Flows, index: u32) -> InEffectByDepth {
        std::array::from_fn(|rank| self.in_effect_of(flows, index, rank as u8))
    }

    /// At a flow's active timeout: keeps what its record needs later, where there are several
    /// depths.
    pub fn note_in_effect(&self, flows: &mut Flows, index: u32) {
        if self.kept.has_deeper() {
            let by_depth = self.in_effect_by_depth(flows, index);
            flows.outbox.note_in_effect(by_depth);
        }
    }

    /// The packets promised as labelled, from the deciding depth on; none where no depth has
    /// decided.
    pub fn tagged(&self, flows: &Flows, index: u32) -> InEffect {
        let decided = self.kept.decided(DepthId::FIRST, index);
        decided.map_or_else(InEffect::default, |rank| self.in_effect_of(flows, index, rank))
    }

    /// The same of what [`Labels::note_in_effect`] kept.
    pub fn tagged_of(&self, flow: FlowRef, by_depth: &InEffectByDepth) -> InEffect {
        let decided = self.kept.decided(DepthId::FIRST, flow.index);
        decided.map_or_else(InEffect::default, |depth| by_depth[usize::from(depth)])
    }
}
