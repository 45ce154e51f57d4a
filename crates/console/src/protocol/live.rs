//! The live view of a run: its flows, and the sums over them.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use serde::{Deserialize, Serialize};

use super::{DeviceRow, Measured, ServiceRow};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowRow {
    /// As in records.
    pub flow_id: u64,
    /// Sender of the first packet, with port.
    pub src: String,
    /// Receiver of the first packet, with port.
    pub dst: String,
    /// What the sender is called; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_name: Option<String>,
    /// What the receiver is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_name: Option<String>,
    /// IP protocol number.
    pub proto: u8,
    /// Name of the transport protocol: `TCP`, `UDP` or `ICMP`, whose ports are 0.
    pub transport: String,
    /// The end that the flow's label speaks for; `None`: neither has an address of its own.
    pub host: Option<String>,
    /// `None`: no label.
    pub label: Option<String>,
    /// Confidence of the label, 0 to 1.
    pub confidence: Option<f64>,
    /// `model`, `cache` or `port`; `None`: no label.
    pub decided_by: Option<String>,
    /// Elements of the series that the answer was given to; `None`: no label, or the port decided.
    pub depth: Option<u8>,
    /// Why there is no label; `None`: there is one.
    pub no_label: Option<String>,
    /// The labels that other tasks than the first gave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<TaskLabel>,
    /// What the flow does, by its counts; `None`: none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behaviour: Option<String>,
    /// DSCP of the first packet, as it came: a name such as `EF`, else the number.
    #[serde(default)]
    pub dscp_seen: String,
    /// DSCP that its packets get, likewise; `None`: they keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp_set: Option<String>,
    /// What was measured of it, where that is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    pub packets: u64,
    /// Bytes of these packets at the IP layer.
    pub bytes: u64,
    /// Packets per second between the last two looks at the flow table; 0 once the flow has ended.
    pub packets_per_s: f64,
    /// Bytes per second, likewise.
    pub bytes_per_s: f64,
    /// Seconds since the first packet; for an ended flow, how long it lasted.
    pub age_s: f64,
    /// Seconds since the last packet.
    pub idle_s: f64,
    /// Why it ended; `None`: it is in the flow table.
    pub end_reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskLabel {
    pub task: String,
    pub label: String,
    /// Confidence of the label, 0 to 1.
    pub confidence: f64,
    /// `model` or `cache`.
    pub decided_by: String,
    /// Elements of the series that the answer was given to.
    pub depth: u8,
}

impl FlowRow {
    /// Sender and receiver with their ports, by name where they have one: `laptop:4000`.
    pub fn shown_ends(&self) -> [String; 2] {
        [(&self.src, &self.src_name), (&self.dst, &self.dst_name)].map(|(end, name)| {
            match (name, end.rsplit_once(':')) {
                (Some(name), Some((_, port))) => format!("{name}:{port}"),
                _ => end.clone(),
            }
        })
    }

    /// The DSCP as it came, with the one set if that is another: `DF>EF`.
    pub fn shown_dscp(&self) -> String {
        match &self.dscp_set {
            Some(set) if *set != self.dscp_seen => format!("{}>{set}", self.dscp_seen),
            _ => self.dscp_seen.clone(),
        }
    }

    /// The labels of all tasks, or in brackets why the first has none: `TLS, camera`.
    pub fn shown_labels(&self) -> String {
        let none = || format!("({})", self.no_label.as_deref().unwrap_or("none"));
        let mut shown = self.label.clone().unwrap_or_else(none);
        for other in &self.labels {
            shown += ", ";
            shown += &other.label;
        }
        shown
    }
}

/// One task of several, since the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    pub task: String,
    pub model: String,
    pub series: u64,
    /// Series among them that skipped the model because of another task's label.
    pub not_asked: u64,
    /// Flows that reached their K-th packet and are none that it is asked about.
    pub flows_not_asked: u64,
    pub lost: u64,
    pub labels: u64,
    /// 99th percentile of the time from the K-th packet to the label, ms.
    pub label_p99_ms: f64,
}

/// What `fenxi top` and the page show: one moment of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// State of the run, one word.
    pub state: String,
    pub version: String,
    /// Time since the start, seconds.
    pub uptime_s: f64,
    pub model: String,
    /// The checks of `/readyz` that do not hold, in words.
    pub problems: Vec<String>,
    pub packets_per_s: f64,
    /// Bytes per second of all flows, at the IP layer.
    pub bytes_per_s: f64,
    pub flows_now: u64,
    pub flows_max: u64,
    /// Median time from the K-th packet to the label, ms.
    pub label_p50_ms: f64,
    /// Its 99th percentile, ms.
    pub label_p99_ms: f64,
    /// Rates by label, highest first. Flows without a label are in a row whose label is `None`.
    pub labels: Vec<LabelRate>,
    /// Rates by host, highest first.
    pub hosts: Vec<HostRate>,
    pub flows: Vec<FlowRow>,
    pub devices: Vec<DeviceRow>,
    /// What was lost since the start.
    pub losses: Losses,
    /// The last minutes, oldest first.
    pub history: Vec<Point>,
    /// The rules; `None`: there were none ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<RuleSums>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRow>,
}

/// The rules in force, and what became of them since the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleSums {
    pub rules: u64,
    /// Flows looked up, each as often as it was.
    pub lookups: u64,
    /// Lookups that found no rule.
    pub unmatched: u64,
    /// Flows looked up per second over the last interval.
    pub lookups_per_s: f64,
    /// Changes that were made: batches, files that were loaded, reloads, and what was undone.
    pub updates: u64,
    pub updates_refused: u64,
    /// Seconds since the last change; `None`: the rules have not changed since the start.
    pub updated_ago_s: Option<f64>,
    /// The last changes wait for the training of an index before they count.
    pub is_pending: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelRate {
    /// `None`: no label.
    pub label: Option<String>,
    pub flows: u64,
    pub packets_per_s: f64,
    pub bytes_per_s: f64,
    /// Flows that got the label since the start.
    pub labelled: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRate {
    /// Its busiest address.
    pub address: String,
    /// What it is called; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub flows: u64,
    pub packets_per_s: f64,
    pub bytes_per_s: f64,
    /// What it is, if the model names devices and this one has a label; otherwise the label of its
    /// fastest flow.
    pub label: Option<String>,
}

impl HostRate {
    /// Its name, else its address.
    pub fn shown(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.address)
    }
}

/// What was lost since the start, each with its noun, such as `packets before they were read`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses(pub Vec<(String, u64)>);

impl Losses {
    pub fn present(&self) -> impl Iterator<Item = &(String, u64)> {
        self.0.iter().filter(|(_, count)| *count > 0)
    }
}

/// A moment of the last minutes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds before the newest point.
    pub ago_s: u32,
    pub packets_per_s: f64,
    /// Flows that got each label since the point before, most first.
    pub labels: Vec<(String, u64)>,
}
