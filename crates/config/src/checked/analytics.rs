//! Batching and cache of a task.

use std::time::Duration;

use analytics::{AUDIT, PHI};

use crate::kind::{
    BATCH_SIZES, CACHE_ENTRIES, CACHE_PREFIX, Kind, LATENCY_GOAL_MS, MAX_WAIT_MS, SLO_DELTA_SHARE,
    TIMEOUT_MS, number_in,
};
use crate::section;
use crate::setting::Setting;
use crate::words::words;

section! {
    /// Batching, for tasks that say nothing else.
    pub struct Batching = One "analytics";

    /// when a batch fires: at the timeout with carry-over (Alg. 2) or padding (Alg. 1), whenever
    /// the device is free (none), when it is as large as the device takes (max), as late as
    /// latency_goal_ms allows (slo, Batchy), or at once or full, whichever keeps latency_goal_ms
    /// (on-off, Batchy's controller without sizes between). The default of mode mark is "slo",
    /// unless timeout_ms, phi or max_wait_ms is set
    policy: PolicyName = live "policy", Kind::OneOf(PolicyName::NAMES), "\"carry-over\"", "";
    /// how long the oldest series waits before a batch is composed
    timeout: Duration = live "timeout_ms", TIMEOUT_MS, "10.0",
        "milliseconds" => Setting::milliseconds;
    /// carry-over: where padding would exceed this share, the newest series wait for the next
    /// batch
    phi: f64 = live "phi", number_in(PHI), "0.2", "share of a batch";
    /// batch sizes to choose from, ascending; for a device that takes any size, the last is the
    /// limit
    batch_sizes: Vec<usize> = live "batch_sizes", BATCH_SIZES, "[8, 16, 32, 64, 128, 256]",
        "series";
    /// no series is carried over for longer than this; at least timeout_ms
    max_wait: Duration = live "max_wait_ms", MAX_WAIT_MS, "50.0",
        "milliseconds" => Setting::milliseconds;
    /// policies slo and on-off: the time from a series to its label that 99 of 100 labels must
    /// keep
    latency_goal: Duration = live "latency_goal_ms", LATENCY_GOAL_MS, "2.0",
        "milliseconds" => Setting::milliseconds;
    /// policies slo and on-off: the share of the goal that is kept in reserve
    slo_delta: f64 = live "slo_delta", SLO_DELTA_SHARE, "0.05", "share of the goal";
}

words! {
    /// `analytics.policy`.
    pub enum PolicyName {
        /// Alg. 2.
        #[default]
        CarryOver = "carry-over",
        /// Alg. 1.
        Timeout = "timeout",
        /// Whenever the device is free.
        None = "none",
        /// When as many wait as the device takes.
        Max = "max",
        /// Batchy.
        Slo = "slo",
        /// Batchy's on-off controller.
        OnOff = "on-off",
    }
}

impl PolicyName {
    /// Whether it plans for a latency goal.
    pub fn has_goal(self) -> bool {
        matches!(self, PolicyName::Slo | PolicyName::OnOff)
    }
}

impl Batching {
    /// What the policy's keys come to.
    pub fn checked(self) -> Analytics {
        let (latency_goal, delta) = (self.latency_goal, self.slo_delta);
        Analytics {
            policy: match self.policy {
                PolicyName::CarryOver => BatchPolicy::CarryOver,
                PolicyName::Timeout => BatchPolicy::Timeout,
                PolicyName::None => BatchPolicy::None,
                PolicyName::Max => BatchPolicy::Max,
                PolicyName::Slo => BatchPolicy::Slo { latency_goal, delta },
                PolicyName::OnOff => BatchPolicy::OnOff { latency_goal, delta },
            },
            timeout: self.timeout,
            phi: self.phi,
            batch_sizes: self.batch_sizes,
            max_wait: self.max_wait,
        }
    }
}

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

section! {
    /// The prefix cache (Alg. 3).
    pub struct Cache = One "cache";

    /// flows share a label without inference where this many of their first lengths are equal; k
    /// is exact, less is approximate
    prefix: usize = live "prefix", CACHE_PREFIX, "0", "packets, 0 = off";
    /// how many prefixes are remembered; the least recently used one is evicted
    entries: usize = live "entries", CACHE_ENTRIES, "65536", "prefixes, 0 = off";
    /// share of the hits that the model classifies as well, to measure how often the cache is
    /// wrong
    audit: f64 = live "audit", number_in(AUDIT), "0.01", "share of hits";
}
