//! The first packets of each flow out of the kernel, which counts the others.
//!
//! A program at both directions of an interface (TC, attached by TCX, before Linux 6.6 by clsact)
//! inspects each packet, lets it pass, and copies to a ring only those that a series may need,
//! those with SYN, FIN or RST, and those it cannot parse. The other packets and their bytes are
//! counted by flow, in a table where new flows evict the least recently used. Packets do not wait
//! for user space. The program is `bpf/first.c`; its object is part of this crate, so a build needs
//! no BPF compiler. Loading it needs `CAP_BPF` and `CAP_NET_ADMIN`; with `CAP_PERFMON` it is loaded
//! without barriers against speculation, so a packet costs less.
//!
//! | file | holds |
//! |---|---|
//! | `labels.rs` | tells the program how to label flows |
//! | `editions.rs` | exchanges that while packets pass |
//! | `layout.rs` | layout shared with the program: keys, counts, records |
//! | `hash.rs` | the hash of a flow, as in the program |
//! | `kfunc.rs` | links calls of kernel functions |
//! | `program.rs` | loads, attaches and reattaches the program |
//! | `filter.rs` | attaches it where the kernel has no TCX |
//! | `table.rs` | the flow table, in memory shared with the kernel |
//! | `net.rs` | the network inside the kernel |
//! | `describe.rs` | converts records and counts |
//! | `round.rs` | rounds over the table |
//! | `written.rs` | marks that the program wrote |
//! | `receiver.rs` | all of it as an [`Rx`](crate::Rx) |
//!
//! * **Counts** come with a burst ([`Burst::counts`](crate::Burst::counts)): for a flow that ends,
//!   before its last packets; otherwise within about a second.
//! * **Egress** is seen before the queueing discipline, so packets that it drops count, too.
//! * **Frames** are cut behind the headers if they were parsed, otherwise at 2,048 bytes.

mod describe;
mod editions;
mod filter;
mod hash;
mod kfunc;
mod labels;
mod layout;
mod net;
mod program;
mod receiver;
mod round;
mod table;
#[cfg(test)]
mod tests;
mod written;

use std::net::IpAddr;

pub use editions::KernelEditions;
pub use kfunc::{NotLinked, marks_connections};
pub use net::{KernelAnswer, KernelNet, KernelNetError, PLACES, Question};
pub(crate) use program::probe;
pub(crate) use receiver::open;
pub use table::Enough;
pub use written::{KernelMark, WrittenMarks};

/// The kernel's counts of one flow, in the order of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCounts {
    /// IP protocol number.
    pub protocol: u8,
    /// The two ends, ordered by address and port.
    pub ends: [(IpAddr, u16); 2],
    /// Packets from the first and the second end, since counting began.
    pub packets: [u64; 2],
    /// Their bytes at the IP layer.
    pub bytes: [u64; 2],
    /// Changes when counting starts anew.
    pub generation: u32,
    /// Time of the last packet, as [`Frame::time_us`](crate::Frame::time_us).
    pub last_us: i64,
}
