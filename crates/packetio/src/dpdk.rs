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

use crate::backend::{Backend, Devices};
#[cfg(not(feature = "dpdk"))]
use absent as open;

/// A packet buffer and its descriptor, 2176 and 256 bytes, with its share of the pool.
const MBUF_BYTES: u64 = 2560;

/// Devices that DPDK takes from the kernel.
pub(crate) static DPDK: Backend = Backend {
    name: "dpdk",
    about: "DPDK, by `fenxi run` only: to look at a device is to take it",
    takes_frames: true,
    has_first_packets: false,
    has_lasting_rings: false,
    uses_packet_sockets: false,
    devices: Some(Devices {
        whose: "DPDK's",
        naming: "with backend dpdk, name a card by its PCI address, or a device of dpdk.args by \
                 its name",
        list: "dpdk-devbind.py --status-dev net",
    }),
    // DPDK's drivers differ in the rights that they need.
    drop_in: None,
    // Drivers over kernel interfaces switch promiscuous mode on and off.
    capabilities: |_| &["CAP_NET_ADMIN"],
    ring_bytes: |settings| u64::from(settings.own.dpdk.mbufs) * MBUF_BYTES,
    open: open::open,
    open_tx: open::open_tx,
    probe: open::probe,
};

#[cfg(not(feature = "dpdk"))]
mod absent {
    use crate::backend::Opened;
    use crate::error::OpenError;
    use crate::settings::PortSettings;
    use crate::tx::Tx;

    pub(super) fn open(interfaces: &[PortSettings], _: u16) -> Result<Vec<Vec<Opened>>, OpenError> {
        refuse(interfaces.first().map_or("", |it| &it.interface))
    }

    pub(super) fn open_tx(interface: &str) -> Result<Box<dyn Tx>, OpenError> {
        refuse(interface)
    }

    pub(super) fn probe(settings: &PortSettings) -> Result<(), OpenError> {
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
