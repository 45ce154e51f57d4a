//! The sending side of a port: where bursts go.

use crate::burst::Burst;
use crate::error::TxError;
use crate::rx::LinkEvent;

/// A destination of frames: an interface, a capture, memory.
///
/// A call never waits for the destination: frames that an interface does not take at once are dropped and
/// counted, so that the frames behind it stay in time.
pub trait Tx: Send {
    /// Sends those frames of a burst that are selected, in order.
    ///
    /// # Errors
    /// The link is down or gone, or the system refuses; reported once, until sending works again. All
    /// frames have been counted, and sending may go on: while it fails, frames are dropped.
    fn send(&mut self, burst: &Burst<'_>, which: Selection<'_>) -> Result<(), TxError>;

    /// The port's name for people: the interface, the file.
    fn name(&self) -> &str;

    /// What became of the frames so far. Makes no system call.
    fn counts(&self) -> TxCounts;

    /// Hands on what the port holds back, if it holds back anything.
    ///
    /// # Errors
    /// The destination does not take it.
    fn flush(&mut self) -> Result<(), TxError> {
        Ok(())
    }

    /// What people should know of sending that the receiving side of the port does not report:
    /// each thing once, on one of the ports that share an interface.
    fn link_event(&mut self) -> Option<LinkEvent> {
        None
    }
}

/// Which frames of a burst are meant.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// All of them.
    All,
    /// Those whose entry is true; frames beyond the last entry are not meant.
    Marked(&'a [bool]),
}

impl Selection<'_> {
    /// Whether it has frame `i`.
    #[inline]
    pub fn has(&self, i: usize) -> bool {
        match self {
            Selection::All => true,
            Selection::Marked(marks) => marks.get(i).copied().unwrap_or(false),
        }
    }
}

/// Counts of frames to be sent, by outcome. Each is in exactly one of `sent`, `refused`, `too_long`,
/// `cut` and `unsplit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounts {
    /// Frames that the destination took.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that it did not take: full, or down.
    pub refused: u64,
    /// Frames above its MTU.
    pub too_long: u64,
    /// Frames of which only a part was captured.
    pub cut: u64,
    /// Merged packets that the kernel does not split again: those of tunnels, which it does not
    /// describe completely.
    pub unsplit: u64,
}

impl TxCounts {
    /// Adds those of another port.
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
