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

use cring::{FlowRef, Label, Labels};
use flowmgr::{Actions, Fate, tag};
use packetio::{CaptureFormat, CaptureWriter, Frame, WriteError};

use crate::exit::Failure;

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
    actions: Actions,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Buffers of packets that were written, for use again.
    spare: Vec<Vec<u8>>,
    written: u64,
}

impl TaggedWriter {
    /// Creates `output`: pcapng where its name says so, else pcap in nanoseconds.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(
        output: &Path,
        labels: Arc<dyn Labels>,
        actions: Actions,
    ) -> Result<TaggedWriter, Failure> {
        let format = match output.extension() {
            Some(extension) if extension == "pcapng" => CaptureFormat::Pcapng,
            _ => CaptureFormat::Pcap { nanosecond: true },
        };
        let file = File::create(output).map_err(|error| Failure::creating(output, &error))?;
        let writer = CaptureWriter::create(format, file).map_err(|error| failure(output, error))?;
        Ok(TaggedWriter {
            output: output.to_owned(),
            writer,
            labels,
            actions,
            held: VecDeque::new(),
            held_bytes: 0,
            spare: Vec::new(),
            written: 0,
        })
    }

    /// Packets written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether so much is held that the packet path should wait.
    pub fn is_full(&self) -> bool {
        self.held_bytes > HELD_BYTES_MAX
    }

    /// Takes the next packet, and writes it if nothing stands in its way.
    ///
    /// # Errors
    /// Writing broke off.
    pub fn push(&mut self, frame: Frame, bytes: &[u8], fate: Fate) -> Result<(), Failure> {
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

    /// Writes held packets up to the first whose label is on its way.
    ///
    /// # Errors
    /// Writing broke off.
    pub fn advance(&mut self) -> Result<(), Failure> {
        while let Some(mut held) = self.held.pop_front() {
            let label = held.fate.label_of.and_then(|flow| self.label(flow));
            if label == Some(Label::Pending) {
                self.held.push_front(held);
                break;
            }
            if let Some(Label::Class { class, .. }) = label
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

    /// Writes what is buffered. Nothing may be held any more.
    ///
    /// # Errors
    /// Writing broke off.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.advance()?;
        let output = self.output;
        let file = self
            .writer
            .finish()
            .map_err(|error| failure(&output, error))?;
        file.sync_all().or_else(|error| match error.kind() {
            // A pipe or a device has nothing to sync.
            std::io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(failure(&output, error.into())),
        })
    }

    fn label(&self, flow: FlowRef) -> Option<Label> {
        self.labels.word(0, flow.index).label(flow.generation)
    }

    fn write(&mut self, frame: &Frame, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.writer.write(frame, bytes);
        written.map_err(|error| failure(&self.output, error))?;
        self.written += 1;
        Ok(())
    }
}

/// A pipe whose reader has gone is a failure too: the packets were wanted.
fn failure(output: &Path, error: WriteError) -> Failure {
    let name = output.display();
    Failure::io(match error {
        WriteError::Io(error) => format!("{name}: writing broke off: {error}"),
        error => format!("{name}: {error}"),
    })
}
