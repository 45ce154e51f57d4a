//! Times a device at several batch sizes and fits a line through the times.
//!
//! The sizes take turns, so that a machine that slows down or speeds up does so for every size.
//! Every other turn runs in reverse order, so that no size always follows the same one. A size's
//! median counts, because a preempted core is not a property of the device.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Profile;
use crate::device::{Device, DeviceError};
use crate::golden::wait;

/// Turns that are measured whatever the budget. One turn that does not count comes first.
const TURNS_MIN: usize = 3;

/// The most times kept per size; they take 64 KiB.
const RUNS_MAX: usize = 8192;

/// Runs of a size in one turn. Several runs keep small sizes from always meeting the caches that a
/// large one left.
const TURN_RUNS: usize = 8;

/// After this many µs a turn continues with the next size, whatever the number of runs.
const TURN_US_MAX: u128 = 2_000;

/// The share of the best throughput that the knee must reach.
const KNEE: f64 = 0.9;

/// Times that differ by less than this share of their mean count as if they differed by so much,
/// for R².
const SPREAD_MIN: f64 = 0.05;

/// The times of one batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Batch size.
    pub rows: usize,
    /// The median time of a batch, in µs.
    pub median_us: f64,
    /// The shortest time of a batch, in µs.
    pub min_us: f64,
    /// Number of batches timed.
    pub runs: usize,
}

impl Point {
    /// Classifications per second when batches run one after the other.
    pub fn throughput(&self) -> f64 {
        self.rows as f64 / self.median_us * 1e6
    }
}

/// The times of a device: at least one point, ascending in size.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub(super) points: Vec<Point>,
}

/// Times `device` at the `sizes` that it takes, on inputs like `rows` (channels × K floats each)
/// with a context of zeros, for about `budget`. Every size is run at least three times after a
/// first run that does not count.
///
/// # Errors
/// A batch fails or takes longer than a minute, or the device takes none of the sizes.
pub fn measure(
    device: &mut dyn Device,
    sizes: &[usize],
    rows: &[Vec<f32>],
    budget: Duration,
) -> Result<Measured, DeviceError> {
    let mut times: Vec<(usize, Vec<f64>)> = sizes
        .iter()
        .filter(|&&size| device.sizes().takes(size))
        .map(|&size| (size, Vec::new()))
        .collect();
    if times.is_empty() {
        return Err(DeviceError::Rows {
            device: device.requested().to_owned(),
            rows: sizes.last().copied().unwrap_or(0),
            sizes: device.sizes().clone(),
        });
    }
    times.sort_by_key(|(size, _)| *size);
    times.dedup_by_key(|(size, _)| *size);
    for (size, _) in &times {
        turn(device, *size, rows, &mut Vec::new())?;
    }
    let started = Instant::now();
    let mut turns = 0;
    while turns < TURNS_MIN || started.elapsed() < budget {
        for (size, times) in &mut times {
            turn(device, *size, rows, times)?;
        }
        times.reverse();
        turns += 1;
        if times.iter().all(|(_, times)| times.len() >= RUNS_MAX) {
            break;
        }
    }
    times.sort_by_key(|(size, _)| *size);
    let points = times.into_iter().map(|(size, times)| point(size, times));
    Ok(Measured { points: points.collect() })
}

/// Runs one size several times and adds the times, in µs, to `times` while there is room.
pub(super) fn turn(
    device: &mut dyn Device,
    size: usize,
    rows: &[Vec<f32>],
    times: &mut Vec<f64>,
) -> Result<(), DeviceError> {
    let input = device.input(size);
    let row_len = input.len() / size;
    for (to, from) in input.chunks_exact_mut(row_len).zip(rows.iter().cycle()) {
        to.copy_from_slice(from);
    }
    device.context(size).fill(0.0);
    let begun = Instant::now();
    for _ in 0..TURN_RUNS {
        let started = Instant::now();
        device.submit(size)?;
        wait(device, size, |_| ())?;
        if times.len() < RUNS_MAX {
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        if begun.elapsed().as_micros() > TURN_US_MAX {
            break;
        }
    }
    Ok(())
}

pub(super) fn point(rows: usize, mut times: Vec<f64>) -> Point {
    times.sort_by(f64::total_cmp);
    // Rounded to whole nanoseconds, since no clock is finer, and above 0, because throughput
    // divides by it.
    let whole_ns = |us: f64| ((us * 1e3).round() / 1e3).max(1e-3);
    Point {
        rows,
        median_us: whole_ns(times[times.len() / 2]),
        min_us: whole_ns(times[0]),
        runs: times.len(),
    }
}

impl Measured {
    /// Sorts the points. None if there are none, or if one is not positive or occurs twice.
    pub(super) fn from_points(mut points: Vec<Point>) -> Option<Self> {
        let positive = |point: &Point| {
            let times = [point.median_us, point.min_us];
            point.rows > 0 && times.iter().all(|us| us.is_finite() && *us > 0.0)
        };
        points.sort_by_key(|point| point.rows);
        let twice = points.windows(2).any(|pair| pair[0].rows == pair[1].rows);
        let good = !points.is_empty() && points.iter().all(positive) && !twice;
        good.then_some(Self { points })
    }

    /// What was measured, ascending in size.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Fits a line through the medians by least squares of the relative errors, so that small
    /// batches, whose times are short, count as much as large ones. Neither number is negative.
    /// With a single size, all its time is per row.
    pub fn fit(&self) -> Profile {
        // Minimise Σ (T₀·u + T₁·v − 1)² with u = 1/t and v = b/t.
        let (mut uu, mut uv, mut vv, mut u1, mut v1) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for point in &self.points {
            let (u, v) = (1.0 / point.median_us, point.rows as f64 / point.median_us);
            uu += u * u;
            uv += u * v;
            vv += v * v;
            u1 += u;
            v1 += v;
        }
        let per_row = Profile { t0_us: 0.0, t1_us: v1 / vv };
        if self.points.len() == 1 {
            return per_row;
        }
        // This is not zero: the sizes differ, so u and v are not parallel.
        let determinant = uu * vv - uv * uv;
        let (t0_us, t1_us) = ((u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant);
        if t1_us < 0.0 {
            let (t0_us, t1_us) = (u1 / uu, 0.0);
            Profile { t0_us, t1_us }
        } else if t0_us < 0.0 {
            per_row
        } else {
            Profile { t0_us, t1_us }
        }
    }

    /// R²: the share of the variance of the medians that the line explains, 1 at best; below 0 the
    /// mean would explain more. A device that takes as long for every batch has no variance but
    /// noise, of which no line explains anything, and yet the line is right; so the medians count
    /// as if they were spread by 5 % of their mean at least.
    pub fn r_squared(&self, line: Profile) -> f64 {
        let count = self.points.len() as f64;
        let medians = || self.points.iter().map(|point| point.median_us);
        let mean_us = medians().sum::<f64>() / count;
        let total: f64 = medians().map(|us| (us - mean_us).powi(2)).sum();
        let left = self.points.iter().map(|point| {
            let fitted = line.t0_us + line.t1_us * point.rows as f64;
            (point.median_us - fitted).powi(2)
        });
        1.0 - left.sum::<f64>() / total.max(count * (SPREAD_MIN * mean_us).powi(2))
    }

    /// The batchiness β of the line at the largest size that was measured.
    pub fn batchiness(&self, line: Profile) -> f64 {
        let largest = self.points.iter().map(|point| point.rows).max();
        line.batchiness(largest.unwrap_or(1))
    }

    /// The largest deviation of a median from the line, as a share of the median.
    pub fn deviation(&self, line: Profile) -> f64 {
        let deviations = self.points.iter().map(|point| {
            let fitted = line.t0_us + line.t1_us * point.rows as f64;
            (fitted / point.median_us - 1.0).abs()
        });
        deviations.fold(0.0, f64::max)
    }

    /// The knee: the smallest size with 90 % of the best throughput. Above it batches take longer
    /// and are hardly cheaper per row.
    pub fn knee(&self) -> Point {
        let best = self.points.iter().map(Point::throughput).fold(0.0, f64::max);
        let mut points = self.points.iter();
        let knee = points.find(|point| point.throughput() >= KNEE * best);
        *knee.unwrap_or(&self.points[0])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::{Shape, Sizes};
    use crate::simulated::SimulatedDevice;

    fn measured(points: &[(usize, f64)]) -> Measured {
        let points =
            points.iter().map(|&(rows, us)| Point { rows, median_us: us, min_us: us, runs: 1 });
        Measured::from_points(points.collect()).unwrap()
    }

    #[test]
    fn a_device_is_timed_at_the_sizes_it_takes() {
        let shape = Shape { channels: 1, k: 2, context: 1, classes: 3 };
        let profile = Profile { t0_us: 200.0, t1_us: 100.0 };
        let mut device = SimulatedDevice::new(profile, Sizes::Fixed(vec![1, 4, 8]), shape);
        let rows = [vec![1.0, 2.0]];
        let measured = measure(&mut device, &[8, 2, 1, 8], &rows, Duration::ZERO).unwrap();
        let points = measured.points();
        assert_eq!([points[0].rows, points[1].rows], [1, 8]);
        for point in points {
            let least = 200.0 + 100.0 * point.rows as f64;
            assert!(point.runs >= TURNS_MIN && point.min_us >= least, "{point:?}");
            assert!(point.median_us >= point.min_us);
        }
        let error = measure(&mut device, &[2, 3], &rows, Duration::ZERO).unwrap_err();
        assert!(matches!(error, DeviceError::Rows { rows: 3, .. }), "{error}");
    }

    #[test]
    fn the_fit_is_never_negative() {
        let line = measured(&[(8, 100.0)]).fit();
        assert_eq!((line.t0_us, line.t1_us), (0.0, 12.5));
        let line = measured(&[(1, 1.0), (8, 100.0)]).fit();
        assert!(line.t0_us == 0.0 && line.t1_us > 1.0);
        let falling = measured(&[(1, 100.0), (64, 90.0)]);
        let line = falling.fit();
        assert!(line.t1_us == 0.0 && (90.0..100.0).contains(&line.t0_us));
        assert!(falling.deviation(line) < 0.06);
    }

    #[test]
    fn r_squared_is_the_share_that_a_line_explains() {
        let line = |t0_us, t1_us| Profile { t0_us, t1_us };
        let straight = measured(&[(1, 12.0), (2, 14.0), (4, 18.0)]);
        assert!((straight.r_squared(line(10.0, 2.0)) - 1.0).abs() < 1e-12);
        // Mean 4, Σ(t − mean)² = 9 + 1 + 4 + 4 = 18; t − b = 0, 1, 0, −1 and so Σ = 2 for the line
        // b.
        let bent = measured(&[(1, 1.0), (2, 3.0), (6, 6.0), (7, 6.0)]);
        assert!((bent.r_squared(line(0.0, 1.0)) - (1.0 - 2.0 / 18.0)).abs() < 1e-12);
        // What is above the mean everywhere explains less than the mean does.
        assert!(bent.r_squared(line(9.0, 0.0)) < 0.0);
        // Nothing but noise of half a percent.
        let flat = measured(&[(1, 995.0), (8, 1005.0), (64, 1000.0)]);
        assert!(flat.r_squared(flat.fit()) > 0.99);
        assert_eq!(measured(&[(8, 40.0)]).r_squared(line(0.0, 5.0)), 1.0);
        assert!((bent.batchiness(line(1.0, 1.0)) - 8.0 / 14.0).abs() < 1e-12);
    }

    #[test]
    fn the_knee_is_the_smallest_size_that_is_nearly_the_best() {
        // 0.1, 0.8, 0.95, 1 and 0.97 per µs.
        let curve = [(1, 10.0), (8, 10.0), (19, 20.0), (32, 32.0), (97, 100.0)];
        assert_eq!(measured(&curve).knee().rows, 19);
    }

    #[test]
    fn points_that_cannot_be_are_none() {
        let point = |rows, median_us| Point { rows, median_us, min_us: 1.0, runs: 1 };
        for bad in [
            vec![],
            vec![point(0, 1.0)],
            vec![point(1, f64::NAN)],
            vec![point(1, 0.0)],
            vec![point(1, 1.0), point(1, 2.0)],
        ] {
            assert_eq!(Measured::from_points(bad), None);
        }
    }

    proptest! {
        #[test]
        fn a_line_is_found_again(
            t0_us in 0.0..1e4_f64,
            t1_us in 0.001..1e3_f64,
            first in 0..6_u32,
            sizes in 2..6_u32,
        ) {
            let sizes = (first..first + sizes).map(|power| 1_usize << power);
            let points: Vec<_> = sizes.map(|rows| (rows, t0_us + t1_us * rows as f64)).collect();
            let measured = measured(&points);
            let line = measured.fit();
            prop_assert!(measured.deviation(line) < 1e-6, "{line:?}");
            prop_assert!(measured.r_squared(line) > 1.0 - 1e-6);
            // The line and not only its points, where the numbers carry it.
            prop_assert!((line.t0_us - t0_us).abs() < 1e-3 * (t0_us + t1_us * 64.0));
        }

        #[test]
        fn a_line_is_found_through_noise(
            t0_us in 10.0..1e3_f64,
            t1_us in 1.0..1e2_f64,
            noise in prop::array::uniform8(-0.03..0.03_f64),
        ) {
            let points: Vec<_> = noise.iter().enumerate().map(|(at, noise)| {
                let rows = 1_usize << at;
                (rows, (t0_us + t1_us * rows as f64) * (1.0 + noise))
            }).collect();
            let measured = measured(&points);
            let line = measured.fit();
            prop_assert!(measured.deviation(line) < 0.08);
            // Noise of 3 % on a spread of at least a few times T0 leaves a line that can be planned
            // by.
            if t1_us * 128.0 > 3.0 * t0_us {
                prop_assert!(measured.r_squared(line) > 0.96, "{}", measured.r_squared(line));
            }
        }

        #[test]
        fn any_times_give_a_line_that_can_be_used(
            times in prop::collection::vec(0.001..1e6_f64, 1..12),
        ) {
            let points: Vec<_> = times.iter().enumerate().map(|(at, us)| (1 << at, *us)).collect();
            let measured = measured(&points);
            let line = measured.fit();
            prop_assert!(line.t0_us.is_finite() && line.t0_us >= 0.0);
            prop_assert!(line.t1_us.is_finite() && line.t1_us >= 0.0);
            prop_assert!(points.iter().any(|(rows, _)| *rows == measured.knee().rows));
        }
    }
}
