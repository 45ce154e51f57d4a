//! Real interfaces through Linux packet sockets: [`RingReader`] receives from a ring of blocks that
//! the kernel fills (TPACKET_V3), [`Transmit`] sends. `CAP_NET_RAW` suffices for both.
//!
//! Frames are handed out where the kernel wrote them, and may be changed there. A block goes
//! back to the kernel when all its frames were handed out and the next ones are asked for.
//! The kernel hands a block over when it is full, or [`PortConfig::block_timeout_ms`] after its
//! first frame; that time is the latency of a port with little traffic.
//!
//! * **VLAN**: the outermost tag, which the kernel takes off, is put back in place.
//! * **Super-packets** (GRO, LRO, TSO) have the lengths of no packet on the wire. They are counted
//!   as [`Counts::merged`]; [`Offloads`] says what causes them and the line that turns it off.
//!   [`Transmit`] can send those that the kernel has merged ([`TransmitConfig::sends_merged`]).
//! * **Checksums** that a local sender left to its network card are counted as
//!   [`Counts::partial_checksums`], and completed if [`PortConfig::completes_checksums`].
//! * **RSS**: [`Frame::rss`](crate::Frame::rss) is `None`. The kernel would tell a hash
//!   (`tp_rxhash`), but not whether it is its own, which is symmetric, or the card's, which by
//!   default is not.
//! * **Several rings** on one interface: both directions of a flow meet in one, see `fanout.rs`.
//! * **Losses**: frames that found the ring full are [`Counts::dropped`].

mod block;
mod checksum;
mod fanout;
mod old;
mod open;
mod reader;
mod receiver;
mod ring;
mod sender;
#[cfg(test)]
mod tests;
mod transmit;
mod vlan;

use std::os::fd::{BorrowedFd, OwnedFd};

pub use old::*;
pub(crate) use reader::RingReader;
pub(crate) use receiver::open_rings;
pub(crate) use sender::Sender;

use crate::error::OpenError;
use crate::interface::{Interface, system};
use crate::sys;

impl Interface {
    /// A packet socket for it.
    fn socket(&self) -> Result<OwnedFd, OpenError> {
        sys::packet_socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::MissingCapability {
                interface: self.name.clone(),
                capability: "CAP_NET_RAW",
            },
            _ => system(&self.name, "cannot open a packet socket")(error),
        })
    }

    fn bind(&self, socket: BorrowedFd<'_>, protocol: u16) -> Result<(), OpenError> {
        sys::bind(socket, self.index as i32, protocol)
            .map_err(system(&self.name, "cannot be bound to"))
    }
}
