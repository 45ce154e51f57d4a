//! The frames in a block: a chain of headers (`tpacket3_hdr`), each followed by a frame.
//!
//! The kernel wrote every number, but the holder of a burst may have overwritten it. So none is
//! trusted: a frame that does not fit into the block ends the block.
//!
//! Changes to a frame are noted in its header, because another process may read it again (see
//! `ring.rs`).

use super::checksum;
use super::counts::RingCounts;
use super::vlan;
use crate::burst::{Frame, Gso};
use crate::interface::ETHERNET;

/// Bytes of a frame's header and of the address (`sockaddr_ll`) behind it.
const HEADER: usize = 48;
const ADDRESS: usize = 20;
/// Bytes of the `virtio_net_hdr` in front of each frame.
pub(super) const OFFLOAD: usize = 10;
/// Its fields: flags, kind of segmentation, header bytes, payload bytes per segment, start of the
/// checksum's range, and the checksum's offset from there.
const FLAGS: usize = 0;
pub(super) const KIND: usize = 1;
const HEADERS: usize = 2;
const SIZE: usize = 4;
const SUM_START: usize = 6;
const SUM_FIELD: usize = 8;
const NEEDS_CHECKSUM: u8 = 1;
/// Kinds of segmentation (`VIRTIO_NET_HDR_GSO_`): TCP over IPv4, TCP over IPv6, UDP datagrams. The
/// bits above mark tunnels and ECN.
const KIND_BITS: u8 = 0x1f;
const KIND_TCP_V4: u8 = 1;
const KIND_TCP_V6: u8 = 4;
const KIND_UDP: u8 = 5;
/// Maximum length of an IP packet.
pub(super) const IP_MAX: u32 = 65_535;
/// Bytes of two VLAN tags, which may exceed the MTU and the link header.
const TAGS: u32 = 8;
/// Maximum bytes before the IP header.
const LINK_HEADER: u32 = 14 + TAGS;

/// Bits of a frame's status.
const CHECKSUM_NOT_READY: u32 = 1 << 3;
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
const GSO_TCP: u32 = 1 << 8;

/// `sll_pkttype` of a frame that this machine sends.
const OUTGOING: u8 = 4;

/// How the frames of a ring are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Complete checksums that a local sender left to its card.
    pub completes_checksums: bool,
    /// Skip frames sent by this machine.
    pub skips_outgoing: bool,
    /// Link type of the frames.
    pub link: u16,
    /// Maximum length of a frame from the wire.
    pub frame_max: u32,
}

impl Reading {
    /// Maximum frame length of an interface: its MTU, the link header and two tags.
    pub fn frame_max(mtu: u32, link: u16) -> u32 {
        let header = if link == ETHERNET { LINK_HEADER } else { 0 };
        mtu.saturating_add(header)
    }
}

/// How far a block has been read.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Where the next header is.
    at: usize,
    /// Frames not read yet.
    pub left: u32,
}

impl Walk {
    /// Starts at offset `first`.
    pub fn new(first: usize, packets: u32) -> Self {
        let (at, left) = (first, packets);
        Self { at, left }
    }

    /// Skips `frames` frames.
    pub fn skip(&mut self, block: &[u8], frames: u32) {
        for _ in 0..frames.min(self.left) {
            match Header::read(block, self.at) {
                Some(header) => (self.at, self.left) = (header.next, self.left - 1),
                // The next call of `next` reports the damage.
                None => return,
            }
        }
    }

    /// The next frame of `block` to hand out.
    #[inline]
    pub fn next(
        &mut self,
        block: &mut [u8],
        how: &Reading,
        counts: &mut RingCounts,
    ) -> Option<Frame> {
        while self.left > 0 {
            let Some(header) = Header::read(block, self.at) else {
                counts.damaged_blocks += 1;
                self.left = 0;
                return None;
            };
            self.left -= 1;
            self.at = header.next;
            if how.skips_outgoing && header.kind == OUTGOING {
                counts.outgoing += 1;
                continue;
            }
            return Some(header.frame(block, how, counts));
        }
        None
    }
}

/// A frame's header, checked: the frame is inside the block, behind its header.
struct Header {
    /// Its offset.
    at: usize,
    /// Offset of the next header; not checked yet.
    next: usize,
    status: u32,
    kind: u8,
    tag: u16,
    tag_protocol: u16,
    /// End of header and address; the bytes from here to the frame are free.
    room: usize,
    /// The frame, without its link.
    raw: Frame,
}

impl Header {
    fn read(block: &[u8], at: usize) -> Option<Self> {
        let room = at.checked_add(HEADER + ADDRESS)?;
        let bytes: &[u8; HEADER + ADDRESS] = block.get(at..room)?.first_chunk()?;
        let u16_at = |offset: usize| u16::from_ne_bytes([bytes[offset], bytes[offset + 1]]);
        let u32_at = |offset: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[offset + i]));
        let nanoseconds = u32_at(8);
        let raw = Frame {
            at: at + usize::from(u16_at(24)),
            captured: u32_at(12),
            wire: u32_at(16),
            time_us: i64::from(u32_at(4)) * 1_000_000 + i64::from(nanoseconds / 1000),
            time_sub_ns: (nanoseconds % 1000) as u16,
            ..Frame::default()
        };
        let end = raw.at.checked_add(raw.captured as usize)?;
        (raw.at >= room && end <= block.len()).then_some(Self {
            at,
            next: at + u32_at(0) as usize,
            status: u32_at(20),
            kind: bytes[HEADER + 10],
            tag: u16_at(32),
            tag_protocol: u16_at(36),
            room,
            raw,
        })
    }

    /// The frame as it was on the wire, as far as it can be restored.
    #[inline]
    fn frame(&self, block: &mut [u8], how: &Reading, counts: &mut RingCounts) -> Frame {
        let (mut raw, mut status) = (self.raw, self.status);
        raw.link = how.link;
        let offload = self.offload(block);
        let split = offload.filter(|offload| offload[KIND] != 0);
        raw.gso = match split {
            Some(offload) => gso(&offload),
            None if self.status & GSO_TCP != 0 || raw.wire > how.frame_max => Gso::UNKNOWN,
            None => Gso::NONE,
        };
        if !raw.gso.is_none() {
            // A longer packet does not fit its IP header's length field (BIG TCP).
            if raw.wire > IP_MAX.saturating_add(LINK_HEADER) {
                raw.gso = Gso::UNKNOWN;
            }
            counts.add_merged(raw.wire, raw.gso);
        }
        if self.status & CHECKSUM_NOT_READY != 0 {
            counts.partial_checksums += 1;
            // A long frame without segments may be due to an MTU raised since it was last read.
            if let Some(offload) = offload.filter(|_| split.is_none() && how.completes_checksums) {
                self.complete_checksum(block, &offload);
                status &= !CHECKSUM_NOT_READY;
            }
        }
        if self.status & VLAN_VALID != 0 && how.link == ETHERNET {
            let known = self.status & VLAN_TPID_VALID != 0;
            let protocol = if known { self.tag_protocol } else { vlan::DOT1Q };
            if vlan::restore(
                &mut block[self.room..],
                raw.at - self.room,
                raw.captured,
                protocol,
                self.tag,
            ) {
                counts.tags_restored += 1;
                raw.at -= vlan::TAG;
                raw.captured += vlan::TAG as u32;
                raw.wire = raw.wire.saturating_add(vlan::TAG as u32);
                if let Some(offload) = offload {
                    self.move_offload(block, raw.at, offload);
                }
                status &= !VLAN_VALID;
            }
        }
        if status != self.status {
            self.rewrite(block, &raw, status);
        }
        raw
    }

    /// Updates the header to match the frame.
    fn rewrite(&self, block: &mut [u8], raw: &Frame, status: u32) {
        let header = &mut block[self.at..self.room];
        for (offset, word) in [(12, raw.captured), (16, raw.wire), (20, status)] {
            header[offset..offset + 4].copy_from_slice(&word.to_ne_bytes());
        }
        let at = (raw.at - self.at) as u16;
        header[24..26].copy_from_slice(&at.to_ne_bytes());
    }

    /// The `virtio_net_hdr` in front of the frame.
    fn offload(&self, block: &[u8]) -> Option<[u8; OFFLOAD]> {
        block[self.room..self.raw.at].last_chunk().copied()
    }

    /// Moves the `virtio_net_hdr` in front of the frame, now at `at` with a tag more, so that
    /// headers are longer and the checksum starts later.
    fn move_offload(&self, block: &mut [u8], at: usize, mut offload: [u8; OFFLOAD]) {
        for field in [HEADERS, SUM_START] {
            let later = half(&offload, field).saturating_add(vlan::TAG as u16);
            offload[field..field + 2].copy_from_slice(&later.to_ne_bytes());
        }
        // The kernel leaves room. If it did not, at worst sending would be refused.
        if let Some(place) = block[self.room..at].last_chunk_mut() {
            *place = offload;
        }
    }

    fn complete_checksum(&self, block: &mut [u8], offload: &[u8; OFFLOAD]) {
        if offload[FLAGS] & NEEDS_CHECKSUM != 0 && self.raw.captured == self.raw.wire {
            let frame = &mut block[self.raw.at..self.raw.at + self.raw.captured as usize];
            let (start, field) = (half(offload, SUM_START), half(offload, SUM_FIELD));
            checksum::complete(frame, start.into(), field.into());
        }
    }
}

/// What the kernel says of a frame's segments.
fn gso(offload: &[u8; OFFLOAD]) -> Gso {
    match offload[KIND] & KIND_BITS {
        KIND_TCP_V4 | KIND_TCP_V6 => Gso::new(half(offload, SIZE), false),
        KIND_UDP => Gso::new(half(offload, SIZE), true),
        _ => Gso::UNKNOWN,
    }
}

fn half(offload: &[u8; OFFLOAD], at: usize) -> u16 {
    u16::from_ne_bytes([offload[at], offload[at + 1]])
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
