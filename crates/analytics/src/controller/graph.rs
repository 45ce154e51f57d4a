//! Which tasks there are, which follow which, and the paths from a source to each goal.

use accel::{Profile, Sizes};
use std::time::Duration;

/// The most tasks: a set of them is a `u64`.
pub const GRAPH_TASKS_MAX: usize = 64;
/// The most paths; with these a step takes less than a millisecond.
pub const PATHS_MAX: usize = 64;

/// The goal of a task with the policy `slo`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// D: 99 in 100 series have their label within this time of their emission.
    pub latency: Duration,
    /// δ, from 0 to below 1: the plan is for D(1 − δ).
    pub delta: f64,
}

impl Goal {
    /// D, in µs.
    pub(super) fn goal_us(self) -> f64 {
        self.latency.as_secs_f64() * 1e6
    }

    /// D(1 − δ), in µs.
    pub(super) fn aim_us(self) -> f64 {
        self.goal_us() * (1.0 - self.delta)
    }
}

/// One task, as far as the controller knows it.
#[derive(Clone, Debug)]
pub struct Task {
    /// What a batch takes.
    pub profile: Profile,
    /// The sizes that its devices take.
    pub sizes: Sizes,
    /// The device set: tasks with the same number share devices, or a thread, and wait for each
    /// other.
    pub device_set: usize,
    /// The tasks whose labels must be there before this one is asked.
    pub follows: Vec<usize>,
    /// `None` with another policy than `slo`: the task is not controlled, but takes its time on the
    /// devices.
    pub goal: Option<Goal>,
}

/// Why a graph is refused; tasks are counted from 0.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct GraphError(String);

/// A chain of tasks from a source to one with a goal.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The tasks, source first. The last one has the goal.
    pub tasks: Vec<usize>,
    /// The goal of the whole path.
    pub goal: Goal,
}

impl Path {
    /// The task whose labels are measured.
    pub fn last(&self) -> usize {
        // A path has one task at least.
        self.tasks.last().copied().unwrap_or_default()
    }
}

/// Tasks, device sets, and paths.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) tasks: Vec<Task>,
    /// How many devices each device set has.
    pub(super) devices: Vec<usize>,
    paths: Vec<Path>,
}

impl Graph {
    /// A graph of these tasks; `devices` is the number of devices in each device set. An inline
    /// device and all others on its thread are one set of one device.
    ///
    /// A task that is followed both directly and through another one counts only as the latter: the
    /// longer chain takes longer, so the short one adds nothing. Otherwise a row of n tasks that
    /// all follow all before would have 2^(n − 2) chains.
    ///
    /// # Errors
    /// When tasks follow each other in a circle, name what does not exist, or are too many.
    pub fn new(mut tasks: Vec<Task>, devices: Vec<usize>) -> Result<Self, GraphError> {
        if tasks.len() > GRAPH_TASKS_MAX {
            let found = tasks.len();
            return refuse(format!(
                "{found} tasks: one controller takes {GRAPH_TASKS_MAX} at most"
            ));
        }
        for (number, task) in tasks.iter().enumerate() {
            check(number, task, tasks.len(), &devices)?;
        }
        reduce(&mut tasks)?;
        let mut paths = Vec::new();
        for (last, task) in tasks.iter().enumerate() {
            let mut chain = vec![last];
            let mut chains = Vec::new();
            if let Some(goal) = task.goal {
                walk(&tasks, &mut chain, &mut chains)?;
                paths.extend(chains.into_iter().map(|tasks| Path { tasks, goal }));
            }
        }
        if paths.len() > PATHS_MAX {
            return too_many_paths();
        }
        Ok(Self { tasks, devices, paths })
    }

    /// The tasks, in the order in which they were given.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// How many devices each device set has.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// The paths, by their last tasks.
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }
}

fn refuse<T>(why: String) -> Result<T, GraphError> {
    Err(GraphError(why))
}

fn too_many_paths<T>() -> Result<T, GraphError> {
    refuse(format!(
        "more than {PATHS_MAX} chains of tasks lead to goals: let tasks follow fewer others, or \
         split the pipeline"
    ))
}

fn check(number: usize, task: &Task, tasks: usize, devices: &[usize]) -> Result<(), GraphError> {
    let unknown = task.follows.iter().find(|named| **named >= tasks).copied();
    let no_device = devices.get(task.device_set).is_none_or(|n| *n == 0);
    if let Some(named) = unknown.or(no_device.then_some(task.device_set)) {
        return refuse(format!(
            "task {number} names task or device set {named}, which does not exist"
        ));
    }
    if task.sizes.largest() == 0 {
        return refuse(format!("task {number} has no batch size"));
    }
    let is_time = |us: f64| us.is_finite() && us >= 0.0;
    let is_goal = |goal: Goal| !goal.latency.is_zero() && (0.0..1.0).contains(&goal.delta);
    let is_fine = is_time(task.profile.t0_us) && is_time(task.profile.t1_us);
    if !is_fine || !task.goal.is_none_or(is_goal) {
        return refuse(format!("task {number}: its profile, goal or delta is out of range"));
    }
    Ok(())
}

/// Keeps for each task only the tasks that it follows through no other.
fn reduce(tasks: &mut [Task]) -> Result<(), GraphError> {
    let before = ancestors(tasks);
    if let Some(task) = (0..tasks.len()).find(|task| before[*task] >> task & 1 == 1) {
        return refuse(format!("task {task} follows itself, directly or through others"));
    }
    for task in tasks {
        let through = task.follows.iter().fold(0, |set, it| set | before[*it]);
        task.follows.retain(|it| through >> it & 1 == 0);
    }
    Ok(())
}

/// For each task the set of tasks that it follows, directly or through others; it contains the task
/// itself if there is a circle.
fn ancestors(tasks: &[Task]) -> Vec<u64> {
    let mut before = vec![0_u64; tasks.len()];
    // Each pass reaches one link further.
    for _ in 0..tasks.len() {
        for (number, task) in tasks.iter().enumerate() {
            let reached = task.follows.iter();
            before[number] = reached.fold(before[number], |set, it| set | 1 << it | before[*it]);
        }
    }
    before
}

/// All chains from a source to the end of this one, which grows towards the source. There is no
/// circle.
fn walk(
    tasks: &[Task],
    chain: &mut Vec<usize>,
    chains: &mut Vec<Vec<usize>>,
) -> Result<(), GraphError> {
    let first = chain[chain.len() - 1];
    if tasks[first].follows.is_empty() {
        if chains.len() == PATHS_MAX {
            return too_many_paths();
        }
        chains.push(chain.iter().rev().copied().collect());
    }
    for &before in &tasks[first].follows {
        chain.push(before);
        walk(tasks, chain, chains)?;
        chain.pop();
    }
    Ok(())
}

/// A goal that no batching can keep on this device set (Batchy, §4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InherentViolation {
    /// The task with the goal.
    pub task: usize,
    /// The device set on which series of its path may have to wait too long.
    pub device_set: usize,
    /// How long all tasks of the device set take with their largest batches.
    pub turnaround: Duration,
    /// D, which is not longer.
    pub goal: Duration,
}

/// The goals that cannot hold in the worst case: a series may have to wait until each task of a
/// device set has run its largest batch, ΣT₀ + T₁·B ≥ D. The cure is another device set for some of
/// them, smaller batches, or a longer goal.
pub fn inherent_violations(graph: &Graph) -> Vec<InherentViolation> {
    let mut found: Vec<InherentViolation> = Vec::new();
    for path in &graph.paths {
        for &task in &path.tasks {
            let device_set = graph.tasks[task].device_set;
            let violation = InherentViolation {
                task: path.last(),
                device_set,
                turnaround: turnaround(graph, device_set),
                goal: path.goal.latency,
            };
            if violation.turnaround >= violation.goal && !found.contains(&violation) {
                found.push(violation);
            }
        }
    }
    found
}

/// What all tasks of a device set take together, with their largest batches.
pub(super) fn turnaround(graph: &Graph, device_set: usize) -> Duration {
    let tasks = graph.tasks.iter().filter(|t| t.device_set == device_set);
    tasks.map(|task| task.profile.latency(task.sizes.largest())).sum()
}
