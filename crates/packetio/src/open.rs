//! Opens ports by the name of a backend, so that nothing outside this crate names one.

use crate::af_packet;
use crate::af_xdp;
use crate::dpdk;
use crate::error::OpenError;
use crate::first;
use crate::kept::{AdoptError, Inherited};
use crate::port::Opened;
use crate::settings::PortSettings;
use crate::tx::Tx;

/// How an interface is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Packet sockets with receive rings shared with the kernel (`AF_PACKET`, TPACKET_V3).
    #[default]
    AfPacket,
    /// An XDP program redirects frames into memory shared with the kernel (`AF_XDP`).
    AfXdp,
    /// Devices that DPDK takes from the kernel; needs the feature `dpdk`.
    Dpdk,
}

impl Backend {
    /// All names, the default first.
    pub const NAMES: &'static [&'static str] = &["af_packet", "af_xdp", "dpdk"];

    /// The name in `io.backend`.
    pub fn name(self) -> &'static str {
        match self {
            Backend::AfPacket => "af_packet",
            Backend::AfXdp => "af_xdp",
            Backend::Dpdk => "dpdk",
        }
    }

    /// The backend with this name.
    pub fn from_name(name: &str) -> Option<Backend> {
        let all = [Backend::AfPacket, Backend::AfXdp, Backend::Dpdk];
        all.into_iter().find(|it| it.name() == name)
    }

    /// The capabilities needed to reopen a port over an interface that was gone, or to close a
    /// port.
    pub fn capabilities(self, settings: &PortSettings) -> &'static [&'static str] {
        match self {
            Backend::AfPacket => &["CAP_NET_RAW"],
            Backend::AfXdp => af_xdp::capabilities(settings),
            // Drivers over kernel interfaces switch promiscuous mode on and off.
            Backend::Dpdk => &["CAP_NET_ADMIN"],
        }
    }

    /// Whether receive rings can outlive the process ([`PortSettings::keeper`]).
    pub fn has_lasting_rings(self) -> bool {
        match self {
            Backend::AfPacket => true,
            Backend::AfXdp | Backend::Dpdk => false,
        }
    }

    /// Whether a port takes the frames that it receives away from the kernel.
    pub fn takes_frames(self) -> bool {
        match self {
            Backend::AfPacket => false,
            Backend::AfXdp | Backend::Dpdk => true,
        }
    }
}

/// Opens `rings` ports (0 counts as 1) on each interface and returns them by interface. Both
/// directions of a flow arrive at the same port, and the n-th ports of all interfaces see the same
/// flows, so one thread serves them.
///
/// # Errors
/// There is no such interface, a capability is missing, a setting is out of bounds, …
pub fn open(
    backend: Backend,
    interfaces: &[PortSettings],
    rings: u16,
) -> Result<Vec<Vec<Opened>>, OpenError> {
    match backend {
        Backend::AfPacket => interfaces
            .iter()
            .map(|settings| match &settings.first {
                Some(first) => first::open(settings, first, rings),
                None => af_packet::open(settings, rings),
            })
            .collect(),
        Backend::AfXdp => af_xdp::open(interfaces, rings),
        Backend::Dpdk => dpdk::open(interfaces, rings.max(1)),
    }
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
pub fn open_tx(backend: Backend, interface: &str) -> Result<Box<dyn Tx>, OpenError> {
    match backend {
        Backend::AfPacket => Ok(Box::new(af_packet::Sender::open(interface)?)),
        Backend::AfXdp => af_xdp::open_tx(interface),
        Backend::Dpdk => dpdk::open_tx(interface),
    }
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
pub fn probe(backend: Backend, settings: &PortSettings) -> Result<(), OpenError> {
    match backend {
        Backend::AfPacket => match &settings.first {
            Some(first) => first::probe(settings, first),
            None => af_packet::probe(settings),
        },
        Backend::AfXdp => af_xdp::probe(settings),
        Backend::Dpdk => dpdk::probe(settings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_backends_are_read_back() {
        for name in Backend::NAMES {
            assert_eq!(Backend::from_name(name).map(Backend::name), Some(*name));
        }
        assert_eq!(Backend::from_name("AF_PACKET"), None);
    }
}
