//! The series' walk: series come down the rings, go through the prefix cache and in batches to a device, and their
//! labels go up into the flows' label words.
//!
//! ```text
//!  ring ─► look-up ── hit ─────────────────────────────────┐
//!             │                                            ├─► label word
//!             └─ miss ─► wait in the ring ─► batch ─► device┘
//!                        (policy: when, how many)    (result also fills the cache)
//! ```
//!
//! Read [`manager`](Manager) first: one [`Manager::round`] is the whole walk, in the order of the picture from right to
//! left. The rest are its parts: `inlet` (what waits in one ring), `cache`, `batching` (when to fire and how much),
//! `dispatch` (which device, and what to remember of a batch on its way), `counters`.
//!
//! # What always holds
//!
//! 1. Each series that a manager took from a ring gets exactly one fate: series = cached + inferred + shed + failed +
//!    undecided, after every round ([`Counters::undecided`]).
//! 2. A label is offered only to the flow and generation that asked; when that flow is gone the label is counted
//!    post-mortem and dropped.
//! 3. The series of one inlet are inferred in the order in which they were emitted.
//! 4. A round never blocks, reads no clock but to account for the cache's cost, and allocates nothing, with two
//!    exceptions: the cache allocates its entries until it is full, and a device's error is kept as text.
//!
//! Source: FENXI, §5 and Algorithms 1 to 3.

#![forbid(unsafe_code)]

mod accelerator;
pub mod batching;
mod cache;
mod config;
mod counters;
mod dispatch;
mod failure;
mod health;
mod inlet;
mod lane;
mod manager;

pub use accelerator::Accelerator;
pub use batching::{Policy, Trigger};
pub use config::{CACHE_ENTRIES_MAX, CacheConfig, Config, ConfigError};
pub use counters::{BatchCounters, CacheCounters, Counters, DeviceCounters, Phases, SloCounters};
pub use failure::FailureKind;
pub use health::{DeviceHealth, DeviceState};
pub use inlet::Inlet;
pub use manager::{Manager, Refused, Round, Standby, SwapError};
