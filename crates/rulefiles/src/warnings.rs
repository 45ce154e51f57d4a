//! What is read but may not be what was meant. Lines of a kind in a file are counted, so the list stays short.

use std::collections::BTreeMap;
use std::fmt;

/// What a warning is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WarningKind {
    /// TCP flags of ClassBench filters.
    Flags,
    /// A protocol that no flow has.
    Protocol,
    /// A rule of a set that is empty.
    EmptySet,
    /// A rule that counts for no flow.
    SampleOfNone,
}

/// Lines of one file that give the same warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// File and line of the first one.
    pub place: String,
    /// What it is about.
    pub kind: WarningKind,
    /// Lines of this kind in the file.
    pub count: usize,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            WarningKind::Flags => "TCP flags are ignored: one rule holds for all packets of a flow",
            WarningKind::Protocol => {
                "the protocol is neither TCP nor UDP, and there are no other flows: the rule never applies"
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

/// Warnings as they are counted: by file and kind, with the first line.
#[derive(Debug, Default)]
pub struct Warnings {
    found: BTreeMap<(u16, WarningKind), (u32, usize)>,
}

impl Warnings {
    /// Counts one.
    pub fn add(&mut self, kind: WarningKind, (file, line): (u16, u32)) {
        let (_, count) = self.found.entry((file, kind)).or_insert((line, 0));
        *count += 1;
    }

    /// All, in the order of the files.
    pub fn list(&self, rules: &policy::RuleSet) -> Vec<Warning> {
        let warning =
            |(&(file, kind), &(line, count)): (&(u16, WarningKind), &(u32, usize))| Warning {
                place: rules.place(file, line),
                kind,
                count,
            };
        self.found.iter().map(warning).collect()
    }
}
