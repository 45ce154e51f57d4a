use std::fmt;

/// Why a model cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are no ONNX model, or use a part of the format that is not read.
    Malformed(&'static str),
    /// A node computes what the engine does not know; another runtime may.
    Node {
        /// The node's name, or what it computes if it has none.
        node: String,
        /// What is not known about it.
        why: String,
    },
    /// The ranges cannot be read, or do not fit the network.
    Ranges(String),
    /// A file is no snapshot that can be read, or a network has none.
    Snapshot(String),
    /// The compiled network would be too large, or its numbers leave the integers' bounds.
    Bounds(String),
    /// The program in the kernel does not run the network.
    Kernel(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => write!(f, "not a model that can be read: {what}"),
            Self::Node { node, why } => write!(f, "node '{node}': {why}"),
            Self::Snapshot(what) => write!(f, "snapshot: {what}"),
            Self::Kernel(what) => write!(f, "the kernel does not take {what}"),
            Self::Ranges(what) | Self::Bounds(what) => write!(f, "{what}"),
        }
    }
}

impl std::error::Error for Error {}
