//! Errors of making and of reading a recording.

use std::io;
use std::path::Path;

/// Why there is no recording, or no replay. Each message is one line for people and names the file.
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
    /// The system refuses a thread for the writer.
    #[error("no thread to record: {0}")]
    NoThread(String),
}

impl RecordingError {
    pub(crate) fn creating(path: &Path, error: &io::Error) -> RecordingError {
        RecordingError::CannotCreate(format!("{}: cannot be created: {error}", path.display()))
    }
}
