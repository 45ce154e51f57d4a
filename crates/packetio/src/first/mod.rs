//! The first packets of each flow, out of the kernel; it counts the others.
//!
//! A program at both directions of an interface (TC, attached by TCX, so Linux 6.6 or later) looks at each packet, lets it go
//! on, and sends up to a ring only those that a series may need, those with SYN, FIN or RST, and those that it does not parse.
//! Of the others it adds up packets and bytes by flow in a table where a new flow takes the place of one that was not used for
//! longer. Packets are neither copied nor do they wait for user space. The program is `bpf/first.c`, whose object is part of
//! this crate, so that a build needs no compiler of its own. The kernel takes it from `CAP_BPF` and `CAP_NET_ADMIN`; from whoever
//! has `CAP_PERFMON`, too, it takes it without barriers against speculation, and then a packet costs less.
//!
//! | file | holds |
//! |---|---|
//! | `layout.rs` | what the program and this side share: keys, counts, records |
//! | `hash.rs` | the hash of a flow, likewise |
//! | `program.rs` | the program on an interface: loaded, attached, attached again |
//! | `table.rs` | the flows that it counts, in memory shared with the kernel |
//! | `describe.rs` | frames and counts as the rest of the program knows them |
//! | `round.rs` | rounds over the table |
//! | `receiver.rs` | all of it as an [`Rx`](crate::Rx) |
//!
//! * **Counts** come with a burst ([`Burst::counts`](crate::Burst::counts)): those of a flow that ends before its last packets,
//!   all others within about a second.
//! * **Egress** is seen before the queueing discipline of the interface, so packets that it drops count, too.
//! * **Frames** are cut: behind the headers where they were parsed, else at 2,048 bytes.

mod describe;
pub(crate) mod enough;
mod hash;
mod layout;
mod program;
mod receiver;
mod round;
mod table;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::error::OpenError;
use crate::port::Opened;
use crate::settings::{FirstPackets, PortSettings};

/// What the kernel counted of one flow, in the order of its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCounts {
    /// IP protocol number.
    pub protocol: u8,
    /// The two ends. The first one is not greater than the second, as address and port.
    pub ends: [(IpAddr, u16); 2],
    /// Packets from the first end, and from the second, since the kernel began to count.
    pub packets: [u64; 2],
    /// Their bytes at the IP layer.
    pub bytes: [u64; 2],
    /// Another one than before says that it began anew.
    pub generation: u32,
    /// Time of the last packet, as [`Frame::time_us`](crate::Frame::time_us).
    pub last_us: i64,
}

/// Opens the ports of an interface, one for each of `workers`.
///
/// # Errors
/// [`OpenError::FirstPackets`] where the kernel does not take the program; others as for any port.
pub(crate) fn open(
    settings: &PortSettings,
    first: &FirstPackets,
    workers: u16,
) -> Result<Vec<Opened>, OpenError> {
    receiver::open(settings, first, workers)
}

/// Whether the program would be taken. It is attached for a moment, and changes nothing.
///
/// # Errors
/// As [`open`].
pub(crate) fn probe(settings: &PortSettings, first: &FirstPackets) -> Result<(), OpenError> {
    program::probe(settings, first)
}
