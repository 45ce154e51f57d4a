//! How long a batch will take: the device's profile, kept true by what its batches took lately.
//!
//! A profile was measured at another time, on a quiet machine, and from submission to result; here
//! a batch also waits until the next round looks at it. So a line is fitted again with each batch,
//! to running means in which a batch counts 1/8:
//!
//! ```text
//!     t₁ = (cov(rows, time) + λ·T₁) / (var(rows) + λ)      t₀ = mean(time) − t₁·mean(rows)
//! ```
//!
//! While batches differ in size, their slope decides. While they do not, no slope shows, and the
//! profile's T₁ stands in; λ is a 500th of the mean size squared. What every batch takes alike is
//! in t₀, so an overhead that small batches show is not mistaken for a device that is slow per row.
//!
//! The profile that was given stays the *reference*, because the next start will begin with it.
//! While the line is more than a quarter off the reference for the mean batch, the lines are
//! averaged, because a single one follows few batches; once that has lasted, the profile has
//! *drifted*, and the average is the reference from then on. The reader of the counters sees that,
//! reports it and stores it; see [`DeviceProfile`].

use accel::Profile;
use std::time::Duration;

/// What one batch weighs in the means.
const WEIGHT: f64 = 1.0 / 8.0;
/// λ by the mean size squared.
const STIFFNESS: f64 = 0.002;
/// A batch that took longer than this many times the expected time was held up, and counts as if it
/// had taken just that.
const HELD_UP: f64 = 2.0;

/// A line that is off the reference by more than this, as a share, may be a drift.
const DRIFT: f64 = 0.25;
/// The drift is over if the line comes nearer than this again; with a single bound a line at the
/// bound would never count.
const DRIFT_OVER: f64 = 0.15;
/// A drift must last this long. A neighbour on the core, or a burst, is gone by then.
const DRIFT_NS: u64 = 5_000_000_000;
/// Minimum batches before drift counts; an idle device proves nothing.
const DRIFT_BATCHES: u32 = 32;

/// The profile of one device, and how it has changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceProfile {
    /// The profile with which it started.
    pub started: Profile,
    /// What counts as known: the profile at the start, or what it has drifted to.
    pub reference: Profile,
    /// What is expected of the next batches.
    pub expected: Profile,
    /// Mean size of the last batches; 0 before the first.
    pub rows: f64,
    /// How often the profile has drifted, other models included.
    pub drifts: u64,
}

impl DeviceProfile {
    /// By how much the mean batch is expected to take longer than the reference says, as a share;
    /// below 0 if less. 0 before the first batch.
    #[must_use]
    pub fn drift(&self) -> f64 {
        drift(self.reference, self.expected, self.rows)
    }
}

fn drift(from: Profile, to: Profile, rows: f64) -> f64 {
    let at = |line: Profile| line.t0_us + line.t1_us * rows;
    let drift = at(to) / at(from) - 1.0;
    // Without a batch, or for a device whose profile takes no time.
    if rows > 0.0 && drift.is_finite() { drift } else { 0.0 }
}

/// The running fit of one device.
pub(crate) struct Forecast {
    profile: Profile,
    fitted: Profile,
    /// Means of rows and time, variance of rows, covariance; `None` before the first batch.
    moments: Option<Moments>,
    reference: Profile,
    /// A drift that has not lasted yet.
    drifting: Option<Drifting>,
    drifts: u64,
}

/// Sums of the lines since a drift began.
struct Drifting {
    since_ns: u64,
    batches: u32,
    t0_us: f64,
    t1_us: f64,
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
            reference: profile,
            drifting: None,
            drifts: 0,
        }
    }

    /// For a device that replaces this one: its count of drifts goes on.
    pub fn replaced_by(&self, profile: Profile) -> Self {
        Self { drifts: self.drifts, ..Self::new(profile) }
    }

    /// All that others may know.
    pub fn profile(&self) -> DeviceProfile {
        DeviceProfile {
            started: self.profile,
            reference: self.reference,
            expected: self.fitted,
            rows: self.moments.as_ref().map_or(0.0, |moments| moments.rows),
            drifts: self.drifts,
        }
    }

    /// What is expected of the next batches.
    pub fn expected(&self) -> Profile {
        self.fitted
    }

    /// A batch of `rows` came back at `now_ns`, after the given time.
    pub fn observe(&mut self, rows: usize, took: Duration, now_ns: u64) {
        self.fit(rows, took);
        self.look_for_drift(now_ns);
    }

    fn look_for_drift(&mut self, now_ns: u64) {
        let off = self.profile().drift().abs();
        let bound = match self.drifting {
            Some(_) => DRIFT_OVER,
            None => DRIFT,
        };
        if off <= bound {
            self.drifting = None;
            return;
        }
        let drifting = self.drifting.get_or_insert(Drifting {
            since_ns: now_ns,
            batches: 0,
            t0_us: 0.0,
            t1_us: 0.0,
        });
        drifting.batches = drifting.batches.saturating_add(1);
        drifting.t0_us += self.fitted.t0_us;
        drifting.t1_us += self.fitted.t1_us;
        let lasted_ns = now_ns.saturating_sub(drifting.since_ns);
        if lasted_ns < DRIFT_NS || drifting.batches < DRIFT_BATCHES {
            return;
        }
        let batches = f64::from(drifting.batches);
        self.reference =
            Profile { t0_us: drifting.t0_us / batches, t1_us: drifting.t1_us / batches };
        self.drifts += 1;
        self.drifting = None;
    }

    fn fit(&mut self, rows: usize, took: Duration) {
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

    const PROFILE: Profile = Profile { t0_us: 20.0, t1_us: 2.0 };

    /// The expectation after batches of these sizes on such a device.
    fn after(batches: usize, sizes: &[usize], t0_us: f64, t1_us: f64) -> Profile {
        let mut forecast = Forecast::new(PROFILE);
        for rows in sizes.iter().cycle().take(batches) {
            forecast.fit(*rows, Profile { t0_us, t1_us }.latency(*rows));
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
            assert!(is_near(found, t0_us, t1_us), "{t0_us} + {t1_us} b: {found:?}");
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
        (0..20).for_each(|_| forecast.fit(40, Duration::from_micros(100)));
        forecast.fit(40, Duration::from_secs(1));
        let expected = forecast.expected().latency(40);
        assert!(expected <= Duration::from_micros(113), "{expected:?}");
    }

    #[test]
    fn it_never_promises_less_than_nothing() {
        let found = after(2000, &[1, 1000, 3], 0.0, 0.0);
        assert!(found.t0_us >= 0.0 && found.t1_us >= 0.0, "{found:?}");
    }

    const MS: u64 = 1_000_000;

    /// Batches of 10, 40 and 90 rows in turn, one every 10 ms from `from_ms` to `to_ms`, on a
    /// device that takes `factor` times what the profile says.
    fn run(forecast: &mut Forecast, from_ms: u64, to_ms: u64, factor: f64) {
        for (at_ms, rows) in (from_ms..to_ms).step_by(10).zip([10, 40, 90].into_iter().cycle()) {
            let took = PROFILE.latency(rows).mul_f64(factor);
            forecast.observe(rows, took, at_ms * MS);
        }
    }

    #[test]
    fn a_device_that_becomes_slower_has_drifted_once_that_has_lasted() {
        let mut forecast = Forecast::new(PROFILE);
        assert_eq!(forecast.profile().drift(), 0.0);
        run(&mut forecast, 0, 10_000, 1.0);
        assert!(forecast.profile().drift().abs() < 0.01);
        run(&mut forecast, 10_000, 14_900, 1.6);
        let found = forecast.profile();
        assert!((found.drift() - 0.6).abs() < 0.05, "{found:?}");
        assert_eq!((found.drifts, found.reference), (0, PROFILE));
        run(&mut forecast, 14_900, 20_000, 1.6);
        let found = forecast.profile();
        assert_eq!((found.drifts, found.started), (1, PROFILE));
        assert!(is_near(found.reference, 32.0, 3.2), "{found:?}");
        assert!(found.drift().abs() < 0.05, "{found:?}");
        // It stays so, and the next drift is one from there: back to what it was is a share of
        // 0.375.
        run(&mut forecast, 20_000, 40_000, 1.6);
        assert_eq!(forecast.profile().drifts, 1);
        run(&mut forecast, 40_000, 50_000, 1.0);
        let found = forecast.profile();
        assert_eq!(found.drifts, 2);
        assert!(is_near(found.reference, 20.0, 2.0), "{found:?}");
    }

    #[test]
    fn what_is_brief_or_small_or_rare_is_no_drift() {
        let mut brief = Forecast::new(PROFILE);
        for second in 0..60 {
            let factor = if second % 6 < 4 { 1.6 } else { 1.0 };
            run(&mut brief, second * 1000, second * 1000 + 1000, factor);
        }
        assert_eq!(brief.profile().drifts, 0);
        let mut small = Forecast::new(PROFILE);
        run(&mut small, 0, 60_000, 1.2);
        assert_eq!(small.profile().drifts, 0);
        assert!((small.profile().drift() - 0.2).abs() < 0.02);
        let mut rare = Forecast::new(PROFILE);
        for second in 0..DRIFT_BATCHES as u64 {
            rare.observe(40, Duration::from_micros(200), second * 1000 * MS);
        }
        assert_eq!(rare.profile().drifts, 0);
        (40..60)
            .for_each(|second| rare.observe(40, Duration::from_micros(200), second * 1000 * MS));
        assert_eq!(rare.profile().drifts, 1);
    }

    #[test]
    fn another_device_begins_anew_and_the_count_goes_on() {
        let mut forecast = Forecast::new(PROFILE);
        run(&mut forecast, 0, 10_000, 3.0);
        assert_eq!(forecast.profile().drifts, 1);
        let other = forecast.replaced_by(Profile { t0_us: 60.0, t1_us: 6.0 });
        let found = other.profile();
        assert_eq!((found.drifts, found.rows, found.drift()), (1, 0.0, 0.0));
        assert_eq!(found.started, found.reference);
    }

    #[test]
    fn a_device_that_was_said_to_take_no_time_does_not_drift() {
        let mut nothing = Forecast::new(Profile { t0_us: 0.0, t1_us: 0.0 });
        run(&mut nothing, 0, 20_000, 1.0);
        assert_eq!((nothing.profile().drift(), nothing.profile().drifts), (0.0, 0));
    }
}
