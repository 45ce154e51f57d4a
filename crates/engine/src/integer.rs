//! Runs an integer network: [`Integers`] padded and packed for vectors, and the walk of rows
//! through the layers, 32 at a time, all in memory of the first-level cache.

use crate::Answer;
use crate::aligned::Aligned;
use crate::channels::Channels;
use crate::integers::{Integers, Output};
use crate::layer::{Activate, Layer, Score, multiply};
use crate::simd::{Isa, LANES_MAX, Simd, Work};
use crate::tabulated::Lookup;

use first::First;

mod first;
mod softmax;

#[cfg(test)]
pub(crate) use softmax::POLYNOMIAL;

/// Rows that walk through the layers together.
const TILE: usize = 32;
/// The score of columns that are no class: below all that are.
const NO_CLASS: i32 = -(1 << 28);

/// A confidence in Q15, as integer networks and the kernel have it; exact.
#[inline]
pub fn from_q15(confidence: u32) -> f32 {
    confidence as f32 / 32_768.0
}

pub(crate) struct Network {
    places: usize,
    context: usize,
    elements: Lookup,
    lookups: Vec<(usize, Lookup)>,
    first: First,
    hidden: Vec<Layer>,
    classes: usize,
    output: Layer,
    score_lookup: Option<usize>,
    /// `[rows][width]`
    scores: Aligned<i32>,
    temperatures: Vec<i16>,
    /// All bits of columns that are a class.
    is_class: Aligned<i16>,
}

/// Memory for the rows of a tile.
pub(crate) struct Scratch {
    /// Index of each element in the look-up of codes.
    places: Vec<i32>,
    /// Where in the tables of layer 0 each element's code stands.
    codes: Vec<u32>,
    depths: [usize; TILE],
    /// Where the last element that is not 0 ends.
    ends: [usize; TILE],
    /// For each row, the row of each look-up.
    rows: Vec<usize>,
    /// Where each row's scores begin.
    scores_at: [usize; TILE],
    /// What each layer made. Places beyond the ends of a series stay 0.
    activations: Vec<Aligned<u8>>,
    /// `[TILE][width]`
    scores: Aligned<i32>,
    exponentials: Aligned<i16>,
}

impl Network {
    pub fn new(mut integers: Integers) -> Self {
        let first = First::new(&mut integers);
        let mut channels = first.channels();
        let mut hidden = vec![];
        for layer in &integers.hidden {
            let layer = Layer::hidden(layer, &channels, integers.places);
            channels = layer.channels();
            hidden.push(layer);
        }
        let Output { classes, weights, shift, .. } = &integers.output;
        let output = Layer::output(weights, *classes, &channels, *shift);
        let width = output.width();
        let scores = integers.output.scores.chunks_exact(*classes);
        let padding = std::iter::repeat_n(NO_CLASS, width - classes);
        let scores: Vec<i32> =
            scores.flat_map(|row| row.iter().copied().chain(padding.clone())).collect();
        let is_class: Vec<i16> = (0..width).map(|c| if c < *classes { -1 } else { 0 }).collect();
        Self {
            places: integers.places,
            context: integers.context,
            elements: integers.elements,
            lookups: integers.lookups,
            first,
            hidden,
            classes: *classes,
            output,
            score_lookup: integers.output.lookup,
            scores: scores[..].into(),
            temperatures: integers.output.temperatures.clone(),
            is_class: is_class[..].into(),
        }
    }

    pub fn scratch(&self) -> Scratch {
        let channels = self.hidden.iter().map(Layer::channels);
        let channels = std::iter::once(self.first.channels()).chain(channels);
        Scratch {
            places: vec![0; TILE * self.places + LANES_MAX],
            codes: vec![0; TILE * self.places],
            depths: [0; TILE],
            ends: [0; TILE],
            rows: vec![0; TILE * self.lookups.len()],
            scores_at: [0; TILE],
            activations: channels.map(|it| it.activations(TILE)).collect(),
            scores: Aligned::zeroed(TILE * self.output.width()),
            exponentials: Aligned::zeroed(self.output.width()),
        }
    }

    /// The answers of as many rows as there are answers, and, unless that is empty, the
    /// probabilities of their classes.
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
    fn rows(&self) -> usize {
        self.answers.len()
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { network, scratch, mut series, mut context, answers, mut probabilities } = self;
        for answers in answers.chunks_mut(TILE) {
            let rows = answers.len();
            let (these, context_of_these, out);
            (these, series) = series.split_at(rows * network.places);
            (context_of_these, context) = context.split_at(rows * network.context);
            let len = probabilities.len().min(rows * network.classes);
            (out, probabilities) = probabilities.split_at_mut(len);
            decode(s, network, scratch, these, context_of_these, rows);
            layers(s, network, scratch, rows);
            finish(s, network, scratch, answers, out);
        }
    }
}

/// Looks up the codes of elements and the rows of the context.
#[inline(always)]
fn decode<S: Simd>(
    s: S,
    network: &Network,
    scratch: &mut Scratch,
    series: &[f32],
    context: &[f32],
    rows: usize,
) {
    network.elements.places(s, series, &mut scratch.places);
    let (table, step) = (network.first.width() as u32, network.first.table_len());
    let zero = network.elements.zero() as i32;
    let codes = scratch.codes.chunks_exact_mut(network.places);
    let places = scratch.places[..series.len()].chunks_exact(network.places);
    let lengths = scratch.depths.iter_mut().zip(&mut scratch.ends);
    for ((places, codes), (depth, end)) in places.zip(codes).zip(lengths) {
        *depth = places.iter().map(|&place| usize::from(place != zero)).sum();
        *end = places.iter().rposition(|&place| place != zero).map_or(0, |last| last + 1);
        let mut at_place = 0;
        for (&place, at) in places.iter().zip(codes) {
            *at = at_place + u32::from(network.elements.row_of[place as usize]) * table;
            at_place += step;
        }
    }
    if network.context == 0 {
        return;
    }
    let lookups = network.lookups.len();
    for row in 0..rows {
        let context = &context[row * network.context..][..network.context];
        let found = &mut scratch.rows[row * lookups..][..lookups];
        for ((column, lookup), found) in network.lookups.iter().zip(&mut *found) {
            *found = lookup.row(context[*column]);
        }
        let scores_row = network.score_lookup.map_or(0, |i| found[i]);
        scratch.scores_at[row] = scores_row * network.output.width();
    }
}

#[inline(always)]
fn layers<S: Simd>(s: S, network: &Network, scratch: &mut Scratch, rows: usize) {
    let [first, later @ ..] = &mut scratch.activations[..] else { return };
    let mut channels = network.first.channels();
    let elements = (&scratch.codes[..], &scratch.ends[..]);
    network.first.run(s, elements, &scratch.rows, network.places, first, rows);
    let mut from: &Aligned<u8> = first;
    for (layer, to) in network.hidden.iter().zip(later) {
        match (channels.size, layer.channels().size) {
            (1, 1) => hidden::<S, 1, 1>(s, layer, from, &channels, to, rows),
            (1, _) => hidden::<S, 1, 2>(s, layer, from, &channels, to, rows),
            // Bytes do not follow words.
            _ => hidden::<S, 2, 2>(s, layer, from, &channels, to, rows),
        }
        (from, channels) = (to, layer.channels());
    }
    let (scores, at) = (&network.scores, &scratch.scores_at[..rows]);
    let finish = Score::new(&network.output, scores, at, &mut scratch.scores);
    multiply(s, &network.output, &from[channels.start()..], channels.stride(), rows, finish);
}

/// A layer from activations of size `FROM` to ones of size `TO`.
#[inline(always)]
fn hidden<S: Simd, const FROM: usize, const TO: usize>(
    s: S,
    layer: &Layer,
    from: &[u8],
    channels: &Channels,
    to: &mut [u8],
    rows: usize,
) {
    let made = layer.channels();
    if layer.is_convolution() && FROM == 1 && s.has_tiles() {
        let windows = made.windows(rows);
        let finish = Activate::<FROM, TO>::new(layer, &mut to[made.step()..], windows);
        multiply(s, layer, from, channels.step(), windows, finish);
        made.clear_ends(to, rows);
    } else if layer.is_convolution() {
        // Each place's window begins at the place before it.
        for row in 0..rows {
            let from = &from[row * channels.stride()..][..channels.stride()];
            let to = &mut to[row * made.stride()..][..made.stride()][made.step()..];
            let finish = Activate::<FROM, TO>::new(layer, to, made.places);
            multiply(s, layer, from, channels.step(), made.places, finish);
        }
    } else {
        let finish = Activate::<FROM, TO>::new(layer, to, rows);
        multiply(s, layer, &from[channels.start()..], channels.stride(), rows, finish);
    }
}

#[inline(always)]
fn finish<S: Simd>(
    s: S,
    network: &Network,
    scratch: &mut Scratch,
    answers: &mut [Answer],
    probabilities: &mut [f32],
) {
    let width = network.output.width();
    for (row, answer) in answers.iter_mut().enumerate() {
        let scores = &scratch.scores[row * width..][..width];
        let temperature = network.temperatures[scratch.depths[row]];
        let exponentials = &mut scratch.exponentials;
        let (class, sum) =
            softmax::softmax(s, scores, &network.is_class, temperature, exponentials);
        let confidence = from_q15((32_767 << 15) / sum);
        *answer = Answer { class: class as u16, confidence };
        if !probabilities.is_empty() {
            let out = &mut probabilities[row * network.classes..][..network.classes];
            for (probability, &e) in out.iter_mut().zip(&**exponentials) {
                *probability = f32::from(e) / sum as f32;
            }
        }
    }
}
