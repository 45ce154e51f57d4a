//! A compiled network as a file: for kernels, for small devices, and for tools that compute the
//! same in another way. Its form is safetensors (<https://huggingface.co/docs/safetensors>): eight
//! bytes with the length of a JSON header, the header, the numbers. `docs/model.md` has the header.
//!
//! The tensors, with their types and shapes:
//!
//! * `shape`: `i32 [4]`; channels, elements (places), numbers of the context, classes.
//! * `elements.low`, `.row_of`: `i32 [1]`, u16; the code of length x is `row_of[clamp(x) − low]`;
//!   beyond the ends the end counts.
//! * `lookup0.column`, `.row_of`, …: `i32 [1]`, u16; a look-up of a number of the context, from 0
//!   on.
//! * `first.tables`: `i16 [places, codes, channels]`; dense layer 0: what the code of each element
//!   adds.
//! * `first.context0`, `.lookup`, …: `i16 [rows, channels]`, `i32 [1]`; what the row adds that this
//!   look-up finds; −1: there is one row.
//! * `first.taps`, `first.bias`: `i16 [3, codes, channels]`, `[channels]`; the same of a
//!   convolution as layer 0.
//! * `first.multipliers`: `i16 [channels]`; of a convolution: Q15; they make activations of its
//!   sums.
//! * `first.top`, `hidden0.top`, …: `i16 [1]`; the largest activation of the layer: 127 for bytes,
//!   4095 for words.
//! * `hidden0.weights`, …: `i16 [taps, inputs, outputs]`; the next layers; taps is 1, or 3 for a
//!   convolution.
//! * `hidden0.bias`, `.shifts`, …: `i32 [outputs]`; `clamp((sum + bias) >> shift, 0, top)`.
//! * `output.weights`: `i16 [inputs, classes]`; the last layer.
//! * `output.shift`, `.scores`, `.lookup`: i32; scores in units of 2⁻¹¹ bits; rows of `scores` by a
//!   look-up, −1: there is one.
//! * `output.temperatures`: `i16 [places + 1]`; Q15, by the number of elements that are not 0.
//! * `trees.roots`: `i32 [trees]`; the first node of each tree.
//! * `trees.features`, `.thresholds`: i32, `f32 [nodes]`; a node asks whether this feature is at
//!   most the threshold; −1: a leaf.
//! * `trees.next`: `i32 [nodes, 2]`; the nodes for yes and no, counted from the root; of a leaf,
//!   the first of its steps and how many.
//! * `trees.steps`: `u16 [steps, 2]`; a class, and what a leaf adds to it.
//! * `trees.scores`, `.temperatures`: f32; the score of each sum of steps; inverse temperatures, as
//!   above.
//!
//! All features are integers, so that a threshold's whole part will do. [`crate::integers`] has
//! the formulas.

use crate::compile::compile;
use crate::error::Error;
use crate::integers::{Integers, Kind};
use crate::onnx::Model;
use crate::plan::{Forest, TreeNode};
use crate::ranges::Ranges;
use crate::{graph, plan};

mod read;

pub(crate) use read::{Content, read};

/// What a file begins with; the hash follows, in 16 hexadecimal digits, then `FORMAT`.
const START: &str = r#"{"__metadata__":{"hash":""#;
const HASH_AT: usize = 8 + START.len();
const HASH_DIGITS: usize = 16;
const FORMAT: &str = r#"","format":"fenxi-snapshot","version":""#;
const VERSION: u32 = 1;

/// Compiles a network and writes its integers, or trees, with what is to be said about them: keys
/// and texts.
///
/// # Errors
/// As for [`Network::compile`](crate::Network::compile); floats have no snapshot, and neither has a
/// network that ONNX's tools have quantised.
pub fn snapshot(
    onnx: &[u8],
    ranges: Option<&Ranges>,
    about: &[(&str, &str)],
) -> Result<Vec<u8>, Error> {
    let tensors = match (graph::plan(&Model::read(onnx)?)?, ranges) {
        (plan::Kind::Network(plan), Some(ranges)) if plan.values.is_none() => {
            Tensors::of_network(&compile(&plan, ranges)?)
        }
        (plan::Kind::Forest(forest), _) => Tensors::of_trees(&forest),
        _ => return Err(Error::Snapshot("only trees and networks with ranges have one".into())),
    };
    Ok(tensors.file(about))
}

/// Tensors side by side, and what the header says about each.
#[derive(Default)]
struct Tensors {
    header: Vec<String>,
    bytes: Vec<u8>,
}

/// A number in the file.
trait Number: Copy {
    const KIND: &str;
    const BYTES: usize;

    fn bytes(self) -> impl IntoIterator<Item = u8>;
    fn all(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! numbers {
    ($($number:ident $kind:literal)*) => {$(
        impl Number for $number {
            const KIND: &str = $kind;
            const BYTES: usize = size_of::<$number>();

            fn bytes(self) -> impl IntoIterator<Item = u8> {
                self.to_le_bytes()
            }

            fn all(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|&bytes| Self::from_le_bytes(bytes)).collect()
            }
        }
    )*};
}
numbers! { i16 "I16" u16 "U16" i32 "I32" f32 "F32" }

impl Tensors {
    fn of_network(network: &Integers) -> Self {
        let Integers { places, elements, codes, context, lookups, first, hidden, output } = network;
        let (places, width, classes) = (*places, first.width, output.classes);
        let mut tensors = Self::default();
        tensors.add("shape", &[4], &[1, places as i32, *context as i32, classes as i32]);
        tensors.add("elements.low", &[1], &[elements.low]);
        tensors.add("elements.row_of", &[elements.row_of.len()], &elements.row_of);
        for (i, (column, lookup)) in lookups.iter().enumerate() {
            tensors.add(&format!("lookup{i}.column"), &[1], &[*column as i32]);
            tensors.add(&format!("lookup{i}.row_of"), &[lookup.row_of.len()], &lookup.row_of);
        }
        tensors.add("first.top", &[1], &[first.top]);
        match &first.kind {
            Kind::Dense { tables, context } => {
                tensors.add("first.tables", &[places, *codes, width], tables);
                for (i, (lookup, rows)) in context.iter().enumerate() {
                    tensors.add(&format!("first.context{i}"), &[rows.len() / width, width], rows);
                    let lookup = lookup.map_or(-1, |lookup| lookup as i32);
                    tensors.add(&format!("first.context{i}.lookup"), &[1], &[lookup]);
                }
            }
            Kind::Convolution { taps, bias, multipliers } => {
                tensors.add("first.taps", &[3, *codes, width], taps);
                tensors.add("first.bias", &[width], bias);
                tensors.add("first.multipliers", &[width], multipliers);
            }
        }
        for (i, layer) in hidden.iter().enumerate() {
            let rows = layer.weights.len() / layer.outputs;
            let shape = [layer.taps, rows / layer.taps, layer.outputs];
            tensors.add(&format!("hidden{i}.weights"), &shape, &layer.weights);
            tensors.add(&format!("hidden{i}.bias"), &[layer.outputs], &layer.bias);
            tensors.add(&format!("hidden{i}.shifts"), &[layer.outputs], &layer.shifts);
            tensors.add(&format!("hidden{i}.top"), &[1], &[layer.top]);
        }
        let shape = [output.weights.len() / classes, classes];
        tensors.add("output.weights", &shape, &output.weights);
        tensors.add("output.shift", &[1], &[output.shift]);
        tensors.add("output.scores", &[output.scores.len() / classes, classes], &output.scores);
        let lookup = output.lookup.map_or(-1, |lookup| lookup as i32);
        tensors.add("output.lookup", &[1], &[lookup]);
        tensors.add("output.temperatures", &[places + 1], &output.temperatures);
        tensors
    }

    /// All trees' nodes in one list; children are counted from their tree's root.
    fn of_trees(forest: &Forest) -> Self {
        let Forest { channels, places, context, classes, trees, scores, .. } = forest;
        let (mut roots, mut features, mut thresholds) = (vec![], vec![], vec![]);
        let (mut next, mut steps): (Vec<i32>, Vec<u16>) = (vec![], vec![]);
        for tree in trees {
            roots.push(features.len() as i32);
            for node in tree {
                match node {
                    TreeNode::Split { feature, threshold, below, above } => {
                        features.push(*feature as i32);
                        thresholds.push(*threshold);
                        next.extend([*below as i32, *above as i32]);
                    }
                    TreeNode::Leaf(adds) => {
                        features.push(-1);
                        thresholds.push(0.0);
                        next.extend([(steps.len() / 2) as i32, adds.len() as i32]);
                        steps.extend(adds.iter().flat_map(|&(c, n)| [c as u16, n.into()]));
                    }
                }
            }
        }
        let mut tensors = Self::default();
        let shape = [*channels, *places, *context, *classes].map(|it| it as i32);
        tensors.add("shape", &[4], &shape);
        tensors.add("trees.roots", &[roots.len()], &roots);
        tensors.add("trees.features", &[features.len()], &features);
        tensors.add("trees.thresholds", &[thresholds.len()], &thresholds);
        tensors.add("trees.next", &[next.len() / 2, 2], &next);
        tensors.add("trees.steps", &[steps.len() / 2, 2], &steps);
        tensors.add("trees.scores", &[scores.len()], scores);
        tensors.add("trees.temperatures", &[places + 1], &forest.inverse_temperatures);
        tensors
    }

    fn add<T: Number>(&mut self, name: &str, shape: &[usize], numbers: &[T]) {
        let (kind, start) = (T::KIND, self.bytes.len());
        self.bytes.extend(numbers.iter().flat_map(|number| number.bytes()));
        let end = self.bytes.len();
        self.header.push(format!(
            r#""{name}":{{"dtype":"{kind}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        ));
    }

    fn file(self, about: &[(&str, &str)]) -> Vec<u8> {
        let zeros = "0".repeat(HASH_DIGITS);
        let mut header = format!(r#"{START}{zeros}{FORMAT}{VERSION}""#);
        for (key, value) in about {
            header += &format!(",{}:{}", quoted(key), quoted(value));
        }
        header += &format!("}},{}}}", self.header.join(","));
        // Numbers begin at a multiple of eight.
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let mut file =
            [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &self.bytes].concat();
        let hash = format!("{:016x}", hash(&file));
        file[HASH_AT..][..HASH_DIGITS].copy_from_slice(hash.as_bytes());
        file
    }
}

/// A text as JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\0'..' ' => quoted += &format!("\\u{:04x}", u32::from(c)),
            _ => quoted.push(c),
        }
    }
    quoted + "\""
}

/// FNV-1a of the file, the digits of the hash taken as zeros. It finds damage, and any single byte
/// that has changed; against forgers it does not help.
fn hash(file: &[u8]) -> u64 {
    let digits = HASH_AT..HASH_AT + HASH_DIGITS;
    file.iter().enumerate().fold(0xcbf2_9ce4_8422_2325, |hash, (at, &byte)| {
        let byte = if digits.contains(&at) { b'0' } else { byte };
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
