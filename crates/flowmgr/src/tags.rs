//! Comparing the eight tags of a bucket at once.
#![allow(unsafe_code, reason = "SSE2 intrinsics")]

/// Bit i: tag i is `tag`. With SSE2, which every x86-64 has: five instructions.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn matching(tags: [u8; 8], tag: u8) -> u8 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_cvtsi64_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: SSE2 belongs to the x86-64 instruction set; the intrinsics touch no memory.
    unsafe {
        let tags = _mm_cvtsi64_si128(i64::from_le_bytes(tags));
        _mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(tag as i8))) as u8
    }
}

/// Bit i: tag i is `tag`. Elsewhere: eight bytes in one word.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn matching(tags: [u8; 8], tag: u8) -> u8 {
    matching_in_word(tags, tag)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn matching_in_word(tags: [u8; 8], tag: u8) -> u8 {
    const LOW_SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let difference = u64::from_le_bytes(tags) ^ (u64::from(tag) * 0x0101_0101_0101_0101);
    // The top bit of each byte that is not 0: its low seven bits carry into it, or it
    // is set itself. Exact, since no carry leaves a byte.
    let nonzero = ((difference & LOW_SEVEN) + LOW_SEVEN) | difference;
    let tops = !(nonzero | LOW_SEVEN) >> 7;
    // Gathers bit 8 i into bit 56 + i.
    (tops.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_forms_compare_byte_by_byte(
            tags in prop::array::uniform8(0u8..4),
            scale in any::<u8>(),
            tag in 0u8..4,
        ) {
            // Few distinct values, so that many are equal; scaled over all bytes.
            let tags = tags.map(|tag| tag.wrapping_mul(scale));
            let tag = tag.wrapping_mul(scale);
            let plain = (0..8).fold(0, |bits, i| bits | u8::from(tags[i] == tag) << i);
            prop_assert_eq!(matching(tags, tag), plain);
            prop_assert_eq!(matching_in_word(tags, tag), plain);
        }
    }
}
