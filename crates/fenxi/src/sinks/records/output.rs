//! Where lines go: a file, a pipe or standard output.
//!
//! A regular file of a live run only ever grows by whole lines: what a full disk cut short is taken
//! back, and what an earlier run left cut short, because it was killed, is removed at the start.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::lines::Lines;
use crate::access::is_dash;
use crate::access::may_make;
use config::checked::Rotate;

#[cfg(test)]
mod tests;

/// Records say who talked to whom.
const MODE: u32 = 0o640;

/// How a line begins; what does not is not ours to remove.
const BEGINNING: &[u8] = b"{\"type\":\"";

/// No line is longer.
const LINE_MAX: u64 = 64 * 1024;

/// After a file could not make room for another one.
const ROTATE_AGAIN: Duration = Duration::from_secs(60);

pub struct Output {
    pub name: String,
    file: File,
    /// It is a file that grows; no pipe, no terminal, no device.
    is_regular: bool,
    /// The path to reopen; `None`: stdout.
    path: Option<PathBuf>,
    rotate: Option<Rotate>,
    rotate_from: Option<Instant>,
}

impl Output {
    /// A new file in the place of what is there, for a replay; `-` is standard output.
    pub fn create(path: &Path) -> io::Result<Output> {
        match is_dash(path) {
            true => Output::stdout(),
            false => Output::new(Some(path), File::create(path)?, None),
        }
    }

    /// A file with what is there, for a live run; `-` is standard output.
    pub fn append(path: &Path, rotate: Option<Rotate>) -> io::Result<Output> {
        match is_dash(path) {
            true => Output::stdout(),
            false => Output::new(Some(path), open(path)?, rotate),
        }
    }

    fn new(path: Option<&Path>, file: File, rotate: Option<Rotate>) -> io::Result<Output> {
        Ok(Output {
            name: path.map_or("stdout".to_owned(), |path| path.display().to_string()),
            is_regular: path.is_some() && file.metadata()?.is_file(),
            file,
            path: path.map(Path::to_owned),
            rotate,
            rotate_from: None,
        })
    }

    /// Bypasses [`io::Stdout`]: a thread that waits for a reader would keep it locked.
    fn stdout() -> io::Result<Output> {
        Output::new(None, File::from(io::stdout().as_fd().try_clone_to_owned()?), None)
    }

    /// Writes all lines, and removes those that are written.
    ///
    /// # Errors
    /// Some could not be written. The file ends with the last whole line; of a line in a pipe the
    /// rest comes first the next time.
    pub fn write(&mut self, lines: &mut Lines) -> io::Result<()> {
        self.make_room(lines.bytes.len() as u64);
        let bytes = &lines.bytes;
        let mut done = 0;
        let result = loop {
            if done == bytes.len() {
                break Ok(());
            }
            match self.file.write(&bytes[done..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let last = bytes[..done].iter().rposition(|byte| *byte == b'\n');
        let whole = last.map_or(0, |last| last + 1);
        if whole < done && self.is_regular && self.take_back((done - whole) as u64).is_ok() {
            done = whole;
        }
        lines.remove(done);
        result
    }

    fn take_back(&self, bytes: u64) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        self.file.set_len(length.saturating_sub(bytes))
    }

    /// Takes the file that has the name now, which is created where there is none. Standard output
    /// stays.
    ///
    /// # Errors
    /// It cannot be had; the old one goes on.
    pub fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            // The lock of the same file would be in our own way.
            let _ = self.file.unlock();
            self.file = open(path)?;
            self.is_regular = self.file.metadata()?.is_file();
        }
        Ok(())
    }

    /// Begins a new file if `bytes` more bytes are too many for this one.
    fn make_room(&mut self, bytes: u64) {
        let (Some(rotate), Some(path), true) = (self.rotate, &self.path, self.is_regular) else {
            return;
        };
        let length = self.file.metadata().map_or(0, |found| found.len());
        let is_put_off = self.rotate_from.is_some_and(|from| Instant::now() < from);
        if length == 0 || length + bytes <= rotate.bytes || is_put_off {
            return;
        }
        match begin_anew(path, rotate.files) {
            Ok(file) => {
                self.file = file;
                info!("{}: full; renamed to {}.1", self.name, self.name);
            }
            Err(error) => {
                warn!("{}: cannot rotate: {error}; the file keeps growing", self.name);
                self.rotate_from = Some(Instant::now() + ROTATE_AGAIN);
            }
        }
    }
}

impl Drop for Output {
    /// A process that another thread forks at this moment has the lock, too, until it runs another
    /// program.
    fn drop(&mut self) {
        if self.path.is_some() {
            let _ = self.file.unlock();
        }
    }
}

/// Opens a file behind what is there. A pipe is opened with a reader of our own, so that it does
/// not matter whether there is another one yet, or still.
fn open(path: &Path) -> io::Result<File> {
    let file = open_locked(path, true)?;
    if file.metadata()?.is_file() {
        repair(path, &file)?;
    }
    Ok(file)
}

/// Checks whether a live run could write there. No file is made, and none is changed.
pub fn probe(path: &Path) -> io::Result<()> {
    match open_locked(path, false) {
        Ok(file) => file.unlock(),
        Err(error) if error.kind() == ErrorKind::NotFound => may_make(path),
        Err(error) => Err(error),
    }
}

/// A file, locked where it is a regular one; made only if `makes`.
fn open_locked(path: &Path, makes: bool) -> io::Result<File> {
    let is_pipe = fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    let mut options = OpenOptions::new();
    options.read(true);
    match is_pipe {
        true => options.write(true),
        false => options.append(true).create(makes).mode(MODE),
    };
    let file = options.open(path)?;
    // Two writers would remove each other's lines. Some network file systems have no locks.
    if file.metadata()?.is_file()
        && let Err(TryLockError::WouldBlock) = file.try_lock()
    {
        return Err(io::Error::other("another instance of fenxi writes to it"));
    }
    Ok(file)
}

/// Removes the beginning of a line that the file ends in. If that is none of ours, it gets an end
/// instead.
fn repair(path: &Path, file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(LINE_MAX);
    let mut end = vec![0; (length - from) as usize];
    file.read_exact_at(&mut end, from)?;
    let last = end.iter().rposition(|byte| *byte == b'\n');
    let torn = &end[last.map_or(0, |last| last + 1)..];
    if torn.is_empty() {
        return Ok(());
    }
    let is_ours = torn.starts_with(BEGINNING) || BEGINNING.starts_with(torn);
    if is_ours && (last.is_some() || from == 0) {
        warn!(
            "{}: removed {} bytes of an incomplete line of an earlier run",
            path.display(),
            torn.len()
        );
        return file.set_len(length - torn.len() as u64);
    }
    let mut file = file;
    file.write_all(b"\n")
}

/// Moves a file and its predecessors on by one, forgets the oldest, and opens a new one.
fn begin_anew(path: &Path, files: usize) -> io::Result<File> {
    let old = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    // Somebody else may have moved the file away; then all others stay.
    if path.exists() {
        for number in (1..files).rev() {
            rename(&old(number), &old(number + 1))?;
        }
        rename(path, &old(1))?;
    }
    open(path).inspect_err(|_| {
        // Lines go on to the file that is open, which keeps its name.
        let _ = fs::rename(old(1), path);
    })
}

/// A file that is not there need not be moved.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
