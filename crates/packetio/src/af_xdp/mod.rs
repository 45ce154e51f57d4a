//! Real interfaces through XDP sockets (`AF_XDP`). Needs `CAP_NET_RAW`, `CAP_BPF` and `CAP_NET_ADMIN` to open, and `CAP_IPC_LOCK`
//! or a high limit of locked memory. The kernel has to be 5.9 or later.
//!
//! An XDP program takes the frames of an interface out of the driver's path and into memory that
//! this program shares with the kernel, before the kernel makes packets of them. They are handed out where they lie, and may be
//! changed there. They do not reach the kernel, but for those to addresses that the settings name.
//!
//! ```text
//! queue of A ── fill ring ◄──────────────────────── frames that came back ◄──┐
//!          └─── receive ring ─► burst ─► (changed) ─► send ring ─► queue of B │
//!                                                 completion ring ────────────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `open.rs`, `check.rs` | whose memory lies where, which queue belongs to which port; what is checked first |
//! | `program.rs`, `../../bpf/xdp.c` | the XDP program, and how it is attached |
//! | `socket.rs` | a socket of one queue |
//! | `receiver/` | the queues of a port as an [`Rx`](crate::Rx) that survives the loss of its interface |
//! | `sender.rs` | an interface as a [`Tx`] |
//! | `shared.rs` | what the ports of one interface share, and the two sides of one port |
//! | `loans.rs` | who has which frame |
//! | `area.rs`, `ring.rs` | memory shared with the kernel |
//!
//! * **Memory**: the n-th ports of all interfaces share one area, which each of their sockets registers by itself; so a frame
//!   that one interface received another sends without a copy by this program, and an interface that comes back needs
//!   nothing of the others. The limit of locked memory counts the area once for each socket.
//! * **Queues**: queue q of an interface belongs to port q modulo the number of ports. The card chooses the queue. What its hash
//!   cannot see (PPPoE, QinQ, MPLS, tunnels, fragments) it may spread over queues in any way, so flows stay together for sure
//!   only with one port.
//! * **VLAN**: tags are where they were on the wire. A card that strips them is refused for a port that sends.
//! * **Checksums** that a local sender left to its card look like wrong ones, and stay so: XDP is not told. They occur on veth
//!   only, as long as nothing else of this machine sends through the interface.
//! * **Merged packets** do not fit into a frame; interfaces that merge before XDP sees packets are refused.
//! * **RSS**: [`Frame::rss`](crate::Frame::rss) is `None`, and the time of a frame is that of the receive call.
//! * **Losses**: frames that found no room are counted as dropped. What a card drops for lack of buffers it counts itself.
//! * **Outgoing frames** of this machine are not seen, whatever [`Direction`](crate::Direction) says.

mod area;
mod check;
mod loans;
mod open;
mod place;
mod program;
mod queues;
mod receiver;
mod ring;
mod sender;
mod shared;
mod socket;
#[cfg(test)]
mod tests;

use crate::error::OpenError;
use crate::port::Opened;
use crate::settings::PortSettings;
use crate::tx::Tx;

/// Opens ports on all interfaces.
pub(crate) fn open(interfaces: &[PortSettings], rings: u16) -> Result<Vec<Vec<Opened>>, OpenError> {
    open::open(interfaces, u32::from(rings.max(1)))
}

/// Opens an interface to send on alone.
pub(crate) fn open_tx(interface: &str) -> Result<Box<dyn Tx>, OpenError> {
    Ok(Box::new(open::open_tx(interface)?))
}

/// Checks whether an interface could be opened. Nothing is attached, and nothing stays open.
pub(crate) fn probe(settings: &PortSettings) -> Result<(), OpenError> {
    open::probe(settings)
}

/// What it takes to open an interface again. The program stays loaded, which is what needs more.
pub(crate) fn capabilities(settings: &PortSettings) -> &'static [&'static str] {
    match settings.xdp.busy_poll_us {
        0 => &["CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK"],
        _ => &["CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK", "CAP_NET_ADMIN"],
    }
}
