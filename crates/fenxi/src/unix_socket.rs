//! Unix sockets that a run listens on, bound before the first packet so that errors come early.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt;

use crate::access::may_make;
use crate::exit::Failure;
use crate::holder;
use crate::proc::Machine;

/// Whether a user is root, or the one that fenxi runs as.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

pub struct UnixSocket {
    pub listener: UnixListener,
    pub file: SocketFile,
}

/// The file of a socket, removed when dropped unless another one has taken its place.
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks whether a Unix socket could be made at `path`, which `key` of the configuration names.
pub fn probe(key: &str, path: &Path) -> Result<(), Failure> {
    is_stale(key, path)?;
    may_make(path).map_err(|error| no_socket(key, path, &error))
}

impl UnixSocket {
    /// Listens at `path`, which `key` of the configuration names.
    ///
    /// # Errors
    /// 69 if a program listens there, 77 if it may not be bound, 73 if its file cannot be made.
    pub fn bind(key: &str, path: &Path, mode: u32) -> Result<UnixSocket, Failure> {
        if is_stale(key, path)? {
            fs::remove_file(path).map_err(|error| Failure::creating(path, &error))?;
        }
        let failed = |error: io::Error| no_socket(key, path, &error);
        let listener = UnixListener::bind(path).map_err(failed)?;
        let found = fs::symlink_metadata(path).map_err(failed)?;
        let file = SocketFile { path: path.to_owned(), device: found.dev(), inode: found.ino() };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        Ok(UnixSocket { listener, file })
    }
}

fn no_socket(key: &str, path: &Path, error: &io::Error) -> Failure {
    let cure = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
            format!("; create the folder {}, or set {key}", folder.display())
        }
        _ => format!("; set {key} to a path where this user may create one"),
    };
    let name = path.display();
    let message = format!("{key}: {name}: cannot create the socket: {error}{cure}");
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::not_allowed(message),
        _ => Failure::cannot_create(message),
    }
}

/// Whether `path` is the socket of a program that has ended, which can be removed.
fn is_stale(key: &str, path: &Path) -> Result<bool, Failure> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(false) };
    let name = path.display();
    if !found.file_type().is_socket() {
        return Err(Failure::cannot_create(format!(
            "{key}: {name}: exists and is not a socket; set another path"
        )));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(Failure::not_allowed(format!("{key}: {name}: {error}"))),
        Ok(peer) => {
            let pid = sockopt::socket_peercred(&peer).ok();
            let pid = pid.map(|peer| peer.pid.as_raw_nonzero().get() as u32);
            let holder = holder::named(&Machine::here(), pid);
            Err(Failure::unavailable(format!(
                "{key}: {name}: in use by {holder}; set {key} to another path"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<UnixSocket, Failure> {
        UnixSocket::bind("control.socket", path, 0o600)
    }

    #[test]
    fn a_socket_is_ours_alone_and_goes_with_us() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = bind(&path).ok().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let message = bind(&path).err().unwrap().to_string();
        let holder = format!(", process {}; set control.socket", std::process::id());
        assert!(message.contains(&holder), "{message}");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_program_left_makes_room_and_a_file_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(bind(&path).ok().unwrap());
        fs::write(&path, "precious").unwrap();
        assert_eq!(bind(&path).err().unwrap().code(), 73);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_missing_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let failure = bind(&dir.path().join("no/s")).err().unwrap();
        assert_eq!(failure.code(), 73);
        assert!(failure.to_string().contains("create the folder"), "{failure}");
    }

    #[test]
    fn another_socket_at_our_path_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = bind(&path).ok().unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
