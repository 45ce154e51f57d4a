//! What few packets do to a flow: they open it, come out of line, or begin and end round trips.

use crate::flow::{
    AWAITS_REQUEST, AWAITS_RESPONSE, Flow, NO_SCALE, NOT_MEASURED, STATE_HANDSHAKE, STATE_PAYLOAD,
    STATE_UNSEEN, STATE_VOID, STATE_ZERO, Side, is_before,
};
use crate::segment::{ACK, FIN, RST, SYN, Segment};

/// A segment below the highest number is out of order, and not sent again, if it comes within the
/// first round trip behind that number; this many µs if no handshake was seen.
const REORDERED_WITHIN_US: u32 = 3000;
/// A segment that duplicate acknowledgements asked for within this time was sent again, µs.
const FAST_WITHIN_US: i64 = 20_000;
/// Duplicate acknowledgements that make a sender send again at once, without the first one.
const FAST_AFTER: u8 = 2;

impl Flow {
    /// What comes before all else for a packet that opens or ends, or of a side with a state.
    /// Returns the numbers that the segment takes; `None`: it is followed no further.
    #[cold]
    #[inline(never)]
    pub(crate) fn unusual(
        &mut self,
        from: usize,
        bytes: &[u8],
        flags: u8,
        payload: u32,
        size: u32,
        now: u32,
    ) -> Option<u32> {
        let segment = Segment::new(bytes, flags, payload, size)?;
        // Numbers of an RST need not be the sender's next ones. Without any of these flags a
        // segment is dropped (RFC 9293 §3.10.7.4).
        if segment.flags & RST != 0 || segment.flags & (SYN | ACK) == 0 {
            return None;
        }
        let is_syn = segment.flags & SYN != 0;
        let is_other = self.sides[from].next.wrapping_sub(1) != segment.seq;
        if is_syn && is_other && self.sides[from].state & STATE_UNSEEN == 0 {
            // Another connection between the same ports.
            for side in &mut self.sides {
                *side = Side { state: STATE_UNSEEN, scale: NO_SCALE, ..*side };
            }
            self.windows = [[u16::MAX, 0]; 2];
        }
        if self.sides[from].state & STATE_UNSEEN != 0 {
            self.meet(from, segment);
        }
        if is_syn {
            self.open(from, segment, now);
            if segment.flags & ACK == 0 {
                return self.open_alone(from, segment, now);
            }
        } else if self.sides[from].state & STATE_HANDSHAKE != 0 {
            self.establish(from, segment, now);
        }
        let is_new = !is_before(segment.seq, self.sides[from].next) && segment.payload != 0;
        if is_new && self.sides[from].state & STATE_PAYLOAD != 0 {
            self.sides[from].state &= !STATE_PAYLOAD;
            self.first_payload(from, now);
        }
        if self.sides[from].state & STATE_ZERO != 0 {
            match segment.window == 0 {
                true => self.count_zero(from, segment),
                false => self.sides[from].state &= !STATE_ZERO,
            }
        }
        Some(segment.length())
    }

    /// The first packet of a side.
    fn meet(&mut self, from: usize, segment: Segment<'_>) {
        let to = from ^ 1;
        // What was sent before this moment is taken as acknowledged.
        if self.sides[to].state & (STATE_UNSEEN | STATE_HANDSHAKE) != 0 {
            self.sides[to].acked = segment.seq;
        }
        let is_first = self.sides[to].state & STATE_UNSEEN != 0;
        if is_first || is_before(segment.ack, self.sides[from].acked) {
            self.sides[from].acked = segment.ack;
        }
        let acked = self.sides[to].acked;
        let own = &mut self.sides[from];
        own.state &= !STATE_UNSEEN;
        (own.next, own.probe) = (segment.seq, acked);
        // Any window is a new one.
        own.window_bytes = !segment.tcp.window_bytes;
    }

    /// A SYN or SYN-ACK: times, and the scale of windows, which both must offer (RFC 7323 §2.2).
    fn open(&mut self, from: usize, segment: Segment<'_>, now: u32) {
        let is_answer = segment.flags & ACK != 0;
        let is_awaited = self.sides[from ^ 1].state & STATE_HANDSHAKE != 0;
        self.sides[from].state |= STATE_HANDSHAKE;
        self.sides[from].scale = segment.tcp.scale().unwrap_or(NO_SCALE);
        if !is_answer {
            return;
        }
        if self.sides[0].scale == NO_SCALE || self.sides[1].scale == NO_SCALE {
            self.sides.iter_mut().for_each(|side| side.scale = 0);
        }
        if from == 1 && is_awaited {
            if self.server_handshake_us == NOT_MEASURED {
                self.server_handshake_us = now.wrapping_sub(self.step_us);
            }
            self.step_us = now;
        }
    }

    /// A SYN, whose acknowledgement number says nothing.
    fn open_alone(&mut self, from: usize, segment: Segment<'_>, now: u32) -> Option<u32> {
        if from == 0 && self.sides[1].state & STATE_UNSEEN != 0 {
            self.step_us = now;
        }
        let end = segment.seq.wrapping_add(segment.length());
        match segment.seq == self.sides[from].next {
            true => (self.sides[from].next, self.sides[from].next_us) = (end, now),
            false => self.one_out_of_line(from, segment, segment.length(), now),
        }
        None
    }

    /// The first packet of a side behind its SYN.
    fn establish(&mut self, from: usize, segment: Segment<'_>, now: u32) {
        let to = from ^ 1;
        let own = &mut self.sides[from];
        own.state &= !STATE_HANDSHAKE;
        own.window_bytes = !segment.tcp.window_bytes;
        if self.sides[to].state & STATE_UNSEEN != 0 {
            // Only this direction is seen.
            self.sides[from].acked = segment.ack;
        } else if from == 0
            && self.server_handshake_us != NOT_MEASURED
            && self.client_handshake_us == NOT_MEASURED
        {
            self.client_handshake_us = now.wrapping_sub(self.step_us);
        }
    }

    /// A segment that is not the next one: it was sent before, or something before it is missing.
    #[cold]
    #[inline(never)]
    pub(crate) fn out_of_line(
        &mut self,
        from: usize,
        bytes: &[u8],
        flags: u8,
        payload: u32,
        size: u32,
        now: u32,
    ) {
        let Some(segment) = Segment::new(bytes, flags, payload, size) else {
            return;
        };
        match segment.segments() {
            1 => self.one_out_of_line(from, segment, segment.length(), now),
            _ => self.each_of(from, segment, now),
        }
    }

    fn one_out_of_line(&mut self, from: usize, segment: Segment<'_>, length: u32, now: u32) {
        let (own, acked) = (self.sides[from], self.sides[from ^ 1].acked);
        let end = segment.seq.wrapping_add(length);
        let is_behind_probe = segment.seq == own.next.wrapping_sub(1);
        let is_sent_before = is_before(segment.seq, own.next);
        // A keep-alive (RFC 9293 §3.8.4), a probe of a window of zero, or a late acknowledgement.
        let is_keep_alive = is_behind_probe && segment.payload <= 1 && length == segment.payload;
        if is_keep_alive || is_sent_before && length == 0 {
            return;
        }
        // A probe of a window of zero is followed by the same byte with others.
        if is_sent_before && !(is_behind_probe && segment.payload > 1) {
            let is_reordered = is_before(acked, end)
                && end != own.next
                && !self.is_asked_for(from, segment)
                && now.wrapping_sub(own.next_us) < self.reordered_within_us();
            let counted = &mut self.counted[from];
            let counter = match is_reordered {
                true => &mut counted.out_of_order,
                false => &mut counted.retransmits,
            };
            *counter = counter.saturating_add(1);
            self.repeated[from ^ 1] = 0;
        } else if segment.payload != 0 && self.stage != 0 {
            self.first_payload(from, now);
        }
        let own = &mut self.sides[from];
        if is_before(own.next, end) {
            (own.next, own.next_us) = (end, now);
        }
        // Acknowledgements up to here may wait for what is missing, or be of either transmission.
        if is_before(acked, own.next) {
            own.probe = own.next;
            own.state |= if self.stage != 0 { STATE_VOID | STATE_PAYLOAD } else { STATE_VOID };
        }
    }

    /// The segments of a merged one, of which some may be the next ones.
    fn each_of(&mut self, from: usize, merged: Segment<'_>, now: u32) {
        let size = merged.size.max(1);
        let mut number = 0;
        while number < merged.segments() {
            let before = number * size;
            let payload = size.min(merged.payload - before);
            let is_last = before + payload == merged.payload;
            let length = if is_last { merged.length() - before } else { payload };
            let seq = merged.seq.wrapping_add(before);
            if number > 0 && is_before(seq, self.sides[from].next) {
                // Work stays bounded, however short the segments are.
                let alike = self.count_below(from, seq, size, merged.segments() - 1 - number, now);
                if alike > 0 {
                    number += alike;
                    continue;
                }
            }
            number += 1;
            if seq != self.sides[from].next {
                let one = Segment { seq, payload, size: payload, ..merged };
                self.one_out_of_line(from, one, length, now);
                continue;
            }
            if !is_before(self.sides[from ^ 1].acked, self.sides[from].probe) {
                self.begin_round_trip(from, seq.wrapping_add(payload), now);
            }
            // All that follow are the next ones.
            let own = &mut self.sides[from];
            (own.next, own.next_us) = (seq.wrapping_add(merged.length() - before), now);
            return;
        }
    }

    /// Counts segments of `size` from `seq` on that end below the highest number, at most `most`;
    /// returns how many.
    fn count_below(&mut self, from: usize, seq: u32, size: u32, most: u32, now: u32) -> u32 {
        let (own, acked) = (self.sides[from], self.sides[from ^ 1].acked);
        let alike = ((own.next.wrapping_sub(seq) - 1) / size).min(most);
        let old = match is_before(seq, acked) {
            true => (acked.wrapping_sub(seq) / size).min(alike),
            false => 0,
        };
        let is_soon = now.wrapping_sub(own.next_us) < self.reordered_within_us();
        let late = if is_soon { alike - old } else { 0 };
        let counted = &mut self.counted[from];
        counted.out_of_order = counted.out_of_order.saturating_add(late);
        counted.retransmits = counted.retransmits.saturating_add(alike - late);
        alike
    }

    /// Whether the other side has just asked for this segment by duplicate acknowledgements.
    fn is_asked_for(&self, from: usize, segment: Segment<'_>) -> bool {
        let to = &self.sides[from ^ 1];
        let since_us = self.sides[from].last_us.wrapping_sub(to.last_us);
        self.repeated[from ^ 1] >= FAST_AFTER
            && to.acked == segment.seq
            && since_us < FAST_WITHIN_US
    }

    fn reordered_within_us(&self) -> u32 {
        match self.client_handshake_us {
            NOT_MEASURED => REORDERED_WITHIN_US,
            client_us => self.server_handshake_us.saturating_add(client_us),
        }
    }

    /// Nothing of this side waits for its acknowledgement, and now its next numbers up to `end` do,
    /// unless they are a SYN or FIN.
    #[inline(never)]
    pub(crate) fn begin_round_trip(&mut self, from: usize, end: u32, now: u32) {
        if end == self.sides[from].next {
            return;
        }
        if self.stage != 0 {
            self.first_payload(from, now);
        }
        (self.sides[from].probe, self.probe_us[from]) = (end, now);
    }

    /// What a side sent is acknowledged.
    #[inline(never)]
    pub(crate) fn end_round_trip(&mut self, from: usize, now: u32) {
        self.repeated[from ^ 1] = 0;
        // Nothing is known to be on its way from a side that was not seen.
        if self.sides[from].state & STATE_UNSEEN != 0 {
            return;
        }
        if self.sides[from].state & STATE_VOID != 0 {
            self.sides[from].state &= !STATE_VOID;
            return;
        }
        let took_us = now.wrapping_sub(self.probe_us[from]) as i32;
        self.rtt[from].add(took_us.into());
    }

    /// A payload of a side, the first one if that is awaited.
    pub(crate) fn first_payload(&mut self, from: usize, now: u32) {
        match (self.stage, from) {
            (AWAITS_REQUEST, 0) => {
                (self.stage, self.step_us) = (AWAITS_RESPONSE, now);
                // Otherwise the response begins a round trip, and is seen there.
                if is_before(self.sides[0].acked, self.sides[1].probe) {
                    self.sides[1].state |= STATE_PAYLOAD;
                }
            }
            (AWAITS_RESPONSE, 1) => {
                (self.stage, self.response_us) = (0, now.wrapping_sub(self.step_us));
            }
            _ => {}
        }
    }

    /// A packet without payload that acknowledges nothing new, while data waits.
    #[cold]
    #[inline(never)]
    pub(crate) fn repeated_ack(&mut self, from: usize, seq: u32, ack: u32, window_bytes: u16) {
        let (own, to) = (&self.sides[from], &self.sides[from ^ 1]);
        let is_duplicate = ack == own.acked
            && seq == own.next
            && window_bytes == own.window_bytes
            && to.state & STATE_UNSEEN == 0
            && is_before(ack, to.next);
        if is_duplicate {
            let count = &mut self.counted[from].duplicate_acks;
            *count = count.saturating_add(1);
            self.repeated[from] = self.repeated[from].saturating_add(1);
        }
    }

    /// A window that is not the last one. The window of a SYN is not scaled (RFC 7323 §2.2).
    #[inline(never)]
    pub(crate) fn new_window(
        &mut self,
        from: usize,
        bytes: &[u8],
        flags: u8,
        payload: u32,
        size: u32,
    ) {
        if flags & SYN != 0 {
            return;
        }
        let Some(segment) = Segment::new(bytes, flags, payload, size) else {
            return;
        };
        let window = segment.window;
        self.sides[from].window_bytes = segment.tcp.window_bytes;
        let [lowest, highest] = &mut self.windows[from];
        (*lowest, *highest) = ((*lowest).min(window), (*highest).max(window));
        if window == 0 {
            self.sides[from].state |= STATE_ZERO;
            self.count_zero(from, segment);
        }
    }

    fn count_zero(&mut self, from: usize, segment: Segment<'_>) {
        // The last of merged ones has their FIN.
        let ends = u32::from(segment.flags & (SYN | FIN) != 0);
        let count = &mut self.counted[from].zero_windows;
        *count = count.saturating_add(segment.segments() - ends);
    }
}
