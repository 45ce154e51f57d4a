//! The tasks of a flow manager: which depths belong to one, which flows it is asked about, and when
//! its series is due.

use cring::{Answers, Depth, Label, TaskWords, Unit};

use crate::asked::{Inside, Subject};
use crate::config::Config;
use crate::entry::Entries;
use crate::ids::{DepthId, TaskId};
use crate::series::SeenByUnit;
use crate::task_config::TaskConfig;

/// Depth of a task as it is asked.
#[derive(Clone, Copy, Debug)]
struct AtDepth {
    task: TaskId,
    /// Elements in its series; 0: ports give its labels.
    k: usize,
    /// The elements of each unit that a flow must have before its series is emitted: what the depth
    /// needs, and what all depths need of the tasks that its task comes after.
    needs: SeenByUnit,
}

/// One task, with all its depths.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Number of its first depth among all; the others follow.
    pub first: DepthId,
    /// Number of the first depth that asks the model: the one behind `first` where ports name flows
    /// with their first packets.
    pub first_asked: DepthId,
    /// When the answers are sure, by depth.
    sure: Vec<Depth>,
    pub config: TaskConfig,
}

impl Task {
    fn new(mut config: TaskConfig, first: DepthId) -> Task {
        config.ports.sort_unstable_by_key(|it| (it.protocol, it.port));
        let of_ports = u8::from(config.is_ports_first());
        let (sure, first_asked) = (config.sure(), first.behind(of_ports));
        Task { first, first_asked, sure, config }
    }

    /// How many depths it has, at least one.
    pub fn depths(&self) -> u8 {
        self.sure.len() as u8
    }

    /// The numbers of its depths.
    pub fn all_depths(&self) -> impl DoubleEndedIterator<Item = DepthId> + use<> {
        let first = self.first;
        (0..self.depths()).map(move |rank| first.behind(rank))
    }

    /// The depths that ask the model.
    pub fn asked_depths(&self) -> impl Iterator<Item = DepthId> + use<> {
        let of_ports = usize::from(self.first_asked.rank(self.first));
        self.all_depths().skip(of_ports)
    }

    /// What the answers of its first `count` depths come to; `label` gives the label word's content
    /// by rank.
    #[inline]
    pub fn resolve(&self, count: u8, label: impl Fn(u8) -> Option<Label>) -> Answers {
        cring::resolve(&self.sure, count, label)
    }

    /// Series of a flow that one packet completes at most: one, because depths need different
    /// numbers of elements, or all if the tasks before this one need more.
    pub fn series_at_once(&self) -> usize {
        match self.config.asked.after.is_empty() {
            true => 1,
            false => usize::from(self.depths()),
        }
    }
}

/// All tasks, and what belongs to single depths.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    all: Vec<Task>,
    /// What is inside, for conditions.
    inside: Inside,
    /// The depths of all of them.
    depths: Vec<AtDepth>,
    /// Some task is not asked about every flow.
    pub has_conditions: bool,
    /// Ports name flows of some task with their first packets.
    pub has_ports_first: bool,
}

impl Tasks {
    /// The tasks of a checked configuration. `number_of` gives units the numbers that series have.
    pub fn new(config: &mut Config, number_of: impl Fn(Unit) -> usize) -> Tasks {
        let (mut all, mut depths): (Vec<Task>, Vec<AtDepth>) = (Vec::new(), Vec::new());
        for (task, config) in (0..).map(TaskId).zip(std::mem::take(&mut config.tasks)) {
            let ks = config.depths.iter().map(|depth| depth.k);
            let first = DepthId(depths.len() as u8);
            depths.extend(ks.map(|k| AtDepth { task, k, needs: SeenByUnit::default() }));
            all.push(Task::new(config, first));
        }
        debug_assert!(depths.len() <= cring::WORDS_MAX, "no bit for each depth");
        let mut tasks = Tasks {
            has_conditions: all.iter().any(|task| !task.config.asked.is_always()),
            has_ports_first: all.iter().any(|task| task.config.is_ports_first()),
            all,
            inside: std::mem::take(&mut config.inside),
            depths,
        };
        for at in 0..tasks.depths.len() {
            let AtDepth { task, k, mut needs } = tasks.depths[at];
            raise(&mut needs, number_of(tasks.task(task).config.unit), k);
            // Where ports give labels, no element makes the depth due.
            if k > 0 {
                tasks.raise_by(&mut needs, task, &number_of);
            }
            tasks.depths[at].needs = needs;
        }
        tasks
    }

    /// Raises `needs` to what the tasks need that this one comes after.
    fn raise_by(&self, needs: &mut SeenByUnit, task: TaskId, number_of: &impl Fn(Unit) -> usize) {
        for &before in &self.task(task).config.asked.after {
            let config = &self.task(before).config;
            raise(needs, number_of(config.unit), config.k_max());
            self.raise_by(needs, before, number_of);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The numbers of all of them.
    pub fn ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.all.len() as u8).map(TaskId)
    }

    /// The numbers of the depths of all of them.
    pub fn depth_ids(&self) -> impl Iterator<Item = DepthId> + use<> {
        (0..self.depths.len() as u8).map(DepthId)
    }

    /// Whether a task, and those that it comes after, are asked about a flow.
    pub fn is_asked(&self, subject: &Subject, task: TaskId) -> bool {
        let asked = &self.task(task).config.asked;
        let mut after = asked.after.iter();
        // A flow that began before the first rules may not have its answer yet.
        let by_rule = match subject.unasked {
            Some(unasked) => unasked >> task.0 & 1 == 0,
            None => !asked.by_rule,
        };
        by_rule
            && asked.holds(subject, &self.inside)
            && after.all(|&before| self.is_asked(subject, before))
    }

    /// Whether a depth's task is asked about the flow now that the depth is due. Rules may have
    /// changed since the first depth: a flow that was asked about at one depth is asked about at
    /// the next, otherwise at none.
    pub fn is_asked_at(
        &self,
        entries: &Entries,
        index: u32,
        subject: &Subject,
        depth: DepthId,
    ) -> bool {
        let task = self.of_depth(depth);
        let first = self.task(task).first;
        let was_asked = entries.word(first, index).read().1 != Label::None;
        was_asked || self.is_first_asked(depth) && self.is_asked(subject, task)
    }

    /// The deepest depth of a task whose series is complete with `seen` elements, else the first.
    pub fn deepest_complete(&self, task: TaskId, seen: SeenByUnit) -> DepthId {
        let task = self.task(task);
        let complete = task.all_depths().rfind(|&depth| self.is_due(depth, &seen));
        complete.unwrap_or(task.first)
    }

    /// See [`crate::Manager::words`].
    pub fn words(&self, task: TaskId) -> TaskWords {
        let task = self.task(task);
        TaskWords { first: task.first.0, depths: task.sure.clone() }
    }

    /// A bit for each task.
    pub fn bits(&self) -> u8 {
        u8::MAX >> (8 - self.count().min(8))
    }

    /// The number of depths of all tasks.
    pub fn depths(&self) -> usize {
        self.depths.len()
    }

    /// Elements in the series of a depth; 0 where ports give its labels.
    #[inline]
    pub fn k(&self, depth: DepthId) -> usize {
        self.depths[depth.index()].k
    }

    /// The first depth of a task, and how many it has.
    pub fn span(&self, task: TaskId) -> (DepthId, u8) {
        let task = self.task(task);
        (task.first, task.depths())
    }

    #[inline]
    pub fn task(&self, task: TaskId) -> &Task {
        &self.all[task.index()]
    }

    /// The task that a depth belongs to.
    #[inline]
    pub fn of_depth(&self, depth: DepthId) -> TaskId {
        self.depths[depth.index()].task
    }

    /// Whether a depth is the first that asks the model of its task.
    #[inline]
    pub fn is_first_asked(&self, depth: DepthId) -> bool {
        self.task(self.of_depth(depth)).first_asked == depth
    }

    /// Whether an answer at this depth may take the place of a port's label.
    #[inline]
    pub fn may_contradict(&self, depth: DepthId) -> bool {
        let task = self.task(self.of_depth(depth));
        task.sure[usize::from(depth.rank(task.first))].contradicts.is_some()
    }

    /// Whether a depth's series is due with `seen` elements.
    #[inline]
    pub fn is_due(&self, depth: DepthId, seen: &SeenByUnit) -> bool {
        let mut needs = self.depths[depth.index()].needs.iter().zip(seen);
        needs.all(|(need, seen)| seen >= need)
    }

    /// Whether this element of a unit completes the depth's series.
    #[inline]
    pub fn becomes_due(&self, depth: DepthId, unit: usize, seen: &SeenByUnit) -> bool {
        self.depths[depth.index()].needs[unit] == seen[unit] && self.is_due(depth, seen)
    }
}

fn raise(needs: &mut SeenByUnit, unit: usize, k: usize) {
    needs[unit] = needs[unit].max(k as u8);
}
