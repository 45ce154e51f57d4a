//! Blocks made by hand, and any bytes at all.

use proptest::prelude::*;

use super::*;

const PLAIN: Reading =
    Reading { completes_checksums: false, skips_outgoing: false, link: ETHERNET, frame_max: 1522 };

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

fn frames(block: &mut [u8], packets: u32, how: &Reading) -> (Vec<Frame>, RingCounts) {
    let (mut walk, mut seen) = (Walk::new(0, packets), RingCounts::default());
    let frames = std::iter::from_fn(|| walk.next(block, how, &mut seen)).collect();
    assert_eq!(walk.left, 0);
    (frames, seen)
}

#[test]
fn frames_lie_where_their_headers_say() {
    let lengths = [60, 1514, 0, 61];
    let mut block = block(&lengths, 0);
    let (frames, seen) = frames(&mut block, 4, &PLAIN);
    assert_eq!(seen, RingCounts::default());
    assert_eq!(frames.len(), 4);
    for (i, (raw, &length)) in frames.iter().zip(&lengths).enumerate() {
        assert_eq!((raw.captured, raw.wire), (length as u32, length as u32));
        assert_eq!((raw.time_us, raw.time_sub_ns), (7_000_000, i as u16));
        assert_eq!(block[raw.at..raw.at + length], vec![i as u8 + 1; length]);
    }
}

#[test]
fn times_keep_their_nanoseconds() {
    let mut block = block(&[60], 0);
    block[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    block[8..12].copy_from_slice(&999_999_999_u32.to_ne_bytes());
    let (frames, _) = frames(&mut block, 1, &PLAIN);
    assert_eq!(frames[0].time_us, i64::from(u32::MAX) * 1_000_000 + 999_999);
    assert_eq!((frames[0].time_sub_ns, frames[0].range()), (999, 86..146));
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

/// As a process does that takes over from one that was killed.
#[test]
fn a_frame_that_is_read_again_is_the_same() {
    let how = Reading { completes_checksums: true, ..PLAIN };
    let mut block = block(&[60, 61], VLAN_VALID | CHECKSUM_NOT_READY);
    let second = block.len() / 2;
    for at in [0, second] {
        // A checksum from byte 34 on, to byte 40.
        block[at + 76..at + 86].copy_from_slice(&[1, 0, 0, 0, 0, 0, 34, 0, 6, 0]);
    }
    let (first_time, seen) = frames(&mut block, 2, &how);
    assert_eq!((seen.tags_restored, seen.partial_checksums), (2, 2));
    let before = block.clone();
    let (again, seen) = frames(&mut block, 2, &how);
    assert_eq!((again, seen), (first_time.clone(), RingCounts::default()));
    assert!(block == before);

    let (mut walk, mut seen) = (Walk::new(0, 2), RingCounts::default());
    walk.skip(&block, 1);
    assert_eq!(walk.next(&mut block, &how, &mut seen), Some(first_time[1]));
    assert_eq!(walk.left, 0);
}

#[test]
fn what_splits_a_frame_moves_with_it() {
    let mut block = block(&[60], VLAN_VALID);
    block[76..86].copy_from_slice(&[1, 4, 74, 0, 100, 5, 54, 0, 16, 0]);
    let (frames, seen) = frames(&mut block, 1, &PLAIN);
    assert_eq!((seen.merged, seen.unknown, frames[0].at), (1, 0, 82));
    assert_eq!(frames[0].gso, Gso::new(1380, false));
    assert_eq!(block[72..82], [1, 4, 78, 0, 100, 5, 58, 0, 16, 0]);
}

#[test]
fn a_checksum_is_completed_whatever_the_mtu_was() {
    let how = Reading { completes_checksums: true, frame_max: 30, ..PLAIN };
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
        let (frames, seen) = frames(&mut block, 1, &PLAIN);
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
        completes_checksums: bool,
    ) {
        let how = Reading { completes_checksums, skips_outgoing: true, ..PLAIN };
        let (mut walk, mut seen) = (Walk::new(first, packets), RingCounts::default());
        let mut count = 0;
        while let Some(raw) = walk.next(&mut bytes, &how, &mut seen) {
            prop_assert!(raw.at + raw.captured as usize <= bytes.len());
            count += 1;
        }
        prop_assert!(walk.left == 0 && count <= packets);
    }
}
