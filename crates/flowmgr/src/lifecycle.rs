//! How flows begin, are reported and end.

use std::ops::Range;

use crate::config::Effect;
use crate::entry::{
    Cold, LABEL_NOT_EMITTED, NOT_IN_EFFECT, STATE_EMITTED, STATE_IN_EFFECT, STATE_RST,
};
use crate::expiry::Step;
use crate::manager::settle::{InEffect, InEffectByDepth, Report};
use crate::manager::{BURST_MAX, Manager};
use crate::record::EndReason;
use crate::table::{Occupant, Place};
use crate::wire::{Headers, TCP, TCP_ACK, TCP_SYN};

/// The most that one burst sweeps where packets must not wait: buckets looked at, and flows ended or sampled before no further
/// [`PORTION`] is begun. More flows than a burst can begin, so the sweep does not fall behind for good.
const OWED_BUCKETS_MAX: u32 = 4096;
const OWED_ENDS_MAX: usize = 2 * BURST_MAX;
const OWED_SAMPLES_MAX: usize = 4 * BURST_MAX;
/// Buckets swept at a time.
const PORTION: u32 = 64;

impl Manager {
    /// Moves the clock and sweeps what is due: in a replay at once, so that results repeat; live, after the burst.
    #[inline(always)] // each packet asks, and nearly always it is still now
    pub(crate) fn advance(&mut self, time_us: i64) {
        if self.clock.is_now(time_us) {
            return;
        }
        if !self.clock.advance_near(time_us) {
            self.advance_far(time_us);
        }
        if self.sweep.is_due(self.clock.now_us()) {
            self.sweep_due();
        }
    }

    #[inline(never)]
    fn sweep_due(&mut self) {
        // Samples by packet time must not lack a packet, so they are taken at full seconds.
        let again_us = match self.behaviours.is_some() {
            true => self.clock.next_second_us(),
            false => i64::MAX,
        };
        let due = self.sweep.due(self.clock.now_us(), again_us);
        match self.config.effect {
            Effect::PacketTime { .. } => {
                self.sample_second();
                self.sweep_buckets(due);
            }
            Effect::Arrival => self.sweep.put_off(due),
        }
    }

    #[cold]
    fn advance_far(&mut self, time_us: i64) {
        match self.clock.advance_far(time_us) {
            Step::Near => {}
            Step::Jump => self.sweep_after_jump(),
            Step::Rebased => self.counters.clock_rebased += 1,
        }
    }

    /// Lets time pass where no packets come: moves the clock to `time_us`, never back, and ends a bounded part of the
    /// flows that are over by then.
    pub fn pass(&mut self, time_us: i64) {
        if self.clock.is_behind(time_us) {
            self.advance(time_us);
        }
        self.sweep_owed();
    }

    /// A bounded part of what was put off: after a pause a whole round is due, which would hold up packets for as long.
    #[inline]
    pub(crate) fn sweep_owed(&mut self) {
        if self.sweep.owed() != 0 {
            self.sweep_some();
        }
    }

    fn sweep_some(&mut self) {
        let before = self.alive;
        let (mut left, mut sampled) = (OWED_BUCKETS_MAX, 0);
        while left != 0
            && self.sweep.owed() != 0
            && before - self.alive < OWED_ENDS_MAX
            && sampled < OWED_SAMPLES_MAX
        {
            let heads = self.sweep.take_owed(PORTION.min(left));
            left -= heads.len() as u32;
            sampled += self.sample_swept(heads.clone());
            self.end_in_buckets(heads, Manager::is_over);
        }
    }

    /// Ends the flows of the next `due` buckets that are over.
    fn sweep_buckets(&mut self, mut due: u32) {
        while due != 0 {
            let heads = self.sweep.take(due);
            due -= heads.len() as u32;
            self.end_in_buckets(heads, Manager::is_over);
        }
    }

    /// Time jumped so far that stamps say nothing: all that can be over is.
    fn sweep_after_jump(&mut self) {
        self.end_in_buckets(0..self.table.buckets(), Manager::is_over_after_jump);
    }

    fn end_in_buckets(
        &mut self,
        mut heads: Range<u32>,
        is_over: impl Fn(&Manager, Occupant) -> bool,
    ) {
        while let Some(head) = self.table.in_use_from(heads.start, heads.end) {
            let mut next = self.table.first_in(head);
            while let Some(place) = next {
                next = if is_over(self, self.table.occupant(place)) {
                    self.end(place, EndReason::Idle);
                    self.table.at_or_after(place)
                } else {
                    self.table.next_after(place)
                };
            }
            heads.start = head + 1;
        }
    }

    /// Begins a flow with its first packet; `None` where the table is full.
    pub(crate) fn begin(&mut self, time_us: i64, headers: &Headers, hash: u64) -> Option<u32> {
        if !self.make_room(hash) {
            return None;
        }
        let (_, index) = self.table.insert(hash, self.clock.second())?;
        self.alive += 1;
        let flow_us = self.clock.flow_us(time_us);
        let tick = self.active.tick(flow_us);
        let hot = self.entries.hot_mut(index);
        hot.begin(&headers.key, headers.from_low);
        hot.reported_tick = tick;
        *self.entries.cold_mut(index) = Cold {
            first_us: time_us,
            flow_id: self.config.flow_id_first
                + self.counters.flows_begun.total() * self.config.flow_id_step,
            reported_us: flow_us,
            time_to_label_us: LABEL_NOT_EMITTED,
            ..Cold::default()
        };
        self.entries.begin_other_tasks(index);
        if let Some(counted) = &mut self.counted {
            counted.begin(index);
        }
        if let Some(rules) = &mut self.rules {
            rules.begin(index);
        }
        self.begin_behaviour(index);
        // An answer to a SYN that was not seen is no beginning either: its direction is taken for forward, and the series
        // lacks the first packet.
        let opens = headers.tcp_flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
        let midstream = headers.key.protocol() == TCP && !opens;
        self.series.begin(index, midstream, self.in_port);
        self.counters.flows_midstream += u64::from(midstream);
        self.counters.flows_begun.count(headers.key.kind);
        // With rules, when it is known whether they give a label or ask nothing.
        if self.rules.is_none() {
            self.name_by_ports(index, time_us);
        }
        Some(index)
    }

    /// Takes a flow out of the table; its entry waits for the record. `reason`
    /// is that of a flow that was not closed by FIN or RST.
    pub(crate) fn end(&mut self, place: Place, reason: EndReason) {
        let occupant = self.table.occupant(place);
        let Occupant {
            index, is_closed, ..
        } = occupant;
        self.table.remove(place);
        self.alive -= 1;
        // Most flows that end are out of the cache; they are settled after the burst.
        self.entries.prefetch_all(index);
        self.series.prefetch(index);
        if let Some(rules) = &self.rules {
            rules.prefetch(index);
        }
        let now_us = self.clock.packet_us();
        let reason = match is_closed {
            true => self.end_reason(index, reason),
            false => reason,
        };
        self.outbox.end(occupant, reason, self.position, now_us);
    }

    /// Why a flow ended that would have ended for `otherwise`.
    fn end_reason(&self, index: u32, otherwise: EndReason) -> EndReason {
        match self.entries.hot(index) {
            hot if hot.has(STATE_RST) => EndReason::Rst,
            hot if hot.is_closed() => EndReason::Fin,
            _ => otherwise,
        }
    }

    /// Ends every flow, in the order in which they began: the input is at its end.
    /// A flow that is over, and that the sweep has not come to yet, ends as if it had:
    /// where a flow lies in the table must not be seen in its record.
    pub fn drain(&mut self) {
        let now_us = self.clock.packet_us();
        let mut left = Vec::with_capacity(self.alive);
        let mut heads = 0..self.table.buckets();
        while let Some(head) = self.table.in_use_from(heads.start, heads.end) {
            let mut next = self.table.first_in(head);
            while let Some(place) = next {
                let occupant = self.table.occupant(place);
                let reason = match self.is_over(occupant) {
                    true => EndReason::Idle,
                    false => EndReason::Drain,
                };
                let flow_id = self.entries.cold(occupant.index).flow_id;
                left.push((flow_id, occupant, reason));
                next = self.table.next_after(place);
            }
            heads.start = head + 1;
        }
        left.sort_unstable_by_key(|&(flow_id, ..)| flow_id);
        self.table.clear();
        self.alive = 0;
        for (_, occupant, reason) in left {
            let reason = self.end_reason(occupant.index, reason);
            self.outbox.end(occupant, reason, self.position, now_us);
        }
    }

    /// Reports a flow that has gone on for the active timeout; true if there was a report, of packets in reverse among others.
    pub(crate) fn report_if_due(&mut self, index: u32, time_us: i64) -> bool {
        let flow_us = self.clock.flow_us(time_us);
        let hot = self.entries.hot(index);
        if !self.active.may_be_due(hot.reported_tick, flow_us) {
            return false;
        }
        if !self
            .active
            .is_due(self.entries.cold(index).reported_us, flow_us)
        {
            return false;
        }
        let last_us = hot.last_us;
        let in_effect = self.in_effect(index);
        if self.has_depths {
            let by_depth = self.in_effect_by_depth(index);
            self.outbox.note_in_effect(by_depth);
        }
        let report = Report {
            flow: self.entries.flow_ref(index),
            behaviour: self.behaviour(index),
            counts: self.entries.take_counts(index),
            in_effect,
            last_us,
            series_seen: self.series.seen_by_unit(index),
        };
        if let Some(rules) = &mut self.rules {
            rules.report(index, &report.counts);
        }
        if let Some(behaviours) = &mut self.behaviours {
            behaviours.report(index, &report.counts);
        }
        let is_answered = report.counts.packets[1] > 0;
        if is_answered {
            self.series.note_both_ways(index);
        }
        let cold = self.entries.cold_mut(index);
        (cold.reported_us, cold.bytes_before, cold.packets_before) = (flow_us, 0, 0);
        for depth in self.entries.deeper_mut(index) {
            if depth.packets_before != NOT_IN_EFFECT {
                (depth.bytes_before, depth.packets_before) = (0, 0);
            }
        }
        self.entries.hot_mut(index).reported_tick = self.active.tick(flow_us);
        self.outbox.report(report);
        is_answered
    }

    /// Packets and bytes since the last record for which the label counts, where
    /// packet time decides.
    pub(crate) fn in_effect(&self, index: u32) -> InEffect {
        let is_arrival = self.config.effect == Effect::Arrival;
        let hot = self.entries.hot(index);
        if is_arrival || !hot.has(STATE_EMITTED | STATE_IN_EFFECT) {
            return InEffect::default();
        }
        let cold = self.entries.cold(index);
        self.since(index, cold.packets_before, cold.bytes_before)
    }

    /// The same for each depth, if its answer should decide.
    pub(crate) fn in_effect_by_depth(&self, index: u32) -> InEffectByDepth {
        let mut by_depth = InEffectByDepth::default();
        by_depth[0] = self.in_effect(index);
        for (in_effect, depth) in by_depth[1..].iter_mut().zip(self.entries.deeper(index)) {
            if depth.packets_before != NOT_IN_EFFECT {
                *in_effect = self.since(index, depth.packets_before, depth.bytes_before);
            }
        }
        by_depth
    }

    fn since(&self, index: u32, packets_before: u32, bytes_before: u64) -> InEffect {
        let counts = self.entries.counts(index);
        InEffect {
            packets: counts.packets_total() - u64::from(packets_before),
            bytes: counts.bytes_total() - bytes_before,
        }
    }
}
