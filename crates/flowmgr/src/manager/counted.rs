//! Adds packets that the kernel counted, and that were not walked, to the counts of their flows.

use super::walk::Walk;
use crate::entry::STATE_EMITTED;
use crate::flows::Flows;
use crate::kernel_counts::{Counted, LAG_S, Told};
use crate::part::Part;
use crate::table::Place;

impl<P: Part> Walk<P> {
    /// See [`crate::Manager::count`].
    pub fn count(&mut self, counted: &Counted) -> bool {
        let hash = self.flows.hash(&counted.key, None);
        let Some(place) = self.flows.find(&counted.key, hash, None) else {
            return false;
        };
        let index = self.flows.table.occupant(place).index;
        if self.port != 0 && self.headers.in_port(index) != self.port {
            return true;
        }
        let Some(so_far) = &mut self.counted else {
            return true;
        };
        let new = so_far.update(index, counted);
        if new.packets == [0; 2] {
            return true;
        }
        if self.flows.active.is_on()
            && self.report_if_due(index, counted.last_us)
            && self.flows.table.occupant(place).is_half_open
        {
            // As for packets that are walked: see `Flows::establish_answered`.
            self.flows.establish(place, false);
        }
        self.add(index, &new);
        note_last(&mut self.flows, place, index, counted.last_us);
        note_answer(&mut self.flows, place, index, &new);
        let cause = self.rules.cause_by_counts(&self.flows, index);
        self.ask_now(index, cause);
        true
    }

    fn add(&mut self, index: u32, new: &Told) {
        for (end, from_low) in [true, false].into_iter().enumerate() {
            let direction = self.flows.entries.hot(index).direction(from_low);
            let (packets, bytes) = (new.packets[end], new.bytes[end]);
            self.count_sum(index, direction, packets, bytes);
            if packets > 0 {
                self.tell_service_of(index, direction, packets, bytes);
            }
        }
        let (packets, bytes) = (new.packets.iter().sum(), new.bytes.iter().sum());
        self.flows.counters.flow_bytes += bytes;
        // Packets are counted live only, where a label counts as soon as it is there.
        let class = match self.rules.is_on() {
            // The action waits for the answer.
            true => self.labels.class_of(&mut self.flows, index),
            false if self.flows.entries.hot(index).has(STATE_EMITTED) => {
                self.labels.look_up_action(&mut self.flows, index).map(|(class, _)| class)
            }
            false => None,
        };
        if let Some(class) = class {
            self.flows.counters.labelled_bytes += bytes;
            if let Some(volume) = self.flows.counters.labelled_by_class.get_mut(usize::from(class))
            {
                volume.add(packets, bytes);
            }
        }
    }
}

/// Notes that the flow was last heard of at `last_us`, unless packets came since.
fn note_last(flows: &mut Flows, place: Place, index: u32, last_us: i64) {
    flows.table.make_due(place);
    let hot = flows.entries.hot_mut(index);
    if last_us <= hot.last_us() {
        return;
    }
    hot.set_last_us(last_us);
    let late_us = flows.clock.packet_us().saturating_sub(last_us).max(0);
    let late_s = (late_us / 1_000_000).min(i64::from(LAG_S)) as u16;
    let second = flows.clock.second().wrapping_sub(late_s);
    flows.table.touch_if(place, second, |_| true);
}

/// As [`crate::flows::Flows::look_at_answer`]. These packets open and reset nothing, because
/// packets that do are walked.
fn note_answer(flows: &mut Flows, place: Place, index: u32, new: &Told) {
    let forward = usize::from(!flows.entries.hot(index).is_low_forward());
    let is_udp = flows.entries.hot(index).key().protocol() == crate::key::UDP;
    let is_answered = flows.entries.hot(index).has_reverse_packets();
    if flows.table.occupant(place).is_half_open
        && is_answered
        && (is_udp || new.packets[forward] != 0)
    {
        flows.establish(place, !is_udp);
    }
}
