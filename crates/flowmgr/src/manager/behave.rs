//! Behaviours in the walk and between bursts, and who learns of a change.

use std::ops::Range;

use super::walk::Walk;
use crate::behaviour::LOOK_AGAIN_S;
use crate::config::Effect;
use crate::entry::Carry;
use crate::part::Part;

impl<P: Part> Walk<P> {
    /// Takes what a counter of the hot line cannot hold: once in 255 packets, in 16 MiB, and where
    /// a flow may have crossed the bound of `bulk`.
    #[cold]
    #[inline(never)]
    pub fn carry(&mut self, index: u32, direction: usize, carry: Carry) {
        self.flows.entries.carry(index, direction, carry);
        self.carried(index, carry.bytes.into());
    }

    /// Counts `packets` with `bytes` in total.
    pub fn count_sum(&mut self, index: u32, direction: usize, packets: u64, bytes: u64) {
        let carried = self.flows.entries.count_sum(index, direction, packets, bytes);
        self.carried(index, carried);
    }

    fn carried(&mut self, index: u32, times: u64) {
        if let Some(behaviours) = &mut self.behaviours {
            behaviours.carried(&mut self.flows, index, times);
            self.ask_for_changes(true);
        }
    }

    /// Samples the flows of these buckets, see [`crate::behaviour`]; returns how many it looked at.
    /// Most groups of buckets have had no packet since the last time, and no flow that falls silent
    /// now: they are passed over.
    pub fn sample_buckets(&mut self, heads: Range<u32>, since_s: u16) -> usize {
        let (mut sampled, now_s) = (0, self.flows.clock.second());
        let mut group = heads.start..heads.start;
        while group.end < heads.end {
            group = group.end..self.flows.table.group_end(group.end).min(heads.end);
            if since_s < LOOK_AGAIN_S && !self.flows.table.is_due(group.start, now_s) {
                continue;
            }
            self.flows.table.prefetch_in_use(group.clone());
            let is_whole = group.len() == 64;
            let (looked_at, again_s) = self.sample_group(group.clone(), since_s);
            sampled += looked_at;
            if is_whole {
                self.flows.table.put_off(group.start, now_s.wrapping_add(again_s));
            }
        }
        sampled
    }

    /// Samples a group; returns what [`crate::behaviour::Behaviours::sample_bucket`] does.
    fn sample_group(&mut self, mut heads: Range<u32>, since_s: u16) -> (usize, u16) {
        let (mut sampled, mut again_s) = (0, LOOK_AGAIN_S);
        while let (Some(head), Some(behaviours)) =
            (self.flows.table.in_use_from(heads.start, heads.end), &mut self.behaviours)
        {
            let (of_bucket, falls_silent_s) =
                behaviours.sample_bucket(&mut self.flows, head, since_s);
            sampled += of_bucket;
            again_s = again_s.min(falls_silent_s);
            self.ask_for_changes(false);
            heads.start = head + 1;
        }
        (sampled, again_s)
    }

    /// Asks for the rules of flows whose behaviour has changed. `in_walk`: a packet of the flow is
    /// being walked.
    pub fn ask_for_changes(&mut self, in_walk: bool) {
        let Some(behaviours) = &mut self.behaviours else {
            return;
        };
        let changed = behaviours.take_changed();
        let may_raise = in_walk || self.flows.effect == Effect::Arrival;
        for &index in &changed {
            let cause = self.rules.cause_by_behaviour(&mut self.flows, index, may_raise);
            self.ask_now(index, cause);
        }
        if let Some(behaviours) = &mut self.behaviours {
            behaviours.put_changed(changed);
        }
    }
}
