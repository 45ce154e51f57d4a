//! Makes integers of a plan and the ranges of its channels. What they mean: [`crate::integers`].
//!
//! All arithmetic is IEEE double, but single for the products of codes and weights; integers are
//! rounded half to even. Scales are real numbers: an integer of scale s stands for itself times s.
//! They are not kept, for each layer's weights absorb the scale of its inputs.

use std::f64::consts::LOG2_E;

use crate::aligned::Aligned;
use crate::error::Error;
use crate::integers::{BYTE_MAX, First, Hidden, Integers, Kind, Output, WORD_MAX};
use crate::plan::{Layer, Plan};
use crate::ranges::Ranges;
use crate::simd::{Isa, Simd, Work};
use crate::tabulated::{Lookup, Source, Tabulated};

/// The largest weight of words; of bytes it is `BYTE_MAX`.
const WORD_WEIGHT_MAX: f64 = 2047.0;
/// Numbers in the tables of layer 0, at most: 32 MiB as words, 128 MiB while they are made.
const TABLE_MAX: usize = 1 << 24;
/// Sums of layer 0 are made to stay below this; rounding each part may add a little.
const SUM_MAX: f64 = 32_000.0;
/// The same of the other layers. Rounding and the bias take less than what 32 bits leave.
const PRODUCTS_MAX: f64 = (1 << 30) as f64;
/// The largest shift of a hidden layer, so that the rounding in its bias fits.
const SHIFT_MAX: i32 = 24;
/// Biases beyond this decide alone, whatever the inputs.
const BIAS_MAX: f64 = (1 << 29) as f64;
/// Scores stay within this, so that their differences fit and the padding's lie below.
pub(crate) const SCORE_MAX: i64 = 1 << 26;
/// Units of a score: 2⁻¹¹ bits.
const UNITS: f64 = 2048.0 * LOG2_E;

/// What activations stand for: a scale for each channel, and the largest one.
struct Scales {
    scales: Vec<f64>,
    top: i16,
}

pub(crate) fn compile(plan: &Plan, ranges: &Ranges) -> Result<Integers, Error> {
    let ranges = ranges.of(plan)?;
    let mut lookups = Lookups::default();
    let (elements, codes) = plan.codes.compact()?;
    let (first, mut scales) = match plan.layers[0].taps {
        1 => dense(plan, &codes, ranges[0], &mut lookups)?,
        _ => convolution(plan, &codes, ranges[0], top(plan, 0))?,
    };
    let mut hidden = vec![];
    for (i, (layer, range)) in plan.hidden().iter().zip(ranges).enumerate().skip(1) {
        let made;
        (made, scales) = self::hidden(layer, &scales, range, top(plan, i));
        hidden.push(made);
    }
    let output = output(plan, &scales, &mut lookups)?;
    let codes = codes.len() / plan.codes.width;
    let (places, context, lookups) = (plan.places, plan.context, lookups.0);
    Ok(Integers { places, elements, codes, context, lookups, first, hidden, output })
}

/// The largest activation that a layer makes: a convolution bytes, if it is not the last.
fn top(plan: &Plan, layer: usize) -> i16 {
    let is_last = layer + 2 == plan.layers.len();
    if plan.layers[layer].taps == 1 || is_last { WORD_MAX } else { BYTE_MAX }
}

/// Look-ups of numbers of the context; equal ones are kept once.
#[derive(Default)]
struct Lookups(Vec<(usize, Lookup)>);

impl Lookups {
    /// The index of a table's look-up, and its rows.
    fn add(&mut self, table: &Tabulated) -> Result<(usize, Vec<f32>), Error> {
        let Source::Context(column) = table.source else {
            return Err(Error::Malformed("a table of the context reads the series"));
        };
        let (lookup, rows) = table.compact()?;
        let found = (column, lookup);
        let at = self.0.iter().position(|known| *known == found);
        Ok((at.unwrap_or_else(|| (self.0.push(found), self.0.len() - 1).1), rows))
    }
}

/// A table of the context times its rows of layer 0's weights.
struct Part {
    lookup: Option<usize>,
    width: usize,
    products: Vec<f64>,
}

/// A dense layer 0: products of all codes at all places with the weights, and of the context.
fn dense(
    plan: &Plan,
    codes: &[f32],
    range: &[f32],
    lookups: &mut Lookups,
) -> Result<(First, Scales), Error> {
    let (layer, width) = (&plan.layers[0], plan.codes.width);
    let columns = layer.outputs;
    bounded(plan.places * codes.len() / width, columns)?;
    let fold = |place| Fold::new(codes, width, layer, plan.codes_at + place * width);
    let tables: Vec<Fold<'_>> = (0..plan.places).map(fold).collect();
    let mut parts = vec![];
    for (table, row) in &plan.parts {
        let (lookup, rows) = lookups.add(table)?;
        bounded(rows.len() / table.width, columns)?;
        let products = products(&rows, table.width, layer, *row);
        parts.push(Part { lookup: Some(lookup), width: table.width, products });
    }
    if parts.is_empty() {
        parts.push(Part { lookup: None, width: 0, products: vec![0.0; columns] });
    }
    // The bias goes with the part that is no single number, which alone may be large.
    if let Some(widest) = parts.iter_mut().max_by_key(|part| part.width) {
        for row in widest.products.chunks_exact_mut(columns) {
            row.iter_mut().zip(&layer.bias).for_each(|(x, &bias)| *x += f64::from(bias));
        }
    }

    let largest: Vec<Vec<f64>> = tables.iter().map(Fold::largest).collect();
    let of_parts: Vec<Vec<f64>> =
        parts.iter().map(|part| column_max(&part.products, columns)).collect();
    let scale = |c: usize| {
        let sum: f64 = largest.iter().chain(&of_parts).map(|max| max[c]).sum();
        (f64::from(range[c]) / f64::from(WORD_MAX)).max(sum / SUM_MAX)
    };
    let scales: Vec<f64> = (0..columns).map(scale).collect();
    let words = |part: &Part| divided(&part.products, &scales, |x| rounded(x) as i16);
    let context = parts.iter().map(|part| (part.lookup, words(part))).collect();
    let tables = integers(&tables, &scales);
    let first = First { width: columns, top: WORD_MAX, kind: Kind::Dense { tables, context } };
    Ok((first, Scales { scales, top: WORD_MAX }))
}

/// A convolution as layer 0: products of all codes with each tap.
fn convolution(
    plan: &Plan,
    codes: &[f32],
    range: &[f32],
    top: i16,
) -> Result<(First, Scales), Error> {
    let (layer, width) = (&plan.layers[0], plan.codes.width);
    let columns = layer.outputs;
    bounded(3 * codes.len() / width, 2 * columns)?;
    let taps = [0, 1, 2].map(|tap| Fold::new(codes, width, layer, tap * width));
    let largest = taps.each_ref().map(Fold::largest);
    let (mut scales, mut inner, mut multipliers) = (vec![], vec![], vec![]);
    for c in 0..columns {
        let sum: f64 =
            largest.iter().map(|max| max[c]).sum::<f64>() + f64::from(layer.bias[c]).abs();
        let least = sum / 32_700.0;
        // The multiplier is a power of two, and at most 2¹⁴.
        let scale = (f64::from(range[c]) / f64::from(top)).max(2.0 * least);
        let shift = shift(scale, least).min(15);
        scales.push(scale);
        inner.push(scale / f64::from(1 << shift));
        multipliers.push(1 << (15 - shift));
    }
    let taps = integers(&taps, &inner).to_vec();
    let bias: Vec<f64> = layer.bias.iter().map(|&bias| bias.into()).collect();
    let bias = divided(&bias, &inner, |x| rounded(x) as i16);
    let kind = Kind::Convolution { taps, bias, multipliers };
    Ok((First { width: columns, top, kind }, Scales { scales, top }))
}

/// A layer between activations.
fn hidden(layer: &Layer, inputs: &Scales, range: &[f32], top: i16) -> (Hidden, Scales) {
    let columns = layer.outputs;
    let scaled = scaled(layer, &inputs.scales);
    let (largest, sums) = (column_max(&scaled, columns), column_sums(&scaled, columns));
    let (mut scales, mut inner, mut shifts, mut bias) = (vec![], vec![], vec![], vec![]);
    for c in 0..columns {
        // The scale of the sums at which weights and sums fit.
        let least = (largest[c] / inputs.weight_max()).max(sums[c] * inputs.sum_share());
        let scale = (f64::from(range[c]) / f64::from(top)).max(least);
        let shift = shift(scale, least).clamp(0, SHIFT_MAX);
        let sum_scale = scale / f64::from(1 << shift);
        let half = if shift > 0 { 1 << (shift - 1) } else { 0 };
        let rounded = rounded(f64::from(layer.bias[c]) / sum_scale).clamp(-BIAS_MAX, BIAS_MAX);
        scales.push(scale);
        inner.push(sum_scale);
        shifts.push(shift);
        bias.push(rounded as i32 + half);
    }
    let weights = divided(&scaled, &inner, |x| rounded(x) as i16);
    let hidden = Hidden { taps: layer.taps, outputs: columns, weights, bias, shifts, top };
    (hidden, Scales { scales, top })
}

impl Scales {
    /// The largest weight by which these activations may be multiplied.
    fn weight_max(&self) -> f64 {
        if self.top == BYTE_MAX { BYTE_MAX.into() } else { WORD_WEIGHT_MAX }
    }

    /// What a unit of the weights' magnitudes takes of the largest sum.
    fn sum_share(&self) -> f64 {
        f64::from(self.top) / PRODUCTS_MAX
    }
}

fn output(plan: &Plan, inputs: &Scales, lookups: &mut Lookups) -> Result<Output, Error> {
    let layer = &plan.layers[plan.layers.len() - 1];
    let classes = layer.outputs;
    let factors = plan.inverse_temperatures.iter();
    let largest_factor = f64::from(factors.copied().fold(0.0, f32::max));
    let units = UNITS * largest_factor;
    let scaled = scaled(layer, &inputs.scales);
    let most = |columns: Vec<f64>| columns.into_iter().fold(0.0, f64::max) * units;
    let (largest, sum) = (most(column_max(&scaled, classes)), most(column_sums(&scaled, classes)));
    let too_large = || Error::Bounds("the network's scores are too large".into());
    let fits = |shift: &i32| {
        let factor = f64::from(1 << shift);
        largest * factor <= inputs.weight_max() && sum * factor * inputs.sum_share() <= 1.0
    };
    let shift = (1..=30).rev().find(fits).ok_or_else(too_large)?;
    let factor = units * f64::from(1 << shift);
    let weights = scaled.iter().map(|w| rounded(w * factor) as i16).collect();

    let (lookup, rows) = match &plan.scores {
        Some(table) => {
            let (lookup, rows) = lookups.add(table)?;
            (Some(lookup), rows)
        }
        None => (None, vec![0.0; classes]),
    };
    let biases = layer.bias.iter().cycle();
    let scores: Vec<f64> =
        rows.iter().zip(biases).map(|(&s, &b)| (f64::from(s) + f64::from(b)) * units).collect();
    let from_scores = scores.iter().fold(0.0, |max: f64, score| max.max(score.abs()));
    if sum * f64::from(inputs.top) + from_scores > SCORE_MAX as f64 {
        return Err(too_large());
    }
    let temperature =
        |&factor: &f32| rounded(f64::from(factor) / largest_factor * 32_768.0).min(32_767.0) as i16;
    Ok(Output {
        classes,
        weights,
        shift,
        lookup,
        scores: scores.into_iter().map(|score| rounded(score) as i32).collect(),
        temperatures: plan.inverse_temperatures.iter().map(temperature).collect(),
    })
}

/// Refuses tables that would take too much memory.
fn bounded(rows: usize, columns: usize) -> Result<(), Error> {
    match rows.checked_mul(columns) {
        Some(numbers) if numbers <= TABLE_MAX => Ok(()),
        _ => Err(Error::Bounds(format!(
            "the tables of the first layer would have {rows} rows of {columns} numbers"
        ))),
    }
}

/// Rows of `width` numbers times the layer's weights from row `from` on.
fn products(rows: &[f32], width: usize, layer: &Layer, from: usize) -> Vec<f64> {
    let columns = layer.outputs;
    let mut products = vec![0.0; rows.len() / width * columns];
    for (sums, row) in products.chunks_exact_mut(columns).zip(rows.chunks_exact(width)) {
        for (i, &x) in row.iter().enumerate() {
            let weights = layer.row(from + i);
            sums.iter_mut().zip(weights).for_each(|(sum, &w)| *sum += f64::from(x) * f64::from(w));
        }
    }
    products
}

/// Columns that are summed together, in registers.
const BLOCK: usize = 32;

/// Codes times some rows of the layer's weights, in f32 and in the order of the rows. This is what
/// takes long: 60 million products for the protocol network. They are made twice, for the largest
/// and for the integers, because memory for all of them would take longer.
struct Fold<'a> {
    codes: &'a [f32],
    width: usize,
    columns: usize,
    /// `[columns / BLOCK][width]`, padded with zeros.
    weights: Vec<[f32; BLOCK]>,
}

impl<'a> Fold<'a> {
    fn new(codes: &'a [f32], width: usize, layer: &Layer, from: usize) -> Self {
        let columns = layer.outputs;
        let mut weights = vec![];
        for column in (0..columns).step_by(BLOCK) {
            for i in from..from + width {
                let row = &layer.row(i)[column..columns.min(column + BLOCK)];
                weights.push(std::array::from_fn(|c| row.get(c).copied().unwrap_or(0.0)));
            }
        }
        Self { codes, width, columns, weights }
    }

    /// The largest magnitude of each column.
    fn largest(&self) -> Vec<f64> {
        let mut largest = vec![0.0; self.columns.next_multiple_of(BLOCK)];
        Isa::available()[0].run(Largest { fold: self, largest: &mut largest });
        largest[..self.columns].iter().map(|&x| x.into()).collect()
    }

    /// Calls back with each row of a block of columns.
    #[inline(always)]
    fn each(&self, block: usize, mut to: impl FnMut(usize, [f32; BLOCK])) {
        let weights = &self.weights[block * self.width..][..self.width];
        for (row, code) in self.codes.chunks_exact(self.width).enumerate() {
            let mut sums = [0.0; BLOCK];
            for (&x, weights) in code.iter().zip(weights) {
                sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * w);
            }
            to(row, sums);
        }
    }
}

struct Largest<'a> {
    fold: &'a Fold<'a>,
    largest: &'a mut [f32],
}

impl Work for Largest<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (block, largest) in self.largest.chunks_exact_mut(BLOCK).enumerate() {
            let mut most = [0.0; BLOCK];
            self.fold.each(block, |_, sums| {
                most.iter_mut().zip(sums).for_each(|(most, x)| *most = f32::max(*most, x.abs()));
            });
            largest.copy_from_slice(&most);
        }
    }
}

/// All tables one after the other, each column divided by its scale.
fn integers(tables: &[Fold<'_>], scales: &[f64]) -> Aligned<i16> {
    let factors: Vec<f32> = scales.iter().map(|scale| (1.0 / scale) as f32).collect();
    let rows = |table: &Fold<'_>| table.codes.len() / table.width;
    let len = tables.iter().map(|table| rows(table) * table.columns).sum();
    let mut integers = Aligned::zeroed(len);
    let mut rest = &mut integers[..];
    for table in tables {
        let (to, after) = rest.split_at_mut(rows(table) * table.columns);
        Isa::available()[0].run(Write { fold: table, factors: &factors, to });
        rest = after;
    }
    integers
}

struct Write<'a> {
    fold: &'a Fold<'a>,
    factors: &'a [f32],
    to: &'a mut [i16],
}

impl Work for Write<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // Added to a number, it leaves the nearest integer in the lowest bits, of two the even one:
        // its unit in the last place is 1.
        const ROUNDING: f32 = 1.5 * (1 << 23) as f32;
        let Self { fold, factors, to } = self;
        for (block, factors) in factors.chunks(BLOCK).enumerate() {
            let mut scales = [0.0; BLOCK];
            scales[..factors.len()].copy_from_slice(factors);
            fold.each(block, |row, sums| {
                let to = &mut to[row * fold.columns + block * BLOCK..][..factors.len()];
                let mut words = [0; BLOCK];
                for c in 0..BLOCK {
                    words[c] = (sums[c] * scales[c] + ROUNDING).to_bits() as i16;
                }
                to.copy_from_slice(&words[..factors.len()]);
            });
        }
    }
}

/// The layer's weights times the scales of its inputs.
fn scaled(layer: &Layer, inputs: &[f64]) -> Vec<f64> {
    let rows = layer.weights.chunks_exact(layer.outputs);
    let scales = inputs.iter().cycle();
    rows.zip(scales)
        .flat_map(|(row, scale)| row.iter().map(move |&w| f64::from(w) * scale))
        .collect()
}

/// The largest magnitude of each column.
fn column_max(rows: &[f64], columns: usize) -> Vec<f64> {
    let mut max = vec![0.0; columns];
    for row in rows.chunks_exact(columns) {
        max.iter_mut().zip(row).for_each(|(max, x)| *max = f64::max(*max, x.abs()));
    }
    max
}

/// The sum of magnitudes of each column.
fn column_sums(rows: &[f64], columns: usize) -> Vec<f64> {
    let mut sums = vec![0.0; columns];
    for row in rows.chunks_exact(columns) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.abs());
    }
    sums
}

/// Each column divided by its scale, as an integer.
fn divided<T>(rows: &[f64], scales: &[f64], integer: impl Fn(f64) -> T) -> Vec<T> {
    let mut divided = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(scales.len()) {
        divided.extend(row.iter().zip(scales).map(|(x, scale)| integer(x / scale)));
    }
    divided
}

/// How often `scale` can be halved without falling below `least`; `least` may be 0, where a shift
/// has nothing to keep.
fn shift(scale: f64, least: f64) -> i32 {
    match least > 0.0 {
        true => exponent(scale / least),
        false => 0,
    }
}

/// ⌊log₂ x⌋ of a positive number, exact where `log2` may not be.
fn exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// To the nearest integer, of two the even one.
fn rounded(x: f64) -> f64 {
    x.round_ties_even()
}
