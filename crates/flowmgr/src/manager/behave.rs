//! Behaviours in the walk and between bursts: when they are looked at, and who is told of a change.

use super::walk::Walk;
use crate::behaviour::{Behaviour, Step};
use crate::config::Effect;
use crate::entry::Carry;
use crate::outbox::Changed;
use crate::part::Part;
use crate::table::Occupant;

impl<P: Part> Walk<P> {
    /// Takes what a counter of the hot line could not hold; once in 255 packets, in 16 MiB, and where a flow may have crossed the
    /// bound of `bulk`.
    #[cold]
    #[inline(never)]
    pub fn carry(&mut self, index: u32, direction: usize, carry: Carry) {
        self.flows.entries.carry(index, direction, carry);
        self.carried(index, carry.bytes.into());
    }

    /// Counts so many packets with so many bytes in all.
    pub fn count_sum(&mut self, index: u32, direction: usize, packets: u64, bytes: u64) {
        let carried = self
            .flows
            .entries
            .count_sum(index, direction, packets, bytes);
        self.carried(index, carried);
    }

    /// A flow's counter of bytes has carried so many times: the flow crosses the bound, or its counters are set to carry again
    /// where it may.
    fn carried(&mut self, index: u32, times: u64) {
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        if times == 0 || behaviours.active(index) == Behaviour::Bulk {
            return;
        }
        let left = self.flows.entries.left(index, times);
        if left > 0 {
            self.flows.entries.arm(index, left as u32);
            return;
        }
        let step = behaviours.cross(index, &self.flows.entries.counts(index));
        self.take_step(index, step, true);
    }

    /// By packet time, samples all flows once a second has passed.
    pub fn sample_second(&mut self) {
        let second = self.flows.clock.second();
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        let since = match behaviours.sampled.replace(second) {
            Some(sampled) if sampled == second => return,
            Some(sampled) => second.wrapping_sub(sampled),
            None => 0,
        };
        self.sample_buckets(0..self.flows.table.buckets(), since);
    }

    /// Live, samples the flows of these buckets; how many it looked at.
    pub fn sample_swept(&mut self, heads: std::ops::Range<u32>) -> usize {
        if self.behaviours.is_none() {
            return 0;
        }
        self.sample_buckets(heads, 1 + self.flows.lag_s())
    }

    /// Samples the flows of these buckets that had a packet within the last seconds, and looks for those that have fallen silent.
    fn sample_buckets(&mut self, mut heads: std::ops::Range<u32>, since_s: u16) -> usize {
        let mut sampled = 0;
        while let Some(head) = self.flows.table.in_use_from(heads.start, heads.end) {
            // Each flow is three lines of memory; a bucket's are asked for together.
            let mut next = self.flows.table.first_in(head);
            while let Some(place) = next {
                let occupant = self.flows.table.occupant(place);
                if self.silence_s(occupant) <= since_s {
                    self.flows.entries.prefetch_all(occupant.index);
                    self.behaviours.prefetch(occupant.index);
                    sampled += 1;
                }
                next = self.flows.table.next_after(place);
            }
            next = self.flows.table.first_in(head);
            while let Some(place) = next {
                let occupant = self.flows.table.occupant(place);
                if self.silence_s(occupant) <= since_s {
                    self.sample(occupant);
                }
                self.fall_silent_if(occupant, since_s);
                next = self.flows.table.next_after(place);
            }
            heads.start = head + 1;
        }
        sampled
    }

    fn silence_s(&self, occupant: Occupant) -> u16 {
        self.flows.clock.second().wrapping_sub(occupant.stamp)
    }

    fn fall_silent_if(&mut self, occupant: Occupant, since_s: u16) {
        let (silence_s, effect) = (self.silence_s(occupant), self.flows.effect);
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        if behaviours.falls_silent(occupant, silence_s, since_s, effect) {
            let counts = self.flows.entries.counts(occupant.index);
            let step = behaviours.fall_silent(occupant.index, &counts);
            self.take_step(occupant.index, step, false);
        }
    }

    fn sample(&mut self, occupant: Occupant) {
        let Occupant { index, stamp, .. } = occupant;
        let until = match self.flows.effect {
            Effect::Arrival => self.flows.clock.second(),
            // Seconds without a packet of this flow may have passed unsampled, since no other flow had one either.
            Effect::PacketTime { .. } => stamp.wrapping_add(1),
        };
        let is_udp = self.flows.entries.hot(index).key().protocol() == crate::key::UDP;
        let counts = self.flows.entries.counts(index);
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        let Some(step) = behaviours.sample(index, &counts, until, is_udp) else {
            return;
        };
        if matches!(step.now, Behaviour::Interactive | Behaviour::Realtime) {
            // Bytes of such a flow do not count towards the bound.
            let bulk_bytes = behaviours.bounds.bulk_bytes;
            self.flows.entries.arm(index, bulk_bytes + 1);
        }
        self.take_step(index, step, false);
    }

    /// Counts what a look at a flow showed, and tells of a change. `in_walk`: a packet of the flow is being walked.
    pub fn take_step(&mut self, index: u32, step: Step, in_walk: bool) {
        let counts = &mut self.flows.counters.behaviours;
        counts[step.counts_for as usize].packets += step.packets;
        counts[step.counts_for as usize].bytes += step.bytes;
        if step.now == step.before {
            return;
        }
        counts[step.now as usize].flows += 1;
        let is_live = self.flows.effect == Effect::Arrival;
        if is_live {
            let changed = Changed {
                flow: self.flows.entries.flow_ref(index),
                behaviour: step.now,
                at_us: self.flows.clock.packet_us(),
            };
            self.flows.outbox.change(changed);
        }
        let may_raise = in_walk || is_live;
        let cause = self
            .rules
            .cause_by_behaviour(&mut self.flows, index, may_raise);
        self.ask_now(index, cause);
    }

    /// The flow has ended: what came since its last sample is counted.
    pub fn end_behaviour(&mut self, index: u32) {
        if let Some(behaviours) = &mut self.behaviours {
            let step = behaviours.end(index, &self.flows.entries.counts(index));
            self.take_step(index, step, false);
        }
    }
}
