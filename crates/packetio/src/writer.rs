//! Writes capture files, pcap or pcapng, always little-endian.
//!
//! pcap holds one link type and times from 1970 to 2106; frames beyond that are errors. pcapng
//! holds everything: each link type gets an interface with nanosecond resolution, and another one
//! with an offset for each era that 64 bits of nanoseconds cannot cover.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

use crate::CAPTURED_MAX;
use crate::burst::Frame;

/// The format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    /// pcap, which cuts times to microseconds unless `nanosecond`.
    Pcap {
        /// Whether times are written in nanoseconds.
        nanosecond: bool,
    },
    /// pcapng, in nanoseconds.
    Pcapng,
}

/// Why a frame could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A pcap file has one link type.
    #[error(
        "a pcap file holds one link type: it began with {first} and now gets a frame of {other}; \
         write to a .pcapng file instead"
    )]
    OtherLinkType {
        /// Link type of the first frame.
        first: u16,
        /// Link type of the refused frame.
        other: u16,
    },
    /// A pcap file holds seconds in 32 bits.
    #[error(
        "a pcap file holds times from 1970 to 2106, not {time_us} µs after 1970; \
         write to a .pcapng file instead"
    )]
    Time {
        /// Time of the refused frame.
        time_us: i64,
    },
    /// No reader would accept the frame.
    #[error("a frame of {0} bytes; a capture file holds at most {CAPTURED_MAX} per frame")]
    TooLong(usize),
}

/// Writes frames to `W`, buffered. Call [`finish`](Self::finish) at the end to learn whether all
/// was written.
#[derive(Debug)]
pub struct CaptureWriter<W: Write> {
    out: BufWriter<W>,
    file: File,
}

/// What the format has to remember.
#[derive(Debug)]
enum File {
    Pcap {
        nanosecond: bool,
        /// Link type in the file header, which is written with the first frame.
        link: Option<u16>,
    },
    Pcapng {
        /// Interface number by link type and era.
        interfaces: HashMap<(u16, i64), u32>,
    },
}

/// Seconds per pcapng interface; 2^64 ns are a little more than 2^34 s.
const ERA_S: i64 = 1 << 33;
const ETHERNET: u16 = 1;

impl<W: Write> CaptureWriter<W> {
    /// Starts a file of the given format.
    pub fn create(format: CaptureFormat, out: W) -> Result<Self, WriteError> {
        let mut out = BufWriter::with_capacity(256 * 1024, out);
        let file = match format {
            CaptureFormat::Pcap { nanosecond } => File::Pcap { nanosecond, link: None },
            CaptureFormat::Pcapng => {
                out.write_all(&section_header())?;
                File::Pcapng { interfaces: HashMap::new() }
            }
        };
        Ok(Self { out, file })
    }

    /// Writes `bytes` with the wire length, time and link type of `frame`. On an error of the frame
    /// the file is unchanged.
    pub fn write(&mut self, frame: &Frame, bytes: &[u8]) -> Result<(), WriteError> {
        let captured = match u32::try_from(bytes.len()) {
            Ok(captured) if captured <= CAPTURED_MAX => captured,
            _ => return Err(WriteError::TooLong(bytes.len())),
        };
        match &mut self.file {
            File::Pcap { nanosecond, link } => {
                let (seconds, fraction) = pcap_time(frame, *nanosecond)?;
                match *link {
                    None => {
                        self.out.write_all(&pcap_header(*nanosecond, frame.link))?;
                        *link = Some(frame.link);
                    }
                    Some(first) if first != frame.link => {
                        let other = frame.link;
                        return Err(WriteError::OtherLinkType { first, other });
                    }
                    Some(_) => {}
                }
                let header = [seconds, fraction, captured, frame.wire];
                self.out.write_all(header.map(u32::to_le_bytes).as_flattened())?;
                self.out.write_all(bytes)?;
            }
            File::Pcapng { interfaces } => {
                let (era, ticks) = pcapng_time(frame);
                let count = interfaces.len() as u32;
                let number = *interfaces.entry((frame.link, era)).or_insert(count);
                if number == count {
                    self.out.write_all(&interface(frame.link, era * ERA_S))?;
                }
                let padding = captured.next_multiple_of(4) - captured;
                let size = 32 + captured + padding;
                let (high, low) = ((ticks >> 32) as u32, ticks as u32);
                let header = [6, size, number, high, low, captured, frame.wire];
                self.out.write_all(header.map(u32::to_le_bytes).as_flattened())?;
                self.out.write_all(bytes)?;
                self.out.write_all(&[0; 3][..padding as usize])?;
                self.out.write_all(&size.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Ends the file and returns the output. A pcap file without frames is valid; its link type is
    /// Ethernet.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let File::Pcap { nanosecond, link: None } = self.file {
            self.out.write_all(&pcap_header(nanosecond, ETHERNET))?;
        }
        self.out.flush()?;
        self.out.into_inner().map_err(|error| WriteError::Io(error.into_error()))
    }
}

fn pcap_header(nanosecond: bool, link: u16) -> [u8; 24] {
    let magic: u32 = if nanosecond { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let version = 2 | 4 << 16;
    let mut header = [0; 24];
    let words = [magic, version, 0, 0, CAPTURED_MAX, u32::from(link)];
    header.copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
    header
}

/// Seconds and fraction of a pcap record.
fn pcap_time(frame: &Frame, nanosecond: bool) -> Result<(u32, u32), WriteError> {
    let time_us = frame.time_us;
    let Ok(seconds) = u32::try_from(time_us.div_euclid(1_000_000)) else {
        return Err(WriteError::Time { time_us });
    };
    let us = time_us.rem_euclid(1_000_000) as u32;
    if nanosecond {
        Ok((seconds, us * 1000 + u32::from(frame.time_sub_ns)))
    } else {
        Ok((seconds, us))
    }
}

fn section_header() -> [u8; 28] {
    const LENGTH_UNKNOWN: u32 = u32::MAX; // in both words
    let mut block = [0; 28];
    let words = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, LENGTH_UNKNOWN, LENGTH_UNKNOWN, 28];
    block.copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
    block
}

/// A description of an interface with nanosecond resolution and no snap length, the times of
/// which count from `offset_s`.
fn interface(link: u16, offset_s: i64) -> [u8; 44] {
    const SIZE: u32 = 44;
    let option = |code: u32, length: u32| code | length << 16;
    let mut block = [0; SIZE as usize];
    let words = [
        1,
        SIZE,
        u32::from(link),
        0,
        option(9, 1), // if_tsresol
        9,
        option(14, 8), // if_tsoffset
        offset_s as u32,
        (offset_s >> 32) as u32,
        option(0, 0),
        SIZE,
    ];
    block.copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
    block
}

/// The era of a frame, and the nanoseconds since its begin.
fn pcapng_time(frame: &Frame) -> (i64, u64) {
    const ERA_US: i64 = ERA_S * 1_000_000;
    let us = frame.time_us.rem_euclid(ERA_US) as u64;
    let ticks = us * 1000 + u64::from(frame.time_sub_ns);
    (frame.time_us.div_euclid(ERA_US), ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCAP: CaptureFormat = CaptureFormat::Pcap { nanosecond: false };

    fn frame(link: u16, time_us: i64) -> Frame {
        Frame { link, time_us, wire: 60, ..Frame::default() }
    }

    #[test]
    fn pcap_takes_one_link_type() {
        let mut writer = CaptureWriter::create(PCAP, Vec::new()).unwrap();
        writer.write(&frame(101, 0), b"one").unwrap();
        let error = writer.write(&frame(1, 0), b"two").unwrap_err();
        assert!(matches!(error, WriteError::OtherLinkType { first: 101, other: 1 }));
        assert!(error.to_string().contains(".pcapng"));
        // The file stands as it was before.
        assert_eq!(writer.finish().unwrap().len(), 24 + 16 + 3);
    }

    #[test]
    fn pcap_takes_times_of_32_bits_of_seconds() {
        let end_us = (1 << 32) * 1_000_000;
        let mut writer = CaptureWriter::create(PCAP, Vec::new()).unwrap();
        for time_us in [-1, i64::MIN, end_us, i64::MAX] {
            let error = writer.write(&frame(1, time_us), b"").unwrap_err();
            assert!(matches!(error, WriteError::Time { time_us: told } if told == time_us));
            assert!(error.to_string().contains(".pcapng"));
        }
        writer.write(&frame(1, end_us - 1), b"").unwrap();
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes[24..32], [0xff, 0xff, 0xff, 0xff, 0x3f, 0x42, 0x0f, 0]);
    }

    #[test]
    fn a_frame_no_reader_takes_is_refused() {
        for format in [PCAP, CaptureFormat::Pcapng] {
            let mut writer = CaptureWriter::create(format, Vec::new()).unwrap();
            let most = CAPTURED_MAX as usize;
            writer.write(&frame(1, 0), &vec![0; most]).unwrap();
            let error = writer.write(&frame(1, 0), &vec![0; most + 1]).unwrap_err();
            assert!(matches!(error, WriteError::TooLong(length) if length == most + 1));
        }
    }

    #[test]
    fn pcapng_describes_a_link_type_once() {
        let mut writer = CaptureWriter::create(CaptureFormat::Pcapng, Vec::new()).unwrap();
        for link in [1, 101, 1, 101, 1] {
            writer.write(&frame(link, 5), b"data").unwrap();
        }
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes.len(), 28 + 2 * 44 + 5 * (32 + 4));
    }

    /// An output with limited room, bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let written = bytes.len().min(self.0);
            self.0 -= written;
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_shows_at_the_latest_in_finish() {
        let mut writer = CaptureWriter::create(CaptureFormat::Pcapng, Disk(100)).unwrap();
        writer.write(&frame(1, 0), &[0; 50]).unwrap();
        let error = writer.finish().map(|_| ()).unwrap_err();
        assert!(
            matches!(error, WriteError::Io(error) if error.kind() == io::ErrorKind::StorageFull)
        );
    }
}
