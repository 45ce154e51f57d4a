//! Devices through DPDK, which takes them from the kernel and polls them. In builds with the feature `dpdk`; any other build says
//! that it has none.
//!
//! Frames are handed out where the device put them, and may be changed there; those that are sent to another device of DPDK are
//! not copied.
//!
//! | file | holds |
//! |---|---|
//! | `receiver.rs` | a receive queue as an [`Rx`](crate::Rx), which also watches the link |
//! | `sender.rs` | a send queue as a [`Tx`](crate::Tx) |
//! | `open.rs` | DPDK's start, and devices opened by name |
//! | `settings.rs` | what DPDK needs to know |
//!
//! * **Offloads** are not asked for: VLAN tags stay or are put back, nothing is merged, checksums are left alone.
//! * **RSS**: with several ports on an interface, the device spreads flows by a hash that is the same for both directions, and
//!   [`Frame::rss`](crate::Frame::rss) has it.
//! * **Times** are those of the moment at which a burst was taken.
//! * **Waiting**: nothing announces frames. After a while without any, a thread sleeps for short times between its looks.
//! * **Losses**: frames that found the device's queue full or no buffer, and those too long for a buffer, are counted as dropped.

#[cfg(feature = "dpdk")]
mod open;
#[cfg(feature = "dpdk")]
mod receiver;
#[cfg(feature = "dpdk")]
mod sender;
pub(crate) mod settings;

#[cfg(not(feature = "dpdk"))]
pub(crate) use absent::{open, open_tx, probe};
#[cfg(feature = "dpdk")]
pub(crate) use open::{open, open_tx, probe};

#[cfg(not(feature = "dpdk"))]
mod absent {
    use crate::error::OpenError;
    use crate::port::Opened;
    use crate::settings::PortSettings;
    use crate::tx::Tx;

    pub(crate) fn open(interfaces: &[PortSettings], _: u16) -> Result<Vec<Vec<Opened>>, OpenError> {
        refuse(interfaces.first().map_or("", |it| &it.interface))
    }

    pub(crate) fn open_tx(interface: &str) -> Result<Box<dyn Tx>, OpenError> {
        refuse(interface)
    }

    pub(crate) fn probe(settings: &PortSettings) -> Result<(), OpenError> {
        refuse(&settings.interface)
    }

    fn refuse<T>(interface: &str) -> Result<T, OpenError> {
        Err(OpenError::BadSetting {
            interface: interface.to_owned(),
            setting: "this fenxi was built without DPDK; install the package fenxi-dpdk, or build it with `make dpdk`".to_owned(),
        })
    }
}
