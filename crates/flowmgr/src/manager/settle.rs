//! Turns the ended flows and arrived labels that wait in the outbox into records, see
//! [`crate::outbox`].

mod ending;

use cring::{Feature, TASKS_MAX};

use super::walk::{Walk, each_part};
use crate::config::Effect;
use crate::counters::count_class;
use crate::entry::{Counts, LABEL_NOT_EMITTED};
use crate::ids::Awaited;
use crate::ids::{DepthId, TaskId};
use crate::outbox::{Event, LABELS_LOOKED_AT, Report};
use crate::part::Part;
use crate::record::{
    BehaviourRecord, DecidedBy, Decision, EndReason, FlowRecord, LabelRecord, Record, SeriesRecord,
};

/// The consumer of the records, if there is one.
pub(super) type Out<'a> = Option<&'a mut dyn FnMut(&mut Record)>;

/// The labels of a flow, by task.
type Decisions = [Option<Decision>; TASKS_MAX];

/// Events ahead of the current one whose memory is prefetched: most flows that end are out of the
/// cache.
const AHEAD: usize = 16;

/// A walk whose outbox is being emptied.
pub(super) struct Settling<'a, P> {
    pub walk: &'a mut Walk<P>,
    /// The clock of [`crate::Manager::burst`].
    pub now_ns: u64,
    pub out: Out<'a>,
    /// Where flows' records are written, one after the other: they are large, and a copy of one
    /// takes as long as a packet.
    pub record: &'a mut Record,
}

impl<P: Part> Settling<'_, P> {
    /// Records what is ready, `most` events at most; returns how many there were. See
    /// [`crate::Manager::settle`].
    pub fn settle(&mut self, written: u64, most: usize) -> usize {
        // Before ends, so that a flow that has ended since still has its entry.
        self.tell_changes();
        self.prefetch_ended(0..AHEAD);
        let mut settled = 0;
        while let Some(&event) = self.walk.flows.outbox.events.front() {
            if settled == most || !self.is_ready(event, written) {
                break;
            }
            settled += 1;
            self.prefetch_ended(AHEAD..AHEAD + 1);
            self.walk.flows.outbox.events.pop_front();
            match event {
                Event::Label(awaited) => self.emit_label(awaited),
                Event::Active => {
                    if let Some(report) = self.walk.flows.outbox.reports.pop_front() {
                        self.report(report);
                    }
                }
                Event::Ended { occupant, reason, at_us, .. } => {
                    let counts = self.count_end(occupant, reason, at_us);
                    self.finalize(occupant, reason, &counts);
                }
            }
        }
        // Only where every flow that has ended is finalized: otherwise a flow's label could come
        // before an earlier flow's with the same addresses and ports, whose mark would then be set
        // last.
        if self.walk.flows.outbox.events.is_empty() {
            self.emit_given_labels();
            self.emit_labels_in_order();
            self.emit_labels_out_of_order();
        }
        each_part!(self.walk, settle());
        let flows = &mut self.walk.flows;
        if let Some(servers) = &flows.servers {
            flows.counters.servers = servers.counters();
        }
        settled
    }

    fn tell_changes(&mut self) {
        let changes = std::mem::take(&mut self.walk.flows.outbox.changes);
        if let Some(out) = &mut self.out {
            for changed in &changes {
                out(&mut Record::Behaviour(BehaviourRecord {
                    flow: self.walk.flows.name(changed.flow.index),
                    time_us: changed.at_us,
                    behaviour: changed.behaviour,
                }));
            }
        }
        self.walk.flows.outbox.changes = changes;
        self.walk.flows.outbox.changes.clear();
    }

    /// Emits labels that flows got with their first packets.
    fn emit_given_labels(&mut self) {
        while let Some(given) = self.walk.flows.outbox.given.pop_front() {
            self.emit_label(given);
        }
    }

    /// Emits the labels that have come, in the order of their series, up to the first that has not.
    fn emit_labels_in_order(&mut self) {
        while let Some(&awaited) = self.walk.flows.outbox.awaited.front() {
            if self.walk.flows.entries.is_pending(awaited) {
                break;
            }
            self.walk.flows.outbox.awaited.pop_front();
            self.emit_label(awaited);
        }
    }

    /// Emits labels out of order, looking at a few of the awaited ones in turn: a cache hit or a
    /// faster device must not wait behind a device that is slow or hangs.
    fn emit_labels_out_of_order(&mut self) {
        for _ in 0..self.walk.flows.outbox.awaited.len().min(LABELS_LOOKED_AT) {
            if self.walk.flows.outbox.awaited_at >= self.walk.flows.outbox.awaited.len() {
                self.walk.flows.outbox.awaited_at = 0;
            }
            let at = self.walk.flows.outbox.awaited_at;
            let Some(&awaited) = self.walk.flows.outbox.awaited.get(at) else {
                break;
            };
            if self.walk.flows.entries.is_pending(awaited) {
                self.walk.flows.outbox.awaited_at += 1;
                continue;
            }
            // The last one takes its place and is looked at next; the front, which is the oldest,
            // stays.
            self.walk.flows.outbox.awaited.swap_remove_back(at);
            self.emit_label(awaited);
        }
    }

    fn is_ready(&self, event: Event, written: u64) -> bool {
        if self.walk.flows.effect == Effect::Arrival {
            return true;
        }
        match event {
            Event::Label(awaited) => !self.walk.flows.entries.is_pending(awaited),
            Event::Active => {
                let Walk { flows, labels, .. } = &*self.walk;
                let report = flows.outbox.reports.front();
                report.is_none_or(|&Report { flow, ref series_seen, .. }| {
                    labels.tasks.depth_ids().all(|depth| {
                        // A series completed after the report's moment does not belong to it.
                        !labels.tasks.is_due(depth, series_seen)
                            || !flows.entries.is_pending(Awaited { flow, depth })
                    })
                })
            }
            Event::Ended { occupant, position, .. } => {
                let flow = self.walk.flows.entries.flow_ref(occupant.index);
                position <= written
                    && self
                        .walk
                        .labels
                        .tasks
                        .depth_ids()
                        .all(|depth| !self.walk.flows.entries.is_pending(Awaited { flow, depth }))
            }
        }
    }

    /// Records a flow's label once. A label by port and one that contradicts it are recorded once
    /// each.
    fn emit_label(&mut self, awaited: Awaited) {
        let (labels, flows) = (&mut self.walk.labels, &mut self.walk.flows);
        if let Some(by_port) = labels.named_by_port(flows, awaited) {
            self.say_label(by_port, by_port.depth);
        }
        let (labels, flows) = (&mut self.walk.labels, &mut self.walk.flows);
        if let Some(deciding) = labels.deciding(flows, awaited) {
            let is_first = labels.tasks.of_depth(deciding.awaited.depth) == TaskId::FIRST;
            if deciding.contradicts && is_first && flows.effect == Effect::Arrival {
                self.walk.note_other_label(awaited.flow.index);
            }
            self.say_label(deciding.awaited, deciding.by);
        }
    }

    fn say_label(&mut self, awaited: Awaited, decided_by: DepthId) {
        let Awaited { flow, depth } = awaited;
        let (labels, flows) = (&mut self.walk.labels, &mut self.walk.flows);
        let kept = &mut labels.kept;
        if kept.time_to_label_us(&flows.entries, depth, flow.index).is_some() {
            return;
        }
        debug_assert_eq!(labels.tasks.of_depth(depth), labels.tasks.of_depth(decided_by));
        let emitted_at = kept.emitted_at(&flows.entries, decided_by, flow.index);
        let is_by_rule = self.walk.rules.is_labelled(flow.index);
        let is_by_port = labels.tasks.k(decided_by) == 0 && !is_by_rule;
        let (time_us, took_us) = match flows.effect {
            _ if is_by_port => (flows.entries.cold(flow.index).first_us, 0),
            Effect::Arrival => {
                let took_ns = self.now_ns.saturating_sub(emitted_at as u64);
                (self.walk.arrivals.time_us(self.now_ns), took_ns / 1000)
            }
            Effect::PacketTime { delay_us } => {
                (emitted_at.saturating_add(delay_us), delay_us as u64)
            }
        };
        let took_us = match is_by_rule {
            true => 0,
            false => took_us,
        };
        let took_us = took_us.min(u64::from(LABEL_NOT_EMITTED - 1)) as u32;
        kept.set_time_to_label_us(&mut flows.entries, depth, flow.index, Some(took_us));
        let Some(decision) = labels.decision(flows, awaited) else {
            return;
        };
        let counters = &mut flows.counters.depths;
        count_class(&mut counters[depth.index()].labels_given, decision.class);
        let is_answer = !matches!(decision.decided_by, DecidedBy::Port | DecidedBy::Rule);
        counters[decided_by.index()].flows_decided += u64::from(is_answer);
        let task = labels.tasks.of_depth(depth);
        match task {
            TaskId::FIRST => {
                let cause = self.walk.rules.cause_by_label(flows, flow.index);
                self.walk.ask_now(flow.index, cause);
            }
            _ => self.walk.note_label_of_other(task, flow.index),
        }
        if let Some(out) = &mut self.out {
            out(&mut Record::Label(LabelRecord {
                flow: self.walk.flows.name(flow.index),
                task,
                time_us,
                decision,
            }));
        }
    }

    /// Writes an active timeout's record.
    fn report(&mut self, report: Report) {
        let Report { flow, .. } = report;
        let mut decisions = Decisions::default();
        for id in self.walk.labels.tasks.ids() {
            let (labels, flows) = (&self.walk.labels, &self.walk.flows);
            // The depths' common answer is stored at the first.
            let task = labels.tasks.task(id);
            let (first, first_asked) = (task.first, task.first_asked);
            let awaited =
                Awaited { flow, depth: labels.tasks.deepest_complete(id, report.series_seen) };
            // A port's label is there from the first packet on, and an answer that has contradicted
            // it since takes its place.
            let is_named = labels.was_named_by_port(flows, id, flow.index);
            let is_complete = labels.tasks.is_due(first_asked, &report.series_seen);
            // A label still on its way is not part of this record, though its series is complete.
            let is_known = labels.class_by_port(flows, id, flow.index).is_some()
                || !labels.is_on_its_way(flows, awaited);
            if (is_named || is_complete) && is_known {
                // Live, an earlier label that is still on its way may have held this one back.
                self.emit_label(awaited);
                let (labels, flows) = (&self.walk.labels, &self.walk.flows);
                decisions[id.index()] = labels.decision(flows, Awaited { flow, depth: first });
            }
        }
        let (labels, flows) = (&self.walk.labels, &mut self.walk.flows);
        let labelled = match labels.kept.has_deeper() {
            true => {
                let by_depth = flows.outbox.in_effect.pop_front().unwrap_or_default();
                labels.tagged_of(flow, &by_depth)
            }
            false => report.in_effect,
        };
        flows.confirm(flow.index, decisions[0], report.in_effect, labelled);
        flows.counters.flows_ended[EndReason::Active as usize] += 1;
        let measured = flows.outbox.measured.pop_front();
        if let Some(record) = self.write_record(flow.index, EndReason::Active, &report.counts) {
            record.last_us = report.last_us;
            record.is_half_open = false;
            record.behaviour = report.behaviour;
            record.headers = report.headers;
            record.decisions = decisions;
            record.measured = measured;
            if let Some(series) = &mut record.series {
                series.truncate(usize::from(report.series_seen[0]));
            }
            self.say_flow();
        }
    }

    fn say_flow(&mut self) {
        if let Some(out) = &mut self.out {
            out(self.record);
        }
    }

    /// Writes the record of a flow from its entry, but for `is_half_open` and labels; `None` if
    /// nobody wants it.
    #[inline]
    fn write_record(
        &mut self,
        index: u32,
        why: EndReason,
        counted: &Counts,
    ) -> Option<&mut FlowRecord> {
        let (Some(_), Record::Flow(record)) = (&self.out, &mut *self.record) else {
            return None;
        };
        let (walk, entries) = (&*self.walk, &self.walk.flows.entries);
        // A field that is not named here would be an earlier flow's.
        let FlowRecord {
            flow,
            last_us,
            midstream,
            counts,
            reason,
            is_half_open: _,
            decisions: _,
            series,
            rule,
            behaviour,
            headers,
            measured,
        } = record;
        walk.flows.write_name(index, flow);
        *last_us = entries.hot(index).last_us();
        *midstream = walk.series.store.is_midstream(index);
        *counts = *counted;
        *reason = why;
        *series = walk.series.share.has(flow.flow_id).then(|| walk.series_record(index));
        *rule = walk.rules.rule_of(index);
        *behaviour = walk.last_behaviour(index);
        *headers = walk.headers_seen(index);
        match &walk.measured {
            Some(it) => *measured = Some(it.told(entries, index, counted)),
            None => *measured = None,
        }
        Some(record)
    }

    /// Prefetches what parts keep of the flows whose ends are among these events.
    fn prefetch_ended(&self, events: std::ops::Range<usize>) {
        for number in events {
            if let Some(Event::Ended { occupant, .. }) = self.walk.flows.outbox.events.get(number) {
                self.walk.flows.entries.prefetch_all(occupant.index);
                self.walk.flows.entries.prefetch_words(occupant.index);
                each_part!(self.walk, prefetch(occupant.index));
            }
        }
    }
}

impl<P: Part> Walk<P> {
    fn series_record(&self, index: u32) -> Box<SeriesRecord> {
        let mut series = cring::Series::default();
        let protocol = self.flows.entries.hot(index).key().protocol();
        self.series.store.read_all(index, protocol, &mut series);
        let numbers = |feature| {
            let words = series.channel(feature);
            series.features().contains(feature).then(|| words.to_vec())
        };
        let has_times = series.features().contains(Feature::InterArrival);
        Box::new(SeriesRecord {
            unit: self.series.store.first_unit(),
            lengths: series.signed_lengths().collect(),
            offsets_us: self.series.store.offsets_us(index).to_vec(),
            payloads: numbers(Feature::PayloadLength),
            inter_arrivals_us: has_times.then(|| series.inter_arrivals_us().collect()),
            tcp_flags: numbers(Feature::TcpFlags),
            local: self.flows.servers.as_ref().map(|servers| *servers.known(index)),
        })
    }
}
