//! Opens ports by the name of a backend, so that nothing outside this crate names one.

use crate::af_packet;
use crate::dpdk;
use crate::error::OpenError;
use crate::rx::Rx;
use crate::settings::PortSettings;
use crate::tx::Tx;

/// How an interface is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Linux packet sockets with receive rings shared with the kernel (`AF_PACKET`, TPACKET_V3).
    #[default]
    AfPacket,
    /// Devices that DPDK takes from the kernel; in builds with the feature `dpdk`.
    Dpdk,
}

impl Backend {
    /// The names of all of them, the default's first.
    pub const NAMES: &'static [&'static str] = &["af_packet", "dpdk"];

    /// As `io.backend` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::AfPacket => "af_packet",
            Backend::Dpdk => "dpdk",
        }
    }

    /// By its name; `None` if there is none of this name.
    pub fn from_name(name: &str) -> Option<Backend> {
        let mut all = [Backend::AfPacket, Backend::Dpdk].into_iter();
        all.find(|it| it.name() == name)
    }
}

/// One port of an interface.
pub struct Opened {
    /// Its receiving side.
    pub rx: Box<dyn Rx>,
    /// Its sending side, if [`PortSettings::sends`] asks for one.
    pub tx: Option<Box<dyn Tx>>,
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
            .map(|settings| af_packet::open(settings, rings))
            .collect(),
        Backend::Dpdk => dpdk::open(interfaces, rings.max(1)),
    }
}

/// Opens an interface to send on alone. Packets merged into one are refused as too long.
///
/// # Errors
/// There is no such interface, a capability is missing, …
pub fn open_tx(backend: Backend, interface: &str) -> Result<Box<dyn Tx>, OpenError> {
    match backend {
        Backend::AfPacket => Ok(Box::new(af_packet::Sender::open(interface)?)),
        Backend::Dpdk => dpdk::open_tx(interface),
    }
}

/// Checks whether an interface could be opened, up to the memory of one ring. Nothing is bound to
/// the interface for receiving, and nothing stays open.
///
/// # Errors
/// As [`open`].
pub fn probe(backend: Backend, settings: &PortSettings) -> Result<(), OpenError> {
    match backend {
        Backend::AfPacket => af_packet::probe(settings),
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
