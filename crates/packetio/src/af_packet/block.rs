//! The frames in a block: a chain of headers (`tpacket3_hdr`), each with a frame behind it.
//!
//! The kernel wrote every number here, but the holder of a burst may have written over it since.
//! So no number is trusted: a frame that does not fit into the block ends the block.

use super::checksum;
use super::vlan;
use crate::burst::Gso;

/// Bytes of a frame's header, and of the address (`sockaddr_ll`) behind it.
const HEADER: usize = 48;
const ADDRESS: usize = 20;
/// Bytes of `virtio_net_hdr`, which is in front of each frame if the socket asked for it.
pub(super) const OFFLOAD: usize = 10;
/// Its fields: flags, kind of segmentation, bytes of headers, bytes of each segment's payload, where the sum starts and, from
/// there, goes.
const FLAGS: usize = 0;
pub(super) const KIND: usize = 1;
const HEADERS: usize = 2;
const SIZE: usize = 4;
const SUM_START: usize = 6;
const SUM_FIELD: usize = 8;
const NEEDS_CHECKSUM: u8 = 1;
/// Kinds of segmentation (`VIRTIO_NET_HDR_GSO_`): TCP over IPv4 and over IPv6, and UDP datagrams. Above them are bits for
/// tunnels and for ECN.
const KIND_BITS: u8 = 0x1f;
const KIND_TCP_V4: u8 = 1;
const KIND_TCP_V6: u8 = 4;
const KIND_UDP: u8 = 5;
/// No IP header has room for a longer packet.
pub(super) const IP_MAX: u32 = 65_535;
/// Bytes of two tags, by which a frame may exceed the MTU and its link header.
const TAGS: u32 = 8;
/// Bytes before the IP header, at most.
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
    /// A `virtio_net_hdr` is in front of each frame.
    pub has_offload: bool,
    /// Checksums that a local sender left to its card are completed, by that header.
    pub completes_checksums: bool,
    /// Frames that this machine sends are skipped.
    pub skips_outgoing: bool,
    /// Frames have Ethernet headers.
    pub is_ethernet: bool,
    /// The longest frame that can have come from the wire.
    pub frame_max: u32,
}

impl Reading {
    /// The longest frame of an interface: its MTU, the link header and two tags.
    pub fn frame_max(mtu: u32, is_ethernet: bool) -> u32 {
        let header = if is_ethernet { LINK_HEADER } else { 0 };
        mtu.saturating_add(header)
    }
}

/// Counts of findings in frames, and of changes to them, while they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub outgoing: u64,
    pub tags_restored: u64,
    pub partial_checksums: u64,
    pub merged: u64,
    pub unknown: u64,
    /// Bytes of the longest of those.
    pub longest_unknown: u32,
    pub damaged_blocks: u64,
}

impl Seen {
    fn count_merged(&mut self, raw: &Raw) {
        self.merged += 1;
        if raw.gso == Gso::UNKNOWN {
            self.unknown += 1;
            self.longest_unknown = self.longest_unknown.max(raw.wire);
        }
    }
}

/// One frame in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw {
    pub at: usize,
    pub captured: u32,
    pub wire: u32,
    pub seconds: u32,
    pub nanoseconds: u32,
    pub gso: Gso,
}

/// How far a block has been read.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Where the next header is.
    at: usize,
    /// Frames left.
    left: u32,
}

impl Walk {
    /// From the first header of `packets`.
    pub fn new(first: usize, packets: u32) -> Self {
        let (at, left) = (first, packets);
        Self { at, left }
    }

    /// Whether all frames were read.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The next frame of `block` that is not skipped.
    #[inline]
    pub fn next(&mut self, block: &mut [u8], how: &Reading, seen: &mut Seen) -> Option<Raw> {
        while self.left > 0 {
            let Some(header) = Header::read(block, self.at) else {
                seen.damaged_blocks += 1;
                self.left = 0;
                return None;
            };
            self.left -= 1;
            self.at = header.next;
            if how.skips_outgoing && header.kind == OUTGOING {
                seen.outgoing += 1;
                continue;
            }
            return Some(header.frame(block, how, seen));
        }
        None
    }
}

/// A frame's header, checked: the frame is inside the block, behind its header.
struct Header {
    /// Where the next header is; not checked yet.
    next: usize,
    status: u32,
    kind: u8,
    tag: u16,
    tag_protocol: u16,
    /// End of the header and the address. The bytes from here to the frame are free.
    room: usize,
    raw: Raw,
}

impl Header {
    fn read(block: &[u8], at: usize) -> Option<Self> {
        let room = at.checked_add(HEADER + ADDRESS)?;
        let bytes: &[u8; HEADER + ADDRESS] = block.get(at..room)?.first_chunk()?;
        let u16_at = |offset: usize| u16::from_ne_bytes([bytes[offset], bytes[offset + 1]]);
        let u32_at = |offset: usize| {
            u32::from_ne_bytes([
                bytes[offset],
                bytes[offset + 1],
                bytes[offset + 2],
                bytes[offset + 3],
            ])
        };
        let raw = Raw {
            at: at + usize::from(u16_at(24)),
            captured: u32_at(12),
            wire: u32_at(16),
            seconds: u32_at(4),
            nanoseconds: u32_at(8),
            gso: Gso::NONE,
        };
        let end = raw.at.checked_add(raw.captured as usize)?;
        (raw.at >= room && end <= block.len()).then_some(Self {
            next: at + u32_at(0) as usize,
            status: u32_at(20),
            kind: bytes[HEADER + 10],
            tag: u16_at(32),
            tag_protocol: u16_at(36),
            room,
            raw,
        })
    }

    /// The frame as it was on the wire, as far as that can be had.
    #[inline]
    fn frame(&self, block: &mut [u8], how: &Reading, seen: &mut Seen) -> Raw {
        let mut raw = self.raw;
        let offload = self.offload(block).filter(|_| how.has_offload);
        let split = offload.filter(|offload| offload[KIND] != 0);
        raw.gso = match split {
            Some(offload) => gso(&offload),
            None if self.status & GSO_TCP != 0 || raw.wire > how.frame_max => Gso::UNKNOWN,
            None => Gso::NONE,
        };
        if !raw.gso.is_none() {
            // The length of a longer one does not fit its IP header (BIG TCP).
            if raw.wire > IP_MAX.saturating_add(LINK_HEADER) {
                raw.gso = Gso::UNKNOWN;
            }
            seen.count_merged(&raw);
        }
        if self.status & CHECKSUM_NOT_READY != 0 {
            seen.partial_checksums += 1;
            // A long frame that is not to be split may be of a greater MTU than was last seen.
            if let Some(offload) = offload.filter(|_| split.is_none() && how.completes_checksums) {
                self.complete_checksum(block, &offload);
            }
        }
        if self.status & VLAN_VALID != 0 && how.is_ethernet {
            let known = self.status & VLAN_TPID_VALID != 0;
            let protocol = if known {
                self.tag_protocol
            } else {
                vlan::DOT1Q
            };
            if vlan::restore(
                &mut block[self.room..],
                raw.at - self.room,
                raw.captured,
                protocol,
                self.tag,
            ) {
                seen.tags_restored += 1;
                raw.at -= vlan::TAG;
                raw.captured += vlan::TAG as u32;
                raw.wire = raw.wire.saturating_add(vlan::TAG as u32);
                if let Some(offload) = offload {
                    self.move_offload(block, raw.at, offload);
                }
            }
        }
        raw
    }

    /// The `virtio_net_hdr` in front of the frame, if it was asked for.
    fn offload(&self, block: &[u8]) -> Option<[u8; OFFLOAD]> {
        block[self.room..self.raw.at].last_chunk().copied()
    }

    /// Puts it in front of the frame, which begins at `at` now that it has a tag more: its headers
    /// are longer, and its sum starts later.
    fn move_offload(&self, block: &mut [u8], at: usize, mut offload: [u8; OFFLOAD]) {
        for field in [HEADERS, SUM_START] {
            let later = half(&offload, field).saturating_add(vlan::TAG as u16);
            offload[field..field + 2].copy_from_slice(&later.to_ne_bytes());
        }
        // The kernel leaves room for it. If it did not, sending would at worst be refused.
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

/// What the kernel says of the segments of a frame.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Reading = Reading {
        has_offload: false,
        completes_checksums: false,
        skips_outgoing: false,
        is_ethernet: true,
        frame_max: 1522,
    };

    /// A block with frames of these lengths, 18 bytes of room in front of each.
    fn block(lengths: &[usize], status: u32) -> Vec<u8> {
        let mut block = Vec::new();
        for (i, &length) in lengths.iter().enumerate() {
            let size = (HEADER + ADDRESS + 18 + length).next_multiple_of(16);
            let mut bytes = vec![0; size];
            bytes[0..4].copy_from_slice(&(size as u32).to_ne_bytes());
            bytes[4..8].copy_from_slice(&7_u32.to_ne_bytes());
            bytes[8..12].copy_from_slice(&(i as u32).to_ne_bytes());
            bytes[12..16].copy_from_slice(&(length as u32).to_ne_bytes());
            bytes[16..20].copy_from_slice(&(length as u32).to_ne_bytes());
            bytes[20..24].copy_from_slice(&status.to_ne_bytes());
            bytes[24..26].copy_from_slice(&(86_u16).to_ne_bytes());
            bytes[32..34].copy_from_slice(&(0x2064_u16).to_ne_bytes());
            bytes[86..86 + length].fill(i as u8 + 1);
            block.extend(bytes);
        }
        block
    }

    fn frames(block: &mut [u8], packets: u32, how: &Reading) -> (Vec<Raw>, Seen) {
        let (mut walk, mut seen) = (Walk::new(0, packets), Seen::default());
        let frames = std::iter::from_fn(|| walk.next(block, how, &mut seen)).collect();
        assert!(walk.is_over());
        (frames, seen)
    }

    #[test]
    fn frames_lie_where_their_headers_say() {
        let lengths = [60, 1514, 0, 61];
        let mut block = block(&lengths, 0);
        let (frames, seen) = frames(&mut block, 4, &PLAIN);
        assert_eq!(seen, Seen::default());
        assert_eq!(frames.len(), 4);
        for (i, (raw, &length)) in frames.iter().zip(&lengths).enumerate() {
            assert_eq!((raw.captured, raw.wire), (length as u32, length as u32));
            assert_eq!((raw.seconds, raw.nanoseconds), (7, i as u32));
            assert_eq!(block[raw.at..raw.at + length], vec![i as u8 + 1; length]);
        }
    }

    #[test]
    fn a_stripped_tag_comes_back() {
        let mut block = block(&[60, 60], VLAN_VALID);
        let (frames, seen) = frames(&mut block, 2, &PLAIN);
        assert_eq!(seen.tags_restored, 2);
        for (i, raw) in frames.iter().enumerate() {
            let fill = i as u8 + 1;
            assert_eq!((raw.captured, raw.wire), (64, 64));
            assert_eq!(block[raw.at..][..12], [fill; 12]);
            assert_eq!(block[raw.at..][12..16], [0x81, 0x00, 0x20, 0x64]);
            assert_eq!(block[raw.at..][16..64], [fill; 48]);
        }
    }

    #[test]
    fn what_splits_a_frame_moves_with_it() {
        let how = Reading {
            has_offload: true,
            ..PLAIN
        };
        let mut block = block(&[60], VLAN_VALID);
        block[76..86].copy_from_slice(&[1, 4, 74, 0, 100, 5, 54, 0, 16, 0]);
        let (frames, seen) = frames(&mut block, 1, &how);
        assert_eq!((seen.merged, seen.unknown, frames[0].at), (1, 0, 82));
        assert_eq!(frames[0].gso, Gso::new(1380, false));
        assert_eq!(block[72..82], [1, 4, 78, 0, 100, 5, 58, 0, 16, 0]);
    }

    #[test]
    fn a_checksum_is_completed_whatever_the_mtu_was() {
        let how = Reading {
            has_offload: true,
            completes_checksums: true,
            frame_max: 30,
            ..PLAIN
        };
        let mut block = block(&[60], CHECKSUM_NOT_READY);
        // From byte 34 on, to byte 40.
        block[76..86].copy_from_slice(&[1, 0, 0, 0, 0, 0, 34, 0, 6, 0]);
        let before = block.clone();
        let (frames, seen) = frames(&mut block, 1, &how);
        assert_eq!((seen.partial_checksums, seen.unknown), (1, 1));
        assert_eq!(block[frames[0].at - OFFLOAD + KIND], 0, "nothing to split");
        let sum = frames[0].at + 40;
        assert_ne!(block[sum..sum + 2], before[sum..sum + 2]);
    }

    #[test]
    fn super_packets_are_told_by_length_or_status() {
        let (_, seen) = frames(&mut block(&[1522, 1523], 0), 2, &PLAIN);
        assert_eq!((seen.merged, seen.unknown), (1, 1));
        let (_, seen) = frames(&mut block(&[100], GSO_TCP), 1, &PLAIN);
        assert_eq!((seen.merged, seen.unknown), (1, 1));
    }

    #[test]
    fn the_kernel_says_of_what_a_frame_was_merged() {
        let how = Reading {
            has_offload: true,
            ..PLAIN
        };
        const ECN: u8 = 0x80;
        const TUNNEL: u8 = 0x20;
        for (kind, size, expected) in [
            (KIND_TCP_V4 | ECN, 100, Gso::new(100, false)),
            (KIND_TCP_V6 | TUNNEL, 1448, Gso::new(1448, false)),
            (KIND_UDP, 1200, Gso::new(1200, true)),
            (KIND_TCP_V4, 0, Gso::UNKNOWN),
            (3, 1200, Gso::UNKNOWN),
            (0, 1200, Gso::NONE),
        ] {
            let mut block = block(&[60], 0);
            let [low, high] = u16::to_ne_bytes(size);
            block[76..86].copy_from_slice(&[0, kind, 9, 9, low, high, 0, 0, 0, 0]);
            let (frames, seen) = frames(&mut block, 1, &how);
            assert_eq!(frames[0].gso, expected);
            assert_eq!(seen.merged, u64::from(expected != Gso::NONE));
            assert_eq!(seen.unknown, u64::from(expected == Gso::UNKNOWN));
        }
    }

    #[test]
    fn a_frame_beyond_the_block_ends_it() {
        let mut bytes = block(&[60, 60, 60], 0);
        let second = bytes.len() / 3;
        bytes[second + 12..second + 16].copy_from_slice(&100_000_u32.to_ne_bytes());
        let (frames, seen) = frames(&mut bytes, 3, &PLAIN);
        assert_eq!(frames.len(), 1);
        assert_eq!(seen.damaged_blocks, 1);
    }

    proptest! {
        /// Whatever a block holds, its frames lie within it, and there are no more than said.
        #[test]
        fn nothing_in_a_block_is_believed(
            mut bytes in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..600),
            first in 0_usize..700,
            packets in 0_u32..20,
            has_offload: bool,
            completes_checksums: bool,
        ) {
            let how = Reading { has_offload, completes_checksums, skips_outgoing: true, ..PLAIN };
            let (mut walk, mut seen) = (Walk::new(first, packets), Seen::default());
            let mut count = 0;
            while let Some(raw) = walk.next(&mut bytes, &how, &mut seen) {
                prop_assert!(raw.at + raw.captured as usize <= bytes.len());
                count += 1;
            }
            prop_assert!(walk.is_over() && count <= packets);
        }
    }
}
