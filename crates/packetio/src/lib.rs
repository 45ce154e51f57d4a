//! Frames in and frames out. This crate moves bytes; it knows no protocol.
//!
//! The layers, from the bottom up:
//!
//! | module | holds |
//! |---|---|
//! | [`burst`] | [`Frame`], what is known of one frame, and [`Burst`], some frames and the memory they lie in |
//! | [`port`] | [`Port`], where bursts come from, and [`PortError`] |
//! | [`capture`] | [`CaptureReader`], a port over a capture file: pcap, pcapng, gzip |
//! | [`af_packet`] | [`AfPacket`], a port over an interface, and [`Transmit`], which sends |
//! | [`memory`] | [`MemoryTrace`], a port over frames held in memory |
//! | [`faults`] | [`Faults`], a port around a port that loses, cuts and corrupts frames |
//! | [`writer`] | [`CaptureWriter`], frames into a capture file |
//!
//! A port owns the memory of its frames. A burst borrows it, so a frame is read, and may be
//! changed, where it was received; nothing on the receiving side copies packets.

#![deny(unsafe_code)] // but for af_packet::{ring, sys}

pub mod af_packet;
pub mod burst;
pub mod capture;
pub mod faults;
pub mod memory;
pub mod port;
pub mod writer;

pub use af_packet::{AfPacket, InterfaceError, Transmit};
pub use burst::{Burst, Frame};
pub use capture::{CaptureError, CaptureErrorKind, CaptureReader, OpenError};
pub use faults::{FaultCounts, FaultRates, Faults};
pub use memory::MemoryTrace;
pub use port::{Port, PortError};
pub use writer::{CaptureFormat, CaptureWriter, WriteError};

/// The most bytes one captured frame may have. Files that claim more are taken for damaged, as
/// libpcap and Wireshark do (their `MAXIMUM_SNAPLEN` and `WTAP_MAX_PACKET_SIZE_STANDARD`).
pub const CAPTURED_MAX: u32 = 262_144;
