//! Runs a network that ONNX's tools have quantised, as ONNX Runtime computes it: bytes between
//! layers, each layer's sums times a float, rounded half to even. Only the softmax may differ, in
//! the last bits.

use crate::Answer;
use crate::aligned::Aligned;
use crate::channels::Channels;
use crate::error::Error;
use crate::float::softmax;
use crate::integers::{BYTE_MAX, Hidden};
use crate::layer::{Finish, Layer, Numbers, multiply};
use crate::plan::{self, Plan};
use crate::simd::{Isa, Simd, Work};
use crate::tabulated::{Lookup, Source, Tabulated};

/// Rows that walk through the layers together.
const TILE: usize = 32;
/// Inputs are padded to what the kernels take at a time.
const PAD: usize = 8;

pub(crate) struct Network {
    places: usize,
    context: usize,
    codes: Table<u8>,
    /// Tables of the context, each with the input at which it stands.
    parts: Vec<(usize, Table<u8>)>,
    /// Where the codes begin in a row of inputs, and from one to the next.
    codes_at: usize,
    codes_step: usize,
    inputs: Channels,
    layers: Vec<(Layer, Requantise)>,
    /// What the bytes of the last layer stand for.
    values: Box<[f32; 256]>,
    scores: Option<Table<f32>>,
    factors: Vec<f32>,
    classes: usize,
}

/// Memory for the rows of a tile: inputs, then what each layer made.
pub(crate) struct Scratch {
    activations: Vec<Aligned<u8>>,
    scores: Vec<f32>,
}

/// A function of one integer.
struct Table<T> {
    /// The number that a table of the context reads.
    column: usize,
    lookup: Lookup,
    rows: Vec<T>,
    width: usize,
}

impl<T> Table<T> {
    fn new(table: &Tabulated, number: impl Fn(f32) -> T) -> Result<Self, Error> {
        let (Source::Context(column) | Source::Channel(column)) = table.source;
        let (lookup, rows) = table.compact()?;
        let rows = rows.into_iter().map(number).collect();
        Ok(Self { column, lookup, rows, width: table.width })
    }

    #[inline(always)]
    fn row(&self, number: f32) -> &[T] {
        &self.rows[self.lookup.row(number) * self.width..][..self.width]
    }
}

/// See [`plan::Bytes`].
struct Requantise {
    multiplier: f32,
    zero: i32,
    table: Option<Box<[u8; 256]>>,
}

impl Network {
    /// The plan of a quantised network.
    pub fn new(plan: &Plan, values: Box<[f32; 256]>) -> Result<Self, Error> {
        let byte = |x: f32| x as u8;
        let part = |(table, at): &(Tabulated, usize)| Ok((*at, Table::new(table, byte)?));
        let codes = Table::new(&plan.codes, byte)?;
        let first = &plan.layers[0];
        let inputs = match first.taps {
            1 => {
                let count = first.weights.len() / first.outputs;
                Channels { count, width: count.next_multiple_of(PAD), places: 0, size: 1 }
            }
            _ => {
                let width = codes.width.next_multiple_of(PAD);
                Channels { count: codes.width, width, places: plan.places, size: 1 }
            }
        };
        let codes_step = if first.taps == 1 { codes.width } else { inputs.width };
        let (mut layers, mut from) = (vec![], inputs);
        for layer in &plan.layers {
            let (layer, requantise) = quantised(layer, &from, plan.places)?;
            from = layer.channels();
            layers.push((layer, requantise));
        }
        let scores = plan.scores.as_ref().map(|table| Table::new(table, |x| x));
        Ok(Self {
            places: plan.places,
            context: plan.context,
            codes,
            parts: plan.parts.iter().map(part).collect::<Result<_, Error>>()?,
            codes_at: plan.codes_at + inputs.start(),
            codes_step,
            inputs,
            layers,
            values,
            scores: scores.transpose()?,
            factors: plan.inverse_temperatures.clone(),
            classes: plan.classes(),
        })
    }

    pub fn scratch(&self) -> Scratch {
        let made = self.layers.iter().map(|(layer, _)| layer.channels());
        let channels = std::iter::once(self.inputs).chain(made);
        Scratch {
            activations: channels.map(|it| it.activations(TILE)).collect(),
            scores: vec![0.0; self.classes],
        }
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

fn quantised(
    layer: &plan::Layer,
    from: &Channels,
    places: usize,
) -> Result<(Layer, Requantise), Error> {
    let Some(bytes) = &layer.bytes else {
        return Err(Error::Malformed("only a part of the network is quantised"));
    };
    let hidden = Hidden {
        taps: layer.taps,
        outputs: layer.outputs,
        weights: layer.weights.iter().map(|&w| w as i16).collect(),
        bias: bytes.bias.clone(),
        shifts: vec![0; layer.outputs],
        top: BYTE_MAX,
    };
    let requantise =
        Requantise { multiplier: bytes.multiplier, zero: bytes.zero, table: bytes.table.clone() };
    Ok((Layer::hidden(&hidden, from, places), requantise))
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
    fn rows(&self) -> usize {
        self.answers.len()
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { network, scratch, mut series, mut context, answers, mut probabilities } = self;
        for answers in answers.chunks_mut(TILE) {
            let (these, context_of_these);
            (these, series) = series.split_at(answers.len() * network.places);
            (context_of_these, context) = context.split_at(answers.len() * network.context);
            network.decode(scratch, these, context_of_these, answers.len());
            network.layers(s, scratch, answers.len());
            for (row, answer) in answers.iter_mut().enumerate() {
                let series = &these[row * network.places..][..network.places];
                let context = &context_of_these[row * network.context..][..network.context];
                let probabilities_of_row;
                let len = probabilities.len().min(network.classes);
                (probabilities_of_row, probabilities) = probabilities.split_at_mut(len);
                *answer = network.answer(scratch, row, series, context, probabilities_of_row);
            }
        }
    }
}

impl Network {
    #[inline(always)]
    fn decode(&self, scratch: &mut Scratch, series: &[f32], context: &[f32], rows: usize) {
        let Some(inputs) = scratch.activations.first_mut() else { return };
        for row in 0..rows {
            let inputs = &mut inputs[row * self.inputs.stride()..][..self.inputs.stride()];
            let series = &series[row * self.places..][..self.places];
            let codes = inputs[self.codes_at..].chunks_mut(self.codes_step);
            for (code, &element) in codes.zip(series) {
                code[..self.codes.width].copy_from_slice(self.codes.row(element));
            }
            let context = &context[row * self.context..][..self.context];
            for (at, table) in &self.parts {
                inputs[*at..][..table.width].copy_from_slice(table.row(context[table.column]));
            }
        }
    }

    #[inline(always)]
    fn layers<S: Simd>(&self, s: S, scratch: &mut Scratch, rows: usize) {
        let mut from = self.inputs;
        for (i, (layer, requantise)) in self.layers.iter().enumerate() {
            let (before, after) = scratch.activations.split_at_mut(i + 1);
            let (a, to, made) = (&before[i], &mut after[0], layer.channels());
            if layer.is_convolution() && s.has_tiles() {
                let (windows, to_places) = (made.windows(rows), &mut to[made.width..]);
                let to_places = &mut to_places[..windows * made.width];
                let finish = Bytes::new(requantise, to_places, made.width, windows);
                multiply(s, layer, a, from.width, windows, finish);
                requantise.look_up(to_places);
                made.clear_ends(to, rows);
            } else if layer.is_convolution() {
                for row in 0..rows {
                    let a = &a[row * from.stride()..][..from.stride()];
                    let to = &mut to[row * made.stride()..][..made.stride()];
                    let to = &mut to[made.width..][..self.places * made.width];
                    let finish = Bytes::new(requantise, to, made.width, self.places);
                    multiply(s, layer, a, from.width, self.places, finish);
                    requantise.look_up(to);
                }
            } else {
                let to = &mut to[..rows * made.width];
                let finish = Bytes::new(requantise, to, made.width, rows);
                multiply(s, layer, &a[from.start()..], from.stride(), rows, finish);
                requantise.look_up(to);
            }
            from = made;
        }
    }

    #[inline(always)]
    fn answer(
        &self,
        scratch: &mut Scratch,
        row: usize,
        series: &[f32],
        context: &[f32],
        probabilities: &mut [f32],
    ) -> Answer {
        let (Some(last), Some((layer, _))) = (scratch.activations.last(), self.layers.last())
        else {
            return Answer::default();
        };
        let bytes = &last[row * layer.width()..];
        for (score, &byte) in scratch.scores.iter_mut().zip(bytes) {
            *score = self.values[usize::from(byte)];
        }
        if let Some(table) = &self.scores {
            let more = table.row(context[table.column]);
            scratch.scores.iter_mut().zip(more).for_each(|(score, more)| *score += more);
        }
        let depth = series.iter().filter(|x| x.abs() >= 1.0).count();
        softmax(&mut scratch.scores, self.factors[depth], probabilities)
    }
}

impl Requantise {
    #[inline(always)]
    fn look_up(&self, bytes: &mut [u8]) {
        if let Some(table) = &self.table {
            bytes.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
        }
    }
}

/// Bytes: `clamp(round(sums·multiplier) + zero, 0, 255)`.
struct Bytes<'a> {
    of: &'a Requantise,
    to: *mut u8,
    stride: usize,
}

impl<'a> Bytes<'a> {
    #[inline(always)]
    fn new(of: &'a Requantise, to: &mut [u8], stride: usize, rows: usize) -> Self {
        assert!(rows * stride <= to.len());
        Self { of, to: to.as_mut_ptr(), stride }
    }
}

impl<S: Simd> Finish<S> for Bytes<'_> {
    const NUMBERS: Numbers = Numbers::AllOfBytes;

    type Columns = ();

    #[inline(always)]
    fn columns(&self, _: S, _: usize) {}

    #[inline(always)]
    unsafe fn put(&mut self, s: S, row: usize, column: usize, _: (), sums: S::I) {
        let Requantise { multiplier, zero, .. } = *self.of;
        // Clamped before it is rounded, so that it fits an integer.
        let (low, high) = (s.splat_f(-zero as f32), s.splat_f((255 - zero) as f32));
        let scaled = s.mul_f(s.to_float(sums), s.splat_f(multiplier));
        let rounded = s.to_int(s.min_f(s.max_f(scaled, low), high));
        // SAFETY: `new` has seen room for the rows, whose stride is the layer's width.
        unsafe {
            let to = self.to.add(row * self.stride + column);
            s.store_bytes(to, s.add(rounded, s.splat(zero)));
        }
    }
}
