//! Which services an address may belong to: networks, the longest prefix first.

use std::net::IpAddr;

use crate::key::Key;

/// Networks whose prefixes have the same length.
struct Group {
    is_v6: bool,
    mask: [u64; 2],
    /// Addresses and the places of their services, in order.
    networks: Vec<([u64; 2], u8)>,
}

/// The networks of all services.
#[derive(Default)]
pub struct Networks(Vec<Group>);

impl Networks {
    /// Of networks as address and length of the prefix, each with the place of its service.
    pub fn new(networks: impl Iterator<Item = (IpAddr, u8, u8)>) -> Networks {
        let mut groups: Vec<Group> = Vec::new();
        let mut all: Vec<_> = networks.collect();
        all.sort_unstable_by_key(|&(_, length, _)| std::cmp::Reverse(length));
        for (address, length, place) in all {
            let (words, mask) = (Key::words(address), mask(address, length));
            let masked = [words[0] & mask[0], words[1] & mask[1]];
            let is_v6 = address.is_ipv6();
            match groups.iter_mut().find(|it| it.is_v6 == is_v6 && it.mask == mask) {
                Some(group) => group.networks.push((masked, place)),
                None => groups.push(Group { is_v6, mask, networks: vec![(masked, place)] }),
            }
        }
        groups.iter_mut().for_each(|group| group.networks.sort_unstable());
        Networks(groups)
    }

    /// The service that `takes` the address by the longest prefix; the lowest `rank` among equals.
    pub fn find(
        &self,
        (address, is_v6): ([u64; 2], bool),
        takes: impl Fn(u8) -> bool,
        rank: impl Fn(u8) -> (bool, bool, bool),
    ) -> Option<u8> {
        self.0.iter().filter(|group| group.is_v6 == is_v6).find_map(|group| {
            let masked = [address[0] & group.mask[0], address[1] & group.mask[1]];
            let from = group.networks.partition_point(|(network, _)| *network < masked);
            let same = group.networks[from..].iter().take_while(|(network, _)| *network == masked);
            same.map(|&(_, place)| place).filter(|it| takes(*it)).min_by_key(|it| rank(*it))
        })
    }
}

/// The first bits, in the form of [`Key::words`].
fn mask(address: IpAddr, length: u8) -> [u64; 2] {
    let first = |bits: u32| u128::MAX.checked_shl(bits.saturating_sub(length.into())).unwrap_or(0);
    match address {
        IpAddr::V4(_) => [first(32) as u64 & 0xffff_ffff, 0],
        IpAddr::V6(_) => [(first(128) >> 64) as u64, first(128) as u64],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_that_takes_the_flow_wins() {
        let networks = [
            ("10.0.0.0", 8, 0),
            ("10.1.0.0", 16, 1),
            ("10.1.0.0", 16, 2),
            ("10.1.2.3", 32, 3),
            ("::", 0, 4),
            ("2001:db8::", 32, 5),
            ("2001:db8::7", 128, 6),
        ];
        let networks =
            networks.map(|(address, bits, place)| (address.parse().unwrap(), bits, place));
        let networks = Networks::new(networks.into_iter());
        let find = |address: &str, but: &[u8]| {
            let address: IpAddr = address.parse().unwrap();
            let takes = |place| !but.contains(&place);
            // For 10.1.0.0/16, the second comes first.
            networks
                .find((Key::words(address), address.is_ipv6()), takes, |it| (it == 1, false, false))
        };
        for (address, but, expected) in [
            ("10.2.0.1", &[][..], Some(0)),
            ("10.1.9.9", &[], Some(2)),
            ("10.1.9.9", &[2], Some(1)),
            ("10.1.9.9", &[1, 2], Some(0)),
            ("10.1.2.3", &[], Some(3)),
            ("11.0.0.1", &[], None),
            ("2001:db8::7", &[], Some(6)),
            ("2001:db8:1::", &[], Some(5)),
            ("ff02::1", &[], Some(4)),
            ("ff02::1", &[4], None),
        ] {
            assert_eq!(find(address, but), expected, "{address} without {but:?}");
        }
    }
}
