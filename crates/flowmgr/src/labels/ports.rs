//! The label that the port of its server gives a flow.
//!
//! Where a task says so ([`crate::DepthConfig::k`] of 0), the flow gets it with its first packet
//! and keeps it unless an answer of the model contradicts it, once ([`cring::resolve`]). Otherwise
//! it names flows that end without a sure answer.
//!
//! A port says nothing of a flow that began mid-stream, since nobody knows which end is the server.
//! The table of ports is part of a task's model, so it names the flows that the task is asked
//! about.

use cring::{Label, Source};

use super::Labels;
use crate::asked::Subject;
use crate::config::Effect;
use crate::counters::count_class;
use crate::entry::{Own, STATE_COLLECTED, STATE_EMITTED, STATE_IN_EFFECT};
use crate::flows::Flows;
use crate::ids::Awaited;
use crate::ids::{DepthId, TaskId};
use crate::record::{DecidedBy, Decision};
use crate::task_config::PortLabel;

impl Labels {
    /// What a task's table says of the port of a flow's server, if the task is asked about the
    /// flow.
    fn port_label(&self, task: TaskId, subject: &Subject) -> Option<PortLabel> {
        if subject.is_midstream {
            return None;
        }
        let (_, port) = subject.destination;
        let ports = &self.tasks.task(task).config.ports;
        let at = ports.binary_search_by_key(&(subject.protocol, port), |it| (it.protocol, it.port));
        let named = ports[at.ok()?];
        let has_conditions = self.tasks.has_conditions || subject.has_rules;
        let is_asked = !has_conditions || self.tasks.is_asked(subject, task);
        is_asked.then_some(named)
    }

    /// What the port says for a task at a flow's first packet. A task that comes after others
    /// learns only later whether it is asked, so its ports name nothing.
    pub fn port_at_first(&self, task: TaskId, subject: &Subject) -> Option<PortLabel> {
        let it = &self.tasks.task(task).config;
        match it.is_ports_first() && it.asked.after.is_empty() {
            true => self.port_label(task, subject),
            false => None,
        }
    }

    /// Gives a flow that has just begun the labels of its port, for each task that says so. Returns
    /// the first task's class.
    pub fn name_by_ports(
        &mut self,
        flows: &mut Flows,
        index: u32,
        subject: &Subject,
        time_us: i64,
    ) -> Option<u16> {
        for task in self.tasks.ids() {
            if let Some(port) = self.port_at_first(task, subject) {
                let label = Label::Class {
                    class: port.class,
                    confidence: port.precision,
                    source: Source::Port,
                    model: 0,
                };
                let first = self.tasks.task(task).first;
                self.label_at_first(flows, index, first, label, time_us);
            }
        }
        self.class_by_port(flows, TaskId::FIRST, index)
    }

    /// Gives a flow a task's label before any series; it counts from the packet at `time_us` on.
    /// `first`: the task's first depth.
    fn label_at_first(
        &mut self,
        flows: &mut Flows,
        index: u32,
        first: DepthId,
        label: Label,
        time_us: i64,
    ) {
        let flow = flows.entries.flow_ref(index);
        let word = flows.entries.word(first, index);
        debug_assert_eq!(word.read().1, Label::None, "it has been asked for already");
        word.pend(flow.generation);
        // Cannot be post-mortem: nobody else knows of the pending word.
        let _ = word.decide(flow.generation, label);
        let is_by_packet_time = flows.effect != Effect::Arrival;
        if let Effect::PacketTime { delay_us } = flows.effect {
            let at = time_us.saturating_sub(delay_us);
            self.kept.set_emitted_at(&mut flows.entries, first, index, at);
        }
        // The hot line holds the first task's states.
        if first == DepthId::FIRST {
            flows.entries.hot_mut(index).set(STATE_EMITTED);
        }
        if first == DepthId::FIRST && is_by_packet_time {
            flows.entries.hot_mut(index).set(STATE_IN_EFFECT);
            // It counts for the packets that wait for it, not for earlier ones. The walk has
            // counted the packets that wait; this flow's have raised one question, so they all wait
            // for it.
            flows.entries.note_before(index, Own(None));
        }
        flows.outbox.say_given(Awaited { flow, depth: first });
    }

    /// Gives a flow its label by a rule, if it has none and none is on its way; returns whether it
    /// did.
    pub fn give_by_rule(
        &mut self,
        flows: &mut Flows,
        index: u32,
        class: u16,
        (time_us, now_ns): (i64, u64),
    ) -> bool {
        if flows.entries.label(index).read().1 != Label::None
            || flows.entries.hot(index).has(STATE_EMITTED)
        {
            return false;
        }
        let label = Label::Class { class, confidence: u16::MAX, source: Source::Rule, model: 0 };
        self.label_at_first(flows, index, DepthId::FIRST, label, time_us);
        if flows.effect == Effect::Arrival {
            flows.entries.hot_mut(index).set(STATE_COLLECTED);
            self.kept.set_emitted_at(&mut flows.entries, DepthId::FIRST, index, now_ns as i64);
        }
        self.kept.set_decided(DepthId::FIRST, index, 0);
        flows.counters.flows_by_rule += 1;
        true
    }

    /// The class that the port gave a flow for a task, unless an answer has taken its place in the
    /// label word.
    pub fn class_by_port(&self, flows: &Flows, task: TaskId, index: u32) -> Option<u16> {
        let first = self.tasks.task(task).first;
        match flows.entries.word(first, index).read().1 {
            Label::Class { class, source: Source::Port, .. } => Some(class),
            _ => None,
        }
    }

    /// Whether the port named the flow for a task at its beginning, so that the model judges it by
    /// what is not the port.
    pub fn was_named_by_port(&self, flows: &Flows, task: TaskId, index: u32) -> bool {
        let first = self.tasks.task(task).first;
        self.class_by_port(flows, task, index).is_some()
            || self.kept.contradicts(first, index).is_some()
    }

    /// The label that an ended flow gets from its port, unless the port names flows with their
    /// first packets.
    pub fn name_at_end(&mut self, flows: &mut Flows, subject: &Subject) -> Option<Decision> {
        if self.tasks.task(TaskId::FIRST).config.is_ports_first() {
            return None;
        }
        let named = self.port_label(TaskId::FIRST, subject)?;
        flows.counters.flows_by_port += 1;
        count_class(&mut flows.counters.depths[0].flows_labelled, named.class);
        Some(Decision {
            class: named.class,
            confidence: named.precision,
            decided_by: DecidedBy::Port,
            depth: 0,
            model: 0,
            contradicts: None,
            time_to_label_us: None,
            truth: None,
        })
    }

    /// Where ports name flows with their first packets: notes that this flow, about which its task
    /// is asked now, has no label by its port.
    pub fn begin_without_port(
        &mut self,
        flows: &mut Flows,
        depth: DepthId,
        index: u32,
        emitted_at: i64,
    ) {
        let first = self.tasks.task(self.tasks.of_depth(depth)).first;
        if depth == first || flows.entries.word(first, index).read().1 != Label::None {
            return;
        }
        flows.entries.leave_unasked(first, index);
        self.kept.set_emitted_at(&mut flows.entries, first, index, emitted_at);
    }
}
