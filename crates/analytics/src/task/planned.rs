//! What the manager and its controller ask of a task, and what they tell it.

use super::Task;
use crate::Policy;
use crate::batching::Plan;
use crate::controller::{PathMeasure, TaskMeasure};
use crate::device_slot::DeviceSlot;
use crate::lanes::Lanes;
use crate::ring_input::Queue;
use accel::{Profile, Sizes};
use std::time::Duration;

impl Task {
    /// Takes the lanes on which batches of this task are, but for those of hung devices.
    pub(crate) fn take_lanes(&self, lanes: &mut Lanes) {
        let slots = self.dispatch.device_slots.iter();
        let busy = slots.filter(|slot| slot.holds_lane());
        busy.for_each(|slot| lanes.take(slot.lane()));
    }

    /// When the oldest series that waits must be on a device, and since when it waits, on the clock of the rounds; `None` while
    /// none waits.
    pub(crate) fn due_ns(&self) -> Option<(u64, u64)> {
        let queues = self.queues.iter();
        let has_goal = self.measure.goal().is_some();
        let (since_ns, patience) = match has_goal {
            true => (
                queues.filter_map(Queue::oldest_emitted_ns).min()?,
                self.plan.budget,
            ),
            false => (
                queues.filter_map(Queue::oldest_seen_ns).min()?,
                self.policy.patience(),
            ),
        };
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Some((since_ns.saturating_add(patience_ns), since_ns))
    }

    /// Until when the thread may have rested without harm to this task: until a batch is out, a series came that nobody has seen,
    /// or one is due. `None` without any of these.
    pub(crate) fn rests_until_ns(&mut self) -> Option<u64> {
        if !self.dispatch.is_empty() {
            return Some(0);
        }
        let due = self.due_ns().map(|(due_ns, _)| due_ns);
        let unseen = self.queues.iter_mut().filter_map(Queue::oldest_unseen_ns);
        unseen.chain(due).min()
    }

    /// How long its batches of this round were expected to take on the manager's thread; counts anew from then on.
    pub(crate) fn take_work_ns(&mut self) -> u64 {
        std::mem::take(&mut self.work_ns)
    }

    /// The thread was held up until now, for so long: what was emitted before may be late for that.
    pub(crate) fn note_hold_up(&mut self, now_ns: u64, length_ns: u64) {
        self.measure.note_hold_up(now_ns, length_ns);
    }

    /// When its batches fire.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// As configured: where devices cannot keep up, tasks with the greatest go first.
    pub(crate) fn priority(&self) -> u8 {
        self.priority
    }

    /// Whether a ring is full of series that wait: more will be shed, or a replay waits for room.
    pub(crate) fn is_crowded(&self) -> bool {
        self.queues.iter().any(Queue::is_full)
    }

    /// How often what a controller plans by has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The lanes of its devices, in their order.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = u8> {
        self.dispatch.device_slots.iter().map(DeviceSlot::lane)
    }

    /// The sizes that its first device takes.
    pub(crate) fn sizes(&self) -> Option<&Sizes> {
        self.dispatch.device_slots.first().map(DeviceSlot::sizes)
    }

    /// What batches take by now on the first of its devices that it uses and that is up, where that is known.
    pub(crate) fn profile(&self) -> Option<Profile> {
        self.dispatch.typical()?.profile()
    }

    /// How often a device has left its profile for a new one.
    pub(crate) fn drifts(&self) -> u64 {
        let profiles = self.profiles().flatten();
        profiles.map(|profile| profile.drifts).sum()
    }

    /// Leaves the first of its devices, so many, to other tasks, and learns whether its goal is out of reach.
    pub(crate) fn spread(&mut self, devices_left: usize, unreachable: Option<Duration>) {
        self.dispatch.leave(devices_left);
        self.devices_left = devices_left;
        self.unreachable = unreachable;
    }

    /// How many of its first devices it leaves to tasks with shorter goals, because not all goals can hold where all tasks share all
    /// devices (Batchy, §4).
    #[must_use]
    pub fn devices_left(&self) -> usize {
        self.devices_left
    }

    /// Where no plan can keep its goal in the worst case: how long the largest batches of all tasks on a device take together.
    #[must_use]
    pub fn unreachable(&self) -> Option<Duration> {
        self.unreachable
    }

    /// Number of the label word of its first depth.
    pub(crate) fn word(&self) -> u8 {
        self.word
    }

    /// The words of the tasks whose labels it waits for.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = u8> {
        self.after.needs.iter().map(|need| need.words.first)
    }

    /// Labels of this control period that were late, and all of them.
    pub(crate) fn late(&self) -> (u64, u64) {
        self.measure.late()
    }

    /// Ends a control period.
    pub(crate) fn measured(
        &mut self,
        seconds: f64,
        profile: Profile,
    ) -> (TaskMeasure, PathMeasure) {
        self.measure.take(seconds, profile, &mut self.counters.slo)
    }

    /// What a policy with a goal keeps to from now on.
    pub(crate) fn follow(&mut self, plan: Plan) {
        self.plan = plan;
    }
}
