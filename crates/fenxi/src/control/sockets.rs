//! The sockets of the control plane, bound before the first packet so that what is wrong with them is said in time.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::access::may_make;
use crate::exit::Failure;
use config::checked::{Control, HttpPlace};

/// Mode of the control socket: root's and ours. Who is let in, the peer's credentials say in any case.
const CTL_MODE: u32 = 0o600;

/// Mode of a Unix socket for HTTP: the group may read metrics too.
const HTTP_MODE: u32 = 0o660;

/// Connections that may wait to be taken; as the standard library has it.
const BACKLOG: i32 = 128;

/// What is listened on. Connections wait until [`super::Plane::start`] takes them.
pub struct Sockets {
    /// For HTTP.
    pub http: Option<HttpSocket>,
    /// For `fenxi ctl`.
    pub ctl: Option<UnixSocket>,
}

/// A socket for HTTP.
pub enum HttpSocket {
    /// On TCP.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixSocket),
}

/// A listening Unix socket; its file goes with it.
pub struct UnixSocket {
    /// The socket.
    pub listener: UnixListener,
    /// Its file.
    pub file: SocketFile,
}

/// The file of a socket, removed when this goes, unless it is another one by then.
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

impl Sockets {
    /// Binds what the configuration asks for.
    ///
    /// # Errors
    /// 69 where an address is taken or not ours, 77 where it may not be bound, 73 where a socket's file cannot be made.
    pub fn bind(config: &Control) -> Result<Sockets, Failure> {
        let http = config.http.as_ref().map(HttpSocket::bind);
        let ctl = config.socket.as_deref();
        let ctl = ctl.map(|path| UnixSocket::bind("control.socket", path, CTL_MODE));
        Ok(Sockets {
            http: http.transpose()?,
            ctl: ctl.transpose()?,
        })
    }

    /// Checks whether [`Sockets::bind`] could have them. Nobody can connect meanwhile, and nothing stays.
    ///
    /// # Errors
    /// As [`Sockets::bind`].
    pub fn look(config: &Control) -> Result<(), Failure> {
        match &config.http {
            Some(HttpPlace::Tcp(address)) => {
                bound(*address)
                    .map(drop)
                    .map_err(|error| cannot_listen(address, &error))?;
            }
            Some(HttpPlace::Unix(path)) => look_at_unix("control.http", path)?,
            None => {}
        }
        let ctl = config.socket.as_deref();
        ctl.map_or(Ok(()), |path| look_at_unix("control.socket", path))
    }
}

/// A TCP socket that is bound and does not listen yet. As the standard library has it, with `SO_REUSEADDR`: connections
/// of an earlier run that are still closing do not hold the port.
fn bound(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn cannot_listen(address: &SocketAddr, error: &io::Error) -> Failure {
    let message = format!("control.http: cannot listen on {address}: {error}");
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::not_allowed(message),
        _ => Failure::unavailable(message),
    }
}

/// Whether a Unix socket could be made at `path`.
fn look_at_unix(key: &str, path: &Path) -> Result<(), Failure> {
    is_stale(key, path)?;
    may_make(path).map_err(|error| no_socket(key, path, &error))
}

impl HttpSocket {
    fn bind(place: &HttpPlace) -> Result<HttpSocket, Failure> {
        match place {
            HttpPlace::Tcp(address) => {
                let listen = |socket: OwnedFd| {
                    rustix::net::listen(&socket, BACKLOG)?;
                    Ok(TcpListener::from(socket))
                };
                let listener = bound(*address).and_then(listen);
                let listener = listener.map_err(|error| cannot_listen(address, &error))?;
                Ok(HttpSocket::Tcp(listener))
            }
            HttpPlace::Unix(path) => {
                let socket = UnixSocket::bind("control.http", path, HTTP_MODE)?;
                Ok(HttpSocket::Unix(socket))
            }
        }
    }
}

impl UnixSocket {
    fn bind(key: &str, path: &Path, mode: u32) -> Result<UnixSocket, Failure> {
        if is_stale(key, path)? {
            fs::remove_file(path).map_err(|error| Failure::creating(path, &error))?;
        }
        let failed = |error: io::Error| no_socket(key, path, &error);
        let listener = UnixListener::bind(path).map_err(failed)?;
        let found = fs::symlink_metadata(path).map_err(failed)?;
        let file = SocketFile {
            path: path.to_owned(),
            device: found.dev(),
            inode: found.ino(),
        };
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
///
/// # Errors
/// Somebody listens there, or the file is no socket.
fn is_stale(key: &str, path: &Path) -> Result<bool, Failure> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(false);
    };
    let name = path.display();
    if !found.file_type().is_socket() {
        return Err(Failure::cannot_create(format!(
            "{key}: {name}: exists and is not a socket; set another path"
        )));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(Failure::not_allowed(format!("{key}: {name}: {error}"))),
        Ok(_) => Err(Failure::unavailable(format!(
            "{key}: {name}: another instance listens there; stop it, or set {key} to another path"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<UnixSocket, Failure> {
        UnixSocket::bind("control.socket", path, CTL_MODE)
    }

    #[test]
    fn a_socket_is_ours_alone_and_goes_with_us() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = bind(&path).ok().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let message = bind(&path).err().unwrap().to_string();
        assert!(message.contains("another instance"), "{message}");
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
        assert!(
            failure.to_string().contains("create the folder"),
            "{failure}"
        );
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
