//! Features that read options or payload, and lengths: kept in a line of its own, only if one of
//! them is on.

use crate::flow::is_before;
use crate::segment::{ACK, Tcp};
use crate::{Feature, Features, Rtt};

/// First byte of QUIC (RFC 9000 §17): a long header, and the fixed bit that all have.
const QUIC_LONG: u8 = 0x80;
const QUIC_FIXED: u8 = 0x40;
const QUIC_SPIN: u8 = 0x20;
/// RFC 9000 §15 and RFC 9369 §3.1.
const QUIC_VERSIONS: [[u8; 4]; 2] = [[0, 0, 0, 1], [0x6b, 0x33, 0x43, 0xcf]];
/// Of UDP, [`Side::last`]: the last spin bit, whether there was one, and whether this is QUIC.
const LAST_SPIN: u32 = 1;
const HAS_SPUN: u32 = 2;
const IS_QUIC: u32 = 4;
/// Of DNS, [`Side::probe`]: an id is awaited.
const IS_ASKED: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Side {
    /// The highest TSval, or bits of QUIC.
    last: u32,
    /// The TSval, the id or the edge from which a round trip is measured; 0: none.
    probe: u32,
    /// When it was seen, µs modulo 2^32.
    since_us: u32,
    /// One less than the shortest packet's bytes, wrapping, so that 0 is none.
    shortest: u16,
    longest: u16,
}

/// What is kept of a flow for [`Features::MORE`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct More {
    sides: [Side; 2],
    /// By timestamps, the spin bit or ids: a flow has one of them.
    pub(crate) rtt: [Rtt; 2],
}

/// Bytes that a flow takes for [`Features::MORE`].
pub const MORE_BYTES: usize = size_of::<More>();
const _: () = assert!(MORE_BYTES == 64);

impl More {
    /// Notes the length of a packet at the IP layer; of merged ones, of each kind once.
    #[inline]
    pub fn length(&mut self, from: usize, bytes: u32) {
        let side = &mut self.sides[from & 1];
        let bytes = bytes.min(u16::MAX.into()) as u16;
        side.longest = side.longest.max(bytes);
        side.shortest = side.shortest.wrapping_sub(1).min(bytes.wrapping_sub(1)).wrapping_add(1);
    }

    /// The shortest and the longest packet of a side, bytes; `None` before the first one.
    pub(crate) fn sizes(&self, from: usize) -> Option<[u16; 2]> {
        let side = &self.sides[from & 1];
        (side.longest != 0).then_some([side.shortest, side.longest])
    }

    /// Follows the timestamps of a segment that a side sent.
    #[inline]
    pub fn segment(&mut self, from: usize, tcp: Tcp<'_>, flags: u8, payload: u32, now_us: i64) {
        let Some((value, echo)) = tcp.timestamps() else {
            return;
        };
        let (from, to) = (from & 1, from & 1 ^ 1);
        let asked = &mut self.sides[to];
        if asked.probe != 0 && flags & ACK != 0 && !is_before(echo, asked.probe) {
            // Behind a loss a later one comes back.
            if echo == asked.probe {
                let took_us = (now_us as u32).wrapping_sub(asked.since_us) as i32;
                self.rtt[to].add(took_us.into());
            }
            self.sides[to].probe = 0;
        }
        let own = &mut self.sides[from];
        if value == own.last || own.last != 0 && is_before(value, own.last) {
            return;
        }
        own.last = value;
        // Only what has payload is sure to be answered soon.
        if own.probe == 0 && payload != 0 {
            (own.probe, own.since_us) = (value, now_us as u32);
        }
    }

    /// Follows a datagram that a side sent, with its first bytes of payload.
    #[inline]
    pub fn datagram(
        &mut self,
        features: Features,
        from: usize,
        payload: &[u8],
        is_dns: bool,
        now_us: i64,
    ) {
        let now = now_us as u32;
        if is_dns {
            if features.has(Feature::Dns) {
                self.question(from & 1, payload, now);
            }
        } else if features.has(Feature::Spin) {
            self.spin(from & 1, payload, now);
        }
    }

    /// From a question to the answer with the same id. One that is asked again has two answers.
    fn question(&mut self, from: usize, payload: &[u8], now: u32) {
        let [high, low, flags, ..] = *payload else {
            return;
        };
        let id = IS_ASKED | u32::from(u16::from_be_bytes([high, low]));
        let is_answer = flags & 0x80 != 0;
        let asked = &mut self.sides[if is_answer { from ^ 1 } else { from }];
        match (is_answer, asked.probe == id) {
            (true, true) => {
                asked.probe = 0;
                let took_us = now.wrapping_sub(asked.since_us) as i32;
                self.rtt[from ^ 1].add(took_us.into());
            }
            (true, false) => {}
            (false, true) => asked.probe = 0,
            (false, false) => (asked.probe, asked.since_us) = (id, now),
        }
    }

    /// From one edge of the spin bit to the next one in the same direction.
    fn spin(&mut self, from: usize, payload: &[u8], now: u32) {
        let Some(&first) = payload.first() else {
            return;
        };
        if first & QUIC_LONG != 0 {
            let version = payload.get(1..5).unwrap_or_default();
            if first & QUIC_FIXED != 0 && QUIC_VERSIONS.iter().any(|it| it == version) {
                self.sides.iter_mut().for_each(|side| side.last |= IS_QUIC);
            }
            return;
        }
        let own = &mut self.sides[from];
        if own.last & IS_QUIC == 0 || first & QUIC_FIXED == 0 {
            return;
        }
        let spin = u32::from(first & QUIC_SPIN != 0);
        let is_edge = own.last & HAS_SPUN != 0 && own.last & LAST_SPIN != spin;
        own.last = IS_QUIC | HAS_SPUN | spin;
        if is_edge {
            let took_us = now.wrapping_sub(own.since_us) as i32;
            let is_second = own.probe != 0;
            (own.probe, own.since_us) = (1, now);
            if is_second {
                self.rtt[from].add(took_us.into());
            }
        }
    }
}
