//! What a plan and its integers mean, in plain loops: slow, and short enough to be seen to be
//! right. All kernels are held against it.

use crate::integer::POLYNOMIAL;
use crate::integers::{Integers, Kind};
use crate::plan::Plan;
use crate::ranges::Ranges;
use crate::tabulated::{Lookup, Source};

/// A plan in doubles.
pub(crate) struct Floats<'a> {
    plan: &'a Plan,
    elements: Lookup,
    codes: Vec<f32>,
    /// For each part: column, look-up, rows, width, first row of the weights.
    parts: Vec<(usize, Lookup, Vec<f32>, usize, usize)>,
    scores: Option<(usize, Lookup, Vec<f32>)>,
}

fn column(source: Source) -> usize {
    match source {
        Source::Context(column) => column,
        Source::Channel(_) => panic!(),
    }
}

impl<'a> Floats<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        let (elements, codes) = plan.codes.compact().unwrap();
        let parts = plan.parts.iter().map(|(part, row)| {
            let (lookup, rows) = part.compact().unwrap();
            (column(part.source), lookup, rows, part.width, *row)
        });
        let scores = plan.scores.as_ref().map(|scores| {
            let (lookup, rows) = scores.compact().unwrap();
            (column(scores.source), lookup, rows)
        });
        Self { plan, elements, codes, parts: parts.collect(), scores }
    }

    /// What each layer makes of a row (places one after the other), and the probabilities.
    pub fn row(&self, series: &[f32], context: &[f32]) -> (Vec<Vec<f64>>, Vec<f64>) {
        let (plan, width) = (self.plan, self.plan.codes.width);
        let code = |x: &f32| self.codes[self.elements.row(*x) * width..][..width].to_vec();
        let mut a: Vec<f64> = series.iter().flat_map(code).map(f64::from).collect();
        if plan.layers[0].taps == 1 {
            let mut inputs = vec![0.0; plan.layers[0].weights.len() / plan.layers[0].outputs];
            inputs[plan.codes_at..][..a.len()].copy_from_slice(&a);
            for (column, lookup, rows, width, at) in &self.parts {
                for i in 0..*width {
                    inputs[at + i] = rows[lookup.row(context[*column]) * width + i].into();
                }
            }
            a = inputs;
        }
        let mut made = vec![];
        for (i, layer) in plan.layers.iter().enumerate() {
            let outputs = layer.outputs;
            let inputs = layer.weights.len() / outputs / layer.taps;
            let mut sums: Vec<f64> = vec![];
            let places = if layer.taps == 3 { plan.places } else { 1 };
            for place in 0..places {
                for o in 0..outputs {
                    let mut sum = f64::from(layer.bias[o]);
                    for row in 0..layer.taps * inputs {
                        let at = (place * inputs + row) as isize
                            - if layer.taps == 3 { inputs as isize } else { 0 };
                        let x = usize::try_from(at).ok().and_then(|at| a.get(at));
                        sum += x.unwrap_or(&0.0) * f64::from(layer.weights[row * outputs + o]);
                    }
                    sums.push(if i + 1 < plan.layers.len() { sum.max(0.0) } else { sum });
                }
            }
            a.clone_from(&sums);
            made.push(sums);
        }
        if let Some((column, lookup, rows)) = &self.scores {
            let row = &rows[lookup.row(context[*column]) * a.len()..];
            a.iter_mut().zip(row).for_each(|(score, &more)| *score += f64::from(more));
        }
        let depth = series.iter().filter(|x| x.trunc() != 0.0 && !x.is_nan()).count();
        let factor = f64::from(plan.inverse_temperatures[depth]);
        let largest = a.iter().copied().fold(f64::MIN, f64::max);
        let e: Vec<f64> = a.iter().map(|score| ((score - largest) * factor).exp()).collect();
        let sum: f64 = e.iter().sum();
        (made, e.iter().map(|e| e / sum).collect())
    }

    /// The largest of each channel over rows: ranges for tests.
    pub fn ranges(&self, rows: &[(Vec<f32>, Vec<f32>)]) -> Ranges {
        let hidden = self.plan.hidden();
        let mut max: Vec<Vec<f64>> = hidden.iter().map(|layer| vec![1e-3; layer.outputs]).collect();
        for (series, context) in rows {
            for (max, made) in max.iter_mut().zip(self.row(series, context).0) {
                for (i, x) in made.iter().enumerate() {
                    let channel = i % max.len();
                    max[channel] = max[channel].max(*x);
                }
            }
        }
        let named = hidden
            .iter()
            .zip(max)
            .map(|(layer, max)| (layer.name.clone(), max.iter().map(|&x| x as f32).collect()));
        named.collect::<Vec<_>>().into()
    }
}

fn q15(a: i32, b: i32) -> i32 {
    (a * b + (1 << 14)) >> 15
}

impl Integers {
    /// Class, confidence in Q15, and the exponentials.
    pub(crate) fn row(&self, series: &[f32], context: &[f32]) -> (usize, u32, Vec<i32>) {
        let code = |place: usize| self.elements.row(series[place]);
        let rows: Vec<usize> =
            self.lookups.iter().map(|(column, lookup)| lookup.row(context[*column])).collect();
        let width = self.first.width;
        let places = if matches!(self.first.kind, Kind::Dense { .. }) { 1 } else { self.places };
        let mut a = vec![];
        for place in 0..places {
            for c in 0..width {
                let sum: i32 = match &self.first.kind {
                    Kind::Dense { tables, context } => {
                        let of_context = context.iter().map(|(lookup, table)| {
                            i32::from(table[lookup.map_or(0, |i| rows[i]) * width + c])
                        });
                        let at = |p: usize| (p * self.codes + code(p)) * width + c;
                        let of_series = (0..self.places).map(|p| i32::from(tables[at(p)]));
                        of_context.chain(of_series).sum()
                    }
                    Kind::Convolution { taps, bias, .. } => {
                        let tap = |t: usize| {
                            let place = (place + t).checked_sub(1).filter(|&p| p < self.places)?;
                            Some(i32::from(taps[(t * self.codes + code(place)) * width + c]))
                        };
                        i32::from(bias[c]) + (0..3).filter_map(tap).sum::<i32>()
                    }
                };
                assert!(i16::try_from(sum).is_ok());
                let sum = match &self.first.kind {
                    Kind::Dense { .. } => sum,
                    Kind::Convolution { multipliers, .. } => q15(sum, multipliers[c].into()),
                };
                a.push(sum.clamp(0, self.first.top.into()));
            }
        }
        for layer in &self.hidden {
            let rows = layer.weights.len() / layer.outputs;
            let (inputs, places) =
                (rows / layer.taps, if layer.taps > 1 { self.places } else { 1 });
            let mut made = vec![];
            for place in 0..places {
                for c in 0..layer.outputs {
                    let mut sum = layer.bias[c];
                    for row in 0..rows {
                        let at = (place * inputs + row).checked_sub((layer.taps / 2) * inputs);
                        let x = at.and_then(|at| a.get(at)).unwrap_or(&0);
                        sum += x * i32::from(layer.weights[row * layer.outputs + c]);
                    }
                    made.push((sum >> layer.shifts[c]).clamp(0, layer.top.into()));
                }
            }
            a = made;
        }
        let out = &self.output;
        let scores_row = out.lookup.map_or(0, |i| rows[i]) * out.classes;
        let score = |c: usize| {
            let weight = |i: usize| i32::from(out.weights[i * out.classes + c]);
            let sum: i32 = a.iter().enumerate().map(|(i, x)| x * weight(i)).sum();
            ((sum + (1 << (out.shift - 1))) >> out.shift) + out.scores[scores_row + c]
        };
        let z: Vec<i32> = (0..out.classes).map(score).collect();
        let depth = series.iter().filter(|&&x| x as i32 != 0).count();
        let largest = *z.iter().max().unwrap();
        let exponential = |z: &i32| {
            let t = q15((largest - z).min(32_767), out.temperatures[depth].into());
            let fraction = (t & 2047) << 4;
            let [c0, c1, c2, c3] = POLYNOMIAL.map(i32::from);
            let p = q15(fraction, c3) + c2;
            let p = q15(fraction, p) + c1;
            (q15(fraction, p) + c0) >> (t >> 11)
        };
        let e: Vec<i32> = z.iter().map(exponential).collect();
        let class = z.iter().position(|&z| z == largest).unwrap();
        (class, (32_767 << 15) / e.iter().sum::<i32>().cast_unsigned(), e)
    }
}
