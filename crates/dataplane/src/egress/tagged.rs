//! `--write`: the packets as they would leave.
//!
//! In a replay by packet time a label counts from a moment in packet time,
//! whenever it really comes. So the writer lags behind: a packet whose flow's
//! label is on its way, and all packets after it, are held until the label is
//! there. The packet path only waits when too much is held.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cring::{Label, Labels};
use flowmgr::{Actions, Depths, Fate, Packet, tag};
use packetio::{Burst, CaptureFormat, CaptureWriter, Frame, WriteError};

use super::Egress;
use crate::Error;

/// Bytes of packets held at a time, at most, beyond one burst.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A packet that waits for its label, or behind one that does.
struct Held {
    frame: Frame,
    bytes: Vec<u8>,
    fate: Fate,
}

/// The output.
pub struct TaggedWriter {
    output: PathBuf,
    writer: CaptureWriter<File>,
    labels: Arc<dyn Labels>,
    depths: Depths,
    actions: Actions,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Buffers of packets that were written, for use again.
    spare: Vec<Vec<u8>>,
    written: u64,
}

impl TaggedWriter {
    /// Creates `output` for the packets that `manager` walks: pcapng where its name says so, else pcap in nanoseconds.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(output: &Path, manager: &flowmgr::Manager) -> Result<TaggedWriter, Error> {
        let format = match output.extension() {
            Some(extension) if extension == "pcapng" => CaptureFormat::Pcapng,
            _ => CaptureFormat::Pcap { nanosecond: true },
        };
        let file = File::create(output).map_err(|error| {
            Error::cannot_create(format!("{}: cannot be created: {error}", output.display()))
        })?;
        let writer = CaptureWriter::create(format, file).map_err(|error| failure(output, error))?;
        Ok(TaggedWriter {
            output: output.to_owned(),
            writer,
            labels: manager.labels(),
            depths: manager.depths().clone(),
            actions: manager.actions().clone(),
            held: VecDeque::new(),
            held_bytes: 0,
            spare: Vec::new(),
            written: 0,
        })
    }

    /// Takes the next packet, and writes it unless something stands in its way.
    fn push(&mut self, frame: Frame, bytes: &[u8], fate: Fate) -> Result<(), Error> {
        if self.held.is_empty() && fate.label_of.is_none() {
            return self.write(&frame, bytes);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        self.held_bytes += copy.len();
        self.held.push_back(Held {
            frame,
            bytes: copy,
            fate,
        });
        Ok(())
    }

    fn label(&self, fate: &Fate) -> Label {
        let label = |flow| self.depths.label(&*self.labels, flow, fate.depths);
        fate.label_of.map_or(Label::None, label)
    }

    fn write(&mut self, frame: &Frame, bytes: &[u8]) -> Result<(), Error> {
        let written = self.writer.write(frame, bytes);
        written.map_err(|error| failure(&self.output, error))?;
        self.written += 1;
        Ok(())
    }
}

impl Egress for TaggedWriter {
    fn send(
        &mut self,
        _port: usize,
        burst: &Burst<'_>,
        packets: &[Packet],
        fates: &[Fate],
    ) -> Result<(), Error> {
        for (i, (packet, fate)) in packets.iter().zip(fates).enumerate() {
            let frame = Frame {
                time_us: packet.time_us,
                ..burst.frames()[i]
            };
            self.push(frame, burst.bytes(i), *fate)?;
        }
        Ok(())
    }

    /// Writes held packets up to the first whose label is on its way.
    fn advance(&mut self) -> Result<(), Error> {
        while let Some(mut held) = self.held.pop_front() {
            let label = self.label(&held.fate);
            if label == Label::Pending {
                self.held.push_front(held);
                break;
            }
            if let Label::Class { class, .. } = label
                && let Some(dscp) = self.actions.of_class(class).dscp
            {
                tag::set_dscp(&mut held.bytes, held.fate.ip_at, dscp);
            }
            self.write(&held.frame, &held.bytes)?;
            self.held_bytes -= held.bytes.len();
            held.bytes.clear();
            self.spare.push(held.bytes);
        }
        Ok(())
    }

    fn done(&self) -> u64 {
        self.written
    }

    fn is_full(&self) -> bool {
        self.held_bytes > HELD_BYTES_MAX
    }

    /// Writes what is buffered. Nothing is held any more, since every label has come.
    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        self.advance()?;
        let TaggedWriter { output, writer, .. } = *self;
        let file = writer.finish().map_err(|error| failure(&output, error))?;
        file.sync_all().or_else(|error| match error.kind() {
            // A pipe or a device has nothing to sync.
            std::io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(failure(&output, error.into())),
        })
    }
}

/// A pipe whose reader has gone is a failure too: the packets were wanted.
fn failure(output: &Path, error: WriteError) -> Error {
    let name = output.display();
    Error::io(match error {
        WriteError::Io(error) => format!("{name}: write failed: {error}"),
        error => format!("{name}: {error}"),
    })
}
