//! Tasks that are asked only where the labels of others say so: a cheap model first, an expensive
//! one for what stays unsure.
//!
//! A series of such a task waits in its own ring until the labels that it depends on are decided,
//! and is then looked up and batched, or passed over. The labels are read from the flow's label
//! words, so it makes no difference which thread decides them.

use cring::{FlowRef, Label, Labels, TaskWords};
use std::ops::RangeInclusive;

/// What the labels of other tasks must say before a task is asked about a flow. All needs must
/// hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct After {
    /// By label.
    pub needs: Vec<Need>,
}

/// What the label of one other task must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// The other task.
    pub words: TaskWords,
    /// What is asked of its label.
    pub test: Test,
}

/// What is asked of a label.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// The confidence, 0 to 65,535 for 0 to 1, is one of these. A task that gave no label has 0.
    Confidence(RangeInclusive<u16>),
    /// The class is marked in `is_wanted`, by its number.
    Class {
        /// By class.
        is_wanted: Vec<bool>,
        /// The same for a task that gave no label.
        without: bool,
    },
}

/// What the labels say so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The task is asked.
    Asked,
    /// It is not: a label says otherwise, or another task was not asked either, or the flow is
    /// gone.
    NotAsked,
    /// A label is on its way.
    Waits,
}

impl After {
    /// Whether the task depends on no other.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.needs.is_empty()
    }

    pub(super) fn verdict(&self, labels: &dyn Labels, flow: FlowRef) -> Verdict {
        let mut verdict = Verdict::Asked;
        for need in &self.needs {
            match need.words.label(labels, flow) {
                Some(Label::Pending) => verdict = Verdict::Waits,
                Some(Label::Class { class, confidence, .. })
                    if need.test.holds(class, confidence) => {}
                Some(Label::Unlabelled) if need.test.holds_without() => {}
                _ => return Verdict::NotAsked,
            }
        }
        verdict
    }
}

impl Test {
    fn holds(&self, class: u16, confidence: u16) -> bool {
        match self {
            Test::Confidence(wanted) => wanted.contains(&confidence),
            Test::Class { is_wanted, .. } => {
                is_wanted.get(usize::from(class)).copied().unwrap_or(false)
            }
        }
    }

    fn holds_without(&self) -> bool {
        match self {
            Test::Confidence(wanted) => *wanted.start() == 0,
            Test::Class { without, .. } => *without,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confidence_of_nothing_is_0_and_its_label_is_none() {
        let below = Test::Confidence(0..=58_000);
        assert!(below.holds(3, 58_000) && !below.holds(3, 58_001) && below.holds_without());
        assert!(!Test::Confidence(1..=u16::MAX).holds_without());
        let is = Test::Class { is_wanted: vec![false, true], without: false };
        assert!(is.holds(1, 0) && !is.holds(0, 60_000) && !is.holds(9, 60_000));
        assert!(!is.holds_without());
    }
}
