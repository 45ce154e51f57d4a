//! A rule: which flows it is for, and what is done about them.

use crate::{Dscp, Mark, Rank};

/// What is asked of a flow beyond its tuple. All that is asked has to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The flow's label is one of these, or of a taxonomy of this name. Empty: whatever its label, even none.
    pub labels: Vec<String>,
    /// The flow has one of these behaviours: bit n for number n of [`BEHAVIOURS`]. 0: whatever it does.
    pub behaviours: u8,
    /// What the flow has done so far.
    pub over: Over,
}

/// Names of behaviours, in the order of their numbers.
pub const BEHAVIOURS: [&str; 5] = ["none", "bulk", "interactive", "realtime", "idle"];

/// The names in a set of behaviours.
pub fn behaviour_names(behaviours: u8) -> impl Iterator<Item = &'static str> {
    let is_in = move |(number, _): &(usize, &str)| behaviours >> number & 1 != 0;
    BEHAVIOURS
        .into_iter()
        .enumerate()
        .filter(is_in)
        .map(|(_, name)| name)
}

/// Bounds that a flow has gone beyond, each where it is not `None`.
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
    /// Whether nothing is asked.
    pub fn is_none(&self) -> bool {
        *self == Condition::default()
    }
}

/// Which task is asked about a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Task {
    /// The tasks that the configuration says.
    #[default]
    AsConfigured,
    /// None.
    None,
    /// The task of this name, and no other.
    Named(String),
}

/// What is done about the flows of a rule. Parts that a rule leaves out are as the flow's label says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleAction {
    /// Code point of the flow's packets.
    pub dscp: Option<Dscp>,
    /// Mark of the flow's connection.
    pub mark: Option<Mark>,
    /// Which task is asked.
    pub task: Task,
    /// The flow's label, for which no model is asked.
    pub label: Option<String>,
    /// Share of the flows, by a hash of their tuple, for which the rule counts: 0 to 65,536 for 0 to 1. The others go on to
    /// the next rule.
    pub sample: Option<u32>,
    /// Sink that gets a copy of the flow's packets.
    pub mirror: Option<String>,
    /// The flow's packets are dropped.
    pub drop: bool,
}

/// A rule without its filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its place among all.
    pub rank: Rank,
    /// Number of its condition in [`crate::RuleSet::conditions`].
    pub condition: u32,
    /// Number of its action in [`crate::RuleSet::actions`].
    pub action: u32,
    /// Number of the file that it stands in, in [`crate::RuleSet::files`].
    pub file: u16,
    /// Its line there, from 1.
    pub line: u32,
}
