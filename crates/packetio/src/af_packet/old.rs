//! The old names, until nothing outside this crate uses them.

use std::time::Duration;

use super::reader::RingReader;
use super::transmit;
use crate::burst::Burst;
use crate::port::{Port, PortError};
use crate::tx::Selection;

pub use super::reader::{Counts, RingReader as AfPacket};
pub use super::transmit::TransmitConfig;
pub use crate::error::{InterfaceError, InterfaceErrorKind, OpenError as AfPacketError};
pub use crate::interface::names as interfaces;
pub use crate::interface::{
    MERGE_INCOMING, Offload, Offloads, Queues, ReceiveHash, SPLIT_OUTGOING,
};
pub use crate::settings::{Direction, PortSettings as PortConfig};

/// Old name of [`crate::wait`].
pub fn rest<'a>(ports: impl IntoIterator<Item = &'a AfPacket>, most: Duration) {
    let handles = ports.into_iter().map(RingReader::wait_handle);
    crate::rx::wait_for(handles, most);
}

impl Port for AfPacket {
    fn receive(&mut self, max: usize) -> Result<Option<Burst<'_>>, PortError> {
        Ok(Some(AfPacket::receive(self, max)?))
    }
}

/// Old name of [`crate::TxCounts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitCounts {
    /// Frames that the interface took.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that it did not take: full, or down.
    pub dropped: u64,
    /// Frames above its MTU.
    pub too_long: u64,
    /// Frames of which only a part was captured.
    pub cut: u64,
    /// Merged packets that the kernel does not split again.
    pub unsplit: u64,
}

impl TransmitCounts {
    /// Frames that were not sent.
    pub fn unsent(&self) -> u64 {
        self.dropped + self.too_long + self.cut + self.unsplit
    }
}

/// Old name of [`crate::Tx`] over an interface.
#[derive(Debug)]
pub struct Transmit(transmit::Transmit);

impl Transmit {
    /// See [`crate::open_tx`].
    ///
    /// # Errors
    /// There is no such interface, a capability is missing, …
    pub fn open(config: &TransmitConfig) -> Result<Self, AfPacketError> {
        transmit::Transmit::open(config).map(Self)
    }

    /// Opens it again, on the interface that has its name now; counts go on.
    ///
    /// # Errors
    /// As [`Self::open`]. It then stays as it was.
    pub fn reopen(&mut self) -> Result<(), AfPacketError> {
        self.0.reopen()
    }

    /// Name of the interface.
    pub fn interface(&self) -> &str {
        self.0.interface()
    }

    /// What became of the frames so far.
    pub fn counts(&self) -> TransmitCounts {
        let counts = self.0.counts();
        TransmitCounts {
            sent: counts.sent,
            sent_bytes: counts.sent_bytes,
            dropped: counts.refused,
            too_long: counts.too_long,
            cut: counts.cut,
            unsplit: counts.unsplit,
        }
    }

    /// Sends the frames of a burst, in order.
    ///
    /// # Errors
    /// The interface went down or is gone, said once.
    pub fn send(&mut self, burst: &Burst<'_>) -> Result<(), InterfaceError> {
        self.0.send(burst, Selection::All)
    }
}
