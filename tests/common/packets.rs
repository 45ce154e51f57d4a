//! Packets and captures that the tests make themselves, and captures read back.

use std::path::Path;

use packetio::{CaptureFormat, CaptureReader, CaptureWriter, Frame, Received, Rx};

/// Link types as pcap numbers them.
pub const ETHERNET: u16 = 1;
pub const RAW_IP: u16 = 101;

/// Time of the first packet of a made capture: 2026-01-01.
const START_US: i64 = 1_767_225_600_000_000;

/// A frame and its bytes.
pub type Captured = (Frame, Vec<u8>);

/// Frames of a link type, 1 ms and 1 ns apart.
pub fn timed(link: u16, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Captured> {
    let frame = |(at, bytes): (usize, Vec<u8>)| {
        let frame = Frame {
            captured: bytes.len() as u32,
            wire: bytes.len() as u32 + 4,
            time_us: START_US + 1000 * at as i64,
            time_sub_ns: (at % 1000) as u16,
            link,
            ..Frame::default()
        };
        (frame, bytes)
    };
    frames.into_iter().enumerate().map(frame).collect()
}

/// A capture file of these frames.
pub fn capture(format: CaptureFormat, frames: &[Captured]) -> Vec<u8> {
    let mut writer = CaptureWriter::create(format, Vec::new()).expect("a capture begins");
    for (frame, bytes) in frames {
        writer.write(frame, bytes).expect("a frame is written");
    }
    writer.finish().expect("a capture ends")
}

/// A pcap file of Ethernet frames, in nanoseconds.
pub fn pcap(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let format = CaptureFormat::Pcap { nanosecond: true };
    capture(format, &timed(ETHERNET, frames))
}

/// The same, of frames of which nothing was cut off, as they can be sent.
pub fn whole(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut frames = timed(ETHERNET, frames);
    for (frame, _) in &mut frames {
        frame.wire = frame.captured;
    }
    capture(CaptureFormat::Pcap { nanosecond: true }, &frames)
}

/// All frames of a capture file.
pub fn read_capture(path: &Path) -> Vec<Captured> {
    let mut reader = CaptureReader::open(path).expect("the capture opens");
    let mut frames = Vec::new();
    while let Received::Burst(burst) = reader.receive(64).expect("the capture is whole") {
        for (at, frame) in burst.frames().iter().enumerate() {
            frames.push((*frame, burst.bytes(at).to_vec()));
        }
    }
    frames
}

/// Where the records of a little-endian pcap file begin, by their own lengths.
pub fn record_offsets(file: &[u8]) -> Vec<usize> {
    let (mut offsets, mut at) = (Vec::new(), 24);
    while at < file.len() {
        offsets.push(at);
        let captured = file[at + 8..at + 12].try_into().expect("a record header");
        at += 16 + u32::from_le_bytes(captured) as usize;
    }
    offsets
}

/// `count` UDP packets over Ethernet, there and back in turn, with lengths of their own. The
/// congestion bits (ECN) are set, since tagging must keep them.
pub fn conversation(is_v6: bool, port: u16, count: usize) -> Vec<Vec<u8>> {
    let packet = |at: usize| {
        let (hosts, ports) = match at % 2 {
            0 => ([1, 2], [port, 53]),
            _ => ([2, 1], [53, port]),
        };
        let udp = udp(ports, 8 + at);
        match is_v6 {
            true => ethernet(0x86dd, &ipv6(hosts, 17, &udp)),
            false => ethernet(0x0800, &ipv4(hosts, 17, &udp)),
        }
    };
    (0..count).map(packet).collect()
}

pub fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[2; 12], &ethertype.to_be_bytes()[..], payload].concat()
}

/// From 10.0.0.`hosts[0]` to 10.0.0.`hosts[1]`, with the right checksum.
pub fn ipv4(hosts: [u8; 2], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header =
        [0x45, 2, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0, 10, 0, 0, hosts[0], 10, 0, 0, hosts[1]];
    header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header[..], payload].concat()
}

/// From fd00::`hosts[0]` to fd00::`hosts[1]`.
pub fn ipv6(hosts: [u8; 2], next: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; 40];
    (header[0], header[1]) = (0x60, 0x2a);
    header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    (header[6], header[7]) = (next, 64);
    for (host, end) in [(hosts[0], 8), (hosts[1], 24)] {
        (header[end], header[end + 15]) = (0xfd, host);
    }
    [&header[..], payload].concat()
}

/// A datagram with `payload` bytes of payload and no checksum.
pub fn udp(ports: [u16; 2], payload: usize) -> Vec<u8> {
    let length = 8 + payload as u16;
    let header = [ports[0], ports[1], length, 0].map(u16::to_be_bytes);
    [header.as_flattened(), &vec![0x5a; payload]].concat()
}

/// The Internet checksum (RFC 1071); 0 over a header that carries its right one.
pub fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}
