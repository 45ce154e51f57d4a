//! Why a bundle is refused.

use std::path::PathBuf;

use thiserror::Error;

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
    /// A file cannot be read, disagrees with another, or is not what a bundle needs.
    #[error("{0}")]
    Refused(String),
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
