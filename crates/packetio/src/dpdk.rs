//! Devices through DPDK, which takes them from the kernel and polls them. Needs the feature `dpdk`;
//! other builds refuse such devices.
//!
//! Frames are handed out in place and may be changed there; sending them to another DPDK device
//! needs no copy.
//!
//! | file | holds |
//! |---|---|
//! | `receiver.rs` | a receive queue as an [`Rx`](crate::Rx), which also watches the link |
//! | `sender.rs` | a send queue as a [`Tx`](crate::Tx) |
//! | `open.rs` | starts DPDK and opens devices by name |
//! | `settings.rs` | settings of DPDK |
//!
//! * **Offloads** are not requested: VLAN tags stay or are put back, nothing is merged, checksums
//!   are left alone.
//! * **RSS**: with several ports on an interface, the device spreads flows by a symmetric hash,
//!   which is in [`Frame::rss`](crate::Frame::rss).
//! * **Times** are when a burst was taken.
//! * **Waiting**: there are no wake-ups. After a while without frames, a thread sleeps briefly
//!   between polls.
//! * **Losses**: frames that found the queue full or no buffer, or were too long for one, count as
//!   dropped.

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
            setting: "this fenxi was built without DPDK; install the package fenxi-dpdk, or build \
                      it with `make dpdk`"
                .to_owned(),
        })
    }
}
