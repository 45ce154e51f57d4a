//! IPv4 and IPv6 addresses, as the classifiers use them.

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

    /// The order of filters in an index.
    type Point: crate::classifier::Point;

    /// Prefix lengths of one address by which an index may order before it orders by the other.
    const JOINT_BITS: &'static [u8];

    /// Position of a pair of addresses in an index by the first `bits` of `outer`, already reduced
    /// to them, then `inner`. No bits are between them, because models have a limited precision.
    fn joint_point(outer: Self, bits: u8, inner: Self) -> Self::Point;

    /// A mask of the first `length` bits.
    fn mask(length: u8) -> Self;

    /// Whether both agree in all but the `open` lowest bits.
    fn agree(self, other: Self, open: u8) -> bool;

    /// Which of eight boxes contain the key, a bit per box.
    fn matches<V: Vectors>(boxes: &Boxes<Self>, key: &Key<Self>) -> u8;

    /// The prefix of this length: the other bits become 0. Lengths are capped at [`Address::BITS`].
    #[inline(always)]
    fn prefix(self, length: u8) -> Self {
        self & Self::mask(length)
    }

    /// The last address with the same first `length` bits.
    #[inline(always)]
    fn last(self, length: u8) -> Self {
        self | !Self::mask(length)
    }

    /// A coarse number of the address's position.
    fn gate(self) -> u16;

    /// The gates of all addresses of a prefix.
    fn gates(self, length: u8) -> RangeInclusive<u16>;

    /// The upper bits of 128.
    fn of_upper(bits: u128) -> Self;

    /// This prefix with the bits of `low` beyond `length`.
    #[inline(always)]
    fn with_low(self, low: Self, length: u8) -> Self {
        self | low & !Self::mask(length)
    }

    /// A 64-bit word for hashing; equal addresses give equal words.
    fn fold(self) -> u64;
}

impl Address for u32 {
    const BITS: u8 = 32;
    type Point = u64;
    const JOINT_BITS: &'static [u8] = &[8, 12, 16, 20, 24, 28, 32];

    #[inline(always)]
    fn joint_point(outer: u32, bits: u8, inner: u32) -> u64 {
        u64::from(outer) << bits | u64::from(inner)
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
    // The upper half of both addresses: hosts choose the lower one, so ranges that differ there
    // only count as overlapping. They share a bucket or stay in the remainder.
    type Point = u128;
    const JOINT_BITS: &'static [u8] = &[32, 48, 56, 64];

    #[inline(always)]
    fn joint_point(outer: u128, bits: u8, inner: u128) -> u128 {
        (outer >> 64) << bits | inner >> 64
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

    // Most addresses in use share the first 16 bits, so hash the first 48, the least a site gets.
    #[inline(always)]
    fn gate(self) -> u16 {
        ((self >> 80) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_shr(48) as u16
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
