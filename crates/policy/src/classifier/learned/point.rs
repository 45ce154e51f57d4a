//! Where keys lie in what an iSet is ordered by.

use std::fmt::Debug;

/// A place in that order: of IPv4 64 bits, of IPv6 128.
pub trait Point: Copy + Ord + Default + Debug + Send + Sync + 'static {
    /// The greatest.
    const MAX: Self;

    /// A port.
    fn of_port(port: u16) -> Self;

    /// How far it lies behind `base`; 0 before it. Rounded to nearest.
    fn offset(self, base: Self) -> f32;

    /// The same within 2^-53.
    fn offset_f64(self, base: Self) -> f64;
}

impl Point for u64 {
    const MAX: u64 = u64::MAX;

    #[inline]
    fn of_port(port: u16) -> u64 {
        port.into()
    }

    #[inline]
    fn offset(self, base: u64) -> f32 {
        self.saturating_sub(base) as f32
    }

    fn offset_f64(self, base: u64) -> f64 {
        self.saturating_sub(base) as f64
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
