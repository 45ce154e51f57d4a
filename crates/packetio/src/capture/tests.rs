//! Captures made by hand, and what reading them gives. The bytes are put together here without
//! the crate's writer; reader and writer meet in `properties`.

mod files;
mod gzip;
mod pcap;
mod pcapng;
mod properties;
mod sequence;

use std::io::{self, Cursor, Read};

use super::step::ByteOrder;
use super::{CaptureError, CaptureErrorKind, CaptureReader, Part};
use crate::burst::Frame;
use crate::rx::{Received, Rx};

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

/// What reading a capture gave.
#[derive(Debug, Default)]
struct Outcome {
    /// The packets with their bytes; `at` is 0.
    packets: Vec<(Frame, Vec<u8>)>,
    /// The error at the end, if any.
    error: Option<CaptureError>,
}

impl Outcome {
    /// Bytes of the packets.
    fn bytes(&self) -> Vec<&[u8]> {
        self.packets.iter().map(|(_, bytes)| &bytes[..]).collect()
    }

    /// Times of the packets: microseconds and nanoseconds beyond.
    fn times(&self) -> Vec<(i64, u16)> {
        let time = |frame: &Frame| (frame.time_us, frame.time_sub_ns);
        self.packets.iter().map(|(frame, _)| time(frame)).collect()
    }

    /// The end in one word, as the reference extractor names it.
    fn status(&self) -> &'static str {
        match self.error.as_ref().map(|error| &error.kind) {
            None => "ok",
            Some(CaptureErrorKind::Empty) => "empty",
            Some(CaptureErrorKind::Truncated(_)) => "truncated",
            Some(CaptureErrorKind::BadRecord(_)) => "bad_record",
            Some(CaptureErrorKind::UnknownFormat(_)) => "unknown_format",
            Some(CaptureErrorKind::Io(_)) => "io",
        }
    }

    /// Asserts that the file ended inside `part`, the broken record beginning at `at`.
    fn assert_truncated(&self, part: Part, at: u64) {
        let error = self.error.as_ref().expect("the end is an error");
        assert!(matches!(error.kind, CaptureErrorKind::Truncated(p) if p == part), "{error}");
        assert_eq!((error.at, error.packets), (at, self.packets.len() as u64), "{error}");
    }
}

/// Reads a capture to its end, from a reader, in bursts of `max`.
fn read_from(source: impl Read + Send + 'static, max: usize) -> Outcome {
    let mut reader = CaptureReader::from_reader("test", Box::new(source));
    let mut outcome = Outcome::default();
    loop {
        match reader.receive(max) {
            Ok(Received::End) => return outcome,
            Ok(Received::Nothing) => panic!("a capture always has frames or ends"),
            Ok(Received::Burst(burst)) => {
                assert!((1..=max.max(1)).contains(&burst.len()));
                for (i, frame) in burst.frames().iter().enumerate() {
                    assert_eq!(frame.captured as usize, burst.bytes(i).len());
                    let packet = (Frame { at: 0, ..*frame }, burst.bytes(i).to_vec());
                    outcome.packets.push(packet);
                }
            }
            Err(error) => {
                let error = error.into_source().downcast();
                outcome.error = Some(*error.expect("an error of a capture"));
                return outcome;
            }
        }
    }
}

/// Reads a capture to its end.
fn read(capture: &[u8]) -> Outcome {
    read_from(Cursor::new(capture.to_vec()), 32)
}

/// A reader that gives at most `sizes[i]` bytes at its i-th call, again and again.
struct Trickle {
    bytes: Cursor<Vec<u8>>,
    sizes: Vec<usize>,
    call: usize,
}

impl Trickle {
    fn new(bytes: &[u8], sizes: &[usize]) -> Self {
        Self { bytes: Cursor::new(bytes.to_vec()), sizes: sizes.to_vec(), call: 0 }
    }
}

impl Read for Trickle {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let size = self.sizes[self.call % self.sizes.len()];
        self.call += 1;
        let room_size = room.len().min(size);
        self.bytes.read(&mut room[..room_size])
    }
}

/// Numbers in a byte order.
fn words(order: ByteOrder, words: &[u32]) -> Vec<u8> {
    let bytes = |word: &u32| match order {
        ByteOrder::Little => word.to_le_bytes(),
        ByteOrder::Big => word.to_be_bytes(),
    };
    words.iter().flat_map(bytes).collect()
}

/// Two numbers of 16 bits, as one of 32 that has them in file order.
fn halves(order: ByteOrder, first: u16, second: u16) -> u32 {
    let (first, second) = (u32::from(first), u32::from(second));
    match order {
        ByteOrder::Little => first | second << 16,
        ByteOrder::Big => first << 16 | second,
    }
}

/// A pcap file header.
fn pcap_header(order: ByteOrder, nanosecond: bool, link: u32) -> Vec<u8> {
    let magic = if nanosecond { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    words(order, &[magic, halves(order, 2, 4), 0, 0, 65_535, link])
}

/// A pcap record; on the wire the packet had 1000 bytes more.
fn record(order: ByteOrder, seconds: u32, fraction: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let header = words(order, &[seconds, fraction, length, length + 1000]);
    [&header[..], data].concat()
}

/// A little-endian pcap file with these packets, one second apart.
fn pcap_of(packets: &[&[u8]]) -> Vec<u8> {
    let order = ByteOrder::Little;
    let mut file = pcap_header(order, false, 1);
    for (i, data) in packets.iter().enumerate() {
        file.extend(record(order, i as u32, 0, data));
    }
    file
}

/// A pcapng block; the body is padded.
fn block(order: ByteOrder, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let size = body.len() as u32 + 12;
    [words(order, &[kind, size]), body, words(order, &[size])].concat()
}

fn section(order: ByteOrder) -> Vec<u8> {
    let body = [0x1a2b_3c4d, halves(order, 1, 0), u32::MAX, u32::MAX];
    block(order, 0x0a0d_0d0a, &words(order, &body))
}

/// An interface block with options of (code, value).
fn interface(order: ByteOrder, link: u16, snap: u32, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = words(order, &[halves(order, link, 0), snap]);
    for (code, value) in options {
        body.extend(words(order, &[halves(order, *code, value.len() as u16)]));
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    block(order, 1, &body)
}

fn enhanced(order: ByteOrder, index: u32, ticks: u64, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let (high, low) = ((ticks >> 32) as u32, ticks as u32);
    let front = words(order, &[index, high, low, length, length + 1000]);
    block(order, 6, &[&front[..], data].concat())
}

fn old_packet(order: ByteOrder, index: u16, ticks: u64, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let (high, low) = ((ticks >> 32) as u32, ticks as u32);
    let first = halves(order, index, 0xffff); // drops unknown
    let front = words(order, &[first, high, low, length, length + 1000]);
    block(order, 2, &[&front[..], data].concat())
}

fn simple(order: ByteOrder, wire: u32, data: &[u8]) -> Vec<u8> {
    block(order, 3, &[&words(order, &[wire])[..], data].concat())
}
