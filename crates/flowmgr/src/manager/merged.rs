//! The walk of packets that are not the usual ones: a merged packet is walked as its segments, one
//! by one, and where flows belong to ports, a packet from another port is left out.

use std::slice;

use cring::{K_MAX, Label};

use super::walk::Walk;
use super::{Fate, Packet, Staged};
use crate::config::Effect;
use crate::part::{Part, Seen};
use crate::verdict::Verdict;
use crate::wire::{Headers, Segments};

impl<P: Part> Walk<P> {
    /// Stage three of bursts with merged packets, or where flows belong to ports. Adds a fate for
    /// each packet; a merged packet has its last segment's.
    #[inline(never)]
    pub fn walk_mixed(
        &mut self,
        packets: &[Packet],
        staged: &[Staged],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        for (packet, staged) in packets.iter().zip(staged) {
            match staged.headers {
                Ok(ref headers)
                    if self.port != 0
                        && self.is_seen_elsewhere(packet.time_us, headers, staged) =>
                {
                    self.flows.position += 1;
                    self.flows.counters.verdicts.count(Verdict::SeenElsewhere);
                    fates.push(Fate::without_flow(Verdict::SeenElsewhere));
                }
                Ok(ref headers) if !packet.gso.is_none() => {
                    self.flows.position += 1;
                    self.walk_merged(packet, headers, staged, now_ns, data, fates);
                }
                _ => {
                    self.flows.counters.merged.unknown += u64::from(!packet.gso.is_none());
                    self.walk(
                        slice::from_ref(packet),
                        slice::from_ref(staged),
                        now_ns,
                        data,
                        fates,
                    );
                }
            }
            if self.rules.must_stop(&self.flows) {
                break;
            }
        }
    }

    /// Whether the packet's flow belongs to another port. If it was over before the packet came, it
    /// belongs to none any more.
    fn is_seen_elsewhere(&mut self, time_us: i64, headers: &Headers, staged: &Staged) -> bool {
        self.advance(time_us);
        let Some(place) = self.flows.find(&headers.key, staged.hash, staged.guess) else {
            return false;
        };
        let index = self.flows.table.occupant(place).index;
        if self.headers.in_port(index) == self.port || self.flows.end_if_over(place, headers) {
            return false;
        }
        if self.flows.entries.hot(index).direction(headers.from_low) == 0 {
            self.headers.note_out_port(index, self.port);
        }
        true
    }

    /// Walks the segments of a merged packet in order.
    ///
    /// Only segments that can be elements of a series, and the last one, are walked one by one. All
    /// between are alike and counted together, so the work is bounded however short the segments
    /// are.
    fn walk_merged(
        &mut self,
        packet: &Packet,
        headers: &Headers,
        staged: &Staged,
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        let frame = &data[packet.at..packet.at + packet.captured as usize];
        let Some(segments) = Segments::new(packet.gso, frame, headers) else {
            self.flows.counters.merged.unknown += 1;
            let (packets, staged) = (slice::from_ref(packet), slice::from_ref(staged));
            // It was counted when it came.
            self.flows.position -= 1;
            return self.walk(packets, staged, now_ns, data, fates);
        };
        let merged = &mut self.flows.counters.merged;
        merged.packets += 1;
        merged.segments += u64::from(segments.count);
        merged.header_bytes += segments.repeated_bytes(headers.ip_at);
        let last = segments.count - 1;
        let mut number = 0;
        while number < last {
            // All segments have payload, so each adds an element to each series. Once no series
            // takes more, and the answer to the last one counts as far as it can at this time,
            // nothing changes from segment to segment. Only the first segment can find that the
            // flow is over and begin another.
            let is_collected = number > 0
                && self.entry_of(headers, staged).is_some_and(|index| {
                    let hot = self.flows.entries.hot(index);
                    hot.has_all(self.labels.collected())
                });
            let is_steady = is_collected || number as usize > K_MAX;
            let segment = segments.headers(headers, number);
            self.walk_alone(packet, &segment, staged, now_ns, data, fates);
            number += 1;
            if let Some(fate) = fates.pop()
                && is_steady
            {
                let alike = last - number;
                self.count_alike(fate.verdict, &segment, staged, alike);
                number += alike;
            }
        }
        let segment = segments.headers(headers, last);
        self.walk_alone(packet, &segment, staged, now_ns, data, fates);
        if let Some(index) = self.measured.as_ref().and_then(|_| self.entry_of(headers, staged)) {
            let direction = self.flows.entries.hot(index).direction(headers.from_low);
            if let Some(measured) = &mut self.measured {
                measured.packet(index, direction, (headers, Some(&segments)), packet, data);
            }
        }
        if let Some((index, reason, time_us)) = self.closed.take() {
            self.end_for_service(index, reason, time_us);
        }
    }

    /// One segment with these headers, as if it had come by itself.
    fn walk_alone(
        &mut self,
        packet: &Packet,
        headers: &Headers,
        staged: &Staged,
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        let staged = Staged { headers: Ok(*headers), ..*staged };
        // It was counted when it came.
        self.flows.position -= 1;
        self.is_segment = true;
        self.walk(slice::from_ref(packet), &[staged], now_ns, data, fates);
        self.is_segment = false;
    }

    /// Counts `packets` more that are identical to the one just walked.
    fn count_alike(&mut self, verdict: Verdict, headers: &Headers, staged: &Staged, packets: u32) {
        let (many, length) = (u64::from(packets), headers.length);
        let bytes = many * u64::from(length);
        self.flows.counters.verdicts.count_many(verdict, many);
        // Without an entry the table is full.
        let Some(index) = self.entry_of(headers, staged) else {
            return;
        };
        let direction = self.flows.entries.hot(index).direction(headers.from_low);
        self.count_sum(index, direction, many, bytes);
        self.flows.counters.flow_bytes += bytes;
        if self.rules.is_on() {
            self.rules.wait_alike(&self.flows, index, packets);
            let cause = self.rules.cause_by_counts(&self.flows, index);
            self.ask_now(index, cause);
        }
        let time_us = self.flows.entries.hot(index).last_us();
        let seen = Seen { headers, time_us, direction, packets };
        self.more.packet(index, &seen);
        self.tell_service_of(index, direction, many, bytes);
        if verdict != Verdict::Labelled {
            return;
        }
        self.flows.counters.labelled_bytes += bytes;
        // By packet time they count with the flow's record.
        if self.flows.effect == Effect::Arrival
            && let (_, Label::Class { class, .. }) = self.flows.entries.label(index).read()
            && let Some(volume) = self.flows.counters.labelled_by_class.get_mut(usize::from(class))
        {
            volume.add(many, bytes);
        }
    }

    /// The flow's entry, if it is in the table.
    fn entry_of(&self, headers: &Headers, staged: &Staged) -> Option<u32> {
        let place = self.flows.find(&headers.key, staged.hash, staged.guess)?;
        Some(self.flows.table.occupant(place).index)
    }
}
