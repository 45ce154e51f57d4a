//! Depths: a model may be asked about a flow several times, each time with more elements, until an answer is sure.
//!
//! Each depth is a task of its own, with its own label word, in the order of the depths ([`SeriesTask::is_deeper`]). The
//! flow's label is
//!
//! 1. the sure answer of the least depth, which stands for the flow's life;
//! 2. else the answer of the last depth, however sure it is;
//! 3. else, when the flow ends, the answer of the greatest depth that has one.
//!
//! So the label depends on the flow's packets and the model alone, in whatever order answers come: a sure answer of a
//! greater depth waits while that of a lesser one is on its way. Live, a depth is not asked once there is a sure answer.
//! In a replay it is always asked, since whether the answer is here yet depends on the machine.

use cring::{FlowRef, Label, Labels};

use crate::config::SeriesTask;

/// What the answers to a flow come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// An answer that may decide is on its way.
    Pending,
    /// The answer of this task is the flow's label, for good.
    Decided {
        /// Number of the task.
        task: u8,
    },
    /// No answer is sure, and a greater depth was not asked.
    Unsure {
        /// The task with the best answer; `None`: no task has one.
        best: Option<u8>,
    },
}

/// The depths of the first task.
#[derive(Clone, Debug)]
pub struct Depths {
    /// The first task, and those that are deeper.
    tasks: Vec<SeriesTask>,
}

impl Depths {
    /// Those of the first of these tasks.
    pub fn of(tasks: &[SeriesTask]) -> Depths {
        let deeper = tasks.iter().skip(1).take_while(|task| task.is_deeper);
        Depths {
            tasks: tasks.iter().take(1).chain(deeper).copied().collect(),
        }
    }

    /// How many there are, at least one.
    pub fn count(&self) -> u8 {
        self.tasks.len() as u8
    }

    /// Elements that a flow must have for a depth.
    pub fn elements(&self, task: u8) -> usize {
        self.tasks.get(usize::from(task)).map_or(0, |task| task.k)
    }

    /// What the answers of the first `count` depths come to; `label` gives the label word's content by task.
    #[inline]
    pub fn resolve(&self, count: u8, label: impl Fn(u8) -> Option<Label>) -> Answers {
        let mut best = None;
        for (number, task) in (0..count).zip(&self.tasks) {
            match label(number) {
                Some(Label::Pending) => return Answers::Pending,
                None | Some(Label::None) => return Answers::Unsure { best },
                Some(Label::Unlabelled) => {}
                Some(Label::Class {
                    class, confidence, ..
                }) => {
                    let is_unknown = usize::from(class) + 1 >= task.classes;
                    if !is_unknown && confidence >= task.sure {
                        return Answers::Decided { task: number };
                    }
                    best = Some(number);
                }
            }
        }
        match best {
            Some(task) if count == self.count() => Answers::Decided { task },
            best => Answers::Unsure { best },
        }
    }

    /// The label of a flow, as far as its first `count` depths say: [`Label::Pending`] while an answer that may decide is on
    /// its way, [`Label::None`] where no answer is sure and a greater depth may still be asked.
    pub fn label(&self, labels: &dyn Labels, flow: FlowRef, count: u8) -> Label {
        let label = |task| labels.word(task, flow.index).label(flow.generation);
        if self.count() == 1 {
            return label(0).unwrap_or(Label::None);
        }
        match self.resolve(count, label) {
            Answers::Pending => Label::Pending,
            Answers::Decided { task } => label(task).unwrap_or(Label::None),
            Answers::Unsure { .. } => Label::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cring::Source;

    const UNKNOWN: u16 = 4;

    fn depths() -> Depths {
        let task = |k, is_deeper| SeriesTask {
            sure: 1000,
            is_deeper,
            ..SeriesTask::lengths(k, 5)
        };
        Depths::of(&[
            task(3, false),
            task(5, true),
            task(10, true),
            task(4, false),
        ])
    }

    fn class(class: u16, confidence: u16) -> Label {
        Label::Class {
            class,
            confidence,
            source: Source::Model,
            model: 0,
        }
    }

    fn resolve(labels: &[Label]) -> Answers {
        depths().resolve(3, |task| labels.get(usize::from(task)).copied())
    }

    #[test]
    fn only_deeper_tasks_belong_to_the_first() {
        assert_eq!(depths().count(), 3);
        assert_eq!(depths().elements(1), 5);
    }

    #[test]
    fn the_first_sure_answer_decides() {
        let sure = class(1, 1000);
        let unsure = class(2, 999);
        assert_eq!(resolve(&[sure]), Answers::Decided { task: 0 });
        assert_eq!(resolve(&[unsure, sure]), Answers::Decided { task: 1 });
        assert_eq!(resolve(&[unsure]), Answers::Unsure { best: Some(0) });
        let unknown = class(UNKNOWN, 60_000);
        assert_eq!(resolve(&[unknown]), Answers::Unsure { best: Some(0) });
    }

    #[test]
    fn the_last_answer_decides_however_sure() {
        let unsure = class(2, 1);
        let last = resolve(&[unsure, unsure, unsure]);
        assert_eq!(last, Answers::Decided { task: 2 });
        // The last depth was shed: the best of the others.
        let shed = resolve(&[unsure, unsure, Label::Unlabelled]);
        assert_eq!(shed, Answers::Decided { task: 1 });
        let none = resolve(&[Label::Unlabelled; 3]);
        assert_eq!(none, Answers::Unsure { best: None });
    }

    #[test]
    fn a_deeper_answer_waits_for_those_before_it() {
        let sure = class(1, 1000);
        assert_eq!(resolve(&[Label::Pending, sure]), Answers::Pending);
        assert_eq!(
            resolve(&[Label::Unlabelled, sure]),
            Answers::Decided { task: 1 }
        );
    }
}
