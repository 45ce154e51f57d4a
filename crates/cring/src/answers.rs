//! What the answers of a model that is asked at several depths come to.
//!
//! A model may be asked about a flow after 3, 5 and 10 elements, until an answer is sure. Each depth has a label word of
//! its own. The label of the flow is
//!
//! 1. the sure answer of the least depth, which stands for the flow's life;
//! 2. else the answer of the last depth, however sure it is;
//! 3. else, when the flow ends, the answer of the greatest depth that has one.
//!
//! A flow that its port has named with its first packet has one more label word, before the words of its depths. Its label is
//!
//! 1. the answer of the least depth that contradicts the port: another class, and as sure as the depth asks for it;
//! 2. else the port's label.
//!
//! So the label depends on the flow's packets and the model alone, in whatever order answers come: a sure answer of a
//! greater depth waits while that of a lesser one is on its way. Both walks decide by this: flow managers for packets and
//! records, analytics managers for tasks that are asked only where another task's label says so.

use crate::{FlowRef, Label, Labels, Source};

/// When an answer of one depth is sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Least confidence, 0 to 65,535 for 0 to 1.
    pub sure: u16,
    /// Classes of the model, `unknown` as the last; an answer of that class is never sure.
    pub classes: usize,
    /// Least confidence of an answer that contradicts a flow's port; `None`: no answer does.
    pub contradicts: Option<u16>,
}

impl Depth {
    /// In front of the depths, where ports name flows with their first packets. What stands in its word, and is not the port's
    /// label, is the flow's label for good.
    pub const PORT: Depth = Depth {
        sure: 0,
        classes: usize::MAX,
        contradicts: None,
    };

    #[inline]
    fn is_sure(self, class: u16, confidence: u16) -> bool {
        usize::from(class) + 1 < self.classes && confidence >= self.sure
    }
}

/// What the answers to a flow come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// An answer that may decide is on its way. A flow that its port has named has that label until then.
    Pending,
    /// The port's label stands, and a greater depth, which was not asked yet, may contradict it.
    ByPort,
    /// The answer of this depth is the flow's label, for good.
    Decided {
        /// Number of the depth, from 0.
        depth: u8,
    },
    /// No answer is sure, and a greater depth was not asked.
    Unsure {
        /// The depth with the best answer; `None`: no depth has one.
        best: Option<u8>,
    },
}

/// What the answers of the first `count` of these depths come to; `label` gives the content of a depth's label word.
#[inline]
pub fn resolve(depths: &[Depth], count: u8, label: impl Fn(u8) -> Option<Label>) -> Answers {
    let (mut best, mut port) = (None, None);
    let mut answered = 0;
    for (number, depth) in (0..count).zip(depths) {
        match label(number) {
            Some(Label::Pending) => return Answers::Pending,
            None | Some(Label::None) => break,
            Some(Label::Unlabelled) => {}
            Some(Label::Class {
                class,
                source: Source::Port,
                ..
            }) => (best, port) = (Some(number), Some(class)),
            Some(Label::Class {
                class, confidence, ..
            }) => {
                let decides = match port {
                    Some(port) => {
                        let least = depth.contradicts;
                        class != port && least.is_some_and(|least| confidence >= least)
                    }
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

/// The depths of one task: where its label words are, and when an answer is sure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskWords {
    /// Number of the label word of the first depth.
    pub first: u8,
    /// The depths, at least one; their label words follow each other.
    pub depths: Vec<Depth>,
}

impl TaskWords {
    /// The label of a flow for the task: [`Label::Pending`] while an answer that may decide is on its way,
    /// [`Label::Unlabelled`] where the last depth has answered and none has a class, [`Label::None`] where the task was not
    /// asked, or will be at a greater depth; `None` where the flow is gone.
    #[inline]
    pub fn label(&self, labels: &dyn Labels, flow: FlowRef) -> Option<Label> {
        let word = |depth: u8| {
            labels
                .word(self.first + depth, flow.index)
                .label(flow.generation)
        };
        let [_] = self.depths[..] else {
            return self.label_of_several(word);
        };
        word(0)
    }

    /// The same of those depths alone that are in a set: bit n for the label word of number n. They are the first ones, or none.
    pub fn label_of(&self, labels: &dyn Labels, flow: FlowRef, set: u16) -> Label {
        let word = |depth: u8| {
            labels
                .word(self.first + depth, flow.index)
                .label(flow.generation)
        };
        let count = (set >> self.first)
            .trailing_ones()
            .min(self.depths.len() as u32);
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
    const DEPTHS: [Depth; 3] = [Depth {
        sure: 1000,
        classes: 5,
        contradicts: None,
    }; 3];

    fn class(class: u16, confidence: u16) -> Label {
        Label::Class {
            class,
            confidence,
            source: Source::Model,
            model: 0,
        }
    }

    fn of(labels: &[Label]) -> Answers {
        resolve(&DEPTHS, 3, |depth| labels.get(usize::from(depth)).copied())
    }

    #[test]
    fn a_sure_answer_decides_and_an_unsure_one_waits_for_the_next_depth() {
        let (sure, unsure) = (class(1, 1000), class(1, 999));
        assert_eq!(of(&[sure]), Answers::Decided { depth: 0 });
        assert_eq!(of(&[unsure, sure]), Answers::Decided { depth: 1 });
        assert_eq!(of(&[unsure]), Answers::Unsure { best: Some(0) });
        let unknown = class(UNKNOWN, 60_000);
        assert_eq!(of(&[unknown]), Answers::Unsure { best: Some(0) });
    }

    #[test]
    fn the_last_answer_decides_however_sure() {
        let unsure = class(2, 1);
        assert_eq!(of(&[unsure; 3]), Answers::Decided { depth: 2 });
        // The last depth was shed: the best of the others.
        let shed = of(&[unsure, unsure, Label::Unlabelled]);
        assert_eq!(shed, Answers::Decided { depth: 1 });
        let none = of(&[Label::Unlabelled; 3]);
        assert_eq!(none, Answers::Unsure { best: None });
    }

    #[test]
    fn a_port_stands_until_a_depth_contradicts_it() {
        let depth = |contradicts| Depth {
            contradicts,
            ..DEPTHS[0]
        };
        let depths = [
            Depth::PORT,
            depth(None),
            depth(Some(5000)),
            depth(Some(3000)),
        ];
        let of =
            |labels: &[Label]| resolve(&depths, 4, |depth| labels.get(usize::from(depth)).copied());
        let by = |source, it: u16| Label::Class {
            class: it,
            confidence: 900,
            source,
            model: 0,
        };
        let port = by(Source::Port, 1);
        assert_eq!(of(&[port]), Answers::ByPort);
        assert_eq!(of(&[port, Label::Pending]), Answers::Pending);
        // The first depth contradicts nothing, however sure; a class that agrees does not either.
        let (other, agrees) = (class(2, 60_000), class(1, 60_000));
        assert_eq!(of(&[port, other]), Answers::ByPort);
        assert_eq!(of(&[port, other, agrees]), Answers::ByPort);
        assert_eq!(of(&[port, other, class(2, 4999)]), Answers::ByPort);
        assert_eq!(
            of(&[port, other, class(2, 5000)]),
            Answers::Decided { depth: 2 }
        );
        // As does `unknown`.
        let unknown = class(UNKNOWN, 3000);
        assert_eq!(
            of(&[port, other, agrees, unknown]),
            Answers::Decided { depth: 3 }
        );
        assert_eq!(
            of(&[port, agrees, agrees, agrees]),
            Answers::Decided { depth: 0 }
        );
        // Without a port's label the depths decide alone; a rule's label stands.
        assert_eq!(
            of(&[Label::Unlabelled, other]),
            Answers::Decided { depth: 1 }
        );
        let unsure = of(&[Label::Unlabelled, class(2, 1)]);
        assert_eq!(unsure, Answers::Unsure { best: Some(1) });
        assert_eq!(
            of(&[by(Source::Rule, UNKNOWN)]),
            Answers::Decided { depth: 0 }
        );
    }

    #[test]
    fn a_deeper_answer_waits_for_those_before_it() {
        let sure = class(1, 1000);
        assert_eq!(of(&[Label::Pending, sure]), Answers::Pending);
        assert_eq!(
            of(&[Label::Unlabelled, sure]),
            Answers::Decided { depth: 1 }
        );
    }

    #[test]
    fn a_task_without_a_label_says_whether_one_may_come() {
        let task = TaskWords {
            first: 1,
            depths: DEPTHS.to_vec(),
        };
        let of = |labels: &[Label]| {
            task.label_of_several(|depth| labels.get(usize::from(depth)).copied())
        };
        assert_eq!(of(&[]), None, "the flow is gone");
        assert_eq!(of(&[Label::None; 3]), Some(Label::None));
        let unsure = class(2, 1);
        assert_eq!(of(&[unsure, Label::None, Label::None]), Some(Label::None));
        assert_eq!(
            of(&[unsure, Label::Pending, Label::None]),
            Some(Label::Pending)
        );
        assert_eq!(of(&[unsure, unsure, unsure]), Some(unsure));
        assert_eq!(of(&[Label::Unlabelled; 3]), Some(Label::Unlabelled));
    }
}
