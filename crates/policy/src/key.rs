//! Keys, the tuples of flows' first packets, and filters, the boxes of rules.
//!
//! IPv4 and IPv6 have separate classifiers, so both types are generic over the address: [`u32`] or
//! [`u128`].

use std::net::IpAddr;

use crate::Address;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// The tuple of a flow's first packet: the source began the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key<A> {
    /// Address of the side that began the flow.
    pub source: A,
    /// Address of the other side.
    pub destination: A,
    /// Its port.
    pub source_port: u16,
    /// The other side's port.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Number of the packet's incoming interface, from 1; 0 if unknown.
    pub in_port: u8,
}

/// A key of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuple {
    /// IPv4.
    V4(Key<u32>),
    /// IPv6.
    V6(Key<u128>),
}

impl Tuple {
    /// The tuple of a packet from `source` to `destination`; `None` if the families differ.
    pub fn new(
        protocol: u8,
        source: (IpAddr, u16),
        destination: (IpAddr, u16),
        in_port: u8,
    ) -> Option<Tuple> {
        let (source_port, destination_port) = (source.1, destination.1);
        match (source.0, destination.0) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Tuple::V4(Key {
                source: source.to_bits(),
                destination: destination.to_bits(),
                source_port,
                destination_port,
                protocol,
                in_port,
            })),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Tuple::V6(Key {
                source: source.to_bits(),
                destination: destination.to_bits(),
                source_port,
                destination_port,
                protocol,
                in_port,
            })),
            _ => None,
        }
    }
}

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last, not less than the first.
    pub last: u16,
}

impl Ports {
    /// Every port.
    pub const ANY: Ports = Ports { first: 0, last: u16::MAX };

    /// One port.
    pub const fn one(port: u16) -> Ports {
        Ports { first: port, last: port }
    }

    /// Whether `port` is in the range.
    #[inline]
    pub fn has(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// A box in the space of tuples. A rule has one or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter<A> {
    /// Prefix of the source; bits beyond the length are 0.
    pub source: A,
    /// Prefix of the destination; bits beyond the length are 0.
    pub destination: A,
    /// Length of the source's prefix; 0 for any address.
    pub source_length: u8,
    /// Length of the destination's prefix; 0 for any address.
    pub destination_length: u8,
    /// IP protocol number; `None` for any.
    pub protocol: Option<u8>,
    /// Number of an interface, from 1; 0 for any.
    pub in_port: u8,
    /// Ports of the source.
    pub source_ports: Ports,
    /// Ports of the destination.
    pub destination_ports: Ports,
    /// Number of the rule.
    pub rule: RuleNumber,
    /// The rule has a condition or a share of the flows.
    pub is_conditional: bool,
    /// Rank of the rule: the least wins.
    pub rank: Rank,
}

/// Number of a rule in its set, below [`RULES_MAX`].
pub type RuleNumber = u32;

/// Maximum rules in a set.
pub const RULES_MAX: usize = (1 << 24) - 1;

/// Order of rules: greater priority first, then the rule added first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u64);

impl Rank {
    /// After every rule.
    pub const LAST: Rank = Rank(u64::MAX);

    /// The rank of the `order`th rule added.
    pub fn new(priority: u32, order: u32) -> Rank {
        Rank(u64::from(u32::MAX - priority) << 32 | u64::from(order))
    }

    /// The priority.
    pub fn priority(self) -> u32 {
        u32::MAX - (self.0 >> 32) as u32
    }

    /// How many rules were added before it.
    pub fn order(self) -> u32 {
        self.0 as u32
    }
}

impl<A: Address> Filter<A> {
    /// Whether the box contains the key.
    #[inline]
    pub fn has(&self, key: &Key<A>) -> bool {
        key.source.prefix(self.source_length) == self.source
            && key.destination.prefix(self.destination_length) == self.destination
            && self.source_ports.has(key.source_port)
            && self.destination_ports.has(key.destination_port)
            && self.protocol.is_none_or(|protocol| protocol == key.protocol)
            && (self.in_port == 0 || self.in_port == key.in_port)
    }

    /// A pseudo-random key of the box by `number`.
    pub fn key(&self, number: u64) -> Key<A> {
        let mut state = number;
        // splitmix64
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        };
        let mut address = |prefix: A, length| {
            let low = u128::from(next()) << 64 | u128::from(next());
            prefix.with_low(A::of_upper(low), length)
        };
        let source = address(self.source, self.source_length);
        let destination = address(self.destination, self.destination_length);
        let mut port = |ports: Ports| {
            ports.first + (next() % (u64::from(ports.last - ports.first) + 1)) as u16
        };
        Key {
            source,
            destination,
            source_port: port(self.source_ports),
            destination_port: port(self.destination_ports),
            protocol: self.protocol.unwrap_or(TCP),
            in_port: self.in_port,
        }
    }

    /// Whether this box contains all of `other`.
    pub fn covers(&self, other: &Filter<A>) -> bool {
        let within = |(prefix, length): (A, u8), (inner, inner_length): (A, u8)| {
            length <= inner_length && inner.prefix(length) == prefix
        };
        let ports =
            |outer: Ports, inner: Ports| outer.first <= inner.first && inner.last <= outer.last;
        within((self.source, self.source_length), (other.source, other.source_length))
            && within(
                (self.destination, self.destination_length),
                (other.destination, other.destination_length),
            )
            && ports(self.source_ports, other.source_ports)
            && ports(self.destination_ports, other.destination_ports)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && (self.in_port == 0 || self.in_port == other.in_port)
    }

    /// Whether some key is in both boxes.
    pub fn overlaps(&self, other: &Filter<A>) -> bool {
        let prefixes = |(one, length): (A, u8), (two, other_length): (A, u8)| {
            let shorter = length.min(other_length);
            one.prefix(shorter) == two.prefix(shorter)
        };
        let ports = |one: Ports, two: Ports| one.first <= two.last && two.first <= one.last;
        prefixes((self.source, self.source_length), (other.source, other.source_length))
            && prefixes(
                (self.destination, self.destination_length),
                (other.destination, other.destination_length),
            )
            && ports(self.source_ports, other.source_ports)
            && ports(self.destination_ports, other.destination_ports)
            && (self.protocol.is_none()
                || other.protocol.is_none()
                || self.protocol == other.protocol)
            && (self.in_port == 0 || other.in_port == 0 || self.in_port == other.in_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_by_priority_and_then_by_order() {
        let ranks =
            [Rank::new(9, 0), Rank::new(5, 1), Rank::new(5, 2), Rank::new(0, 0), Rank::LAST];
        assert!(ranks.is_sorted());
        assert_eq!(ranks[1].priority(), 5);
    }
}
