//! Why a bundle is refused.

use std::path::PathBuf;

use thiserror::Error;

use crate::file::ReadError;

/// Why a bundle is refused: each names the file, and what to change.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The folder or one of its files is not there.
    #[error("{}: no such {what}; a model bundle is a folder with model.toml, the model, golden/inputs.csv and golden/outputs.csv", path.display())]
    Missing {
        /// What was looked for.
        path: PathBuf,
        /// "folder" or "file".
        what: &'static str,
    },
    /// It is there and cannot be read, is not a regular file, or is too large.
    #[error("{}: cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: ReadError,
    },
    /// `model.toml` is not TOML, or has an unknown key, or lacks one, or one has the wrong type.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// What is wrong, with the key.
        message: String,
    },
    /// A key's value is out of range or disagrees with another.
    #[error("{}: {key} {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, dotted.
        key: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// The model is not the one that the manifest describes.
    #[error("{}: its SHA-256 is {found}, but model.toml says {expected}; the file was changed or damaged: restore it, or correct the key sha256 if the change is yours", path.display())]
    Hash {
        /// The model.
        path: PathBuf,
        /// As in the manifest.
        expected: String,
        /// As computed.
        found: String,
    },
    /// The model is no ONNX, or a part of it lies outside of the file.
    #[error("{}: {problem}", path.display())]
    Model {
        /// The model.
        path: PathBuf,
        /// What was found, and what to do.
        problem: String,
    },
    /// A golden file disagrees with the manifest or with the other golden file.
    #[error("{}:{line}: {problem}", path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// What was found and what was expected.
        problem: String,
    },
}
