//! The end of a flow: its last labels and its last record.

use cring::{Answers, FlowRef, Label};

use super::{Awaited, Out, count_class};
use crate::config::OTHERS_MAX;
use crate::manager::Manager;
use crate::record::{DecidedBy, Decision, EndReason, Record};
use crate::table::Occupant;

impl Manager {
    /// Counts what can only be said of a flow once it has ended.
    pub(super) fn count_end(&mut self, occupant: Occupant, reason: EndReason, at_us: i64) {
        let index = occupant.index;
        let timed = self.as_timed(occupant);
        let is_unasked = self
            .rules
            .as_ref()
            .is_some_and(|rules| rules.is_unasked(index));
        let counters = &mut self.counters;
        counters.flows_ended[reason as usize] += 1;
        counters.flows_unasked += u64::from(is_unasked);
        let first_asked = &self.config.tasks[usize::from(self.tasks.task(0).first_asked)];
        counters.flows_short +=
            u64::from(!is_unasked && self.series.seen(index, 0) < first_asked.k);
        let is_one_way =
            self.entries.counts(index).packets[1] == 0 && !self.series.went_both_ways(index);
        counters.flows_one_way += u64::from(is_one_way);
        self.end_behaviour(index);
        let hot = self.entries.hot(index);
        let over_us = self.lifetimes.over_us(hot.last_us, timed);
        // One that ended before, because the input did or another flow took its place, was not late.
        if let Some(lag_us) = over_us.and_then(|over_us| at_us.checked_sub(over_us))
            && lag_us >= 0
        {
            self.counters.expiry_lag.count(lag_us as u64);
        }
    }

    /// The last record of a flow, after which its entry is free.
    pub(super) fn finalize(
        &mut self,
        occupant: Occupant,
        reason: EndReason,
        now_ns: u64,
        out: &mut Out<'_>,
    ) {
        let index = occupant.index;
        let flow = self.entries.flow_ref(index);
        let decision = match self.has_depths {
            true => self.finalize_depths(flow, now_ns, out),
            false => self.finalize_label(Awaited { flow, task: 0 }, now_ns, out),
        };
        let decision = decision.or_else(|| self.name_by_port(index));
        let others = match self.has_more_tasks {
            true => self.finalize_other_labels(flow, now_ns, out),
            false => [None; OTHERS_MAX],
        };
        let promised = self.in_effect(index);
        let labelled = match self.has_depths {
            true => self.tagged_of(flow, &self.in_effect_by_depth(index)),
            false => promised,
        };
        self.confirm(index, decision, promised, labelled);
        if let Some(out) = out {
            let mut record = self.flow_record(index, reason);
            record.decision = decision;
            record.is_half_open = occupant.is_half_open;
            record.others = others;
            out(Record::Flow(record));
        }
        self.entries.retire(index);
        self.table.free_entry(index);
    }

    /// The label that an ended flow has for a task, for good.
    #[inline]
    fn finalize_label(
        &mut self,
        awaited: Awaited,
        now_ns: u64,
        out: &mut Out<'_>,
    ) -> Option<Decision> {
        match self.label_of(awaited) {
            // Most flows are short and have never asked.
            None | Some(Label::None) => return None,
            Some(Label::Pending) => self.give_up(awaited),
            Some(_) => {}
        }
        self.emit_label(awaited, now_ns, out);
        let decision = self.decision(awaited)?;
        let counters = &mut self.counters.tasks[usize::from(awaited.task)];
        count_class(&mut counters.flows_labelled, decision.class);
        Some(decision)
    }

    /// A label that is not here by now is too late. The analytics side learns so from the word; otherwise its label might
    /// slip in after the record was made, and count as given.
    fn give_up(&self, Awaited { flow, task }: Awaited) {
        let word = self.entries.word(task, flow.index);
        let _ = word.decide(flow.generation, Label::Unlabelled);
    }

    /// The same where there are several depths: the label of an ended flow, by an answer that is sure, or by the last one.
    /// One that ended before, and whose answers were not sure, is named by its port, or else by the best of them. Where the port has
    /// named it with its first packet, that stands unless an answer contradicts it.
    fn finalize_depths(
        &mut self,
        flow: FlowRef,
        now_ns: u64,
        out: &mut Out<'_>,
    ) -> Option<Decision> {
        if self.label_of(Awaited { flow, task: 0 }) == Some(Label::None) {
            return None;
        }
        for task in 0..self.depths.count() {
            let awaited = Awaited { flow, task };
            if self.is_pending(awaited) {
                self.give_up(awaited);
            }
        }
        let deepest = self.depths.count() - 1;
        self.emit_label(
            Awaited {
                flow,
                task: deepest,
            },
            now_ns,
            out,
        );
        let decision = match self.answers(flow.index, self.depths.count()) {
            Answers::Decided { .. } => {
                let decision = self.decision(Awaited { flow, task: 0 })?;
                // The last answer may be that the flow is unknown.
                let is_unknown = usize::from(decision.class) + 1 >= self.config.tasks[0].classes;
                if is_unknown && let Some(by_port) = self.name_by_port(flow.index) {
                    return Some(by_port);
                }
                self.counters.flows_by_port += u64::from(decision.decided_by == DecidedBy::Port);
                decision
            }
            Answers::ByPort => {
                self.counters.flows_by_port += 1;
                self.decision(Awaited { flow, task: 0 })?
            }
            Answers::Unsure { best: Some(task) } => {
                if let Some(by_port) = self.name_by_port(flow.index) {
                    return Some(by_port);
                }
                self.counters.flows_unsure += 1;
                self.answer(Awaited { flow, task }, None)?
            }
            Answers::Unsure { best: None } | Answers::Pending => return None,
        };
        let counters = &mut self.counters.tasks[0];
        count_class(&mut counters.flows_labelled, decision.class);
        Some(decision)
    }

    /// The same for all tasks but the first, in their order.
    fn finalize_other_labels(
        &mut self,
        flow: FlowRef,
        now_ns: u64,
        out: &mut Out<'_>,
    ) -> [Option<Decision>; OTHERS_MAX] {
        let mut others = [None; OTHERS_MAX];
        for (task, label) in (1..self.tasks.count() as u8).zip(&mut others) {
            let (first, depths) = self.depths_of(task);
            *label = match depths {
                1 => self.finalize_label(Awaited { flow, task: first }, now_ns, out),
                _ => self.finalize_depths_of(task, flow, now_ns, out),
            };
        }
        others
    }

    /// As [`Manager::finalize_depths`], of another task than the first: a sure answer, the last one, or else the best.
    fn finalize_depths_of(
        &mut self,
        number: u8,
        flow: FlowRef,
        now_ns: u64,
        out: &mut Out<'_>,
    ) -> Option<Decision> {
        let (first, depths) = self.depths_of(number);
        if self.label_of(Awaited { flow, task: first }) == Some(Label::None) {
            return None;
        }
        for task in first..first + depths {
            let awaited = Awaited { flow, task };
            if self.is_pending(awaited) {
                self.give_up(awaited);
            }
        }
        let task = first + depths - 1;
        self.emit_label(Awaited { flow, task }, now_ns, out);
        let decision = match self.answers_of(number, flow.index, None) {
            Answers::Decided { .. } | Answers::ByPort => {
                self.decision(Awaited { flow, task: first })?
            }
            Answers::Unsure { best } => {
                let task = first + best?;
                self.answer(Awaited { flow, task }, None)?
            }
            Answers::Pending => return None,
        };
        let counters = &mut self.counters.tasks[usize::from(first)];
        count_class(&mut counters.flows_labelled, decision.class);
        Some(decision)
    }
}
