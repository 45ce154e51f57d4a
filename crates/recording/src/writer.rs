//! The files of a recording, and the thread that writes the events.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Receiver;
use tracing::warn;

use crate::error::RecordingError;

/// The thread that writes.
pub struct Writer {
    pub file: File,
    pub path: PathBuf,
    /// Set by the thread: nothing more can be written.
    pub has_failed: Arc<AtomicBool>,
    /// The thread logs this at its end, since the data path does not log.
    pub last_words: Arc<Mutex<Option<String>>>,
}

impl Writer {
    /// Writes whole chunks until the last one, or until one cannot be written.
    pub fn run(mut self, chunks: &Receiver<Vec<u8>>) {
        for chunk in chunks {
            if self.has_failed.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(error) = self.file.write_all(&chunk) {
                self.has_failed.store(true, Ordering::Relaxed);
                warn!(
                    "{}: the recording ends, and the run goes on: {error}",
                    self.path.display()
                );
            }
        }
        let last_words = self.last_words.lock();
        if let Some(text) = last_words.unwrap_or_else(PoisonError::into_inner).take() {
            warn!("{}: {text}", self.path.display());
        }
    }
}

/// Makes the folder, for its owner alone: the files hold addresses.
///
/// # Errors
/// 73: it holds something, or cannot be made.
pub fn make(dir: &Path) -> Result<(), RecordingError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mut entries =
                std::fs::read_dir(dir).map_err(|error| RecordingError::creating(dir, &error))?;
            match entries.next() {
                None => Ok(()),
                Some(_) => Err(RecordingError::CannotCreate(format!(
                    "{}: a recording needs a new or empty folder, and this one holds files; name another",
                    dir.display()
                ))),
            }
        }
        Err(error) => Err(RecordingError::creating(dir, &error)),
    }
}

/// A new file in it, for its owner alone.
///
/// # Errors
/// 73.
pub fn create(path: &Path) -> Result<File, RecordingError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options
        .open(path)
        .map_err(|error| RecordingError::creating(path, &error))
}
