//! Why a flow has its label, or none, and what was written.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use serde::{Deserialize, Serialize};

use super::{FlowRow, KnownHost};

/// All that is known about one flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The flow as `fenxi ctl flows` has it.
    pub flow: FlowRow,
    /// The host that sent the first packet, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<KnownHost>,
    /// The host that received it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<KnownHost>,
    /// Time of the first packet, RFC 3339.
    pub first: String,
    /// Time of the last packet, RFC 3339.
    pub last: String,
    /// When the label was there, RFC 3339; `None`: there is none, or it is not known any more.
    pub labelled: Option<String>,
    /// TCP that was not seen from its first SYN on.
    pub midstream: bool,
    /// Only one side has taken part.
    pub one_way: bool,
    /// `kernel`: the kernel labelled the flow; `None`: fenxi did, or nobody.
    #[serde(rename = "where", default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Why the flow has its label, or none: a sentence.
    pub why: String,
    /// What the user can do about it; empty: nothing needs doing.
    pub advice: String,
    /// The rule of the flow: its number, name and place, and what it says; `None`: it has none, or
    /// that is not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Rules that would come before it and count for no flow now, with the reason: outside their
    /// hours, a profile that is off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed_rules: Vec<String>,
    /// The numbers that the model was asked about.
    pub series: SeriesPart,
    /// The model's answer at each depth.
    pub answers: Vec<Answer>,
    /// Where the probabilities come from, or why there are none: a sentence.
    pub asked_again: String,
    /// Name, version and generation of the model that answered, or else of the one in use.
    pub model: String,
    /// What was written about the flow, and where; if nothing was, why.
    pub written: Vec<Written>,
    /// Other flows that fit the request, of which this is the newest.
    pub others: usize,
    /// Name of the task that all of this is about, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Which flows it is asked about; empty: all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub when: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskPart>,
}

/// Why a flow has its label of one task, or none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskPart {
    pub task: String,
    /// Which flows it is asked about; empty: all.
    pub when: String,
    /// The label; `None`: there is none.
    pub label: Option<String>,
    /// Its confidence, 0 to 1.
    pub confidence: Option<f64>,
    /// Why the flow has this label, or none: a sentence.
    pub why: String,
    /// What the user can do about it; empty: nothing needs doing.
    pub advice: String,
    /// Name, version and generation of the model that answered, or else of the one in use.
    pub model: String,
    /// The model's answer at each depth.
    pub answers: Vec<Answer>,
    /// Where the probabilities come from, or why there are none: a sentence.
    pub asked_again: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesPart {
    /// `packet`: every packet is an element; `data`: those with payload.
    pub unit: String,
    pub features: Vec<String>,
    /// Elements of the greatest depth.
    pub k: usize,
    /// Port of the server, where the model wants it and knows it; 0: it does not.
    pub server_port: u16,
    pub elements: Vec<Element>,
    /// Why there are no elements; empty if there are.
    pub why_none: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Element {
    /// The packet went against the flow's first one.
    pub is_reverse: bool,
    /// Bytes at the IP layer, if collected.
    pub length: Option<u32>,
    /// Bytes of layer-4 payload, if collected.
    pub payload: Option<u32>,
    /// Time since the element before, µs, if collected.
    pub inter_arrival_us: Option<u32>,
    /// TCP flags, if collected, such as `PSH ACK`.
    pub tcp_flags: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Elements that the model was given.
    pub depth: usize,
    pub outcome: AnswerOutcome,
    pub label: Option<String>,
    /// Its confidence, 0 to 1.
    pub confidence: Option<f64>,
    /// `model` or `cache`.
    pub by: Option<String>,
    /// From this confidence on an answer is sure.
    pub sure_from: f64,
    /// The likeliest classes, by asking the model again; empty where it was not.
    pub probabilities: Vec<Probability>,
}

/// What became of a question to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerOutcome {
    /// The answer is the flow's label.
    Decided,
    NotSure,
    /// It agrees with the port that named the flow.
    Agrees,
    /// There is an answer, but a shallower depth had decided.
    NotNeeded,
    Waiting,
    /// The series was shed, or the device failed.
    Lost,
    /// The flow has had fewer elements.
    TooShort,
    NotAsked,
    /// Not kept for a flow that has ended.
    NotKept,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probability {
    pub label: String,
    /// 0 to 1.
    pub probability: f64,
}

/// Something that was to be written about the flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// `mark`, `dscp`, `record`.
    pub what: String,
    /// The value, such as `0x100/0xff00`; empty where there is none.
    pub value: String,
    /// What became of it, or why nothing was to be written: a sentence.
    pub outcome: String,
    /// When, RFC 3339; `None`: not known, or nothing was written.
    pub at: Option<String>,
}

/// What became of a write, as the sink that did it remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// The value, such as `0x100/0xff00`.
    pub value: String,
    pub outcome: String,
    /// When, µs since the epoch.
    pub at_us: i64,
}
