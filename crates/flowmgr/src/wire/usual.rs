//! The usual packet: Ethernet, IPv4 without options or IPv6 without extensions, and TCP or UDP. Its
//! fields lie at fixed offsets, so one look at the length replaces a check for each of them.

use super::link::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use super::{Headers, be16, be64};
use crate::key::{Key, TCP, UDP};

const IP_AT: usize = 14;
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;

/// The headers of a usual, undamaged packet of IPv4, as the general parser gives them; `None` for
/// all others, damaged ones included.
#[inline(always)]
pub(crate) fn parse_v4(link: u16, frame: &[u8], wire: u32) -> Option<Headers> {
    const AT: usize = IP_AT + V4_HEADER;
    let bytes: &[u8; AT + 8] = frame.first_chunk()?;
    let is_v4 = link == ETHERNET && be16(bytes, 12) == ETHERTYPE_IPV4 && bytes[IP_AT] == 0x45;
    let is_later_fragment = be16(bytes, IP_AT + 6) & 0x1fff != 0;
    if !is_v4 || is_later_fragment {
        return None;
    }
    let length = u32::from(be16(bytes, IP_AT + 2));
    let protocol = bytes[IP_AT + 9];
    let (tcp_flags, header_bytes) = transport::<AT>(frame, protocol, length, wire)?;
    let be32 = |at| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let source = (be32(IP_AT + 12), be16(bytes, AT));
    let destination = (be32(IP_AT + 16), be16(bytes, AT + 2));
    let (key, from_low) = Key::new_v4(protocol, source, destination);
    Some(Headers { key, from_low, tcp_flags, length, header_bytes, ip_at: IP_AT as u32 })
}

/// As [`parse_v4`], of IPv6.
#[inline]
pub(super) fn parse_v6(link: u16, frame: &[u8], wire: u32) -> Option<Headers> {
    const AT: usize = IP_AT + V6_HEADER;
    let bytes: &[u8; AT + 8] = frame.first_chunk()?;
    if link != ETHERNET || be16(bytes, 12) != ETHERTYPE_IPV6 || bytes[IP_AT] >> 4 != 6 {
        return None;
    }
    let length = match be16(bytes, IP_AT + 4) {
        0 => return None, // open
        length => u32::from(length) + V6_HEADER as u32,
    };
    let protocol = bytes[IP_AT + 6];
    let (tcp_flags, header_bytes) = transport::<AT>(frame, protocol, length, wire)?;
    let address = |at| [be64(bytes, at), be64(bytes, at + 8)];
    let source = (address(IP_AT + 8), be16(bytes, AT));
    let destination = (address(IP_AT + 24), be16(bytes, AT + 2));
    let (key, from_low) = Key::new(true, protocol, source, destination);
    Some(Headers { key, from_low, tcp_flags, length, header_bytes, ip_at: IP_AT as u32 })
}

/// TCP flags, and the bytes of all headers, of a packet of this IP length. Its layer-4 header is at
/// `AT`.
#[inline(always)]
fn transport<const AT: usize>(
    frame: &[u8],
    protocol: u8,
    length: u32,
    wire: u32,
) -> Option<(u8, u32)> {
    let l4 = &frame[AT..];
    let (tcp_flags, header) = match protocol {
        TCP => {
            let tcp: &[u8; 20] = l4.first_chunk()?;
            (tcp[13], u32::from(tcp[12] >> 4) * 4)
        }
        UDP if be16(l4, 4) >= 8 => (0, 8),
        _ => return None,
    };
    let is_short = protocol == TCP && header < 20;
    let header_bytes = (AT - IP_AT) as u32 + header;
    let captured = frame.len() as u32;
    let is_whole = header_bytes <= length.min(captured - IP_AT as u32);
    let fits = IP_AT as u32 + length <= wire.max(captured);
    (!is_short && is_whole && fits).then_some((tcp_flags, header_bytes))
}
