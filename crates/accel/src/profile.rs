//! How long a device takes for a batch: measuring, fitting, storing, and recommending batch sizes.
//!
//! [`measure()`] times a device at several batch sizes. [`Measured::fit`] reduces the times to the
//! two numbers of a [`Profile`], a cost per batch and a cost per row. That is the service-time
//! model of Batchy (§2), which found that a line explains above 96 % of the variance;
//! [`Measured::r_squared`] says how much it explains here. [`Measured::recommend`] says which batch
//! sizes to use. A [`ProfileFile`] stores all of it together with the model, device and library
//! that were measured, and a [`ProfileFolder`] keeps such files from one start to the next.
//! [`measure_quickly()`] is for starts that find none.

mod file;
mod folder;
mod measure;
mod quick;
mod recommend;

pub use file::{Origin, ProfileError, ProfileFile};
pub use folder::{Conditions, ProfileFolder, ProfileKey};
pub use measure::{Measured, Point, measure};
pub use quick::{measure_quickly, sizes_for};
pub use recommend::Recommendation;

use std::time::Duration;

/// The least R² of a line that a policy can plan by. Batchy (§2) found its modules above it.
pub const R_SQUARED_MIN: f64 = 0.96;

/// How long a batch takes: T₀ + T₁·b.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    /// Time per batch, in µs.
    pub t0_us: f64,
    /// Time per row, in µs.
    pub t1_us: f64,
}

impl Profile {
    /// The time of a batch of `rows` rows; zero if the sum is not a positive number.
    pub fn latency(&self, rows: usize) -> Duration {
        let ns = (self.t0_us + self.t1_us * rows as f64) * 1e3;
        Duration::from_nanos(ns as u64)
    }

    /// The batchiness β of Batchy (equation 1): what `rows` rows cost in one batch, as a share of
    /// what they cost in batches of one. It is between 0 and 1, and the smaller it is, the more
    /// batches save; 1 where a batch costs nothing at all.
    pub fn batchiness(&self, rows: usize) -> f64 {
        let rows = rows.max(1) as f64;
        let alone = rows * (self.t0_us + self.t1_us);
        let share = (self.t0_us + rows * self.t1_us) / alone;
        if share.is_finite() { share } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_a_line() {
        let profile = Profile { t0_us: 5.0, t1_us: 1.75 };
        assert_eq!(profile.latency(0), Duration::from_micros(5));
        assert_eq!(profile.latency(8), Duration::from_micros(19));
        assert_eq!(Profile { t0_us: -5.0, t1_us: f64::NAN }.latency(1), Duration::ZERO);
    }

    #[test]
    fn batchiness_is_what_a_batch_saves() {
        let beta = |t0_us, t1_us, rows| Profile { t0_us, t1_us }.batchiness(rows);
        // (10 + 4·1) / (4·(10 + 1)).
        assert!((beta(10.0, 1.0, 4) - 14.0 / 44.0).abs() < 1e-12);
        // One row is one row, and a device without a cost per batch gains nothing.
        assert_eq!((beta(10.0, 1.0, 1), beta(0.0, 3.0, 64)), (1.0, 1.0));
        // A device without a cost per row gains all that there is.
        assert!((beta(5.0, 0.0, 64) - 1.0 / 64.0).abs() < 1e-12);
        // For large batches it tends to T1 / (T0 + T1).
        assert!((beta(30.0, 10.0, 1_000_000) - 0.25).abs() < 1e-4);
        assert_eq!((beta(0.0, 0.0, 8), beta(1.0, 1.0, 0)), (1.0, 1.0));
    }
}
