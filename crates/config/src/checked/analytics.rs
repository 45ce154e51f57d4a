//! Batching and cache of a task.

use std::time::Duration;

use analytics::{AUDIT, PHI, Policy};

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
    name: PolicyName = live "policy", Kind::OneOf(PolicyName::NAMES), "\"carry-over\"", "";
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
    /// Whether it plans for a latency goal, by the profile of a device.
    pub fn has_goal(self) -> bool {
        matches!(self, PolicyName::Slo | PolicyName::OnOff)
    }
}

impl Batching {
    /// The policy with what its keys say.
    pub fn policy(&self) -> Policy {
        let (timeout, latency_goal, delta) = (self.timeout, self.latency_goal, self.slo_delta);
        match self.name {
            PolicyName::CarryOver => {
                Policy::CarryOver { timeout, phi: self.phi, max_wait: self.max_wait }
            }
            PolicyName::Timeout => Policy::Timeout { timeout },
            PolicyName::None => Policy::None,
            PolicyName::Max => Policy::Max,
            PolicyName::Slo => Policy::Slo { latency_goal, delta },
            PolicyName::OnOff => Policy::OnOff { latency_goal, delta },
        }
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
