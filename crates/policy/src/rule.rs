//! A rule: its flows and what to do about them.

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
