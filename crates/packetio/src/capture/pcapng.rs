//! The pcapng format: blocks framed by their length in front and behind. Source:
//! draft-ietf-opsawg-pcapng.
//!
//! A section header sets the byte order and starts a new list of interfaces. Interface descriptions
//! and the three kinds of packet blocks are read; other blocks of any length are skipped without
//! being held in memory. A packet counts only when its whole block is there and both lengths agree.
//!
//! Two bounds, far beyond real files, keep a hostile file from taking memory: [`BLOCK_MAX`] for a
//! block that is read, [`INTERFACES_MAX`] for the list.

use super::clock::Clock;
use super::error::{BLOCK_MAX, Flaw, INTERFACES_MAX, Part};
use super::merged;
use super::step::{ByteOrder, Parsed, Stop};
use crate::CAPTURED_MAX;
use crate::burst::Frame;

/// The first bytes of every pcapng file: a section header's type, the same in both byte orders.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Bytes of the type and the length in front of a block's body.
const FRONT: u32 = 8;
/// Bytes of the length behind the body.
const TRAILER: u32 = 4;
/// Bytes of an enhanced or old packet block's body before the packet.
const PACKET_FRONT: usize = 20;
/// As [`PACKET_FRONT`], of a simple packet block.
const SIMPLE_FRONT: usize = 4;

/// The parser of one file.
#[derive(Debug)]
pub(super) struct Pcapng {
    order: ByteOrder,
    /// Interfaces of the current section.
    interfaces: Vec<Interface>,
    /// Number of interfaces in the sections before.
    interfaces_before: usize,
    /// The block being skipped, whose front was taken.
    passing: Option<Passing>,
}

#[derive(Debug)]
struct Interface {
    link: u16,
    /// Maximum bytes captured per packet; 0: all.
    snap: u32,
    clock: Clock,
    /// Its number within the file. Saturates.
    number: u16,
}

/// A block that is skipped piece by piece, because it is irrelevant or too long.
#[derive(Clone, Copy, Debug)]
struct Passing {
    kind: u32,
    /// Bytes of the block, by its first length.
    size: u32,
    /// Bytes of the block already taken.
    taken: u32,
}

impl Pcapng {
    /// A parser for a file from its first byte.
    pub fn new() -> Self {
        Self {
            order: ByteOrder::Little, // until the section header, which comes first, sets it
            interfaces: Vec::new(),
            interfaces_before: 0,
            passing: None,
        }
    }

    /// Bytes of the next block already taken.
    pub fn taken(&self) -> u64 {
        self.passing.map_or(0, |block| u64::from(block.taken))
    }

    /// Takes blocks off the front of `bytes` until there are `max` frames or no block is complete.
    /// [`Frame::at`] counts from the front of `bytes`.
    pub fn parse(&mut self, bytes: &[u8], max: usize, frames: &mut Vec<Frame>) -> Parsed {
        let mut used = 0;
        let stop = loop {
            if frames.len() >= max {
                break Stop::Full;
            }
            let taken = match self.passing {
                Some(block) => self.pass(&bytes[used..], block),
                None => self.block(bytes, used, frames),
            };
            match taken {
                Ok(taken) => used += taken,
                Err(stop) => break stop,
            }
        };
        Parsed { used, stop }
    }

    /// Takes the block at `at`, or the front of one to be skipped. Returns the bytes taken.
    fn block(&mut self, bytes: &[u8], at: usize, frames: &mut Vec<Frame>) -> Result<usize, Stop> {
        let rest = &bytes[at..];
        let (kind, size) = self.front(rest)?;
        let length = size as usize;
        let is_there = length <= rest.len();
        if is_read(kind) && size <= BLOCK_MAX && !is_there {
            return Err(more(length));
        }
        if !is_there || is_read(kind) && size > BLOCK_MAX {
            let taken = FRONT;
            self.passing = Some(Passing { kind, size, taken });
            return Ok(FRONT as usize);
        }
        let (block, trailer) = rest[..length].split_at(length - TRAILER as usize);
        self.check_trailer(size, trailer)?;
        let body = &block[FRONT as usize..];
        let body_at = at + FRONT as usize;
        let frame = match kind {
            INTERFACE => self.interface(body).map(|()| None),
            ENHANCED_PACKET | OLD_PACKET => self.packet(kind, body, body_at).map(Some),
            SIMPLE_PACKET => self.simple_packet(body, body_at).map(Some),
            _ => Ok(None),
        };
        frames.extend(frame.map_err(Stop::Bad)?);
        Ok(length)
    }

    /// Type and length of the block that begins `rest`. A section header takes effect here, because
    /// its byte order is needed to read its length.
    fn front(&mut self, rest: &[u8]) -> Result<(u32, u32), Stop> {
        let Some(&[kind, size, mark]) = rest.as_chunks().0.first_chunk() else {
            return Err(more((FRONT + TRAILER) as usize));
        };
        if kind == MAGIC {
            self.order = match mark {
                [0x4d, 0x3c, 0x2b, 0x1a] => ByteOrder::Little,
                [0x1a, 0x2b, 0x3c, 0x4d] => ByteOrder::Big,
                _ => return Err(Stop::Bad(Flaw::ByteOrder(mark))),
            };
            self.interfaces_before += self.interfaces.len();
            self.interfaces.clear();
        }
        let size = self.order.u32(size);
        if size < FRONT + TRAILER || !size.is_multiple_of(4) {
            return Err(Stop::Bad(Flaw::BlockLength(size)));
        }
        Ok((self.order.u32(kind), size))
    }

    /// Takes the available bytes of the skipped `block`, and its trailer once it is complete.
    fn pass(&mut self, rest: &[u8], block: Passing) -> Result<usize, Stop> {
        let body_left = (block.size - TRAILER - block.taken) as usize;
        if body_left > 0 {
            let taken = rest.len().min(body_left);
            if taken == 0 {
                return Err(more(1));
            }
            self.passing = Some(Passing { taken: block.taken + taken as u32, ..block });
            return Ok(taken);
        }
        let Some(trailer) = rest.get(..TRAILER as usize) else {
            return Err(more(TRAILER as usize));
        };
        self.check_trailer(block.size, trailer)?;
        if is_read(block.kind) {
            return Err(Stop::Bad(Flaw::BlockTooLong(block.size)));
        }
        self.passing = None;
        Ok(trailer.len())
    }

    fn check_trailer(&self, first: u32, trailer: &[u8]) -> Result<(), Stop> {
        match self.order.u32s(trailer) {
            Some([last]) if last == first => Ok(()),
            other => {
                let [last] = other.unwrap_or_default();
                Err(Stop::Bad(Flaw::BlockTrailer { first, last }))
            }
        }
    }

    fn interface(&mut self, body: &[u8]) -> Result<(), Flaw> {
        let Some((&[l0, l1, _, _, s0, s1, s2, s3], options)) = body.split_first_chunk() else {
            return Err(too_short(INTERFACE, body));
        };
        if self.interfaces.len() == INTERFACES_MAX {
            return Err(Flaw::TooManyInterfaces);
        }
        let number = self.interfaces_before + self.interfaces.len();
        self.interfaces.push(Interface {
            link: self.order.u16([l0, l1]),
            snap: self.order.u32([s0, s1, s2, s3]),
            clock: Clock::from_options(options, self.order),
            number: u16::try_from(number).unwrap_or(u16::MAX),
        });
        Ok(())
    }

    /// An enhanced or old packet. Both have 20 bytes before the packet and differ only in the first
    /// word: an interface of 32 bits, or of 16 bits and a drop count.
    #[inline]
    fn packet(&self, kind: u32, body: &[u8], body_at: usize) -> Result<Frame, Flaw> {
        let Some([word, high, low, captured, wire]) = self.order.u32s(body) else {
            return Err(too_short(kind, body));
        };
        let index = match (kind, self.order) {
            (OLD_PACKET, ByteOrder::Little) => word & 0xffff,
            (OLD_PACKET, ByteOrder::Big) => word >> 16,
            _ => word,
        };
        let interface = self.described(index)?;
        if captured > CAPTURED_MAX {
            return Err(Flaw::CapturedTooLarge(captured));
        }
        if captured as usize > body.len() - PACKET_FRONT {
            return Err(Flaw::CapturedBeyondBlock(captured));
        }
        let ticks = u64::from(high) << 32 | u64::from(low);
        let (time_us, time_sub_ns) = interface.clock.time(ticks);
        Ok(Frame {
            at: body_at + PACKET_FRONT,
            captured,
            wire,
            time_us,
            time_sub_ns,
            link: interface.link,
            interface: interface.number,
            rss: None,
            gso: merged(wire),
        })
    }

    /// A simple packet: from the first interface, without time and captured length; the latter
    /// follows from the other lengths.
    fn simple_packet(&self, body: &[u8], body_at: usize) -> Result<Frame, Flaw> {
        let Some([wire]) = self.order.u32s(body) else {
            return Err(too_short(SIMPLE_PACKET, body));
        };
        let interface = self.described(0)?;
        let snap = if interface.snap == 0 { wire } else { interface.snap };
        // The block fits BLOCK_MAX, so its length fits 32 bits.
        let captured = wire.min(snap).min((body.len() - SIMPLE_FRONT) as u32);
        if captured > CAPTURED_MAX {
            return Err(Flaw::CapturedTooLarge(captured));
        }
        Ok(Frame {
            at: body_at + SIMPLE_FRONT,
            captured,
            wire,
            link: interface.link,
            interface: interface.number,
            gso: merged(wire),
            ..Frame::default()
        })
    }

    fn described(&self, index: u32) -> Result<&Interface, Flaw> {
        self.interfaces
            .get(index as usize)
            .ok_or(Flaw::UnknownInterface { index, known: self.interfaces.len() })
    }
}

/// Whether bodies of this kind are read. A section header is handled by its front alone.
fn is_read(kind: u32) -> bool {
    matches!(kind, INTERFACE | OLD_PACKET | SIMPLE_PACKET | ENHANCED_PACKET)
}

/// A stop inside a block.
fn more(need: usize) -> Stop {
    let inside = Part::Block;
    Stop::More { need, inside }
}

fn too_short(kind: u32, body: &[u8]) -> Flaw {
    let bytes = body.len();
    Flaw::BlockTooShort { kind, bytes }
}
