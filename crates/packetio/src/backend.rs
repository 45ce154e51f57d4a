//! Backends: ways to read and write interfaces.

use std::fmt;

use crate::BACKENDS;
use crate::error::OpenError;
use crate::first::Enough;
use crate::rx::Rx;
use crate::settings::PortSettings;
use crate::tx::Tx;

/// How interfaces are read and written. All that the rest of fenxi knows of it stands here.
pub struct Backend {
    /// The name in `io.backend`.
    pub name: &'static str,
    /// What `fenxi check` says of an interface that can be opened.
    pub about: &'static str,
    /// Whether a port takes the frames that it receives away from the kernel.
    pub takes_frames: bool,
    /// Whether the kernel can hand out the first packets of each flow ([`PortSettings::first`]).
    pub has_first_packets: bool,
    /// Whether receive rings can outlive the process ([`PortSettings::keeper`]).
    pub has_lasting_rings: bool,
    /// Whether it opens packet sockets, which need `CAP_NET_RAW`.
    pub uses_packet_sockets: bool,
    /// Its devices, if they are not interfaces of the kernel.
    pub devices: Option<Devices>,
    /// Grants the service what it needs beyond `CAP_NET_RAW`.
    pub drop_in: Option<DropIn>,
    /// The capabilities needed to reopen a port over an interface that was gone, or to close a
    /// port.
    pub capabilities: fn(&PortSettings) -> &'static [&'static str],
    /// Memory of a port's receive ring, or of each of its queues, bytes.
    pub ring_bytes: fn(&PortSettings) -> u64,
    pub(crate) open: Open,
    pub(crate) open_tx: fn(&str) -> Result<Box<dyn Tx>, OpenError>,
    pub(crate) probe: fn(&PortSettings) -> Result<(), OpenError>,
}

/// Opens this many ports, at least one, on each interface; returns them by interface.
type Open = fn(&[PortSettings], u16) -> Result<Vec<Vec<Opened>>, OpenError>;

/// Devices that a backend takes from the kernel: each belongs to one process. What `fenxi check`
/// says of them.
pub struct Devices {
    /// Whose a name is that is no interface.
    pub whose: &'static str,
    /// How to name a device.
    pub naming: &'static str,
    /// The command that lists them.
    pub list: &'static str,
}

/// A drop-in for the unit of the service, as the package has it.
pub struct DropIn {
    /// The name of its file, without `.conf`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// What needs it.
    pub what: &'static str,
}

/// One port of an interface.
pub struct Opened {
    /// The receiving side.
    pub rx: Box<dyn Rx>,
    /// The sending side, if [`PortSettings::sends`](crate::PortSettings::sends).
    pub tx: Option<Box<dyn Tx>>,
    /// With [`PortSettings::first`](crate::PortSettings::first): tells the kernel which flows need
    /// no more packets. Any port's serves all ports of the interface.
    pub enough: Option<Enough>,
    /// How the interface is read, for the operator, where it varies; same for all its ports.
    pub how: Option<String>,
}

impl Backend {
    /// All names, the default first.
    pub const NAMES: [&str; BACKENDS.len()] = {
        let mut names = [""; BACKENDS.len()];
        let mut i = 0;
        while i < names.len() {
            names[i] = BACKENDS[i].name;
            i += 1;
        }
        names
    };

    /// The backend with this name.
    pub fn parse(name: &str) -> Option<&'static Backend> {
        BACKENDS.into_iter().find(|backend| backend.name == name)
    }
}

impl Default for &'static Backend {
    fn default() -> Self {
        BACKENDS[0]
    }
}

impl PartialEq for Backend {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_backends_are_read_back() {
        for name in Backend::NAMES {
            assert_eq!(Backend::parse(name).map(|it| it.name), Some(name));
        }
        assert_eq!(Backend::parse("AF_PACKET"), None);
    }
}
