//! Frames in and frames out. This crate moves bytes; it knows no protocol.
//!
//! | module | holds |
//! |---|---|
//! | [`burst`] | [`Frame`], the description of one frame, and [`Burst`], some frames and the memory they lie in |
//! | [`rx`] | [`Rx`], where bursts come from, and [`wait`], which sleeps until some come |
//! | [`tx`] | [`Tx`], where bursts go |
//! | [`open`](mod@open) | [`open`](fn@open): interfaces by [`Backend`] and [`PortSettings`] |
//! | [`kept`] | receive rings that outlive the process |
//! | [`first`] | the first packets of each flow out of the kernel, which counts the others |
//! | [`interface`] | properties of an interface, for any backend |
//! | [`capture`] | [`CaptureReader`] over a capture file (pcap, pcapng, gzip), [`Sequence`] over several |
//! | [`batch`] | [`FrameBatch`], frames that own their bytes, and a channel of them between threads |
//! | [`memory`] | [`MemoryTrace`], frames held in memory |
//! | [`sharded`] | ports of one interface that hand frames to one another, so that a flow stays with one worker |
//! | [`stream`] | [`StreamRx`], frames out of a Unix socket or a pipe |
//! | [`faults`] | [`Faults`], around a port, loses, cuts and corrupts frames |
//! | [`writer`] | [`CaptureWriter`], frames into a capture file |
//! | [`error`] | errors, which name kinds of trouble and no backend |
//!
//! A port owns the memory of its frames. A burst borrows it, so a frame is read, and may be
//! changed, where it was received; nothing on the receiving side of an interface copies packets.

#![deny(unsafe_code)] // but for sys, sys::passed, af_packet::ring, af_xdp::area, af_xdp::ring, first::program and first::table

mod af_packet;
mod af_xdp;
pub mod batch;
pub mod burst;
pub mod capture;
mod dpdk;
pub mod error;
pub mod faults;
pub mod first;
pub mod interface;
mod keeper;
pub mod kept;
pub mod memory;
pub mod open;
mod port;
pub mod rx;
mod settings;
pub mod sharded;
pub mod stream;
mod sys;
#[cfg(test)]
mod tests;
pub mod tx;
pub mod writer;

pub use self::dpdk::settings::DpdkSettings;
pub use batch::FrameBatch;
pub use burst::{Burst, Frame, Gso};
pub use capture::{CaptureError, CaptureErrorKind, CaptureReader, Sequence, SequenceSettings};
pub use error::{OpenError, RxError, RxErrorKind, TxError, TxErrorKind};
pub use faults::{FaultCounts, FaultRates, Faults};
pub use first::FlowCounts;
pub use first::enough::Enough;
pub use keeper::Keeper;
pub use kept::{AdoptError, Inherited, inherited};
pub use memory::MemoryTrace;
pub use open::{Backend, adopt, open, open_copies, open_tx, probe};
pub use port::Opened;
pub use rx::{LinkEvent, Received, Rx, RxCounts, WaitHandle, wait};
pub use settings::{Direction, FirstPackets, PortSettings, XdpMode, XdpSettings, ZeroCopy};
pub use stream::StreamRx;
pub use tx::{Selection, Tx, TxCounts};
pub use writer::{CaptureFormat, CaptureWriter, WriteError};

/// The most bytes one captured frame may have. Files that claim more are taken for damaged, as
/// libpcap and Wireshark do (their `MAXIMUM_SNAPLEN` and `WTAP_MAX_PACKET_SIZE_STANDARD`).
pub const CAPTURED_MAX: u32 = 262_144;
