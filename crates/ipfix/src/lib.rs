//! Flow records as IPFIX messages (RFC 7011): bidirectional (RFC 5103), with the label as an
//! application (RFC 6759).
//!
//! An [`Encoder`] turns [`Flow`]s into [`Message`]s: templates first, then data. It does no I/O and
//! reads no clock; the caller provides the time and decides when templates are due.
#![forbid(unsafe_code)]

mod application;
mod encoder;
mod template;

use std::net::IpAddr;

pub use application::{Application, ApplicationId, Applications, NAME_MAX, UNLABELLED};
pub use encoder::{Encoder, MESSAGE_MIN, Message};
pub use template::{FLOW_V4, FLOW_V6};

/// Why a record was made (`flowEndReason`, information element 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// No packet came for the idle timeout.
    IdleTimeout = 1,
    /// The flow goes on; this record covers the time since the previous one.
    ActiveTimeout = 2,
    /// The end of the flow was seen, such as a FIN.
    EndOfFlow = 3,
    /// The exporter was stopped.
    ForcedEnd = 4,
    /// Another flow needed its entry.
    LackOfResources = 5,
}

/// Measured features that have an element in IANA's registry; 0: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// From its first packet to its last one, µs, at most what fits in.
    pub duration_us: u32,
    /// The shortest and the longest packet, forward and in reverse, bytes at the IP layer.
    pub sizes: [[u16; 2]; 2],
}

/// A flow, or what was added to it since its previous record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow<'a> {
    /// Sender of the first packet, and its port.
    pub source: (IpAddr, u16),
    /// Receiver of the first packet, and its port; of the same address family.
    pub destination: (IpAddr, u16),
    /// IP protocol number.
    pub protocol: u8,
    /// Time of the first packet, ms since the epoch.
    pub start_ms: u64,
    /// Time of the last packet, ms since the epoch.
    pub end_ms: u64,
    /// Packets since the previous record, forward and in reverse.
    pub packets: [u64; 2],
    /// Their bytes at the IP layer.
    pub bytes: [u64; 2],
    /// Why the record was made.
    pub reason: EndReason,
    /// Whether the source is known to have begun the flow; otherwise it sent the first packet seen.
    pub is_initiator: bool,
    /// The same in all records of a flow.
    pub flow_id: u64,
    /// The label.
    pub application: Application<'a>,
    /// Number of its behaviour; 0: none.
    pub behaviour: u8,
    /// TCP flags of all its packets, forward and in reverse.
    pub tcp_flags: [u8; 2],
    /// Type and code of the first packet of ICMP; otherwise 0.
    pub icmp: [u8; 2],
    /// Type of service or traffic class of its first packet, forward and in reverse.
    pub tos: [u8; 2],
    /// The same of forward packets as they leave.
    pub post_tos: u8,
    /// Numbers of the interfaces (`ifIndex`) where it comes in and leaves; 0: not known.
    pub interfaces: [u32; 2],
    /// What was measured; not sent unless the encoder was made for it.
    pub measured: Measured,
}
