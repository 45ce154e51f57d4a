//! Rules of IPv4 as rules of IPv6: the same trees below 2001:db8::/32, the range for documents.

use policy::{Filter, ICMP, ICMPV6, Rank};

/// Where the trees begin.
const ROOT: u128 = 0x2001_0db8 << 96;

/// How long the prefix of an IPv4 prefix's length becomes: sites of /33 to /64 up to 24 bits, then
/// hosts up to /128, so that /12 becomes a /48, /24 a /64, and /32 a /128. Nothing stays nothing.
fn length(bits: u8) -> u8 {
    match bits {
        0 => 0,
        1..=24 => 32 + (4 * bits).div_ceil(3),
        _ => 64 + 8 * (bits - 24).min(8),
    }
}

/// Each bit of the address, at the end of the bits that stand for it.
fn address(v4: u32, bits: u8) -> u128 {
    let is_set = |bit: &u8| v4 >> (31 - bit) & 1 == 1;
    let below = (0..bits).filter(is_set).map(|bit| 1_u128 << (128 - length(bit + 1)));
    match bits {
        0 => 0,
        _ => ROOT | below.sum::<u128>(),
    }
}

/// The rule of IPv6 in place of one of IPv4.
pub fn filter(v4: &Filter<u32>) -> Filter<u128> {
    Filter {
        source: address(v4.source, v4.source_length),
        destination: address(v4.destination, v4.destination_length),
        source_length: length(v4.source_length),
        destination_length: length(v4.destination_length),
        protocol: v4.protocol.map(|it| if it == ICMP { ICMPV6 } else { it }),
        in_port: v4.in_port,
        source_ports: v4.source_ports,
        destination_ports: v4.destination_ports,
        rule: v4.rule,
        is_conditional: v4.is_conditional,
        rank: Rank::new(v4.rank.priority(), v4.rule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::Address;

    #[test]
    fn prefixes_stay_within_those_that_they_were_within() {
        assert_eq!([0, 12, 24, 32].map(length), [0, 48, 64, 128]);
        let host = 0xc0a8_17f3;
        for bits in 0..=32_u8 {
            let prefix = address(host.prefix(bits), bits);
            assert_eq!(prefix, address(host, 32).prefix(length(bits)), "{bits}");
            if bits > 1 {
                let other = host ^ 1 << (32 - bits);
                assert_ne!(prefix, address(other.prefix(bits), bits), "{bits}");
            }
        }
    }
}
