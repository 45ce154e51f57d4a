//! Reads small files from untrusted places: a model bundle, a configuration, a device profile.
//!
//! A path may lead to a device that never ends (`/dev/zero`), to a FIFO without a writer, or to a
//! file of many gigabytes. So only regular files are read, the size is checked before memory is
//! allocated, and neither open nor read can block.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use thiserror::Error;

/// Why a file was not read. The message does not name the file, because the caller knows what the
/// file is for.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The system call failed, for example because there is no such file.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Not a regular file.
    #[error(
        "it is {0}, but only a regular file is read; put the file itself there, or a link to it"
    )]
    NotRegular(&'static str),
    /// The file is larger than the caller's bound.
    #[error("it is larger than {limit} bytes, the most that is read of such a file")]
    TooLarge {
        /// The bound, in bytes.
        limit: u64,
    },
}

impl ReadError {
    /// Whether the path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ReadError::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Reads the whole regular file at `path`, at most `limit` bytes. Symbolic links are followed.
///
/// # Errors
/// The file cannot be opened or read, is not a regular file, or is larger than `limit`.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    // Opening a device can have side effects (a watchdog starts, a tape rewinds), so the type is
    // checked before. The check of the open file below decides, because the path may lead to
    // another file by then; that is also why the open must not block.
    check_type(std::fs::metadata(path)?.file_type())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    let metadata = file.metadata()?;
    check_type(metadata.file_type())?;
    if metadata.len() > limit {
        return Err(ReadError::TooLarge { limit });
    }
    // The length is only a hint: files of procfs report none, and a file may grow while it is read.
    // Reading one byte more than the limit shows whether the file is too large.
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(ReadError::TooLarge { limit }),
        false => Ok(bytes),
    }
}

fn check_type(file_type: FileType) -> Result<(), ReadError> {
    if file_type.is_file() {
        return Ok(());
    }
    Err(ReadError::NotRegular(if file_type.is_dir() {
        "a folder"
    } else if file_type.is_fifo() {
        "a FIFO"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType as NodeType, mknodat};

    use super::*;

    fn refusal(path: &Path, limit: u64) -> String {
        read_regular(path, limit).unwrap_err().to_string()
    }

    #[test]
    fn a_regular_file_is_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read_regular(&path, 5).unwrap(), b"12345");
        assert!(refusal(&path, 4).contains("larger than 4 bytes"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_regular(&link, 5).unwrap(), b"12345");
        assert!(read_regular(&dir.path().join("none"), 5).unwrap_err().is_not_found());
    }

    #[test]
    fn a_file_whose_size_is_not_known_is_bounded_as_well() {
        // Its metadata says 0 bytes.
        assert!(!read_regular(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
        assert!(refusal(Path::new("/proc/self/status"), 10).contains("larger than 10 bytes"));
    }

    #[test]
    fn a_huge_file_is_refused_before_memory_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(refusal(&path, 1 << 30).contains("larger than 1073741824 bytes"));
    }

    #[test]
    fn what_is_no_regular_file_is_named_and_nothing_waits_for_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, NodeType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let socket = dir.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (fifo.as_path(), "it is a FIFO"),
            (&socket, "it is a socket"),
            (dir.path(), "it is a folder"),
            (Path::new("/dev/zero"), "it is a device"),
        ] {
            let message = refusal(path, 1 << 40);
            assert!(message.contains(what) && !message.contains('\n'), "{message}");
        }
    }
}
