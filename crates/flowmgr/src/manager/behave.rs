//! Behaviours in the walk and between bursts: when they are looked at, and who is told of a change.

use crate::behaviour::{Behaviour, Step};
use crate::config::Effect;
use crate::entry::Carry;
use crate::manager::Manager;
use crate::manager::settle::Changed;
use crate::table::{Occupant, Place};

/// Seconds behind the last packet in which a live sweep looks at a flow that has fallen silent. It comes by once a second.
const SWEEP_SLACK_S: u16 = 3;

impl Manager {
    /// Takes what a counter of the hot line could not hold; once in 255 packets, in 16 MiB, and where a flow may have crossed the
    /// bound of `bulk`.
    #[cold]
    #[inline(never)]
    pub(super) fn carry(&mut self, index: u32, direction: usize, carry: Carry) {
        self.entries.carry(index, direction, carry);
        self.carried(index, carry.bytes.into());
    }

    /// Counts so many packets with so many bytes in all.
    pub(super) fn count_sum(&mut self, index: u32, direction: usize, packets: u64, bytes: u64) {
        let carried = self.entries.count_sum(index, direction, packets, bytes);
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
        let left = self.entries.left(index, times);
        if left > 0 {
            self.entries.arm(index, left as u32);
            return;
        }
        let step = behaviours.cross(index, &self.entries.counts(index));
        self.take_step(index, step, true);
    }

    /// A flow begins.
    pub(crate) fn begin_behaviour(&mut self, index: u32) {
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        behaviours.begin(index, self.clock.second());
        let bulk_bytes = behaviours.bounds.bulk_bytes;
        self.entries.arm_anew(index, bulk_bytes + 1);
    }

    /// By packet time, samples all flows once a second has passed.
    pub(crate) fn sample_second(&mut self) {
        let second = self.clock.second();
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        let since = match behaviours.sampled.replace(second) {
            Some(sampled) if sampled == second => return,
            Some(sampled) => second.wrapping_sub(sampled),
            None => 0,
        };
        self.sample_buckets(0..self.table.buckets(), since);
    }

    /// Live, samples the flows of these buckets; how many it looked at.
    pub(crate) fn sample_swept(&mut self, heads: std::ops::Range<u32>) -> usize {
        if self.behaviours.is_none() {
            return 0;
        }
        self.sample_buckets(heads, 1 + self.config.counts_lag_s())
    }

    /// Samples the flows of these buckets that had a packet within the last seconds, and looks for those that have fallen silent.
    fn sample_buckets(&mut self, mut heads: std::ops::Range<u32>, since_s: u16) -> usize {
        let mut sampled = 0;
        while let Some(head) = self.table.in_use_from(heads.start, heads.end) {
            // Each flow is three lines of memory; a bucket's are asked for together.
            self.each_in(head, |manager, occupant| {
                if manager.is_sampled(occupant, since_s) {
                    manager.entries.prefetch_all(occupant.index);
                    if let Some(behaviours) = &manager.behaviours {
                        behaviours.prefetch(occupant.index);
                    }
                    sampled += 1;
                }
            });
            self.each_in(head, |manager, occupant| {
                if manager.is_sampled(occupant, since_s) {
                    manager.sample(occupant);
                }
                if manager.falls_silent(occupant, since_s) {
                    manager.fall_silent(occupant.index);
                }
            });
            heads.start = head + 1;
        }
        sampled
    }

    fn each_in(&mut self, head: u32, mut each: impl FnMut(&mut Manager, Occupant)) {
        let mut next: Option<Place> = self.table.first_in(head);
        while let Some(place) = next {
            each(self, self.table.occupant(place));
            next = self.table.next_after(place);
        }
    }

    fn silence_s(&self, occupant: Occupant) -> u16 {
        self.clock.second().wrapping_sub(occupant.stamp)
    }

    fn is_sampled(&self, occupant: Occupant, since_s: u16) -> bool {
        self.silence_s(occupant) <= since_s
    }

    /// A flow that nobody has answered is never idle: of a flood there are many, and they end soon.
    fn falls_silent(&self, occupant: Occupant, since_s: u16) -> bool {
        let Some(behaviours) = &self.behaviours else {
            return false;
        };
        let slack_s = match self.config.effect {
            Effect::Arrival => SWEEP_SLACK_S,
            Effect::PacketTime { .. } => 0,
        };
        let beyond = self
            .silence_s(occupant)
            .checked_sub(behaviours.bounds.idle_s);
        !occupant.is_half_open && beyond.is_some_and(|beyond| beyond <= since_s + slack_s)
    }

    fn fall_silent(&mut self, index: u32) {
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        if behaviours.now(index) != Behaviour::Idle {
            let step = behaviours.fall_silent(index, &self.entries.counts(index));
            self.take_step(index, step, false);
        }
    }

    fn sample(&mut self, occupant: Occupant) {
        let Occupant { index, stamp, .. } = occupant;
        let until = match self.config.effect {
            Effect::Arrival => self.clock.second(),
            // Seconds without a packet of this flow may have passed unsampled, since no other flow had one either.
            Effect::PacketTime { .. } => stamp.wrapping_add(1),
        };
        let is_udp = self.entries.hot(index).key().protocol() == crate::key::UDP;
        let counts = self.entries.counts(index);
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        let Some(step) = behaviours.sample(index, &counts, until, is_udp) else {
            return;
        };
        if matches!(step.now, Behaviour::Interactive | Behaviour::Realtime) {
            // Bytes of such a flow do not count towards the bound.
            let bulk_bytes = behaviours.bounds.bulk_bytes;
            self.entries.arm(index, bulk_bytes + 1);
        }
        self.take_step(index, step, false);
    }

    /// The flow has ended: what came since its last sample is counted.
    pub(super) fn end_behaviour(&mut self, index: u32) {
        if let Some(behaviours) = &mut self.behaviours {
            let step = behaviours.end(index, &self.entries.counts(index));
            self.take_step(index, step, false);
        }
    }

    /// Counts what a look at a flow showed, and tells of a change. `in_walk`: a packet of the flow is being walked.
    fn take_step(&mut self, index: u32, step: Step, in_walk: bool) {
        let counts = &mut self.counters.behaviours;
        counts[step.counts_for as usize].packets += step.packets;
        counts[step.counts_for as usize].bytes += step.bytes;
        if step.now == step.before {
            return;
        }
        counts[step.now as usize].flows += 1;
        let is_live = self.config.effect == Effect::Arrival;
        if is_live {
            let flow = self.entries.flow_ref(index);
            self.outbox.change(Changed {
                flow,
                behaviour: step.now,
                at_us: self.clock.packet_us(),
            });
        }
        self.ask_for_behaviour(index, in_walk || is_live);
    }

    /// The behaviour that a flow has now; `None` of all flows where behaviours are off.
    pub(crate) fn behaviour(&self, index: u32) -> Behaviour {
        let behaviours = self.behaviours.as_ref();
        behaviours.map_or(Behaviour::None, |it| it.now(index))
    }

    /// That of a flow that has ended: what it was before it fell silent.
    pub(super) fn last_behaviour(&self, index: u32) -> Behaviour {
        let behaviours = self.behaviours.as_ref();
        behaviours.map_or(Behaviour::None, |it| it.active(index))
    }
}
