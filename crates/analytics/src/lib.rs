//! The series' walk: series come down the rings, go through the prefix cache and in batches to a
//! device, and their labels go up into the flows' label words.
//!
//! ```text
//!  ring ─► look-up ── hit ─────────────────────────────────┐
//!             │                                            ├─► label word
//!             └─ miss ─► wait in the ring ─► batch ─► device┘
//!                        (policy: when, how many)    (result also fills the cache)
//! ```
//!
//! Read [`manager`](Manager) first, then [`task`](Task): a round is the whole walk of its series,
//! in the order of the picture from right to left. The rest are its parts: `ring_input` (what waits
//! in one ring), `cache` (with the `governor` that turns it off if it does not pay), `batching`
//! (when to fire and how much; `slo` has a controller), `dispatch` (which device is next, and which
//! series are retried), `device_slot` (one device: its batch, its condition), `counters`.
//! [`controller`] plans for several tasks that share devices.
//!
//! Devices fail, and models change, under traffic: see `task/collect`, `device_slot` and
//! `task/swap`.
//!
//! # Invariants
//!
//! 1. Each series that a task took from a ring has exactly one outcome. After every round series
//!    = cached + inferred + not asked + shed + failed + undecided ([`Counters::undecided`]).
//! 2. A label is offered only to the flow and generation that asked; if that flow is gone the label
//!    is counted as post-mortem and dropped. A flow that will get no label is told so.
//! 3. The series of one ring input are inferred in the order in which they were emitted, except for
//!    retried ones.
//! 4. A label names the generation of the model that its class is from. No answer in the cache
//!    outlives its model.
//! 5. A round never blocks, reads no clock except to measure the cache's cost, and allocates
//!    nothing, with three exceptions: the cache allocates its entries until it is full, a device's
//!    error is kept as text, and a replaced device brings its names and room for its rows.
//!
//! Sources: FENXI, §5 and Algorithms 1 to 3; Batchy, §3 and §4 (`slo`); LiteFlow, §3.4 (swap of the
//! model).

#![forbid(unsafe_code)]

mod accelerator;
pub mod batching;
mod cache;
mod config;
pub mod controller;
mod counters;
mod device_slot;
mod dispatch;
mod executors;
mod failure;
mod health;
mod manager;
mod ring_input;
mod rows;
mod task;

pub use accelerator::Accelerator;
pub use batching::{Policy, Trigger};
pub use config::{
    AUDIT, CACHE_ENTRIES_MAX, CACHE_KEY_WORDS_MAX, CacheConfig, Config, ConfigError, K, PHI,
    SLO_DELTA,
};
pub use counters::{BatchCounters, CacheCounters, Counters, DeviceCounters, Phases, SloCounters};
pub use device_slot::DeviceProfile;
pub use failure::FailureKind;
pub use health::{DeviceHealth, DeviceState};
pub use manager::{Manager, Round};
pub use ring_input::RingInput;
pub use task::after::{After, Need, Test};
pub use task::row_layout::write_series;
pub use task::{
    CANARY_ONE_IN, Coming, NewModel, Refused, Retired, Settings, Standby, SwapError, Task,
};
