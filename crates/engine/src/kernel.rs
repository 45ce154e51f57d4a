//! A compiled network for a program inside the kernel of Linux: the bytes of `struct net` in
//! `crates/packetio/bpf/net.h`, which says what each number means. They are in this machine's byte
//! order and for this process alone; what is to be kept is a [`snapshot`](crate::snapshot()).

use crate::compile::compile;
use crate::error::Error;
use crate::integers::{Hidden, Integers, Kind, Output, WORD_MAX};
use crate::onnx::Model;
use crate::ranges::Ranges;
use crate::tabulated::Lookup;
use crate::{graph, plan};

mod forest;

/// Multiplications of a network, at most: some 2 µs per answer, in which the CPU takes no packet.
const MULTIPLICATIONS: usize = 10_000;
// As in net.h.
const PLACES: usize = 12;
const WIDTH: usize = 96;
const CHUNK: usize = 16;
const GROUP: usize = 8;
const LAYERS: usize = 3;
const WEIGHTS: usize = 6144;
const LENGTHS: usize = 4096;
const CLASSES: usize = 64;
const CONTEXTS: usize = 2;
const BLOCK: usize = 65_536;
const ROW: usize = 256;
const LAYER_BYTES: usize = 16 + WIDTH * (size_of::<i64>() + size_of::<u32>());

/// Compiles a network for the kernel. It gives the same answers there, to the bit. Its context, if
/// it has one, is the IP protocol and the server's port, in this order.
///
/// # Errors
/// As for [`Network::compile`](crate::Network::compile); or the network is none that the kernel
/// takes, and the error says why.
pub fn kernel(onnx: &[u8], ranges: Option<&Ranges>) -> Result<Vec<u8>, Error> {
    match (graph::plan(&Model::read(onnx)?)?, ranges) {
        (plan::Kind::Network(plan), Some(ranges)) if plan.values.is_none() => {
            network(&compile(&plan, ranges)?)
        }
        (plan::Kind::Network(plan), _) if plan.values.is_some() => {
            refused("a network that ONNX's tools have quantised")
        }
        (plan::Kind::Network(_), _) => refused("a network without ranges, in floats"),
        (plan::Kind::Forest(forest), _) => self::forest::forest(&forest),
    }
}

fn refused<T>(what: impl Into<String>) -> Result<T, Error> {
    Err(Error::Kernel(what.into()))
}

/// Refuses what is more than the kernel takes.
fn at_most(count: usize, most: usize, of: &str) -> Result<(), Error> {
    match count <= most {
        true => Ok(()),
        false => refused(format!("{} {of}; it takes {}", thousands(count), thousands(most))),
    }
}

/// Digits in groups of three.
fn thousands(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

/// Tables of a dense layer 0: the places' one, and those for the context, each with its look-up.
type Tables<'a> = (&'a [i16], &'a [(Option<usize>, Vec<i16>)]);

/// Layer 0, unless the network is larger than the kernel's shapes, or has other layers.
fn checked(integers: &Integers) -> Result<Tables<'_>, Error> {
    let Integers { places, elements, context, first, hidden, output, .. } = integers;
    let Kind::Dense { tables, context: contexts } = &first.kind else {
        return refused("a convolution");
    };
    let weights = hidden.iter().map(|layer| layer.weights.len()).sum::<usize>();
    at_most(weights + output.weights.len(), MULTIPLICATIONS, "multiplications")?;
    at_most(*places, PLACES, "elements")?;
    at_most(elements.row_of.len(), LENGTHS, "lengths that differ")?;
    let widest = hidden.iter().map(|layer| layer.outputs).fold(first.width, usize::max);
    at_most(widest, WIDTH, "activations of a layer")?;
    at_most(hidden.len() + 2, LAYERS + 1, "layers")?;
    at_most(output.classes, CLASSES, "classes")?;
    at_most(contexts.len(), CONTEXTS, "tables of the context")?;
    match context {
        0 | 2 => Ok((tables, contexts)),
        _ => refused("a context other than protocol and server's port"),
    }
}

fn network(integers: &Integers) -> Result<Vec<u8>, Error> {
    let (tables, contexts) = checked(integers)?;
    let Integers { places, elements, codes, first, hidden, output, .. } = integers;
    let mut blocks = Blocks(vec![0; BLOCK]);
    let tables = [tables, &absent(tables, integers)].concat();
    let (of_places, shift) = blocks.words(&tables, first.width);
    let lookup = |lookup: Option<usize>| lookup.map(|i| &integers.lookups[i]);
    let mut functions = vec![];
    for (of, rows) in contexts {
        let numbers = blocks.numbers(lookup(*of));
        let (at, shift) = blocks.words(rows, first.width);
        functions.push([numbers[0], numbers[1], numbers[2], at, shift]);
    }
    functions.resize(CONTEXTS, [0; 5]);
    let numbers = blocks.numbers(lookup(output.lookup));
    let scores = output.scores.chunks_exact(output.classes);
    let (at, score_shift) = blocks.rows(
        scores.map(|row| row.iter().flat_map(|score| score.to_ne_bytes()).collect::<Vec<u8>>()),
    );
    functions.push([numbers[0], numbers[1], numbers[2], at, score_shift]);

    let mut net = Numbers::head(false, *places, output.classes);
    net.u32(first.width.div_ceil(CHUNK));
    net.u32(hidden.len() + 1);
    net.i32(elements.low);
    net.i32(elements.low + elements.row_of.len() as i32 - 1);
    net.u32(of_places as usize);
    net.u32(codes << shift);
    net.u32(shift as usize);
    net.u32(contexts.len());
    functions.iter().flatten().for_each(|&number| net.u32(number as usize));
    net.padded(PLACES + 1, output.temperatures.iter().map(|&it| i32::from(it).to_ne_bytes()));
    net.padded(LENGTHS, elements.row_of.iter().map(|row| row.to_ne_bytes()));
    let mut inputs = first.width;
    let mut words = vec![];
    for layer in hidden {
        net.layer(inputs, layer, &mut words);
        inputs = layer.outputs;
    }
    net.layer(inputs, &last(output), &mut words);
    net.0.resize(net.0.len() + (LAYERS - 1 - hidden.len()) * LAYER_BYTES, 0);
    at_most(2 * words.len(), 2 * WEIGHTS, "multiplications, layers being padded")?;
    net.padded(WEIGHTS, words.iter().map(|word| word.to_ne_bytes()));
    Ok(blocks.bytes(&net))
}

/// For each number of elements, the sum of the rows of the places behind them.
fn absent(tables: &[i16], integers: &Integers) -> Vec<i16> {
    let Integers { places, codes, elements, first, .. } = integers;
    let code = elements.row(0.0);
    let mut sums = vec![0; (*places + 1) * first.width];
    for place in (0..*places).rev() {
        for i in 0..first.width {
            let of_place = tables[(place * codes + code) * first.width + i];
            sums[place * first.width + i] = sums[(place + 1) * first.width + i] + of_place;
        }
    }
    sums
}

/// The last layer as one between activations; its scores come behind it.
fn last(output: &Output) -> Hidden {
    Hidden {
        taps: 1,
        outputs: output.classes,
        weights: output.weights.clone(),
        bias: vec![1 << (output.shift - 1); output.classes],
        shifts: vec![output.shift; output.classes],
        top: WORD_MAX,
    }
}

/// Tables behind each other from the second block on; the first is kept for the network.
struct Blocks(Vec<u8>);

impl Blocks {
    /// Adds rows of one length, each padded to a power of two of bytes, so that none reaches over
    /// the end of a block; the position of the first, and the power.
    fn rows(&mut self, rows: impl Iterator<Item = Vec<u8>>) -> (u32, u32) {
        let (mut at, mut bytes) = (None, size_of::<u64>());
        for row in rows {
            bytes = row.len().next_power_of_two().max(bytes);
            self.0.resize(self.0.len().next_multiple_of(bytes), 0);
            at.get_or_insert(self.0.len());
            self.0.extend(&row);
        }
        self.0.resize(self.0.len().next_multiple_of(bytes), 0);
        (at.unwrap_or(0) as u32, bytes.ilog2())
    }

    /// Adds rows of layer 0, four numbers to a word.
    fn words(&mut self, numbers: &[i16], width: usize) -> (u32, u32) {
        let word = |four: &[i16]| {
            four.iter().rev().fold(0, |word: i64, &it| (word << 16).wrapping_add(it.into()))
        };
        self.rows(numbers.chunks_exact(width).map(|row| {
            let mut bytes: Vec<u8> =
                row.chunks(4).flat_map(|four| word(four).to_ne_bytes()).collect();
            bytes.resize(2 * width.next_multiple_of(CHUNK), 0);
            bytes
        }))
    }

    /// Adds the rows' numbers of a look-up: the column of the context, its last number, and where
    /// they begin. Without a look-up there is one row.
    fn numbers(&mut self, lookup: Option<&(usize, Lookup)>) -> [u32; 3] {
        let at = self.0.len();
        let (column, rows) = lookup.map_or((0, &[0][..]), |(column, it)| (*column, &it.row_of));
        self.0.extend(rows.iter().flat_map(|row| row.to_ne_bytes()));
        [column as u32, rows.len() as u32 - 1, at as u32]
    }

    /// The blocks, each with room for a row behind it, and the head in the first one.
    fn bytes(mut self, head: &Numbers) -> Vec<u8> {
        self.0[..head.0.len()].copy_from_slice(&head.0);
        let mut bytes = Vec::with_capacity(self.0.len().div_ceil(BLOCK) * (BLOCK + ROW));
        for (number, block) in (1..).zip(self.0.chunks(BLOCK)) {
            bytes.extend(block);
            bytes.resize(number * (BLOCK + ROW), 0);
        }
        bytes
    }
}

/// Fields of a `struct`, one after the other.
#[derive(Default)]
struct Numbers(Vec<u8>);

impl Numbers {
    fn head(is_forest: bool, places: usize, classes: usize) -> Self {
        let mut head = Self::default();
        head.u32(0); // the generation, which packetio writes
        head.u32(is_forest.into());
        head.u32(places);
        head.u32(classes);
        head
    }

    fn u32(&mut self, number: usize) {
        self.0.extend((number as u32).to_ne_bytes());
    }

    fn i32(&mut self, number: i32) {
        self.0.extend(number.to_ne_bytes());
    }

    /// An array of `len` numbers, the last ones 0.
    fn padded<const N: usize>(&mut self, len: usize, numbers: impl Iterator<Item = [u8; N]>) {
        let end = self.0.len() + len * N;
        self.0.extend(numbers.flatten());
        self.0.resize(end, 0);
    }

    /// A layer, whose weights join the others' in `words`.
    fn layer(&mut self, inputs: usize, of: &Hidden, words: &mut Vec<u64>) {
        let (chunks, groups) = (inputs.div_ceil(CHUNK), of.outputs.div_ceil(GROUP));
        let weight = |input: usize, output: usize| match input < inputs && output < of.outputs {
            true => i64::from(of.weights[input * of.outputs + output]),
            false => 0,
        };
        self.u32(words.len());
        self.u32(chunks);
        self.u32(groups);
        self.u32(chunks * CHUNK * GROUP / 2);
        for group in 0..groups {
            for input in 0..chunks * CHUNK {
                for output in (group * GROUP..(group + 1) * GROUP).step_by(2) {
                    let pair = weight(input, output) + (weight(input, output + 1) << 32);
                    words.push(pair.cast_unsigned());
                }
            }
        }
        self.padded(WIDTH, of.bias.iter().map(|&bias| i64::from(bias).to_ne_bytes()));
        self.padded(WIDTH, of.shifts.iter().map(|shift| shift.to_ne_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{model, models};

    fn ranges(name: &str) -> Option<Ranges> {
        let text = std::fs::read_to_string(models().join(name).join("ranges.csv")).ok()?;
        Some(Ranges::parse(&text).unwrap())
    }

    #[test]
    fn models_are_whole_blocks_or_refused_by_their_reason() {
        for name in ["protocol", "iot-family"] {
            let bytes = kernel(&model(name), ranges(name).as_ref()).unwrap();
            assert_eq!(bytes.len() % (BLOCK + ROW), 0);
        }
        for (name, ranges, why) in [
            ("app-id-k10", ranges("app-id-k10"), "a convolution"),
            ("protocol-int8", None, "a network that ONNX's tools have quantised"),
            ("protocol", None, "a network without ranges, in floats"),
        ] {
            let refused = kernel(&model(name), ranges.as_ref()).unwrap_err();
            assert_eq!(refused.to_string(), format!("the kernel does not take {why}"));
        }
    }

    #[test]
    fn a_network_is_refused_by_its_multiplications() {
        let Ok(plan::Kind::Network(plan)) = graph::plan(&Model::read(&model("protocol")).unwrap())
        else {
            panic!();
        };
        let mut integers = compile(&plan, &ranges("protocol").unwrap()).unwrap();
        integers.hidden[0].weights.resize(12_345 - integers.output.weights.len(), 0);
        assert_eq!(
            network(&integers).unwrap_err().to_string(),
            "the kernel does not take 12,345 multiplications; it takes 10,000"
        );
    }
}
