//! A window over the unread part of a capture: a fixed buffer filled from any reader, gunzipped if
//! necessary.
//!
//! The buffer is allocated once. It holds the longest record twice, so there is always room to fill
//! after the partial record at the end was moved to the front; that is the only copy. All frames of
//! a burst lie in it until it is filled again.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::error::BLOCK_MAX;
use super::gunzip::{self, Gunzip};
use super::stoppable::Stoppable;

/// Bytes of the buffer.
const BUFFER: usize = 1024 * 1024;

/// Bytes per read, unless a record needs more: few enough that the headers are still in the
/// second-level cache when they are read.
const CHUNK: usize = 256 * 1024;

const _: () = assert!(BUFFER >= 2 * BLOCK_MAX as usize);

/// The unread bytes of a capture at hand, and the source of more.
pub(super) struct Window {
    source: Box<dyn Read + Send>,
    gunzip: Option<Gunzip>,
    buffer: Box<[u8]>,
    /// The unread bytes are `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Offset of `buffer[start]` in the capture.
    pub offset: u64,
    /// Bytes read from `source`.
    pub source_bytes: u64,
    is_ended: bool,
    /// A truncated or corrupt gzip stream has ended the capture.
    pub is_broken: bool,
}

impl Window {
    pub fn new(source: Box<dyn Read + Send>) -> Self {
        Self {
            source,
            gunzip: None,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            offset: 0,
            source_bytes: 0,
            is_ended: false,
            is_broken: false,
        }
    }

    /// Makes the source end once `stop` is raised. Call it before any read.
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let source = Box::new(Stoppable::new(self.source, stop)?);
        Ok(Self { source, ..self })
    }

    /// The unread bytes at hand.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Takes the first `count` bytes at hand. They stay valid until the next `fill`.
    #[inline]
    pub fn take(&mut self, count: usize) -> &mut [u8] {
        let from = self.start;
        self.start += count;
        self.offset += count as u64;
        &mut self.buffer[from..self.start]
    }

    /// Reads until there are `need` unread bytes or more. `false`: the capture ends before.
    pub fn fill(&mut self, need: usize) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < need && !self.is_ended {
            let until = need.max(self.end + CHUNK).min(BUFFER);
            let room = &mut self.buffer[self.end..until];
            let source = &mut Counted(&mut *self.source, &mut self.source_bytes);
            let filled = match &mut self.gunzip {
                None => gunzip::read_some(source, room)?,
                Some(gunzip) => {
                    let unpacked = gunzip.read(source, room)?;
                    self.is_broken = unpacked.is_none();
                    unpacked.unwrap_or(0)
                }
            };
            self.end += filled;
            self.is_ended = filled == 0;
        }
        Ok(self.end >= need)
    }

    /// If the bytes at hand, the first of the capture, begin a gzip stream, gunzips from now on.
    pub fn unpack(&mut self) {
        if self.gunzip.is_none() && self.bytes().starts_with(&gunzip::MAGIC) {
            self.gunzip = Some(Gunzip::new(self.bytes().to_vec()));
            self.end = self.start;
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("unread", &(self.start..self.end))
            .field("offset", &self.offset)
            .field("source_bytes", &self.source_bytes)
            .finish_non_exhaustive()
    }
}

/// A reader that counts its bytes.
struct Counted<'a>(&'a mut dyn Read, &'a mut u64);

impl Read for Counted<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(room)?;
        *self.1 += count as u64;
        Ok(count)
    }
}
