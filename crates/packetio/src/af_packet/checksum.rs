//! Completes a transport checksum that the sender left to its card: the field holds the sum of the
//! pseudo-header, to which the segment's is added (virtio 1.3, 5.1.6.2,
//! `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
//!
//! RFC 1071's sum may be taken in any byte order, so words are added as they lie.

/// Sums `frame` from `start` on and writes the checksum `field` bytes behind `start`. Does nothing
/// if the field is beyond the frame.
pub(super) fn complete(frame: &mut [u8], start: usize, field: usize) {
    let Some(segment) = frame.get_mut(start..) else {
        return;
    };
    let checksum = !sum(segment);
    if let Some(place) = field.checked_add(2).and_then(|end| segment.get_mut(field..end)) {
        // In UDP 0 means "none"; 0xffff is equivalent and valid for all.
        let checksum = if checksum == 0 { 0xffff } else { checksum };
        place.copy_from_slice(&checksum.to_ne_bytes());
    }
}

fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_ne_bytes(last));
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completed_checksum_is_right() {
        // 10.0.0.1 → 10.0.0.2, UDP 1000 → 53, 5 bytes: the sum of the pseudo-header in the field.
        let pseudo: u32 = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + 13;
        let [high, low] = (pseudo as u16).to_be_bytes();
        let mut frame = [9; 34].to_vec();
        frame.extend([0x03, 0xe8, 0, 53, 0, 13, high, low, b'h', b'e', b'l', b'l', b'o']);
        complete(&mut frame, 34, 6);
        let total: u32 = pseudo
            + frame[34..]
                .chunks(2)
                .map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |&low| u32::from(low)))
                .sum::<u32>();
        assert_eq!((total & 0xffff) + (total >> 16), 0xffff);
        assert_eq!(frame[..34], [9; 34]);
    }

    #[test]
    fn a_field_beyond_the_frame_changes_nothing() {
        for (start, field) in [(0, 9), (0, usize::MAX), (10, 0), (11, 0), (usize::MAX, 0)] {
            let mut frame = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
            complete(&mut frame, start, field);
            assert_eq!(frame, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        }
    }
}
