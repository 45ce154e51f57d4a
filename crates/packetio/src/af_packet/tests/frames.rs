//! Frames to send, and what was received of them.

use super::super::reader::RingReader;
use super::super::transmit::Transmit;
use crate::burst::{Burst, Frame};
use crate::memory::MemoryTrace;
use crate::rx::{Received, Rx};
use crate::tx::Selection;

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

pub const KINDS: [Kind; 6] = [
    Kind::V4,
    Kind::V4First,
    Kind::V4Later,
    Kind::V6,
    Kind::V6First,
    Kind::V6Later,
];

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
    let mut packet = vec![
        0x86,
        0xdd,
        0x60,
        0,
        0,
        0,
        0,
        (fragment.len() + udp.len()) as u8,
        next,
        64,
    ];
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
pub fn trace<B: AsRef<[u8]>>(frames: impl IntoIterator<Item = B>) -> MemoryTrace {
    let mut trace = MemoryTrace::new();
    for frame in frames {
        let bytes = frame.as_ref();
        let wire = bytes.len() as u32;
        trace.push(
            &Frame {
                wire,
                ..Frame::default()
            },
            bytes,
        );
    }
    trace
}

/// Sends all frames.
pub fn send<B: AsRef<[u8]>>(transmit: &mut Transmit, frames: impl IntoIterator<Item = B>) {
    let mut trace = trace(frames);
    while let Received::Burst(burst) = trace.receive(100).expect("memory does not fail") {
        transmit
            .send(&burst, Selection::All)
            .expect("the interface is up");
    }
}

/// Receives until nothing has come for 100 calls, each of which waits for the port's time: on a
/// busy machine even the answer to an ARP request takes a while.
pub fn drain(port: &mut RingReader, mut each: impl FnMut(&Frame, &[u8])) {
    let mut idle = 0;
    while idle < 100 {
        let burst = receive(port);
        idle = if burst.is_empty() { idle + 1 } else { 0 };
        for (i, frame) in burst.frames().iter().enumerate() {
            each(frame, burst.bytes(i));
        }
    }
}

/// The bytes of all frames.
pub fn all(port: &mut RingReader) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    drain(port, |_, bytes| frames.push(bytes.to_vec()));
    frames
}

fn receive(port: &mut RingReader) -> Burst<'_> {
    port.receive(33).expect("the interface is up")
}
