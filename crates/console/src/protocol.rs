//! The protocol of the control socket: one request per line, one reply per line, both JSON; see
//! `docs/control.md`.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use client::{AskError, Client};
pub use explanation::{
    Answer, AnswerOutcome, Element, Explanation, Hit, Probability, SeriesPart, TaskPart, Written,
};
pub use flow_query::{FlowQuery, NotAFlow};
pub use live::{FlowRow, HostRate, LabelRate, Losses, Point, RuleSums, TaskLabel, TaskRow, Top};
pub use measured::{
    Measured, MeasuredRtt, MeasuredSide, MeasuredSizes, MeasuredWindow, milliseconds,
};
pub use policy::{PolicyChanged, PolicyShown, ProfileRow, RuleRow};
pub use scores::{ScoredBand, ScoredModel, ScoredTask};
pub use services::{EgressRow, Quantiles, ServiceRow};
pub use wanted::{Column, FlowFilter, Order};

mod client;
mod explanation;
mod flow_query;
mod live;
mod measured;
mod policy;
mod scores;
mod services;
mod wanted;

/// Maximum number of flows in a reply.
pub const FLOWS_MAX: usize = 1024;

/// Maximum number of rules in a reply.
pub const RULES_MAX: usize = 65_536;

/// Bytes of a batch of changes of the rules, at most.
pub const CHANGES_MAX: usize = 16 << 20;

/// Bytes of a file of labels of flows, at most.
pub const TRUTH_MAX: usize = 16 << 20;

/// Maximum number of hosts in a reply.
pub const HOSTS_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Status and non-zero counters.
    Status {},
    /// The threads of the data path.
    Threads {},
    /// The devices.
    Devices {},
    /// The flows of the flow tables in this order, then some that have ended.
    Flows {
        /// Only flows with this label, in upper or lower case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
        /// Only flows of this host, by an address, its name or its MAC address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// Only flows whose first packet came with this DSCP, by name or number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dscp_seen: Option<String>,
        /// Only flows whose packets get this DSCP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dscp_set: Option<String>,
        #[serde(default)]
        sort: Column,
        /// The lowest first, or Z.
        #[serde(default)]
        reverse: bool,
        #[serde(default = "top")]
        top: usize,
    },
    /// What `fenxi top` shows.
    Top {
        /// Maximum number of flows, and of hosts.
        #[serde(default = "top")]
        rows: usize,
    },
    /// Why a flow has its label, or none.
    Explain {
        /// The flow, as [`FlowQuery`] reads it.
        flow: String,
    },
    /// All metrics, as `/metrics` has them.
    Metrics {},
    /// The hosts whose flows were labelled, latest labels first; where the model labels no hosts,
    /// all that are known.
    Hosts {
        #[serde(default)]
        label: Option<String>,
        #[serde(default = "top")]
        top: usize,
    },
    /// What is known of the servers of services.
    Services {
        /// Only this service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        service: Option<String>,
    },
    /// Set the log level.
    Log {
        /// A level, or levels by target.
        level: String,
    },
    /// Reload the configuration and the model.
    Reload {
        /// Undo the reload after this many seconds unless it is confirmed.
        #[serde(default)]
        confirm_within_s: Option<u32>,
    },
    /// Confirm the last reload.
    Confirm {},
    /// Reopen the record file.
    Reopen {},
    /// Swap the model.
    ModelLoad {
        /// Folder of the new model's bundle.
        dir: PathBuf,
        /// Name of the task; left out where there is one task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
    },
    /// How labels that are bands have held.
    ModelScores {},
    /// Judge a candidate for the model by what flows proved to be; swap if it is better.
    ModelOffer {
        /// Folder of the candidate's bundle.
        dir: PathBuf,
        /// Name of the task; left out where there is one task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
    },
    /// Tell the classes of flows, by which candidates are judged. A request of this command may be
    /// longer than others, if it begins with `{"command":"model_truth"`.
    ModelTruth {
        flows: Vec<FlowTruth>,
        /// Name of the task; left out where there is one task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
    },
    /// Where candidates stand.
    ModelOffers {},
    /// Withdraw the canary, or swap back to the model before the last promoted candidate.
    ModelBack {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
    },
    /// Change the rules: all of the changes, or none. A request of this command may be longer than
    /// others, if it begins with `{"command":"policy_change"`.
    PolicyChange {
        /// Lines such as `add source = "10.0.0.0/8", drop = true`, and `delete` with the number or
        /// name of a rule.
        changes: String,
    },
    /// Replace all rules by the rules of a file.
    PolicyLoad { file: PathBuf },
    /// Undo the last of these two.
    PolicyUndo {},
    /// Switch a profile of rules.
    PolicyProfile {
        /// As rules name it.
        name: String,
        on: bool,
    },
    /// The rules in use.
    PolicyShow {
        /// Only the rule of this number or name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// With what they have counted.
        #[serde(default)]
        counters: bool,
        #[serde(default = "rules")]
        limit: usize,
    },
    /// Rules in whose box a flow is, but which count for no flow now.
    PolicyClosed {
        /// Ends and protocol, as for `explain`; the side that began it comes first.
        flow: String,
        /// Only those that come before this one, by its number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<u64>,
    },
    /// Shut down gracefully.
    Drain {},
}

/// The label that a teacher gives a flow: `{"proto":6,"src_port":40000,"dst_port":443,"first_us":
/// 1700000000000000,"label":"video"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTruth {
    pub proto: u8,
    pub src_port: u16,
    pub dst_port: u16,
    /// Time of its first packet, µs since the epoch.
    pub first_us: i64,
    pub label: String,
}

/// Rules that are shown unless more are wanted.
pub const RULES_SHOWN: usize = 100;

fn rules() -> usize {
    RULES_SHOWN
}

fn top() -> usize {
    20
}

/// The result of a request; the numbers are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Code {
    Ok = 200,
    /// The line is not a valid request.
    Malformed = 400,
    /// This user has no permission.
    Forbidden = 403,
    /// The label, flow or rule does not exist.
    NotFound = 404,
    /// A reload has to be confirmed first, or there is none to confirm, or nothing to undo.
    Conflict = 409,
    /// The request or the answer was not there in time.
    TimedOut = 408,
    TooLong = 413,
    /// The configuration, the model or a rule is invalid; the old ones stay in use.
    Invalid = 422,
    /// This run does not support the request.
    NotHere = 501,
    /// Too many requests, or another one is in progress.
    Busy = 503,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// A [`Code`].
    pub code: u16,
    /// Why the request failed; `None` on success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What was asked for.
    #[serde(flatten)]
    pub body: Option<Body>,
}

/// The body of a reply; each variant is a field of the reply with its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    Status(Box<Status>),
    Threads(Vec<ThreadRow>),
    Devices(Vec<DeviceRow>),
    Flows(Vec<FlowRow>),
    Top(Box<Top>),
    Explained(Box<Explanation>),
    /// To [`Request::Metrics`], in Prometheus' text format.
    Metrics(String),
    Hosts(Vec<HostRow>),
    Services(Vec<ServiceRow>),
    Reloaded(Reloaded),
    PolicyChanged(PolicyChanged),
    Policy(PolicyShown),
    Scores(Vec<ScoredTask>),
    Offers(Vec<OfferedTask>),
    /// To all other requests: what was done.
    Done(String),
}

impl Reply {
    pub fn ok(body: Body) -> Reply {
        Reply { code: Code::Ok as u16, error: None, body: Some(body) }
    }

    /// A reply to a failed request, with the reason.
    pub fn refused(code: Code, why: impl Into<String>) -> Reply {
        Reply { code: code as u16, error: Some(why.into()), body: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Keys whose new value is in use.
    pub applied: Vec<Difference>,
    /// Keys whose new value takes effect at the next start.
    pub needs_restart: Vec<Difference>,
    /// Number of keys whose value has not changed.
    pub unchanged: usize,
    /// Name and version of the model in use.
    pub model: String,
    /// Generation of the model, as in records.
    pub model_generation: u16,
    /// Whether the model or a device was swapped.
    pub model_swapped: bool,
    /// Batches of changes by `fenxi ctl policy` that the reload has replaced by the file of rules.
    #[serde(default)]
    pub policy_changes_gone: usize,
    /// Seconds until the reload is undone; `None`: it needs no confirmation.
    pub confirm_within_s: Option<u64>,
}

/// A key with another value than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Section and name. Entries of maps, and keys of devices and tasks, each count as a key.
    pub key: String,
    /// The value before, as TOML; `None`: the key was not set.
    pub from: Option<String>,
    /// The value that was read, as TOML; `None`: the key is no longer set.
    pub to: Option<String>,
    pub origin: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// State of the run, one word.
    pub state: String,
    pub version: String,
    pub pid: u32,
    /// Time since the start, seconds.
    pub uptime_s: f64,
    /// Seconds until the last reload is undone; `None`: none waits for confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed_s: Option<f64>,
    /// The checks of `/readyz`.
    pub checks: Vec<CheckRow>,
    /// The most important counters.
    pub overview: Overview,
    /// Metrics that are single numbers and not 0.
    pub figures: Vec<Figure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRow {
    pub name: String,
    pub holds: bool,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: serde_json::Number,
    /// Unit of the value; may be empty.
    pub unit: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadRow {
    pub name: String,
    /// The core that it is pinned to; `None`: not pinned.
    pub core: Option<usize>,
    /// `running`, `stalled`, `ended` or `died`.
    pub state: String,
    /// CPU time, seconds; `None`: the thread has ended.
    pub cpu_s: Option<f64>,
    pub stalls: u64,
    /// Packets processed; `None`: not a flow worker.
    pub packets: Option<u64>,
    /// Series received; `None`: not an analytics worker.
    pub series: Option<u64>,
}

/// A device of an analytics manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRow {
    pub thread: String,
    /// Name of the task, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Name of the device in the configuration.
    pub device: String,
    /// The hardware or library that does the work.
    pub effective: String,
    /// `up`, `down`, `probing` or `hung`.
    pub state: String,
    /// Batches submitted.
    pub batches: u64,
    /// Series in these batches.
    pub series: u64,
    /// Batches and probes that failed.
    pub failures: u64,
    pub last_error: Option<String>,
}

impl DeviceRow {
    /// With its task, where there are several: `cpu of device`.
    pub fn named(&self) -> String {
        match &self.task {
            Some(task) => format!("{} of {task}", self.device),
            None => self.device.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRow {
    pub address: String,
    #[serde(flatten)]
    pub known: KnownHost,
    /// `None`: no label is likely enough yet, or the model names no hosts.
    pub label: Option<String>,
    /// Probability of the label, 0 to 1.
    pub confidence: Option<f64>,
    /// Flows that count so far; where the model names no hosts, flows in the tables now.
    pub flows: usize,
    /// Time of its last label, RFC 3339.
    pub last: Option<String>,
}

/// What leases, files and neighbours say of a host. Names come from other machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHost {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Who made the network card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// All of its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

impl KnownHost {
    /// In one line, for people: `laptop, 10.0.0.5, fd00::5, 00:16:3e:00:00:05 (Xensource, Inc.)`.
    pub fn text(&self) -> String {
        let mac = self.mac.as_ref().map(|mac| match &self.vendor {
            Some(vendor) => format!("{mac} ({vendor})"),
            None => mac.clone(),
        });
        let parts = self.name.iter().chain(&self.addresses).chain(&mac);
        parts.map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Counters of the sinks by name, such as `records_written`.
pub type Sums = BTreeMap<String, u64>;

/// Candidates for the model of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedTask {
    pub task: String,
    /// Where the candidate stands that is under way; `None`: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands: Option<String>,
    /// How many candidates came to each outcome; those that were promoted to several.
    pub outcomes: BTreeMap<String, u64>,
    /// Outcome of the last that was refused or rolled back, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<(String, String)>,
}

/// The most important counters of a run, since its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets per second over the last interval.
    pub packets_per_s: f64,
    pub flows: u64,
    /// Half-open flows among them.
    #[serde(default)]
    pub half_open: u64,
    pub flows_max: u64,
    pub flows_begun: u64,
    /// Labelled flows by label; labels without flows are left out.
    pub labels: BTreeMap<String, u64>,
    /// Flows that were not classified because they began mid-stream.
    pub series_withheld: u64,
    /// Packets lost before they could be read.
    pub dropped: u64,
    /// Packets that should have been forwarded and were not.
    pub unsent: u64,
    /// Packets that found no room in the flow table: not lost, but without a label.
    pub table_full: u64,
    /// Flows evicted from a full table.
    #[serde(default)]
    pub evicted: u64,
    pub series_lost: u64,
    /// Counters of the sinks: records, marks.
    #[serde(flatten)]
    pub sinks: Sums,
    /// Median time from the K-th packet to the label, ms.
    pub label_p50_ms: f64,
    /// 99th percentile of the time from the K-th packet to the label, ms.
    pub label_p99_ms: f64,
    pub model: String,
    /// The rules; `None`: there were none ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<RuleSums>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskRow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_of_json() {
        let request = |line: &str| serde_json::from_str::<Request>(line).ok();
        assert_eq!(request(r#"{"command":"status"}"#), Some(Request::Status {}));
        assert_eq!(
            request(r#"{"command":"flows","label":"TLS","dscp_seen":"EF"}"#),
            Some(Request::Flows {
                label: Some("TLS".to_owned()),
                host: None,
                port: None,
                dscp_seen: Some("EF".to_owned()),
                dscp_set: None,
                sort: Column::Rate,
                reverse: false,
                top: 20
            })
        );
        assert_eq!(
            request(r#"{"command":"hosts","top":5}"#),
            Some(Request::Hosts { label: None, top: 5 })
        );
        assert_eq!(
            request(r#"{"command":"model_load","dir":"m"}"#),
            Some(Request::ModelLoad { dir: "m".into(), task: None })
        );
        let reload = |confirm_within_s| Some(Request::Reload { confirm_within_s });
        assert_eq!(request(r#"{"command":"reload"}"#), reload(None));
        assert_eq!(request(r#"{"command":"reload","confirm_within_s":300}"#), reload(Some(300)));
        for wrong in [
            "",
            "status",
            r#"{"command":"halt"}"#,
            r#"{"command":"status","verbose":true}"#,
            r#"{"command":"flows","top":-1}"#,
            r#"{"command":"log"}"#,
            r#"{"command":"reload","confirm_within_s":-1}"#,
        ] {
            assert_eq!(request(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn replies_have_a_code_and_what_was_asked_for() {
        let done = Reply::ok(Body::Done("ends".to_owned()));
        let line = serde_json::to_string(&done).unwrap();
        assert_eq!(line, r#"{"code":200,"done":"ends"}"#);
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), done);
        let refused = Reply::refused(Code::Busy, "later");
        let line = serde_json::to_string(&refused).unwrap();
        assert_eq!(line, r#"{"code":503,"error":"later"}"#);
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), refused);
    }
}
