//! RQ-RMI: nets in three stages that predict a point's bucket, and bounds of their error.
//!
//! The root net chooses a net of the second stage, which chooses one of the third, which predicts a
//! bucket. For each net of the last stage, the maximum error over all points of all buckets is
//! proved ([`Net::range`]); a look-up searches only there.

use super::fit::{SAMPLES_MAX, fit};
use super::iset::Bucket;
use super::net::{Knot, Net, x_of};
use super::point::Point;
use crate::classifier::best::BATCH;
use crate::classifier::vectors::Vectors;

/// Nets of the second and third stage by number of filters (OVS paper, Table 1: 5, 21, 133, 265
/// nets); 0: no third stage.
fn widths(filters: usize) -> (usize, usize) {
    match filters {
        0..1_000 => (4, 0),
        1_000..10_000 => (4, 16),
        10_000..100_000 => (4, 128),
        _ => (8, 256),
    }
}

/// The buckets that may contain a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub start: u32,
    pub count: u32,
}

/// A net of the last stage with its proved bounds.
#[derive(Clone, Debug)]
struct Leaf<P> {
    net: Net<P>,
    /// Bucket of the net's 0.
    origin: u32,
    last: u32,
    /// How far the bucket may be before the predicted one.
    before: u32,
    /// Buckets that the search reads.
    count: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Model<P> {
    root: Net<P>,
    /// Index of the second stage's last net.
    first_last: u32,
    middle: Vec<Net<P>>,
    leaves: Vec<Leaf<P>>,
}

/// Numbers of the buckets whose points may reach a net.
#[derive(Clone, Copy, Debug)]
struct Range {
    from: u32,
    to: u32,
}

impl Range {
    const EMPTY: Range = Range { from: u32::MAX, to: 0 };

    fn include(&mut self, bucket: u32) {
        self.from = self.from.min(bucket);
        self.to = self.to.max(bucket + 1);
    }

    fn slice<P>(self, buckets: &[Bucket<P>]) -> &[Bucket<P>] {
        buckets.get(self.from as usize..self.to as usize).unwrap_or(&[])
    }
}

impl<P: Point> Model<P> {
    /// A model of these buckets, which are ordered and disjoint.
    pub fn train(buckets: &[Bucket<P>], filters: usize) -> Model<P> {
        let (second, third) = widths(filters);
        let all = Range { from: 0, to: buckets.len() as u32 };
        let per_bucket = |nets: usize| nets as f64 / buckets.len().max(1) as f64;
        let (root, by_net) = stage(buckets, &[all], second, per_bucket(second));
        let (middle, by_leaf) = match third {
            0 => (Vec::new(), by_net),
            third => stage(buckets, &by_net, third, per_bucket(third)),
        };
        Model {
            first_last: second as u32 - 1,
            root: root.into_iter().next().unwrap_or_else(Net::zero),
            middle,
            leaves: by_leaf.iter().map(|&range| leaf(buckets, range)).collect(),
        }
    }

    /// For each of up to [`BATCH`] points, the buckets that may contain it. Stage by stage, so that
    /// the processor works on several points at a time.
    #[inline(always)]
    pub fn windows<V: Vectors>(&self, points: &[P], windows: &mut [Window]) {
        let mut nets = [0_u32; BATCH];
        for (point, net) in points.iter().zip(&mut nets) {
            *net = self.root.place::<V>(*point, self.first_last);
        }
        if !self.middle.is_empty() {
            let last = self.leaves.len() as u32 - 1;
            for (point, net) in points.iter().zip(&mut nets) {
                *net = self.middle[*net as usize].place::<V>(*point, last);
            }
        }
        for (point, (net, window)) in points.iter().zip(nets.iter().zip(windows)) {
            *window = self.leaves[*net as usize].window::<V>(*point);
        }
    }

    pub fn nets(&self) -> usize {
        1 + self.middle.len() + self.leaves.len()
    }

    /// Maximum buckets that a search reads.
    pub fn longest_search(&self) -> u32 {
        self.leaves.iter().map(|leaf| leaf.count).max().unwrap_or(0)
    }

    pub fn bytes(&self) -> usize {
        (1 + self.middle.len()) * size_of::<Net<P>>() + self.leaves.len() * size_of::<Leaf<P>>()
    }
}

impl<P: Point> Leaf<P> {
    #[inline(always)]
    fn window<V: Vectors>(&self, point: P) -> Window {
        let said = self.origin + self.net.place::<V>(point, self.last - self.origin);
        Window { start: said.saturating_sub(self.before), count: self.count }
    }
}

/// Clamps the bounds of a net's answers to places from 0 to `last`.
fn places(bounds: (f64, f64), last: u32) -> (u32, u32) {
    let place = |said: f64| said.clamp(0.0, f64::from(last)) as u32;
    (place(bounds.0), place(bounds.1))
}

/// Trains a stage except the last: a net per range, and the ranges of the next stage's nets.
fn stage<P: Point>(
    buckets: &[Bucket<P>],
    ranges: &[Range],
    next: usize,
    per_bucket: f64,
) -> (Vec<Net<P>>, Vec<Range>) {
    let mut by_next = vec![Range::EMPTY; next];
    let mut nets = Vec::with_capacity(ranges.len());
    for &range in ranges {
        let net = fitted(buckets, range, |bucket| (bucket + 0.5) * per_bucket);
        let own = range.slice(buckets);
        let rounding = own.last().map_or(0.0, |last| net.rounding(last.last));
        for (bucket, at) in own.iter().zip(range.from..) {
            let bounds = net.range(bucket.first, bucket.last, rounding);
            let (least, most) = places(bounds, next as u32 - 1);
            for range in &mut by_next[least as usize..=most as usize] {
                range.include(at);
            }
        }
        nets.push(net);
    }
    (nets, by_next)
}

/// Trains a net of the last stage.
fn leaf<P: Point>(buckets: &[Bucket<P>], range: Range) -> Leaf<P> {
    let own = range.slice(buckets);
    let origin = if own.is_empty() { 0 } else { range.from };
    let last = range.to.saturating_sub(1);
    let net = fitted(buckets, range, |bucket| bucket - f64::from(origin) + 0.5);
    let rounding = own.last().map_or(0.0, |last| net.rounding(last.last));
    let (mut before, mut after) = (0, 0);
    for (bucket, at) in own.iter().zip(range.from..) {
        let bounds = net.range(bucket.first, bucket.last, rounding);
        let (least, most) = places(bounds, last - origin);
        before = before.max((most + origin).saturating_sub(at));
        after = after.max(at.saturating_sub(least + origin));
    }
    Leaf { net, origin, last, before, count: before + after + 1 }
}

/// A net that maps the buckets of a range to `target` of their numbers.
fn fitted<P: Point>(buckets: &[Bucket<P>], range: Range, target: impl Fn(f64) -> f64) -> Net<P> {
    let own = range.slice(buckets);
    let (Some(first), Some(last)) = (own.first(), own.last()) else { return Net::zero() };
    let (base, end) = (first.first, last.last);
    let knot = |at: usize| {
        let Bucket { first, last, .. } = own[at];
        let x = x_of(first, base, end).midpoint(x_of(last, base, end));
        Knot { x, y: target((range.from as usize + at) as f64) }
    };
    let samples = own.len().min(SAMPLES_MAX);
    let points: Vec<Knot> = match samples {
        1 => vec![knot(0)],
        samples => (0..samples).map(|i| knot(i * (own.len() - 1) / (samples - 1))).collect(),
    };
    Net::through(&fit(&points), base, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::vectors::Plain;

    /// Buckets with ranges and gaps of all sizes.
    fn buckets(seed: u64, count: usize, clustered: bool) -> Vec<Bucket<u64>> {
        let mut state = seed;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let mut firsts: Vec<u64> = (0..2 * count)
            .map(|_| match clustered && next() % 4 != 0 {
                true => 0xc0a8_0000_0000_0000 | u64::from(next() & 0xf_ffff),
                false => u64::from(next()) << 32 | u64::from(next()),
            })
            .collect();
        firsts.sort_unstable();
        firsts.dedup();
        let pairs = firsts.chunks_exact(2);
        pairs.map(|pair| Bucket { first: pair[0], last: pair[1] - 1, from: 0, to: 0 }).collect()
    }

    #[test]
    fn every_end_and_inside_of_a_bucket_is_in_its_window() {
        for (seed, count) in [(1, 1), (2, 2), (3, 50), (4, 3_000), (5, 20_000), (6, 120_000)] {
            for clustered in [false, true] {
                let buckets = buckets(seed, count, clustered);
                let model = Model::train(&buckets, 8 * buckets.len());
                for (number, bucket) in (0..).zip(&buckets) {
                    let inside = bucket.first.midpoint(bucket.last);
                    for point in [bucket.first, bucket.first + 1, inside, bucket.last] {
                        let mut windows = [Window { start: 0, count: 0 }; BATCH];
                        model.windows::<Plain>(&[point.min(bucket.last)], &mut windows);
                        let Window { start, count } = windows[0];
                        assert!((start..start + count).contains(&number), "{seed} {point}");
                    }
                }
            }
        }
    }

    #[test]
    fn searches_are_short() {
        let buckets = buckets(7, 60_000, false);
        assert!(Model::train(&buckets, 8 * buckets.len()).longest_search() < 200);
    }
}
