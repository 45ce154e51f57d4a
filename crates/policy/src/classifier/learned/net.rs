//! A net of eight hidden neurons, as in RQ-RMI (A Computational Approach to Packet Classification,
//! §3.3), and bounds of its answers.

use super::point::Point;
use crate::classifier::vectors::{Vectors, whole};

pub(super) const NEURONS: usize = 8;

/// y(point) = Σ w2·max(0, w1·x + b1) + b2 with x = (point − base) · scale, in single precision.
///
/// A net is piecewise linear with a bend at each neuron: as good as eight lines. `base` is
/// subtracted as an integer, so that close points far from 0 keep all bits.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Net<P> {
    w1: [f32; NEURONS],
    b1: [f32; NEURONS],
    w2: [f32; NEURONS],
    b2: f32,
    scale: f32,
    base: P,
}

/// A point on a net's curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Knot {
    pub x: f64,
    pub y: f64,
}

impl<P: Point> Net<P> {
    /// 0 everywhere.
    pub fn zero() -> Net<P> {
        Net {
            w1: [0.0; NEURONS],
            b1: [0.0; NEURONS],
            w2: [0.0; NEURONS],
            b2: 0.0,
            scale: 0.0,
            base: P::default(),
        }
    }

    /// Lines between at most [`NEURONS`] + 1 knots by ascending x, 0 at `base` to 1 at `last`.
    pub fn through(knots: &[Knot], base: P, last: P) -> Net<P> {
        let mut net = Net { base, scale: scale(base, last), ..Net::zero() };
        let Some(first) = knots.first() else { return net };
        net.b2 = first.y as f32;
        let mut slope_before = 0.0;
        for (neuron, pair) in knots.windows(2).take(NEURONS).enumerate() {
            let slope = (pair[1].y - pair[0].y) / (pair[1].x - pair[0].x);
            net.w1[neuron] = 1.0;
            net.b1[neuron] = -pair[0].x as f32;
            net.w2[neuron] = (slope - slope_before) as f32;
            slope_before = slope;
        }
        net
    }

    /// The net's answer for a point. Without fused multiply-add, so it is the same on every
    /// machine.
    #[inline(always)]
    pub fn at<V: Vectors>(&self, point: P) -> f32 {
        let x = point.offset(self.base) * self.scale;
        V::weigh(&self.w1, &self.b1, &self.w2, self.b2, x)
    }

    /// The answer rounded down and clamped to 0..=`last`, which is below 2^24.
    #[inline(always)]
    pub fn place<V: Vectors>(&self, point: P, last: u32) -> u32 {
        whole(self.at::<V>(point), last)
    }

    /// Bounds of [`Net::at`] over all points from `first` to `last`: the exact function is
    /// piecewise linear, so its extremes are at the ends or a bend, and single precision adds at
    /// most [`Net::rounding`].
    pub fn range(&self, first: P, last: P, rounding: f64) -> (f64, f64) {
        let (from, to) = (self.exact_x(first), self.exact_x(last));
        let mut range = (f64::INFINITY, f64::NEG_INFINITY);
        let mut include = |x: f64| {
            let y = self.exact(x);
            range = (range.0.min(y), range.1.max(y));
        };
        include(from);
        include(to);
        if first < last {
            for neuron in 0..NEURONS {
                let bend = -f64::from(self.b1[neuron]) / f64::from(self.w1[neuron]);
                if from < bend && bend < to {
                    include(bend);
                }
            }
        }
        (range.0 - rounding, range.1 + rounding)
    }

    /// Maximum difference of [`Net::at`] and the exact function for points up to `last`.
    ///
    /// A sum of products through n roundings is off by at most n·u / (1 − n·u) times the sum of the
    /// absolute terms (Higham, Accuracy and Stability of Numerical Algorithms, §3.1), u = 2^-24. A
    /// term passes at most 2 roundings of x, 2 of the neuron, 1 of the product, 3 of the tree and 1
    /// of b2; 16 also covers the bounds' own double precision.
    pub fn rounding(&self, last: P) -> f64 {
        let x = self.exact_x(last).abs();
        let term = |neuron: usize| {
            let inner = (f64::from(self.w1[neuron]) * x).abs() + f64::from(self.b1[neuron]).abs();
            inner * f64::from(self.w2[neuron]).abs()
        };
        let terms: f64 = (0..NEURONS).map(term).sum();
        16.0 * (terms + f64::from(self.b2).abs()) * 2.0_f64.powi(-24)
    }

    fn exact_x(&self, point: P) -> f64 {
        point.offset_f64(self.base) * f64::from(self.scale)
    }

    fn exact(&self, x: f64) -> f64 {
        let term = |neuron: usize| {
            let value = f64::from(self.w1[neuron]) * x + f64::from(self.b1[neuron]);
            value.max(0.0) * f64::from(self.w2[neuron])
        };
        (0..NEURONS).map(term).sum::<f64>() + f64::from(self.b2)
    }
}

/// The factor that maps the distance of `last` to 1.
fn scale<P: Point>(base: P, last: P) -> f32 {
    let distance = last.offset_f64(base);
    if distance > 0.0 { (1.0 / distance) as f32 } else { 0.0 }
}

/// Maps a point from `base`..`last` to 0..1.
pub(super) fn x_of<P: Point>(point: P, base: P, last: P) -> f64 {
    let distance = last.offset_f64(base);
    if distance > 0.0 { point.offset_f64(base) / distance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::vectors::Plain;
    use proptest::prelude::*;

    #[test]
    fn a_net_goes_through_its_knots() {
        let knots =
            [(0.0, 0.0), (0.25, 10.0), (0.5, 11.0), (1.0, 30.0)].map(|(x, y)| Knot { x, y });
        let net = Net::through(&knots, 1000_u64, 2000);
        for (point, y) in
            [(1000, 0.0), (1250, 10.0), (1500, 11.0), (2000, 30.0), (1500, 11.0), (0, 0.0)]
        {
            assert!(
                (net.at::<Plain>(point) - y).abs() < 1e-3,
                "{point}: {}",
                net.at::<Plain>(point)
            );
        }
    }

    proptest! {
        #[test]
        fn no_point_of_a_range_is_outside_its_bounds(
            ys in proptest::collection::vec(0.0..1000.0_f64, 2..9),
            gaps in proptest::collection::vec(0.001..1.0_f64, 9),
            base in any::<u64>(),
            span in 1..u64::MAX,
            ends in any::<(u64, u64)>(),
            inside in proptest::collection::vec(any::<u64>(), 200),
        ) {
            let last = base.saturating_add(span);
            let total: f64 = gaps[..ys.len() - 1].iter().sum();
            let mut x = 0.0;
            let mut knots = Vec::new();
            for (y, gap) in ys.iter().zip(&gaps) {
                knots.push(Knot { x, y: *y });
                x += gap / total;
            }
            let net = Net::through(&knots, base, last);
            let within = |value: u64| base + value % (last - base).max(1);
            let (one, other) = (within(ends.0), within(ends.1));
            let (first, to) = (one.min(other), one.max(other));
            let (low, high) = net.range(first, to, net.rounding(last));
            for value in inside {
                let point = first + value % (to - first).max(1);
                let y = f64::from(net.at::<Plain>(point));
                prop_assert!((low..=high).contains(&y), "{point}: {y} not in {low}..={high}");
            }
        }
    }
}
