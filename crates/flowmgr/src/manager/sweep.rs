//! The sweep: ends flows that were silent for too long, and samples behaviours.

use super::walk::Walk;
use crate::config::BURST_MAX;
use crate::config::Effect;
use crate::part::Part;

/// What one burst sweeps at most where packets must not wait: buckets looked at, and flows ended or
/// sampled, after which no further [`PORTION`] begins. A burst begins fewer flows, so the sweep
/// does not fall behind for good.
const OWED_BUCKETS_MAX: u32 = 4096;
const OWED_ENDS_MAX: usize = 2 * BURST_MAX;
const OWED_SAMPLES_MAX: usize = 4 * BURST_MAX;
/// Buckets swept at a time.
const PORTION: u32 = 64;

impl<P: Part> Walk<P> {
    /// Moves the clock and sweeps what is due: in a replay at once, so that results repeat; live,
    /// after the burst.
    #[inline(always)] // each packet asks, and nearly always it is still now
    pub fn advance(&mut self, time_us: i64) {
        if self.flows.clock.is_now(time_us) {
            return;
        }
        if !self.flows.clock.advance_near(time_us) {
            self.flows.advance_far(time_us);
        }
        if self.flows.sweep.is_due(self.flows.clock.now_us()) {
            self.sweep_due();
        }
    }

    #[inline(never)]
    fn sweep_due(&mut self) {
        // Samples by packet time must not lack a packet, so they are taken at full seconds;
        // without behaviours the sweep goes on then, too, so that flows end at the same times.
        let again_us = self.flows.clock.next_second_us();
        let now_us = self.flows.clock.now_us();
        let mut due = self.flows.sweep.due(now_us, again_us);
        if self.flows.effect == Effect::Arrival {
            return self.flows.sweep.put_off(due);
        }
        let second = self.flows.clock.second();
        let behaviours = self.behaviours.as_mut();
        if let Some(since_s) = behaviours.and_then(|it| it.begin_second(second)) {
            self.sample_buckets(0..self.flows.table.buckets(), since_s);
        }
        while due != 0 {
            let heads = self.flows.sweep.take(due);
            due -= heads.len() as u32;
            self.flows.end_over(heads);
        }
    }

    /// See [`crate::Manager::pass`].
    pub fn pass(&mut self, time_us: i64) {
        if self.flows.clock.is_behind(time_us) {
            self.advance(time_us);
        }
        self.sweep_owed();
    }

    /// Sweeps a bounded part of what was put off: after a pause a whole round is due, which would
    /// hold up packets.
    #[inline]
    pub fn sweep_owed(&mut self) {
        if self.flows.sweep.owed() != 0 {
            self.sweep_some();
        }
    }

    fn sweep_some(&mut self) {
        let before = self.flows.alive();
        let (mut left, mut sampled) = (OWED_BUCKETS_MAX, 0);
        while left != 0
            && self.flows.sweep.owed() != 0
            && before - self.flows.alive() < OWED_ENDS_MAX
            && sampled < OWED_SAMPLES_MAX
        {
            let heads = self.flows.sweep.take_owed(PORTION.min(left));
            left -= heads.len() as u32;
            sampled += self.sample_buckets(heads.clone(), 1 + self.flows.lag_s());
            self.flows.end_over(heads);
        }
    }
}
