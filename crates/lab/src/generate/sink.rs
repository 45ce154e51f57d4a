//! Where generated frames go: a capture file, nowhere, or out of an interface.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use packetio::af_packet::{
    AfPacketError, InterfaceErrorKind, Transmit, TransmitConfig, TransmitCounts,
};
use packetio::{Burst, CaptureFormat, CaptureWriter, Frame, WriteError};

use super::control::Shared;
use super::frame::ETHERNET;
use crate::cli::is_dash;
use fenxi::exit::{Failure, remark};
use dataplane::clock::Pace;

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
        /// The socket.
        transmit: Box<Transmit>,
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
        let config = TransmitConfig {
            interface: name.to_owned(),
            bypasses_qdisc: false,
            sends_merged: false,
        };
        let transmit = Transmit::open(&config).map_err(|error| match error {
            AfPacketError::MissingCapability { .. } => Failure::not_allowed(error.to_string()),
            error => Failure::unavailable(error.to_string()),
        })?;
        Ok(Sink::Interface {
            transmit: Box::new(transmit),
            pace: Pace::new(1.0),
        })
    }

    /// Takes the frames, which lie in `data`, and gives how many it took: an interface takes them when they are due, and no
    /// more where the generator is to stop.
    ///
    /// # Errors
    /// Writing broke off, the interface is gone, or these are no frames for it.
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
            Sink::Interface { transmit, pace } => send(transmit, pace, data, frames, shared),
        }
    }

    /// Ends the output; what became of the frames, where it is an interface.
    ///
    /// # Errors
    /// Writing broke off.
    pub fn finish(self) -> Result<Option<TransmitCounts>, Failure> {
        match self {
            Sink::Memory => Ok(None),
            Sink::File { name, writer } => {
                let finished = writer.finish().and_then(|mut out| Ok(out.flush()?));
                finished.map_err(|error| not_written(&name, error))?;
                Ok(None)
            }
            Sink::Interface { transmit, .. } => Ok(Some(transmit.counts())),
        }
    }
}

/// Sends all that is due together, and rests until the next frame is. Who comes late catches up.
fn send(
    transmit: &mut Transmit,
    pace: &Pace,
    data: &mut [u8],
    frames: &[Frame],
    shared: &Shared,
) -> Result<usize, Failure> {
    if let Some(frame) = frames.iter().find(|frame| frame.link != ETHERNET) {
        return Err(Failure::data(format!(
            "{}: frames of link type {} cannot leave an interface; captures of Ethernet can",
            transmit.interface(),
            frame.link
        )));
    }
    let mut taken = 0;
    while taken < frames.len() && !shared.is_stopped() {
        let mut rest = None;
        let later = &frames[taken..];
        let due = later.iter().position(|frame| {
            rest = pace.rest(frame.time_us);
            rest.is_some()
        });
        let now = &later[..due.unwrap_or(later.len())];
        if !now.is_empty()
            && let Err(error) = transmit.send(&Burst::new(data, now))
        {
            match error.kind {
                // It may come up again; until then frames are dropped, and counted.
                InterfaceErrorKind::Down => remark(&format!("fenxi: {error}\n"))?,
                _ => return Err(Failure::unavailable(error.to_string())),
            }
        }
        taken += now.len();
        if let Some(rest) = rest {
            std::thread::sleep(rest);
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
