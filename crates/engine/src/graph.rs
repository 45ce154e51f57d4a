//! Matches the nodes of a graph with what the engine knows, in one pass: each value of the graph is
//! one of few kinds, and a node makes a value of others or is refused by its name.
//!
//! Shapes are followed as ONNX has them, with −1 for the rows of the batch. A graph that computes
//! the same in another way (a reshape, another order of axes) is refused, not guessed at.

use std::collections::HashMap;
use std::rc::Rc;

use crate::error::Error;
use crate::onnx::{Model, Node, Tensor};
use crate::plan::{Forest, Kind, Layer, Plan};
use crate::tabulated::{Source, Tabulated};
use quantised::{Coding, Scale};

mod layers;
mod numbers;
mod quantised;
mod trees;

/// Elements of a series, at most.
pub(crate) const PLACES_MAX: i64 = 64;
/// Outputs of a layer, at most.
pub(crate) const OUTPUTS_MAX: i64 = 4096;
/// Inputs of a layer, at most; so sums of products of 7 and 8 bits stay far within 32 bits.
pub(crate) const INPUTS_MAX: i64 = 16_384;

/// Numbers in the tables of all values, at most: 128 MiB while a graph is read.
const NUMBERS_MAX: usize = 1 << 25;

/// A value of the graph.
#[derive(Clone)]
struct Value<'a> {
    shape: Vec<i64>,
    what: What<'a>,
}

#[derive(Clone)]
enum What<'a> {
    /// The first input, `[-1, channels, places]`, or its only channel, `[-1, places]`.
    Series,
    /// The second input, `[-1, numbers]`.
    Context,
    /// A function of each element or of one number of the context.
    Table(Rc<Tabulated>),
    /// Codes of elements with the channel before the place: what a convolution reads.
    Image(Rc<Tabulated>),
    /// What a first dense layer reads: tables side by side.
    Inputs(Vec<Rc<Tabulated>>),
    /// `Image` or `Inputs` as bytes.
    Coded {
        what: Box<What<'a>>,
        of: Scale,
    },
    /// A quantised constant.
    Weights {
        tensor: &'a Tensor,
        scale: f32,
    },
    /// The series and the context, side by side.
    Numbers,
    /// Sums of trees.
    Steps,
    /// What the sums have found in the table of scores; then times the temperature.
    StepScores {
        is_tempered: bool,
    },
    /// How many elements are not 0.
    Count,
    /// A factor for each count.
    Factors(Vec<f32>),
    /// The last layer so far, and the number of graph steps before it. A second reader of an
    /// earlier step would be a branch, which the engine does not know.
    Layer {
        step: usize,
    },
    Probabilities,
}

/// The pass over the nodes.
struct Pass<'a> {
    model: &'a Model<'a>,
    values: HashMap<&'a str, Value<'a>>,
    channels: i64,
    places: i64,
    context: i64,
    /// The first layer's inputs, once it is there.
    codes: Option<Rc<Tabulated>>,
    codes_at: usize,
    parts: Vec<(Tabulated, usize)>,
    layers: Vec<Layer>,
    /// The step at which the last value of kind `Layer` was made.
    step: usize,
    /// Whether the last layer's ReLU has been seen.
    is_activated: bool,
    /// Whether what a convolution made has been put in the order of places.
    is_by_place: bool,
    /// What the bytes of the last layer stand for, if it is quantised.
    coding: Option<Coding>,
    scores: Option<Tabulated>,
    inverse_temperatures: Option<Vec<f32>>,
    forest: Option<Forest>,
    /// In the tables of all values so far.
    numbers: usize,
}

/// Reads from a graph what it computes.
pub(crate) fn plan(model: &Model<'_>) -> Result<Kind, Error> {
    let mut pass = Pass::new(model)?;
    for node in &model.nodes {
        let [output] = node.outputs[..] else {
            return Err(node.refused("it has more than one output"));
        };
        let value = pass.value(node)?;
        pass.numbers += value.what.numbers();
        if pass.numbers > NUMBERS_MAX {
            return Err(Error::Bounds(format!("'{}': its tables are too large", node.named())));
        }
        pass.values.insert(output, value);
    }
    pass.finished()
}

impl<'a> Pass<'a> {
    fn new(model: &'a Model<'a>) -> Result<Self, Error> {
        let mut values = HashMap::new();
        let (series, context) = match &model.inputs[..] {
            [series] => (series, None),
            [series, context] => (series, Some(context)),
            _ => return Err(Error::Malformed("it has not one or two inputs")),
        };
        let [_, channels @ 1..=OUTPUTS_MAX, places @ 1..=PLACES_MAX] = series.1[..] else {
            return Err(Error::Malformed("its first input is not rows of up to 64 elements"));
        };
        let shape = vec![-1, channels, places];
        values.insert(series.0, Value { shape, what: What::Series });
        let mut numbers = 0;
        if let Some((name, axes)) = context {
            let [_, count @ 1..=OUTPUTS_MAX] = axes[..] else {
                return Err(Error::Malformed("its second input is not rows of numbers"));
            };
            numbers = count;
            values.insert(name, Value { shape: vec![-1, count], what: What::Context });
        }
        Ok(Self {
            model,
            values,
            channels,
            places,
            context: numbers,
            codes: None,
            codes_at: 0,
            parts: vec![],
            layers: vec![],
            step: 0,
            is_activated: false,
            is_by_place: false,
            coding: None,
            scores: None,
            inverse_temperatures: None,
            forest: None,
            numbers: 0,
        })
    }

    fn value(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        match (node.domain, node.operator) {
            ("", "Reshape") => self.reshape(node),
            ("", "Transpose") => self.transpose(node),
            ("", "Unsqueeze") => self.unsqueeze(node),
            ("", "Flatten") => self.flatten(node),
            ("", "Concat") => self.concat(node),
            ("", "Clip") => self.clip(node),
            ("", "Abs") => self.abs(node),
            ("", "Cast") => self.cast(node),
            ("", "Gather") => self.gather(node),
            ("", "ReduceSum") => self.reduce_sum(node),
            ("", "Add") => self.add(node),
            ("", "Mul") => self.mul(node),
            ("", "Conv") => self.conv(node),
            ("", "Gemm") => self.gemm(node),
            ("", "Relu") => self.relu(node),
            ("", "QuantizeLinear") => self.quantize(node),
            ("", "DequantizeLinear") => self.dequantize(node),
            ("", "Softmax") => self.softmax(node),
            ("ai.onnx.ml", "TreeEnsembleRegressor") => self.trees(node),
            (domain, other) => Err(node.refused(format!("unknown operator {domain} {other}"))),
        }
    }

    fn finished(self) -> Result<Kind, Error> {
        let [output] = self.model.outputs[..] else {
            return Err(Error::Malformed("it has more than one output"));
        };
        if !matches!(self.values.get(output), Some(Value { what: What::Probabilities, .. })) {
            return Err(Error::Malformed("its output is not the softmax of what the engine knows"));
        }
        let places = self.places as usize;
        let inverse_temperatures = self.inverse_temperatures.unwrap_or(vec![1.0; places + 1]);
        let codes = match (self.codes, self.forest) {
            (Some(codes), None) => Rc::unwrap_or_clone(codes),
            (None, Some(forest)) => {
                return Ok(Kind::Forest(Forest { inverse_temperatures, ..forest }));
            }
            _ => return Err(Error::Malformed("it is both a network and trees")),
        };
        if !codes.is_finite() || !self.parts.iter().all(|(part, _)| part.is_finite()) {
            return Err(Error::Malformed("a table holds numbers that are not finite"));
        }
        Ok(Kind::Network(Plan {
            places,
            context: self.context as usize,
            codes,
            codes_at: self.codes_at,
            parts: self.parts,
            layers: self.layers,
            scores: self.scores,
            inverse_temperatures,
            values: self.coding.map(|coding| coding.values()),
        }))
    }

    /// The i-th input of a node, which is not a constant.
    fn input(&self, node: &Node<'a>, i: usize) -> Result<&Value<'a>, Error> {
        let name = node.inputs.get(i).copied().unwrap_or_default();
        self.values.get(name).ok_or_else(|| node.refused(format!("nothing known is its input {i}")))
    }

    /// The i-th input of a node, which is a constant.
    fn constant(&self, node: &Node<'a>, i: usize) -> Result<&'a Tensor, Error> {
        let name = node.inputs.get(i).copied().unwrap_or_default();
        let constant = self.model.constants.get(name);
        constant.ok_or_else(|| node.refused(format!("its input {i} is no constant")))
    }

    fn floats(&self, node: &Node<'a>, i: usize) -> Result<&'a [f32], Error> {
        let floats = self.constant(node, i)?.floats();
        floats.ok_or_else(|| node.refused(format!("its input {i} is not of floats")))
    }

    fn integers(&self, node: &Node<'a>, i: usize) -> Result<&'a [i64], Error> {
        let integers = self.constant(node, i)?.integers();
        integers.ok_or_else(|| node.refused(format!("its input {i} is not of integers")))
    }

    /// A float constant of one number that has no axis of its own, so that any shape keeps its
    /// axes beside it.
    fn float(&self, node: &Node<'a>, i: usize) -> Result<f32, Error> {
        let constant = self.constant(node, i)?;
        let float = constant.float().filter(|_| constant.shape.is_empty());
        float.ok_or_else(|| node.refused(format!("its input {i} is not one number")))
    }

    /// The i-th input as a function of one integer.
    fn table(&self, node: &Node<'a>, i: usize) -> Result<(Vec<i64>, Rc<Tabulated>), Error> {
        let Value { shape, what } = self.input(node, i)?;
        let table = match what {
            What::Table(table) => Rc::clone(table),
            What::Series if *shape == [-1, self.places] => {
                Rc::new(Tabulated::identity(Source::Channel(0)))
            }
            _ => return Err(node.refused("its input is not a function of one number")),
        };
        Ok((shape.clone(), table))
    }
}

impl What<'_> {
    fn numbers(&self) -> usize {
        match self {
            Self::Table(table) | Self::Image(table) => table.len(),
            Self::Inputs(tables) => tables.iter().map(|table| table.len()).sum(),
            Self::Coded { what, .. } => what.numbers(),
            _ => 0,
        }
    }

    /// The same tables with a function applied to each number.
    fn mapped(self, f: impl Fn(f32) -> f32) -> Self {
        let mapped = |table: Rc<Tabulated>| Rc::new(table.map(&f));
        match self {
            Self::Table(table) => Self::Table(mapped(table)),
            Self::Image(table) => Self::Image(mapped(table)),
            Self::Inputs(tables) => Self::Inputs(tables.into_iter().map(mapped).collect()),
            other => other,
        }
    }
}

impl Node<'_> {
    /// Refuses attributes that have not been understood.
    fn knows(&self, names: &[&str]) -> Result<(), Error> {
        match self.attributes.iter().find(|(name, _)| !names.contains(name)) {
            Some((name, _)) => Err(self.refused(format!("unknown attribute {name}"))),
            None => Ok(()),
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.number)
    }

    fn numbers(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name).map(|attribute| &attribute.numbers[..])
    }
}
