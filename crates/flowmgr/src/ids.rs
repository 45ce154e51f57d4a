//! Numbers of tasks and of depths: separate types, so that the compiler finds a mix-up.

use cring::FlowRef;

/// Number of a task, in the order of [`crate::Config::tasks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u8);

impl TaskId {
    /// The first task, whose states lie in the hot line.
    pub const FIRST: TaskId = TaskId(0);

    /// The number as an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Number of a depth among the depths of all tasks; its label word and its counters have the same
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DepthId(pub u8);

impl DepthId {
    /// The first depth of the first task, whose label word lies in the hot line.
    pub const FIRST: DepthId = DepthId(0);

    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The depth `depths` behind this one.
    #[must_use]
    pub fn behind(self, depths: u8) -> DepthId {
        DepthId(self.0 + depths)
    }

    /// How many depths behind another one it is.
    pub fn rank(self, first: DepthId) -> u8 {
        debug_assert!(self >= first, "a depth before the first of its task");
        self.0 - first.0
    }
}

/// A series on its way: whose label is to come, and for which depth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    pub flow: FlowRef,
    pub depth: DepthId,
}
