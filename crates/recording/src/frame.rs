//! Decides how much of a frame is kept: the bytes that the parser reads, and none behind them.
//!
//! The parser compares lengths in the headers with the captured bytes, so a replay gives it a frame
//! of equal length whose other bytes are zeros. Before anything is written, that frame is parsed,
//! too, and must give the same result. So the kept bytes are enough by construction, for any frame.
//! For a merged packet, the headers that its segments repeat are read as well.

use flowmgr::verdict::Verdict;
use flowmgr::wire::{self, Gso, Headers, Segments, TCP};
use flowmgr::{Key, Packet};

use crate::event::Frame;

/// Bytes of a TCP header without options, and of a header of UDP or ICMP.
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// What the walk reads of a frame: its headers and, where it was merged, its segments.
type Parsed = (Result<Headers, Verdict>, Option<Segments>);

fn parse(link: u16, gso: Gso, frame: &[u8]) -> Parsed {
    let headers = wire::parse(link, frame);
    let segments = match &headers {
        Ok(headers) => Segments::new(gso, frame, headers),
        Err(_) => None,
    };
    (headers, segments)
}

/// Decides it, in memory of its own.
#[derive(Default)]
pub struct Keeper {
    /// Zeros between two frames.
    scratch: Vec<u8>,
}

impl Keeper {
    pub fn frames<'a>(&mut self, data: &'a [u8], packets: &[Packet]) -> Vec<Frame<'a>> {
        let frames = packets.iter().map(|packet| {
            let captured = &data[packet.at..][..packet.captured as usize];
            Frame::from_packet(packet, self.kept(packet.link, packet.gso, captured))
        });
        frames.collect()
    }

    /// The first bytes of `frame` that a replay needs.
    pub fn kept<'a>(&mut self, link: u16, gso: Gso, frame: &'a [u8]) -> &'a [u8] {
        let parsed = parse(link, gso, frame);
        let likely = match &parsed.0 {
            Ok(Headers { key, .. }) => headers_end(link, frame, key),
            Err(_) => 0,
        };
        let is_enough = |this: &mut Keeper, kept| this.is_enough((link, gso), frame, kept, &parsed);
        let kept = if is_enough(self, likely) { likely } else { self.least(frame, is_enough) };
        &frame[..kept]
    }

    /// By trying: the least power of two that is enough, then by bisection down to the least
    /// number.
    fn least(&mut self, frame: &[u8], is_enough: impl Fn(&mut Keeper, usize) -> bool) -> usize {
        let mut enough = 1;
        while enough < frame.len() && !is_enough(self, enough) {
            enough *= 2;
        }
        let mut enough = enough.min(frame.len());
        // Not enough, or not tried.
        let mut too_few = enough / 2;
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            if is_enough(self, middle) { enough = middle } else { too_few = middle }
        }
        enough
    }

    /// Whether the parser gives the same result if all bytes behind the first `kept` are zero.
    fn is_enough(
        &mut self,
        (link, gso): (u16, Gso),
        frame: &[u8],
        kept: usize,
        parsed: &Parsed,
    ) -> bool {
        if self.scratch.len() < frame.len() {
            self.scratch.resize(frame.len(), 0);
        }
        self.scratch[..kept].copy_from_slice(&frame[..kept]);
        let again = parse(link, gso, &self.scratch[..frame.len()]);
        self.scratch[..kept].fill(0);
        again == *parsed
    }
}

/// Where the headers of a packet of a flow end.
fn headers_end(link: u16, frame: &[u8], key: &Key) -> usize {
    let header = match key.protocol() {
        TCP => TCP_HEADER,
        _ => UDP_HEADER,
    };
    let at = wire::transport_at(link, frame).unwrap_or(0);
    (at + header).min(frame.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ETHERNET: u16 = 1;
    const PAYLOAD: u8 = 0xee;

    fn ipv4(protocol: u8, transport: &[u8], payload: usize) -> Vec<u8> {
        let length = (20 + transport.len() + payload) as u16;
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(transport);
        frame.extend(vec![PAYLOAD; payload]);
        frame
    }

    fn tcp(payload: usize) -> Vec<u8> {
        let header = [0, 80, 1, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x60, 0x18, 1, 1, 0, 0, 0, 0];
        let options = [2, 4, 5, 0xb4];
        ipv4(TCP, &[&header[..], &options].concat(), payload)
    }

    fn udp(payload: usize) -> Vec<u8> {
        let length = (8 + payload) as u16;
        let mut header = vec![0, 53, 1, 2];
        header.extend(length.to_be_bytes());
        header.extend([0, 0]);
        ipv4(wire::UDP, &header, payload)
    }

    #[test]
    fn no_payload_is_kept() {
        let mut keeper = Keeper::default();
        for payload in [0, 1, 1000, 60_000] {
            let mut kept = |frame: &[u8]| keeper.kept(ETHERNET, Gso::NONE, frame).to_vec();
            assert_eq!(kept(&tcp(payload)).len(), 14 + 20 + 20);
            assert_eq!(kept(&udp(payload)).len(), 14 + 20 + 8);
            let mut fragment = udp(payload);
            fragment[14 + 6] = 0x20;
            fragment[14 + 7] = 9;
            assert!(kept(&fragment).len() <= 14 + 20);
            // The UDP header says less than its own length.
            let mut short = udp(payload);
            short[14 + 20 + 5] = 7;
            short[14 + 20 + 4] = 0;
            assert!(kept(&short).len() <= 14 + 20 + 8);
            let arp = [&[0; 12][..], &[8, 6], &vec![PAYLOAD; payload]].concat();
            assert!(kept(&arp).len() <= 14);
            let echo = [8, 0, 1, 2, 3, 4, 5, 6];
            assert_eq!(kept(&ipv4(wire::ICMP, &echo, payload)).len(), 14 + 20 + 8);
            assert!(!kept(&ipv4(47, &[], payload)).contains(&PAYLOAD));
        }
    }

    proptest! {
        /// With what is kept the parser says of any frame what it said of the whole.
        #[test]
        fn what_is_kept_is_enough(
            link in prop::sample::select(vec![0u16, 1, 12, 101, 108, 113, 276, 228, 9]),
            start in prop::sample::select(vec![tcp(30), udp(30), vec![]]),
            damage in prop::collection::vec((0usize..90, any::<u8>()), 0..6),
            noise in prop::collection::vec(any::<u8>(), 0..120),
            gso in prop_oneof![Just(0u16), Just(8), any::<u16>()].prop_map(Gso::from_bits),
        ) {
            let mut frame = if start.is_empty() { noise } else { start };
            for (at, value) in damage {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            let mut keeper = Keeper::default();
            let kept = keeper.kept(link, gso, &frame).len();
            let mut again = frame.clone();
            again[kept..].fill(0);
            prop_assert_eq!(parse(link, gso, &again), parse(link, gso, &frame));
            prop_assert!(keeper.scratch.iter().all(|byte| *byte == 0));
        }
    }
}
