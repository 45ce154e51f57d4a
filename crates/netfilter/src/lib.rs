//! What fenxi says to the kernel's netfilter over netlink: messages as bytes, and a socket that exchanges a batch of them.
//!
//! [`conntrack`] builds and reads the messages of connections, [`socket`] sends and receives. The crate knows no flow, label
//! or configuration.

pub mod conntrack;
pub mod socket;
