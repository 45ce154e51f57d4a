//! Refuses a model that keeps data in other files.
//!
//! ONNX lets a tensor keep its data in another file ("external data"), and ONNX Runtime reads that
//! file wherever it is; for a model in memory it looks in the working directory. The manifest's
//! hash does not cover such data. So every tensor of the model is checked before the runtime sees
//! any of it.
//!
//! Three rules make sure that no tensor is missed. [`Message::field`] lists every field of the
//! messages that can hold a tensor, directly or further down, up to IR version 14 of
//! `onnx-ml.proto`. A field that is not listed and has contents is refused, because a later version
//! of ONNX might keep tensors in it. And [`engine::wire`] refuses whatever another reader could
//! understand differently. A field that occurs several times is checked each time, although the
//! runtime may use only the last or merge them.
//!
//! A model that was compiled for a device (a node `EPContext`) may be in another file, too. The
//! same rule applies.

use engine::wire::{Fields, Value};

/// How deep messages may be nested. This is protobuf's own limit, so the runtime reads nothing
/// deeper either.
const DEPTH_MAX: usize = 100;

/// The most characters of a name that an error shows.
const NAME_MAX: usize = 80;

/// Marks a model in ORT format, which is ONNX Runtime's own and not protobuf: offset and bytes.
const ORT_FORMAT: (usize, &[u8]) = (4, b"ORTM");

/// The messages that can hold tensors, by their names in `onnx-ml.proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    SparseTensor,
    Tensor,
}

/// What a field that has contents can hold.
enum Contents {
    /// No tensor.
    Plain,
    /// A message that can hold a tensor.
    Inside(Message),
    /// Where a tensor's data are, if not in the tensor.
    Elsewhere,
    /// The field is not listed.
    Unknown,
}

impl Message {
    fn name(self) -> &'static str {
        match self {
            Message::Model => "ModelProto",
            Message::Training => "TrainingInfoProto",
            Message::Function => "FunctionProto",
            Message::Graph => "GraphProto",
            Message::Node => "NodeProto",
            Message::Attribute => "AttributeProto",
            Message::SparseTensor => "SparseTensorProto",
            Message::Tensor => "TensorProto",
        }
    }

    /// What field `number` of this message can hold, according to `onnx-ml.proto`.
    fn field(self, number: u32) -> Contents {
        use Contents::{Elsewhere, Inside, Plain, Unknown};
        match (self, number) {
            (Message::Model, 7) => Inside(Message::Graph),
            (Message::Model, 20) => Inside(Message::Training),
            (Message::Model, 25) => Inside(Message::Function),
            (Message::Model, 1..=6 | 8 | 14 | 26) => Plain,
            (Message::Training, 1 | 2) => Inside(Message::Graph),
            (Message::Training, 3 | 4) => Plain,
            (Message::Function, 7) => Inside(Message::Node),
            (Message::Function, 11) => Inside(Message::Attribute),
            (Message::Function, 1 | 4..=6 | 8..=10 | 12..=14) => Plain,
            (Message::Graph, 1) => Inside(Message::Node),
            (Message::Graph, 5) => Inside(Message::Tensor),
            (Message::Graph, 15) => Inside(Message::SparseTensor),
            (Message::Graph, 2 | 10..=14 | 16) => Plain,
            (Message::Node, 5) => Inside(Message::Attribute),
            (Message::Node, 1..=4 | 6..=10) => Plain,
            (Message::Attribute, 5 | 10) => Inside(Message::Tensor),
            (Message::Attribute, 6 | 11) => Inside(Message::Graph),
            (Message::Attribute, 22 | 23) => Inside(Message::SparseTensor),
            (Message::Attribute, 1..=4 | 7..=9 | 13..=15 | 20 | 21) => Plain,
            (Message::SparseTensor, 1 | 2) => Inside(Message::Tensor),
            (Message::SparseTensor, 3) => Plain,
            // external_data, data_location.
            (Message::Tensor, 13 | 14) => Elsewhere,
            (Message::Tensor, 1..=12 | 16) => Plain,
            _ => Unknown,
        }
    }
}

/// Checks that `bytes` hold the whole model.
///
/// # Errors
/// What is in another file, by name, and how to bring it in; or why that cannot be determined.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let (at, mark) = ORT_FORMAT;
    if bytes.get(at..).is_some_and(|rest| rest.starts_with(mark)) {
        return Err("is in ORT format; export it as ONNX (.onnx)".to_owned());
    }
    visit(Message::Model, bytes, DEPTH_MAX).map_err(|found| found.to_string())
}

/// Why a model is refused.
#[derive(Debug, thiserror::Error)]
enum Found {
    #[error("is not an ONNX model: it cannot be read as a ModelProto")]
    Malformed,
    #[error("has messages nested more than {DEPTH_MAX} deep, which ONNX Runtime does not read")]
    Deep,
    #[error(
        "field {number} of its {} is unknown and may have parts outside of the file; export the \
         model with IR version 14 or \
         earlier", message.name()
    )]
    Unknown { message: Message, number: u32 },
    #[error(
        "the tensor {} keeps its data in another file{}, which sha256 does not cover; save the \
         model as one file, \
         onnx.save(onnx.load(FILE), FILE, save_as_external_data=False), and update sha256 in \
         model.toml",
        quoted(name),
        location(at)
    )]
    Tensor { name: Vec<u8>, at: Vec<u8> },
    #[error(
        "the node {} (EPContext) keeps its compiled model in another file, which sha256 does not \
         cover; compile it with \
         ep.context_embed_mode = 1, and update sha256 in model.toml",
        quoted(name)
    )]
    Compiled { name: Vec<u8> },
}

impl From<engine::Error> for Found {
    fn from(_: engine::Error) -> Self {
        Found::Malformed
    }
}

/// Checks all fields of a message and of the messages in it. Each byte is visited once for each
/// message that it is part of.
fn visit(message: Message, bytes: &[u8], depth: usize) -> Result<(), Found> {
    let depth = depth.checked_sub(1).ok_or(Found::Deep)?;
    for field in Fields::new(bytes) {
        match (field?, message) {
            ((number, Value::Bytes(inside)), _) => match message.field(number) {
                Contents::Plain => {}
                Contents::Inside(kind) => {
                    visit(kind, inside, depth).map_err(|found| found.named_by(message, bytes))?;
                }
                Contents::Elsewhere => return Err(tensor(bytes)),
                Contents::Unknown => return Err(Found::Unknown { message, number }),
            },
            // The location is 0 if the data are in the tensor.
            (
                (number, Value::Number(1..) | Value::Fixed32(_) | Value::Fixed64),
                Message::Tensor,
            ) if matches!(message.field(number), Contents::Elsewhere) => {
                return Err(tensor(bytes));
            }
            _ => {}
        }
    }
    match message {
        Message::Node => check_compiled(bytes),
        _ => Ok(()),
    }
}

impl Found {
    /// Names a tensor without a name, such as a constant's, by the output of its node.
    fn named_by(self, message: Message, bytes: &[u8]) -> Found {
        match self {
            Found::Tensor { name, at } if name.is_empty() && message == Message::Node => {
                let name = first(bytes, node::OUTPUT).or_else(|| first(bytes, node::NAME));
                let name = name.unwrap_or_default().to_vec();
                Found::Tensor { name, at }
            }
            found => found,
        }
    }
}

/// Numbers of fields whose values are read.
mod node {
    pub const OUTPUT: u32 = 2;
    pub const NAME: u32 = 3;
    pub const OP_TYPE: u32 = 4;
    pub const ATTRIBUTE: u32 = 5;
}
mod attribute {
    pub const NAME: u32 = 1;
    pub const I: u32 = 3;
}

/// The error for a tensor whose data are in another file.
fn tensor(bytes: &[u8]) -> Found {
    const NAME: u32 = 8;
    const EXTERNAL_DATA: u32 = 13;
    const KEY: u32 = 1;
    const VALUE: u32 = 2;
    let is_location = |entry: &&[u8]| first(entry, KEY) == Some(b"location");
    let at = contents(bytes, EXTERNAL_DATA).find(is_location);
    Found::Tensor {
        name: first(bytes, NAME).unwrap_or_default().to_vec(),
        at: at.and_then(|entry| first(entry, VALUE)).unwrap_or_default().to_vec(),
    }
}

/// Refuses a compiled model in another file: a node of type `EPContext` whose attribute
/// `embed_mode` is not 1. The default is 1.
fn check_compiled(bytes: &[u8]) -> Result<(), Found> {
    if !contents(bytes, node::OP_TYPE).any(|name| name == b"EPContext") {
        return Ok(());
    }
    let is_mode =
        |entry: &&[u8]| contents(entry, attribute::NAME).any(|name| name == b"embed_mode");
    let is_embedded = |entry: &[u8]| {
        let numbers = Fields::new(entry).filter_map(|field| match field {
            Ok((attribute::I, Value::Number(number))) => Some(number),
            _ => None,
        });
        numbers.eq([1])
    };
    match contents(bytes, node::ATTRIBUTE).filter(is_mode).all(is_embedded) {
        true => Ok(()),
        false => {
            Err(Found::Compiled { name: first(bytes, node::NAME).unwrap_or_default().to_vec() })
        }
    }
}

/// The contents of every field with this number.
fn contents(bytes: &[u8], wanted: u32) -> impl Iterator<Item = &[u8]> {
    Fields::new(bytes).filter_map(move |field| match field {
        Ok((number, Value::Bytes(contents))) if number == wanted => Some(contents),
        _ => None,
    })
}

fn first(bytes: &[u8], wanted: u32) -> Option<&[u8]> {
    contents(bytes, wanted).next()
}

/// A name from the model, quoted and on one line.
fn quoted(name: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(name).chars().take(NAME_MAX).collect();
    format!("{text:?}")
}

fn location(at: &[u8]) -> String {
    match at {
        [] => String::new(),
        at => format!(" ({})", quoted(at)),
    }
}

#[cfg(test)]
mod tests;
