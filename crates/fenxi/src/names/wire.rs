//! Names of addresses in answers of DNS (RFC 1035) and mDNS (RFC 6762).
//!
//! What comes is hostile. Nothing else than these names is taken from a packet, and nothing is
//! kept of it.

use std::net::IpAddr;
use std::sync::Arc;

use super::host;

/// Ports whose packets are read.
pub const PORTS: [u16; 2] = [DNS, MDNS];
const DNS: u16 = 53;
const MDNS: u16 = 5353;

/// Records of an answer that are looked at.
const RECORDS_MAX: usize = 64;
/// Bytes of a name, and the jumps by which it may be pieced together.
const NAME_MAX: usize = 255;
const JUMPS_MAX: usize = 16;

const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;
const UDP: u8 = 17;

/// A name and the addresses that an answer gives it.
pub type Named = (Arc<str>, Vec<IpAddr>);

/// The name that a packet, from its IP header on, gives to addresses; `None`: it is no such answer.
pub fn read(packet: &[u8]) -> Option<Named> {
    let (source, payload) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let source: [u8; 4] = bytes(packet, 12)?;
            let is_first = u16_at(packet, 6)? & 0x1fff == 0;
            let is_udp = *packet.get(9)? == UDP && is_first && header >= 20;
            (IpAddr::from(source), packet.get(header..).filter(|_| is_udp)?)
        }
        6 => {
            let source: [u8; 16] = bytes(packet, 8)?;
            let is_udp = *packet.get(6)? == UDP;
            (IpAddr::from(source), packet.get(40..).filter(|_| is_udp)?)
        }
        _ => return None,
    };
    let message = Message(payload.get(8..)?);
    match u16_at(payload, 0)? {
        DNS => message.answer(),
        // Who says so must have one of the addresses.
        MDNS => message.announcement().filter(|(_, addresses)| addresses.contains(&source)),
        _ => None,
    }
}

struct Message<'a>(&'a [u8]);

impl Message<'_> {
    /// The addresses of the name that was asked for, whatever aliases stand between.
    fn answer(&self) -> Option<Named> {
        let questions = u16_at(self.0, 4)?;
        let (name, after) = self.name(12)?;
        let kind = u16_at(self.0, after)?;
        let is_answer = self.is_answer()? && questions == 1;
        if !is_answer || !matches!(kind, TYPE_A | TYPE_AAAA) {
            return None;
        }
        let addresses = self.records(after + 4, |_| true).map(|(_, address)| address).collect();
        named(&name, addresses)
    }

    /// The addresses of the first name that has some.
    fn announcement(&self) -> Option<Named> {
        // There are questions only in a query, as of a host that asks whether its name is free.
        if !self.is_answer()? || u16_at(self.0, 4)? != 0 {
            return None;
        }
        let (name, _) = self.records(12, |_| true).next()?;
        let own = self.records(12, |owner| owner == name).map(|(_, address)| address);
        named(&name, own.collect())
    }

    /// A successful answer to a standard query.
    fn is_answer(&self) -> Option<bool> {
        Some(u16_at(self.0, 2)? & 0xf80f == 0x8000)
    }

    /// Owners and addresses of the records from here on.
    fn records<'a>(
        &'a self,
        mut at: usize,
        is_wanted: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = (String, IpAddr)> + 'a {
        let records = std::iter::from_fn(move || {
            let (owner, after) = self.name(at)?;
            let (kind, class) = (u16_at(self.0, after)?, u16_at(self.0, after + 2)?);
            let length = usize::from(u16_at(self.0, after + 8)?);
            let data = self.0.get(after + 10..after + 10 + length)?;
            at = after + 10 + length;
            let address = match kind {
                TYPE_A => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
                TYPE_AAAA => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
                _ => None,
            };
            // The top bit asks mDNS to flush caches.
            Some((owner, address.filter(|_| class & 0x7fff == CLASS_IN)))
        });
        let records = records.take(RECORDS_MAX);
        records
            .filter_map(move |(owner, address)| Some((owner, address?)))
            .filter(move |(owner, address)| is_wanted(owner) && super::join::is_of_a_host(*address))
    }

    /// The name at this place in lower case, and where what follows it begins.
    fn name(&self, mut at: usize) -> Option<(String, usize)> {
        let (mut name, mut after, mut jumps) = (Vec::new(), None, 0);
        loop {
            let length = usize::from(*self.0.get(at)?);
            match length {
                0 => break,
                1..64 => {
                    name.extend_from_slice(self.0.get(at + 1..at + 1 + length)?);
                    name.push(b'.');
                    at += 1 + length;
                }
                192.. => {
                    after.get_or_insert(at + 2);
                    at = usize::from(u16_at(self.0, at)? & 0x3fff);
                    jumps += 1;
                }
                _ => return None,
            }
            if name.len() > NAME_MAX || jumps > JUMPS_MAX {
                return None;
            }
        }
        let name = String::from_utf8_lossy(&name).to_lowercase();
        Some((name, after.unwrap_or(at + 1)))
    }
}

fn named(name: &str, addresses: Vec<IpAddr>) -> Option<Named> {
    host::name(name).filter(|_| !addresses.is_empty()).map(|name| (name, addresses))
}

fn bytes<const N: usize>(of: &[u8], at: usize) -> Option<[u8; N]> {
    of.get(at..)?.first_chunk().copied()
}

fn u16_at(of: &[u8], at: usize) -> Option<u16> {
    bytes(of, at).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend(label.as_bytes());
        }
        out.push(0);
        out
    }

    fn record(owner: &[u8], kind: u16, class: u16, data: &[u8]) -> Vec<u8> {
        let mut out = owner.to_vec();
        out.extend(kind.to_be_bytes());
        out.extend(class.to_be_bytes());
        out.extend(60_u32.to_be_bytes());
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(data);
        out
    }

    fn message(flags: u16, question: Option<(&str, u16)>, records: &[Vec<u8>]) -> Vec<u8> {
        let mut out = vec![0, 7];
        out.extend(flags.to_be_bytes());
        out.extend(u16::from(question.is_some()).to_be_bytes());
        out.extend((records.len() as u16).to_be_bytes());
        out.extend([0; 4]);
        if let Some((name, kind)) = question {
            out.extend(labels(name));
            out.extend(kind.to_be_bytes());
            out.extend(CLASS_IN.to_be_bytes());
        }
        out.extend(records.concat());
        out
    }

    fn udp(port: u16, message: &[u8]) -> Vec<u8> {
        let mut out = port.to_be_bytes().to_vec();
        out.extend([0x30, 0x39]);
        out.extend((8 + message.len() as u16).to_be_bytes());
        out.extend([0; 2]);
        out.extend(message);
        out
    }

    fn v4(source: [u8; 4], port: u16, message: &[u8]) -> Vec<u8> {
        let mut out = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0];
        out.extend(source);
        out.extend([10, 0, 0, 5]);
        out.extend(udp(port, message));
        out
    }

    fn v6(source: [u8; 16], port: u16, message: &[u8]) -> Vec<u8> {
        let mut out = vec![0x60, 0, 0, 0, 0, 0, UDP, 64];
        out.extend(source);
        out.extend([0; 16]);
        out.extend(udp(port, message));
        out
    }

    /// `name: address, address`.
    fn shown(packet: &[u8]) -> Option<String> {
        let (name, addresses) = read(packet)?;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        Some(format!("{name}: {}", addresses.join(", ")))
    }

    /// A pointer to the name of the question.
    const ASKED: [u8; 2] = [0xc0, 12];

    #[test]
    fn the_name_that_was_asked_for_counts_not_its_alias() {
        let alias = labels("edge.cdn.example");
        let records = [
            record(&ASKED, 5, CLASS_IN, &alias),
            record(&alias, TYPE_A, CLASS_IN, &[192, 0, 2, 7]),
            record(&alias, TYPE_A, CLASS_IN, &[192, 0, 2, 8]),
            record(&alias, TYPE_A, CLASS_IN, &[0, 0, 0, 0]),
        ];
        let answer = message(0x8180, Some(("WWW.Shop.example", TYPE_A)), &records);
        let named = Some("www.shop.example: 192.0.2.7, 192.0.2.8".to_owned());
        assert_eq!(shown(&v4([10, 0, 0, 1], 53, &answer)), named);
        assert_eq!(shown(&v6([0xfd; 16], 53, &answer)), named);
        assert_eq!(shown(&v4([10, 0, 0, 1], 54, &answer)), None);
        for (flags, asked) in [(0x0100, TYPE_A), (0x8183, TYPE_A), (0x8180, 15)] {
            let other = message(flags, Some(("www.shop.example", asked)), &records);
            assert_eq!(shown(&v4([10, 0, 0, 1], 53, &other)), None, "{flags:#x} {asked}");
        }
    }

    #[test]
    fn a_host_announces_its_own_name_and_no_others() {
        let own = labels("Annas-Laptop.local");
        let records = [
            record(&labels("_http._tcp.local"), 12, CLASS_IN, &own),
            record(&own, TYPE_A, 0x8001, &[10, 0, 0, 5]),
            record(&own, TYPE_AAAA, 0x8001, &[0xfd; 16]),
            record(&labels("other.local"), TYPE_A, 0x8001, &[10, 0, 0, 6]),
        ];
        let announced = message(0x8400, None, &records);
        let v6_address = IpAddr::from([0xfd; 16]);
        let named = Some(format!("annas-laptop.local: 10.0.0.5, {v6_address}"));
        assert_eq!(shown(&v4([10, 0, 0, 5], 5353, &announced)), named);
        assert_eq!(shown(&v6([0xfd; 16], 5353, &announced)), named);
        assert_eq!(shown(&v4([10, 0, 0, 6], 5353, &announced)), None);
    }

    #[test]
    fn hostile_names_are_made_harmless_or_refused() {
        let evil = "\u{1b}[2J<b>\"x\u{202e}.example";
        let records = [record(&ASKED, TYPE_A, CLASS_IN, &[192, 0, 2, 7])];
        let answer = message(0x8180, Some((evil, TYPE_A)), &records);
        let named = "\u{fffd}[2j<b>\"x\u{fffd}.example: 192.0.2.7";
        assert_eq!(shown(&v4([10, 0, 0, 1], 53, &answer)).as_deref(), Some(named));
        // A name that is its own tail, and one that is too long.
        let mut circle = message(0x8180, Some(("x", TYPE_A)), &records);
        circle[12..14].copy_from_slice(&ASKED);
        assert_eq!(shown(&v4([10, 0, 0, 1], 53, &circle)), None);
        let long = vec!["a".repeat(60); 5].join(".");
        let answer = message(0x8180, Some((&long, TYPE_A)), &records);
        assert_eq!(shown(&v4([10, 0, 0, 1], 53, &answer)), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_to_an_end(
            port in prop::sample::select(&PORTS[..]),
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            is_answer: bool,
        ) {
            if let Some(flags) = bytes.get_mut(2..4).filter(|_| is_answer) {
                flags.copy_from_slice(&[0x80, 0]);
            }
            for packet in [v4([10, 0, 0, 5], port, &bytes), v6([0xfd; 16], port, &bytes), bytes] {
                if let Some((name, addresses)) = read(&packet) {
                    prop_assert!(!name.is_empty() && addresses.len() <= RECORDS_MAX);
                }
            }
        }

        #[test]
        fn a_damaged_answer_gives_names_within_bounds(at in 0..60_usize, value: u8) {
            let alias = labels("edge.cdn.example");
            let records = [
                record(&ASKED, 5, CLASS_IN, &alias),
                record(&alias, TYPE_A, CLASS_IN, &[192, 0, 2, 7]),
            ];
            let mut packet =
                v4([10, 0, 0, 1], 53, &message(0x8180, Some(("www.example", TYPE_A)), &records));
            packet[at] = value;
            if let Some((name, _)) = read(&packet) {
                prop_assert!(name.len() <= NAME_MAX);
            }
        }
    }
}
