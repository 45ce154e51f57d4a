//! Capture files as a port: pcap of either byte order with micro- or nanoseconds, and pcapng, each
//! plain or in gzip. The content decides the format, never the name.
//!
//! A capture is streamed through a window of fixed size, so it may be of any length, and a pipe.
//! Complete records are handed out in place. What is accepted and where reading stops does not
//! depend on how the bytes arrive in chunks.
//!
//! Captures are not mapped: record headers lie at irregular distances, so each is a trip to memory
//! (0.41 s of CPU time for the load capture, against 0.28 s for chunks).

mod clock;
mod error;
mod gunzip;
mod pcap;
mod pcapng;
mod sequence;
mod step;
mod stoppable;
#[cfg(test)]
mod tests;
mod window;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use error::{CaptureError, CaptureErrorKind, Flaw, Part};
pub use sequence::{Sequence, SequenceSettings};

use crate::burst::{Burst, Frame, Gso};
use crate::error::{OpenError, RxError, RxErrorKind};
use crate::rx::{Received, Rx, RxCounts};
use pcap::Pcap;
use pcapng::Pcapng;
use step::{Parsed, Stop};
use window::Window;

/// Maximum frame of a link with an MTU of 1500 bytes: with an Ethernet header and two tags.
const USUAL_FRAME_MAX: u32 = 1500 + 14 + 8;

/// Captures tell neither their link's MTU nor whether a frame was merged; long frames count as
/// merged.
#[inline]
fn merged(wire: u32) -> Gso {
    match wire > USUAL_FRAME_MAX {
        true => Gso::UNKNOWN,
        false => Gso::NONE,
    }
}

/// The path for the standard input.
const STDIN: &str = "-";

/// A capture file, read from front to end.
#[derive(Debug)]
pub struct CaptureReader {
    file: String,
    size: Option<u64>,
    window: Window,
    /// Set once the first bytes were read.
    parser: Option<Parser>,
    /// Frames of the last burst; kept for its memory.
    frames: Vec<Frame>,
    /// Packets handed out.
    counts: RxCounts,
    /// Added to every time, µs.
    shift_us: i64,
}

#[derive(Debug)]
enum Parser {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

impl CaptureReader {
    /// Opens a file, or the standard input for the path `-`. Nothing is read yet, so errors in the
    /// content show with the first burst.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        if path == Path::new(STDIN) {
            return Ok(Self::from_reader("standard input", Box::new(io::stdin())));
        }
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, file) = match opened {
            Ok((metadata, _)) if metadata.is_dir() => {
                return Err(OpenError::new(name, io::ErrorKind::IsADirectory.into()));
            }
            Ok(opened) => opened,
            Err(error) => return Err(OpenError::new(name, error)),
        };
        Ok(Self {
            size: metadata.is_file().then_some(metadata.len()),
            ..Self::from_reader(&name, Box::new(file))
        })
    }

    /// Reads a capture from any reader. Errors contain `name`.
    pub fn from_reader(name: &str, reader: Box<dyn Read + Send>) -> Self {
        Self {
            file: name.to_owned(),
            size: None,
            window: Window::new(reader),
            parser: None,
            frames: Vec::new(),
            counts: RxCounts::default(),
            shift_us: 0,
        }
    }

    /// Makes a pipe end early once `stop` is raised, even while it is silent. Files on disk never
    /// block and are unchanged.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn stopped_by(mut self, stop: Arc<AtomicBool>) -> io::Result<Self> {
        if self.size.is_none() {
            self.window = self.window.stopped_by(stop)?;
        }
        Ok(self)
    }

    /// Delays all times by `us` microseconds; times saturate.
    pub fn shifted_by(mut self, us: i64) -> Self {
        self.shift_us = us;
        self
    }

    /// Bytes of the file read so far, compressed if it is gzip. Up to a window ahead of the
    /// packets.
    pub fn position(&self) -> u64 {
        self.window.source_bytes
    }

    /// Bytes of the file; `None` for sources without a size, such as pipes.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Fills `frames` from the window. Returns the bytes that they span; `None` at the end.
    fn advance(&mut self, max: usize) -> Result<Option<usize>, CaptureErrorKind> {
        self.frames.clear();
        let window = &mut self.window;
        let parser = match &mut self.parser {
            Some(parser) => parser,
            unknown => unknown.insert(Parser::detect(window)?),
        };
        loop {
            let Parsed { used, stop } = parser.parse(window.bytes(), max, &mut self.frames);
            if !self.frames.is_empty() {
                return Ok(Some(used)); // the reason to stop shows again in the next call
            }
            window.take(used);
            match stop {
                Stop::Full => return Ok(None), // unreachable without frames, as max > 0
                Stop::Bad(flaw) => return Err(CaptureErrorKind::BadRecord(flaw)),
                Stop::More { need, inside } => {
                    if window.fill(need)? {
                        continue;
                    }
                    if !window.bytes().is_empty() || parser.taken() > 0 {
                        return Err(truncated(window, inside));
                    }
                    if window.is_broken {
                        return Err(truncated(window, Part::GzipStream));
                    }
                    return Ok(None);
                }
            }
        }
    }
}

impl Rx for CaptureReader {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        match self.advance(max.max(1)) {
            Ok(Some(used)) => {
                self.counts.count(&self.frames);
                if self.shift_us != 0 {
                    for frame in &mut self.frames {
                        frame.time_us = frame.time_us.saturating_add(self.shift_us);
                    }
                }
                let data = self.window.take(used);
                Ok(Received::Burst(Burst::new(data, &self.frames)))
            }
            Ok(None) => Ok(Received::End),
            Err(kind) => {
                let taken = self.parser.as_ref().map_or(0, Parser::taken);
                Err(RxError::from(CaptureError {
                    file: self.file.clone(),
                    kind,
                    at: self.window.offset - taken,
                    packets: self.counts.received,
                }))
            }
        }
    }

    fn name(&self) -> &str {
        &self.file
    }

    fn counts(&mut self) -> RxCounts {
        self.counts
    }
}

impl From<CaptureError> for RxError {
    fn from(error: CaptureError) -> Self {
        let kind = match error.kind {
            CaptureErrorKind::Io(_) => RxErrorKind::Io,
            _ => RxErrorKind::Damaged,
        };
        Self::new(kind, error)
    }
}

impl Parser {
    /// Detects the format by the first bytes; takes the header of a pcap file.
    fn detect(window: &mut Window) -> Result<Self, CaptureErrorKind> {
        window.fill(gunzip::MAGIC.len())?;
        window.unpack();
        window.fill(4)?;
        let Some(&magic) = window.bytes().first_chunk() else {
            return Err(if window.bytes().is_empty() && !window.is_broken {
                CaptureErrorKind::Empty
            } else {
                truncated(window, Part::FileHeader)
            });
        };
        if magic == pcapng::MAGIC {
            return Ok(Self::Pcapng(Pcapng::new()));
        }
        if !Pcap::knows(magic) {
            return Err(CaptureErrorKind::UnknownFormat(magic));
        }
        window.fill(pcap::FILE_HEADER)?;
        let Some(header) = window.bytes().first_chunk() else {
            return Err(truncated(window, Part::FileHeader));
        };
        let parser = Pcap::new(header).ok_or(CaptureErrorKind::UnknownFormat(magic))?;
        window.take(pcap::FILE_HEADER);
        Ok(Self::Pcap(parser))
    }

    fn parse(&mut self, bytes: &[u8], max: usize, frames: &mut Vec<Frame>) -> Parsed {
        match self {
            Self::Pcap(pcap) => pcap.parse(bytes, max, frames),
            Self::Pcapng(pcapng) => pcapng.parse(bytes, max, frames),
        }
    }

    /// Bytes of the record in front of the window already taken.
    fn taken(&self) -> u64 {
        match self {
            Self::Pcap(_) => 0,
            Self::Pcapng(pcapng) => pcapng.taken(),
        }
    }
}

/// The file ends inside `part`, or inside the gzip stream if that is broken.
fn truncated(window: &Window, part: Part) -> CaptureErrorKind {
    let part = if window.is_broken { Part::GzipStream } else { part };
    CaptureErrorKind::Truncated(part)
}
