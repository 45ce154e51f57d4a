//! One reader: what it has not read yet, and what it lost.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::sinks::records::SCHEMA_VERSION;

/// Whole lines, shared by all readers.
pub(super) struct Chunk {
    pub text: Vec<u8>,
    pub lines: u64,
}

pub(super) struct Reader {
    stream: UnixStream,
    backlog: VecDeque<Arc<Chunk>>,
    /// Bytes in the backlog.
    bytes: usize,
    /// Bytes of the first chunk that are written.
    written: usize,
    /// Lines lost since the reader was last told.
    pub lost: u64,
}

impl Reader {
    pub fn new(stream: UnixStream) -> Reader {
        Reader { stream, backlog: VecDeque::new(), bytes: 0, written: 0, lost: 0 }
    }

    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Lines in the backlog, with one that is partly written.
    pub fn unread(&self) -> u64 {
        self.backlog.iter().map(|chunk| chunk.lines).sum()
    }

    /// Appends a chunk if there is room within the bound; returns whether there was. A line before
    /// it reports earlier losses.
    pub fn push(&mut self, chunk: &Arc<Chunk>, most: usize) -> bool {
        // A reader that has read all takes a chunk of any size.
        if !self.is_idle() && self.bytes + chunk.text.len() > most {
            self.lost += chunk.lines;
            return false;
        }
        if self.lost > 0 {
            let text = lost_line(std::mem::take(&mut self.lost)).into_bytes();
            self.bytes += text.len();
            self.backlog.push_back(Arc::new(Chunk { text, lines: 0 }));
        }
        self.bytes += chunk.text.len();
        self.backlog.push_back(chunk.clone());
        true
    }

    /// Writes what the socket takes now. Returns lines of the chunks that are written as a whole.
    pub fn write(&mut self) -> io::Result<u64> {
        let mut lines = 0;
        while let Some(chunk) = self.backlog.front() {
            let rest = &chunk.text[self.written..];
            match send(&self.stream, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => self.written += sent,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error.into()),
            }
            if self.written == chunk.text.len() {
                lines += chunk.lines;
                self.bytes -= chunk.text.len();
                self.written = 0;
                self.backlog.pop_front();
            }
        }
        Ok(lines)
    }
}

/// Tells a reader how many records it missed.
fn lost_line(records: u64) -> String {
    format!("{{\"type\":\"lost\",\"schema_version\":{SCHEMA_VERSION},\"records\":{records}}}\n")
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
