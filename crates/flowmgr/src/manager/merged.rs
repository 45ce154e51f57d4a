//! The walk of packets that are not the usual ones: a merged packet is walked as its segments, one by one, and where flows belong to
//! ports, a packet from another port is left out.

use std::slice;

use cring::{K_MAX, Label};

use super::{Fate, Manager, Packet, Staged};
use crate::config::Effect;
use crate::verdict::Verdict;
use crate::wire::{Headers, Segments};

impl Manager {
    /// Stage three of packets of which some were merged, or where flows belong to ports. Adds a fate for each, for a merged packet
    /// that of its last segment.
    #[inline(never)]
    pub(super) fn walk_mixed(
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
                    self.position += 1;
                    self.counters.verdicts.count(Verdict::SeenElsewhere);
                    fates.push(Fate::without_flow(Verdict::SeenElsewhere));
                }
                Ok(ref headers) if !packet.gso.is_none() => {
                    self.position += 1;
                    self.walk_merged(packet, headers, staged, now_ns, data, fates);
                }
                _ => {
                    self.counters.merged.unknown += u64::from(!packet.gso.is_none());
                    self.walk(
                        slice::from_ref(packet),
                        slice::from_ref(staged),
                        now_ns,
                        data,
                        fates,
                    );
                }
            }
            if self.must_stop() {
                break;
            }
        }
    }

    /// Whether the packet's flow belongs to another port. If it was over before the packet came, it belongs to none any more.
    fn is_seen_elsewhere(&mut self, time_us: i64, headers: &Headers, staged: &Staged) -> bool {
        self.advance(time_us);
        let is_it = |index| self.entries.hot(index).is_of(&headers.key);
        let Some(place) = self.table.find_from(staged.hash, staged.guess, is_it) else {
            return false;
        };
        let index = self.table.occupant(place).index;
        self.series.port(index) != self.port && !self.end_if_over(place, headers)
    }

    /// Walks the segments of a merged packet in order.
    ///
    /// Walked one by one are those that can be elements of a series, and the last. In between all are alike, so however short the
    /// segments are said to be, the work is bounded.
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
        let Some(segments) = Segments::of(packet.gso, frame, headers) else {
            self.counters.merged.unknown += 1;
            return self.walk_alone(packet, headers, staged, now_ns, data, fates);
        };
        let merged = &mut self.counters.merged;
        merged.packets += 1;
        merged.segments += u64::from(segments.count);
        merged.header_bytes += segments.repeated_bytes(headers.ip_at);
        let last = segments.count - 1;
        let mut number = 0;
        while number < last {
            // With every segment each series gets an element, for all have payload. When none takes any more, and the answer to
            // the last one counts as far as it can at this time, nothing changes from segment to segment. Only the first can
            // find that the flow is over and begin another.
            let is_collected = number > 0 && self.is_collected(headers, staged);
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
    }

    /// One packet with these headers, as if it had come by itself.
    fn walk_alone(
        &mut self,
        packet: &Packet,
        headers: &Headers,
        staged: &Staged,
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        let staged = Staged {
            headers: Ok(*headers),
            ..*staged
        };
        // It was counted when it came.
        self.position -= 1;
        self.walk(slice::from_ref(packet), &[staged], now_ns, data, fates);
    }

    /// The flow's entry, if it is in the table.
    fn entry_of(&self, headers: &Headers, staged: &Staged) -> Option<u32> {
        let is_it = |index| self.entries.hot(index).is_of(&headers.key);
        let place = self.table.find_from(staged.hash, staged.guess, is_it)?;
        Some(self.table.occupant(place).index)
    }

    /// Whether no packet of the flow can be an element of a series any more.
    fn is_collected(&self, headers: &Headers, staged: &Staged) -> bool {
        self.entry_of(headers, staged)
            .is_some_and(|index| self.entries.hot(index).has_all(self.collected))
    }

    /// Counts `packets` more that differ in nothing from one that was just walked.
    fn count_alike(&mut self, verdict: Verdict, headers: &Headers, staged: &Staged, packets: u32) {
        let (many, length) = (u64::from(packets), headers.length);
        let bytes = many * u64::from(length);
        self.counters.verdicts.count_many(verdict, many);
        // Without an entry the table is full.
        let Some(index) = self.entry_of(headers, staged) else {
            return;
        };
        let direction = self.entries.hot(index).direction(headers.from_low);
        self.count_sum(index, direction, many, bytes);
        self.counters.flow_bytes += bytes;
        if self.rules.is_some() {
            self.wait_alike(index, packets);
            self.ask_for_counts(index);
        }
        if verdict != Verdict::Labelled {
            return;
        }
        self.counters.labelled_bytes += bytes;
        // By packet time they count with the flow's record.
        if self.config.effect == Effect::Arrival
            && let (_, Label::Class { class, .. }) = self.entries.label(index).read()
            && let Some(volume) = self.counters.labelled_by_class.get_mut(usize::from(class))
        {
            volume.add(many, bytes);
        }
    }
}
