//! The data plane: everything between a port and a label, as threads.
//!
//! | module | holds |
//! |---|---|
//! | [`flow_worker`] | the thread of the packets' walk: read it first |
//! | [`analytics_worker`] | the thread of the series' walk |
//! | [`clock`], [`egress`], [`sink`] | the parts of a flow worker that differ between replays and live runs |
//! | [`pipelines`], [`devices`], [`bundle`] | managers, rings, devices and the model, built from a configuration |
//! | [`profiles`] | how long batches take: from files, measured at the start, and what a run has found |
//! | [`goals`] | which latency goals can hold on the devices that tasks share |
//! | [`task_check`] | what only the models can tell about the tasks of a configuration |
//! | [`placement`] | which threads there are and on which core each runs |
//! | [`swap`] | two-phase swap of the model, the devices, batching and cache |
//! | [`rules`] | questions of flow managers to the policy, and its answers |
//! | [`settings`] | other settings for a running flow worker |
//! | [`snapshot`], [`counters`] | how counters leave a thread |
//! | [`run`], [`state`], [`waker`], `label_waker` | what the threads of a run share |
//!
//! The crate starts no thread of the data path itself, reads and writes no file but models and profiles, and knows no command line,
//! no terminal and no network.

#![forbid(unsafe_code)]

pub mod analytics_worker;
pub mod bundle;
pub mod clock;
pub mod counters;
pub mod devices;
pub mod egress;
mod error;
pub mod flow_worker;
pub mod goals;
pub mod label_map;
mod label_waker;
pub mod look;
pub mod pipelines;
pub mod placement;
pub mod profiles;
pub mod recorder;
pub mod rules;
pub mod run;
pub mod settings;
pub mod sink;
#[cfg(test)]
mod small_table;
pub mod snapshot;
pub mod state;
pub mod swap;
pub mod task_check;
pub mod tasks;
pub mod waker;

use std::sync::atomic::{AtomicBool, Ordering};

pub use error::Error;

/// Whether a thread may still run a library's code, where it cannot be stopped.
static LEAVES_THREADS: AtomicBool = AtomicBool::new(false);

/// Notes that some thread may still run a library's code when the program ends. The library's clean-up would free memory that
/// the thread uses, so the program has to end without it.
pub fn leave_threads_behind() {
    LEAVES_THREADS.store(true, Ordering::Relaxed);
}

/// Whether [`leave_threads_behind`] was called.
pub fn leaves_threads_behind() -> bool {
    LEAVES_THREADS.load(Ordering::Relaxed)
}
