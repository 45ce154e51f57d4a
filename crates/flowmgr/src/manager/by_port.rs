//! The label that the port of its server gives a flow.
//!
//! Where a task says so ([`crate::SeriesTask::k`] of 0), the flow has it with its first packet, and keeps it unless an answer of the
//! model contradicts it, once ([`cring::resolve`]). Otherwise it is for flows that end without a sure answer.
//!
//! A port says nothing of a flow that began mid-stream, since nobody knows which end is the server. The table of ports is part of
//! a task's model, so it names the flows that the task is asked about.

use cring::{Label, Source};

use super::Manager;
use super::settle::{Awaited, count_class};
use crate::config::{Effect, PortLabel};
use crate::record::{DecidedBy, Decision};

impl Manager {
    /// Gives a flow that has just begun the labels of its port, for each task that says so. Returns the class of the first task's.
    pub(crate) fn name_by_ports(&mut self, index: u32, time_us: i64) -> Option<u16> {
        if !self.tasks.has_ports_first || self.is_unasked(index) {
            return None;
        }
        for number in 0..self.tasks.count() as u8 {
            if let Some(port) = self.port_at_first(number, index) {
                self.name_by_port_at_first(port, index, time_us);
            }
        }
        self.class_by_port(0, index)
    }

    /// What the port says with a flow's first packet for a task. A task that comes after others knows only later whether it is asked,
    /// so its ports name nothing.
    pub(super) fn port_at_first(&self, number: u8, index: u32) -> Option<PortLabel> {
        let task = self.tasks.task(number);
        match task.is_ports_first() && task.asked.after.is_empty() {
            true => self.port_label(number, index),
            false => None,
        }
    }

    fn name_by_port_at_first(&mut self, port: PortLabel, index: u32, time_us: i64) {
        let first = self.tasks.task(port.task).first;
        let label = Label::Class {
            class: port.class,
            confidence: port.precision,
            source: Source::Port,
            model: 0,
        };
        if first == 0 {
            return self.label_at_first(index, label, time_us);
        }
        let flow = self.entries.flow_ref(index);
        let word = self.entries.word(first, index);
        word.pend(flow.generation);
        // Cannot be post-mortem: nobody else knows of the pending word.
        let _ = word.decide(flow.generation, label);
        if let Effect::PacketTime { delay_us } = self.config.effect {
            let at = time_us.saturating_sub(delay_us);
            self.entries.set_emitted_at(first, index, at);
        }
        self.outbox.say_given(Awaited { flow, task: first });
    }

    /// The class that the port gave a flow for a task, unless an answer has taken its place in the label word.
    pub(crate) fn class_by_port(&self, number: u8, index: u32) -> Option<u16> {
        let first = self.tasks.task(number).first;
        match self.entries.word(first, index).read().1 {
            Label::Class {
                class,
                source: Source::Port,
                ..
            } => Some(class),
            _ => None,
        }
    }

    /// Whether the port named the flow for a task at its beginning, so that the model judges it by what is not the port.
    pub(crate) fn was_named_by_port(&self, number: u8, index: u32) -> bool {
        let first = self.tasks.task(number).first;
        self.class_by_port(number, index).is_some()
            || self.entries.contradicts(first, index).is_some()
    }

    /// An answer contradicts the port, which said this class: the flow's label is another one from now on, and is said again.
    pub(super) fn note_contradiction(&mut self, number: u8, index: u32, class: u16) {
        let first = self.tasks.task(number).first;
        self.entries.set_contradicts(first, index, class);
        self.entries.forget_time_to_label(first, index);
        self.counters.tasks[usize::from(first)].flows_contradicting += 1;
        if number == 0 && self.config.effect == Effect::Arrival {
            self.note_other_label(index);
        }
    }

    /// The label that an ended flow gets from its port. Only if something was said on it: a SYN that nobody answers is not what
    /// the port is for.
    #[inline]
    pub(super) fn name_by_port(&mut self, index: u32) -> Option<Decision> {
        if self.tasks.task(0).is_ports_first() || self.series.seen(index, 0) == 0 {
            return None;
        }
        let named = self.port_label(0, index)?;
        self.counters.flows_by_port += 1;
        count_class(&mut self.counters.tasks[0].flows_labelled, named.class);
        Some(Decision {
            class: named.class,
            confidence: named.precision,
            decided_by: DecidedBy::Port,
            depth: 0,
            model: 0,
            contradicts: None,
            time_to_label_us: None,
        })
    }

    /// What a task's table says of the port of a flow's server, if the task is asked about the flow.
    fn port_label(&self, number: u8, index: u32) -> Option<PortLabel> {
        if self.config.ports.is_empty() || self.series.is_midstream(index) {
            return None;
        }
        let hot = self.entries.hot(index);
        let (protocol, (_, (_, port))) =
            (hot.key().protocol(), hot.key().ends(hot.is_low_forward()));
        let wanted = (number, protocol, port);
        let ports = &self.config.ports;
        let at = ports.binary_search_by_key(&wanted, |it| (it.task, it.protocol, it.port));
        let named = ports[at.ok()?];
        let has_conditions = self.tasks.has_conditions || self.rules.is_some();
        let is_asked = !has_conditions || self.is_asked(index, self.tasks.task(number).first);
        is_asked.then_some(named)
    }
}
