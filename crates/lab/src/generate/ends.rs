//! The two ends of each copy: addresses and ports that no two copies share.
//!
//! The end with the higher port, most likely the client, gets an address and a port that are
//! unique to the copy: 24 bits of address and 14 of port (49152 to 65535), a permutation of the
//! copy's number that depends on the seed. The other end keeps its port, which identifies the
//! service, and gets a random address. All addresses are reserved for measurements and internal
//! networks: 10.0.0.0/8 and 198.18.0.0/15 (RFC 2544), 2001:2::/48 (RFC 5180).

/// Number of copies with different 5-tuples.
pub const COPIES_MAX: u64 = 1 << BITS;

const BITS: u32 = PORT_BITS + 24;
const PORT_BITS: u32 = 14;
const PORT_MIN: u16 = 49_152;
const PREFIX_V6: [u8; 6] = [0x20, 0x01, 0x00, 0x02, 0x00, 0x00];

/// An address with its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// IPv4 in the first four bytes, or IPv6.
    bytes: [u8; 16],
    is_v6: bool,
    /// The port.
    pub port: u16,
}

impl End {
    fn v4(address: u32, port: u16) -> End {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&address.to_be_bytes());
        End { bytes, is_v6: false, port }
    }

    /// On a network of its own.
    fn v6(network: u8, host: u32, port: u16) -> End {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&PREFIX_V6);
        bytes[7] = network;
        bytes[12..].copy_from_slice(&host.to_be_bytes());
        End { bytes, is_v6: true, port }
    }

    /// The bytes of the address: 4 or 16.
    pub fn address(&self) -> &[u8] {
        &self.bytes[..if self.is_v6 { 16 } else { 4 }]
    }
}

/// Both ends of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The end that no other copy has.
    pub client: End,
    /// The end that keeps its port.
    pub server: End,
}

impl Ends {
    /// The ends of a copy, by its number below [`COPIES_MAX`].
    pub fn new(seed: u64, copy: u64, is_v6: bool, server_port: u16) -> Ends {
        let own = permuted(seed, copy);
        let port = PORT_MIN + (own & ((1 << PORT_BITS) - 1)) as u16;
        let client = (own >> PORT_BITS) as u32;
        // Another multiplier, so that the two addresses are not correlated.
        let server = ((own ^ seed).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 47) as u32;
        match is_v6 {
            false => Ends {
                client: End::v4(0x0a00_0000 | client, port),
                server: End::v4(0xc612_0000 | server, server_port),
            },
            true => {
                Ends { client: End::v6(1, client, port), server: End::v6(2, server, server_port) }
            }
        }
    }
}

/// A permutation, because each step can be undone within [`BITS`] bits: adding, an odd factor, and
/// the xor of lower bits with higher ones.
fn permuted(seed: u64, number: u64) -> u64 {
    const MASK: u64 = COPIES_MAX - 1;
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let scattered = number.wrapping_add(seed.wrapping_mul(ODD)).wrapping_mul(ODD) & MASK;
    let mixed = scattered ^ scattered >> (BITS / 2);
    mixed.wrapping_mul(ODD) & MASK
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_copies_share_their_client() {
        for seed in [0, 1, u64::MAX] {
            let spread = (0..200_000).chain((0..200_000).map(|i| COPIES_MAX - 1 - i));
            let clients: HashSet<u64> = spread.map(|copy| permuted(seed, copy)).collect();
            assert_eq!(clients.len(), 400_000, "seed {seed}");
        }
    }

    #[test]
    fn ends_lie_in_their_networks_and_depend_on_the_seed() {
        for copy in 0..10_000 {
            let ends = Ends::new(7, copy, false, 53);
            assert_eq!(ends.client.address()[0], 10);
            assert_eq!(ends.server.address()[0], 198);
            assert!([18, 19].contains(&ends.server.address()[1]), "{ends:?}");
            assert!(ends.client.port >= PORT_MIN);
            assert_eq!(ends.server.port, 53);
            let ends = Ends::new(7, copy, true, 53);
            assert_eq!(ends.client.address()[..8], [0x20, 1, 0, 2, 0, 0, 0, 1]);
            assert_eq!(ends.server.address()[..8], [0x20, 1, 0, 2, 0, 0, 0, 2]);
        }
        assert_ne!(Ends::new(1, 5, false, 53), Ends::new(2, 5, false, 53));
    }
}
