//! How labels that are bands have held.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use serde::{Deserialize, Serialize};

/// A task whose labels are bands of what flows will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoredTask {
    pub task: String,
    /// `volume`, `duration` or `rate`.
    pub of: String,
    /// Where each band but the lowest begins: bytes, µs, or bytes per second.
    pub edges: Vec<u64>,
    /// The latest models with flows, the newest first.
    pub models: Vec<ScoredModel>,
}

/// Ended flows to which one model gave a band while they went on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoredModel {
    /// As in records.
    pub model_generation: u16,
    /// Flows whose true band is known.
    pub flows: u64,
    /// Further flows, which were cut before their band was known.
    pub cut: u64,
    /// 0 to 1: how far confidences are from how often they are right; `None`: no flows.
    pub calibration_error: Option<f64>,
    /// From the lowest up, then `unknown` if flows got it.
    pub bands: Vec<ScoredBand>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoredBand {
    pub label: String,
    /// Flows that got the label.
    pub said: u64,
    /// Flows that proved to be of the band.
    pub proved: u64,
    /// Flows that are both.
    pub hits: u64,
    /// Hits by flows that got the label; `None`: there are none.
    pub precision: Option<f64>,
    /// Hits by flows that proved to be of the band; `None`: there are none.
    pub recall: Option<f64>,
    /// Bytes behind the deciding packets of flows that got the label.
    pub bytes: u64,
    /// Their share of such bytes of all labels; `None`: there are none.
    pub bytes_share: Option<f64>,
}
