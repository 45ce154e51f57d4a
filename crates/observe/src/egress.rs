//! Where traffic of a service leaves: its identity and its slot.

use std::net::IpAddr;

/// What an egress is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EgressKind(pub u32);

impl EgressKind {
    /// A server's address and port.
    pub const SERVER: Self = Self(1);
    /// The neighbour that packets go to: its MAC address in the first six bytes of the address.
    pub const NEXT_HOP: Self = Self(2);
    /// The interface that packets leave by.
    pub const OUT_PORT: Self = Self(3);
    /// All that have no slot of their own.
    pub const OTHERS: Self = Self(4);
}

/// Where traffic of a service leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Egress {
    /// What it is.
    pub kind: EgressKind,
    /// In network order; IPv4 mapped into IPv6; of a next hop the MAC address, then zeros; zero
    /// where the kind has none.
    pub address: [u8; 16],
    /// Port of a server, or index of an interface.
    pub port: u32,
}

impl Egress {
    /// A server's address and port.
    pub fn server(address: IpAddr, port: u16) -> Self {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Self { kind: EgressKind::SERVER, address, port: port.into() }
    }

    /// A neighbour, by its MAC address.
    pub fn next_hop(mac: [u8; 6]) -> Self {
        let mut address = [0; 16];
        address[..6].copy_from_slice(&mac);
        Self { kind: EgressKind::NEXT_HOP, address, port: 0 }
    }

    /// An interface, by its index.
    pub fn out_port(index: u32) -> Self {
        Self { kind: EgressKind::OUT_PORT, address: [0; 16], port: index }
    }

    pub(crate) fn to_words(self) -> [u64; 3] {
        let half = |from| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&self.address[from..from + 8]);
            u64::from_le_bytes(eight)
        };
        [u64::from(self.kind.0) | u64::from(self.port) << 32, half(0), half(8)]
    }

    pub(crate) fn from_words(words: [u64; 3]) -> Self {
        let mut address = [0; 16];
        address[..8].copy_from_slice(&words[1].to_le_bytes());
        address[8..].copy_from_slice(&words[2].to_le_bytes());
        Self { kind: EgressKind(words[0] as u32), address, port: (words[0] >> 32) as u32 }
    }
}

/// A slot with the egress that had it when this was made. What is written through it after the slot
/// was given to another egress is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Position in the file.
    pub index: u32,
    /// Which of the file's successive egresses, from 1.
    pub incarnation: u32,
}
