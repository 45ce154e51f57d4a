//! Possible mistakes in rule files, counted by kind and file to keep the list short.

use std::collections::BTreeMap;
use std::fmt;

/// Kinds of warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WarningKind {
    /// ClassBench filters with TCP flags.
    Flags,
    /// A protocol that flows never have.
    Protocol,
    /// A rule with an empty set.
    EmptySet,
    /// A rule with a share of 0.
    SampleOfNone,
}

/// Lines of one file with the same warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// File and line of the first one.
    pub place: String,
    /// The kind.
    pub kind: WarningKind,
    /// Number of lines.
    pub count: usize,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            WarningKind::Flags => "TCP flags are ignored: one rule holds for all packets of a flow",
            WarningKind::Protocol => {
                "the protocol is neither TCP, UDP nor ICMP, and there are no other flows: the rule \
                 never applies"
            }
            WarningKind::EmptySet => "the set is empty: the rule never applies",
            WarningKind::SampleOfNone => "sample = 0: the rule never applies",
        };
        write!(f, "{}: {text}", self.place)?;
        match self.count {
            0 | 1 => Ok(()),
            count => write!(f, " (and {} more in this file)", count - 1),
        }
    }
}

/// Counts by file and kind, with the first line.
#[derive(Debug, Default)]
pub struct Warnings {
    found: BTreeMap<(u16, WarningKind), (u32, usize)>,
}

impl Warnings {
    /// Counts a warning.
    pub fn add(&mut self, kind: WarningKind, (file, line): (u16, u32)) {
        let (_, count) = self.found.entry((file, kind)).or_insert((line, 0));
        *count += 1;
    }

    /// All warnings, in file order.
    pub fn list(&self, rules: &policy::RuleSet) -> Vec<Warning> {
        let warning = |(&(file, kind), &(line, count)): (&(u16, WarningKind), &(u32, usize))| {
            Warning { place: rules.place(file, line), kind, count }
        };
        self.found.iter().map(warning).collect()
    }
}
