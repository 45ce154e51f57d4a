//! The flows in the tables and the order in which they are looked up.
//!
//! Random 5-tuples over IPv4, and uniform random picks among them, from a counter
//! through the mixing function of SplitMix64. `rte_hash.c` has the same functions, and
//! the checksum tells that both mean the same packets.

use std::net::{IpAddr, Ipv4Addr};

use flowmgr::Key;
use flowmgr::wire::{TCP, UDP};

/// Makes the picks of a seed another sequence than its tuples.
const PICKS: u64 = 0x7065_6572_735f_7069;

pub struct Traffic {
    pub flows: u64,
    pub seed: u64,
}

impl Traffic {
    /// The key of each flow.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        (0..self.flows).map(|flow| self.key(flow))
    }

    /// The keys of the first `count` packets.
    pub fn look_ups(&self, count: u64) -> impl Iterator<Item = Key> {
        (0..count).map(|packet| self.key(self.pick(packet)))
    }

    /// Over the tuples of the first `count` packets, in their order.
    pub fn checksum(&self, count: u64) -> u64 {
        (0..count).fold(0, |sum: u64, packet| {
            let (addresses, rest) = self.tuple(self.pick(packet));
            sum.rotate_left(1) ^ addresses ^ rest
        })
    }

    fn key(&self, flow: u64) -> Key {
        let (addresses, rest) = self.tuple(flow);
        let end = |bits, port| (IpAddr::V4(Ipv4Addr::from_bits(bits)), port);
        Key::from_ends(
            if rest & 1 == 1 { UDP } else { TCP },
            end((addresses >> 32) as u32, (rest >> 48) as u16),
            end(addresses as u32, (rest >> 32) as u16),
        )
    }

    /// Both addresses of a flow; its ports in the upper half and the protocol in the
    /// lowest bit.
    fn tuple(&self, flow: u64) -> (u64, u64) {
        (random(self.seed, 2 * flow), random(self.seed, 2 * flow + 1))
    }

    /// The flow of a packet.
    fn pick(&self, packet: u64) -> u64 {
        ((random(self.seed ^ PICKS, packet) >> 32) * self.flows) >> 32
    }
}

/// Number `i` of the sequence of a seed.
fn random(seed: u64, i: u64) -> u64 {
    let mut bits = seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
