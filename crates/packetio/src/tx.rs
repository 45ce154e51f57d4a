//! The sending side of a port: where bursts go.

use crate::burst::Burst;
use crate::error::TxError;
use crate::rx::LinkEvent;

/// A destination of frames: an interface, a capture, memory.
///
/// Sending never blocks: frames that an interface does not take at once are dropped and counted, so
/// that later frames are not delayed.
pub trait Tx: Send {
    /// Sends the selected frames of a burst, in order.
    ///
    /// # Errors
    /// The link is down or gone, or the system refuses; reported once until sending works again.
    /// All frames have been counted; the caller may go on sending, and frames are dropped
    /// meanwhile.
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError>;

    /// The port's name for people: the interface, the file.
    fn name(&self) -> &str;

    /// Outcomes of all frames so far. Makes no system call.
    fn counts(&self) -> TxCounts;

    /// Sends what the port has buffered.
    ///
    /// # Errors
    /// The destination refuses it.
    fn flush(&mut self) -> Result<(), TxError> {
        Ok(())
    }

    /// Events of sending that the receiving side does not report: each once, on one of the ports
    /// that share an interface.
    fn link_event(&mut self) -> Option<LinkEvent> {
        None
    }
}

/// A selection of a burst's frames.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// All frames.
    All,
    /// Frames whose entry is true; frames beyond the last entry are not selected.
    Marked(&'a [bool]),
}

impl Selection<'_> {
    /// Whether frame `i` is selected.
    #[inline]
    pub fn has(&self, i: usize) -> bool {
        match self {
            Selection::All => true,
            Selection::Marked(marks) => marks.get(i).copied().unwrap_or(false),
        }
    }
}

/// Frames by outcome. Each is in exactly one of `sent`, `refused`, `too_long`, `cut`, `unsplit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounts {
    /// Frames that the destination took.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames refused: the destination was full or down.
    pub refused: u64,
    /// Frames above the destination's MTU.
    pub too_long: u64,
    /// Frames captured only in part.
    pub cut: u64,
    /// Merged packets that the kernel cannot split: of tunnels, which it does not describe fully.
    pub unsplit: u64,
}

impl TxCounts {
    /// Adds another port's counts.
    pub fn merge(&mut self, other: &TxCounts) {
        *self = TxCounts {
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            refused: self.refused + other.refused,
            too_long: self.too_long + other.too_long,
            cut: self.cut + other.cut,
            unsplit: self.unsplit + other.unsplit,
        };
    }

    /// Frames that were not sent.
    pub fn unsent(&self) -> u64 {
        self.refused + self.too_long + self.cut + self.unsplit
    }
}
