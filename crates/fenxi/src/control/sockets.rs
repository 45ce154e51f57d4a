//! The sockets of the control plane, bound before the first packet so that errors come early.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::exit::Failure;
use crate::holder::{self, Holder};
use crate::proc::Machine;
use crate::unix_socket::{self, UnixSocket};
use config::checked::{Control, HttpPlace};

/// Mode of the control socket: root and our user. The peer's credentials are checked in any case.
const CTL_MODE: u32 = 0o600;

/// Mode of a Unix socket for HTTP: the group may read metrics too.
const HTTP_MODE: u32 = 0o660;

/// Connections that may wait to be accepted, as in the standard library.
const BACKLOG: i32 = 128;

/// Listening sockets. Connections wait until [`super::Plane::start`] accepts them.
pub struct Sockets {
    pub http: Option<HttpSocket>,
    pub ctl: Option<UnixSocket>,
}

pub enum HttpSocket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

impl Sockets {
    /// Binds what the configuration asks for.
    ///
    /// # Errors
    /// 69 if an address is taken or not ours, 77 if it may not be bound, 73 if a socket's file
    /// cannot be made.
    pub fn bind(config: &Control) -> Result<Sockets, Failure> {
        let http = config.http.as_ref().map(HttpSocket::bind);
        let ctl = config.socket.as_deref();
        let ctl = ctl.map(|path| UnixSocket::bind("control.socket", path, CTL_MODE));
        Ok(Sockets { http: http.transpose()?, ctl: ctl.transpose()? })
    }

    /// Checks whether [`Sockets::bind`] would succeed, without listening or leaving files.
    pub fn probe(config: &Control) -> Result<(), Failure> {
        match &config.http {
            Some(HttpPlace::Tcp(address)) => {
                drop(bound(*address).map_err(|error| cannot_listen(*address, &error))?);
            }
            Some(HttpPlace::Unix(path)) => unix_socket::probe("control.http", path)?,
            None => {}
        }
        let ctl = config.socket.as_deref();
        ctl.map_or(Ok(()), |path| unix_socket::probe("control.socket", path))
    }
}

/// A TCP socket that is bound and does not listen yet. With `SO_REUSEADDR`, as in the standard
/// library: closing connections of an earlier run do not hold the port.
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

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Failure {
    let message = |why: &str| format!("control.http: cannot listen on {address}: {why}");
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::not_allowed(message(&error.to_string())),
        io::ErrorKind::AddrInUse => {
            let machine = Machine::here();
            let pid = match holder::of_port(&machine, address) {
                Holder::Process(pid) => pid,
                Holder::Nobody | Holder::File => None,
            };
            let holder = holder::named(&machine, pid);
            let why = format!("in use by {holder}; set control.http to another address");
            Failure::unavailable(message(&why))
        }
        _ => Failure::unavailable(message(&error.to_string())),
    }
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
                let listener = listener.map_err(|error| cannot_listen(*address, &error))?;
                Ok(HttpSocket::Tcp(listener))
            }
            HttpPlace::Unix(path) => {
                let socket = UnixSocket::bind("control.http", path, HTTP_MODE)?;
                Ok(HttpSocket::Unix(socket))
            }
        }
    }
}
