//! A rule: its flows and what to do about them.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::hours::Hours;
use crate::{Dscp, Mark, Rank};

/// Requirements on a flow beyond its tuple; all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The flow's label, or its taxonomy, is one of these. Empty: any label or none.
    pub labels: Vec<String>,
    /// The flow's behaviour is one of these: bit n for [`BEHAVIOURS`]`[n]`. 0: any behaviour.
    pub behaviours: u8,
    /// Bounds on what the flow has done so far.
    pub over: Over,
    /// Hosts, one of which is an end of the flow. Empty: any.
    pub hosts: Hosts,
    /// VLANs of the flow's first packet; 0: without a tag. Empty: any.
    pub vlans: Vec<RangeInclusive<u16>>,
    /// DSCPs of the flow's first packet as it came: bit n for code point n. 0: any.
    pub dscps: u64,
    /// When the rule counts. Empty: always.
    pub hours: Vec<Hours>,
    /// The profile that must be on.
    pub profile: Option<String>,
}

/// Hosts by address and by name. What names stand for changes as hosts come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hosts {
    /// Prefixes with their lengths, sorted.
    pub prefixes: Vec<(IpAddr, u8)>,
    /// Names and MAC addresses, sorted.
    pub names: Vec<String>,
}

impl Hosts {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty() && self.names.is_empty()
    }
}

/// Names of behaviours, in the order of their numbers.
pub const BEHAVIOURS: [&str; 5] = ["none", "bulk", "interactive", "realtime", "idle"];

/// The names of a set of behaviours.
pub fn behaviour_names(behaviours: u8) -> impl Iterator<Item = &'static str> {
    let is_in = move |(number, _): &(usize, &str)| behaviours >> number & 1 != 0;
    BEHAVIOURS.into_iter().enumerate().filter(is_in).map(|(_, name)| name)
}

/// Bounds that a flow has exceeded, where not `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Over {
    /// More bytes than this, in both directions, at the IP layer.
    pub bytes: Option<u64>,
    /// More packets than this, in both directions.
    pub packets: Option<u64>,
    /// Older than this, ms.
    pub age_ms: Option<u64>,
    /// More bits per second than this, on average over its life.
    pub bits_per_s: Option<u64>,
}

impl Condition {
    /// Whether it holds for all flows.
    pub fn is_none(&self) -> bool {
        *self == Condition::default()
    }
}

/// The tasks that classify a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Task {
    /// The configured tasks.
    #[default]
    AsConfigured,
    /// None.
    None,
    /// Only the task of this name.
    Named(String),
}

/// What to do about a rule's flows. Parts left out follow the flow's label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleAction {
    /// Code point of the flow's packets.
    pub dscp: Option<Dscp>,
    /// Mark of the flow's connection.
    pub mark: Option<Mark>,
    /// Which tasks classify the flow.
    pub task: Task,
    /// The flow's label, assigned without a model.
    pub label: Option<String>,
    /// Share of the flows that the rule applies to, by a hash of the tuple: 65,536 is all. Other
    /// flows go on to the next rule.
    pub sample: Option<u32>,
    /// Sink for copies of the flow's packets.
    pub mirror: Option<String>,
    /// The flow's packets are dropped.
    pub drop: bool,
}

/// A rule without its filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its rank.
    pub rank: Rank,
    /// Index in [`crate::RuleSet::conditions`].
    pub condition: u32,
    /// Index in [`crate::RuleSet::actions`].
    pub action: u32,
    /// Index in [`crate::RuleSet::files`].
    pub file: u16,
    /// Line in the file, from 1.
    pub line: u32,
}
