//! Link layers: where the outermost IP header begins.

use super::{be16, need};
use crate::verdict::Verdict;

// Link types as pcap numbers them (LINKTYPE_ values of the tcpdump group).
const NULL: u16 = 0;
pub(super) const ETHERNET: u16 = 1;
const RAW_BSD: u16 = 12;
const RAW_OPENBSD: u16 = 14;
const RAW: u16 = 101;
const LOOP: u16 = 108;
const LINUX_SLL: u16 = 113;
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const LINUX_SLL2: u16 = 276;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_PPPOE_SESSION: u16 = 0x8864;
const ETHERTYPE_MPLS: [u16; 2] = [0x8847, 0x8848];
const ETHERTYPE_TAGS: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];

/// IP version that the link layer announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    V4,
    V6,
    /// Nothing: raw IP says it in its first nibble only.
    Either,
}

/// Offset of the outermost IP header, which is at most the frame's length, and
/// the version it must have.
#[inline]
pub(super) fn find_ip(link: u16, frame: &[u8]) -> Result<(usize, Announced), Verdict> {
    let (ethertype_at, header) = match link {
        ETHERNET => (12, 14),
        LINUX_SLL => (14, 16),
        LINUX_SLL2 => (0, 20),
        NULL | LOOP => return bsd_loopback(frame),
        RAW | RAW_BSD | RAW_OPENBSD | IPV4 | IPV6 => return Ok((0, Announced::Either)),
        _ => return Err(Verdict::UnsupportedLink),
    };
    need(frame, 0, header, Verdict::LinkShort)?;
    match be16(frame, ethertype_at) {
        ETHERTYPE_IPV4 => Ok((header, Announced::V4)),
        ETHERTYPE_IPV6 => Ok((header, Announced::V6)),
        ethertype => encapsulated(frame, header, ethertype),
    }
}

/// As [`super::is_plain`].
#[inline]
pub(super) fn is_plain(link: u16, frame: &[u8]) -> bool {
    let is_ip = |at: usize| {
        frame.len() < at + 2 || matches!(be16(frame, at), ETHERTYPE_IPV4 | ETHERTYPE_IPV6)
    };
    link != ETHERNET || is_ip(12) || be16(frame, 12) == ETHERTYPE_TAGS[0] && is_ip(16)
}

/// As [`super::vlan`].
pub(super) fn vlan(link: u16, frame: &[u8]) -> Option<u16> {
    let (ethertype_at, header) = match link {
        ETHERNET => (12, 14),
        LINUX_SLL => (14, 16),
        LINUX_SLL2 => (0, 20),
        _ => return None,
    };
    let has_tag = frame.len() >= header + 4 && ETHERTYPE_TAGS.contains(&be16(frame, ethertype_at));
    has_tag.then(|| be16(frame, header) & 0xfff)
}

/// As [`super::mac`].
pub(super) fn mac(link: u16, frame: &[u8]) -> Option<[u8; 6]> {
    frame.first_chunk().copied().filter(|_| link == ETHERNET)
}

/// BSD null and OpenBSD loopback: a 4-byte address family, in the byte order of
/// the machine that captured, so both orders are tried. The families of IPv6
/// differ by system: Linux 10, Windows 23, NetBSD 24, FreeBSD 28, Darwin 30.
fn bsd_loopback(frame: &[u8]) -> Result<(usize, Announced), Verdict> {
    need(frame, 0, 4, Verdict::LinkShort)?;
    let family = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
    let is = |value: u32| family == value || family == value.swap_bytes();
    if is(2) {
        return Ok((4, Announced::V4));
    }
    if [10, 23, 24, 28, 30].into_iter().any(is) {
        return Ok((4, Announced::V6));
    }
    Err(Verdict::NonIp)
}

/// Below any number of VLAN tags: PPPoE, MPLS, IP.
fn encapsulated(
    frame: &[u8],
    mut at: usize,
    mut ethertype: u16,
) -> Result<(usize, Announced), Verdict> {
    while ETHERTYPE_TAGS.contains(&ethertype) {
        need(frame, at, 4, Verdict::LinkShort)?;
        ethertype = be16(frame, at + 2);
        at += 4;
    }
    if ethertype == ETHERTYPE_PPPOE_SESSION {
        need(frame, at, 8, Verdict::LinkShort)?;
        ethertype = match be16(frame, at + 6) {
            0x0021 => ETHERTYPE_IPV4,
            0x0057 => ETHERTYPE_IPV6,
            0x0281 => ETHERTYPE_MPLS[0],
            _ => return Err(Verdict::NonIp),
        };
        at += 8;
    }
    match ethertype {
        ETHERTYPE_IPV4 => Ok((at, Announced::V4)),
        ETHERTYPE_IPV6 => Ok((at, Announced::V6)),
        _ if ETHERTYPE_MPLS.contains(&ethertype) => mpls(frame, at),
        _ => Err(Verdict::NonIp),
    }
}

/// MPLS labels to the bottom of the stack; the payload's first nibble says what
/// it is (RFC 4928; a pseudowire begins with 0).
fn mpls(frame: &[u8], mut at: usize) -> Result<(usize, Announced), Verdict> {
    loop {
        need(frame, at, 4, Verdict::LinkShort)?;
        let is_bottom = frame[at + 2] & 1 == 1;
        at += 4;
        if is_bottom {
            break;
        }
    }
    need(frame, at, 1, Verdict::LinkShort)?;
    match frame[at] >> 4 {
        4 => Ok((at, Announced::V4)),
        6 => Ok((at, Announced::V6)),
        _ => Err(Verdict::NonIp),
    }
}
