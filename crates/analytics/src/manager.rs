//! The round of an analytics manager: the walk of all its tasks' series.
//!
//! ```text
//!            ┌─► task: cache ─► buffer ─┐
//!  rings ────┼─► task: cache ─► buffer ─┼─► devices ─► label words
//!            └─► task: cache ─► buffer ─┘                   │
//!                  ▲ asked where another label says so ─────┘
//! ```
//!
//! Each [`Task`] has its own rings, cache, policy, devices and counters. Tasks share the thread,
//! and devices that work on it or share a thread of their own: on each executor one works at a time
//! ([`crate::executors`]). In a round all tasks first take in what has come, then they fire,
//! starting with the one whose oldest series is due first. A round fires one batch per executor, so
//! that the clock is read again between two batches that run on this thread.
//!
//! Where the devices cannot keep up, a ring becomes full, and its flow manager sheds what finds no
//! room. Then tasks fire by priority, so that the rings of the others stay full. A task that
//! another one waits for has at least that one's priority, because the other could not be asked
//! without it.

mod control;
mod hold_up;

use crate::Task;
use crate::executors::Executors;
use control::Control;
use hold_up::HoldUp;
use std::time::Duration;

/// How long priorities count once a ring was full: some rounds of all tasks.
const CROWDED_FOR: Duration = Duration::from_millis(100);

/// The result of a round, so that the caller knows whether to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// A batch was fired, or came back, or was given up.
    Worked,
    /// Series were seen; they wait for a batch, or the cache had their label.
    Seen,
    /// Nothing happened. While [`Manager::undecided`] is not 0, series wait for their time or for a
    /// device.
    Idle,
}

impl Round {
    pub(crate) fn new(worked: bool, seen: bool) -> Round {
        match seen {
            _ if worked => Round::Worked,
            true => Round::Seen,
            false => Round::Idle,
        }
    }
}

/// A task's place in the firing order: its rank, when its oldest series is due, since when that
/// waits, and its number. Where nothing is due, as with the policy `max` or in a backlog, the
/// longest wait goes first; by number, the first tasks would keep the device for themselves.
type Place = ([u8; 2], u64, u64, usize);

/// One analytics manager: its tasks. Belongs to one thread, which calls [`Manager::round`] again
/// and again.
pub struct Manager {
    tasks: Vec<Task>,
    /// The tasks in firing order, by rank and by when their oldest series is due; rebuilt in each
    /// round.
    order: Vec<Place>,
    /// By task: its priority, or the greatest of the tasks that wait for its labels.
    priorities: Vec<u8>,
    /// Priorities count until then, because a ring was full lately.
    crowded_until_ns: u64,
    /// Where a task has a goal.
    control: Option<Control>,
    hold_up: HoldUp,
    /// The tasks' changes for which the control was made, or found not to be needed; `None` before
    /// the first round.
    controlled_at: Option<u64>,
}

impl Manager {
    /// A manager of these tasks, at least one. Their numbers are their places here.
    #[must_use]
    pub fn new(tasks: Vec<Task>) -> Manager {
        debug_assert!(!tasks.is_empty(), "a manager has a task");
        Manager {
            order: Vec::with_capacity(tasks.len()),
            priorities: vec![0; tasks.len()],
            crowded_until_ns: 0,
            control: None,
            hold_up: HoldUp::default(),
            controlled_at: None,
            tasks,
        }
    }

    /// The tasks, in the order in which they were given.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The same to be changed.
    pub fn tasks_mut(&mut self) -> &mut [Task] {
        &mut self.tasks
    }

    /// Runs one round, at `now_ns` on the clock of [`cring::Slot::emitted_ns`]. Never blocks,
    /// though a device without a thread of its own works in here.
    pub fn round(&mut self, now_ns: u64) -> Round {
        self.note_hold_up(now_ns);
        let (mut worked, mut seen) = (false, false);
        let decided = self.decided();
        for task in &mut self.tasks {
            let (collected, looked) = task.take_in(now_ns, decided);
            worked |= collected;
            seen |= looked;
        }
        self.control(now_ns);
        worked |= match self.tasks.as_mut_slice() {
            [task] => {
                let mut executors = Executors::none_shared();
                task.probe(now_ns, &mut executors);
                task.fire(now_ns, &mut executors)
            }
            _ => self.fire(now_ns),
        };
        let works = self.tasks.iter_mut().map(Task::take_work_ns);
        let work_ns = works.fold(0, u64::saturating_add);
        self.hold_up.round_over(now_ns, work_ns);
        Round::new(worked, seen)
    }

    /// Tells the tasks if the thread was held up. This comes before the labels of batches that came
    /// back meanwhile are counted.
    fn note_hold_up(&mut self, now_ns: u64) {
        let tasks = &mut self.tasks;
        let rests_until_ns = || tasks.iter_mut().filter_map(Task::rests_until_ns).min();
        if let Some(length_ns) = self.hold_up.before(now_ns, rests_until_ns) {
            let tasks = self.tasks.iter_mut();
            tasks.for_each(|task| task.measure_mut().note_hold_up(now_ns, length_ns));
        }
    }

    /// Lets the controller plan, where a task has a goal. The controller is rebuilt when policies,
    /// priorities or devices have changed, and only then allocates.
    fn control(&mut self, now_ns: u64) {
        let changes = Some(self.tasks.iter().map(Task::changes).sum());
        if self.controlled_at != changes {
            set_priorities(&mut self.priorities, &self.tasks);
            self.control = Control::new(&mut self.tasks, self.control.take(), now_ns);
            self.controlled_at = changes;
        }
        if let Some(control) = &mut self.control {
            let is_outdated = control.control(&mut self.tasks, now_ns);
            if is_outdated {
                self.controlled_at = None;
            }
        }
    }

    /// Fires the most urgent tasks first, one batch for each free executor.
    fn fire(&mut self, now_ns: u64) -> bool {
        let mut executors = Executors::all_free();
        if self.tasks.iter().any(|task| task.rings().is_crowded()) {
            self.crowded_until_ns = now_ns.saturating_add(CROWDED_FOR.as_nanos() as u64);
        }
        let is_crowded = now_ns < self.crowded_until_ns;
        let dispatches = self.tasks.iter().flat_map(Task::dispatches);
        dispatches.for_each(|dispatch| dispatch.take_executors(&mut executors));
        for task in &mut self.tasks {
            task.probe(now_ns, &mut executors);
        }
        self.order.clear();
        for (number, task) in self.tasks.iter().enumerate() {
            // Two tasks may have one rank because one waits for the other. Then the waiting one
            // goes first: its series have come further, and without the other's labels it has none
            // to fire.
            let rank = match is_crowded {
                true => [self.priorities[number], task.terms().priority].map(|it| u8::MAX - it),
                false => [0, 0],
            };
            let (due_ns, since_ns) = task.due_ns().unwrap_or((u64::MAX, u64::MAX));
            self.order.push((rank, due_ns, since_ns, number));
        }
        self.order.sort_unstable();
        let mut fired = false;
        for &(_, _, _, number) in &self.order {
            fired |= self.tasks[number].fire(now_ns, &mut executors);
        }
        for task in &mut self.tasks {
            task.submit_filled(now_ns);
        }
        fired
    }

    /// Time until the next batch is due; the caller may sleep that long. Zero while a batch is on
    /// its way through a device. New series do not wake a caller while anything is undecided, so it
    /// is never longer than the least patient task lets new series lie.
    #[must_use]
    pub fn time_until_due(&self, now_ns: u64) -> Duration {
        let decided = self.decided();
        let due = |task: &Task| match task.rings().has_arrivals(decided) {
            true => Duration::ZERO,
            false => task.time_until_due(now_ns),
        };
        let due = self.tasks.iter().map(due).min().unwrap_or(Duration::MAX);
        match self.undecided() {
            0 => due,
            _ => due.min(self.max_poll_interval()),
        }
    }

    /// How long new series may lie unseen, by the least patient task.
    fn max_poll_interval(&self) -> Duration {
        let tasks = self.tasks.iter();
        let intervals = tasks.map(|task| task.terms().policy.max_poll_interval());
        intervals.min().unwrap_or(Duration::ZERO)
    }

    /// Prepares for a replay at full speed, where nobody waits for a single label soon, but a
    /// producer may wait for one before it sends more. So no policy waits for series without end:
    /// where nothing new has come for some milliseconds, policies without another bound fire what
    /// is there.
    pub fn gather(&mut self) {
        self.tasks.iter_mut().for_each(Task::expect_stalls);
    }

    /// From now on fires at once whatever is there: the producers have ended, or soon will.
    pub fn drain(&mut self) {
        self.tasks.iter_mut().for_each(Task::drain);
    }

    /// Whether every task is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.tasks.iter().all(Task::is_done)
    }

    /// Series looked at that are still undecided.
    #[must_use]
    pub fn undecided(&self) -> u64 {
        let tasks = self.tasks.iter();
        tasks.map(|task| task.counters().undecided()).sum()
    }

    /// Labels given so far.
    #[must_use]
    pub fn labelled(&self) -> u64 {
        let counters = self.tasks.iter().map(Task::counters);
        counters.map(|it| it.cached + it.inferred).sum()
    }

    /// Decided series of all tasks.
    fn decided(&self) -> u64 {
        let tasks = self.tasks.iter();
        tasks.map(|task| task.counters().decided()).sum()
    }
}

/// Sets each task's priority to its own, or to the greatest of the tasks that wait for its labels,
/// directly or through others.
fn set_priorities(priorities: &mut [u8], tasks: &[Task]) {
    for (priority, task) in priorities.iter_mut().zip(tasks) {
        *priority = task.terms().priority;
    }
    // Each pass reaches one task further back.
    for _ in tasks {
        for (number, task) in tasks.iter().enumerate() {
            for word in task.rings().waits_for() {
                if let Some(before) = tasks.iter().position(|it| it.terms().word == word) {
                    priorities[before] = priorities[before].max(priorities[number]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
