//! Resolves the answers of a model that is asked at several depths.
//!
//! A model may be asked about a flow after 3, 5 and 10 elements, until an answer is sure. Each
//! depth has a label word. The label of the flow is
//!
//! 1. the sure answer of the least depth, for the flow's life;
//! 2. otherwise the answer of the last depth, however sure it is;
//! 3. otherwise, when the flow ends, the answer of the greatest depth that has one.
//!
//! A flow labelled by its port with the first packet has one more label word, before its
//! depths. Its label is
//!
//! 1. the answer of the least depth that contradicts the port: another class, as sure as the depth
//!    requires for it;
//! 2. otherwise the port's label.
//!
//! So the label depends only on the flow's packets and the model, not on the order of answers: a
//! sure answer of a greater depth waits while one of a lesser depth is pending. Both walks use
//! this: flow managers for packets and records, analytics managers for tasks that depend on another
//! task's label.

use crate::{FlowRef, Label, Labels, Source};

/// When an answer of one depth is sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Minimum confidence, 0 to 65,535 for 0 to 1.
    pub sure: u16,
    /// Classes of the model; an answer of the last one, `unknown`, is never sure.
    pub classes: usize,
    /// Minimum confidence of an answer that contradicts a flow's port; `None`: no answer does.
    pub contradicts: Option<u16>,
}

impl Depth {
    /// Precedes the depths where ports label flows. An answer in its word, other than the port's
    /// label, is final.
    pub const PORT: Depth = Depth { sure: 0, classes: usize::MAX, contradicts: None };

    /// Whether this answer is the label of a flow that its port did not name.
    #[inline]
    pub fn is_sure(self, class: u16, confidence: u16) -> bool {
        usize::from(class) + 1 < self.classes && confidence >= self.sure
    }

    /// Whether this answer replaces the label `port` that the flow has from its port.
    #[inline]
    pub fn is_contradiction(self, port: u16, class: u16, confidence: u16) -> bool {
        class != port && self.contradicts.is_some_and(|least| confidence >= least)
    }
}

/// The combined answers for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// An answer that may decide is pending. A flow labelled by its port keeps that label
    /// meanwhile.
    Pending,
    /// The port's label stands; a greater depth, not asked yet, may contradict it.
    ByPort,
    /// The answer of this depth is the flow's final label.
    Decided {
        /// Number of the depth, from 0.
        depth: u8,
    },
    /// No answer is sure, and a greater depth was not asked.
    Unsure {
        /// The depth with the best answer, if any.
        best: Option<u8>,
    },
}

/// Combines the answers of the first `count` of these depths; `label` reads a depth's label word.
#[inline]
pub fn resolve(depths: &[Depth], count: u8, label: impl Fn(u8) -> Option<Label>) -> Answers {
    let (mut best, mut port) = (None, None);
    let mut answered = 0;
    for (number, depth) in (0..count).zip(depths) {
        match label(number) {
            Some(Label::Pending) => return Answers::Pending,
            None | Some(Label::None) => break,
            Some(Label::Unlabelled) => {}
            Some(Label::Class { class, source: Source::Port, .. }) => {
                (best, port) = (Some(number), Some(class))
            }
            Some(Label::Class { class, confidence, .. }) => {
                let decides = match port {
                    Some(port) => depth.is_contradiction(port, class, confidence),
                    None => depth.is_sure(class, confidence),
                };
                if decides {
                    return Answers::Decided { depth: number };
                }
                if port.is_none() {
                    best = Some(number);
                }
            }
        }
        answered = number + 1;
    }
    match best {
        Some(depth) if usize::from(answered) == depths.len() => Answers::Decided { depth },
        Some(_) if port.is_some() => Answers::ByPort,
        best => Answers::Unsure { best },
    }
}

/// The label words of one task, and when its answers are sure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskWords {
    /// Number of the first depth's label word.
    pub first: u8,
    /// The depths, at least one, with consecutive label words.
    pub depths: Vec<Depth>,
}

impl TaskWords {
    /// The flow's label for the task: [`Label::Pending`] while an answer that may decide is
    /// pending, [`Label::Unlabelled`] if the last depth has answered and none has a class,
    /// [`Label::None`] if the task was not asked, or not at its last depth; `None` if the flow is
    /// gone.
    #[inline]
    pub fn label(&self, labels: &dyn Labels, flow: FlowRef) -> Option<Label> {
        let word = |depth: u8| labels.word(self.first + depth, flow.index).label(flow.generation);
        let [_] = self.depths[..] else {
            return self.label_of_several(word);
        };
        word(0)
    }

    /// As [`Self::label`], for the depths in a set (bit n: label word n), which must be the first
    /// ones, or none.
    pub fn label_of(&self, labels: &dyn Labels, flow: FlowRef, set: u16) -> Label {
        let word = |depth: u8| labels.word(self.first + depth, flow.index).label(flow.generation);
        let count = (set >> self.first).trailing_ones().min(self.depths.len() as u32);
        match resolve(&self.depths, count as u8, word) {
            Answers::Pending => Label::Pending,
            Answers::Decided { depth } => word(depth).unwrap_or(Label::None),
            Answers::ByPort => word(0).unwrap_or(Label::None),
            Answers::Unsure { .. } => Label::None,
        }
    }

    fn label_of_several(&self, word: impl Fn(u8) -> Option<Label>) -> Option<Label> {
        let first = word(0)?;
        let count = self.depths.len() as u8;
        match resolve(&self.depths, count, &word) {
            Answers::Pending => Some(Label::Pending),
            Answers::Decided { depth } => word(depth),
            Answers::ByPort => Some(first),
            Answers::Unsure { .. } if first == Label::None => Some(Label::None),
            Answers::Unsure { .. } => match word(count - 1)? {
                Label::None => Some(Label::None),
                _ => Some(Label::Unlabelled),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    const UNKNOWN: u16 = 4;
    const DEPTHS: [Depth; 3] = [Depth { sure: 1000, classes: 5, contradicts: None }; 3];

    fn class(class: u16, confidence: u16) -> Label {
        Label::Class { class, confidence, source: Source::Model, model: 0 }
    }

    fn answers(labels: &[Label]) -> Answers {
        resolve(&DEPTHS, 3, |depth| labels.get(usize::from(depth)).copied())
    }

    #[test]
    fn a_sure_answer_decides_and_an_unsure_one_waits_for_the_next_depth() {
        let (sure, unsure) = (class(1, 1000), class(1, 999));
        assert_eq!(answers(&[sure]), Answers::Decided { depth: 0 });
        assert_eq!(answers(&[unsure, sure]), Answers::Decided { depth: 1 });
        assert_eq!(answers(&[unsure]), Answers::Unsure { best: Some(0) });
        let unknown = class(UNKNOWN, 60_000);
        assert_eq!(answers(&[unknown]), Answers::Unsure { best: Some(0) });
    }

    #[test]
    fn the_last_answer_decides_however_sure() {
        let unsure = class(2, 1);
        assert_eq!(answers(&[unsure; 3]), Answers::Decided { depth: 2 });
        // The last depth was shed: the best of the others.
        let shed = answers(&[unsure, unsure, Label::Unlabelled]);
        assert_eq!(shed, Answers::Decided { depth: 1 });
        let none = answers(&[Label::Unlabelled; 3]);
        assert_eq!(none, Answers::Unsure { best: None });
    }

    #[test]
    fn a_port_stands_until_a_depth_contradicts_it() {
        let depth = |contradicts| Depth { contradicts, ..DEPTHS[0] };
        let depths = [Depth::PORT, depth(None), depth(Some(5000)), depth(Some(3000))];
        let answers =
            |labels: &[Label]| resolve(&depths, 4, |depth| labels.get(usize::from(depth)).copied());
        let by = |source, it: u16| Label::Class { class: it, confidence: 900, source, model: 0 };
        let port = by(Source::Port, 1);
        assert_eq!(answers(&[port]), Answers::ByPort);
        assert_eq!(answers(&[port, Label::Pending]), Answers::Pending);
        // The first depth contradicts nothing, however sure; a class that agrees does not either.
        let (other, agrees) = (class(2, 60_000), class(1, 60_000));
        assert_eq!(answers(&[port, other]), Answers::ByPort);
        assert_eq!(answers(&[port, other, agrees]), Answers::ByPort);
        assert_eq!(answers(&[port, other, class(2, 4999)]), Answers::ByPort);
        assert_eq!(answers(&[port, other, class(2, 5000)]), Answers::Decided { depth: 2 });
        // As does `unknown`.
        let unknown = class(UNKNOWN, 3000);
        assert_eq!(answers(&[port, other, agrees, unknown]), Answers::Decided { depth: 3 });
        assert_eq!(answers(&[port, agrees, agrees, agrees]), Answers::Decided { depth: 0 });
        // Without a port's label the depths decide alone; a rule's label stands.
        assert_eq!(answers(&[Label::Unlabelled, other]), Answers::Decided { depth: 1 });
        let unsure = answers(&[Label::Unlabelled, class(2, 1)]);
        assert_eq!(unsure, Answers::Unsure { best: Some(1) });
        assert_eq!(answers(&[by(Source::Rule, UNKNOWN)]), Answers::Decided { depth: 0 });
    }

    #[test]
    fn a_deeper_answer_waits_for_those_before_it() {
        let sure = class(1, 1000);
        assert_eq!(answers(&[Label::Pending, sure]), Answers::Pending);
        assert_eq!(answers(&[Label::Unlabelled, sure]), Answers::Decided { depth: 1 });
    }

    #[test]
    fn a_task_without_a_label_says_whether_one_may_come() {
        let task = TaskWords { first: 1, depths: DEPTHS.to_vec() };
        let of = |labels: &[Label]| {
            task.label_of_several(|depth| labels.get(usize::from(depth)).copied())
        };
        assert_eq!(of(&[]), None, "the flow is gone");
        assert_eq!(of(&[Label::None; 3]), Some(Label::None));
        let unsure = class(2, 1);
        assert_eq!(of(&[unsure, Label::None, Label::None]), Some(Label::None));
        assert_eq!(of(&[unsure, Label::Pending, Label::None]), Some(Label::Pending));
        assert_eq!(of(&[unsure, unsure, unsure]), Some(unsure));
        assert_eq!(of(&[Label::Unlabelled; 3]), Some(Label::Unlabelled));
    }
}
