//! Runs decision trees.
//!
//! Floats are compared as unsigned integers in the same order, so that NaN, −0 and infinities need
//! no care. Eight rows walk through a tree at a time, for a step waits for memory, and without a
//! branch: a leaf leads to itself, until all have arrived. The rows of a tile take the same tree
//! one after the other, so that it stays in the first-level cache.
//!
//! Sums are of integers, and the softmax has a fixed order of additions: all machines give the same
//! bits. Vectors do not help: with the gathers of AVX-512 a row took twice as long.

use crate::Answer;
use crate::aligned::Aligned;
use crate::error::Error;
use crate::plan::Forest;
use layout::{Layout, Node};

pub(crate) mod layout;

/// Rows that take a tree one after the other.
const TILE: usize = 32;
/// Rows that walk together.
const LANES: usize = 8;
/// Classes are padded to whole vectors.
const PAD: usize = 32;
/// Steps between two looks whether all rows have arrived.
const STEPS: usize = 2;
/// Scores this far below the largest would vanish in floats of 32 bits.
const SCORE_RANGE: f64 = 80.0;
/// Sums of steps have 16 bits.
const SUM_MAX: usize = 1 << 16;
/// Numbers in the table of exponentials, at most.
const TABLE_MAX: usize = 1 << 22;

pub(crate) struct Trees {
    channels: usize,
    places: usize,
    context: usize,
    classes: usize,
    /// See [`layout`].
    nodes: Aligned<u64>,
    roots: Vec<u32>,
    /// What leaves add: `[vectors][width]`.
    leaves: Aligned<u8>,
    width: usize,
    /// For each depth where its exponentials begin.
    exponentials_at: Vec<usize>,
    /// `e^(factor·score)`: `[factors][steps]`
    exponentials: Vec<f32>,
}

pub(crate) struct Scratch {
    /// `[TILE][features + 1]`; the last is 0.
    keys: Vec<u32>,
    /// `[TILE][trees]`: the leaves' vectors.
    leaves: Vec<u32>,
    depths: [usize; TILE],
    sums: Vec<u16>,
    exponentials: Vec<f32>,
}

impl Trees {
    pub fn new(forest: &Forest) -> Result<Self, Error> {
        let width = forest.classes.next_multiple_of(PAD);
        let features = forest.channels * forest.places + forest.context;
        let Layout { nodes, roots, leaves } = Layout::new(&forest.trees, features, width)?;
        let (exponentials_at, exponentials) = exponentials(forest)?;
        Ok(Self {
            channels: forest.channels,
            places: forest.places,
            context: forest.context,
            classes: forest.classes,
            nodes: nodes[..].into(),
            roots,
            leaves: leaves[..].into(),
            width,
            exponentials_at,
            exponentials,
        })
    }

    fn features(&self) -> usize {
        self.channels * self.places + self.context
    }

    pub fn scratch(&self) -> Scratch {
        Scratch {
            keys: vec![0; TILE * (self.features() + 1)],
            leaves: vec![0; TILE * self.roots.len()],
            depths: [0; TILE],
            sums: vec![0; self.width],
            exponentials: vec![0.0; self.width],
        }
    }

    /// The answers of as many rows as there are answers, and, unless that is empty, the
    /// probabilities of their classes.
    pub fn run(
        &self,
        scratch: &mut Scratch,
        series: &[f32],
        context: &[f32],
        answers: &mut [Answer],
        probabilities: &mut [f32],
    ) {
        let numbers = self.channels * self.places;
        for (batch, answers) in answers.chunks_mut(TILE).enumerate() {
            let first = batch * TILE;
            for row in 0..answers.len() {
                let series = &series[(first + row) * numbers..][..numbers];
                let context = &context[(first + row) * self.context..][..self.context];
                self.keys(scratch, row, series, context);
            }
            let eights = answers.len() / LANES * LANES;
            let fours = answers.len() / 4 * 4;
            for tree in 0..self.roots.len() {
                (0..eights).step_by(LANES).for_each(|row| self.walk::<LANES>(scratch, row, tree));
                (eights..fours).step_by(4).for_each(|row| self.walk::<4>(scratch, row, tree));
            }
            (fours..answers.len()).for_each(|row| self.walk_alone(scratch, row));
            for (row, answer) in answers.iter_mut().enumerate() {
                let (class, total) = self.softmax(scratch, row);
                let confidence = scratch.exponentials[class] / total;
                *answer = Answer { class: class as u16, confidence };
                if !probabilities.is_empty() {
                    let at = (first + row) * self.classes;
                    let out = &mut probabilities[at..][..self.classes];
                    for (probability, e) in out.iter_mut().zip(&scratch.exponentials) {
                        *probability = e / total;
                    }
                }
            }
        }
    }
}

/// The exponential of each sum of steps, for each factor, so that a softmax is one look-up for each
/// class; and for each depth where its factor's begin.
pub(crate) fn exponentials(forest: &Forest) -> Result<(Vec<usize>, Vec<f32>), Error> {
    let steps = forest.steps_max() + 1;
    let scores = &forest.scores[..steps];
    let largest = f64::from(scores.iter().copied().fold(f32::MIN, f32::max));
    let mut factors: Vec<f32> = vec![];
    let mut at = vec![];
    for &factor in &forest.inverse_temperatures {
        let known = factors.iter().position(|known| *known == factor);
        at.push(known.unwrap_or(factors.len()) * steps);
        if known.is_none() {
            factors.push(factor);
        }
    }
    if steps > SUM_MAX || steps * factors.len() > TABLE_MAX {
        return Err(Error::Bounds("the table of the trees' scores would be too large".into()));
    }
    let mut table = vec![];
    for &factor in &factors {
        for &score in scores {
            let exponent = f64::from(factor) * (f64::from(score) - largest);
            if exponent.is_nan() || exponent < -SCORE_RANGE {
                return Err(Error::Bounds("the trees' scores lie too far apart".into()));
            }
            table.push(exp(exponent) as f32);
        }
    }
    Ok((at, table))
}

/// e^x for x from −80 to 0, by additions and multiplications only, so that all machines agree to
/// the bit: a library's may differ in the last one.
fn exp(x: f64) -> f64 {
    use std::f64::consts::LN_2;
    let whole = (x / LN_2).round();
    let rest = x - whole * LN_2;
    // Below 0.35, the 16th term of the series is less than the last bit.
    let series = (1..=16).rev().fold(1.0, |sum, i| 1.0 + sum * rest / f64::from(i));
    series * f64::from_bits(((1023 + whole as i64) as u64) << 52)
}

/// An unsigned integer in the order of the floats: −0 is 0, and NaN is above all.
#[inline(always)]
fn key(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    let negative = (bits.cast_signed() >> 31).cast_unsigned();
    if x.is_nan() { u32::MAX } else { bits ^ (negative | 1 << 31) }
}

impl Trees {
    fn keys(&self, scratch: &mut Scratch, row: usize, series: &[f32], context: &[f32]) {
        let keys = &mut scratch.keys[row * (self.features() + 1)..][..self.features()];
        let (of_series, of_context) = keys.split_at_mut(series.len());
        of_series.iter_mut().zip(series).for_each(|(to, &x)| *to = key(x));
        of_context.iter_mut().zip(context).for_each(|(to, &x)| *to = key(x));
        let is_there = |x: &f32| usize::from(x.abs() >= 1.0);
        scratch.depths[row] = series[..self.places].iter().map(is_there).sum();
    }

    /// `W` rows walk through a tree.
    #[inline(always)]
    fn walk<const W: usize>(&self, scratch: &mut Scratch, row: usize, tree: usize) {
        let (features, trees) = (self.features() + 1, self.roots.len());
        let keys = &scratch.keys[row * features..][..W * features];
        let mut at = [self.roots[tree]; W];
        let mut are_leaves = false;
        while !are_leaves {
            for _ in 0..STEPS {
                are_leaves = true;
                for (lane, at) in at.iter_mut().enumerate() {
                    // SAFETY: `Layout` has checked that each node's successors are nodes and its
                    // feature one of the keys.
                    unsafe {
                        let node = Node(*self.nodes.get_unchecked(*at as usize));
                        *at = node.next(*keys.get_unchecked(lane * features + node.feature()));
                        are_leaves &= node.is_leaf();
                    }
                }
            }
        }
        for (lane, &at) in at.iter().enumerate() {
            scratch.leaves[(row + lane) * trees + tree] = Node(self.nodes[at as usize]).low();
        }
    }

    /// One row: four trees at a time.
    fn walk_alone(&self, scratch: &mut Scratch, row: usize) {
        let (features, trees) = (self.features() + 1, self.roots.len());
        let keys = &scratch.keys[row * features..][..features];
        let found = &mut scratch.leaves[row * trees..][..trees];
        for (roots, found) in self.roots.chunks(4).zip(found.chunks_mut(4)) {
            let mut at = [roots[0]; 4];
            at[..roots.len()].copy_from_slice(roots);
            let mut are_leaves = false;
            while !are_leaves {
                are_leaves = true;
                for at in &mut at {
                    // SAFETY: as in `walk`.
                    unsafe {
                        let node = Node(*self.nodes.get_unchecked(*at as usize));
                        *at = node.next(*keys.get_unchecked(node.feature()));
                        are_leaves &= node.is_leaf();
                    }
                }
            }
            for (found, at) in found.iter_mut().zip(at) {
                *found = Node(self.nodes[at as usize]).low();
            }
        }
    }

    /// Adds the leaves' steps, and looks up the exponentials, which it leaves in the scratch.
    /// Returns the first of the largest, and the sum.
    fn softmax(&self, scratch: &mut Scratch, row: usize) -> (usize, f32) {
        let leaves = &scratch.leaves[row * self.roots.len()..][..self.roots.len()];
        let sums = &mut scratch.sums[..self.width];
        sums.fill(0);
        for &leaf in leaves {
            let steps = &self.leaves[leaf as usize * self.width..][..self.width];
            sums.iter_mut().zip(steps).for_each(|(sum, &steps)| *sum += u16::from(steps));
        }
        let table = &self.exponentials[self.exponentials_at[scratch.depths[row]]..];
        let (mut largest, mut class, mut totals) = (-1.0, 0, [0.0; 4]);
        let exponentials = scratch.exponentials[..self.classes].iter_mut();
        for (i, (e, &sum)) in exponentials.zip(&*sums).enumerate() {
            *e = table[usize::from(sum)];
            totals[i % 4] += *e;
            (largest, class) = if *e > largest { (*e, i) } else { (largest, class) };
        }
        (class, (totals[0] + totals[2]) + (totals[1] + totals[3]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_the_last_bits() {
        for i in 0..=8000 {
            let x = f64::from(-i) / 100.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "{x}");
        }
    }
}
