//! Frames in and frames out. This crate moves bytes; it knows no protocol.
//!
//! | module | holds |
//! |---|---|
//! | [`burst`] | [`Frame`], the description of one frame, and [`Burst`], frames and their memory |
//! | [`rx`] | [`Rx`], where bursts come from, and [`wait`], which sleeps until some come |
//! | [`tx`] | [`Tx`], where bursts go |
//! | [`backend`] | [`Backend`], one row for each way to read and write interfaces |
//! | [`open`](mod@open) | [`open`](fn@open): interfaces by [`Backend`] and [`PortSettings`] |
//! | [`kept`] | receive rings that outlive the process |
//! | [`first`] | the kernel hands out the first packets of each flow and counts the others |
//! | [`interface`] | properties of an interface, for any backend |
//! | [`capture`] | [`CaptureReader`] over a capture file, [`Sequence`] over several |
//! | [`batch`] | [`FrameBatch`], frames that own their bytes, and a channel of batches |
//! | [`sharded`] | ports of one interface that pass frames on, so that a flow has one worker |
//! | `overheard` | [`Overheard`], copies of UDP packets from certain ports |
//! | [`stream`] | [`StreamRx`], frames out of a Unix socket or a pipe |
//! | [`faults`] | [`Faults`], around a port, loses, cuts and corrupts frames |
//! | [`writer`] | [`CaptureWriter`], frames into a capture file |
//! | [`error`] | errors, which name kinds of trouble and no backend |
//!
//! A port owns the memory of its frames. A burst borrows it, so a frame is read, and may be
//! changed, where it was received; nothing on the receiving side of an interface copies packets.

// Exceptions: sys, sys::passed, mapping, af_packet::ring, af_xdp::{area, ring},
// first::{program, table}.
#![deny(unsafe_code)]

mod af_packet;
mod af_xdp;
pub mod backend;
pub mod batch;
pub mod burst;
pub mod capture;
mod dpdk;
mod ebpf;
pub mod error;
pub mod faults;
pub mod first;
pub mod interface;
pub mod kept;
mod mapping;
pub mod open;
mod overheard;
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
pub use af_xdp::settings::{XdpMode, XdpSettings, ZeroCopy};
pub use backend::{Backend, Opened};
pub use batch::FrameBatch;
pub use burst::{Burst, Frame, FrameAnswer, Gso};
pub use capture::{CaptureError, CaptureErrorKind, CaptureReader, Sequence, SequenceSettings};
pub use error::{InterfaceErrorKind, OpenError, RxError, RxErrorKind, TxError};
pub use faults::{FaultCounts, FaultRates, Faults};
pub use first::{
    Enough, FlowCounts, KernelEditions, KernelMark, NotLinked, WrittenMarks, marks_connections,
};
pub use kept::{AdoptError, Inherited, inherited};
pub use open::{adopt, open, open_copies, open_tx, probe};
pub use overheard::Overheard;
pub use rx::{LinkEvent, Notice, Received, Rx, RxCounts, WaitHandle, wait};
pub use settings::{
    Direction, FirstPackets, Keeper, KernelDepth, KernelLabels, KernelMarks, KernelPort,
    PortSettings,
};
pub use stream::StreamRx;
pub use tx::{Selection, Tx, TxCounts};
pub use writer::{CaptureFormat, CaptureWriter, WriteError};

/// Largest captured length. Files that claim more count as damaged, as in libpcap and Wireshark
/// (`MAXIMUM_SNAPLEN`, `WTAP_MAX_PACKET_SIZE_STANDARD`).
pub const CAPTURED_MAX: u32 = 262_144;

/// Every backend, the default first. A new one is a file with its [`Backend`], and its lines here.
const BACKENDS: [&Backend; 3] = [&af_packet::AF_PACKET, &af_xdp::AF_XDP, &dpdk::DPDK];

/// What only one backend wants to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackendSettings {
    /// For XDP.
    pub xdp: XdpSettings,
    /// For DPDK, which starts once, with the first interface's.
    pub dpdk: DpdkSettings,
}
