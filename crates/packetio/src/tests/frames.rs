//! Frames to send.

use crate::batch::FrameBatch;
use crate::burst::Frame;

/// IP protocol number.
const UDP: u8 = 17;

/// One end of a flow.
#[derive(Clone, Copy)]
pub struct End {
    pub host: u8,
    pub port: u16,
}

/// What a packet is but for its ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    V4,
    V4First,
    V4Later,
    V6,
    V6First,
    V6Later,
}

pub const KINDS: [Kind; 6] =
    [Kind::V4, Kind::V4First, Kind::V4Later, Kind::V6, Kind::V6First, Kind::V6Later];

/// An Ethernet frame with a UDP packet that ends with `mark`.
pub fn frame(from: End, to: End, kind: Kind, tags: &[(u16, u16)], mark: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to.host, 2, 0, 0, 0, 0, from.host];
    for (protocol, tag) in tags {
        frame.extend(protocol.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    let mut udp = from.port.to_be_bytes().to_vec();
    udp.extend(to.port.to_be_bytes());
    udp.extend([0, 40, 0, 0]);
    udp.extend([0x55; 28]);
    udp.extend(mark.to_be_bytes());
    frame.extend(match kind {
        Kind::V4 | Kind::V4First | Kind::V4Later => v4(from, to, kind, &udp),
        _ => v6(from, to, kind, &udp),
    });
    frame
}

fn v4(from: End, to: End, kind: Kind, udp: &[u8]) -> Vec<u8> {
    let field: u16 = match kind {
        Kind::V4 => 0,
        Kind::V4First => 0x2000,
        _ => 5,
    };
    let mut packet = vec![0x08, 0x00, 0x45, 0, 0, 20 + udp.len() as u8, 0, 9];
    packet.extend(field.to_be_bytes());
    packet.extend([64, UDP, 0, 0, 10, 0, 0, from.host, 10, 0, 0, to.host]);
    packet.extend(udp);
    packet
}

fn v6(from: End, to: End, kind: Kind, udp: &[u8]) -> Vec<u8> {
    let fragment: &[u8] = match kind {
        Kind::V6 => &[],
        Kind::V6First => &[UDP, 0, 0, 1, 0, 0, 0, 9],
        _ => &[UDP, 0, 0, 0x28, 0, 0, 0, 9],
    };
    let next = if fragment.is_empty() { UDP } else { 44 };
    let mut packet =
        vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, (fragment.len() + udp.len()) as u8, next, 64];
    for end in [from, to] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end.host]);
    }
    packet.extend(fragment);
    packet.extend(udp);
    packet
}

/// The mark at the end of a frame.
pub fn mark(frame: &[u8]) -> u32 {
    let last = frame.last_chunk().expect("a frame of a test");
    u32::from_be_bytes(*last)
}

/// The frames as bursts.
pub fn trace<B: AsRef<[u8]>>(frames: impl IntoIterator<Item = B>) -> FrameBatch {
    let mut trace = FrameBatch::new();
    for frame in frames {
        let bytes = frame.as_ref();
        let wire = bytes.len() as u32;
        trace.push(&Frame { wire, ..Frame::default() }, bytes);
    }
    trace
}

/// Frames of all lengths, numbered.
pub fn numbered(count: u32) -> Vec<Vec<u8>> {
    let (a, b) = (End { host: 1, port: 7 }, End { host: 2, port: 9 });
    let numbered = |i: u32| {
        let mut bytes = frame(a, b, Kind::V4, &[], i);
        bytes.resize(60 + (i as usize * 7) % 1455, i as u8);
        bytes
    };
    (0..count).map(numbered).collect()
}

/// Frames of 300 flows in one direction: whole packets and first fragments, tagged or not. Each
/// pair of hosts has later fragments, too, which are no flow's, with a mark of the pair.
pub fn flows(is_back: bool) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for flow in 0..300_u16 {
        let a = End { host: 1 + (flow % 20) as u8, port: 32_768 + flow };
        let b = End { host: 200, port: 53 };
        let (from, to) = if is_back { (b, a) } else { (a, b) };
        for (i, kind) in KINDS.into_iter().enumerate() {
            let is_later = matches!(kind, Kind::V4Later | Kind::V6Later);
            let version = u32::from(i >= 3) << 16;
            let mark =
                version | if is_later { 0x20000 | u32::from(a.host) } else { u32::from(flow) };
            let tags = [(0x8100, 7), (0x8100, 8)];
            all.push(frame(from, to, kind, &tags[..usize::from(flow) % 3], mark));
        }
    }
    all
}
