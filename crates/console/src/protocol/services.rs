//! Services and their egresses, as `fenxi ctl services` shows them.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use serde::{Deserialize, Serialize};

/// A service, all flow workers together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRow {
    pub name: String,
    /// The files of its memory; none where a socket hands it out.
    pub files: Vec<String>,
    /// The busiest first.
    pub egresses: Vec<EgressRow>,
}

/// Servers of a service in a table.
const SHOWN: usize = 16;

impl ServiceRow {
    /// For tables: the busiest egresses, and all others together.
    pub fn shown(&self) -> impl Iterator<Item = &EgressRow> {
        let is_others = |row: &&EgressRow| row.egress == EgressRow::OTHERS;
        let own = self.egresses.iter().filter(move |row| !is_others(row));
        own.take(SHOWN).chain(self.egresses.iter().filter(is_others))
    }
}

/// A server of a service, or all others together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// Over the last second; absent until two seconds have been counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Of flows sampled lately, with `measure.flows`: SYN to SYN-ACK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake_us: Option<Quantiles>,
    /// The same, of the first request to the first response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_us: Option<Quantiles>,
    /// Its weight in the map of `[weights.NAME]`; `None`: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

/// What half of the samples stay below, and 99 in 100; at most 128 samples per flow worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    pub p50: u64,
    pub p99: u64,
}

impl EgressRow {
    /// The name of all others together.
    pub const OTHERS: &str = "others";

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
