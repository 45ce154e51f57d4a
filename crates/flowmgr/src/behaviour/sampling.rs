//! When behaviours are judged: in the walk when a counter carries, and in samples between bursts.

use super::{Behaviour, Behaviours, Step};
use crate::config::Effect;
use crate::flows::Flows;
use crate::outbox::Changed;
use crate::table::{Occupant, Place};

/// Changes noted before they are taken, at most: two for each flow of a bucket's chain.
pub(super) const CHANGED_MAX: usize = 2 * crate::table::CHAIN_SLOTS;

/// Seconds behind the last packet within which a live sweep, once a second, finds a flow that has
/// fallen silent.
const SWEEP_SLACK_S: u16 = 3;

/// The longest time until a group of buckets is looked at again: stamps wrap.
pub const LOOK_AGAIN_S: u16 = 1 << 14;

impl Behaviours {
    /// A flow's byte counter has carried `times` times: either the flow crosses the bound, or its
    /// counters are set to carry again where it may.
    pub fn carried(&mut self, flows: &mut Flows, index: u32, times: u64) {
        if times == 0 || self.active(index) == Behaviour::Bulk {
            return;
        }
        let left = flows.entries.left(index, times);
        if left > 0 {
            flows.entries.arm(index, left as u32);
            return;
        }
        let step = self.cross(index, &flows.entries.counts(index));
        self.take_step(flows, index, step);
    }

    /// By packet time: notes that this second has come. Returns the seconds since the one before,
    /// if it is a new one.
    pub fn begin_second(&mut self, second: u16) -> Option<u16> {
        match self.sampled.replace(second) {
            Some(sampled) if sampled == second => None,
            Some(sampled) => Some(second.wrapping_sub(sampled)),
            None => Some(0),
        }
    }

    /// Asks for the flows of a bucket that had a packet within the last seconds; returns how many
    /// they are.
    pub fn prefetch_bucket(&self, flows: &Flows, head: u32, since_s: u16) -> usize {
        let mut found = 0;
        let mut next: Option<Place> = flows.table.first_in(head);
        while let Some(place) = next {
            let occupant = flows.table.occupant(place);
            if silence_s(flows, occupant) <= since_s {
                flows.entries.prefetch_all(occupant.index);
                crate::prefetch::prefetch(&self.states, occupant.index as usize);
                found += 1;
            }
            next = flows.table.next_after(place);
        }
        found
    }

    /// Samples the flows of a bucket that had a packet within the last seconds, and looks for flows
    /// that have fallen silent. Returns in how many seconds the next one falls silent, if no packet
    /// comes.
    pub fn sample_bucket(&mut self, flows: &mut Flows, head: u32, since_s: u16) -> u16 {
        let mut again_s = LOOK_AGAIN_S;
        let mut next: Option<Place> = flows.table.first_in(head);
        while let Some(place) = next {
            let occupant = flows.table.occupant(place);
            if silence_s(flows, occupant) <= since_s {
                self.sample_flow(flows, occupant);
            }
            if self.falls_silent(flows, occupant, since_s) {
                let index = occupant.index;
                let step = self.fall_silent(index, &flows.entries.counts(index));
                self.take_step(flows, index, step);
            }
            let left_s = match silence_s(flows, occupant) {
                // Another packet in this second does not make the group due.
                0 => 1,
                _ if occupant.is_half_open => 0,
                silence_s => self.bounds.idle_s.saturating_sub(silence_s),
            };
            if left_s > 0 {
                again_s = again_s.min(left_s);
            }
            next = flows.table.next_after(place);
        }
        again_s
    }

    /// Whether a flow has become idle within the last `since_s` seconds. A half-open flow is never
    /// idle: a flood brings many of them, and they end soon.
    fn falls_silent(&self, flows: &Flows, occupant: Occupant, since_s: u16) -> bool {
        let slack_s = match flows.effect {
            Effect::Arrival => SWEEP_SLACK_S,
            Effect::PacketTime { .. } => 0,
        };
        let beyond = silence_s(flows, occupant).checked_sub(self.bounds.idle_s);
        !occupant.is_half_open
            && beyond.is_some_and(|beyond| beyond <= since_s + slack_s)
            && self.now(occupant.index) != Behaviour::Idle
    }
    fn sample_flow(&mut self, flows: &mut Flows, occupant: Occupant) {
        let Occupant { index, stamp, .. } = occupant;
        let until = match flows.effect {
            Effect::Arrival => flows.clock.second(),
            // Seconds without a packet of this flow may have passed unsampled, since no other flow
            // had one either.
            Effect::PacketTime { .. } => stamp.wrapping_add(1),
        };
        let is_udp = flows.entries.hot(index).key().protocol() == crate::key::UDP;
        let counts = flows.entries.counts(index);
        let Some(step) = self.sample(index, &counts, until, is_udp) else {
            return;
        };
        if matches!(step.now, Behaviour::Interactive | Behaviour::Realtime) {
            // Bytes of such a flow do not count towards the bound.
            let bulk_bytes = self.bounds.bulk_bytes;
            flows.entries.arm(index, bulk_bytes + 1);
        }
        self.take_step(flows, index, step);
    }

    /// The flow has ended: counts what came since its last sample.
    pub fn end_flow(&mut self, flows: &mut Flows, index: u32) {
        let step = self.end(index, &flows.entries.counts(index));
        self.take_step(flows, index, step);
    }

    /// Counts what a look at a flow showed, and notes a change.
    fn take_step(&mut self, flows: &mut Flows, index: u32, step: Step) {
        let counts = &mut flows.counters.behaviours;
        counts[step.counts_for as usize].packets += step.packets;
        counts[step.counts_for as usize].bytes += step.bytes;
        if step.now == step.before {
            return;
        }
        counts[step.now as usize].flows += 1;
        if flows.effect == Effect::Arrival {
            let changed = Changed {
                flow: flows.entries.flow_ref(index),
                behaviour: step.now,
                at_us: flows.clock.packet_us(),
            };
            flows.outbox.change(changed);
        }
        debug_assert!(self.changed.len() < CHANGED_MAX, "nobody was told of changes");
        self.changed.push(index);
    }

    /// Takes the flows whose behaviour has changed, to be told; [`Self::put_changed`] takes the
    /// vector back.
    pub fn take_changed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.changed)
    }

    /// Gives the vector back for reuse.
    pub fn put_changed(&mut self, mut changed: Vec<u32>) {
        changed.clear();
        self.changed = changed;
    }
}

fn silence_s(flows: &Flows, occupant: Occupant) -> u16 {
    flows.clock.second().wrapping_sub(occupant.stamp)
}
