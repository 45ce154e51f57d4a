//! Opens ports.

use crate::af_packet;
use crate::backend::{Backend, Opened};
use crate::error::OpenError;
use crate::kept::{AdoptError, Inherited};
use crate::settings::PortSettings;
use crate::tx::Tx;

/// Opens `rings` ports (0 counts as 1) on each interface and returns them by interface. Both
/// directions of a flow arrive at the same port, and the n-th ports of all interfaces see the same
/// flows, so one thread serves them.
///
/// # Errors
/// There is no such interface, a capability is missing, a setting is out of bounds, …
pub fn open(
    backend: &Backend,
    interfaces: &[PortSettings],
    rings: u16,
) -> Result<Vec<Vec<Opened>>, OpenError> {
    (backend.open)(interfaces, rings.max(1))
}

/// Opens ports over the rings of the previous process, as [`open`] would: all or none. Frames that
/// the kernel has put into them meanwhile come first. Only af_packet has such rings.
///
/// # Errors
/// A ring is missing or does not match the settings, or the interface cannot be sent on. All
/// inherited sockets are then closed.
pub fn adopt(
    interfaces: &[PortSettings],
    rings: u16,
    inherited: Vec<Inherited>,
) -> Result<Vec<Vec<Opened>>, AdoptError> {
    af_packet::adopt(interfaces, rings, inherited)
}

/// Opens an interface for sending only. Merged packets are refused as too long.
///
/// # Errors
/// There is no such interface, a capability is missing, …
pub fn open_tx(backend: &Backend, interface: &str) -> Result<Box<dyn Tx>, OpenError> {
    (backend.open_tx)(interface)
}

/// Opens a kernel interface, whatever the main backend, for copies of packets: `senders` senders,
/// one per thread. Copies that the interface does not take at once, or while it is down or gone,
/// are lost and counted; it resumes once an interface of that name is back. The kernel or the card
/// splits merged packets.
///
/// # Errors
/// There is no such interface, its frames are not Ethernet, a capability is missing, …
pub fn open_copies(interface: &str, senders: usize) -> Result<Vec<Box<dyn Tx>>, OpenError> {
    let copies = af_packet::Copies::open(interface, senders)?;
    let boxed = copies.into_iter().map(|it| Box::new(it) as Box<dyn Tx>);
    Ok(boxed.collect())
}

/// Checks whether an interface could be opened, up to the memory of one ring. Binds nothing and
/// leaves nothing open.
///
/// # Errors
/// As [`open`].
pub fn probe(backend: &Backend, settings: &PortSettings) -> Result<(), OpenError> {
    (backend.probe)(settings)
}
