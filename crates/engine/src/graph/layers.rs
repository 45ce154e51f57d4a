//! Nodes from the first layer on: convolutions, dense layers, ReLU, scores, temperature, softmax.

use std::rc::Rc;

use super::quantised::Linear;
use super::{INPUTS_MAX, OUTPUTS_MAX, Pass, Value, What};
use crate::error::Error;
use crate::onnx::Node;
use crate::plan::Layer;
use crate::tabulated::{Source, Tabulated};

/// Ranges that a convolution of width 1 compares each element with, at most.
const RANGES_MAX: i64 = 64;

impl<'a> Pass<'a> {
    /// A convolution along the series. Of width 1 over the raw elements, it compares them with
    /// ranges; of width 3 with one place of padding, it is a layer.
    pub(super) fn conv(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["kernel_shape", "pads"])?;
        let linear = self.linear(node)?;
        let [outputs, inputs, 1, width] = linear.shape[..] else {
            return Err(node.refused("its kernel is not one row high"));
        };
        let Value { mut shape, what } = self.input(node, 0)?.clone();
        let is_whole = node.numbers("kernel_shape").is_none_or(|wanted| wanted == [1, width]);
        let is_image =
            shape == [-1, inputs, 1, self.places] || shape == [1, inputs, -1, self.places];
        if !is_image || !is_whole || linear.bias.len() as i64 != outputs {
            return Err(node.refused("its kernel does not fit its input"));
        }
        shape[1] = outputs;
        match (what, width, node.numbers("pads").unwrap_or(&[0; 4])) {
            (What::Image(table), 1, [0, 0, 0, 0])
                if inputs == 1 && (1..=RANGES_MAX).contains(&outputs) =>
            {
                let what = What::Image(Rc::new(table.affine(&linear.weights, &linear.bias)));
                return Ok(Value { shape, what });
            }
            (what @ (What::Image(_) | What::Coded { .. }), 3, [0, 1, 0, 1]) => {
                self.first(node, what)?;
            }
            (What::Layer { step }, 3, [0, 1, 0, 1]) => self.follows(node, step, true)?,
            _ => return Err(node.refused("the engine does not know this convolution")),
        }
        // ONNX has [output][input][tap], the engine [tap][input][output].
        let (rows, columns) = (inputs as usize, outputs as usize);
        let at = |tap, i, o| linear.weights[(o * rows + i) * 3 + tap];
        let row = |tap, i| (0..columns).map(move |o| at(tap, i, o));
        let weights = (0..3).flat_map(|tap| (0..rows).flat_map(move |i| row(tap, i))).collect();
        self.layer(node, 3, [inputs, outputs], Linear { weights, ..linear })?;
        Ok(self.step(shape))
    }

    /// What a convolution made, as one row. The engine leaves it place by place.
    pub(super) fn flatten(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["axis"])?;
        match self.input(node, 0)?.clone() {
            Value { shape, what: What::Layer { step } }
                if shape.len() == 4 && shape[0] == -1 && node.number("axis").unwrap_or(1) == 1 =>
            {
                self.follows(node, step, true)?;
                Ok(self.step(vec![-1, shape[1] * shape[3]]))
            }
            _ => Err(node.refused("it flattens something else than a convolution")),
        }
    }

    /// A dense layer.
    pub(super) fn gemm(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let mut linear = self.linear(node)?;
        let [inputs, outputs] = linear.shape[..] else {
            return Err(node.refused("its weights have not two axes"));
        };
        let Value { shape, what } = self.input(node, 0)?.clone();
        if shape != [-1, inputs] || outputs == 0 || linear.bias.len() as i64 != outputs {
            return Err(node.refused("its weights do not fit its input"));
        }
        match what {
            What::Series if linear.quantised.is_none() => {
                return self.compared(node, &linear, outputs);
            }
            What::Inputs(_) | What::Coded { .. } => self.first(node, what)?,
            What::Layer { step } => {
                self.follows(node, step, true)?;
                match self.layers.last() {
                    Some(Layer { taps: 3, outputs: channels, .. }) if !self.is_by_place => {
                        linear.weights = by_place(&linear.weights, *channels, outputs as usize);
                    }
                    _ => {}
                }
            }
            _ => return Err(node.refused("its input is neither a layer nor a first layer's")),
        }
        self.layer(node, 1, [inputs, outputs], linear)?;
        Ok(self.step(vec![-1, outputs]))
    }

    /// Compares the elements with ranges, each with the same, by a product whose matrix has blocks
    /// on its diagonal.
    fn compared(
        &self,
        node: &Node<'a>,
        linear: &Linear<'a>,
        outputs: i64,
    ) -> Result<Value<'a>, Error> {
        let (places, outputs) = (self.places as usize, outputs as usize);
        let width = outputs / places;
        let is_even = width * places == outputs && (1..=RANGES_MAX as usize).contains(&width);
        if !is_even || self.channels != 1 {
            return Err(node.refused("it makes something else than ranges of each element"));
        }
        let (scales, offsets) = (&linear.weights[..width], &linear.bias[..width]);
        let mut rows = linear.weights.chunks_exact(outputs).enumerate();
        let is_diagonal = rows.all(|(place, row)| {
            let mut blocks = row.chunks_exact(width).enumerate();
            blocks.all(|(block, numbers)| match block == place {
                true => numbers == scales,
                false => numbers.iter().all(|x| *x == 0.0),
            })
        });
        if !is_diagonal || linear.bias.chunks_exact(width).any(|block| block != offsets) {
            return Err(node.refused("its elements are not all compared with the same ranges"));
        }
        let table = Tabulated::identity(Source::Channel(0)).affine(scales, offsets);
        Ok(Value { shape: vec![-1, outputs as i64], what: What::Table(Rc::new(table)) })
    }

    /// The inputs of the first layer: codes of elements, once, and functions of the context.
    fn first(&mut self, node: &Node<'a>, what: What<'a>) -> Result<(), Error> {
        let inputs = match what {
            What::Image(table) => vec![table],
            What::Inputs(tables) => tables,
            What::Coded { what, of } => {
                self.first(node, *what)?;
                self.coding = Some(of.coding());
                return Ok(());
            }
            _ => return Err(node.refused("its input is nothing known")),
        };
        let mut row = 0;
        for table in inputs {
            let width = table.width;
            match table.source {
                Source::Context(_) => self.parts.push((Rc::unwrap_or_clone(table), row)),
                Source::Channel(0) if self.channels == 1 && self.codes.is_none() => {
                    (self.codes, self.codes_at) = (Some(table), row);
                    row += width * (self.places as usize - 1);
                }
                Source::Channel(_) => {
                    return Err(node.refused("the engine knows networks of one feature only"));
                }
            }
            row += width;
        }
        match self.codes {
            Some(_) if self.layers.is_empty() => Ok(()),
            _ => Err(node.refused("it is not the only layer that reads the series")),
        }
    }

    fn layer(
        &mut self,
        node: &Node<'a>,
        taps: usize,
        [inputs, outputs]: [i64; 2],
        linear: Linear<'a>,
    ) -> Result<(), Error> {
        if self.scores.is_some() || self.inverse_temperatures.is_some() {
            return Err(node.refused("it follows the network's scores"));
        }
        if !(1..=OUTPUTS_MAX).contains(&outputs) || taps as i64 * inputs > INPUTS_MAX {
            return Err(node.refused("the layer is too wide"));
        }
        if !linear.weights.iter().chain(&linear.bias).all(|x| x.is_finite()) {
            return Err(node.refused("its weights are not finite"));
        }
        let bytes = self.bytes(node, taps, &linear, outputs as usize)?;
        if self.layers.last().is_some_and(|last| last.bytes.is_some() != bytes.is_some()) {
            return Err(node.refused("only a part of the network is quantised"));
        }
        self.layers.push(Layer {
            name: node.outputs[0].to_owned(),
            taps,
            outputs: outputs as usize,
            weights: linear.weights,
            bias: linear.bias,
            bytes,
        });
        self.is_activated = false;
        Ok(())
    }

    /// A new value of kind `Layer`, which alone may be read from now on.
    pub(super) fn step(&mut self, shape: Vec<i64>) -> Value<'a> {
        self.step += 1;
        Value { shape, what: What::Layer { step: self.step } }
    }

    /// Refuses a node that reads another layer than the last, or the last one before its ReLU
    /// where that has to be there (or after it where not).
    fn follows(&self, node: &Node<'a>, step: usize, is_activated: bool) -> Result<(), Error> {
        if self.layers.last().is_some_and(|layer| layer.bytes.is_some()) && !self.is_plainly_coded()
        {
            return Err(node.refused("the layer before it has not been quantised"));
        }
        // The lower end of a byte is a bound as ReLU is one.
        let is_bounded = is_activated && self.coding.is_some();
        match (step == self.step, is_bounded || is_activated == self.is_activated) {
            (true, true) => Ok(()),
            (false, _) => Err(node.refused("the graph branches at its input")),
            (_, false) if is_activated => Err(node.refused("there is no ReLU before it")),
            (_, false) => Err(node.refused("there is a ReLU before it")),
        }
    }

    pub(super) fn relu(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        match (self.input(node, 0)?.clone(), self.layers.last_mut()) {
            (Value { shape, what: What::Layer { step } }, Some(layer)) => {
                node.outputs[0].clone_into(&mut layer.name);
                self.follows(node, step, false)?;
                if let Some(coding) = &mut self.coding {
                    coding.relu();
                }
                self.is_activated = true;
                Ok(self.step(shape))
            }
            _ => Err(node.refused("it does not follow a layer")),
        }
    }

    /// Adds scores of the context to the last layer's, or a constant to numbers.
    pub(super) fn add(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let Value { shape, what: What::Layer { step } } = self.input(node, 0)?.clone() else {
            let offset = self.float(node, 1)?;
            return self.mapped(node, |x| x + offset);
        };
        self.follows(node, step, false)?;
        match self.input(node, 1)?.clone() {
            Value { shape: other, what: What::Table(table) }
                if matches!(table.source, Source::Context(_))
                    && other == shape
                    && self.scores.is_none()
                    && self.inverse_temperatures.is_none()
                    && table.is_finite() =>
            {
                self.scores = Some(Rc::unwrap_or_clone(table));
                Ok(self.step(shape))
            }
            _ => Err(node.refused("what it adds are not scores of the context")),
        }
    }

    /// Multiplies scores by the factor of their count, or numbers by a constant.
    pub(super) fn mul(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&[])?;
        let Value { shape, what } = self.input(node, 0)?.clone();
        let what = match what {
            What::Layer { step } => {
                self.follows(node, step, false)?;
                self.step += 1;
                What::Layer { step: self.step }
            }
            What::StepScores { .. } => What::StepScores { is_tempered: true },
            _ => {
                let factor = self.float(node, 1)?;
                return self.mapped(node, |x| x * factor);
            }
        };
        let factors = match self.input(node, 1) {
            Ok(Value { what: What::Factors(factors), .. }) => factors.clone(),
            _ => {
                let factor = self.float(node, 1)?;
                if !(factor.is_finite() && factor > 0.0) {
                    return Err(node.refused("its factor is not a positive number"));
                }
                vec![factor; self.places as usize + 1]
            }
        };
        if shape.len() != 2 || self.inverse_temperatures.replace(factors).is_some() {
            return Err(node.refused("it multiplies something else than scores"));
        }
        Ok(Value { shape, what })
    }

    pub(super) fn softmax(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&["axis"])?;
        let is_last = matches!(node.number("axis"), None | Some(-1 | 1));
        match self.input(node, 0)?.clone() {
            Value { shape, what: What::Layer { step } }
                if shape.len() == 2 && is_last && self.layers.len() > 1 =>
            {
                self.follows(node, step, false)?;
                Ok(Value { shape, what: What::Probabilities })
            }
            Value { shape, what: What::StepScores { is_tempered } }
                if is_last && is_tempered == self.inverse_temperatures.is_some() =>
            {
                Ok(Value { shape, what: What::Probabilities })
            }
            _ => Err(node.refused("it follows something else than a network's scores")),
        }
    }
}

/// Rows that stand channel by channel, as `Flatten` has them, in the order of places.
fn by_place(weights: &[f32], channels: usize, outputs: usize) -> Vec<f32> {
    let places = weights.len() / outputs / channels;
    let row = |place, channel| &weights[(channel * places + place) * outputs..][..outputs];
    (0..places).flat_map(|place| (0..channels).flat_map(move |c| row(place, c))).copied().collect()
}
