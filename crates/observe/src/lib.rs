//! Shared memory of services: what the packets of a service say about its servers, for programs
//! that must not ask for it, and weights that such programs give back.
//!
//! * [`Writer`] fills one file per service and thread. It never waits, and readers cannot write.
//! * [`Reader`] copies snapshots. So do `include/fenxi_observe.h` for C and the Python package
//!   `fenxi-observe` in `python/`.
//! * [`Actions`] is memory for one program, which writes a weight and an action per egress with
//!   [`ActionsWriter`]; the reading side trusts none of it.
//! * [`hand_out`] gives a file to the process at the other end of a Unix socket.
//!
//! The files are described byte by byte in [`layout`] and [`actions`]. The paper is Yao et al.,
//! *Aquarius*, MASCOTS 2022, §III-B.
//!
//! # Promises
//!
//! 1. A snapshot of counters and gauges is of one moment, over all egresses. Histograms of an
//!    egress are of one moment. A sample is whole.
//! 2. The writer never waits for a reader, and makes no system call after creation.
//! 3. A reader gives up after a bounded number of tries. A writer that dies half-way leaves the
//!    last publication readable, and at most one sample out.
//! 4. A malformed or truncated file is an error: offsets follow from the number of egresses and the
//!    schema, and are checked when the file is opened. All else is copied values.
//! 5. Values of one egress are never taken for another's that had the same slot: each has a number.
//!
//! A file in a folder may be truncated by its owner while it is mapped, and a reader then gets
//! SIGBUS. Memory that is handed out over a socket is sealed against this. Actions are always such
//! memory, so the owner of the weights cannot hurt the program that reads them.
//!
//! # How it is tested
//!
//! Small models of the blocks and samples run under loom, the rest under Miri in memory of one
//! process:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p fenxi-observe --release --lib loom
//! cargo +nightly miri test -p fenxi-observe --lib
//! ```
//!
//! `tests/hammer.rs` kills and stops readers at random while the writer publishes at full rate
//! (`HAMMER_WORDS` is how many words to read), `tests/conformance.rs` compares what Rust, C and
//! Python read.

#![deny(unsafe_code)]
#![cfg_attr(
    loom,
    allow(dead_code, reason = "loom runs the blocks and samples, not what maps them")
)]

#[cfg(not(loom))]
pub mod actions;
#[cfg(not(loom))]
mod create;
mod egress;
mod error;
#[cfg(not(loom))]
mod hand;
pub mod layout;
#[cfg(all(test, loom))]
mod loom_tests;
#[allow(unsafe_code, reason = "maps memory that other processes share")]
mod memory;
mod publication;
#[cfg(not(loom))]
mod reader;
mod reservoirs;
mod sample;
mod sync;
mod writer;

#[cfg(not(loom))]
pub use actions::{Action, Actions, ActionsWriter, Refusal};
#[cfg(not(loom))]
pub use create::Access;
pub use egress::{Egress, EgressKind, Slot};
pub use error::Error;
#[cfg(not(loom))]
pub use hand::{Allowed, hand_out, receive};
pub use layout::{Field, Kind};
#[cfg(not(loom))]
pub use reader::{Histograms, Reader, Row, Snapshot};
pub use sample::Sample;
pub use writer::{Measure, Service, Value, Writer};
