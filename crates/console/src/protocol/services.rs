//! Services and their egresses, as `fenxi ctl services` shows them.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use serde::{Deserialize, Serialize};

/// A service, all flow workers together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRow {
    pub name: String,
    /// The files of its memory; none where a socket hands it out.
    pub files: Vec<String>,
    /// The busiest first.
    pub egresses: Vec<EgressRow>,
}

/// A server of a service, or all others together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRow {
    /// Address, address and port, or `others`.
    pub egress: String,
    pub flows_in_flight: u64,
    pub flows_begun: u64,
    pub flows_answered: u64,
    pub flows_ended: u64,
    pub flows_reset: u64,
    pub syns_unanswered: u64,
    pub packets_in: u64,
    pub packets_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Of flows sampled lately: the median time to completion, and what nine in ten stay below.
    pub completion_p50_us: Option<u64>,
    pub completion_p90_us: Option<u64>,
}

impl EgressRow {
    /// The sums with the names that they have in shared memory.
    pub fn values_mut(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("flows_in_flight", &mut self.flows_in_flight),
            ("flows_begun", &mut self.flows_begun),
            ("flows_answered", &mut self.flows_answered),
            ("flows_ended", &mut self.flows_ended),
            ("flows_reset", &mut self.flows_reset),
            ("syns_unanswered", &mut self.syns_unanswered),
            ("packets_in", &mut self.packets_in),
            ("packets_out", &mut self.packets_out),
            ("bytes_in", &mut self.bytes_in),
            ("bytes_out", &mut self.bytes_out),
        ]
    }
}
