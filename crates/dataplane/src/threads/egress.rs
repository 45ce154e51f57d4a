//! The seam where packets leave the data path.

mod forward;
mod mirror;
mod tagged;
#[cfg(test)]
mod tests;

use flowmgr::{Fate, Packet};
use packetio::{Burst, TxCounts};

use crate::Error;
use crate::opening::inline::FlowManager;
use crate::threads::counters::PortCounters;

pub use forward::Forward;
pub use mirror::Mirror;
pub use tagged::TaggedWriter;

/// Takes the packets that a flow worker has processed. A worker without an egress drops them: a
/// tap.
pub trait Egress: Send {
    /// Takes a burst that was received from port `port`. `packets` and `fates` have one element for
    /// each of its frames; `flows` is the flow manager that has walked them.
    ///
    /// # Errors
    /// It cannot go on; the worker gives it up and finishes without it.
    fn send(
        &mut self,
        port: usize,
        burst: &Burst<'_>,
        packets: &[Packet],
        fates: &[Fate],
        flows: &FlowManager,
    ) -> Result<(), Error>;

    /// Lets packets go that waited for a label.
    ///
    /// # Errors
    /// As [`Egress::send`].
    fn advance(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Packets, counted from the first, that need nothing of the flow table any more; `u64::MAX` if
    /// none ever does.
    fn done(&self) -> u64 {
        u64::MAX
    }

    /// Whether it is so full that the worker should wait before it sends more.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether every packet has to leave again, so that a packet that does not is lost.
    fn forwards(&self) -> bool {
        false
    }

    /// Adds what was sent out of each port.
    fn count(&self, _ports: &mut [PortCounters]) {}

    /// What became of copies of packets.
    fn copied(&self) -> TxCounts {
        TxCounts::default()
    }

    /// Releases all packets, after the last one has come.
    ///
    /// # Errors
    /// As [`Egress::send`].
    fn finish(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}
