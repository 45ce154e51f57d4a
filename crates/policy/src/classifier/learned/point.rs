//! Positions of keys in an iSet's order.

use std::fmt::Debug;

/// A position in the order: 64 bits for IPv4, 128 for IPv6.
pub trait Point: Copy + Ord + Default + Debug + Send + Sync + 'static {
    /// The greatest.
    const MAX: Self;

    /// A port.
    fn of_port(port: u16) -> Self;

    /// Distance from `base`; 0 before it. Rounded to nearest.
    fn offset(self, base: Self) -> f32;

    /// As [`Self::offset`], within 2^-53.
    fn offset_f64(self, base: Self) -> f64;
}

/// A distance without its lowest bit, as a signed number, which processors convert in one
/// instruction.
#[inline(always)]
fn half(distance: u64) -> i64 {
    (distance >> 1) as i64
}

impl Point for u64 {
    const MAX: u64 = u64::MAX;

    #[inline(always)]
    fn of_port(port: u16) -> u64 {
        u64::from(port) << 1
    }

    #[inline(always)]
    fn offset(self, base: u64) -> f32 {
        half(self.saturating_sub(base)) as f32
    }

    fn offset_f64(self, base: u64) -> f64 {
        half(self.saturating_sub(base)) as f64
    }
}

impl Point for u128 {
    const MAX: u128 = u128::MAX;

    #[inline]
    fn of_port(port: u16) -> u128 {
        port.into()
    }

    #[inline]
    fn offset(self, base: u128) -> f32 {
        self.saturating_sub(base) as f32
    }

    fn offset_f64(self, base: u128) -> f64 {
        self.saturating_sub(base) as f64
    }
}
