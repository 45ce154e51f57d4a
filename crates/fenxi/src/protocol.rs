//! What goes over the control socket: one request per line, one reply per line, both JSON. `docs/control.md` describes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use config::Difference;

/// Flows in a reply, at most.
pub const FLOWS_MAX: usize = 1024;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How the run is, with its figures.
    Status {},
    /// The threads of the data path.
    Threads {},
    /// The devices.
    Devices {},
    /// Some of the flows seen last, the largest first.
    Flows {
        /// Only those with this label.
        #[serde(default)]
        label: Option<String>,
        /// At most so many.
        #[serde(default = "top")]
        top: usize,
    },
    /// From now on log at this level.
    Log {
        /// A level, or levels by target.
        level: String,
    },
    /// Read the configuration anew.
    Reload {
        /// Undo it after so many seconds, unless it is confirmed.
        #[serde(default)]
        confirm_within_s: Option<u32>,
    },
    /// The last reload is to stay.
    Confirm {},
    /// Open the file of records anew.
    Reopen {},
    /// Exchange the model.
    ModelLoad {
        /// Folder of its bundle.
        dir: PathBuf,
    },
    /// Come to an end.
    Drain {},
}

fn top() -> usize {
    20
}

/// What came of a request, in numbers that do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Code {
    /// Done.
    Ok = 200,
    /// Not a request.
    Malformed = 400,
    /// Not for this user.
    Forbidden = 403,
    /// No such label.
    NotFound = 404,
    /// Not now: a reload waits to be confirmed, or none does.
    Conflict = 409,
    /// The request did not come, or the answer did not, in time.
    TimedOut = 408,
    /// The request is too long.
    TooLong = 413,
    /// The configuration or the model does not hold together; the old one goes on.
    Invalid = 422,
    /// This run cannot do that.
    NotHere = 501,
    /// Too many ask.
    Busy = 503,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// A [`Code`].
    pub code: u16,
    /// Why not, where the code is none of success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What was asked for.
    #[serde(flatten)]
    pub body: Option<Body>,
}

/// What was asked for; the field of the reply that it stands in has its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Threads`].
    Threads(Vec<ThreadRow>),
    /// To [`Request::Devices`].
    Devices(Vec<DeviceRow>),
    /// To [`Request::Flows`].
    Flows(Vec<FlowRow>),
    /// To [`Request::Reload`].
    Reloaded(Reloaded),
    /// To what else changes something: what was done.
    Done(String),
}

impl Reply {
    /// It was done.
    pub fn ok(body: Body) -> Reply {
        Reply {
            code: Code::Ok as u16,
            error: None,
            body: Some(body),
        }
    }

    /// It was not, and why.
    pub fn refused(code: Code, why: impl Into<String>) -> Reply {
        Reply {
            code: code as u16,
            error: Some(why.into()),
            body: None,
        }
    }
}

/// What a reload came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Keys that have another value from now on.
    pub applied: Vec<Difference>,
    /// Keys that will have one after a restart.
    pub needs_restart: Vec<Difference>,
    /// How many keys have the value that they had.
    pub unchanged: usize,
    /// The model in use, with its version.
    pub model: String,
    /// The number that its labels carry.
    pub model_generation: u16,
    /// Whether it, or a device, was exchanged.
    pub model_swapped: bool,
    /// After how many seconds it is undone; none: it stays.
    pub confirm_within_s: Option<u64>,
}

/// How the run is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// One word.
    pub state: String,
    /// Of the program.
    pub version: String,
    /// Of the process.
    pub pid: u32,
    /// Since the run began.
    pub uptime_s: f64,
    /// When the last reload is undone; none: it is to stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed_s: Option<f64>,
    /// Those of `/readyz`.
    pub checks: Vec<CheckRow>,
    /// What matters first.
    pub overview: Overview,
    /// Metrics that are single numbers and not 0.
    pub figures: Vec<Figure>,
}

/// A check of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRow {
    /// What is looked at.
    pub name: String,
    /// Whether it holds.
    pub holds: bool,
    /// Why, or why not.
    pub reason: String,
}

/// A value of a metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The metric.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: serde_json::Number,
    /// What one of the value is; may be empty.
    pub unit: String,
}

/// A thread of the data path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadRow {
    /// As the system shows it.
    pub name: String,
    /// Where it is pinned; none: nowhere.
    pub core: Option<usize>,
    /// `running`, `stalled`, `ended` or `died`.
    pub state: String,
    /// Time on a CPU; none: it is not there any more.
    pub cpu_s: Option<f64>,
    /// How often it has stalled.
    pub stalls: u64,
    /// Packets that it has walked; none: it walks no packets.
    pub packets: Option<u64>,
    /// Series that it has seen; none: it sees no series.
    pub series: Option<u64>,
}

/// A device of an analytics manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// The analytics manager.
    pub thread: String,
    /// As it was asked for.
    pub device: String,
    /// What does the work.
    pub effective: String,
    /// `up`, `down`, `probing` or `hung`.
    pub state: String,
    /// Batches given to it.
    pub batches: u64,
    /// Series in these.
    pub series: u64,
    /// Batches and probes that failed.
    pub failures: u64,
    /// What went wrong the last time.
    pub last_error: Option<String>,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowRow {
    /// As in records.
    pub flow_id: u64,
    /// Sender of the first packet, with port.
    pub src: String,
    /// Receiver of the first packet, with port.
    pub dst: String,
    /// IP protocol number.
    pub proto: u8,
    /// None: it has none.
    pub label: Option<String>,
    /// Of the label, 0 to 1.
    pub confidence: Option<f64>,
    /// As far as its flow records tell; none: it has had none yet.
    pub packets: Option<u64>,
    /// Theirs at the IP layer.
    pub bytes: Option<u64>,
    /// What ended it; none: it was alive when it was last heard of.
    pub end_reason: Option<String>,
}

/// Sums of the sinks by name, as `records_written`.
pub type Sums = BTreeMap<String, u64>;

/// A run in few figures, since its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Packets received.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets per second, lately.
    pub packets_per_s: f64,
    /// Flows in the tables.
    pub flows: u64,
    /// Of these, flows that nobody has answered yet.
    #[serde(default)]
    pub half_open: u64,
    /// Flows that the tables have room for.
    pub flows_max: u64,
    /// Flows begun.
    pub flows_begun: u64,
    /// Flows that were given a label, by label; those without one are not there.
    pub labels: BTreeMap<String, u64>,
    /// Flows that were not asked about, because they began mid-stream.
    pub series_withheld: u64,
    /// Packets lost before they could be read.
    pub dropped: u64,
    /// Packets to be sent on that were not.
    pub unsent: u64,
    /// Packets that found no room in the flow table: not lost, but without a label.
    pub table_full: u64,
    /// Flows that made room for others in a full table.
    #[serde(default)]
    pub evicted: u64,
    /// Series given up.
    pub series_lost: u64,
    /// What the sinks did and gave up: records, marks.
    #[serde(flatten)]
    pub sinks: Sums,
    /// Time from the K-th packet to the label: the median, ms.
    pub label_p50_ms: f64,
    /// 99 of 100 labels are not later, ms.
    pub label_p99_ms: f64,
    /// The model.
    pub model: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_of_json() {
        let request = |line: &str| serde_json::from_str::<Request>(line).ok();
        assert_eq!(request(r#"{"command":"status"}"#), Some(Request::Status {}));
        assert_eq!(
            request(r#"{"command":"flows","label":"TLS"}"#),
            Some(Request::Flows {
                label: Some("TLS".to_owned()),
                top: 20
            })
        );
        assert_eq!(
            request(r#"{"command":"model_load","dir":"m"}"#),
            Some(Request::ModelLoad { dir: "m".into() })
        );
        let reload = |confirm_within_s| Some(Request::Reload { confirm_within_s });
        assert_eq!(request(r#"{"command":"reload"}"#), reload(None));
        assert_eq!(
            request(r#"{"command":"reload","confirm_within_s":300}"#),
            reload(Some(300))
        );
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
