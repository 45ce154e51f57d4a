//! Who may do what with files: checks whether this process may create them, without creating them,
//! and finds users and groups.

use std::io;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// Whether a path means stdin or stdout.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The number that a name has in `/etc/passwd` or `/etc/group`; `None`: it has none.
pub fn number_in(file: &str, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        (parts.next() == Some(name)).then(|| parts.nth(1)?.parse().ok())?
    })
}

/// Checks whether a file can be made at `path`.
///
/// # Errors
/// The error that creating it would give: the folder is missing, is not a folder, or this process
/// may not write there.
pub fn may_make(path: &Path) -> io::Result<()> {
    let folder = folder_of(path);
    if !std::fs::metadata(folder)?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    Ok(accessat(CWD, folder, access, AtFlags::EACCESS)?)
}

/// Checks whether this process may read what is at `path`, without opening it.
///
/// # Errors
/// The error that opening it would give: it is missing, or its mode forbids reading.
#[cfg(feature = "history")]
pub fn may_read(path: &Path) -> io::Result<()> {
    Ok(accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS)?)
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_decides() {
        let dir = tempfile::tempdir().unwrap();
        assert!(may_make(&dir.path().join("f")).is_ok());
        assert!(!dir.path().join("f").exists());
        let missing = may_make(&dir.path().join("none/f")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::write(dir.path().join("f"), "").unwrap();
        let file = may_make(&dir.path().join("f/g")).unwrap_err();
        assert_eq!(file.kind(), io::ErrorKind::NotADirectory);
        // Root may write everywhere, but not on a file system that is read-only.
        assert!(
            may_make(Path::new("/proc/sys/f")).is_err() || rustix::process::geteuid().is_root()
        );
    }
}
