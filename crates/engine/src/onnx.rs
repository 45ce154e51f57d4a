//! What the engine reads of an ONNX file: nodes, constants, inputs, outputs.
//!
//! Whatever could make another reader compute something else is refused: functions, sparse or
//! external constants, subgraphs, a graph in two parts, two values of one name.
//!
//! Memory stays within a small multiple of the file's size: every list grows by what the file
//! holds, and the dimensions of a constant must agree with its data.
//!
//! Source: `onnx.proto`, <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>

use std::collections::{HashMap, HashSet};

use crate::error::Error;
use crate::wire::{Fields, Value};

/// The oldest version of the operators whose meaning is known here: since 13, `ReduceSum` takes its
/// axes as an input, and `Softmax` works along one axis.
const OPSET_MIN: i64 = 13;

/// Far more than any network of ours has. An empty node takes two bytes of a file, and a hundred of
/// memory.
const NODES_MAX: usize = 4096;
const ATTRIBUTES_MAX: usize = 64;

/// A model, with its names borrowed from the file.
#[derive(Debug, Default)]
pub(crate) struct Model<'a> {
    pub nodes: Vec<Node<'a>>,
    pub constants: HashMap<&'a str, Tensor>,
    /// Inputs that are not constants, each with its axes; −1 where the length is free.
    pub inputs: Vec<(&'a str, Vec<i64>)>,
    pub outputs: Vec<&'a str>,
}

#[derive(Debug, Default)]
pub(crate) struct Node<'a> {
    name: &'a str,
    /// Empty for the operators of ONNX itself.
    pub domain: &'a str,
    pub operator: &'a str,
    /// An optional input that is left out has an empty name.
    pub inputs: Vec<&'a str>,
    pub outputs: Vec<&'a str>,
    pub attributes: Vec<(&'a str, Attribute<'a>)>,
}

#[derive(Debug, Default)]
pub(crate) struct Attribute<'a> {
    pub number: i64,
    pub float: f32,
    pub text: &'a [u8],
    pub numbers: Vec<i64>,
    pub floats: Vec<f32>,
    pub texts: Vec<&'a [u8]>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub shape: Vec<i64>,
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    F32(Vec<f32>),
    U8(Vec<u8>),
    I8(Vec<i8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

impl<'a> Node<'a> {
    /// The name by which errors speak of the node.
    pub fn named(&self) -> &'a str {
        match self.outputs.first() {
            Some(output) if self.name.is_empty() => output,
            _ => self.name,
        }
    }

    pub fn refused(&self, why: impl Into<String>) -> Error {
        Error::Node { node: self.named().to_owned(), why: why.into() }
    }

    pub fn attribute(&self, name: &str) -> Option<&Attribute<'a>> {
        self.attributes.iter().find(|(found, _)| *found == name).map(|(_, attribute)| attribute)
    }
}

impl Tensor {
    /// The numbers, if they are floats.
    pub fn floats(&self) -> Option<&[f32]> {
        match &self.data {
            Data::F32(values) => Some(values),
            _ => None,
        }
    }

    /// The only number of a float constant.
    pub fn float(&self) -> Option<f32> {
        match self.floats()? {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The numbers, if they are integers of 64 bits: shapes, axes, indices.
    pub fn integers(&self) -> Option<&[i64]> {
        match &self.data {
            Data::I64(values) => Some(values),
            _ => None,
        }
    }
}

impl<'a> Model<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let (mut graph, mut opset) = (None, None);
        for field in Fields::new(bytes) {
            match field? {
                (7, _) if graph.is_some() => {
                    return Err(Error::Malformed("it holds two graphs"));
                }
                (7, value) => graph = Some(value.bytes()?),
                (8, value) => {
                    let (domain, version) = operators(value.bytes()?)?;
                    if domain.is_empty() {
                        opset = Some(version);
                    }
                }
                (25, _) => return Err(Error::Malformed("it defines functions")),
                _ => {}
            }
        }
        if opset.is_none_or(|version| version < OPSET_MIN) {
            return Err(Error::Malformed("its operators are older than version 13"));
        }
        let graph = graph.ok_or(Error::Malformed("it holds no graph"))?;
        Self::graph(graph)
    }

    fn graph(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut model = Self::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, _) if model.nodes.len() == NODES_MAX => {
                    return Err(Error::Malformed("it has more than 4096 nodes"));
                }
                (1, value) => model.nodes.push(node(value.bytes()?)?),
                (5, value) => {
                    let (name, tensor) = tensor(value.bytes()?)?;
                    if model.constants.insert(name, tensor).is_some() {
                        return Err(Error::Malformed("two constants have one name"));
                    }
                }
                (11, value) => model.inputs.push(input(value.bytes()?)?),
                (12, value) => model.outputs.push(input(value.bytes()?)?.0),
                (15, _) => return Err(Error::Malformed("a constant is sparse")),
                _ => {}
            }
        }
        model.inputs.retain(|(name, _)| !model.constants.contains_key(name));
        let mut names: HashSet<&str> = model.constants.keys().copied().collect();
        let made = model.nodes.iter().flat_map(|node| &node.outputs).copied();
        for name in made.chain(model.inputs.iter().map(|(name, _)| *name)) {
            if !name.is_empty() && !names.insert(name) {
                return Err(Error::Malformed("two values have one name"));
            }
        }
        Ok(model)
    }
}

/// An operator set: domain and version.
fn operators(bytes: &[u8]) -> Result<(&str, i64), Error> {
    let (mut domain, mut version) = ("", 0);
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => domain = value.text()?,
            (2, value) => version = value.number()?,
            _ => {}
        }
    }
    Ok((if domain == "ai.onnx" { "" } else { domain }, version))
}

fn node(bytes: &[u8]) -> Result<Node<'_>, Error> {
    let mut node = Node::default();
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => node.inputs.push(value.text()?),
            (2, value) => node.outputs.push(value.text()?),
            (3, value) => node.name = value.text()?,
            (4, value) => node.operator = value.text()?,
            (5, _) if node.attributes.len() == ATTRIBUTES_MAX => {
                return Err(Error::Malformed("a node has more than 64 attributes"));
            }
            (5, value) => node.attributes.push(attribute(value.bytes()?)?),
            (7, value) => node.domain = value.text()?,
            _ => {}
        }
    }
    if node.domain == "ai.onnx" {
        node.domain = "";
    }
    Ok(node)
}

fn attribute(bytes: &[u8]) -> Result<(&str, Attribute<'_>), Error> {
    let (mut name, mut attribute) = ("", Attribute::default());
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => name = value.text()?,
            (2, Value::Fixed32(bits)) => attribute.float = f32::from_bits(bits),
            (3, value) => attribute.number = value.number()?,
            (4, value) => attribute.text = value.bytes()?,
            (7, value) => value.floats_into(&mut attribute.floats)?,
            (8, value) => value.numbers_into(&mut attribute.numbers)?,
            (9, value) => attribute.texts.push(value.bytes()?),
            (6 | 11, _) => return Err(Error::Malformed("a node holds a graph")),
            _ => {}
        }
    }
    Ok((name, attribute))
}

/// An input or an output: name and axes.
fn input(bytes: &[u8]) -> Result<(&str, Vec<i64>), Error> {
    let (mut name, mut axes) = ("", vec![]);
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => name = value.text()?,
            (2, value) => axes = self::axes(value.bytes()?)?,
            _ => {}
        }
    }
    Ok((name, axes))
}

/// The axes of a tensor's type: `TypeProto.tensor_type.shape.dim.dim_value`.
fn axes(kind: &[u8]) -> Result<Vec<i64>, Error> {
    let mut axes = vec![];
    for tensor in of(kind, 1) {
        for shape in of(tensor?, 2) {
            for axis in of(shape?, 1) {
                let mut length = -1;
                for field in Fields::new(axis?) {
                    if let (1, value) = field? {
                        length = value.number()?;
                    }
                }
                axes.push(length);
            }
        }
    }
    Ok(axes)
}

/// The messages in all fields of a number.
fn of(message: &[u8], number: u32) -> impl Iterator<Item = Result<&[u8], Error>> {
    Fields::new(message).filter_map(move |field| match field {
        Ok((found, value)) => (found == number).then(|| value.bytes()),
        Err(error) => Some(Err(error)),
    })
}

/// A constant: name and value.
fn tensor(bytes: &[u8]) -> Result<(&str, Tensor), Error> {
    let (mut name, mut shape, mut kind, mut raw) = ("", vec![], 0, None);
    let (mut floats, mut integers) = (vec![], vec![]);
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => value.numbers_into(&mut shape)?,
            (2, value) => kind = value.number()?,
            (4, value) => value.floats_into(&mut floats)?,
            (5 | 7, value) => value.numbers_into(&mut integers)?,
            (8, value) => name = value.text()?,
            (9, value) => raw = Some(value.bytes()?),
            (14, Value::Number(0)) => {}
            (3 | 13 | 14, _) => return Err(Error::Malformed("a constant stands elsewhere")),
            _ => {}
        }
    }
    if raw.is_some() && !(floats.is_empty() && integers.is_empty()) {
        return Err(Error::Malformed("a constant is there twice"));
    }
    let data = match kind {
        1 => Data::F32(raw.map_or(Ok(floats), |raw| chunks(raw, f32::from_le_bytes))?),
        2 => Data::U8(raw.map_or_else(|| narrowed(&integers), |raw| Ok(raw.to_vec()))?),
        3 => {
            Data::I8(raw.map_or_else(|| narrowed(&integers), |raw| chunks(raw, i8::from_le_bytes))?)
        }
        6 => Data::I32(
            raw.map_or_else(|| narrowed(&integers), |raw| chunks(raw, i32::from_le_bytes))?,
        ),
        7 => Data::I64(raw.map_or(Ok(integers), |raw| chunks(raw, i64::from_le_bytes))?),
        _ => return Err(Error::Malformed("a constant has a type that is not read")),
    };
    let len = match &data {
        Data::F32(values) => values.len(),
        Data::U8(values) => values.len(),
        Data::I8(values) => values.len(),
        Data::I32(values) => values.len(),
        Data::I64(values) => values.len(),
    };
    let wanted = shape.iter().try_fold(1usize, |product, &length: &i64| {
        product.checked_mul(usize::try_from(length).ok()?)
    });
    if wanted != Some(len) {
        return Err(Error::Malformed("a constant's shape does not fit its data"));
    }
    Ok((name, Tensor { shape, data }))
}

fn chunks<T, const N: usize>(raw: &[u8], read: impl Fn([u8; N]) -> T) -> Result<Vec<T>, Error> {
    match raw.as_chunks() {
        (chunks, []) => Ok(chunks.iter().map(|&chunk| read(chunk)).collect()),
        _ => Err(Error::Malformed("a constant is cut short")),
    }
}

fn narrowed<T: TryFrom<i64>>(integers: &[i64]) -> Result<Vec<T>, Error> {
    let narrow = |&integer| T::try_from(integer);
    integers
        .iter()
        .map(narrow)
        .collect::<Result<_, _>>()
        .map_err(|_| Error::Malformed("a constant's number is out of its type's range"))
}
