//! Runs a network in floats of 32 bits: what remains where no ranges are known.
//!
//! Nothing is folded, for tables of floats would be four times as large as tables of integers. Sums
//! are made in the order of the inputs, with one rounding for each product and sum where the
//! processor can, so that the last bits depend on the instruction set.

// Vectors and rows are counted: loops over arrays of them read better with their numbers.
#![allow(clippy::needless_range_loop)]

use crate::Answer;
use crate::aligned::Aligned;
use crate::channels::Channels;
use crate::error::Error;
use crate::plan::{self, Plan};
use crate::simd::{Isa, LANES_MAX, Simd, Work};
use crate::tabulated::{Lookup, Source, Tabulated};

/// Rows that walk through the layers together.
const TILE: usize = 32;

pub(crate) struct Network {
    context: usize,
    places: usize,
    codes: Table,
    /// Tables of the context, each with its column and the input at which it stands.
    parts: Vec<(usize, usize, Table)>,
    /// Where the codes begin in a row of inputs.
    codes_at: usize,
    inputs: Channels,
    layers: Vec<Layer>,
    scores: Option<(usize, Table)>,
    factors: Vec<f32>,
}

/// Memory for the rows of a tile: inputs, then what each layer made.
pub(crate) struct Scratch {
    activations: Vec<Aligned<f32>>,
    depths: [usize; TILE],
}

/// A function of one integer.
struct Table {
    lookup: Lookup,
    rows: Vec<f32>,
    width: usize,
}

struct Layer {
    inputs: usize,
    channels: Channels,
    is_convolution: bool,
    /// The lower bound of its outputs: 0 for ReLU.
    floor: f32,
    /// `[inputs][width]`
    weights: Aligned<f32>,
    bias: Aligned<f32>,
}

impl Table {
    fn new(table: &Tabulated) -> Result<Self, Error> {
        let (lookup, rows) = table.compact()?;
        Ok(Self { lookup, rows, width: table.width })
    }

    fn row(&self, number: f32) -> &[f32] {
        &self.rows[self.lookup.row(number) * self.width..][..self.width]
    }
}

impl Layer {
    fn new(layer: &plan::Layer, from: &Channels, places: usize, floor: f32) -> Self {
        let (is_convolution, count) = (layer.taps > 1, layer.outputs);
        let width = count.next_multiple_of(LANES_MAX);
        let places = if is_convolution { places } else { 0 };
        let inputs = from.padded(layer.weights.len() / count);
        let mut weights = Aligned::zeroed(inputs * width);
        for (row, columns) in layer.weights.chunks_exact(count).enumerate() {
            weights[from.padded(row) * width..][..count].copy_from_slice(columns);
        }
        let mut bias = Aligned::zeroed(width);
        bias[..count].copy_from_slice(&layer.bias);
        let channels = Channels { count, width, places, size: 1 };
        Self { inputs, channels, is_convolution, floor, weights, bias }
    }
}

impl Network {
    pub fn new(plan: &Plan) -> Result<Self, Error> {
        let column = |table: &Tabulated| match table.source {
            Source::Context(column) | Source::Channel(column) => column,
        };
        let part = |(table, at): &(Tabulated, usize)| Ok((column(table), *at, Table::new(table)?));
        let scores = plan.scores.as_ref().map(|table| Ok((column(table), Table::new(table)?)));
        let codes = Table::new(&plan.codes)?;
        let inputs = match plan.layers[0].taps {
            1 => {
                let count = plan.layers[0].weights.len() / plan.layers[0].outputs;
                Channels { count, width: count, places: 0, size: 1 }
            }
            _ => Channels { count: codes.width, width: codes.width, places: plan.places, size: 1 },
        };
        let (mut layers, mut from) = (vec![], inputs);
        for (i, layer) in plan.layers.iter().enumerate() {
            let floor = if i + 1 < plan.layers.len() { 0.0 } else { f32::MIN };
            let layer = Layer::new(layer, &from, plan.places, floor);
            from = layer.channels;
            layers.push(layer);
        }
        Ok(Self {
            context: plan.context,
            places: plan.places,
            codes,
            parts: plan.parts.iter().map(part).collect::<Result<_, Error>>()?,
            codes_at: plan.codes_at + inputs.start(),
            inputs,
            layers,
            scores: scores.transpose()?,
            factors: plan.inverse_temperatures.clone(),
        })
    }

    pub fn scratch(&self) -> Scratch {
        let channels = std::iter::once(&self.inputs).chain(self.layers.iter().map(|l| &l.channels));
        let activations = channels.map(|it| Aligned::zeroed(TILE * it.stride())).collect();
        Scratch { activations, depths: [0; TILE] }
    }

    /// As [`integer::Network::run`](crate::integer::Network::run).
    pub fn run(
        &self,
        isa: Isa,
        scratch: &mut Scratch,
        series: &[f32],
        context: &[f32],
        answers: &mut [Answer],
        probabilities: &mut [f32],
    ) {
        isa.run(Run { network: self, scratch, series, context, answers, probabilities });
    }
}

struct Run<'a> {
    network: &'a Network,
    scratch: &'a mut Scratch,
    series: &'a [f32],
    context: &'a [f32],
    answers: &'a mut [Answer],
    probabilities: &'a mut [f32],
}

impl Work for Run<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { network, scratch, mut series, mut context, answers, mut probabilities } = self;
        for answers in answers.chunks_mut(TILE) {
            for row in 0..answers.len() {
                let (these, context_of_these);
                (these, series) = series.split_at(network.places);
                (context_of_these, context) = context.split_at(network.context);
                network.decode(scratch, row, these, context_of_these);
            }
            network.layers(s, scratch, answers.len());
            for (row, answer) in answers.iter_mut().enumerate() {
                let probabilities_of_row;
                let len = probabilities.len().min(network.classes());
                (probabilities_of_row, probabilities) = probabilities.split_at_mut(len);
                *answer = network.softmax(scratch, row, probabilities_of_row);
            }
        }
    }
}

impl Network {
    fn classes(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.channels.count)
    }

    /// Writes a row's inputs of the first layer. The scores of the context go where the last layer
    /// adds to them.
    #[inline(always)]
    fn decode(&self, scratch: &mut Scratch, row: usize, series: &[f32], context: &[f32]) {
        let Some((inputs, layers)) = scratch.activations.split_first_mut() else { return };
        let inputs = &mut inputs[row * self.inputs.stride()..][..self.inputs.stride()];
        let codes = inputs[self.codes_at..].chunks_mut(self.codes.width);
        for (code, &element) in codes.zip(series) {
            code.copy_from_slice(self.codes.row(element));
        }
        for (column, at, table) in &self.parts {
            inputs[*at..][..table.width].copy_from_slice(table.row(context[*column]));
        }
        if let (Some((column, table)), Some(last)) = (&self.scores, layers.last_mut()) {
            let stride = last.len() / TILE;
            last[row * stride..][..table.width].copy_from_slice(table.row(context[*column]));
        }
        // As many as are not 0 without their fractions; NaN is none.
        let is_there = |x: &&f32| x.abs() >= 1.0;
        scratch.depths[row] = series.iter().filter(is_there).count();
    }

    #[inline(always)]
    fn layers<S: Simd>(&self, s: S, scratch: &mut Scratch, rows: usize) {
        let mut from = self.inputs;
        for (i, layer) in self.layers.iter().enumerate() {
            let (before, after) = scratch.activations.split_at_mut(i + 1);
            let (a, to, made) = (&before[i], &mut after[0], layer.channels);
            if layer.is_convolution {
                for row in 0..rows {
                    let a = &a[row * from.stride()..][..from.stride()];
                    let to = &mut to[row * made.stride()..][..made.stride()][made.width..];
                    multiply(s, layer, a, from.width, to, self.places, false);
                }
            } else {
                let adds = i + 1 == self.layers.len() && self.scores.is_some();
                multiply(s, layer, &a[from.start()..], from.stride(), to, rows, adds);
            }
            from = made;
        }
    }

    #[inline(always)]
    fn softmax(&self, scratch: &mut Scratch, row: usize, probabilities: &mut [f32]) -> Answer {
        let Some(scores) = scratch.activations.last_mut() else { return Answer::default() };
        let stride = scores.len() / TILE;
        let scores = &mut scores[row * stride..][..self.classes()];
        softmax(scores, self.factors[scratch.depths[row]], probabilities)
    }
}

/// Turns scores into exponentials, in place, and into the answer.
#[inline(always)]
pub(crate) fn softmax(scores: &mut [f32], factor: f32, probabilities: &mut [f32]) -> Answer {
    let (mut largest, mut class) = (f32::NEG_INFINITY, 0);
    for (i, &score) in scores.iter().enumerate() {
        (largest, class) = if score > largest { (score, i) } else { (largest, class) };
    }
    scores.iter_mut().for_each(|score| *score = exp((*score - largest) * factor));
    let sum: f32 = scores.iter().sum();
    for (probability, e) in probabilities.iter_mut().zip(&*scores) {
        *probability = e / sum;
    }
    Answer { class: class as u16, confidence: scores[class] / sum }
}

/// `to = max(a·weights + bias [+ to], floor)`, in tiles that stay in registers.
#[inline(always)]
fn multiply<S: Simd>(
    s: S,
    layer: &Layer,
    a: &[f32],
    stride: usize,
    to: &mut [f32],
    rows: usize,
    adds: bool,
) {
    let width = layer.channels.width;
    assert!(rows == 0 || (rows - 1) * stride + layer.inputs <= a.len());
    assert!(rows * width <= to.len());
    let (a, to) = (a.as_ptr(), to.as_mut_ptr());
    let mut tiles = Tiles { s, layer, a, stride, to, adds };
    // SAFETY: the rows have just been seen to have all inputs and room for all outputs, whose
    // number is padded to whole vectors.
    unsafe {
        let row = match S::REGISTERS {
            _ if rows.is_multiple_of(5) => tiles.run::<5, 2>(0, rows),
            32 => tiles.run::<8, 2>(0, rows),
            _ => 0,
        };
        let row = tiles.run::<4, 2>(row, rows);
        tiles.run::<1, 4>(row, rows);
    }
}

struct Tiles<'a, S> {
    s: S,
    layer: &'a Layer,
    a: *const f32,
    stride: usize,
    to: *mut f32,
    adds: bool,
}

impl<S: Simd> Tiles<'_, S> {
    /// Tiles of `R` rows and `V` vectors of columns, as many as fit from `row` on. Returns the
    /// first row that is left.
    #[inline(always)]
    unsafe fn run<const R: usize, const V: usize>(&mut self, row: usize, rows: usize) -> usize {
        let end = row + (rows - row) / R * R;
        let width = self.layer.channels.width;
        for row in (row..end).step_by(R) {
            let mut column = 0;
            // SAFETY: the caller's; columns end at the width.
            unsafe {
                while column + V * S::LANES <= width {
                    self.tile::<R, V>(row, column);
                    column += V * S::LANES;
                }
                while column < width {
                    self.tile::<R, 1>(row, column);
                    column += S::LANES;
                }
            }
        }
        end
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(&mut self, row: usize, column: usize) {
        let Self { s, layer, stride, .. } = *self;
        let width = layer.channels.width;
        let mut sums = [[s.splat_f(0.0); R]; V];
        // SAFETY: the caller has seen `R` rows with all inputs and `V` vectors of columns.
        unsafe {
            let to = self.to.add(row * width + column);
            let a = self.a.add(row * stride);
            for v in 0..V {
                let bias = s.load_f(layer.bias.as_ptr().add(column + v * S::LANES));
                for r in 0..R {
                    let more = s.load_f(to.add(r * width + v * S::LANES));
                    let sum = s.mul_add_f(more, s.splat_f(1.0), bias);
                    sums[v][r] = if self.adds { sum } else { bias };
                }
            }
            let mut weights = layer.weights.as_ptr().add(column);
            for input in 0..layer.inputs {
                let mut w = [s.splat_f(0.0); V];
                for v in 0..V {
                    w[v] = s.load_f(weights.add(v * S::LANES));
                }
                for r in 0..R {
                    let a = s.splat_f(*a.add(r * stride + input));
                    for v in 0..V {
                        sums[v][r] = s.mul_add_f(a, w[v], sums[v][r]);
                    }
                }
                weights = weights.add(width);
            }
            let floor = s.splat_f(layer.floor);
            for v in 0..V {
                for r in 0..R {
                    let to = to.add(r * width + v * S::LANES);
                    s.store_f(to, s.max_f(sums[v][r], floor));
                }
            }
        }
    }
}

/// e^x for x ≤ 0, to 2·10⁻⁷: 2 to the whole part of x/ln 2, and a polynomial of the rest (Cephes,
/// `expf`). A loop of it becomes vectors, which the library's does not.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x > -87.0 { x } else { -87.0 };
    // Adding and taking away 1.5·2²³ rounds to an integer.
    let whole = x * std::f32::consts::LOG2_E + 12_582_912.0 - 12_582_912.0;
    let rest = x - whole * 0.693_359_4 + whole * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * rest + c;
    }
    let power = f32::from_bits(((whole as i32 + 127) << 23).cast_unsigned());
    (p * rest * rest + rest + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_close() {
        for i in 0..870 {
            let x = i as f32 / -10.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 2e-7, "{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }
}
