//! What is kept of a flow, and what the usual packet does to it.

use crate::segment::{ACK, FIN, RST, SYN, Tcp};
use crate::{Feature, Features, Rtt};

/// What is kept of one side: what it sent, as far as each packet must know it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Side {
    /// The number behind the last one that it sent.
    pub next: u32,
    /// The highest number that it has acknowledged.
    pub acked: u32,
    /// The number whose acknowledgement ends a round trip. None is on its way if the other side has
    /// acknowledged it.
    pub probe: u32,
    /// The longest time between two packets, µs.
    pub longest_us: u32,
    /// Time of the last packet, µs.
    pub last_us: i64,
    /// Time of the last packet that raised `next`, µs, modulo 2^32.
    pub next_us: u32,
    /// The last window, in the header's order of bytes.
    pub window_bytes: u16,
    /// `STATE_` bits: all that makes its next packet an unusual one.
    pub state: u8,
    /// Shift of its windows; [`NO_SCALE`] while it is not known.
    pub scale: u8,
}

/// No packet has come from this side; of UDP, none with payload.
pub(crate) const STATE_UNSEEN: u8 = 1;
/// Its last packet was a SYN.
pub(crate) const STATE_HANDSHAKE: u8 = 2;
/// The round trip on its way counts for nothing: something was lost or came twice (RFC 6298 §3).
pub(crate) const STATE_VOID: u8 = 4;
/// It offers no window now.
pub(crate) const STATE_ZERO: u8 = 8;

/// Its next new payload may be an awaited one.
pub(crate) const STATE_PAYLOAD: u8 = 16;

/// See [`Side::scale`].
pub(crate) const NO_SCALE: u8 = u8::MAX;
/// A time that was not measured.
pub(crate) const NOT_MEASURED: u32 = u32::MAX;

/// The first payload of side 0 is awaited.
pub(crate) const AWAITS_REQUEST: u8 = 1;
/// The first payload of side 1 behind it is awaited.
pub(crate) const AWAITS_RESPONSE: u8 = 2;

/// What is counted of a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Counted {
    pub retransmits: u32,
    pub out_of_order: u32,
    pub duplicate_acks: u32,
    pub zero_windows: u32,
}

/// What is kept of a flow: a hot line with both sides, and two lines that a packet touches where a
/// round trip begins or ends, or where something is unusual.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Flow {
    pub(crate) sides: [Side; 2],
    pub(crate) rtt: [Rtt; 2],
    pub(crate) counted: [Counted; 2],
    /// Bytes of records before.
    pub(crate) bytes: [u64; 2],
    /// Packets of records before, modulo 2^32.
    pub(crate) packets: [u32; 2],
    /// The lowest and the highest window, as in the header.
    pub(crate) windows: [[u16; 2]; 2],
    /// When the round trip on its way began, µs modulo 2^32.
    pub(crate) probe_us: [u32; 2],
    /// When the last step of the handshake came, or the request, likewise.
    pub(crate) step_us: u32,
    pub(crate) server_handshake_us: u32,
    pub(crate) client_handshake_us: u32,
    pub(crate) response_us: u32,
    /// [`AWAITS_REQUEST`], [`AWAITS_RESPONSE`], or neither.
    pub(crate) stage: u8,
    /// How often each side has repeated an acknowledgement number in this round trip.
    pub(crate) repeated: [u8; 2],
}

/// Bytes that a flow takes.
pub const FLOW_BYTES: usize = size_of::<Flow>();
const _: () = assert!(FLOW_BYTES == 192 && size_of::<Side>() == 32);

impl Flow {
    /// A flow that begins. `is_open` says that its first packet opens it, so that side 0 is known
    /// to be the client.
    pub fn begin(features: Features, is_open: bool) -> Flow {
        // No packet comes after such a last one, so the first one ends no gap.
        let last_us = i64::MAX;
        // No gap is longer than the longest, where nobody asks for it.
        let longest_us = if features.has(Feature::Gap) { 0 } else { u32::MAX };
        let (state, scale) = (STATE_UNSEEN, NO_SCALE);
        let side = Side { state, scale, last_us, longest_us, ..Side::default() };
        Flow {
            sides: [side; 2],
            windows: [[u16::MAX, 0]; 2],
            server_handshake_us: NOT_MEASURED,
            client_handshake_us: NOT_MEASURED,
            response_us: NOT_MEASURED,
            stage: if is_open { AWAITS_REQUEST } else { 0 },
            ..Flow::default()
        }
    }

    /// Adds what a record has said of the flow, whose counts restart.
    pub fn reported(&mut self, packets: [u64; 2], bytes: [u64; 2]) {
        for side in 0..2 {
            self.bytes[side] = self.bytes[side].saturating_add(bytes[side]);
            self.packets[side] = self.packets[side].wrapping_add(packets[side] as u32);
        }
    }

    /// Notes a packet of a side, for the gaps between them.
    #[inline(always)]
    fn tick(&mut self, from: usize, now_us: i64) {
        let side = &mut self.sides[from];
        let gap_us = now_us.wrapping_sub(side.last_us);
        if gap_us > i64::from(side.longest_us) {
            side.longest_us = gap_us.min(i64::from(u32::MAX)) as u32;
        }
        side.last_us = now_us;
    }

    /// Follows a datagram of UDP that a side sent, or a segment of TCP whose numbers nobody needs.
    #[inline(always)] // into the packet's walk, as is the next one
    pub fn datagram(&mut self, from: usize, payload: u32, now_us: i64) {
        self.tick(from & 1, now_us);
        let side = &mut self.sides[from & 1];
        if side.state != 0 && payload != 0 {
            side.state = 0;
            self.first_payload(from & 1, now_us as u32);
        }
    }

    /// Follows a segment of TCP that a side sent. `tcp` begins with its header, of which 20 bytes
    /// are there; for `flags`, `payload` and `size` see [`crate::Segment`].
    // Only what is unusual makes a `Segment`: the usual packet's numbers stay in registers.
    #[inline(always)]
    pub fn segment(
        &mut self,
        from: usize,
        tcp: Tcp<'_>,
        flags: u8,
        payload: u32,
        size: u32,
        now_us: i64,
    ) {
        let (from, to, now) = (from & 1, from & 1 ^ 1, now_us as u32);
        self.tick(from, now_us);
        let mut length = payload;
        if flags & (SYN | FIN | RST | ACK) != ACK || self.sides[from].state != 0 {
            match self.unusual(from, tcp.bytes(), flags, payload, size, now) {
                Some(numbers) => length = numbers,
                None => return,
            }
        }
        let seq = tcp.seq;
        if seq != self.sides[from].next {
            self.out_of_line(from, tcp.bytes(), flags, payload, size, now);
        } else if length != 0 {
            if !is_before(self.sides[to].acked, self.sides[from].probe) {
                self.begin_round_trip(from, seq.wrapping_add(payload.min(size)), now);
            }
            let own = &mut self.sides[from];
            (own.next, own.next_us) = (seq.wrapping_add(length), now);
        }
        let (ack, acked) = (tcp.ack, self.sides[from].acked);
        if is_before(acked, ack) {
            self.sides[from].acked = ack;
            let probe = self.sides[to].probe;
            if is_before(acked, probe) && !is_before(ack, probe) {
                self.end_round_trip(to, now);
            }
        } else if length == 0 && ack != self.sides[to].next {
            self.repeated_ack(from, tcp.seq, ack, tcp.window_bytes);
        }
        if tcp.window_bytes != self.sides[from].window_bytes {
            self.new_window(from, tcp.bytes(), flags, payload, size);
        }
    }
}

/// Whether a number comes before another (RFC 9293 §3.4).
#[inline(always)]
pub(crate) fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}
