//! From a frame's bytes to the headers that make a flow.
//!
//! Only the outermost IP header counts; a tunnel is the outer flow. Every check is made once, in a
//! fixed order, and each failure has its own verdict. Lengths from the wire are never trusted: a
//! header is read only after its bytes were seen to be there.

mod ip;
mod link;
mod segments;
mod transport;
mod usual;

use crate::key::Key;
use crate::verdict::Verdict;

pub use segments::{Gso, Segments};
pub(crate) use transport::TCP_PSH;
pub use transport::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
pub(crate) use usual::parse_v4 as parse_usual_v4;

pub use crate::key::{ICMP, ICMPV6, TCP, UDP};

/// Bytes of the header of ICMP: type, code, checksum, and four more that depend on the type.
pub(crate) const ICMP_HEADER: usize = 8;
/// The type of ICMPv6 from which on there are the messages of multicast listeners and of neighbour
/// discovery (RFC 2710, RFC 4861).
const LISTENER_QUERY: u8 = 130;

/// What a flow needs of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The 5-tuple, its two ends in order.
    pub key: Key,
    /// The packet goes from the key's low end to its high end.
    pub from_low: bool,
    /// TCP flags, byte 13 of the header; otherwise 0.
    pub tcp_flags: u8,
    /// Length at the IP layer, bytes: the IPv4 total length (where that is 0,
    /// the captured bytes), or the IPv6 payload length + 40.
    pub length: u32,
    /// Bytes of all headers from the IP header to the TCP, UDP or ICMP header, both included.
    pub header_bytes: u32,
    /// Where the IP header begins in the frame.
    pub ip_at: u32,
}

impl Headers {
    /// Layer-4 payload, bytes: the length minus all headers, at least 0. Bytes that the capture cut
    /// off count.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> u32 {
        self.length.saturating_sub(self.header_bytes)
    }
}

/// Reads the headers of a frame of pcap link type `link`.
///
/// # Errors
/// The verdict of a packet that belongs to no flow.
#[inline]
pub fn parse(link: u16, frame: &[u8]) -> Result<Headers, Verdict> {
    parse_on_wire(link, frame, u32::MAX)
}

/// As [`parse`], for a frame of `wire` bytes on the wire: a packet that claims to be longer is
/// malformed.
///
/// # Errors
/// As [`parse`].
#[inline]
pub fn parse_on_wire(link: u16, frame: &[u8], wire: u32) -> Result<Headers, Verdict> {
    if let Some(headers) = usual::parse_v6(link, frame, wire) {
        return Ok(headers);
    }
    parse_any(link, frame, wire)
}

/// As [`parse_on_wire`], without a look at what is usual.
#[inline]
fn parse_any(link: u16, frame: &[u8], wire: u32) -> Result<Headers, Verdict> {
    let (ip_at, announced) = link::find_ip(link, frame)?;
    let packet = ip::parse(&frame[ip_at..], announced)?;
    if u64::from(packet.length) + ip_at as u64 > u64::from(wire.max(frame.len() as u32)) {
        return Err(Verdict::IpLength);
    }
    let ports = match transport::parse(packet.protocol, packet.payload) {
        Ok(ports) => ports,
        Err(Verdict::OtherL4) => return of_icmp(&packet, ip_at),
        Err(verdict) => return Err(verdict),
    };
    let (key, from_low) = Key::new(
        packet.is_v6,
        packet.protocol,
        (packet.source, ports.source),
        (packet.destination, ports.destination),
    );
    Ok(Headers {
        key,
        from_low,
        tcp_flags: ports.tcp_flags,
        length: packet.length,
        header_bytes: packet.at as u32 + ports.header,
        ip_at: ip_at as u32,
    })
}

/// The headers of a packet that is neither TCP nor UDP: of ICMP, unless it only keeps the link in
/// order.
#[inline(never)]
fn of_icmp(packet: &ip::Packet<'_>, ip_at: usize) -> Result<Headers, Verdict> {
    let is_of_link =
        || packet.is_v6 && packet.payload.first().is_some_and(|&kind| kind >= LISTENER_QUERY);
    let icmp = if packet.is_v6 { ICMPV6 } else { ICMP };
    if packet.protocol != icmp || is_of_link() {
        return Err(Verdict::OtherL4);
    }
    need(packet.payload, 0, ICMP_HEADER, Verdict::L4Short)?;
    let (key, from_low) = Key::of_icmp(packet.is_v6, packet.source, packet.destination);
    Ok(Headers {
        key,
        from_low,
        tcp_flags: 0,
        length: packet.length,
        header_bytes: (packet.at + ICMP_HEADER) as u32,
        ip_at: ip_at as u32,
    })
}

/// Whether IP begins right behind the header of an Ethernet frame, or behind one VLAN tag, where
/// every card looks for it; other link types have no cards.
#[inline]
pub(crate) fn is_plain(link: u16, frame: &[u8]) -> bool {
    link::is_plain(link, frame)
}

/// The VLAN of a frame's outermost tag, if it has one.
pub(crate) fn vlan(link: u16, frame: &[u8]) -> Option<u16> {
    link::vlan(link, frame)
}

/// The MAC address that a frame goes to; `None` where the link has none.
pub(crate) fn mac(link: u16, frame: &[u8]) -> Option<[u8; 6]> {
    link::mac(link, frame)
}

/// The type of service of a packet that begins with its IP header.
pub(crate) fn type_of_service(ip: &[u8]) -> Option<u8> {
    let &[first, second] = ip.first_chunk()?;
    Some(match first >> 4 {
        4 => second,
        _ => first << 4 | second >> 4,
    })
}

/// Where the layer-4 header of a frame begins, behind IP options and extension headers.
///
/// # Errors
/// The verdict of a packet whose IP header is damaged, or of a later fragment.
pub fn transport_at(link: u16, frame: &[u8]) -> Result<usize, Verdict> {
    let (ip_at, announced) = link::find_ip(link, frame)?;
    Ok(ip_at + ip::parse(&frame[ip_at..], announced)?.at)
}

/// The ends of an IP packet without ports, as the key of a UDP flow between port 0 and port 0: for
/// packets that belong to no flow for lack of ports, such as later fragments. `None` without
/// addresses.
pub(crate) fn addresses(link: u16, frame: &[u8]) -> Option<Key> {
    let (ip_at, announced) = link::find_ip(link, frame).ok()?;
    let (is_v6, source, destination) = ip::addresses(&frame[ip_at..], announced).ok()?;
    Some(Key::new(is_v6, UDP, (source, 0), (destination, 0)).0)
}

/// Big-endian 16 bits at `at`; the caller has checked that they are there.
#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Big-endian 64 bits at `at`; the caller has checked that they are there.
#[inline]
fn be64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word)
}

/// `Ok` where `count` bytes stand from `at` on.
#[inline]
fn need(bytes: &[u8], at: usize, count: usize, verdict: Verdict) -> Result<(), Verdict> {
    if at + count > bytes.len() {
        return Err(verdict);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
