//! Depths of a task: a model may be asked about a flow several times, each time with more elements,
//! until an answer is sure.
//!
//! Each depth is a [`SeriesTask`] of its own, with its own label word, in the order of the depths
//! ([`SeriesTask::is_deeper`]). [`cring::resolve`] says what the answers come to. Live, a depth is
//! not asked once there is a sure answer. In a replay it is always asked, since whether the answer
//! is here yet depends on the machine.

use cring::{Answers, Depth, Features, Label, Unit, resolve};

/// What one task asks of a flow's first packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesTask {
    /// Elements in a series, 1 to [`cring::K_MAX`]. 0: no series;
    /// [`Config::ports`](crate::Config::ports) give flows their labels with their first packets.
    /// Only the first of a task may have 0, before at least one deeper one.
    pub k: usize,
    /// Which packets are elements.
    pub unit: Unit,
    /// What is collected of each element; at least one.
    pub features: Features,
    /// TCP flows that begin mid-stream are asked about too: the model was trained for them.
    /// Otherwise they give no series, because the model does not know their first packets.
    pub midstream: bool,
    /// Classes that labels of this task have, `unknown` as the last; counters have a place for
    /// each.
    pub classes: usize,
    /// An answer is sure if its confidence is at least this, 0 to 65,535 for 0 to 1, and its class
    /// is not `unknown`. Used only where a deeper task follows, or this one is deeper itself.
    pub sure: u16,
    /// An answer contradicts the port that named the flow if its class is another one and its
    /// confidence at least this; `None`: never. Used only behind a task without a series.
    pub contradicts: Option<u16>,
    /// Asks the same as the task before it, after more elements, about flows for which the earlier
    /// answer is not sure: see the module.
    pub is_deeper: bool,
}

impl SeriesTask {
    /// When its answers are sure.
    pub fn depth(&self) -> Depth {
        if self.is_of_ports() {
            return Depth::PORT;
        }
        Depth { sure: self.sure, classes: self.classes, contradicts: self.contradicts }
    }

    /// Whether it has no series: ports give its labels.
    pub fn is_of_ports(&self) -> bool {
        self.k == 0
    }

    /// The usual task: signed lengths of the first `k` packets, of TCP flows that are seen from
    /// their beginning.
    #[must_use]
    pub const fn lengths(k: usize, classes: usize) -> SeriesTask {
        SeriesTask {
            k,
            unit: Unit::Packet,
            features: Features::LENGTHS,
            midstream: false,
            classes,
            sure: 0,
            contradicts: None,
            is_deeper: false,
        }
    }
}

/// The depths of a task.
#[derive(Clone, Debug)]
pub struct Depths {
    /// Elements that a flow must have for each.
    elements: Vec<usize>,
    depths: Vec<Depth>,
}

impl Depths {
    /// The depths of the first of these tasks.
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
        let task = |k, is_deeper| SeriesTask { sure: 1000, is_deeper, ..SeriesTask::lengths(k, 5) };
        let depths = Depths::of(&[task(3, false), task(5, true), task(10, true), task(4, false)]);
        assert_eq!((depths.count(), depths.elements(2)), (3, 10));
    }
}
