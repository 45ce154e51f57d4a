//! Rules, as `fenxi ctl policy` changes and shows them.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use serde::{Deserialize, Serialize};

/// What a batch of changes has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChanged {
    /// Number of the first rule that was added; the others follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    pub added: u64,
    pub deleted: u64,
    pub rules: u64,
    /// The changes count once an index is trained with them (`policy.update = "delayed"`).
    pub is_pending: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyShown {
    pub rules: u64,
    /// Changes wait for a training before they count.
    pub is_pending: bool,
    /// Batches of changes since the rules were read.
    pub changes: usize,
    /// Profiles that rules have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileRow>,
    /// The rules asked for, in the order in which they were written.
    pub rows: Vec<RuleRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRow {
    pub name: String,
    pub on: bool,
    /// Rules that it has.
    pub rules: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRow {
    /// Its number, by which it can be deleted.
    pub number: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// File and line, or `fenxi ctl`.
    pub place: String,
    /// What it says, as `fenxi ctl policy add` takes it; an empty set cannot be read back.
    pub rule: String,
    /// Why it counts for no flow now: it is outside its hours, or its profile is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Flows for which it was found, if it has counters of its own and they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u64>,
    /// Packets in records of flows that had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Their bytes at the IP layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}
