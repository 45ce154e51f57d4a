//! What fenxi writes into the kernel's netfilter: marks and labels of connections, and elements of nftables sets.
//!
//! [`conntrack`] has the messages of connections, [`nft_set`] those of sets, [`connlabel`] the file that names labels.
//! [`socket`] exchanges a batch of messages with the kernel. A [`writer::Writer`] is a thread behind a bounded queue, which
//! [`connections`] and [`elements`] tell what to write. The crate knows no flow, model or configuration. Names from outside
//! go into netlink's attributes as bytes with a length, so none of them can be read as a command.
#![forbid(unsafe_code)]

pub mod connections;
pub mod connlabel;
pub mod conntrack;
pub mod counts;
pub mod elements;
mod netlink;
pub mod nft_set;
pub mod socket;
pub mod writer;
