//! Real interfaces through Linux packet sockets (`AF_PACKET`). `CAP_NET_RAW` suffices.
//!
//! The kernel fills a ring of blocks (TPACKET_V3). Frames are handed out in place and may be
//! changed there. A block returns to the kernel once all its frames were handed out and the next
//! ones are requested. The kernel hands a block over when it is full, or `block_timeout_ms` after
//! its first frame, which is the latency of a port with little traffic.
//!
//! | file | holds |
//! |---|---|
//! | `receiver.rs` | a ring as an [`Rx`](crate::Rx) that survives the loss of its interface |
//! | `reader.rs`, `block.rs` | frames of a ring's blocks |
//! | `reader/adopt.rs` | a ring that outlives the process |
//! | `ring.rs` | the memory shared with the kernel |
//! | `open.rs`, `fanout.rs` | setup of sockets and rings; several rings on one interface |
//! | `sender.rs`, `transmit.rs` | an interface as a [`Tx`], and its system calls |
//! | `copies.rs` | an interface for copies of packets |
//!
//! * **VLAN**: the kernel strips the outermost tag; it is put back in place.
//! * **Merged packets** (GRO, LRO, TSO) have lengths that no packet on the wire has. The
//!   `virtio_net_hdr` in front of a frame describes the packets it was merged from; see
//!   [`Frame::gso`](crate::Frame::gso). A port that completes checksums can send such frames on,
//!   for the kernel or the card to split. Frames that the kernel cannot describe (SCTP, IPsec, LRO
//!   of some drivers) do not reach the ring and count as dropped (`tpacket_rcv` in
//!   `net/packet/af_packet.c`).
//! * **Checksums** that a local sender left to its card are counted, and completed if the settings
//!   ask for it.
//! * **RSS**: [`Frame::rss`](crate::Frame::rss) is `None`: the kernel reports a hash (`tp_rxhash`),
//!   but not whether it is its own, which is symmetric, or the card's, which by default is not.
//! * **Losses**: frames that found the ring full are counted as dropped.

mod block;
mod checksum;
mod copies;
mod counts;
mod fanout;
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

pub(crate) use copies::Copies;
use reader::{RingReader, names};
use receiver::receivers;
pub(crate) use sender::Sender;

use crate::backend::{Backend, Opened};
use crate::error::OpenError;
use crate::first;
use crate::interface::{Interface, system};
use crate::kept::{AdoptError, Inherited};
use crate::settings::PortSettings;
use crate::sys;
use crate::tx::Tx;

/// Packet sockets with receive rings shared with the kernel.
pub(crate) static AF_PACKET: Backend = Backend {
    name: "af_packet",
    about: "packet sockets, which copy every packet",
    takes_frames: false,
    has_first_packets: true,
    has_lasting_rings: true,
    uses_packet_sockets: true,
    devices: None,
    drop_in: None,
    capabilities: |_| &["CAP_NET_RAW"],
    ring_bytes: |settings| u64::from(settings.block_bytes) * u64::from(settings.blocks),
    open,
    open_tx: |interface| Ok(Box::new(Sender::open(interface)?)),
    probe,
};

/// Opens ports on each interface.
fn open(interfaces: &[PortSettings], rings: u16) -> Result<Vec<Vec<Opened>>, OpenError> {
    let of_interface = |settings: &PortSettings| match &settings.first {
        Some(first) => first::open(settings, first, rings),
        None => ports(settings, RingReader::open_rings(settings, rings)?, |_| ()),
    };
    interfaces.iter().map(of_interface).collect()
}

/// Opens ports over the rings of the previous process.
pub(crate) fn adopt(
    interfaces: &[PortSettings],
    rings: u16,
    mut inherited: Vec<Inherited>,
) -> Result<Vec<Vec<Opened>>, AdoptError> {
    let of_interface = |settings: &PortSettings| {
        let names = names(settings, u32::from(rings.max(1)))?.into_iter();
        let sockets = names.map(|wanted| {
            let at = inherited.iter().position(|it| it.name == wanted);
            let found = at.map(|at| inherited.swap_remove(at).socket);
            found.ok_or_else(|| AdoptError::Missing {
                interface: settings.interface.clone(),
                wanted,
            })
        });
        sockets.collect::<Result<Vec<_>, _>>()
    };
    let sockets: Vec<_> = interfaces.iter().map(of_interface).collect::<Result<_, _>>()?;
    let adopted = interfaces.iter().zip(sockets).map(|(settings, sockets)| {
        let readers = RingReader::adopt_rings(settings, sockets)?;
        Ok(ports(settings, readers, Sender::catch_up)?)
    });
    adopted.collect()
}

fn ports(
    settings: &PortSettings,
    rings: Vec<RingReader>,
    prepare: impl Fn(&mut Sender),
) -> Result<Vec<Opened>, OpenError> {
    let receivers = receivers(rings);
    let opened = receivers.into_iter().enumerate().map(|(i, receiver)| {
        let tx: Option<Box<dyn Tx>> = match settings.sends {
            true => {
                let mut sender = Sender::for_receiver(&receiver, i, settings.completes_checksums)?;
                prepare(&mut sender);
                Some(Box::new(sender))
            }
            false => None,
        };
        Ok(Opened { rx: Box::new(receiver), tx, enough: None, how: None })
    });
    opened.collect()
}

/// Checks whether an interface could be opened, up to the memory of one ring. Nothing stays open.
fn probe(settings: &PortSettings) -> Result<(), OpenError> {
    if let Some(first) = &settings.first {
        return first::probe(settings, first);
    }
    RingReader::probe(settings)?;
    match settings.sends {
        true => Sender::probe(&settings.interface, settings.completes_checksums),
        false => Ok(()),
    }
}

impl Interface {
    /// Opens a packet socket.
    fn socket(&self) -> Result<OwnedFd, OpenError> {
        sys::packet_socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::MissingCapability {
                interface: self.name.clone(),
                what: "packet sockets",
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
