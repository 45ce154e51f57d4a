//! The key of a flow: protocol and the two ends, in an order that does not
//! depend on who spoke first, so that both directions find the same entry.
//!
//! VLAN tags, MPLS labels and interfaces are not part of it.
//!
//! ICMP has no ports: between two hosts there is one flow of it. Its key is one that no packet of
//! UDP has, because its ends stand in the other order ([`Key::of_icmp`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// Bit of [`Key::kind`]: UDP or ICMP, else TCP.
pub(crate) const KIND_UDP: u8 = 1;
/// Bit of [`Key::kind`]: IPv6, else IPv4.
pub(crate) const KIND_V6: u8 = 2;

/// [`Key::ports`] of ICMP.
const PORTS_OF_ICMP: u32 = 1 << 16;

/// A 5-tuple with ordered ends. The low end is the one whose (address, port) is
/// not greater, except in ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Key {
    /// Address of the low end: an IPv6 address as two words, most significant
    /// first; an IPv4 address in the first word.
    pub(crate) low: [u64; 2],
    /// Address of the high end.
    pub(crate) high: [u64; 2],
    /// Port of the low end in the upper half, of the high end in the lower.
    pub(crate) ports: u32,
    /// [`KIND_UDP`] and [`KIND_V6`].
    pub(crate) kind: u8,
}

/// An address as [`Key`] keeps it, with its port.
type End = ([u64; 2], u16);

impl Key {
    /// The key of a packet from `source` to `destination`, and whether the
    /// source is the low end. Where both ends are equal it is.
    #[inline]
    pub(crate) fn new(is_v6: bool, protocol: u8, source: End, destination: End) -> (Key, bool) {
        let from_low = source <= destination;
        let (low, high) = match from_low {
            true => (source, destination),
            false => (destination, source),
        };
        let kind = if protocol == UDP { KIND_UDP } else { 0 } | if is_v6 { KIND_V6 } else { 0 };
        let key = Key {
            low: low.0,
            high: high.0,
            ports: u32::from(low.1) << 16 | u32::from(high.1),
            kind,
        };
        (key, from_low)
    }

    /// As [`Key::new`], of a packet of IPv4: an end is one number, so order costs one comparison.
    #[inline]
    pub(crate) fn new_v4(protocol: u8, source: (u32, u16), destination: (u32, u16)) -> (Key, bool) {
        let number = |(address, port): (u32, u16)| u64::from(address) << 16 | u64::from(port);
        let (source, destination) = (number(source), number(destination));
        let (low, high) = (source.min(destination), source.max(destination));
        let key = Key {
            low: [low >> 16, 0],
            high: [high >> 16, 0],
            ports: (low as u32) << 16 | u32::from(high as u16),
            kind: u8::from(protocol == UDP) * KIND_UDP,
        };
        (key, source <= destination)
    }

    /// As [`Key::new`], of a packet of ICMP: the key of UDP, but the low end is the one whose
    /// (address, port) is greater, where the ports are 1 and 0, which tell ends with one address
    /// apart.
    pub(crate) fn of_icmp(is_v6: bool, source: [u64; 2], destination: [u64; 2]) -> (Key, bool) {
        let from_low = source >= destination;
        let (low, high) = match from_low {
            true => (source, destination),
            false => (destination, source),
        };
        let kind = KIND_UDP | if is_v6 { KIND_V6 } else { 0 };
        (Key { low, high, ports: PORTS_OF_ICMP, kind }, from_low)
    }

    /// The key of a packet of `protocol` (TCP, UDP or ICMP, which has no ports) between two
    /// addresses of one family.
    pub fn from_ends(protocol: u8, source: (IpAddr, u16), destination: (IpAddr, u16)) -> Key {
        let end = |(address, port)| (Key::words(address), port);
        let (is_v6, source, destination) = (source.0.is_ipv6(), end(source), end(destination));
        match protocol {
            ICMP | ICMPV6 => Key::of_icmp(is_v6, source.0, destination.0).0,
            _ => Key::new(is_v6, protocol, source, destination).0,
        }
    }

    /// An address as keys have it.
    pub(crate) fn words(address: IpAddr) -> [u64; 2] {
        match address {
            IpAddr::V4(address) => [u64::from(address.to_bits()), 0],
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                [(bits >> 64) as u64, bits as u64]
            }
        }
    }

    /// IP protocol number: TCP, UDP or ICMP.
    #[inline]
    pub fn protocol(&self) -> u8 {
        match self.kind & KIND_V6 {
            _ if !self.is_udp() => TCP,
            _ if !self.is_icmp() => UDP,
            0 => ICMP,
            _ => ICMPV6,
        }
    }

    /// UDP or ICMP, else TCP.
    #[inline]
    pub(crate) fn is_udp(&self) -> bool {
        self.kind & KIND_UDP != 0
    }

    /// ICMP, which has no ports.
    #[inline]
    pub fn is_icmp(&self) -> bool {
        self.ports == PORTS_OF_ICMP && self.is_udp() && self.low >= self.high
    }

    /// Whether one of the ends has this port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports >> 16 == u32::from(port) || self.ports as u16 == port
    }

    /// Source and destination of a packet that goes from the low end to the
    /// high one (`from_low`), or back.
    pub fn ends(&self, from_low: bool) -> ((IpAddr, u16), (IpAddr, u16)) {
        let [low, high] = self.ports_of_ends();
        let (low, high) = ((self.address(self.low), low), (self.address(self.high), high));
        if from_low { (low, high) } else { (high, low) }
    }

    /// Address and port of the destination of a packet that goes from the low end to the high one
    /// (`from_low`), or back; whether the address is one of IPv6.
    pub(crate) fn destination(&self, from_low: bool) -> ([u64; 2], u16, bool) {
        let (address, port) = match from_low {
            true => (self.high, self.ports as u16),
            false => (self.low, (self.ports >> 16) as u16),
        };
        (address, port, self.is_v6())
    }

    /// Ports of the low end and the high one; of ICMP 0.
    #[inline]
    pub(crate) fn ports_of_ends(&self) -> [u16; 2] {
        let ports = if self.is_icmp() { 0 } else { self.ports };
        [(ports >> 16) as u16, ports as u16]
    }

    #[inline]
    pub(crate) fn is_v6(&self) -> bool {
        self.kind & KIND_V6 != 0
    }

    #[inline]
    pub(crate) fn v4(words: [u64; 2]) -> Ipv4Addr {
        Ipv4Addr::from_bits(words[0] as u32)
    }

    #[inline]
    pub(crate) fn v6(words: [u64; 2]) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]))
    }

    fn address(&self, words: [u64; 2]) -> IpAddr {
        match self.is_v6() {
            false => IpAddr::V4(Key::v4(words)),
            true => IpAddr::V6(Key::v6(words)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_directions_have_one_key() {
        let a = ([0x0a00_0001, 0], 40000);
        let b = ([0x0a00_0002, 0], 53);
        let (key, from_low) = Key::new(false, UDP, a, b);
        let (back, back_from_low) = Key::new(false, UDP, b, a);
        assert_eq!(key, back);
        assert!(from_low && !back_from_low);
        let (source, destination) = key.ends(from_low);
        assert_eq!(source, ("10.0.0.1".parse().unwrap(), 40000));
        assert_eq!(destination, ("10.0.0.2".parse().unwrap(), 53));
        assert_eq!(key.ends(back_from_low).0, destination);
    }

    #[test]
    fn same_addresses_order_by_port_and_equal_ends_are_forward() {
        let a = ([7, 9], 2);
        let b = ([7, 9], 1);
        assert!(!Key::new(true, TCP, a, b).1);
        assert!(Key::new(true, TCP, b, a).1);
        assert!(Key::new(true, TCP, a, a).1);
    }

    /// Few addresses and ports, so that equal ones meet.
    fn end() -> impl Strategy<Value = (IpAddr, u16)> {
        let address = prop::sample::select(vec!["0.0.0.0", "10.0.0.1", "255.255.255.255"]);
        let port = prop::sample::select(vec![0, 1, 2, u16::MAX]);
        (address, port).prop_map(|(address, port)| (address.parse().unwrap(), port))
    }

    proptest! {
        #[test]
        fn no_packet_of_udp_or_tcp_has_the_key_of_icmp(
            ends in [end(), end()],
            others in [end(), end()],
            is_v6: bool,
        ) {
            let of_family = |(address, port): (IpAddr, u16)| match address {
                IpAddr::V4(v4) if is_v6 => (v4.to_ipv6_mapped().into(), port),
                _ => (address, port),
            };
            let [[a, b], [c, d]] = [ends, others].map(|ends| ends.map(of_family));
            let icmp = if is_v6 { ICMPV6 } else { ICMP };
            let key = Key::from_ends(icmp, a, b);
            prop_assert_eq!(key, Key::from_ends(icmp, b, a));
            prop_assert_eq!(key.protocol(), icmp);
            let (_, from_low) = Key::of_icmp(is_v6, Key::words(a.0), Key::words(b.0));
            prop_assert_eq!(key.ends(from_low), ((a.0, 0), (b.0, 0)));
            for protocol in [TCP, UDP] {
                let other = Key::from_ends(protocol, c, d);
                prop_assert_ne!(key, other);
                prop_assert_eq!(other.protocol(), protocol);
            }
        }
    }

    #[test]
    fn protocol_and_family_are_part_of_the_key() {
        let a = ([1, 0], 1);
        let b = ([2, 0], 2);
        let keys = [
            Key::new(false, TCP, a, b).0,
            Key::new(false, UDP, a, b).0,
            Key::new(true, TCP, a, b).0,
            Key::new(true, UDP, a, b).0,
        ];
        for (i, one) in keys.iter().enumerate() {
            for other in &keys[i + 1..] {
                assert_ne!(one, other);
            }
        }
    }
}
