//! What a flow's service is told by the walk, and what it needs to know of a flow that waits for
//! one.

use cring::TASKS_MAX;

use super::walk::Walk;
use crate::part::Part;
use crate::record::EndReason;
use crate::services::{Ended, Facts, Hop};
use crate::wire::{self, Headers, TCP_RST};

impl<P: Part> Walk<P> {
    /// Tells the flow's service, if it has one, of a packet.
    #[inline(always)]
    pub fn tell_service(&mut self, index: u32, direction: usize, headers: &Headers) {
        let Some(services) = &mut self.services else { return };
        let from = (&headers.key, headers.from_low);
        services.packets(index, from, direction, 1, headers.length.into());
    }

    /// The same where flows may wait for their service. `frame`: link type and bytes.
    #[inline(never)]
    pub fn await_service(
        &mut self,
        index: u32,
        direction: usize,
        headers: &Headers,
        (link, frame): (u16, &[u8]),
    ) {
        if !self.services.as_ref().is_some_and(|it| it.waits(index)) {
            return self.tell_service(index, direction, headers);
        }
        let frame = Some((wire::vlan(link, frame), wire::mac(link, frame)));
        let hop = Hop { direction, packets: 1, bytes: headers.length.into(), frame };
        self.join_service(index, Some(hop), self.flows.entries.hot(index).last_us());
    }

    /// Tells the flow's service of packets in one direction that were not walked one by one.
    pub fn tell_service_of(&mut self, index: u32, direction: usize, packets: u64, bytes: u64) {
        let Some(services) = &mut self.services else { return };
        let hot = self.flows.entries.hot(index);
        if services.waits(index) {
            let hop = Hop { direction, packets, bytes, frame: None };
            return self.join_service(index, Some(hop), hot.last_us());
        }
        let from_low = hot.is_low_forward() == (direction == 0);
        services.packets(index, (&hot.key(), from_low), direction, packets, bytes);
    }

    /// The flow's counts restart: what it has had so far counts for its service, if that is known.
    #[inline(never)]
    pub fn join_before_report(&mut self, index: u32) {
        if self.services.as_ref().is_some_and(|it| it.waits(index)) {
            let nothing = Hop { direction: 0, packets: 0, bytes: 0, frame: None };
            self.join_service(index, Some(nothing), self.flows.entries.hot(index).last_us());
        }
    }

    /// Looks for the service of a flow that waits for one, by what is known of the flow now: at the
    /// packet of this time, or at its end.
    #[cold]
    #[inline(never)]
    fn join_service(&mut self, index: u32, packet: Option<Hop>, time_us: i64) {
        let Walk { flows, labels, rules, series, headers, services, .. } = self;
        let Some(services) = services else { return };
        let mut classes = [None; TASKS_MAX];
        for task in labels.tasks.ids().filter(|it| services.label_tasks() >> it.0 & 1 != 0) {
            classes[task.index()] = labels.class_at(flows, task, index, time_us);
        }
        let (hot, counts) = (flows.entries.hot(index), flows.entries.counts(index));
        let facts = Facts {
            key: hot.key(),
            is_low_forward: hot.is_low_forward(),
            is_midstream: series.store.is_midstream(index),
            in_port: headers.in_port(index),
            rule: rules.name_of_rule(flows, index),
            classes,
            packet,
        };
        services.join(index, &facts, &counts);
    }

    /// Tells the flow's service that a packet has closed the flow: at once, or where the packet is
    /// a segment of a merged one, once that was measured. While its rule is asked for, a flow that
    /// waits for its service may still get one: its end counts when it leaves the table.
    #[inline(never)]
    pub fn close_for_service(&mut self, index: u32, headers: &Headers, time_us: i64) {
        if self.flows.entries.hot(index).policy.is_asked()
            && self.services.as_ref().is_some_and(|it| it.waits(index))
        {
            return;
        }
        let reason = match headers.tcp_flags & TCP_RST {
            0 => EndReason::Fin,
            _ => EndReason::Rst,
        };
        match self.is_segment {
            true => self.closed = Some((index, reason, time_us)),
            false => self.end_for_service(index, reason, time_us),
        }
    }

    /// Tells the flow's service, if it has one and was not told yet, that the flow has ended.
    #[inline(never)]
    pub fn end_for_service(&mut self, index: u32, reason: EndReason, time_us: i64) {
        if self.services.as_ref().is_some_and(|it| it.waits(index)) {
            self.join_service(index, None, time_us);
        }
        let Some(services) = self.services.as_mut().filter(|it| it.has_open(index)) else {
            return;
        };
        let entries = &self.flows.entries;
        let measured = self.measured.as_ref();
        let told = measured.map(|it| it.told(entries, index, &entries.counts(index)));
        let lasted_us = entries.hot(index).last_us().saturating_sub(entries.cold(index).first_us);
        services.end(index, Ended { reason, lasted_us, time_us, told });
    }
}
