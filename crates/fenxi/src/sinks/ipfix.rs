//! Records of flows for a collector, as IPFIX: `docs/ipfix.md`.
//!
//! [`exporter`] is the thread behind the queue, [`connection`] a datagram socket, a connection or a
//! file, [`control`] what the control thread has of it. The crate `ipfix` makes the bytes.

mod connection;
mod control;
mod exporter;
mod keys;
#[cfg(test)]
mod tests;

pub use connection::first;
pub use control::Ipfix;
pub use keys::{Destination, Endpoint, IpfixKeys};
