//! Recommends batch sizes and a timeout from a device's times.
//!
//! For a goal D from series to label, where L(b) is the time of a batch of b rows:
//!
//! - A series waits at most the timeout T for its batch to be fired. The batch before it may still
//!   be running then, for at most L(largest), and then its own batch runs. So **T = D·(1 − δ) −
//!   2·L(largest)**, where δ = 5 % is the headroom that Batchy (§4) keeps for what no model
//!   predicts.
//! - **The largest batch** is the knee, or less if the goal requires it: the largest size with L ≤
//!   D/4, which leaves at least half of the goal for collecting series. Above the knee a batch
//!   takes longer and gains almost nothing.
//! - **𝓑** holds every measured size from 8 (FENXI §4 uses the powers of two from 8 to 1,024) to
//!   the largest that is clearly faster than the next: a size whose batch takes above 90 % of the
//!   next one's time is left out, because padding to the next size costs no more. Triton gives the
//!   same advice on its preferred sizes. A device that takes any size uses only the last of 𝓑, as a
//!   cap.
//! - Without a goal T is L(largest): a device that is always busy cannot use a longer timeout, and
//!   an idle one does not need it.

use std::time::Duration;

use super::Measured;
use super::measure::Point;

/// The smallest recommended size, unless the largest is smaller.
const ROWS_MIN: usize = 8;

/// A size is kept if its batch takes at most this share of the next one's time.
const FASTER: f64 = 0.9;

/// The share δ of the goal that is kept as headroom.
const HEADROOM: f64 = 0.05;

/// What to configure.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// The set 𝓑, ascending; never empty.
    pub batch_sizes: Vec<usize>,
    /// The timeout T.
    pub timeout: Duration,
    /// The largest batch, the last of 𝓑.
    pub largest: usize,
    /// Whether the device can meet the goal at all: two of its smallest batches fit into the goal
    /// less the headroom.
    pub meets_goal: bool,
}

impl Measured {
    /// Recommends batches for a latency goal, by the rule at the top of the module.
    pub fn recommend(&self, latency_goal: Option<Duration>) -> Recommendation {
        let goal_us = latency_goal.map(|goal| goal.as_secs_f64() * 1e6);
        let knee = self.knee();
        let fits = |point: &&Point| {
            let quick = goal_us.is_none_or(|goal_us| point.median_us <= goal_us / 4.0);
            point.rows <= knee.rows && quick
        };
        let points = self.points();
        // A device that is too slow for a quarter of the goal does best with its quickest batch.
        let largest = points.iter().rfind(fits).unwrap_or(&points[0]);
        let timeout_us = match goal_us {
            Some(goal_us) => (1.0 - HEADROOM) * goal_us - 2.0 * largest.median_us,
            None => largest.median_us,
        };
        Recommendation {
            batch_sizes: self.sizes_up_to(largest),
            timeout: Duration::from_secs_f64(timeout_us.max(0.0) / 1e6),
            largest: largest.rows,
            meets_goal: timeout_us >= 0.0,
        }
    }

    fn sizes_up_to(&self, largest: &Point) -> Vec<usize> {
        let mut sizes = vec![largest.rows];
        let mut next = largest;
        let smaller = |point: &&Point| (ROWS_MIN..largest.rows).contains(&point.rows);
        for point in self.points().iter().rev().filter(smaller) {
            if point.median_us <= FASTER * next.median_us {
                sizes.push(point.rows);
                next = point;
            }
        }
        sizes.reverse();
        sizes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Powers of two from 1 to 1,024, with the time that `us` says.
    fn measured(us: impl Fn(usize) -> f64) -> Measured {
        let points = (0..=10).map(|power| 1 << power).map(|rows| Point {
            rows,
            median_us: us(rows),
            min_us: us(rows),
            runs: 1,
        });
        Measured::from_points(points.collect()).unwrap()
    }

    #[test]
    fn batches_go_up_to_the_knee_and_the_goal_is_left_for_waiting() {
        // Half of the best throughput at 10 rows, 0.9 of it at 90.
        let measured = measured(|rows| 20.0 + 2.0 * rows as f64);
        let recommended = measured.recommend(Some(Duration::from_millis(10)));
        assert_eq!(recommended.batch_sizes, [8, 16, 32, 64, 128]);
        assert_eq!(recommended.largest, 128);
        assert_eq!(recommended.timeout, Duration::from_micros(9_500 - 2 * 276));
        assert!(recommended.meets_goal);
        let free = measured.recommend(None);
        assert_eq!((free.largest, free.timeout), (128, Duration::from_micros(276)));
    }

    #[test]
    fn a_tight_goal_makes_batches_smaller() {
        let measured = measured(|rows| 20.0 + 2.0 * rows as f64);
        let recommended = |us| measured.recommend(Some(Duration::from_micros(us)));
        // A quarter of 400 µs holds 40 rows.
        assert_eq!(recommended(400).largest, 32);
        assert_eq!(recommended(100).batch_sizes, [2]);
        // 22 µs are above a quarter of the goal, yet two of them fit.
        assert_eq!(recommended(60).largest, 1);
        assert_eq!(recommended(60).timeout, Duration::from_micros(13));
        let never = recommended(40);
        assert!(!never.meets_goal && never.timeout.is_zero() && never.batch_sizes == [1]);
    }

    #[test]
    fn sizes_that_are_no_faster_are_left_out() {
        // An NPU that takes as long for 8 rows as for 64.
        let measured = measured(|rows| if rows <= 64 { 1000.0 } else { rows as f64 * 15.0 });
        let recommended = measured.recommend(None);
        assert_eq!(recommended.batch_sizes, [64]);
    }

    proptest! {
        #[test]
        fn what_is_recommended_was_measured_and_meets_the_goal(
            t0_us in 0.1..1e5_f64, t1_us in 0.0..1e3_f64, goal_us in 1..1_000_000_u64,
        ) {
            let measured = measured(|rows| t0_us + t1_us * rows as f64);
            let goal = Duration::from_micros(goal_us);
            let recommended = measured.recommend(Some(goal));
            let point = |rows| measured.points().iter().find(|point| point.rows == rows);
            prop_assert_eq!(recommended.batch_sizes.last(), Some(&recommended.largest));
            prop_assert!(recommended.batch_sizes.is_sorted());
            prop_assert!(recommended.batch_sizes.iter().all(|&rows| point(rows).is_some()));
            let largest_us = point(recommended.largest).unwrap().median_us;
            if recommended.meets_goal {
                let spent_us = recommended.timeout.as_secs_f64() * 1e6 + 2.0 * largest_us;
                prop_assert!(spent_us <= 0.95 * goal_us as f64 + 1e-2);
            } else {
                prop_assert!(2.0 * largest_us > 0.95 * goal_us as f64 && recommended.largest == 1);
            }
        }
    }
}
