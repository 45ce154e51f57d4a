//! The tasks of a flow manager: which depths belong to one, which flows it is asked about, and when
//! its series is due.

use cring::{Label, TaskWords, Unit};

use crate::asked::{Asked, Inside, Subject};
use crate::config::Config;
use crate::depths::Depths;
use crate::depths::SeriesTask;
use crate::entry::Entries;
use crate::ids::{DepthId, TaskId};
use crate::series::SeenByUnit;

/// One task, with all its depths.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Number of its first depth among all; the others follow.
    pub first: DepthId,
    /// Number of the first depth that asks the model: the one behind `first` where ports name flows
    /// with their first packets.
    pub first_asked: DepthId,
    pub depths: Depths,
    pub asked: Asked,
}

impl Task {
    /// Whether ports name flows with their first packets.
    pub fn is_ports_first(&self) -> bool {
        self.first_asked != self.first
    }

    /// The numbers of its depths.
    pub fn all_depths(&self) -> impl DoubleEndedIterator<Item = DepthId> + use<> {
        let first = self.first;
        (0..self.depths.count()).map(move |rank| first.behind(rank))
    }

    /// The depths that ask the model.
    pub fn asked_depths(&self) -> impl Iterator<Item = DepthId> + use<> {
        let of_ports = usize::from(self.first_asked.rank(self.first));
        self.all_depths().skip(of_ports)
    }

    /// Series of a flow that one packet completes at most: one, because depths need different
    /// numbers of elements, or all if the tasks before this one need more.
    pub fn series_at_once(&self) -> usize {
        match self.asked.after.is_empty() {
            true => 1,
            false => usize::from(self.depths.count()),
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
    depths: Vec<SeriesTask>,
    /// By depth, the number of its task.
    of_depth: Vec<TaskId>,
    /// By depth, the elements of each unit that a flow must have before its series is emitted: what
    /// the depth needs, and what all depths need of the tasks that its task comes after.
    needs: Vec<SeenByUnit>,
    /// Some task is not asked about every flow.
    pub has_conditions: bool,
    /// Ports name flows of some task with their first packets.
    pub has_ports_first: bool,
}

impl Tasks {
    /// The tasks of a checked configuration. `number_of` gives units the numbers that series have.
    pub fn of(config: &Config, number_of: impl Fn(Unit) -> usize) -> Tasks {
        let mut all: Vec<Task> = Vec::new();
        let mut of_depth = Vec::new();
        for (number, depth) in config.tasks.iter().enumerate() {
            if !depth.is_deeper {
                all.push(Task {
                    first: DepthId::new(number as u8),
                    first_asked: DepthId::new(number as u8 + u8::from(depth.is_of_ports())),
                    depths: Depths::of(&config.tasks[number..]),
                    asked: config.asked.get(all.len()).cloned().unwrap_or_default(),
                });
            }
            of_depth.push(TaskId::new(all.len() as u8 - 1));
        }
        let mut tasks = Tasks {
            has_conditions: all.iter().any(|task| !task.asked.is_always()),
            has_ports_first: all.iter().any(Task::is_ports_first),
            all,
            inside: config.inside.clone(),
            depths: config.tasks.clone(),
            of_depth,
            needs: Vec::new(),
        };
        let needs = config.tasks.iter().zip(&tasks.of_depth).map(|(depth, of)| {
            let mut needs = SeenByUnit::default();
            raise(&mut needs, number_of(depth.unit), depth.k);
            tasks.raise_by(&mut needs, *of, config, &number_of);
            needs
        });
        tasks.needs = needs.collect();
        debug_assert_eq!(tasks.of_depth.len(), tasks.depths.len());
        debug_assert!(tasks.depths.len() <= cring::WORDS_MAX, "no bit for each depth");
        tasks
    }

    /// Raises `needs` to what the tasks need that this one comes after.
    fn raise_by(
        &self,
        needs: &mut SeenByUnit,
        task: TaskId,
        config: &Config,
        number_of: &impl Fn(Unit) -> usize,
    ) {
        for &before in &self.task(task).asked.after {
            let before = TaskId::new(before);
            for depth in self.task(before).all_depths() {
                let depth = &config.tasks[depth.index()];
                raise(needs, number_of(depth.unit), depth.k);
            }
            self.raise_by(needs, before, config, number_of);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The numbers of all of them.
    pub fn ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.all.len() as u8).map(TaskId::new)
    }

    /// The numbers of the depths of all of them.
    pub fn depth_ids(&self) -> impl Iterator<Item = DepthId> + use<> {
        (0..self.depths.len() as u8).map(DepthId::new)
    }

    /// Whether a task, and those that it comes after, are asked about a flow.
    pub fn is_asked(&self, subject: &Subject, task: TaskId) -> bool {
        let asked = &self.task(task).asked;
        let mut after = asked.after.iter();
        // A flow that began before the first rules may not have its answer yet.
        let by_rule = match subject.unasked {
            Some(unasked) => unasked >> task.number() & 1 == 0,
            None => !asked.by_rule,
        };
        by_rule
            && asked.holds(subject, &self.inside)
            && after.all(|&before| self.is_asked(subject, TaskId::new(before)))
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
        TaskWords { first: task.first.number(), depths: task.depths.sure().to_vec() }
    }

    /// A bit for each task.
    pub fn bits(&self) -> u8 {
        u8::MAX >> (8 - self.count().min(8))
    }

    /// The depths of all tasks.
    pub fn depths(&self) -> &[SeriesTask] {
        &self.depths
    }

    #[inline]
    pub fn depth(&self, depth: DepthId) -> &SeriesTask {
        &self.depths[depth.index()]
    }

    /// The first depth of a task, and how many it has.
    pub fn span(&self, task: TaskId) -> (DepthId, u8) {
        let task = self.task(task);
        (task.first, task.depths.count())
    }

    #[inline]
    pub fn task(&self, task: TaskId) -> &Task {
        &self.all[task.index()]
    }

    /// The task that a depth belongs to.
    #[inline]
    pub fn of_depth(&self, depth: DepthId) -> TaskId {
        self.of_depth[depth.index()]
    }

    /// Whether a depth is the first that asks the model of its task.
    #[inline]
    pub fn is_first_asked(&self, depth: DepthId) -> bool {
        self.task(self.of_depth(depth)).first_asked == depth
    }

    /// Whether a depth's series is due with `seen` elements.
    #[inline]
    pub fn is_due(&self, depth: DepthId, seen: &SeenByUnit) -> bool {
        let mut needs = self.needs[depth.index()].iter().zip(seen);
        needs.all(|(need, seen)| seen >= need)
    }

    /// Whether this element of a unit completes the depth's series.
    #[inline]
    pub fn becomes_due(&self, depth: DepthId, unit: usize, seen: &SeenByUnit) -> bool {
        self.needs[depth.index()][unit] == seen[unit] && self.is_due(depth, seen)
    }
}

fn raise(needs: &mut SeenByUnit, unit: usize, k: usize) {
    needs[unit] = needs[unit].max(k as u8);
}
