//! Batching and cache of a task.

use std::time::Duration;

/// Batching.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Analytics {
    /// When a batch fires.
    pub policy: BatchPolicy,
    /// T of Alg. 1 and 2.
    pub timeout: Duration,
    /// Φ of Alg. 2: greatest share of padding in a batch.
    pub phi: f64,
    /// The set of batch sizes, ascending, none twice.
    pub batch_sizes: Vec<usize>,
    /// The longest that a series is carried over; at least `timeout`.
    pub max_wait: Duration,
}

/// When a batch fires.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum BatchPolicy {
    /// At the timeout, leaving the newest series over where padding would exceed Φ (Alg. 2).
    #[default]
    CarryOver,
    /// At the timeout, padded (Alg. 1).
    Timeout,
    /// Whenever the device is free.
    None,
    /// When as many wait as the device takes.
    Max,
    /// As late as possible while 99 of 100 labels still come in time (Batchy).
    Slo {
        /// Time from a series' emission to its label.
        latency_goal: Duration,
        /// Share of the goal that is kept in reserve.
        delta: f64,
    },
    /// Batchy's on-off controller: whenever the device is free, or full batches.
    OnOff {
        /// As above.
        latency_goal: Duration,
        /// As above.
        delta: f64,
    },
}

impl BatchPolicy {
    /// Whether it plans by the profile of a device, to keep a latency goal.
    pub fn plans(&self) -> bool {
        matches!(self, BatchPolicy::Slo { .. } | BatchPolicy::OnOff { .. })
    }
}

/// The prefix cache (Alg. 3).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cache {
    /// δ: lengths that make the key, 1 to k.
    pub prefix: usize,
    /// Prefixes remembered, at least 1.
    pub entries: usize,
    /// Share of hits that is inferred as well.
    pub audit: f64,
}
