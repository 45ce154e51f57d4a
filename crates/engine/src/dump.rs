//! The integers of a network as a file, for tools that compute the same in another way.

use crate::compile::compile;
use crate::error::Error;
use crate::integers::{Integers, Kind};
use crate::onnx::Model;
use crate::ranges::Ranges;
use crate::{graph, plan};

/// Compiles a network and writes its integers in the form of safetensors: see
/// <https://huggingface.co/docs/safetensors>. Shapes are without padding.
///
/// # Errors
/// As for [`Network::compile`](crate::Network::compile); what needs no ranges has no
/// integers to write.
pub fn dump(onnx: &[u8], ranges: &Ranges) -> Result<Vec<u8>, Error> {
    match graph::plan(&Model::read(onnx)?)? {
        plan::Kind::Network(plan) if plan.values.is_none() => {
            Ok(Tensors::of(&compile(&plan, ranges)?).file())
        }
        _ => Err(Error::Ranges("a quantised network and trees have none".into())),
    }
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

    fn bytes(self) -> impl IntoIterator<Item = u8>;
}

macro_rules! numbers {
    ($($number:ident $kind:literal)*) => {$(
        impl Number for $number {
            const KIND: &str = $kind;

            fn bytes(self) -> impl IntoIterator<Item = u8> {
                self.to_le_bytes()
            }
        }
    )*};
}
numbers! { i16 "I16" u16 "U16" i32 "I32" }

impl Tensors {
    fn of(network: &Integers) -> Self {
        let Integers { places, elements, codes, lookups, first, hidden, output, .. } = network;
        let (places, width) = (*places, first.width);
        let mut tensors = Self::default();
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
        let classes = output.classes;
        let shape = [output.weights.len() / classes, classes];
        tensors.add("output.weights", &shape, &output.weights);
        tensors.add("output.shift", &[1], &[output.shift]);
        tensors.add("output.scores", &[output.scores.len() / classes, classes], &output.scores);
        let lookup = output.lookup.map_or(-1, |lookup| lookup as i32);
        tensors.add("output.lookup", &[1], &[lookup]);
        tensors.add("output.temperatures", &[places + 1], &output.temperatures);
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

    fn file(self) -> Vec<u8> {
        let mut header = format!("{{{}}}", self.header.join(","));
        // Numbers begin at a multiple of eight.
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &self.bytes].concat()
    }
}
