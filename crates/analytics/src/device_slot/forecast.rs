//! How long a batch will take: the device's profile, kept true by what its batches took lately.
//!
//! A profile was measured at another time, on a quiet machine, and from submission to result; here a batch also waits
//! until the next round looks at it. So a line is fitted anew with each batch, to running means in which a batch counts
//! 1/8:
//!
//! ```text
//!     t₁ = (cov(rows, time) + λ·T₁) / (var(rows) + λ)      t₀ = mean(time) − t₁·mean(rows)
//! ```
//!
//! While batches differ in size their slope decides. While they do not, there is none to be seen, and the profile's T₁
//! stands in; λ is a 500th of the mean size squared. What is the same for every batch is in t₀, so an overhead that
//! small batches show is not taken for a device that is slow per row.

use accel::Profile;
use std::time::Duration;

/// What one batch weighs in the means.
const WEIGHT: f64 = 1.0 / 8.0;
/// λ by the mean size squared.
const STIFFNESS: f64 = 0.002;
/// A batch that took longer than so many times what was expected was held up, and counts as if it had taken just that.
const HELD_UP: f64 = 2.0;

/// The running fit of one device.
pub(crate) struct Forecast {
    profile: Profile,
    fitted: Profile,
    /// Means of rows and time, variance of rows, covariance; none before the first batch.
    moments: Option<Moments>,
}

struct Moments {
    rows: f64,
    time_us: f64,
    variance: f64,
    covariance: f64,
}

impl Forecast {
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            fitted: profile,
            moments: None,
        }
    }

    /// What is expected of the next batches.
    pub fn expected(&self) -> Profile {
        self.fitted
    }

    /// A batch of so many rows took so long.
    pub fn observe(&mut self, rows: usize, took: Duration) {
        let (rows, took_us) = (rows as f64, took.as_secs_f64() * 1e6);
        let expected_us = self.fitted.t0_us + self.fitted.t1_us * rows;
        let time_us = took_us.clamp(expected_us / HELD_UP, expected_us * HELD_UP);
        let moments = self.moments.get_or_insert(Moments {
            rows,
            time_us: expected_us,
            variance: 0.0,
            covariance: 0.0,
        });
        let (more_rows, more_us) = (rows - moments.rows, time_us - moments.time_us);
        moments.rows += WEIGHT * more_rows;
        moments.time_us += WEIGHT * more_us;
        let keep = 1.0 - WEIGHT;
        moments.variance = keep * (moments.variance + WEIGHT * more_rows * more_rows);
        moments.covariance = keep * (moments.covariance + WEIGHT * more_rows * more_us);
        let stiffness = STIFFNESS * moments.rows * moments.rows;
        let t1_us =
            (moments.covariance + stiffness * self.profile.t1_us) / (moments.variance + stiffness);
        // Neither is ever negative, and both together go through the mean.
        let t1_us = t1_us.clamp(0.0, moments.time_us / moments.rows);
        let t0_us = moments.time_us - t1_us * moments.rows;
        self.fitted = Profile { t0_us, t1_us };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: Profile = Profile {
        t0_us: 20.0,
        t1_us: 2.0,
    };

    /// What is expected after so many batches of these sizes, on a device that is so.
    fn after(batches: usize, sizes: &[usize], t0_us: f64, t1_us: f64) -> Profile {
        let mut forecast = Forecast::new(PROFILE);
        for rows in sizes.iter().cycle().take(batches) {
            forecast.observe(*rows, Profile { t0_us, t1_us }.latency(*rows));
        }
        forecast.expected()
    }

    /// Whether small and large batches are expected to take what they do.
    fn is_near(found: Profile, t0_us: f64, t1_us: f64) -> bool {
        [10, 100].into_iter().all(|rows| {
            let took = Profile { t0_us, t1_us }.latency(rows).as_secs_f64();
            (found.latency(rows).as_secs_f64() / took - 1.0).abs() <= 0.1
        })
    }

    #[test]
    fn a_true_profile_stays() {
        for sizes in [&[40][..], &[1, 100], &[8, 16, 9]] {
            let found = after(100, sizes, 20.0, 2.0);
            assert!(is_near(found, 20.0, 2.0), "{sizes:?}: {found:?}");
        }
    }

    #[test]
    fn a_device_that_differs_is_found_out_where_sizes_do() {
        for (t0_us, t1_us) in [(20.0, 8.0), (500.0, 2.0), (5.0, 0.5), (2000.0, 20.0)] {
            let found = after(200, &[10, 40, 90, 60], t0_us, t1_us);
            assert!(
                is_near(found, t0_us, t1_us),
                "{t0_us} + {t1_us} b: {found:?}"
            );
        }
    }

    #[test]
    fn an_overhead_that_small_batches_show_is_not_taken_for_slow_rows() {
        let found = after(200, &[2], 120.0, 2.0);
        assert!(is_near(found, 120.0, 2.0), "{found:?}");
    }

    #[test]
    fn one_batch_that_was_held_up_moves_it_little() {
        let mut forecast = Forecast::new(PROFILE);
        (0..20).for_each(|_| forecast.observe(40, Duration::from_micros(100)));
        forecast.observe(40, Duration::from_secs(1));
        let expected = forecast.expected().latency(40);
        assert!(expected <= Duration::from_micros(113), "{expected:?}");
    }

    #[test]
    fn it_never_promises_less_than_nothing() {
        let found = after(2000, &[1, 1000, 3], 0.0, 0.0);
        assert!(found.t0_us >= 0.0 && found.t1_us >= 0.0, "{found:?}");
    }
}
