//! Where messages go: one transport session (RFC 7011 §10).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{Destination, Endpoint};
use crate::access::may_make;

/// How long a connection may take to come about.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A collector that takes nothing for this long is taken for dead. Shorter than the time that a
/// run has to end.
const WRITE_WITHIN: Duration = Duration::from_secs(1);
/// How long a host may take to say that nobody listens on a port (ICMP).
const REFUSAL_WITHIN: Duration = Duration::from_millis(50);
/// Records say who talked to whom.
const MODE: u32 = 0o640;

pub enum Connection {
    Udp(UdpSocket),
    Tcp(TcpStream),
    File(File),
}

impl Connection {
    /// Begins a session. Looks a name up, which may take seconds. A file continues behind what is
    /// there, or, in a replay, takes its place.
    pub fn open(to: &Destination, is_replay: bool) -> io::Result<Connection> {
        match to {
            Destination::Udp(endpoint) => first(endpoint, udp).map(Connection::Udp),
            Destination::Tcp(endpoint) => first(endpoint, tcp).map(Connection::Tcp),
            Destination::File(path) => file(path, is_replay).map(Connection::File),
        }
    }

    /// Sends a message as a whole.
    ///
    /// # Errors
    /// It could not be sent; the session is over. A file has no part of it.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Connection::Udp(socket) => socket.send(message).map(drop),
            Connection::Tcp(stream) => {
                is_open(stream)?;
                stream.write_all(message)
            }
            Connection::File(file) => append(file, message),
        }
    }

    /// The templates are sent: waits a moment for a refusal, which a host sends where nobody
    /// listens on a UDP port.
    pub fn confirm(&self) -> io::Result<()> {
        let Connection::Udp(socket) = self else {
            return Ok(());
        };
        std::thread::sleep(REFUSAL_WITHIN);
        socket.take_error()?.map_or(Ok(()), Err)
    }
}

/// Checks whether a live run could write the file. None is made, and none is changed.
pub fn probe(path: &Path) -> io::Result<()> {
    refuse_fifo(path)?;
    match OpenOptions::new().append(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => may_make(path),
        Err(error) => Err(error),
    }
}

/// What the first address gives that gives anything, or why the last one does not.
pub fn first<T>(endpoint: &Endpoint, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut why = io::Error::other("the name has no address");
    for address in (endpoint.host.as_str(), endpoint.port).to_socket_addrs()? {
        match open(address) {
            Ok(opened) => return Ok(opened),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(socket)
}

fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
    stream.set_write_timeout(Some(WRITE_WITHIN))?;
    Ok(stream)
}

/// A live run must not wait for the reader of a FIFO, neither at its start nor with messages.
fn refuse_fifo(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_fifo() => Err(io::Error::other(
            "it is a FIFO, not a regular file; a collector that reads at once needs tcp:// or \
             udp://",
        )),
        _ => Ok(()),
    }
}

fn file(path: &Path, is_replay: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).mode(MODE);
    match is_replay {
        true => options.write(true).truncate(true),
        false => {
            refuse_fifo(path)?;
            options.append(true)
        }
    };
    options.open(path)
}

/// A collector that has closed its end takes nothing, though the kernel would take one message
/// more.
fn is_open(stream: &TcpStream) -> io::Result<()> {
    let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(stream, &mut [0; 1], peek) {
        Ok((0, _)) => {
            Err(io::Error::new(ErrorKind::ConnectionReset, "the collector closed the connection"))
        }
        Ok(_) | Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes all of it, or, to a file that ends where a disk is full, nothing.
fn append(file: &mut File, message: &[u8]) -> io::Result<()> {
    let before = file.metadata()?;
    file.write_all(message).inspect_err(|_| {
        if before.is_file() {
            // If this fails as well, a reader finds a message that is cut off.
            let _ = file.set_len(before.len());
        }
    })
}
