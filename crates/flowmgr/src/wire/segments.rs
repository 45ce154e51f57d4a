//! Merged packets: several packets of a flow that GRO, LRO or TSO made into one, and the packets
//! that they are on the wire.
//!
//! The kernel says how long the parts are (`gso_size` of `virtio_net_hdr`) and whether they are TCP
//! segments or UDP datagrams. The length of the headers that each part has on the wire is read from
//! the packet, because the kernel's `hdr_len` is the length of the linear part of its buffer.

use super::{Headers, TCP, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN, UDP, be16, parse};

/// RFC 3168 §6.1.2.
const TCP_CWR: u8 = 0x80;
/// Destination ports of VXLAN (RFC 7348 §5, and the one that Linux used before) and of Geneve (RFC
/// 8926 §3.3). Both headers have 8 bytes; Geneve's is followed by options.
const VXLAN: [u16; 2] = [4789, 8472];
const GENEVE: u16 = 6081;
/// The pcap link type of their contents.
const ETHERNET: u16 = 1;

/// What the kernel says of a merged packet: `gso_type` and `gso_size`, in two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gso(u16);

impl Gso {
    /// One packet, which nobody has merged.
    pub const NONE: Gso = Gso(0);
    /// Several packets in one, of unknown lengths.
    pub const UNKNOWN: Gso = Gso(Gso::SIZE);

    /// Bits of the size.
    const SIZE: u16 = 0x7fff;
    /// The parts are UDP datagrams.
    const UDP: u16 = 0x8000;

    /// From the bits of [`Gso::bits`]: 0 is one packet; otherwise bits 0 to 14 are `gso_size`, all
    /// set if it is not known, and bit 15 is set if the parts are UDP datagrams.
    pub const fn from_bits(bits: u16) -> Gso {
        Gso(bits)
    }

    /// The two bytes.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// TCP segments with `size` bytes of payload each, the last with fewer.
    pub const fn tcp(size: u16) -> Gso {
        Gso(if size < Gso::SIZE { size } else { Gso::SIZE })
    }

    /// UDP datagrams, likewise.
    pub const fn udp(size: u16) -> Gso {
        Gso(Gso::tcp(size).0 | Gso::UDP)
    }

    /// Whether it is one packet.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Bytes of payload of each part, and the protocol of the parts.
    fn parts(self) -> Option<(u32, u8)> {
        let size = self.0 & Gso::SIZE;
        let protocol = if self.0 & Gso::UDP != 0 { UDP } else { TCP };
        (size != 0 && size != Gso::SIZE).then_some((size.into(), protocol))
    }
}

/// The packets that a merged packet is on the wire: all but the last are equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// How many, at least one.
    pub(crate) count: u32,
    /// Bytes of headers of each, from the outermost IP header on.
    headers: u32,
    /// Bytes of payload of all but the last.
    size: u32,
    /// Bytes of payload of the last.
    last: u32,
}

impl Segments {
    /// The segments of a merged packet with these `headers`. `None` if they are not known: the
    /// kernel did not say how long they are, the length in the IP header is open (BIG TCP), or
    /// these are not headers of packets that are merged.
    pub fn new(gso: Gso, frame: &[u8], headers: &Headers) -> Option<Segments> {
        let (size, protocol) = gso.parts()?;
        let ip = frame.get(headers.ip_at as usize..)?;
        // What was captured counts as the length then, and that may be less.
        if ip[0] >> 4 == 4 && be16(ip, 2) == 0 {
            return None;
        }
        let payload = match (protocol, headers.key.protocol()) {
            // Of TCP and UDP only TCP has flags. Neither GRO nor TSO merges packets with one of
            // these.
            (TCP, TCP) | (UDP, UDP) if headers.tcp_flags & (TCP_SYN | TCP_RST) == 0 => {
                headers.payload()
            }
            (TCP, UDP) => payload_in_tunnel(ip, headers)?,
            _ => return None,
        };
        let count = payload.div_ceil(size);
        (count != 0).then(|| Segments {
            count,
            headers: headers.length - payload,
            size,
            last: payload - (count - 1) * size,
        })
    }

    /// The headers of segment `number`, as the merged packet's `headers` make them: PSH and FIN are
    /// the last one's, CWR is the first one's.
    pub fn headers(&self, headers: &Headers, number: u32) -> Headers {
        let mut cleared = 0;
        if number + 1 < self.count {
            cleared |= TCP_PSH | TCP_FIN;
        }
        if number > 0 {
            cleared |= TCP_CWR;
        }
        Headers { length: self.length(number), tcp_flags: headers.tcp_flags & !cleared, ..*headers }
    }

    /// Bytes of payload of all but the last.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Bytes at the IP layer of segment `number`.
    pub fn length(&self, number: u32) -> u32 {
        let payload = if number + 1 < self.count { self.size } else { self.last };
        self.headers + payload
    }

    /// Bytes that all of them have on the wire in addition to the merged packet, whose IP header
    /// begins at `ip_at`.
    pub fn repeated_bytes(&self, ip_at: u32) -> u64 {
        u64::from(self.count - 1) * u64::from(ip_at + self.headers)
    }
}

/// Bytes of TCP payload in an Ethernet frame in a UDP packet: the segments repeat all headers
/// before it. `None` if the packet is none of VXLAN or Geneve.
fn payload_in_tunnel(ip: &[u8], headers: &Headers) -> Option<u32> {
    let tunnel = ip.get(headers.header_bytes as usize..)?;
    let port = be16(ip, headers.header_bytes as usize - 6);
    let inner_at = match port {
        GENEVE => 8 + usize::from(tunnel.first()? & 0x3f) * 4,
        _ if VXLAN.contains(&port) => 8,
        _ => return None,
    };
    let inner = parse(ETHERNET, tunnel.get(inner_at..)?).ok()?;
    // The inner packet's headers and payload must fit into the outer packet.
    let before = headers.header_bytes + inner_at as u32 + inner.ip_at + inner.header_bytes;
    let payload = inner.payload();
    (inner.key.protocol() == TCP && before + payload == headers.length).then_some(payload)
}
