//! Writes into the kernel's netfilter: marks and labels of connections, elements of nftables sets,
//! and maps that spread new connections over servers.
//!
//! [`conntrack`] builds messages about connections, [`nft_set`] about sets; [`connlabel`] reads the
//! file of labels. [`socket`] exchanges a batch of messages with the kernel. A [`writer::Writer`]
//! is a thread behind a bounded queue; [`connections`] and [`elements`] provide what it does.
//! [`slots`] rewrites a map of servers by weight; [`neighbours`] reads MAC addresses. The crate
//! knows no flow, model or configuration. External names are sent as bytes with a length, so they
//! cannot be read as commands.
#![forbid(unsafe_code)]

pub mod connections;
pub mod connlabel;
pub mod conntrack;
pub mod counts;
pub mod elements;
pub mod latest;
pub mod neighbours;
mod netlink;
pub mod nft_set;
pub mod slots;
pub mod socket;
pub mod writer;
