//! Real interfaces through Linux packet sockets: [`AfPacket`] receives from a ring of blocks that
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
mod config;
mod error;
mod fanout;
mod offloads;
mod open;
mod queues;
mod receive;
mod ring;
mod sys;
mod transmit;
mod vlan;

pub use config::{Direction, PortConfig};
pub use error::{AfPacketError, InterfaceError, InterfaceErrorKind};
pub use offloads::{MERGE_INCOMING, Offload, Offloads, SPLIT_OUTGOING};
pub use queues::{Queues, ReceiveHash};
pub use receive::{AfPacket, Counts, rest};
pub use transmit::{Transmit, TransmitConfig, TransmitCounts};

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netdevice::{index_to_name, name_to_index};

use sys::Link;

/// `LINKTYPE_ETHERNET` and `LINKTYPE_RAW`.
const ETHERNET: u16 = 1;
const RAW: u16 = 101;

/// Bare IP, as of modems; libc does not have it.
const ARPHRD_RAWIP: u16 = 519;

/// The names of all interfaces that the process sees.
pub fn interfaces() -> Vec<String> {
    sys::interfaces()
}

/// An interface that is there, and a socket on which it can be asked again.
#[derive(Debug)]
struct Interface {
    name: String,
    index: u32,
    query: OwnedFd,
    /// As it was when last asked.
    link: Link,
    /// `LINKTYPE_` number of its frames.
    link_type: u16,
}

impl Interface {
    fn open(name: &str) -> Result<Self, AfPacketError> {
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => AfPacketError::NoSuchInterface {
                interface: name.to_owned(),
                known: sys::interfaces(),
            },
            _ => system(name, "cannot be asked")(source),
        };
        let query = sys::query_socket().map_err(failed)?;
        let link = sys::link(query.as_fd(), name).map_err(failed)?;
        let index = name_to_index(&query, name).map_err(|error| failed(error.into()))?;
        let link_type = match link.hardware {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => ETHERNET,
            libc::ARPHRD_NONE | ARPHRD_RAWIP => RAW,
            libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT => RAW,
            hardware => {
                let interface = name.to_owned();
                return Err(AfPacketError::UnsupportedLink {
                    interface,
                    hardware,
                });
            }
        };
        Ok(Self {
            name: name.to_owned(),
            index,
            query,
            link,
            link_type,
        })
    }

    /// Asks again. An interface of another index is another one, so this one is gone.
    fn refresh(&mut self) -> Result<Link, InterfaceErrorKind> {
        match name_to_index(&self.query, &self.name) {
            Ok(index) if index == self.index => {}
            _ => return Err(InterfaceErrorKind::Gone),
        }
        self.link =
            sys::link(self.query.as_fd(), &self.name).map_err(|_| InterfaceErrorKind::Gone)?;
        Ok(self.link)
    }

    /// Its name, where somebody has given it another one since it was opened.
    fn new_name(&self) -> Option<String> {
        let is_ours = name_to_index(&self.query, &self.name).is_ok_and(|it| it == self.index);
        // By another name of its own (`altname`) it may have been opened all along.
        let name = index_to_name(&self.query, self.index).ok();
        name.filter(|name| !is_ours && *name != self.name)
    }

    fn is_loopback(&self) -> bool {
        self.link.hardware == libc::ARPHRD_LOOPBACK
    }

    fn error(&self, kind: InterfaceErrorKind) -> InterfaceError {
        let interface = self.name.clone();
        InterfaceError { interface, kind }
    }

    /// A packet socket for it.
    fn socket(&self) -> Result<OwnedFd, AfPacketError> {
        sys::packet_socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => AfPacketError::MissingCapability {
                interface: self.name.clone(),
                capability: "CAP_NET_RAW",
            },
            _ => system(&self.name, "cannot open a packet socket")(error),
        })
    }

    fn bind(&self, socket: BorrowedFd<'_>, protocol: u16) -> Result<(), AfPacketError> {
        sys::bind(socket, self.index as i32, protocol)
            .map_err(system(&self.name, "cannot be bound to"))
    }
}

fn system(interface: &str, step: &'static str) -> impl Fn(io::Error) -> AfPacketError {
    move |source| AfPacketError::System {
        interface: interface.to_owned(),
        step,
        source,
    }
}
