//! Measured features of a flow, from the times, numbers and lengths of its packets.
//!
//! A flow is followed by [`Flow`], three lines of memory of which the usual packet touches the
//! first, and for features that read options or payload, by [`More`]. The crate knows no packet
//! format but the header of TCP ([`Segment`]), the first byte of QUIC and the id of DNS, and
//! neither allocates nor reads a clock: times come with the packets.
//!
//! Side 0 is the side that sent the flow's first packet, side 1 the other one. A round trip of a
//! side leads from here to the *other* side and back: data of side 0 is acknowledged by side 1.
//!
//! Numbers of TCP are compared modulo 2^32 (RFC 9293 §3.4). A packet that was merged from several
//! is given as one [`Segment`] with its number of segments, and counts as they would. What is lost
//! before it gets here, and what the other direction says where only one is seen, is not invented:
//! such values stay unknown.

#![forbid(unsafe_code)]

mod features;
mod flow;
mod more;
mod rare;
mod rtt;
mod segment;
mod told;

pub use features::{Feature, Features};
pub use flow::{FLOW_BYTES, Flow};
pub use more::{MORE_BYTES, More};
pub use rtt::Rtt;
pub use segment::{ACK, FIN, RST, SYN, Segment, Tcp};
pub use told::{Known, Told, ToldSide};
