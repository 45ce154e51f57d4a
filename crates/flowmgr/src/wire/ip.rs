//! IPv4 and IPv6 headers, down to the layer-4 protocol.

use super::link::Announced;
use super::{be16, be64, need};
use crate::verdict::Verdict;

/// One IP packet, its header checked.
pub(super) struct Packet<'a> {
    pub is_v6: bool,
    pub protocol: u8,
    /// Addresses as [`crate::key::Key`] keeps them.
    pub source: [u64; 2],
    pub destination: [u64; 2],
    /// Length at the IP layer, see [`super::Headers::length`].
    pub length: u32,
    /// Where the layer-4 header begins, counted from the IP header.
    pub at: usize,
    /// From the layer-4 header on: captured, and within the IP length, so that
    /// link-layer padding is never taken for a header.
    pub payload: &'a [u8],
}

#[inline]
pub(super) fn parse(bytes: &[u8], announced: Announced) -> Result<Packet<'_>, Verdict> {
    need(bytes, 0, 1, Verdict::IpShort)?;
    match (bytes[0] >> 4, announced) {
        (4, Announced::V4 | Announced::Either) => parse_v4(bytes),
        (6, Announced::V6 | Announced::Either) => parse_v6(bytes),
        _ => Err(Verdict::IpVersion),
    }
}

/// Source and destination as [`crate::key::Key`] keeps them, and whether they are IPv6.
type Addresses = (bool, [u64; 2], [u64; 2]);

/// The addresses alone, whatever comes behind them.
pub(super) fn addresses(bytes: &[u8], announced: Announced) -> Result<Addresses, Verdict> {
    need(bytes, 0, 1, Verdict::IpShort)?;
    match (bytes[0] >> 4, announced) {
        (4, Announced::V4 | Announced::Either) => {
            need(bytes, 0, 20, Verdict::IpShort)?;
            Ok((false, address_v4(bytes, 12), address_v4(bytes, 16)))
        }
        (6, Announced::V6 | Announced::Either) => {
            need(bytes, 0, 40, Verdict::IpShort)?;
            let address = |at| [be64(bytes, at), be64(bytes, at + 8)];
            Ok((true, address(8), address(24)))
        }
        _ => Err(Verdict::IpVersion),
    }
}

#[inline]
fn address_v4(bytes: &[u8], at: usize) -> [u64; 2] {
    let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    [u64::from(u32::from_be_bytes(word)), 0]
}

#[inline]
fn parse_v4(bytes: &[u8]) -> Result<Packet<'_>, Verdict> {
    need(bytes, 0, 20, Verdict::IpShort)?;
    let header = usize::from(bytes[0] & 15) * 4;
    if header < 20 {
        return Err(Verdict::IpIhl);
    }
    need(bytes, 0, header, Verdict::IpShort)?;
    let mut length = usize::from(be16(bytes, 2));
    if length == 0 {
        length = bytes.len(); // segmentation offload leaves it open
    } else if length < header {
        return Err(Verdict::IpLength);
    }
    if be16(bytes, 6) & 0x1fff != 0 {
        return Err(Verdict::Fragment);
    }
    Ok(Packet {
        is_v6: false,
        protocol: bytes[9],
        source: address_v4(bytes, 12),
        destination: address_v4(bytes, 16),
        length: length as u32,
        at: header,
        payload: &bytes[header..length.min(bytes.len())],
    })
}

#[inline]
fn parse_v6(bytes: &[u8]) -> Result<Packet<'_>, Verdict> {
    need(bytes, 0, 40, Verdict::IpShort)?;
    let payload_length = usize::from(be16(bytes, 4));
    let length = payload_length + 40;
    let available = match payload_length {
        0 => bytes, // a jumbogram, or segmentation offload: length open
        _ => &bytes[..length.min(bytes.len())],
    };
    let (protocol, at) = skip_extensions(available, bytes[6])?;
    Ok(Packet {
        is_v6: true,
        protocol,
        source: [be64(bytes, 8), be64(bytes, 16)],
        destination: [be64(bytes, 24), be64(bytes, 32)],
        length: length as u32,
        at,
        payload: &available[at..],
    })
}

/// Skips the extension headers of RFC 8200 §4 and AH (RFC 4302): gives the
/// first protocol that is none of them, and where its header begins.
#[inline]
fn skip_extensions(available: &[u8], mut next: u8) -> Result<(u8, usize), Verdict> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;

    let mut at = 40;
    loop {
        let units = match next {
            HOP_BY_HOP | ROUTING | DESTINATION => 8,
            AUTHENTICATION => 4,
            FRAGMENT => 0,
            _ => return Ok((next, at)),
        };
        need(available, at, 8, Verdict::Ip6ExtShort)?;
        let length = usize::from(available[at + 1]);
        let size = match units {
            8 => (length + 1) * 8,
            4 => (length + 2) * 4,
            _ => {
                if be16(available, at + 2) >> 3 != 0 {
                    return Err(Verdict::Fragment);
                }
                8
            }
        };
        need(available, at, size, Verdict::Ip6ExtShort)?;
        next = available[at];
        at += size;
    }
}
