//! Why a bundle is refused.

use std::path::PathBuf;

use thiserror::Error;

use crate::file::ReadError;

/// Why a bundle is refused. Each message names the file and what to change.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The folder or one of its files does not exist.
    #[error("{}: no such {what}; a model bundle is a folder with model.toml, the model, \
        golden/inputs.csv and golden/outputs.csv", path.display())]
    Missing {
        /// Path of the missing folder or file.
        path: PathBuf,
        /// "folder" or "file".
        what: &'static str,
    },
    /// The file exists but cannot be read, is not a regular file, or is too large.
    #[error("{}: cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        cause: ReadError,
    },
    /// `model.toml` is not TOML, has an unknown key, lacks a key, or has a value of the wrong type.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong, including the key.
        message: String,
    },
    /// A value is out of range or disagrees with another.
    #[error("{}: {key} {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key with its section, such as `input.name`.
        key: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// The model's hash is not the one in the manifest.
    #[error("{}: its SHA-256 is {found}, but model.toml says {expected}; the file was changed or \
        damaged: restore it, or correct the key sha256 if the change is yours", path.display())]
    Hash {
        /// The model's file.
        path: PathBuf,
        /// SHA-256 in the manifest.
        expected: String,
        /// SHA-256 of the file.
        found: String,
    },
    /// The file is not an ONNX model, or keeps parts of it in other files.
    #[error("{}: {problem}", path.display())]
    Model {
        /// The model's file.
        path: PathBuf,
        /// What was found, and what to do.
        problem: String,
    },
    /// A golden file disagrees with the manifest or with the other golden file.
    #[error("{}:{line}: {problem}", path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What was found and what was expected.
        problem: String,
    },
    /// The file of ranges is not well formed.
    #[error("{}:{line}: {problem}; write it again with fenxi-train ranges", path.display())]
    Ranges {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What was found and what was expected.
        problem: String,
    },
}

/// A model is to be asked at a depth that it does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model {model} has the depths {depths:?}; name some of them")]
pub struct NoSuchDepths {
    /// Name of the model.
    pub model: String,
    /// Its depths.
    pub depths: Vec<usize>,
}
