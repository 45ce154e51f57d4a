//! The folder of the files of services, which one run at a time has.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use dataplane::Error;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::exit::Failure;

/// The folder, open as long as the run lasts. The lock on it goes with the process.
pub struct Folder {
    path: PathBuf,
    open: Option<File>,
    /// This run has made it.
    is_ours: bool,
}

impl Folder {
    /// Opens the folder and makes it where it is missing, so that a reload can bring the first
    /// service: what is opened later is outside of the sandbox. `is_needed`: there are services.
    ///
    /// # Errors
    /// It is needed and cannot be made.
    pub fn open(path: &Path, is_needed: bool) -> Result<Folder, Failure> {
        let was_there = path.is_dir();
        let made = if was_there { Ok(()) } else { make(path, is_needed) };
        if is_needed && let Err(error) = made {
            return Err(Failure::creating(path, &error));
        }
        let open = File::open(path).ok();
        Ok(Folder { path: path.to_owned(), is_ours: !was_there && open.is_some(), open })
    }

    /// Claims the folder for this run, before it has files there.
    ///
    /// # Errors
    /// Another run has it.
    pub fn claim(&self) -> Result<(), Error> {
        let path = self.path.display();
        let Some(folder) = &self.open else {
            return Err(Error::CannotCreate(format!(
                "observe.folder: {path}: could not be made when fenxi started; make it, and \
                 restart fenxi"
            )));
        };
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(Error::Unavailable(format!(
                "observe.folder: {path}: another fenxi has its services there; set observe.folder \
                 to a folder of this run's own"
            ))),
            // The lock only protects against a mistake.
            _ => Ok(()),
        }
    }
}

impl Drop for Folder {
    /// An empty folder that this run has made goes, where the sandbox lets it.
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Makes a folder that others may enter; the folders above it only where it is needed.
fn make(path: &Path, is_needed: bool) -> io::Result<()> {
    match is_needed {
        true => fs::create_dir_all(path)?,
        false => fs::create_dir(path)?,
    }
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_at_a_time_has_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("services");
        let first = Folder::open(&path, true).unwrap();
        first.claim().unwrap();
        first.claim().unwrap();
        let second = Folder::open(&path, false).unwrap();
        let refused = second.claim().unwrap_err().to_string();
        assert!(refused.contains("another fenxi has its services there; set"), "{refused}");
        drop(first);
        assert!(!path.exists(), "the first has made it");
        second.claim().unwrap();
    }

    #[test]
    fn without_services_nothing_is_made_above_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none/services");
        let folder = Folder::open(&path, false).unwrap();
        assert!(!dir.path().join("none").exists());
        assert!(folder.claim().unwrap_err().to_string().contains("restart fenxi"));
        let _made = Folder::open(&path, true).unwrap();
        assert!(path.is_dir());
    }
}
