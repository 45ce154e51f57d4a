//! A thin binding of DPDK: what fenxi needs of it, as safe types. Empty without the feature `link`.
//!
//! | module | holds |
//! |---|---|
//! | `eal` | `Eal`, the environment: arguments, memory, devices; once per process |
//! | `log` | DPDK's log, of which only errors are kept, for messages of errors |
//! | `mempool` | `Mempool`, packet buffers in one stretch of memory |
//! | `mbuf` | `Lent`, received packets and the memory that they lie in |
//! | `port` | `Port`, a device: opened, its link, its counters |
//! | `queue` | `RxQueue`, `TxQueue`: bursts in and out |
//! | `error` | errors by kind, with what DPDK says |
//!
//! `unsafe` is in all of these, since all of them call C, and nowhere else: what is public is safe.
//! Three rules carry that. The bytes of received packets lie in memory that holds nothing else
//! (`Mempool`), so that nobody who writes to packets reaches what DPDK relies on. A buffer belongs
//! to one holder; one that is sent while it is lent gets a second holder, and is only read from
//! then on (`Lent`). Pools live as long as the environment, and that as long as any port.

#![cfg(feature = "link")]
#![allow(unsafe_code, reason = "all of it calls C")]

mod eal;
mod error;
mod log;
mod mbuf;
mod mempool;
mod port;
mod queue;
mod stdio;
mod thread;

pub use eal::Eal;
pub use error::{Error, ErrorKind};
pub use mbuf::{Lent, Placed};
pub use mempool::Mempool;
pub use port::{Link, Port, PortQueue, PortSettings, Stats};
pub use queue::{BURST_MAX, RxQueue, TxQueue};

/// The declarations that bindgen made of DPDK's headers and of the shim.
#[allow(
    missing_docs,
    dead_code,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]
mod sys {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
