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
    /// Linux packet sockets with receive rings shared with the kernel (`AF_PACKET`, TPACKET_V3).
    #[default]
    AfPacket,
    /// Frames that an XDP program takes out of the driver's or the kernel's path, in memory shared with the kernel (`AF_XDP`).
    AfXdp,
    /// Devices that DPDK takes from the kernel; in builds with the feature `dpdk`.
    Dpdk,
}

impl Backend {
    /// The names of all of them, the default's first.
    pub const NAMES: &'static [&'static str] = &["af_packet", "af_xdp", "dpdk"];

    /// As `io.backend` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::AfPacket => "af_packet",
            Backend::AfXdp => "af_xdp",
            Backend::Dpdk => "dpdk",
        }
    }

    /// By its name; `None` if there is none of this name.
    pub fn from_name(name: &str) -> Option<Backend> {
        let all = [Backend::AfPacket, Backend::AfXdp, Backend::Dpdk];
        all.into_iter().find(|it| it.name() == name)
    }

    /// The capabilities, by name, without which a port over an interface that was gone cannot be opened again, or one cannot
    /// be closed.
    pub fn capabilities(self, settings: &PortSettings) -> &'static [&'static str] {
        match self {
            Backend::AfPacket => &["CAP_NET_RAW"],
            Backend::AfXdp => af_xdp::capabilities(settings),
            // Drivers over interfaces of the kernel make them promiscuous, and back.
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

/// Opens `rings` ports (0 counts as 1) on each interface; gives them by interface. The frames of an interface are spread over
/// its ports, both directions of a flow to the same port; the n-th ports of all interfaces see the same flows, so that one
/// thread serves them.
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

/// Opens ports over receive rings of a process before this one, as [`open`] would open them anew: all of them, or none. What the
/// kernel has put into them since is received first. Only the backend af_packet has such rings.
///
/// # Errors
/// A ring is missing or not as the settings ask for it, or the interface cannot be sent on. All that was inherited is closed.
pub fn adopt(
    interfaces: &[PortSettings],
    rings: u16,
    inherited: Vec<Inherited>,
) -> Result<Vec<Vec<Opened>>, AdoptError> {
    af_packet::adopt(interfaces, rings, inherited)
}

/// Opens an interface to send on alone. Packets merged into one are refused as too long.
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

/// Opens an interface of the kernel for copies of packets that leave by others, whatever backend these have: `senders` of them, one
/// for each thread. A copy that the interface does not take at once is lost and counted, also while it is down or gone; one that
/// is back by its name gets copies again. Merged packets are sent on, for the kernel or the card to split.
///
/// # Errors
/// There is no such interface, its frames are not Ethernet, a capability is missing, …
pub fn open_copies(interface: &str, senders: usize) -> Result<Vec<Box<dyn Tx>>, OpenError> {
    let copies = af_packet::Copies::open(interface, senders)?;
    let boxed = copies.into_iter().map(|it| Box::new(it) as Box<dyn Tx>);
    Ok(boxed.collect())
}

/// Checks whether an interface could be opened, up to the memory of one ring. Nothing is bound to
/// the interface for receiving, and nothing stays open.
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
