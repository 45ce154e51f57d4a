//! Lines to the readers of `records.socket`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::checked::Records;

use super::SCHEMA_VERSION;
use super::broadcast::{self, Broadcaster, Limits};
use super::{WRITE_AT, WRITE_WITHIN};
use crate::exit::Failure;
use crate::unix_socket::UnixSocket;

/// Mode of the socket: records say who talked to whom, and the group of the service may read them,
/// as it may the file.
pub const SOCKET_MODE: u32 = 0o660;

/// Readers at a time.
const READERS: usize = 16;

/// How long the end of a run waits for readers that have not read all.
const READ_WITHIN: Duration = Duration::from_millis(250);

/// The socket and its readers, for the control thread.
pub struct Readers {
    broadcaster: Arc<Broadcaster>,
    /// Its file goes with it.
    _socket: Arc<UnixSocket>,
}

/// Lines on their way to the readers, for the thread that writes records.
pub struct Stream {
    broadcaster: Arc<Broadcaster>,
    text: Vec<u8>,
    lines: u64,
    since: Option<Instant>,
}

impl Readers {
    /// Accepts readers from now on.
    pub fn start(socket: &Arc<UnixSocket>, config: &Records) -> Result<(Readers, Stream), Failure> {
        let limits = Limits { readers: READERS, backlog: config.socket_backlog };
        let listener = socket.listener.try_clone();
        let started = listener.and_then(|listener| Broadcaster::start(listener, limits, lost_line));
        let started = started.map_err(|error| {
            Failure::unavailable(format!("records.socket: cannot serve it: {error}"))
        });
        let broadcaster = Arc::new(started?);
        let stream = Stream {
            broadcaster: broadcaster.clone(),
            text: Vec::with_capacity(2 * WRITE_AT),
            lines: 0,
            since: None,
        };
        let readers = Readers { broadcaster, _socket: socket.clone() };
        Ok((readers, stream))
    }

    pub fn counts(&self) -> broadcast::Counts {
        self.broadcaster.counts()
    }

    /// Waits a moment until all have read what is there.
    pub fn finish(&self) {
        self.broadcaster.finish(READ_WITHIN);
    }
}

impl Stream {
    pub fn has_readers(&self) -> bool {
        self.broadcaster.has_readers()
    }

    /// Takes `text`, `lines` whole lines.
    pub fn push(&mut self, text: &[u8], lines: u64) {
        self.text.extend(text);
        self.lines += lines;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Gives the readers what there is, if it is much or old.
    pub fn publish_due(&mut self) {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= WRITE_WITHIN);
        if is_old || self.text.len() >= WRITE_AT {
            self.publish();
        }
    }

    pub fn publish(&mut self) {
        self.broadcaster.publish(&self.text, self.lines);
        self.text.clear();
        (self.lines, self.since) = (0, None);
    }
}

/// Tells a reader how many records it missed.
fn lost_line(records: u64) -> String {
    format!("{{\"type\":\"lost\",\"schema_version\":{SCHEMA_VERSION},\"records\":{records}}}\n")
}
