//! Refuses a model that has parts outside of its file.
//!
//! ONNX lets a tensor name another file as the place of its data, and ONNX Runtime reads that file wherever it lies; from a
//! model in memory it looks in the working directory. Such data are not covered by the manifest's hash. So every tensor of
//! the model is looked at before the runtime sees any of it.
//!
//! That none is missed follows from three rules. [`Message::field`] lists every field of the messages that can hold a tensor,
//! directly or further down, up to IR version 14 of `onnx-ml.proto`. A field that is not listed there is refused where it has
//! contents: a later version of ONNX might keep tensors in it. And [`super::wire`] refuses whatever another reader could
//! understand differently. A field that occurs several times is looked at each time, though the runtime may use the last
//! only, or merge them.
//!
//! A model compiled for a device (a node `EPContext`) may lie in another file too, and is held to the same rule.

use super::wire::{Fields, Malformed, Value};

/// How deep messages may be nested; protobuf's own bound, so that the runtime takes nothing deeper either.
const DEPTH_MAX: usize = 100;

/// The most characters of a name that a message shows.
const NAME_MAX: usize = 80;

/// What stands at this place of a model in ORT format: ONNX Runtime's own, which is no protobuf.
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

/// What a field can hold, where it has contents.
enum Contents {
    /// No tensor.
    Plain,
    /// Perhaps a tensor.
    Inside(Message),
    /// Where a tensor's data lie, if not in the tensor.
    Elsewhere,
    /// Not known.
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

    /// What field `number` of this message holds, as `onnx-ml.proto` has it.
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

/// Checks that the model lies in `bytes` as a whole.
///
/// # Errors
/// What lies elsewhere, by name, and how to bring it in; or why that cannot be told.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let (at, mark) = ORT_FORMAT;
    if bytes.get(at..).is_some_and(|rest| rest.starts_with(mark)) {
        return Err("is in ORT format; export it as ONNX (.onnx)".to_owned());
    }
    walk(Message::Model, bytes, DEPTH_MAX).map_err(|found| found.to_string())
}

/// Why a model is refused.
#[derive(Debug, thiserror::Error)]
enum Found {
    #[error("is not an ONNX model: it cannot be read as a ModelProto")]
    Malformed,
    #[error("has messages nested more than {DEPTH_MAX} deep, which ONNX Runtime does not read")]
    Deep,
    #[error(
        "field {number} of its {} is unknown and may have parts outside of the file; export the model with IR version 14 or \
         earlier", message.name()
    )]
    Unknown { message: Message, number: u32 },
    #[error(
        "the tensor {} keeps its data in another file{}, which sha256 does not cover; save the model as one file, \
         onnx.save(onnx.load(FILE), FILE, save_as_external_data=False), and update sha256 in model.toml",
        shown(name),
        location(at)
    )]
    Tensor { name: Vec<u8>, at: Vec<u8> },
    #[error(
        "the node {} (EPContext) keeps its compiled model in another file, which sha256 does not cover; compile it with \
         ep.context_embed_mode = 1, and update sha256 in model.toml",
        shown(name)
    )]
    Compiled { name: Vec<u8> },
}

impl From<Malformed> for Found {
    fn from(_: Malformed) -> Self {
        Found::Malformed
    }
}

/// Looks at all fields of a message, and of those inside it. Each byte is passed once for each message that it is in.
fn walk(message: Message, bytes: &[u8], depth: usize) -> Result<(), Found> {
    let depth = depth.checked_sub(1).ok_or(Found::Deep)?;
    for field in Fields::of(bytes) {
        match (field?, message) {
            ((number, Value::Bytes(inside)), _) => match message.field(number) {
                Contents::Plain => {}
                Contents::Inside(kind) => {
                    walk(kind, inside, depth).map_err(|found| found.or_of(message, bytes))?;
                }
                Contents::Elsewhere => return Err(tensor(bytes)),
                Contents::Unknown => return Err(Found::Unknown { message, number }),
            },
            // The location is 0 where the data are in the tensor.
            ((number, Value::Number(1..) | Value::Fixed), Message::Tensor)
                if matches!(message.field(number), Contents::Elsewhere) =>
            {
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
    /// A tensor without a name, such as a constant's, is called by the node's output.
    fn or_of(self, message: Message, bytes: &[u8]) -> Found {
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

/// Numbers of fields that are read, not only walked.
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

/// A tensor with its data elsewhere.
fn tensor(bytes: &[u8]) -> Found {
    const NAME: u32 = 8;
    const EXTERNAL_DATA: u32 = 13;
    const KEY: u32 = 1;
    const VALUE: u32 = 2;
    let is_location = |entry: &&[u8]| first(entry, KEY) == Some(b"location");
    let at = contents(bytes, EXTERNAL_DATA).find(is_location);
    Found::Tensor {
        name: first(bytes, NAME).unwrap_or_default().to_vec(),
        at: at
            .and_then(|entry| first(entry, VALUE))
            .unwrap_or_default()
            .to_vec(),
    }
}

/// Refuses a compiled model in another file: a node of the type `EPContext` with an attribute `embed_mode` other than 1,
/// which is also the default.
fn check_compiled(bytes: &[u8]) -> Result<(), Found> {
    if !contents(bytes, node::OP_TYPE).any(|name| name == b"EPContext") {
        return Ok(());
    }
    let is_mode =
        |entry: &&[u8]| contents(entry, attribute::NAME).any(|name| name == b"embed_mode");
    let is_embedded = |entry: &[u8]| {
        let numbers = Fields::of(entry).filter_map(|field| match field {
            Ok((attribute::I, Value::Number(number))) => Some(number),
            _ => None,
        });
        numbers.eq([1])
    };
    match contents(bytes, node::ATTRIBUTE)
        .filter(is_mode)
        .all(is_embedded)
    {
        true => Ok(()),
        false => Err(Found::Compiled {
            name: first(bytes, node::NAME).unwrap_or_default().to_vec(),
        }),
    }
}

/// The contents of each field of this number.
fn contents(bytes: &[u8], wanted: u32) -> impl Iterator<Item = &[u8]> {
    Fields::of(bytes).filter_map(move |field| match field {
        Ok((number, Value::Bytes(contents))) if number == wanted => Some(contents),
        _ => None,
    })
}

fn first(bytes: &[u8], wanted: u32) -> Option<&[u8]> {
    contents(bytes, wanted).next()
}

/// A name out of the model, quoted and on one line.
fn shown(name: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(name)
        .chars()
        .take(NAME_MAX)
        .collect();
    format!("{text:?}")
}

fn location(at: &[u8]) -> String {
    match at {
        [] => String::new(),
        at => format!(" ({})", shown(at)),
    }
}

#[cfg(test)]
mod tests;
