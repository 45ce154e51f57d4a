//! The short measurement of a start that finds no profile.
//!
//! A start may take a few seconds for all tasks and devices, and the machine may be shared: other
//! programs preempt the core for milliseconds, and its clock changes. What makes the line good all
//! the same:
//!
//! - **Few sizes, far apart.** A line is as good as its ends. Powers of four from 1 to the largest
//!   size give both ends and some points between, which show whether it is a line at all. A device
//!   of fixed sizes has no others than its own.
//! - **The sizes take turns** ([`turn`]), so that a machine that is slow for a while is slow for
//!   all sizes.
//! - **The median counts.** A preempted batch takes many times its time, so a mean would follow it.
//!   The minimum would be the steadiest, but it is what a batch takes on a quiet machine, and a
//!   policy that plans by it misses its goal on this one.
//! - **It goes on while it has to.** The fit is looked at now and then; the measurement ends early
//!   once a line explains nearly everything, and goes on up to its limit while it does not.
//!
//! Large batches of a slow device may be left out: their time alone would exceed the limit.

use std::time::{Duration, Instant};

use super::Profile;
use super::measure::{Measured, Point, point, turn};
use crate::device::{Device, DeviceError, Sizes};

/// The measurement ends early with this R². It is nearer to 1 than what a policy needs, because R²
/// itself is uncertain.
const R_SQUARED_ENOUGH: f64 = 0.99;

/// It ends early only if two fits in a row are so near to each other, as a share of the time of
/// each size.
const AGREEMENT: f64 = 0.05;

/// The fit is looked at so often within the limit.
const LOOKS: u32 = 8;

/// What the first run of each size may take, as a share of the limit; larger sizes are left out.
const FIRST_RUNS: u32 = 4;

/// The sizes at which a device is measured that takes `sizes`.
pub fn sizes_for(sizes: &Sizes) -> Vec<usize> {
    match sizes {
        Sizes::Fixed(sizes) => sizes.clone(),
        Sizes::Any { cap } => {
            let powers = (0..usize::BITS / 2).map(|power| 1_usize << (2 * power));
            let mut sizes: Vec<usize> = powers.take_while(|size| size < cap).collect();
            sizes.push(*cap);
            sizes
        }
    }
}

/// Times `device` for at most about `limit` at the sizes of [`sizes_for`], on inputs like `rows`.
/// It takes longer only if the device takes longer for three batches of its two smallest sizes.
///
/// # Errors
/// A batch fails or takes longer than a minute.
pub fn measure_quickly(
    device: &mut dyn Device,
    rows: &[Vec<f32>],
    limit: Duration,
) -> Result<Measured, DeviceError> {
    let started = Instant::now();
    let mut times: Vec<(usize, Vec<f64>)> = Vec::new();
    for size in sizes_for(device.sizes()) {
        if times.len() >= 2 && started.elapsed() > limit / FIRST_RUNS {
            break;
        }
        // The first runs do not count: they fill caches, and some providers compile.
        turn(device, size, rows, &mut Vec::new())?;
        times.push((size, Vec::new()));
    }
    let began = Instant::now();
    let (mut look_at, mut before) = (limit / LOOKS, None);
    loop {
        for (size, times) in &mut times {
            turn(device, *size, rows, times)?;
        }
        times.reverse();
        let elapsed = began.elapsed();
        if elapsed < look_at && elapsed < limit {
            continue;
        }
        look_at = elapsed + limit / LOOKS;
        let measured = measured(&times);
        let line = measured.fit();
        let is_steady = before.is_some_and(|before| agree(&measured, before, line));
        let is_enough = is_steady && measured.r_squared(line) >= R_SQUARED_ENOUGH;
        if is_enough || started.elapsed() >= limit {
            return Ok(measured);
        }
        before = Some(line);
    }
}

fn measured(times: &[(usize, Vec<f64>)]) -> Measured {
    let points = times.iter();
    let mut points: Vec<Point> = points.map(|(size, times)| point(*size, times.clone())).collect();
    points.sort_by_key(|point| point.rows);
    Measured { points }
}

/// Whether two lines say nearly the same of each size.
fn agree(measured: &Measured, one: Profile, other: Profile) -> bool {
    let at = |line: Profile, rows: usize| line.t0_us + line.t1_us * rows as f64;
    measured.points().iter().all(|point| {
        let difference = at(one, point.rows) - at(other, point.rows);
        difference.abs() <= AGREEMENT * point.median_us
    })
}

#[cfg(test)]
mod tests {
    use super::super::R_SQUARED_MIN;
    use super::*;
    use crate::device::Shape;
    use crate::simulated::SimulatedDevice;

    const SHAPE: Shape = Shape { channels: 1, k: 2, context: 0, classes: 3 };

    fn device(t0_us: f64, t1_us: f64, sizes: Sizes) -> SimulatedDevice {
        SimulatedDevice::new(Profile { t0_us, t1_us }, sizes, SHAPE)
    }

    #[test]
    fn sizes_reach_from_one_to_the_largest() {
        let any = |cap| sizes_for(&Sizes::Any { cap });
        assert_eq!(any(1), [1]);
        assert_eq!(any(8), [1, 4, 8]);
        assert_eq!(any(256), [1, 4, 16, 64, 256]);
        assert_eq!(any(300), [1, 4, 16, 64, 256, 300]);
        assert_eq!(sizes_for(&Sizes::Fixed(vec![8, 32])), [8, 32]);
    }

    #[test]
    fn the_line_of_a_device_is_found() {
        let mut device = device(400.0, 50.0, Sizes::Any { cap: 64 });
        let rows = [vec![1.0, 2.0]];
        // Several attempts, because other programs on the machine may take the core for all of one.
        let found = (0..50).any(|_| {
            let limit = Duration::from_millis(200);
            let measured = measure_quickly(&mut device, &rows, limit).unwrap();
            for point in measured.points() {
                let least = 400.0 + 50.0 * point.rows as f64;
                assert!(point.min_us >= least, "{point:?}");
            }
            let is_whole = measured.points().len() == 4;
            is_whole && measured.r_squared(measured.fit()) >= R_SQUARED_MIN
        });
        assert!(found);
    }

    #[test]
    fn sizes_that_take_too_long_are_left_out_but_two_remain() {
        let mut device = device(0.0, 2_000.0, Sizes::Any { cap: 16_384 });
        let rows = [vec![1.0, 2.0]];
        let measured = measure_quickly(&mut device, &rows, Duration::from_millis(20)).unwrap();
        let sizes: Vec<usize> = measured.points().iter().map(|point| point.rows).collect();
        assert_eq!(sizes, [1, 4]);
        assert!(measured.points().iter().all(|point| point.runs >= 1));
    }
}
