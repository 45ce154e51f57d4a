//! What is asked of flows, and what is done with the answers.

use std::path::PathBuf;

use policy::{Action, LabelRule};

use super::{Analytics, Cache, Device, DscpMapping, MarkMapping};
use crate::origin::Origin;
use crate::when::{Needed, When};

/// The most tasks. The answers that a flow manager waits for have numbers below it, and each depth of a model is one.
pub const MAX_TASKS: usize = cring::TASKS_MAX;

/// Name of the task of a configuration without `[[task]]`.
pub const DEFAULT_TASK: &str = "default";

/// What is asked of flows: one model, about which flows, how its series are batched, cached and inferred, and what its labels
/// lead to.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Unique among the tasks; [`DEFAULT_TASK`] where the configuration names none.
    pub name: String,
    /// Where the task was first named.
    pub origin: Origin,
    /// Folder of the model bundle; `None`: the bundle that ships with the program.
    pub model: Option<PathBuf>,
    /// Where that was set.
    pub model_origin: Origin,
    /// The depths of the model at which it is asked, rising; empty: all of them.
    pub depths: Vec<usize>,
    /// Where that was set, or the task was first named.
    pub depths_origin: Origin,
    /// Which flows it is asked about.
    pub when: When,
    /// Where that was set.
    pub when_origin: Origin,
    /// One per device of the layout, in its order.
    pub devices: Vec<Device>,
    /// When a batch fires.
    pub batching: Analytics,
    /// Where the policy was set.
    pub policy_origin: Origin,
    /// The prefix cache; `None`: off.
    pub cache: Option<Cache>,
    /// Where devices cannot keep up, series of the task with the lowest number are shed first; 0 to 9.
    pub priority: u8,
    /// Least confidence of a label; `None`: as the bundle says.
    pub min_confidence: Option<f32>,
    /// Label to DSCP, by label. Those of the first task also stand in `Config::tag`.
    pub dscp: Vec<DscpMapping>,
    /// Label to bits of the connection mark, by label. Those of the first task also stand in `Config::mark`.
    pub mark: Vec<MarkMapping>,
    /// The bits that `mark` may write; no other task has them. 0 where `mark` is empty.
    pub mark_mask: u32,
    /// Whether its labels stand in records.
    pub records: bool,
}

impl Task {
    /// What its labels ask for by `dscp`.
    pub fn dscp_rules(&self) -> Vec<LabelRule> {
        let rule = |row: &DscpMapping| LabelRule {
            label: row.label.clone(),
            action: Action {
                dscp: Some(row.dscp),
                mark: None,
            },
            required: row.required,
            origin: format!("{}: task.{}.dscp", row.origin, self.name),
        };
        self.dscp.iter().map(rule).collect()
    }

    /// What its labels ask for by `mark`.
    pub fn mark_rules(&self) -> Vec<LabelRule> {
        let rule = |row: &MarkMapping| LabelRule {
            label: row.label.clone(),
            action: Action {
                dscp: None,
                mark: Some(policy::Mark {
                    bits: row.mark,
                    mask: self.mark_mask,
                }),
            },
            required: row.required,
            origin: format!("{}: task.{}.mark", row.origin, self.name),
        };
        self.mark.iter().map(rule).collect()
    }
}

/// The terms of a task and of all tasks that it needs: where one of them is not asked, this one is not asked either. The tasks
/// wait for each other in no circle.
pub fn needed(tasks: &[Task], number: usize) -> Vec<Needed<'_>> {
    let mut reached = vec![number];
    let mut at = 0;
    while let Some(&number) = reached.get(at) {
        for &needed in tasks[number].when.tasks() {
            if !reached.contains(&needed) {
                reached.push(needed);
            }
        }
        at += 1;
    }
    let terms = reached.into_iter().flat_map(|task| {
        let terms = tasks[task].when.terms.iter();
        terms.map(move |term| Needed { task, term })
    });
    terms.collect()
}
