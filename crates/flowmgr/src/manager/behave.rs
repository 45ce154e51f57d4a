//! Behaviours in the walk and between bursts, and who learns of a change.

use std::ops::Range;

use super::walk::Walk;
use crate::behaviour::LOOK_AGAIN_S;
use crate::config::Effect;
use crate::entry::Carry;
use crate::part::Part;
use crate::table::BUCKETS_IN_GROUP;

/// Groups of buckets that are sampled at a time.
const GROUPS_AT_ONCE: usize = 16;

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
    /// now: they are passed over. The trips to memory of several groups overlap.
    pub fn sample_buckets(&mut self, mut heads: Range<u32>, since_s: u16) -> usize {
        if self.behaviours.is_none() {
            return 0;
        }
        let (mut sampled, now_s) = (0, self.flows.clock.second());
        if since_s >= LOOK_AGAIN_S {
            self.flows.table.make_all_due(now_s);
        }
        let mut groups: [Range<u32>; GROUPS_AT_ONCE] = Default::default();
        while !heads.is_empty() {
            let mut due = 0;
            while due < GROUPS_AT_ONCE
                && !heads.is_empty()
                && let Some(group) = self.flows.table.due_in(heads.clone(), now_s)
            {
                heads.start = group.end;
                self.flows.table.prefetch_in_use(group.clone());
                groups[due] = group;
                due += 1;
            }
            if due < GROUPS_AT_ONCE {
                heads.start = heads.end;
            }
            for group in &groups[..due] {
                sampled += self.prefetch_group(group.clone(), since_s);
            }
            for group in &groups[..due] {
                let again_s = self.sample_group(group.clone(), since_s);
                if group.len() == BUCKETS_IN_GROUP {
                    self.flows.table.put_off(group.start, now_s.wrapping_add(again_s));
                }
            }
        }
        sampled
    }

    /// Asks for the flows of a group that are to be sampled; returns how many they are.
    fn prefetch_group(&self, mut heads: Range<u32>, since_s: u16) -> usize {
        let mut found = 0;
        while let (Some(head), Some(behaviours)) =
            (self.flows.table.in_use_from(heads.start, heads.end), &self.behaviours)
        {
            found += behaviours.prefetch_bucket(&self.flows, head, since_s);
            heads.start = head + 1;
        }
        found
    }

    /// Samples a group; returns in how many seconds the next of its flows falls silent.
    fn sample_group(&mut self, mut heads: Range<u32>, since_s: u16) -> u16 {
        let mut again_s = LOOK_AGAIN_S;
        while let (Some(head), Some(behaviours)) =
            (self.flows.table.in_use_from(heads.start, heads.end), &mut self.behaviours)
        {
            let falls_silent_s = behaviours.sample_bucket(&mut self.flows, head, since_s);
            again_s = again_s.min(falls_silent_s);
            self.ask_for_changes(false);
            heads.start = head + 1;
        }
        again_s
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
