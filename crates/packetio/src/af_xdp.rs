//! Real interfaces through XDP sockets (`AF_XDP`), Linux 5.9 or later. Opening needs `CAP_NET_RAW`,
//! `CAP_BPF` and `CAP_NET_ADMIN`, and `CAP_IPC_LOCK` or a high limit of locked memory.
//!
//! An XDP program redirects an interface's frames into memory shared with the kernel, before the
//! kernel makes packets of them. They are handed out in place and may be changed there. The kernel
//! gets only frames to the addresses in `to_host`.
//!
//! ```text
//! queue of A ── fill ring ◄────────────────────────── returned frames ◄──────┐
//!          └─── receive ring ─► burst ─► (changed) ─► send ring ─► queue of B │
//!                                                 completion ring ────────────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `open.rs`, `check.rs` | memory and queues by port; checks before |
//! | `program.rs`, `../../bpf/xdp.c` | the XDP program, and how it is attached |
//! | `socket.rs` | a socket of one queue |
//! | `receiver/` | a port's queues as an [`Rx`](crate::Rx) that outlives its interface |
//! | `sender.rs` | an interface as a [`Tx`](crate::Tx) |
//! | `shared.rs` | state shared by an interface's ports, and by a port's two sides |
//! | `settings.rs` | settings of XDP |
//! | `loans.rs` | ownership of frames |
//! | `area.rs`, `ring.rs` | memory shared with the kernel |
//!
//! * **Memory**: the n-th ports of all interfaces share one area, which each of their sockets
//!   registers. So a frame received on one interface is sent on another without a copy, and an
//!   interface that comes back needs nothing of the others. The limit of locked memory counts the
//!   area once per socket.
//! * **Queues**: queue q of an interface belongs to port q modulo the number of ports. The card
//!   chooses the queue. What its hash cannot parse (PPPoE, QinQ, MPLS, tunnels, fragments) it
//!   spreads arbitrarily, so only a single port keeps all flows together.
//! * **VLAN**: tags stay in place. A card that strips them is refused for a port that sends.
//! * **Checksums** that a local sender left to its card look wrong, and stay so: XDP is not told.
//!   They occur on veth only, unless this machine sends through the interface by other means.
//! * **Merged packets** do not fit a frame; interfaces that merge before XDP are refused.
//! * **RSS**: [`Frame::rss`](crate::Frame::rss) is `None`. A frame's time is when the receive
//!   call.
//! * **Losses**: frames without room count as dropped. What a card drops for lack of buffers it
//!   counts itself.
//! * **Outgoing frames** of this machine are not seen, whatever [`Direction`](crate::Direction).

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
pub(crate) mod settings;
mod shared;
mod socket;
#[cfg(test)]
mod tests;

use crate::backend::{Backend, DropIn};
use crate::settings::PortSettings;

/// An XDP program redirects frames into memory shared with the kernel.
pub(crate) static AF_XDP: Backend = Backend {
    name: "af_xdp",
    about: "AF_XDP; the log of `fenxi run` says whether in native mode and with zero copy",
    takes_frames: true,
    has_first_packets: false,
    has_lasting_rings: false,
    uses_packet_sockets: true,
    devices: None,
    drop_in: Some(DropIn {
        name: "xdp",
        text: include_str!("../../../packaging/systemd/xdp.conf"),
        what: "XDP sockets and programs",
    }),
    capabilities,
    ring_bytes: |settings| {
        u64::from(settings.own.xdp.frame_bytes) * u64::from(settings.own.xdp.frames)
    },
    open: open::open,
    open_tx: open::open_tx,
    probe: open::probe,
};

/// Capabilities to reopen an interface. The program, which needs more, stays loaded.
fn capabilities(settings: &PortSettings) -> &'static [&'static str] {
    match settings.own.xdp.busy_poll_us {
        0 => &["CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK"],
        _ => &["CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK", "CAP_NET_ADMIN"],
    }
}
