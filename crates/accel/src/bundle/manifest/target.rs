//! `[target]` of `model.toml`: labels that are bands of what a flow will still do.

use serde::Deserialize;

use super::{Problem, UNKNOWN, refuse};

/// What a target may be of, behind the packet that decided: the bytes to come, the microseconds to
/// come, the bytes to come per second to come.
pub const TARGETS: [&str; 3] = ["volume", "duration", "rate"];

/// The most edges between bands: scores count every pair of bands.
const EDGES_MAX: usize = 15;

/// What the labels are bands of, from the lowest up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// One of [`TARGETS`].
    pub of: String,
    /// Where the next band begins; rising, above 0, one fewer than there are labels.
    pub edges: Vec<u64>,
}

/// `[target]` as it is in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTarget {
    of: String,
    edges: Vec<i64>,
}

impl RawTarget {
    /// Checks it against the number of labels and what else the bundle has. `others`: sections that
    /// name flows otherwise, and whether the bundle has them.
    pub fn check(
        self,
        bands: usize,
        has_unknown: bool,
        others: [(&str, bool); 2],
    ) -> Result<Target, Problem> {
        let RawTarget { of, edges } = self;
        if !TARGETS.contains(&of.as_str()) {
            return refuse("target.of", format!("is {of:?}, but must be one of {TARGETS:?}"));
        }
        if edges.is_empty() || edges.len() > EDGES_MAX {
            let found = edges.len();
            let problem = format!("has {found} entries, but must have 1 to {EDGES_MAX}");
            return refuse("target.edges", problem);
        }
        if edges[0] < 1 || !edges.is_sorted_by(|a, b| a < b) {
            let problem = format!("is {edges:?}, but must be numbers that rise from 1 or more");
            return refuse("target.edges", problem);
        }
        if has_unknown {
            let problem = format!(
                "is given with a label {UNKNOWN:?}, but each flow is of some band; remove the label"
            );
            return refuse("target", problem);
        }
        if bands != edges.len() + 1 {
            let needed = edges.len() + 1;
            let problem =
                format!("needs {needed} labels, one more than edges, but there are {bands}");
            return refuse("target.edges", problem);
        }
        if let Some((section, _)) = others.into_iter().find(|(_, is_there)| *is_there) {
            let problem = format!(
                "is given with {section}, which name flows by other things; remove {section}"
            );
            return refuse("target", problem);
        }
        Ok(Target { of, edges: edges.into_iter().map(|edge| edge as u64).collect() })
    }
}
