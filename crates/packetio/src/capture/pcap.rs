//! The classic pcap format: a file header of 24 bytes, then records of 16 header bytes and the
//! captured bytes. Source: draft-ietf-opsawg-pcap.
//!
//! The file header's snap length is ignored, since some writers fill it wrongly; a record's
//! captured length counts. The upper half of the link type field, the length of a frame check
//! sequence, is dropped.

use super::error::{Flaw, Part};
use super::merged;
use super::step::{ByteOrder, Parsed, Stop};
use crate::CAPTURED_MAX;
use crate::burst::Frame;

/// Bytes of the file header.
pub(super) const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// The parser of one file.
#[derive(Debug)]
pub(super) struct Pcap {
    order: ByteOrder,
    /// Whether fractions are nanoseconds rather than microseconds.
    nanosecond: bool,
    link: u16,
}

impl Pcap {
    /// Whether a file that begins with `magic` is a pcap file.
    pub fn knows(magic: [u8; 4]) -> bool {
        variant(magic).is_some()
    }

    /// The parser for the records after this file header; `None` if the header is not pcap.
    pub fn new(header: &[u8; FILE_HEADER]) -> Option<Self> {
        let [magic, _, _, _, _, link] = *header.as_chunks::<4>().0 else {
            return None;
        };
        let (order, nanosecond) = variant(magic)?;
        Some(Self { order, nanosecond, link: (order.u32(link) & 0xffff) as u16 })
    }

    /// Takes records off the front of `bytes` until there are `max` frames or no record is
    /// complete. [`Frame::at`] counts from the front of `bytes`.
    pub fn parse(&self, bytes: &[u8], max: usize, frames: &mut Vec<Frame>) -> Parsed {
        let mut used = 0;
        let stop = loop {
            if frames.len() >= max {
                break Stop::Full;
            }
            let rest = &bytes[used..];
            let Some([seconds, fraction, captured, wire]) = self.order.u32s(rest) else {
                break Stop::More { need: RECORD_HEADER, inside: Part::RecordHeader };
            };
            if captured > CAPTURED_MAX {
                break Stop::Bad(Flaw::CapturedTooLarge(captured));
            }
            let record = RECORD_HEADER + captured as usize;
            if rest.len() < record {
                break Stop::More { need: record, inside: Part::PacketData };
            }
            let (fraction_us, time_sub_ns) = self.split(fraction);
            frames.push(Frame {
                at: used + RECORD_HEADER,
                captured,
                wire,
                time_us: i64::from(seconds) * 1_000_000 + i64::from(fraction_us),
                time_sub_ns,
                link: self.link,
                gso: merged(wire),
                ..Frame::default()
            });
            used += record;
        };
        Parsed { used, stop }
    }

    /// A fraction of a second as microseconds and the nanoseconds beyond. Fractions of a second and
    /// more occur and are taken as they are.
    #[inline]
    fn split(&self, fraction: u32) -> (u32, u16) {
        if self.nanosecond { (fraction / 1000, (fraction % 1000) as u16) } else { (fraction, 0) }
    }
}

/// Byte order and resolution (true: nanoseconds) by the magic number.
fn variant(magic: [u8; 4]) -> Option<(ByteOrder, bool)> {
    match magic {
        [0xd4, 0xc3, 0xb2, 0xa1] => Some((ByteOrder::Little, false)),
        [0x4d, 0x3c, 0xb2, 0xa1] => Some((ByteOrder::Little, true)),
        [0xa1, 0xb2, 0xc3, 0xd4] => Some((ByteOrder::Big, false)),
        [0xa1, 0xb2, 0x3c, 0x4d] => Some((ByteOrder::Big, true)),
        _ => None,
    }
}
