//! From ended flows and arrived labels to records.
//!
//! What is to be said about flows waits in an outbox. Live ([`Effect::Arrival`])
//! nothing waits for a label: a flow that ends before its label comes is
//! recorded without, and the label is post-mortem. In a replay
//! ([`Effect::PacketTime`]) everything is said in the order in which the packets
//! brought it about, and what concerns a flow whose series is on its way waits
//! for the label. So a replay's records repeat exactly, and no packet waits.
//!
//! What records say is in `content`, the last record of a flow in `ending`.

mod content;
mod ending;

use std::collections::VecDeque;

use cring::{Answers, FlowRef, Label, TASKS_MAX};

use crate::behaviour::Behaviour;
use crate::config::{DEPTHS_MAX, Effect};
use crate::entry::{Counts, LABEL_NOT_EMITTED};
use crate::manager::{BURST_MAX, Manager};
use crate::record::{
    BehaviourRecord, DecidedBy, Decision, EndReason, FlowRecord, LabelRecord, Record,
};
use crate::series::SeenByUnit;
use crate::table::Occupant;

/// Who takes the records, if anybody does.
type Out<'a> = Option<&'a mut dyn FnMut(Record)>;

/// Packets and bytes that count as labelled by packet time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InEffect {
    pub packets: u64,
    pub bytes: u64,
}

/// The same for each depth, if its answer should decide.
pub(crate) type InEffectByDepth = [InEffect; DEPTHS_MAX];

/// A series on its way: whose label is to come, and for which task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    pub flow: FlowRef,
    pub task: u8,
}

/// The labels of a flow, by task.
type Decisions = [Option<Decision>; TASKS_MAX];

/// Something to be said.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A series went on its way.
    Label(Awaited),
    /// A flow goes on after an active timeout.
    Active(Report),
    /// A flow left the table. Its entry is free once this is said.
    Ended {
        /// As it was in the table.
        occupant: Occupant,
        reason: EndReason,
        /// Packets walked when it ended.
        position: u64,
        /// When that was, by the packets' time.
        at_us: i64,
    },
}

/// A flow at its active timeout. All is of that moment, because the record must not depend on when it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub flow: FlowRef,
    pub behaviour: Behaviour,
    pub counts: Counts,
    pub in_effect: InEffect,
    pub last_us: i64,
    /// Elements in the flow's series: below the K of a task no label had been asked for.
    pub series_seen: SeenByUnit,
}

/// A flow of the table does something else than before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub flow: FlowRef,
    pub behaviour: Behaviour,
    /// When that was noticed, by the packets' time.
    pub at_us: i64,
}

/// Changes of behaviour that wait to be told, at most: what one burst and one part of the sweep may bring, and as much again.
const CHANGES_MAX: usize = 4096;

/// Label words out of order that one settling looks at, each a line of memory: half a microsecond's worth. So of 1,000
/// series on their way each is looked at within 16 bursts. Few in tests, so that some are not reached.
pub const LABELS_LOOKED_AT: usize = if cfg!(test) { 4 } else { 64 };

/// What waits to be said, in order.
#[derive(Debug)]
pub(crate) struct Outbox {
    effect: Effect,
    events: VecDeque<Event>,
    /// With [`Effect::Arrival`], series on their way: their labels do not hold up
    /// the events.
    awaited: VecDeque<Awaited>,
    /// With [`Effect::Arrival`], labels that were there with their flows' first packets, since the last settling.
    given: VecDeque<Awaited>,
    /// Where among them the next look for labels out of order begins.
    awaited_at: usize,
    /// With several depths, of each report among the events.
    in_effect: VecDeque<InEffectByDepth>,
    /// Live, changes of behaviour since the last settling.
    changes: Vec<Changed>,
}

impl Outbox {
    /// An outbox for series that take so many slots of rings.
    pub fn new(effect: Effect, slots: usize) -> Outbox {
        // As many again may be with the devices.
        let awaited = match effect {
            Effect::Arrival => Manager::SPARE_ENTRIES.max(2 * slots),
            Effect::PacketTime { .. } => 0,
        };
        // A burst begins as many flows as it has packets.
        let given = match effect {
            Effect::Arrival => BURST_MAX * TASKS_MAX,
            Effect::PacketTime { .. } => 0,
        };
        Outbox {
            effect,
            events: VecDeque::with_capacity(Manager::SPARE_ENTRIES),
            awaited: VecDeque::with_capacity(awaited),
            given: VecDeque::with_capacity(given),
            awaited_at: 0,
            in_effect: VecDeque::new(),
            changes: Vec::with_capacity(CHANGES_MAX),
        }
    }

    pub fn change(&mut self, changed: Changed) {
        // Records still have the behaviour where the caller does not settle for so long.
        if self.changes.len() < CHANGES_MAX {
            self.changes.push(changed);
        }
    }

    /// What belongs to the next report, where there are several depths.
    pub fn note_in_effect(&mut self, by_depth: InEffectByDepth) {
        self.in_effect.push_back(by_depth);
    }

    pub fn await_label(&mut self, awaited: Awaited) {
        match self.effect {
            Effect::Arrival => self.awaited.push_back(awaited),
            Effect::PacketTime { .. } => self.events.push_back(Event::Label(awaited)),
        }
    }

    /// A label that is there already.
    pub fn say_given(&mut self, given: Awaited) {
        match self.effect {
            Effect::Arrival => self.given.push_back(given),
            Effect::PacketTime { .. } => self.events.push_back(Event::Label(given)),
        }
    }

    pub fn report(&mut self, report: Report) {
        self.events.push_back(Event::Active(report));
    }

    pub fn end(&mut self, occupant: Occupant, reason: EndReason, position: u64, at_us: i64) {
        self.events.push_back(Event::Ended {
            occupant,
            reason,
            position,
            at_us,
        });
    }
}

impl Manager {
    /// Hands over the records that are ready and frees the entries of ended flows.
    ///
    /// `written` says how many packets the caller is done with: an entry that a
    /// [`crate::Fate::label_of`] of a later packet names is kept. A caller that
    /// keeps no fates gives `u64::MAX`. `now_ns` is the clock of
    /// [`Manager::burst`].
    pub fn settle(&mut self, written: u64, now_ns: u64, out: &mut dyn FnMut(Record)) {
        self.settle_to(written, usize::MAX, now_ns, Some(out));
    }

    /// The same with [`Effect::Arrival`], for so many events of flows at most; how many there were. For a caller whose `out`
    /// may wait, and who has to look up in between.
    pub fn settle_some(&mut self, most: usize, now_ns: u64, out: &mut dyn FnMut(Record)) -> usize {
        self.settle_to(u64::MAX, most, now_ns, Some(out))
    }

    /// The same where nobody wants the records: they are counted, not made.
    pub fn discard_records(&mut self, written: u64, now_ns: u64) {
        self.settle_to(written, usize::MAX, now_ns, None);
    }

    fn settle_to(&mut self, written: u64, most: usize, now_ns: u64, mut out: Out<'_>) -> usize {
        // Before ends: a flow that has ended since still has its entry.
        self.tell_changes(&mut out);
        let mut settled = 0;
        while let Some(&event) = self.outbox.events.front() {
            if settled == most || !self.is_ready(event, written) {
                break;
            }
            settled += 1;
            self.outbox.events.pop_front();
            match event {
                Event::Label(awaited) => self.emit_label(awaited, now_ns, &mut out),
                Event::Active(report) => self.report(report, now_ns, &mut out),
                Event::Ended {
                    occupant,
                    reason,
                    at_us,
                    ..
                } => {
                    self.count_end(occupant, reason, at_us);
                    self.finalize(occupant, reason, now_ns, &mut out);
                }
            }
        }
        // Only where every flow that has ended is finalized: otherwise the label of a flow could come before that of an earlier flow
        // with the same addresses and ports, whose mark would then be the last to be set.
        if self.outbox.events.is_empty() {
            self.emit_given_labels(now_ns, &mut out);
            self.emit_labels_in_order(now_ns, &mut out);
            self.emit_labels_out_of_order(now_ns, &mut out);
        }
        settled
    }

    fn tell_changes(&mut self, out: &mut Out<'_>) {
        let changes = std::mem::take(&mut self.outbox.changes);
        if let Some(out) = out {
            for changed in &changes {
                out(Record::Behaviour(BehaviourRecord {
                    flow: self.name(changed.flow.index),
                    time_us: changed.at_us,
                    behaviour: changed.behaviour,
                }));
            }
        }
        self.outbox.changes = changes;
        self.outbox.changes.clear();
    }

    /// With [`Effect::Arrival`], series whose labels were still on their way at the last settling; and what came after the
    /// first of them.
    pub fn labels_awaited(&self) -> usize {
        self.outbox.awaited.len()
    }

    /// Nothing waits to be said.
    pub fn is_settled(&self) -> bool {
        self.outbox.events.is_empty() && self.outbox.changes.is_empty()
    }

    /// Emits the labels that have come, in the order of their series, up to the first that has not.
    fn emit_labels_in_order(&mut self, now_ns: u64, out: &mut Out<'_>) {
        while let Some(&awaited) = self.outbox.awaited.front() {
            if self.is_pending(awaited) {
                break;
            }
            self.outbox.awaited.pop_front();
            self.emit_label(awaited, now_ns, out);
        }
    }

    /// Emits labels that were there at once.
    fn emit_given_labels(&mut self, now_ns: u64, out: &mut Out<'_>) {
        while let Some(given) = self.outbox.given.pop_front() {
            self.emit_label(given, now_ns, out);
        }
    }

    /// Emits labels among a few of those that are awaited, in turn: a cache hit or a faster device must not wait behind
    /// a device that is slow or hangs.
    fn emit_labels_out_of_order(&mut self, now_ns: u64, out: &mut Out<'_>) {
        for _ in 0..self.outbox.awaited.len().min(LABELS_LOOKED_AT) {
            if self.outbox.awaited_at >= self.outbox.awaited.len() {
                self.outbox.awaited_at = 0;
            }
            let at = self.outbox.awaited_at;
            let Some(&awaited) = self.outbox.awaited.get(at) else {
                break;
            };
            if self.is_pending(awaited) {
                self.outbox.awaited_at += 1;
                continue;
            }
            // The last one takes its place and is looked at next; the front, which is the oldest, stays.
            self.outbox.awaited.swap_remove_back(at);
            self.emit_label(awaited, now_ns, out);
        }
    }

    fn is_ready(&self, event: Event, written: u64) -> bool {
        if self.config.effect == Effect::Arrival {
            return true;
        }
        match event {
            Event::Label(awaited) => !self.is_pending(awaited),
            Event::Active(report) => self.tasks().all(|task| {
                // A series that was completed later is not of the report's moment.
                !self.was_complete(task, report.series_seen)
                    || !self.is_pending(Awaited {
                        flow: report.flow,
                        task,
                    })
            }),
            Event::Ended {
                occupant, position, ..
            } => {
                let flow = self.entries.flow_ref(occupant.index);
                position <= written
                    && self
                        .tasks()
                        .all(|task| !self.is_pending(Awaited { flow, task }))
            }
        }
    }

    /// The numbers of all depths of all tasks.
    fn tasks(&self) -> std::ops::Range<u8> {
        0..self.config.tasks.len() as u8
    }

    /// Whether so many elements were all that a depth's series needs.
    fn was_complete(&self, depth: u8, seen: SeenByUnit) -> bool {
        self.tasks.is_due(depth, &seen)
    }

    fn is_pending(&self, awaited: Awaited) -> bool {
        self.label_of(awaited) == Some(Label::Pending)
    }

    fn label_of(&self, Awaited { flow, task }: Awaited) -> Option<Label> {
        self.entries.word(task, flow.index).label(flow.generation)
    }

    /// Says that a flow got its label, once; that of its port, and another one that contradicts it, each once.
    fn emit_label(&mut self, awaited: Awaited, now_ns: u64, out: &mut Out<'_>) {
        if let Some(by_port) = self.named_by_port(awaited) {
            self.say_label(by_port, by_port.task, now_ns, out);
        }
        if let Some((awaited, decided_by)) = self.deciding(awaited) {
            self.say_label(awaited, decided_by, now_ns, out);
        }
    }

    /// The label that its port gave the flow of an answer, for the same task.
    fn named_by_port(&self, Awaited { flow, task }: Awaited) -> Option<Awaited> {
        let number = self.tasks.number_of(task);
        let task = self.tasks.task(number).first;
        let awaited = Awaited { flow, task };
        // The entry may be another flow's by now.
        self.label_of(awaited)?;
        self.class_by_port(number, flow.index).map(|_| awaited)
    }

    fn say_label(&mut self, awaited: Awaited, decided_by: u8, now_ns: u64, out: &mut Out<'_>) {
        let Awaited { flow, task } = awaited;
        if self.entries.time_to_label_us(task, flow.index) != LABEL_NOT_EMITTED {
            return;
        }
        let emitted_at = self.entries.emitted_at(decided_by, flow.index);
        let is_by_port = self.config.tasks[usize::from(decided_by)].is_of_ports()
            && !self.is_labelled_by_rule(flow.index);
        let (time_us, took_us) = match self.config.effect {
            _ if is_by_port => (self.entries.cold(flow.index).first_us, 0),
            Effect::Arrival => {
                let took_ns = now_ns.saturating_sub(emitted_at as u64);
                (self.arrivals.time_us(now_ns), took_ns / 1000)
            }
            Effect::PacketTime { delay_us } => {
                (emitted_at.saturating_add(delay_us), delay_us as u64)
            }
        };
        let took_us = match self.is_labelled_by_rule(flow.index) {
            true => 0,
            false => took_us,
        };
        let took_us = took_us.min(u64::from(LABEL_NOT_EMITTED - 1)) as u32;
        self.entries.set_time_to_label_us(task, flow.index, took_us);
        let Some(decision) = self.decision(awaited) else {
            return;
        };
        let counters = &mut self.counters.tasks;
        count_class(
            &mut counters[usize::from(task)].labels_given,
            decision.class,
        );
        let is_answer = !matches!(decision.decided_by, DecidedBy::Port | DecidedBy::Rule);
        counters[usize::from(decided_by)].flows_decided += u64::from(is_answer);
        let number = self.tasks.number_of(task);
        match number {
            0 if self.rules.is_some() => self.ask_for_label(flow.index),
            0 => {}
            _ => self.note_label_of_other(flow.index),
        }
        if let Some(out) = out {
            out(Record::Label(LabelRecord {
                flow: self.name(flow.index),
                task: number,
                time_us,
                decision,
            }));
        }
    }

    /// The task whose label an answer decides, and the task that gave it; none if it decides nothing.
    ///
    /// Of several depths that need not be the awaited one: a depth that was asked earlier may be on its way still, and its
    /// answer then brings the label of both. The label counts as that of the first depth.
    fn deciding(&mut self, awaited: Awaited) -> Option<(Awaited, u8)> {
        let Awaited { flow, task } = awaited;
        let number = self.tasks.number_of(task);
        let (first, depths) = self.depths_of(number);
        if depths == 1 {
            let is_class = matches!(self.label_of(awaited), Some(Label::Class { .. }));
            return is_class.then_some((awaited, task));
        }
        // The entry may be another flow's by now.
        self.label_of(awaited)?;
        let count = match self.config.effect {
            Effect::Arrival => depths,
            // Deeper answers may be here already, by chance.
            Effect::PacketTime { .. } => task - first + 1,
        };
        let answers = self.answers_of(number, flow.index, Some(count));
        let Answers::Decided { depth } = answers else {
            return None;
        };
        let contradicts = self
            .class_by_port(number, flow.index)
            .filter(|_| depth > 0 && self.entries.contradicts(first, flow.index).is_none());
        match (number, self.config.effect) {
            // The walk looks at the first word alone.
            (0, Effect::Arrival) => {
                self.decide(flow.index);
            }
            (0, Effect::PacketTime { .. }) => self.entries.set_decided(flow.index, depth),
            _ => self.entries.set_decided_of(first, flow.index, depth),
        }
        if let Some(class) = contradicts {
            self.note_contradiction(number, flow.index, class);
        }
        Some((Awaited { flow, task: first }, first + depth))
    }

    /// Number of the first depth of a task, and how many it has.
    fn depths_of(&self, task: u8) -> (u8, u8) {
        let task = self.tasks.task(task);
        (task.first, task.depths.count())
    }

    /// An active timeout's record.
    fn report(&mut self, report: Report, now_ns: u64, out: &mut Out<'_>) {
        let Report { flow, .. } = report;
        let mut decisions = Decisions::default();
        for number in 0..self.tasks.count() as u8 {
            // What the depths say together stands at the first.
            let task = self.tasks.task(number);
            let (first, first_asked) = (task.first, task.first_asked);
            let awaited = Awaited {
                flow,
                task: self.deepest_complete(number, report.series_seen),
            };
            // A port's label is there from the first packet on, and an answer that has contradicted it since takes its place.
            let is_named = self.was_named_by_port(number, flow.index);
            // A label that is still on its way is not of this record, though its series is complete.
            let is_known =
                self.class_by_port(number, flow.index).is_some() || !self.is_on_its_way(awaited);
            if (is_named || self.was_complete(first_asked, report.series_seen)) && is_known {
                // Live, an earlier label that is still on its way may have kept this one from being said.
                self.emit_label(awaited, now_ns, out);
                decisions[usize::from(number)] = self.decision(Awaited { flow, task: first });
            }
        }
        let [decision, others @ ..] = decisions;
        let labelled = match self.has_depths {
            true => {
                let by_depth = self.outbox.in_effect.pop_front().unwrap_or_default();
                self.tagged_of(flow, &by_depth)
            }
            false => report.in_effect,
        };
        self.confirm(flow.index, decision, report.in_effect, labelled);
        self.counters.flows_ended[EndReason::Active as usize] += 1;
        if let Some(out) = out {
            let mut record = FlowRecord {
                last_us: report.last_us,
                counts: report.counts,
                behaviour: report.behaviour,
                decision,
                others,
                ..self.flow_record(flow.index, EndReason::Active)
            };
            if let Some(series) = &mut record.series {
                series.truncate(usize::from(report.series_seen[0]));
            }
            out(Record::Flow(record));
        }
    }

    /// Of the packets promised as labelled, from the first depth on, those behind the depth that decided; none where nothing
    /// has decided.
    fn tagged_of(&self, flow: FlowRef, by_depth: &InEffectByDepth) -> InEffect {
        let decided = self.entries.decided(flow.index);
        decided.map_or_else(InEffect::default, |depth| by_depth[usize::from(depth)])
    }

    /// Packets promised as labelled are so, and it is known by now with which class: those that the label counts for. The
    /// others turn out unlabelled, or had the label of their flow's port.
    fn confirm(
        &mut self,
        index: u32,
        decision: Option<Decision>,
        promised: InEffect,
        labelled: InEffect,
    ) {
        let decision = decision.filter(|it| it.decided_by != DecidedBy::Port);
        let labelled = match decision {
            Some(_) => labelled,
            None => InEffect::default(),
        };
        let class = decision.map_or(usize::MAX, |it| usize::from(it.class));
        if let Some(of_class) = self.counters.labelled_by_class.get_mut(class) {
            of_class.add(labelled.packets, labelled.bytes);
        }
        let others = InEffect {
            packets: promised.packets - labelled.packets,
            bytes: promised.bytes - labelled.bytes,
        };
        if let Some(class) = self.class_by_port(0, index) {
            let by_class = &mut self.counters.labelled_by_class;
            if let Some(of_class) = by_class.get_mut(usize::from(class)) {
                of_class.add(others.packets, others.bytes);
            }
            return;
        }
        self.counters.verdicts.retract_labelled(others.packets);
        self.counters.labelled_bytes -= others.bytes;
    }

    /// The first depth of a task, or the greatest whose series was complete with so many elements.
    fn deepest_complete(&self, task: u8, seen: SeenByUnit) -> u8 {
        let (first, depths) = self.depths_of(task);
        let mut depths = (first..first + depths).rev();
        let complete = depths.find(|&depth| self.was_complete(depth, seen));
        complete.unwrap_or(first)
    }

    /// Whether a label may come yet for an answer that is awaited.
    fn is_on_its_way(&self, awaited: Awaited) -> bool {
        let number = self.tasks.number_of(awaited.task);
        let (first, depths) = self.depths_of(number);
        match depths > 1 && self.label_of(awaited).is_some() {
            true => {
                let count = Some(awaited.task - first + 1);
                self.answers_of(number, awaited.flow.index, count) == Answers::Pending
            }
            false => self.is_pending(awaited),
        }
    }
}

/// One more of a class. A class beyond those of the task, which no device that passed its checks gives, is not counted.
pub(super) fn count_class(by_class: &mut [u64], class: u16) {
    if let Some(count) = by_class.get_mut(usize::from(class)) {
        *count += 1;
    }
}
