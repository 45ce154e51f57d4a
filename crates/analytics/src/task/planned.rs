//! What the manager and its controller ask a task, and what they tell it.

use super::{Measure, Rings, Task, Terms};
use crate::batching::SloPlan;
use crate::controller::{PathMeasure, TaskMeasure};
use crate::dispatch::Dispatch;
use accel::Profile;
use std::time::Duration;

impl Task {
    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn rings(&self) -> &Rings {
        &self.rings
    }

    pub(crate) fn dispatch(&self) -> &Dispatch {
        &self.dispatch
    }

    pub(crate) fn dispatch_mut(&mut self) -> &mut Dispatch {
        &mut self.dispatch
    }

    pub(crate) fn measure_mut(&mut self) -> &mut Measure {
        &mut self.labelling.measure
    }

    /// When the oldest waiting series must be on a device, and since when it waits, on the clock of
    /// the rounds; `None` if no series waits.
    pub(crate) fn due_ns(&self) -> Option<(u64, u64)> {
        let has_goal = self.labelling.measure.goal().is_some();
        let (since_ns, patience) = match has_goal {
            true => (self.rings.oldest_emitted_ns()?, self.plan.budget),
            false => (self.rings.oldest_seen_ns()?, self.terms.policy.patience()),
        };
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Some((since_ns.saturating_add(patience_ns), since_ns))
    }

    /// Until when the thread may sleep without harm to this task: 0 while a batch is out, else when
    /// a series is due or an unseen one was emitted; `None` without any.
    pub(crate) fn rests_until_ns(&mut self) -> Option<u64> {
        if self.is_under_way() {
            return Some(0);
        }
        let due = self.due_ns().map(|(due_ns, _)| due_ns);
        self.rings.oldest_unseen_ns().into_iter().chain(due).min()
    }

    /// Expected time of this round's batches on the manager's thread; resets it.
    pub(crate) fn take_work_ns(&mut self) -> u64 {
        std::mem::take(&mut self.work_ns)
    }

    /// How often the inputs of a controller's plan have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// How many of its first devices it leaves to tasks with shorter goals, because not all goals
    /// can hold where all tasks share all devices (Batchy, §4).
    #[must_use]
    pub fn devices_left(&self) -> usize {
        self.dispatch.devices_left()
    }

    /// If no plan can keep its goal in the worst case: how long the largest batches of all tasks on
    /// a device take together.
    #[must_use]
    pub fn unreachable(&self) -> Option<Duration> {
        self.dispatch.unreachable()
    }

    /// Ends a control period.
    pub(crate) fn measured(
        &mut self,
        seconds: f64,
        profile: Profile,
    ) -> (TaskMeasure, PathMeasure) {
        let labelling = &mut self.labelling;
        let slo = &mut labelling.counters.slo;
        labelling.measure.take(seconds, profile, slo)
    }

    /// What a policy with a goal keeps to from now on.
    pub(crate) fn follow(&mut self, plan: SloPlan) {
        self.plan = plan;
    }
}
