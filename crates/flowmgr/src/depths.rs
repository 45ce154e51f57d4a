//! Depths of a task: a model may be asked about a flow several times, each time with more elements,
//! until an answer is sure.
//!
//! Each depth is a [`SeriesTask`] of its own, with its own label word, in the order of the depths
//! ([`SeriesTask::is_deeper`]). [`cring::resolve`] says what the answers come to. Live, a depth is
//! not asked once there is a sure answer. In a replay it is always asked, since whether the answer
//! is here yet depends on the machine.

use cring::{Answers, Depth, Label, resolve};

use crate::config::SeriesTask;

/// The depths of a task.
#[derive(Clone, Debug)]
pub struct Depths {
    /// Elements that a flow must have for each.
    elements: Vec<usize>,
    depths: Vec<Depth>,
}

impl Depths {
    /// Those of the first of these tasks.
    pub fn of(tasks: &[SeriesTask]) -> Depths {
        let deeper = tasks.iter().skip(1).take_while(|task| task.is_deeper);
        let tasks = || tasks.iter().take(1).chain(deeper.clone());
        Depths {
            elements: tasks().map(|task| task.k).collect(),
            depths: tasks().map(SeriesTask::depth).collect(),
        }
    }

    /// How many there are, at least one.
    pub fn count(&self) -> u8 {
        self.depths.len() as u8
    }

    /// Elements that a flow must have for a depth.
    pub fn elements(&self, depth: u8) -> usize {
        self.elements.get(usize::from(depth)).copied().unwrap_or(0)
    }

    /// When the answers are sure, by depth.
    pub fn sure(&self) -> &[Depth] {
        &self.depths
    }

    /// What the answers of the first `count` depths come to; `label` gives the label word's content
    /// by depth.
    #[inline]
    pub fn resolve(&self, count: u8, label: impl Fn(u8) -> Option<Label>) -> Answers {
        resolve(&self.depths, count, label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deeper_tasks_belong_to_the_first() {
        let task = |k, is_deeper| SeriesTask {
            sure: 1000,
            is_deeper,
            ..SeriesTask::lengths(k, 5)
        };
        let depths = Depths::of(&[
            task(3, false),
            task(5, true),
            task(10, true),
            task(4, false),
        ]);
        assert_eq!((depths.count(), depths.elements(2)), (3, 10));
    }
}
