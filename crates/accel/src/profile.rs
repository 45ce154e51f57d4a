//! How long a device takes for a batch: measuring, fitting, storing, and recommending batch sizes.
//!
//! [`measure()`] times a device at several batch sizes. [`Measured::fit`] reduces the times to the two numbers of a
//! [`Profile`], a cost per batch and a cost per row. That is the service-time model of Batchy (§2), which found that a
//! line explains above 96 % of the variance. [`Measured::recommend`] says which batch sizes to use. A [`ProfileFile`]
//! stores all of it together with the model, device and library that were measured.

mod file;
mod measure;
mod recommend;

pub use file::{ProfileError, ProfileFile};
pub use measure::{Measured, Point, measure};
pub use recommend::Recommendation;

use std::time::Duration;

/// How long a batch takes: T₀ + T₁·b.
#[derive(Clone, Copy, Debug, PartialEq)]
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_a_line() {
        let profile = Profile {
            t0_us: 5.0,
            t1_us: 1.75,
        };
        assert_eq!(profile.latency(0), Duration::from_micros(5));
        assert_eq!(profile.latency(8), Duration::from_micros(19));
        assert_eq!(
            Profile {
                t0_us: -5.0,
                t1_us: f64::NAN
            }
            .latency(1),
            Duration::ZERO
        );
    }
}
