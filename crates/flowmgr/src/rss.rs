//! Receive-side scaling in software: which of several flow managers a packet is for.
//!
//! A network card with several queues does this itself. Where frames come from one place, a capture
//! file or a simple interface, its reader asks here. The symmetric Toeplitz hash of [`crate::hash`]
//! makes both directions of a flow meet. As on a card, packets without ports are spread by their
//! addresses; packets without addresses have no hash.

use crate::hash::Toeplitz;
use crate::verdict::Verdict;
use crate::wire;

/// The hash that a network card would give.
#[derive(Clone, Debug, Default)]
pub struct Rss(Toeplitz);

impl Rss {
    /// With its tables built.
    pub fn new() -> Rss {
        Rss(Toeplitz::new())
    }

    /// The hash of a frame of pcap link type `link`, the same for both directions of a flow;
    /// `None` where there are no addresses to hash.
    pub fn hash(&self, link: u16, frame: &[u8]) -> Option<u32> {
        let key = match wire::parse(link, frame) {
            Ok(headers) => headers.key,
            Err(Verdict::Fragment | Verdict::OtherL4) => wire::addresses(link, frame)?,
            Err(_) => return None,
        };
        Some(self.0.hash(&key))
    }

    /// For ports whose card spreads what it can read: which of `queues` a frame is for, if a card's
    /// hash may not see the ends of its flow, such as below PPPoE, MPLS or several VLAN tags.
    /// `None` if it does, and for frames of no flow.
    pub fn unseen_by_cards(&self, link: u16, frame: &[u8], queues: usize) -> Option<usize> {
        if wire::is_plain(link, frame) {
            return None;
        }
        let headers = wire::parse(link, frame).ok()?;
        Some(Rss::queue(Some(self.0.hash(&headers.key)), queues))
    }

    /// Which of `queues` a packet of this hash is for, in equal shares of the hash's range; packets
    /// without a hash are for the first.
    pub fn queue(hash: Option<u32>, queues: usize) -> usize {
        let hash = u64::from(hash.unwrap_or(0));
        ((hash * queues as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Raw IP, as pcap numbers it.
    const RAW: u16 = 101;

    /// An IPv4 packet of UDP from 10.0.0.`from` to 10.0.0.`to`; `fragment` in units of 8 bytes.
    fn udp(from: (u8, u16), to: (u8, u16), fragment: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, fragment, 64, 17, 0, 0];
        packet.extend([10, 0, 0, from.0, 10, 0, 0, to.0]);
        packet.extend(from.1.to_be_bytes());
        packet.extend(to.1.to_be_bytes());
        packet.extend([0, 8, 0, 0]);
        packet
    }

    #[test]
    fn both_directions_have_one_hash_and_other_ports_another() {
        let rss = Rss::new();
        let hash = |from, to| rss.hash(RAW, &udp(from, to, 0)).unwrap();
        assert_eq!(hash((1, 4000), (2, 53)), hash((2, 53), (1, 4000)));
        assert_ne!(hash((1, 4000), (2, 53)), hash((1, 4001), (2, 53)));
    }

    #[test]
    fn later_fragments_go_by_their_addresses() {
        let rss = Rss::new();
        let hash = |from, to| rss.hash(RAW, &udp(from, to, 1)).unwrap();
        assert_eq!(hash((1, 4000), (2, 53)), hash((2, 99), (1, 98)));
        assert_ne!(hash((1, 4000), (2, 53)), hash((1, 4000), (3, 53)));
        assert_eq!(rss.hash(RAW, &udp((1, 1), (2, 2), 1)[..16]), None);
        assert_eq!(rss.hash(RAW, &[]), None);
    }

    #[test]
    fn queues_share_the_hashes_and_the_first_has_those_without() {
        assert_eq!(Rss::queue(None, 7), 0);
        assert_eq!(Rss::queue(Some(u32::MAX), 1), 0);
        assert_eq!(Rss::queue(Some(u32::MAX), 64), 63);
        let rss = Rss::new();
        let mut packets = [0; 3];
        for port in 0..3000 {
            let hash = rss.hash(RAW, &udp((1, port), (2, 443), 0));
            packets[Rss::queue(hash, 3)] += 1;
        }
        assert!(packets.iter().all(|packets| *packets > 700), "{packets:?}");
    }

    #[test]
    fn what_cards_do_not_see_goes_by_our_hash() {
        let rss = Rss::new();
        let (there, back) = (udp((1, 1000), (2, 53), 0), udp((2, 53), (1, 1000), 0));
        let ip = 0x0800_u16.to_be_bytes();
        let frame = |link: &[u8], packet: &[u8]| [&[0; 12], link, packet].concat();
        let pppoe = [&[0x88, 0x64, 0x11, 0, 0, 1, 0, 30, 0, 0x21][..]].concat();
        let mpls = [0x88, 0x47, 0, 1, 0x11, 64];
        let tag = [0x81, 0, 0, 7];
        for seen in [ip.to_vec(), [&tag[..], &ip].concat()] {
            assert_eq!(rss.unseen_by_cards(1, &frame(&seen, &there), 8), None);
        }
        let stacked = [&tag[..], &tag, &ip].concat();
        let below = [&tag[..], &pppoe].concat();
        let wanted = Rss::queue(rss.hash(RAW, &there), 8);
        for unseen in [&pppoe[..], &mpls, &stacked, &below] {
            for packet in [&there, &back] {
                let queue = rss.unseen_by_cards(1, &frame(unseen, packet), 8);
                assert_eq!(queue, Some(wanted), "{unseen:x?}");
            }
        }
        // Of no flow: ARP, a later fragment below PPPoE, what is cut off.
        assert_eq!(rss.unseen_by_cards(1, &frame(&[8, 6], &[0; 28]), 8), None);
        assert_eq!(rss.unseen_by_cards(1, &frame(&pppoe, &udp((1, 1), (2, 2), 9)), 8), None);
        assert_eq!(rss.unseen_by_cards(1, &[0; 13], 8), None);
    }
}
