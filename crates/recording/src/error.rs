//! What can be wrong with a recording: when it is made, and when it is read.

use std::io;
use std::path::Path;

/// Why there is no recording, or no replay of one. Each is one line for people, with the file in it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// The folder or one of its files is not there.
    #[error("{0}")]
    NoInput(String),
    /// A file is damaged, or has another format.
    #[error("{0}")]
    Damaged(String),
    /// The folder or a file cannot be created.
    #[error("{0}")]
    CannotCreate(String),
    /// The system has no thread for the writer.
    #[error("no thread to record: {0}")]
    NoThread(String),
}

impl RecordingError {
    pub(crate) fn creating(path: &Path, error: &io::Error) -> RecordingError {
        RecordingError::CannotCreate(format!("{}: cannot be created: {error}", path.display()))
    }
}
