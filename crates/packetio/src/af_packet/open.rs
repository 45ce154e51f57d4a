//! Sets up a receiving socket and its ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::fanout::{Group, keep};
use super::ring::Ring;
use super::vlan;
use crate::error::OpenError;
use crate::interface::{ETHERNET, Interface, system};
use crate::settings::{Direction, PortSettings};
use crate::sys;

/// The third version of the ring (`TPACKET_V3`).
const VERSION: u32 = 2;
/// Slot size, by which the kernel checks the block size; the third version does not use slots.
const SLOT: u32 = 2048;

/// Whether frames sent by this machine are left out.
pub(super) fn ignores_outgoing(config: &PortSettings, interface: &Interface) -> bool {
    config.direction == Direction::Incoming || interface.is_loopback()
}

/// The group of `rings` rings on an interface.
pub(super) fn group(config: &PortSettings, interface: &Interface, rings: u32) -> Group {
    let is_ethernet = interface.link_type == ETHERNET;
    Group::new(rings, ignores_outgoing(config, interface), is_ethernet)
}

/// Opens a socket with its ring, which receives nothing yet.
pub(super) fn set_up(
    config: &PortSettings,
    interface: &Interface,
) -> Result<(OwnedFd, Ring), OpenError> {
    let name = &interface.name;
    let owned = interface.socket()?;
    let socket = owned.as_fd();
    let set = |option, words: &[u32], step| {
        sys::set_option(socket, option, words).map_err(system(name, step))
    };
    set(libc::PACKET_VERSION, &[VERSION], "the kernel has no TPACKET_V3")?;
    set(libc::PACKET_RESERVE, &[vlan::TAG as u32], "no room for VLAN tags")?;
    set(
        libc::PACKET_VNET_HDR,
        &[1],
        "the kernel does not say how packets were merged (it has to be 4.6 or later)",
    )?;
    if ignores_outgoing(config, interface) {
        // Without it (older kernels), the reader skips these frames.
        let _ = sys::set_option(socket, libc::PACKET_IGNORE_OUTGOING, &[1]);
    }
    let blocks = config.blocks;
    let slot = SLOT.min(config.block_bytes);
    let slots = (config.block_bytes / slot).saturating_mul(blocks);
    let request = [config.block_bytes, blocks, slot, slots, config.block_timeout_ms, 0, 0];
    let no_memory = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOMEM) => {
            OpenError::NoMemory { interface: name.clone(), blocks, block_bytes: config.block_bytes }
        }
        _ => system(name, "the receive ring is refused")(source),
    };
    sys::set_option(socket, libc::PACKET_RX_RING, &request).map_err(no_memory)?;
    let ring =
        Ring::map(socket, config.block_bytes as usize, blocks as usize).map_err(no_memory)?;
    Ok((owned, ring))
}

/// Binds the socket to the interface and joins the group. No frame passes its filter yet.
pub(super) fn start(
    config: &PortSettings,
    interface: &Interface,
    group: &Group,
    number: u32,
    socket: BorrowedFd<'_>,
) -> Result<(), OpenError> {
    let name = &interface.name;
    sys::set_filter(socket, &keep(0)).map_err(system(name, "no filter can be set"))?;
    interface.bind(socket, sys::ALL_PROTOCOLS)?;
    if config.is_promiscuous {
        let refused = system(name, "the promiscuous mode is refused");
        sys::be_promiscuous(socket, interface.index).map_err(refused)?;
    }
    group.join(number, socket).map_err(system(name, "the ring cannot join the others"))
}
