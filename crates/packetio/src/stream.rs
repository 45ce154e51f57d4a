//! Frames from a byte stream, such as a Unix socket or a pipe. Each frame is its length (four
//! bytes, big-endian) and its bytes from the Ethernet header on; its time is when it was read.
//!
//! The sender is a few lines in any language, which makes this the port for generators and tests.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::ioctl_fionbio;

use crate::CAPTURED_MAX;
use crate::burst::{Burst, Frame};
use crate::error::{RxError, RxErrorKind};
use crate::interface::ETHERNET;
use crate::rx::{Received, Rx, RxCounts, WaitHandle};

/// Bytes of the length in front of a frame.
const LENGTH: usize = 4;

/// Bytes read ahead: the longest frame always fits.
const BUFFER: usize = 2 * CAPTURED_MAX as usize;

/// A port over a stream of frames.
#[derive(Debug)]
pub struct StreamRx<S> {
    name: String,
    stream: S,
    buffer: Box<[u8]>,
    /// `buffer[start..end]` was read and not handed out.
    start: usize,
    end: usize,
    is_closed: bool,
    frames: Vec<Frame>,
    counts: RxCounts,
}

impl<S: Read + AsFd + Send> StreamRx<S> {
    /// A port over `stream`, named `name` in messages. Makes the stream non-blocking.
    ///
    /// # Errors
    /// The stream cannot be made non-blocking.
    pub fn new(name: &str, stream: S) -> io::Result<Self> {
        ioctl_fionbio(&stream, true)?;
        Ok(Self {
            name: name.to_owned(),
            stream,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            is_closed: false,
            frames: Vec::new(),
            counts: RxCounts::default(),
        })
    }

    /// Reads what is available.
    fn fill(&mut self) -> Result<(), RxError> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.is_closed = true,
            Ok(count) => self.end += count,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                return Err(self.error(RxErrorKind::Io, &format!("cannot be read: {error}")));
            }
        }
        Ok(())
    }

    /// Describes up to `max` complete frames.
    fn parse(&mut self, max: usize) -> Result<(), RxError> {
        self.frames.clear();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = now.unwrap_or_default();
        while self.frames.len() < max
            && let Some(&length) = self.buffer[self.start..self.end].first_chunk::<LENGTH>()
        {
            let captured = u32::from_be_bytes(length);
            if captured > CAPTURED_MAX {
                if !self.frames.is_empty() {
                    break; // they go first
                }
                let what = format!("a frame of {captured} bytes; at most {CAPTURED_MAX} are read");
                return Err(self.error(RxErrorKind::Damaged, &what));
            }
            let at = self.start + LENGTH;
            if at + captured as usize > self.end {
                break;
            }
            self.frames.push(Frame {
                at,
                captured,
                wire: captured,
                time_us: time.as_micros() as i64,
                time_sub_ns: (time.subsec_nanos() % 1000) as u16,
                link: ETHERNET,
                ..Frame::default()
            });
            self.start = at + captured as usize;
        }
        Ok(())
    }

    fn error(&self, kind: RxErrorKind, what: &str) -> RxError {
        RxError::new(kind, format!("{}: {what}", self.name))
    }
}

impl<S: Read + AsFd + Send> Rx for StreamRx<S> {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        self.parse(max.max(1))?;
        if self.frames.is_empty() {
            self.fill()?;
            self.parse(max.max(1))?;
        }
        if !self.frames.is_empty() {
            self.counts.count(&self.frames);
            return Ok(Received::Burst(Burst::new(&mut self.buffer, &self.frames)));
        }
        match (self.is_closed, self.end - self.start) {
            (false, _) => Ok(Received::Nothing),
            (true, 0) => Ok(Received::End),
            (true, left) => {
                let what = format!("truncated: the stream ends {left} bytes into a frame");
                Err(self.error(RxErrorKind::Damaged, &what))
            }
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn counts(&mut self) -> RxCounts {
        self.counts
    }

    fn is_live(&self) -> bool {
        true
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        WaitHandle::Fd(self.stream.as_fd())
    }
}
