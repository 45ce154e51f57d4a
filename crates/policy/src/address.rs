//! Addresses of both families, as the classifiers use them.

use std::fmt::Debug;
use std::ops::{BitAnd, BitOr, Not, RangeInclusive};

use crate::Key;
use crate::classifier::{Boxes, Vectors};

/// An address of a family, as the classifiers use it.
pub trait Address:
    Copy
    + Ord
    + Debug
    + Default
    + Send
    + Sync
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + Not<Output = Self>
    + 'static
{
    /// Bits of an address.
    const BITS: u8;

    /// What an index of filters orders addresses by.
    type Point: crate::classifier::Point;

    /// Numbers of first bits of an address that an index may order by before it orders by the other address.
    const JOINT_BITS: &'static [u8];

    /// Where a pair of addresses lies, by `outer`, of which the first bits are left, and then by `inner`.
    fn joint_point(outer: Self, inner: Self) -> Self::Point;

    /// The first bits of an address, so many of them, as a mask.
    fn mask(length: u8) -> Self;

    /// Whether the two agree in all but the `open` lowest bits.
    fn agree(self, other: Self, open: u8) -> bool;

    /// Which of eight boxes have the key, a bit for each.
    fn matches<V: Vectors>(boxes: &Boxes<Self>, key: &Key<Self>) -> u8;

    /// The prefix of this length: the other bits become 0. A length beyond [`Address::BITS`] is that.
    #[inline(always)]
    fn prefix(self, length: u8) -> Self {
        self & Self::mask(length)
    }

    /// The last address that shares the first `length` bits with this one.
    #[inline(always)]
    fn last(self, length: u8) -> Self {
        self | !Self::mask(length)
    }

    /// A number that says where the address lies, roughly.
    fn gate(self) -> u16;

    /// The numbers of all addresses of a prefix.
    fn gates(self, length: u8) -> RangeInclusive<u16>;

    /// The upper bits of 128.
    fn of_upper(bits: u128) -> Self;

    /// This prefix, with the bits of `low` beyond the length.
    #[inline(always)]
    fn with_low(self, low: Self, length: u8) -> Self {
        self | low & !Self::mask(length)
    }

    /// Both in one word of 64 bits, for hashing; equal addresses give equal words.
    fn fold(self) -> u64;
}

impl Address for u32 {
    const BITS: u8 = 32;
    type Point = u64;
    const JOINT_BITS: &'static [u8] = &[8, 12, 16, 20, 24, 28, 32];

    #[inline(always)]
    fn joint_point(outer: u32, inner: u32) -> u64 {
        u64::from(outer) << 32 | u64::from(inner)
    }

    #[inline(always)]
    fn mask(length: u8) -> u32 {
        let open = 32 - length.min(32);
        u32::MAX.checked_shl(open.into()).unwrap_or(0)
    }

    #[inline(always)]
    fn agree(self, other: u32, open: u8) -> bool {
        (self ^ other).checked_shr(open.into()).unwrap_or(0) == 0
    }

    #[inline(always)]
    fn matches<V: Vectors>(boxes: &Boxes<u32>, key: &Key<u32>) -> u8 {
        V::matches(boxes, key)
    }

    #[inline(always)]
    fn gate(self) -> u16 {
        (self >> 16) as u16
    }

    fn gates(self, length: u8) -> RangeInclusive<u16> {
        self.gate()..=self.last(length).gate()
    }

    fn of_upper(bits: u128) -> u32 {
        (bits >> 96) as u32
    }

    #[inline]
    fn fold(self) -> u64 {
        self.into()
    }
}

impl Address for u128 {
    const BITS: u8 = 128;
    // Of both addresses the upper half: the lower one is the host's own choice, so ranges that differ there only count as
    // overlapping. They share a bucket, or stay with the remainder.
    type Point = u128;
    const JOINT_BITS: &'static [u8] = &[32, 48, 56, 64];

    #[inline(always)]
    fn joint_point(outer: u128, inner: u128) -> u128 {
        outer | inner >> 64
    }

    #[inline(always)]
    fn mask(length: u8) -> u128 {
        let open = 128 - length.min(128);
        u128::MAX.checked_shl(open.into()).unwrap_or(0)
    }

    #[inline(always)]
    fn agree(self, other: u128, open: u8) -> bool {
        (self ^ other).checked_shr(open.into()).unwrap_or(0) == 0
    }

    #[inline(always)]
    fn matches<V: Vectors>(boxes: &Boxes<u128>, key: &Key<u128>) -> u8 {
        boxes.matches(key)
    }

    // The first 16 bits are the same for most addresses in use: a hash of the first 48, which is what a site gets at least.
    #[inline(always)]
    fn gate(self) -> u16 {
        ((self >> 80) as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_shr(48) as u16
    }

    fn gates(self, length: u8) -> RangeInclusive<u16> {
        match length {
            48.. => self.gate()..=self.gate(),
            _ => 0..=u16::MAX,
        }
    }

    fn of_upper(bits: u128) -> u128 {
        bits
    }

    #[inline]
    fn fold(self) -> u64 {
        let (high, low) = ((self >> 64) as u64, self as u64);
        high ^ low.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_all_lengths() {
        assert_eq!(0xffff_ffff_u32.prefix(0), 0);
        assert_eq!(0xffff_ffff_u32.prefix(1), 0x8000_0000);
        assert_eq!(0xffff_ffff_u32.prefix(32), u32::MAX);
        assert_eq!(0x0a00_0000_u32.last(8), 0x0aff_ffff);
        assert_eq!(u128::MAX.prefix(0), 0);
        assert_eq!(u128::MAX.prefix(128), u128::MAX);
        assert_eq!((1_u128 << 127).last(1), u128::MAX);
    }
}
