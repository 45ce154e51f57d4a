//! The way of a series: packet by packet into the store, and on the ring once a task's K is reached.

use cring::{Answers, Label};

use super::{Manager, Staged};
use crate::asked::Subject;
use crate::config::{Effect, SeriesTask};
use crate::entry::{STATE_COLLECTED, STATE_EMITTED, STATE_WITHHELD};
use crate::manager::settle::Awaited;
use crate::series::Element;

/// A packet that was found to belong to the flow at an entry.
#[derive(Clone, Copy)]
struct Arrival {
    index: u32,
    hash: u64,
    time_us: i64,
    /// The caller's clock.
    now_ns: u64,
}

impl Manager {
    /// Adds a packet to the series that it is an element of.
    // Out of line: most packets belong to flows whose series is complete, and their walk then has more registers.
    #[inline(never)]
    pub(super) fn collect(
        &mut self,
        index: u32,
        direction: usize,
        staged: &Staged,
        time_us: i64,
        now_ns: u64,
    ) {
        let Ok(headers) = &staged.headers else {
            return;
        };
        let arrival = Arrival {
            index,
            hash: staged.hash,
            time_us,
            now_ns,
        };
        // We were not here when the flow began. With more tasks another series may still be incomplete.
        let hot = self.entries.hot(index);
        if !self.has_more_tasks && hot.has(STATE_WITHHELD) && !hot.has(STATE_EMITTED) {
            return;
        }
        if self.is_unasked(index) {
            return;
        }
        if self.series.is_lengths_only() {
            if self.series.add_length(index, direction, headers.length) {
                self.complete(arrival, 0);
            }
            return;
        }
        // Only records ask for offsets, and the first time lies in the cold line.
        let offset_us = match self.config.record_series.is_none() {
            false => time_us.saturating_sub(self.entries.cold(index).first_us),
            true => 0,
        };
        let element = Element {
            direction,
            length: headers.length,
            payload: headers.payload(),
            tcp_flags: headers.tcp_flags,
            time_us,
            offset_us,
        };
        for unit in 0..self.series.units() {
            if !self.series.counts(unit, element.payload) {
                continue;
            }
            if self.series.add(index, unit, &element) {
                self.complete(arrival, unit);
            }
        }
    }

    /// The series of one or several tasks end with this packet, which is the last so far of a unit. Sends each on its way that
    /// is due, or withholds it where the flow began mid-stream and the model was not trained for that, or where the task is not
    /// asked about the flow.
    fn complete(&mut self, arrival: Arrival, unit: usize) {
        let index = arrival.index;
        let seen = self.series.seen_by_unit(index);
        for number in 0..self.config.tasks.len() {
            let task = self.config.tasks[number];
            if !self.tasks.becomes_due(number as u8, unit, &seen) {
                continue;
            }
            // The states in the hot line are those of the first task.
            let is_first = number == usize::from(self.tasks.task(0).first_asked);
            let has_conditions = self.tasks.has_conditions || self.rules.is_some();
            if has_conditions && !self.is_asked_at(index, number as u8) {
                self.not_asked(index, number);
                continue;
            }
            if !task.midstream && self.series.is_midstream(index) {
                if is_first && !self.has_more_tasks {
                    self.entries.hot_mut(index).set(STATE_WITHHELD);
                }
                if self.tasks.is_first_asked(number as u8) {
                    self.counters.tasks[number].series_withheld += 1;
                }
                continue;
            }
            let may_be_decided = task.is_deeper && self.config.effect == Effect::Arrival;
            if may_be_decided && self.is_decided(index, number as u8) {
                continue;
            }
            if is_first {
                self.entries.hot_mut(index).set(STATE_EMITTED);
            }
            let emitted_at = match self.config.effect {
                Effect::Arrival => arrival.now_ns as i64,
                Effect::PacketTime { .. } => arrival.time_us,
            };
            let number = number as u8;
            self.entries.set_emitted_at(number, index, emitted_at);
            self.begin_without_port(number, index, emitted_at);
            let place = self.place_of(arrival.hash, index);
            let is_half_open = place.is_some_and(|place| self.table.occupant(place).is_half_open);
            self.emit(arrival, number, is_half_open);
        }
        if self.has_more_tasks
            && self.config.effect == Effect::Arrival
            && self.series.is_complete(index)
        {
            self.entries.hot_mut(index).set(STATE_COLLECTED);
        }
    }

    /// Whether the task of a depth has its label already, so that no greater depth has to be asked.
    fn is_decided(&mut self, index: u32, number: u8) -> bool {
        match self.tasks.number_of(number) {
            0 if self.class_by_port(0, index).is_none() => {
                self.entries.decided(index).is_some() || self.decide(index)
            }
            task => matches!(self.answers_of(task, index, None), Answers::Decided { .. }),
        }
    }

    /// Whether a depth's task is asked about the flow now that the depth is due. Rules may have changed since its first depth was,
    /// and a flow that was asked about at one depth is asked about at the next, and at none otherwise.
    fn is_asked_at(&self, index: u32, number: u8) -> bool {
        let first = self.tasks.task(self.tasks.number_of(number)).first;
        let was_asked = self.entries.word(first, index).read().1 != Label::None;
        was_asked || self.tasks.is_first_asked(number) && self.is_asked(index, number)
    }

    /// Where ports name flows with their first packets: this flow, about which its task is asked now, has no label by its port.
    fn begin_without_port(&mut self, number: u8, index: u32, emitted_at: i64) {
        let first = self.tasks.task(self.tasks.number_of(number)).first;
        let word = self.entries.word(first, index);
        if number == first || word.read().1 != Label::None {
            return;
        }
        let (generation, _) = word.read();
        word.pend(generation);
        // Cannot be post-mortem: nobody else knows of the pending word.
        let _ = word.decide(generation, Label::Unlabelled);
        self.entries.set_emitted_at(first, index, emitted_at);
    }

    /// Whether a depth's task, and those that it comes after, are asked about the flow.
    pub(crate) fn is_asked(&self, index: u32, number: u8) -> bool {
        let hot = self.entries.hot(index);
        let key = hot.key();
        let (source, destination) = key.ends(hot.is_low_forward());
        let subject = Subject {
            protocol: key.protocol(),
            source,
            destination,
            in_port: self.series.port(index),
            sample: self.sample_of(&key),
        };
        self.is_asked_by(index, &subject, self.tasks.number_of(number))
    }

    fn is_asked_by(&self, index: u32, subject: &Subject, task: u8) -> bool {
        let asked = &self.tasks.task(task).asked;
        let mut after = asked.after.iter();
        // A flow that began before the first rules may not have its answer yet.
        let by_rule = match &self.rules {
            Some(rules) if rules.has_answer(index) => rules.unasked(index) >> task & 1 == 0,
            _ => !asked.by_rule,
        };
        by_rule
            && asked.holds(subject, &self.config.inside)
            && after.all(|&before| self.is_asked_by(index, subject, before))
    }

    /// A task is not asked about a flow.
    fn not_asked(&mut self, index: u32, number: usize) {
        let is_first_asked = self.tasks.is_first_asked(number as u8);
        if number == usize::from(self.tasks.task(0).first_asked) && !self.has_more_tasks {
            self.entries.hot_mut(index).set(STATE_WITHHELD);
        }
        if is_first_asked {
            self.counters.tasks[number].flows_not_asked += 1;
        }
    }

    /// Writes the series into a ring slot, or sheds it where the ring is full; that of a half-open flow where half of
    /// the ring is taken, so that a flood of such flows leaves half of it to the others. By packet time nothing is shed.
    fn emit(&mut self, arrival: Arrival, number: u8, is_half_open: bool) {
        let index = arrival.index;
        let flow = self.entries.flow_ref(index);
        let protocol = self.entries.hot(index).key().protocol();
        let is_named_by_port = self
            .class_by_port(self.tasks.number_of(number), index)
            .is_some();
        let word = self.entries.word(number, index);
        word.pend(flow.generation);
        let counters = &mut self.counters.tasks[usize::from(number)];
        counters.series_emitted += 1;
        let (series, task) = (&self.series, &self.config.tasks[usize::from(number)]);
        let hot = self.entries.hot(index);
        let (_, (_, port)) = hot.key().ends(hot.is_low_forward());
        // Who began it is not known of a flow that began mid-stream; and a port is not asked to confirm itself.
        let server_port = match series.is_midstream(index) || is_named_by_port {
            true => 0,
            false => port,
        };
        let rings = &mut self.rings[ring_of(&self.config.tasks, number)];
        let ring = index as usize % rings.len();
        let ring = &mut rings[ring];
        let gives_way = is_half_open
            && self.config.effect == Effect::Arrival
            && ring.free() < ring.capacity() / 2;
        let pushed = !gives_way
            && ring.push(|slot| {
                slot.flow = flow;
                slot.kth_us = arrival.time_us;
                slot.emitted_ns = arrival.now_ns;
                (slot.series.task, slot.series.server_port) = (number, server_port);
                series.read(index, task, protocol, &mut slot.series);
            });
        if pushed {
            self.outbox.await_label(Awaited { flow, task: number });
        } else {
            counters.series_shed += 1;
            counters.series_shed_half_open += u64::from(gives_way);
            // Cannot be post-mortem: nobody else knows of the pending word.
            let _ = word.decide(flow.generation, Label::Unlabelled);
        }
    }
}

/// Which rings the series of a task take: its own, or those of the task that it is a depth of.
fn ring_of(tasks: &[SeriesTask], number: u8) -> usize {
    let up_to = &tasks[..=usize::from(number)];
    up_to.iter().filter(|task| !task.is_deeper).count() - 1
}
