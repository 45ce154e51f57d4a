//! The end of a flow: its last labels and its last record.

use cring::{Answers, FlowRef, Label};

use super::Settling;
use crate::behaviour::Behaviour;
use crate::counters::count_class;
use crate::entry::Counts;
use crate::ids::Awaited;
use crate::ids::TaskId;
use crate::manager::walk::{Walk, each_part};
use crate::part::Part;
use crate::record::{DecidedBy, Decision, EndReason, Record};
use crate::table::Occupant;

impl<P: Part> Settling<'_, P> {
    /// Counts what is known of a flow only once it has ended; returns its counts.
    #[inline]
    pub(super) fn count_end(
        &mut self,
        occupant: Occupant,
        reason: EndReason,
        at_us: i64,
    ) -> Counts {
        let index = occupant.index;
        // ICMP gives no series.
        let may_give = !self.walk.flows.entries.hot(index).key().is_icmp();
        let is_unasked = may_give && self.walk.rules.is_unasked(index);
        let is_series = may_give && !is_unasked;
        let (tasks, store) = (&self.walk.labels.tasks, &self.walk.series.store);
        let least = tasks.k(tasks.task(TaskId::FIRST).first_asked);
        let flows = &mut self.walk.flows;
        flows.count_lag(occupant, at_us);
        let counts = flows.entries.counts(index);
        let counters = &mut flows.counters;
        counters.flows_ended[reason as usize] += 1;
        counters.flows_unasked += u64::from(is_unasked);
        counters.flows_short += u64::from(is_series && store.seen(index, 0) < least);
        let is_one_way = counts.packets[1] == 0 && !store.went_both_ways(index);
        counters.flows_one_way += u64::from(is_one_way);
        if let Some(behaviours) = &mut self.walk.behaviours {
            behaviours.end_flow(&mut self.walk.flows, index);
            self.walk.ask_for_changes(false);
        }
        if self.walk.services.is_some() {
            self.walk.end_for_service(index, reason, at_us);
        }
        each_part!(self.walk, end(index, &counts));
        counts
    }

    /// Writes the last record of a flow and frees its entry.
    #[inline]
    pub(super) fn finalize(&mut self, occupant: Occupant, reason: EndReason, counts: &Counts) {
        let index = occupant.index;
        let flow = self.walk.flows.entries.flow_ref(index);
        let is_cut = matches!(reason, EndReason::Drain | EndReason::Evicted);
        for task in self.walk.labels.tasks.ids() {
            let decision = match self.was_asked(task, flow) {
                true => self.finalize_label(task, flow),
                false => None,
            };
            let decision = match decision {
                None if task == TaskId::FIRST => self.name_at_end(index),
                _ => decision,
            };
            if let Record::Flow(record) = &mut *self.record {
                record.decisions[task.index()] = None;
                if let Some(decision) = decision {
                    let (labels, flows) = (&self.walk.labels, &mut self.walk.flows);
                    let truth = labels.judge(flows, task, index, &decision, is_cut);
                    record.decisions[task.index()] = Some(Decision { truth, ..decision });
                }
            }
        }
        let of_first = match &*self.record {
            Record::Flow(record) => record.decisions[0],
            _ => None,
        };
        let (labels, flows) = (&self.walk.labels, &mut self.walk.flows);
        let promised = labels.in_effect(flows, index);
        let labelled = match labels.kept.has_deeper() {
            true => labels.tagged(flows, index),
            false => promised,
        };
        flows.confirm(index, of_first, promised, labelled);
        if let Some(record) = self.write_record(index, reason, counts) {
            record.is_half_open = occupant.is_half_open;
            self.say_flow();
            self.say_samples(index, is_cut);
        }
        self.walk.flows.entries.retire(index);
        self.walk.flows.table.free_entry(index);
    }

    /// A sample for each depth that was asked, if the flow gives samples.
    fn say_samples(&mut self, index: u32, is_cut: bool) {
        if !self.walk.labels.is_sampled(&self.walk.flows, index) {
            return;
        }
        for depth in self.walk.labels.tasks.depth_ids() {
            let Walk { flows, series, labels, .. } = &*self.walk;
            let sample = labels.sample(flows, &series.store, (depth, index), is_cut);
            if let (Some(sample), Some(out)) = (sample, &mut self.out) {
                out(&mut Record::Sample(sample));
            }
        }
    }

    /// Whether a task was asked about a flow, or has named it. Most flows are short.
    #[inline]
    fn was_asked(&self, task: TaskId, flow: FlowRef) -> bool {
        let depth = self.walk.labels.tasks.task(task).first;
        let label = self.walk.flows.entries.label_of(Awaited { flow, depth });
        !matches!(label, None | Some(Label::None))
    }

    /// The final label of an ended flow for a task: by a sure answer, or by the last depth's. A
    /// flow that ended earlier, without a sure answer, is named by its port, or else by its best
    /// answer. A label that the port gave with the first packet stands unless an answer contradicts
    /// it.
    #[inline(never)]
    fn finalize_label(&mut self, task: TaskId, flow: FlowRef) -> Option<Decision> {
        let (first, depths) = self.walk.labels.tasks.span(task);
        let asked = Awaited { flow, depth: first };
        for depth in self.walk.labels.tasks.task(task).all_depths() {
            // The word tells the analytics side that its label is too late; otherwise the label
            // might come after the record was made, and count as given.
            self.walk.flows.entries.give_up(Awaited { flow, depth });
        }
        let last = first.behind(depths - 1);
        self.emit_label(Awaited { flow, depth: last });
        let (labels, flows) = (&self.walk.labels, &self.walk.flows);
        let answers = labels.answers(flows, task, flow.index, None);
        debug_assert_ne!(answers, Answers::Pending, "all were given up");
        let decision = match answers {
            Answers::Decided { .. } | Answers::ByPort => labels.decision(flows, asked)?,
            Answers::Unsure { best } => {
                let best = Awaited { flow, depth: first.behind(best?) };
                let decision = labels.answer(flows, best, None);
                if task == TaskId::FIRST {
                    if let Some(by_port) = self.name_at_end(flow.index) {
                        return Some(by_port);
                    }
                    self.walk.flows.counters.flows_unsure += 1;
                }
                decision?
            }
            Answers::Pending => return None,
        };
        if task == TaskId::FIRST && depths > 1 && matches!(answers, Answers::Decided { .. }) {
            // The last answer may be that the flow is unknown.
            let classes = self.walk.labels.tasks.task(task).config.classes;
            let is_unknown = usize::from(decision.class) + 1 >= classes;
            if is_unknown && let Some(by_port) = self.name_at_end(flow.index) {
                return Some(by_port);
            }
        }
        let counters = &mut self.walk.flows.counters;
        let is_by_port = task == TaskId::FIRST && decision.decided_by == DecidedBy::Port;
        counters.flows_by_port += u64::from(is_by_port);
        count_class(&mut counters.depths[first.index()].flows_labelled, decision.class);
        Some(decision)
    }

    /// The label that an ended flow gets from its port; none without an element of a series,
    /// because a SYN that nobody answers is not what the port is for.
    fn name_at_end(&mut self, index: u32) -> Option<Decision> {
        let ports = &self.walk.labels.tasks.task(TaskId::FIRST).config.ports;
        if ports.is_empty() || self.walk.series.store.seen(index, 0) == 0 {
            return None;
        }
        let subject = self.walk.subject(index);
        let (labels, flows) = (&mut self.walk.labels, &mut self.walk.flows);
        labels.name_at_end(flows, &subject)
    }
}

impl<P: Part> Walk<P> {
    /// The behaviour of a flow that has ended: what it was before it fell silent.
    pub(super) fn last_behaviour(&self, index: u32) -> Behaviour {
        let behaviours = self.behaviours.as_ref();
        behaviours.map_or_else(Default::default, |it| it.active(index))
    }
}
