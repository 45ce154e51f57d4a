//! The path of a series: packet by packet into the store; once a depth's elements are complete, on
//! the ring, or answered at once.

use super::walk::Walk;
use super::{Fate, Given, Packet, Staged};
use crate::asked::Subject;
use crate::config::Effect;
use crate::entry::STATE_COLLECTED;
use crate::ids::TaskId;
use crate::part::Part;
use crate::series::{Arrival, Element};
use crate::verdict::Verdict;
use crate::wire::Headers;

/// The label that came with the packet at this place, if one did.
fn given_at(given: &[Given], at: usize) -> Option<Given> {
    let found = given.binary_search_by_key(&at, |it| it.at);
    found.ok().map(|number| given[number])
}

impl<P: Part> Walk<P> {
    /// Adds a packet to the series that it is an element of; `at` is its [`Packet::at`],
    /// `None` for a packet that is not of this burst.
    /// Returns whether a label may count for the packet itself.
    // Out of line: most packets belong to flows whose series is complete, and their walk then has
    // more registers.
    #[inline(never)]
    pub fn collect(
        &mut self,
        index: u32,
        direction: usize,
        staged: &Staged,
        time_us: i64,
        now_ns: u64,
        at: Option<usize>,
    ) -> bool {
        let Ok(headers) = &staged.headers else {
            return false;
        };
        let arrival = || Arrival { index, hash: staged.hash, time_us, now_ns, given: None };
        // The flow began before the first packet seen. With more tasks another series may still be
        // incomplete.
        let hot = self.flows.entries.hot(index);
        if self.labels.tasks.count() == 1 && hot.is_withheld() {
            return false;
        }
        if self.rules.is_unasked(index) || headers.key.is_icmp() {
            return false;
        }
        if self.series.store.is_lengths_only() {
            return self.series.store.add_length(index, direction, headers.length)
                && self.complete(arrival(), at, 0);
        }
        // By packet time most packets are of flows whose series are complete.
        if self.series.store.is_complete(index) {
            return false;
        }
        // Only records need offsets, and the first time lies in the cold line.
        let offset_us = match self.series.share.is_none() {
            false => time_us.saturating_sub(self.flows.entries.cold(index).first_us),
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
        let mut may_count = false;
        for unit in 0..self.series.store.units() {
            if !self.series.store.counts(unit, element.payload) {
                continue;
            }
            if self.series.store.add(index, unit, &element) {
                may_count |= self.complete(arrival(), at, unit);
            }
        }
        may_count
    }

    /// The packet completes the series of one or several depths, as the last so far of a unit.
    /// Sends each series that is due and not withheld, or has it answered at once. Returns whether
    /// a label may count from this packet on: one answered at once, or by packet time any.
    fn complete(&mut self, arrival: Arrival, at: Option<usize>, unit: usize) -> bool {
        let index = arrival.index;
        let mut may_count = false;
        let seen = self.series.store.seen_by_unit(index);
        for depth in self.labels.tasks.depth_ids() {
            if !self.labels.tasks.becomes_due(depth, unit, &seen) {
                continue;
            }
            let has_conditions = self.labels.tasks.has_conditions || self.rules.is_on();
            let subject = has_conditions.then(|| self.subject(index));
            let is_midstream = self.series.store.is_midstream(index);
            let flows = &mut self.flows;
            if !self.labels.sends(flows, &arrival, depth, subject.as_ref(), is_midstream) {
                continue;
            }
            let task = self.labels.tasks.of_depth(depth);
            let is_by_port = self.labels.class_by_port(flows, task, index).is_some();
            let tasks = &self.labels.tasks;
            // Its answer could change nothing.
            if is_by_port && !tasks.may_contradict(depth) {
                flows.entries.leave_unasked(depth, index);
                may_count |= flows.effect != Effect::Arrival;
                continue;
            }
            if !self.series.is_inline(task) {
                self.series.send(flows, &arrival, depth, tasks, is_by_port);
                may_count |= self.flows.effect != Effect::Arrival;
                continue;
            }
            let is_its = |it: &Given| {
                let elements = usize::from(it.elements);
                // Where the label was given, the flow may have begun later.
                task == TaskId::FIRST && elements == tasks.k(depth) && it.elements == seen[0]
            };
            let given = at.and_then(|at| given_at(&self.given, at)).filter(is_its);
            let arrival = Arrival { given, ..arrival };
            self.series.ask(flows, &arrival, depth, tasks, (is_by_port, &mut self.more));
            may_count = true;
            if task != TaskId::FIRST {
                self.note_label_of_other(task, index);
            }
        }
        if self.labels.tasks.count() > 1
            && self.flows.effect == Effect::Arrival
            && self.series.store.is_complete(index)
        {
            self.flows.entries.hot_mut(index).set(STATE_COLLECTED);
        }
        may_count
    }

    /// A label counts for the packet that completed its series, if it is known, or by packet time
    /// without a delay.
    #[inline(never)]
    pub fn label_own<const RULES: bool>(
        &mut self,
        at: usize,
        index: u32,
        packet: &Packet,
        (headers, staged): (&Headers, &Staged),
        fate: &mut Fate,
        data: &mut [u8],
    ) {
        // A rule that was known drops it.
        if fate.verdict == Verdict::Dropped {
            return;
        }
        let (labels, flows) = (&mut self.labels, &mut self.flows);
        fate.verdict = labels.label_own::<RULES>(flows, index, packet, headers, fate, data);
        if RULES && !self.rules.waits_by(at, fate.verdict) {
            self.act(at, index, packet, (headers, staged), fate, data);
        }
    }

    /// What tasks' conditions ask about a flow.
    pub fn subject(&self, index: u32) -> Subject {
        let hot = self.flows.entries.hot(index);
        let key = hot.key();
        let (source, destination) = key.ends(hot.is_low_forward());
        Subject {
            protocol: key.protocol(),
            source,
            destination,
            in_port: self.headers.in_port(index),
            sample: self.flows.sample_of(&key),
            is_midstream: self.series.store.is_midstream(index),
            has_rules: self.rules.is_on(),
            unasked: self.rules.unasked(index),
        }
    }

    /// Gives a flow that has just begun the labels of its port, for each task that says so. Returns
    /// the first task's class.
    pub fn name_by_ports(&mut self, index: u32, time_us: i64) -> Option<u16> {
        if !self.labels.tasks.has_ports_first || self.rules.is_unasked(index) {
            return None;
        }
        let subject = self.subject(index);
        self.labels.name_by_ports(&mut self.flows, index, &subject, time_us)
    }
}
