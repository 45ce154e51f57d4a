//! The data plane: everything between a port and a label, as threads.
//!
//! It has two parts. `threads` are the workers, and `opening` is what they are made of: models,
//! devices and rings, as a configuration names them. `threads` knows `opening`, and not the other
//! way round.
//!
//! | module | holds |
//! |---|---|
//! | [`flow_worker`] | the thread of the packets' walk: read it first |
//! | [`analytics_worker`] | the thread of the series' walk |
//! | [`clock`], [`egress`], [`sink`] | parts of a flow worker: replays and live runs differ |
//! | [`rules`] | questions of flow managers to the policy, and its answers |
//! | [`swap`] | two-phase swap of the model, the devices, batching and cache |
//! | [`settings`] | other settings for a running flow worker |
//! | [`snapshot`], [`counters`], [`servers`] | how counters and servers leave a thread |
//! | [`recorder`] | the seam for a recording of a run |
//! | [`run`], [`state`], [`waker`], `label_waker` | what the threads of a run share |
//! | [`placement`] | which threads there are and on which core each runs |
//! | [`bundle`], [`tasks`], [`task_check`], [`label_map`] | a configuration's models and labels |
//! | [`session`], [`devices`] | devices that run a model |
//! | [`profiles`] | how long batches take: stored, measured at the start, found in a run |
//! | [`pipelines`] | managers and rings |
//! | [`inline`] | a flow manager that has series answered at once |
//!
//! The crate starts no thread of the data path itself, reads and writes no file but models and
//! profiles, and knows no command line, no terminal and no network.

#![forbid(unsafe_code)]

mod error;
mod opening;
pub mod placement;
mod threads;

use std::sync::atomic::{AtomicBool, Ordering};

pub use error::Error;
pub use opening::{
    bundle, devices, inline, label_map, pipelines, profiles, session, task_check, tasks,
};
pub use threads::{
    analytics_worker, clock, counters, egress, flow_worker, look, recorder, rules, run,
    server_actions, servers, settings, sink, snapshot, state, swap, waker,
};

/// Whether a thread may still run a library's code, where it cannot be stopped.
static LEAVES_THREADS: AtomicBool = AtomicBool::new(false);

/// Notes that some thread may still run a library's code when the program ends. The library's
/// clean-up would free memory that the thread uses, so the program has to end without it.
pub fn leave_threads_behind() {
    LEAVES_THREADS.store(true, Ordering::Relaxed);
}

/// Whether [`leave_threads_behind`] was called.
pub fn leaves_threads_behind() -> bool {
    LEAVES_THREADS.load(Ordering::Relaxed)
}
