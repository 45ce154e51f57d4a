//! Frames in memory, and the flows that they are of.
//!
//! A frame has 64 bytes, Ethernet with IPv4 and UDP or TCP, and stands on a cache line of its own,
//! as it does in a receive buffer. A flow is a number: the experiments draw numbers, and a
//! [`Tuple`] makes addresses of them.

use std::net::{IpAddr, Ipv4Addr};

use flowmgr::Key;
use flowmgr::wire::{TCP, TCP_SYN, UDP};

use crate::rng::Lot;

/// Bytes of a frame, without its checksum.
pub const FRAME: usize = 64;
/// Where the IP header begins.
const IP: usize = 14;

/// A 5-tuple of IPv4.
#[derive(Clone, Copy, Debug)]
pub struct Tuple {
    pub protocol: u8,
    pub source: u32,
    pub destination: u32,
    pub source_port: u16,
    pub destination_port: u16,
}

impl Tuple {
    /// A UDP flow of its own for every number below 2^24.
    pub fn from_flow(flow: u32) -> Tuple {
        Tuple {
            protocol: UDP,
            source: 0x0a00_0000 | flow & 0x00ff_ffff,
            destination: 0xc612_0001,
            source_port: 1024 + (flow % 60_000) as u16,
            destination_port: 443,
        }
    }

    /// A TCP flow that is no [`Tuple::from_flow`] anything.
    pub fn tcp(flow: u32) -> Tuple {
        let destination = 0xc613_0001;
        Tuple { protocol: TCP, destination, ..Tuple::from_flow(flow) }
    }

    pub fn key(self) -> Key {
        let end = |address, port| (IpAddr::V4(Ipv4Addr::from_bits(address)), port);
        Key::from_ends(
            self.protocol,
            end(self.source, self.source_port),
            end(self.destination, self.destination_port),
        )
    }

    /// A frame of the flow; of TCP, the SYN.
    pub fn frame(self) -> [u8; FRAME] {
        let mut frame = [0; FRAME];
        frame[12] = 0x08; // ethertype 0x0800
        let ip = &mut frame[IP..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((FRAME - IP) as u16).to_be_bytes());
        ip[8] = 64;
        ip[9] = self.protocol;
        ip[12..16].copy_from_slice(&self.source.to_be_bytes());
        ip[16..20].copy_from_slice(&self.destination.to_be_bytes());
        ip[20..22].copy_from_slice(&self.source_port.to_be_bytes());
        ip[22..24].copy_from_slice(&self.destination_port.to_be_bytes());
        if self.protocol == TCP {
            ip[32] = 5 << 4;
            ip[33] = TCP_SYN;
        } else {
            let length = (FRAME - IP - 20) as u16;
            ip[24..26].copy_from_slice(&length.to_be_bytes());
        }
        frame
    }
}

/// Frames one after the other.
pub struct Frames {
    pub data: Vec<u8>,
}

impl Frames {
    /// `count` frames, the i-th of the flow `tuple_of(i)`.
    pub fn new(count: usize, mut tuple_of: impl FnMut(usize) -> Tuple) -> Frames {
        let mut data = Vec::with_capacity(count * FRAME);
        for i in 0..count {
            data.extend_from_slice(&tuple_of(i).frame());
        }
        Frames { data }
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.data.len() / FRAME
    }

    /// Removes the tags, so that the next pass has to write them again.
    pub fn untag(&mut self) {
        for frame in self.data.chunks_exact_mut(FRAME) {
            frame[IP + 1] = 0;
            frame[IP + 10..IP + 12].fill(0);
        }
    }
}

/// Flows 0 to below `count`, a power of two, with probabilities as 1, 1/2, 1/3 … (Zipf, exponent
/// 1), the likely ones scattered among the others.
pub fn zipf(count: u32) -> Lot<u32> {
    // An odd factor permutes the numbers below a power of two.
    let scattered = |rank: u32| rank.wrapping_mul(0x9e37_79b1) % count;
    Lot::new((0..count).map(|rank| (scattered(rank), 1.0 / f64::from(rank + 1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn frames_are_of_their_tuples() {
        for tuple in [Tuple::from_flow(77), Tuple::tcp(1 << 20)] {
            let headers = flowmgr::wire::parse(1, &tuple.frame()).unwrap();
            assert_eq!(headers.key, tuple.key());
            assert_eq!(headers.length, 50);
            assert_eq!(headers.tcp_flags != 0, tuple.protocol == TCP);
        }
    }

    #[test]
    fn zipf_draws_the_likely_ones_often_and_all_within_bounds() {
        let (zipf, mut rng) = (zipf(1024), Rng::new(3));
        let mut counts = [0; 1024];
        for _ in 0..75_000 {
            counts[zipf.draw(&mut rng).unwrap() as usize] += 1;
        }
        // The sum of 1/rank to 1024 is 7.5.
        assert!((9000..11_000).contains(&counts[0]), "{}", counts[0]);
        let second = counts[0x9e37_79b1 % 1024];
        assert!((4300..5700).contains(&second), "{second}");
    }
}
