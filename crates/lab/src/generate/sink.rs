//! Where generated frames go: to a capture file, nowhere, or out of an interface.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use packetio::{
    Backend, Burst, CaptureFormat, CaptureWriter, Frame, InterfaceErrorKind, OpenError, Selection,
    Tx, TxCounts, WriteError,
};

use super::control::Shared;
use super::frame::ETHERNET;
use dataplane::clock::Pace;
use fenxi::exit::{Failure, remark};
use fenxi::is_dash;

/// Name of the output that takes frames and forgets them.
const MEMORY: &str = "memory";

/// An output.
pub enum Sink {
    /// pcap in nanoseconds.
    File {
        /// For messages.
        name: String,
        /// The file, or stdout.
        writer: CaptureWriter<Box<dyn Write + Send>>,
    },
    /// Nowhere: only the making is measured.
    Memory,
    /// An interface; frames leave when they are due.
    Interface {
        /// Its sending side.
        tx: Box<dyn Tx>,
        /// When which frame is due.
        pace: Pace,
    },
}

impl Sink {
    /// A file, `-` for stdout, or `memory`.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn file(path: &Path) -> Result<Sink, Failure> {
        if path.as_os_str() == MEMORY {
            return Ok(Sink::Memory);
        }
        let (name, out): (String, Box<dyn Write + Send>) = match is_dash(path) {
            true => ("stdout".to_owned(), Box::new(io::stdout())),
            false => {
                let file = File::create(path).map_err(|error| Failure::creating(path, &error))?;
                (path.display().to_string(), Box::new(file))
            }
        };
        let writer = CaptureWriter::create(CaptureFormat::Pcap { nanosecond: true }, out)
            .map_err(|error| not_written(&name, error))?;
        Ok(Sink::File { name, writer })
    }

    /// An interface.
    ///
    /// # Errors
    /// There is no such interface, or a capability is missing.
    pub fn interface(name: &str) -> Result<Sink, Failure> {
        let tx = packetio::open_tx(<&Backend>::default(), name).map_err(|error| match error {
            OpenError::MissingCapability { .. } => Failure::not_allowed(error.to_string()),
            error => Failure::unavailable(error.to_string()),
        })?;
        Ok(Sink::Interface { tx, pace: Pace::new(1.0) })
    }

    /// Takes the frames, which lie in `data`, and returns how many it took: an interface takes
    /// each when it is due, and none once the generator is to stop.
    ///
    /// # Errors
    /// Writing fails, the interface is gone, or it cannot carry frames of this link type.
    pub fn take(
        &mut self,
        data: &mut [u8],
        frames: &[Frame],
        shared: &Shared,
    ) -> Result<usize, Failure> {
        match self {
            Sink::Memory => Ok(frames.len()),
            Sink::File { name, writer } => {
                for frame in frames {
                    let written = writer.write(frame, &data[frame.range()]);
                    written.map_err(|error| not_written(name, error))?;
                }
                Ok(frames.len())
            }
            Sink::Interface { tx, pace } => send(tx.as_mut(), pace, data, frames, shared),
        }
    }

    /// Closes the output. Returns what became of the frames if it is an interface.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(self) -> Result<Option<TxCounts>, Failure> {
        match self {
            Sink::Memory => Ok(None),
            Sink::File { name, writer } => {
                let finished = writer.finish().and_then(|mut out| Ok(out.flush()?));
                finished.map_err(|error| not_written(&name, error))?;
                Ok(None)
            }
            Sink::Interface { tx, .. } => Ok(Some(tx.counts())),
        }
    }
}

/// Sends all frames that are due in one burst and sleeps until the next one is due. A generator
/// that is late catches up.
fn send(
    tx: &mut dyn Tx,
    pace: &Pace,
    data: &mut [u8],
    frames: &[Frame],
    shared: &Shared,
) -> Result<usize, Failure> {
    if let Some(frame) = frames.iter().find(|frame| frame.link != ETHERNET) {
        return Err(Failure::data(format!(
            "{}: frames of link type {} cannot leave an interface; captures of Ethernet can",
            tx.name(),
            frame.link
        )));
    }
    let mut taken = 0;
    while taken < frames.len() && !shared.is_stopped() {
        let mut wait = None;
        let later = &frames[taken..];
        let due = later.iter().position(|frame| {
            wait = pace.wait(frame.time_us);
            wait.is_some()
        });
        let now = &later[..due.unwrap_or(later.len())];
        if !now.is_empty()
            && let Err(error) = tx.send(&Burst::new(data, now), Selection::All)
        {
            match error.kind {
                // It may come up again; until then frames are dropped and counted.
                InterfaceErrorKind::Down => remark(&format!("fenxi-lab: {error}\n"))?,
                _ => return Err(Failure::unavailable(error.to_string())),
            }
        }
        taken += now.len();
        if let Some(wait) = wait {
            std::thread::sleep(wait);
        }
    }
    Ok(taken)
}

fn not_written(name: &str, error: WriteError) -> Failure {
    match error {
        WriteError::Io(error) => Failure::writing(name, &error),
        error => Failure::data(format!("{name}: {error}")),
    }
}
