//! A connection to the control socket of a running instance.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Reply, Request};

/// Bytes of a reply, at most: 1024 flows take a tenth of it.
const REPLY_MAX: u64 = 16 << 20;

/// A socket on which requests are sent, a connection for each.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    within: Duration,
}

/// A request could not be sent, or its reply not be read.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The socket is somebody else's.
    #[error("{0}: permission denied: run as root or as the service user")]
    NotAllowed(String),
    /// Nobody is there.
    #[error("{0}: no fenxi listens on this socket: {1}")]
    Unavailable(String, io::Error),
    /// It broke off.
    #[error("{0}: connection lost: {1}")]
    Lost(String, io::Error),
    /// It is no reply.
    #[error("{0}: invalid reply: {1}")]
    Invalid(String, serde_json::Error),
}

impl Client {
    /// For the socket; a reply has to come within so much time.
    pub fn new(socket: &Path, within: Duration) -> Client {
        Client { socket: socket.to_owned(), within }
    }

    /// Sends a request; returns the line of the reply, and the reply.
    ///
    /// # Errors
    /// There is no reply.
    pub fn ask(&self, request: &Request) -> Result<(String, Reply), AskError> {
        let name = || self.socket.display().to_string();
        let mut stream = UnixStream::connect(&self.socket).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => AskError::NotAllowed(name()),
            _ => AskError::Unavailable(name(), error),
        })?;
        let lost = |error: io::Error| AskError::Lost(name(), error);
        stream.set_read_timeout(Some(self.within)).map_err(lost)?;
        stream.set_write_timeout(Some(self.within)).map_err(lost)?;
        let mut line =
            serde_json::to_string(request).map_err(|error| AskError::Invalid(name(), error))?;
        line.push('\n');
        // A client that is refused gets the reply before it has written its request. The write
        // then fails, but the reply counts.
        let asked = stream.write_all(line.as_bytes());
        line.clear();
        let mut reader = BufReader::new(io::Read::take(stream, REPLY_MAX));
        reader.read_line(&mut line).map_err(lost)?;
        if line.is_empty() {
            asked.map_err(lost)?;
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let reply =
            serde_json::from_str(&line).map_err(|error| AskError::Invalid(name(), error))?;
        Ok((line, reply))
    }
}
