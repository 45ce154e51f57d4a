//! Which latency goals can hold on the devices of a configuration, before it runs (Batchy, §4).
//!
//! In the worst case a series waits until each task that shares its device has run its largest
//! batch. A goal that is not longer than that cannot be promised, whatever the plan. A manager that
//! has several devices keeps tasks with longer goals off the first of them, as far as that helps
//! ([`analytics::controller::Graph::homes`]).
//!
//! Tasks share devices here if they have the same ones. Of tasks that share some devices and not
//! others, none is seen to wait for another; the controller of a run looks at them in the same way.

use std::collections::BTreeSet;
use std::time::Duration;

use accel::{Profile, Sizes};
use analytics::controller::{
    Goal, Graph, GraphError, InherentViolation, Task, inherent_violations,
};
use config::checked::{BatchPolicy, Device};

use dataplane::session::{lane, sizes};
use dataplane::tasks::OpenTask;

#[cfg(test)]
mod tests;

/// The lane of the analytics thread, which devices without a thread of their own share.
const SHARED_LANE: u8 = 0;

/// A batch on a device whose profile is not known.
const NO_TIME: Profile = Profile { t0_us: 0.0, t1_us: 0.0 };

/// What the goals of all tasks come to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Goals {
    /// Tasks with a goal, as far as one is out of reach.
    pub out_of_reach: Vec<OutOfReach>,
    /// Tasks that leave devices to others: their names, and how many of the first devices.
    pub moved: Vec<(String, usize)>,
    /// Devices without a profile that series with a goal may wait for. Their batches count as if
    /// they took no time, so more goals may be out of reach.
    pub without_profile: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfReach {
    pub task: String,
    /// The task that it waits for and whose batches take too long; `None`: its own do.
    pub waits_for: Option<String>,
    /// The tasks that share the device on which that is so.
    pub with: Vec<String>,
    /// They have different devices, which share the analytics thread.
    pub shares_thread: bool,
    /// How long their largest batches take together.
    pub turnaround: Duration,
    pub goal: Duration,
}

/// Looks at each analytics manager with its devices. `profile` says what batches of a task take on
/// a device. `None` where no task has a goal.
pub fn goals(
    tasks: &[OpenTask],
    profile: impl Fn(usize, &Device) -> Option<Profile>,
) -> Result<Option<Goals>, GraphError> {
    let Some(first) = tasks.iter().find(|task| goal(task).is_some()) else {
        return Ok(None);
    };
    let mut goals = Goals::default();
    for manager in 0..first.config.pipeline.layout.analytics_managers {
        let devices = tasks.iter().map(|task| OwnDevices::of(task, manager));
        let devices: Vec<OwnDevices<'_>> = devices.collect();
        goals.add(of_manager(tasks, &devices, &profile)?);
    }
    Ok(Some(goals))
}

impl Goals {
    /// Merges the goals of another analytics manager; the worse result counts.
    fn add(&mut self, other: Goals) {
        for it in other.out_of_reach {
            let mut known = self.out_of_reach.iter_mut();
            match known.find(|known| known.task == it.task && known.with == it.with) {
                Some(known) if known.turnaround < it.turnaround => *known = it,
                Some(_) => {}
                None => self.out_of_reach.push(it),
            }
        }
        for (task, home) in other.moved {
            match self.moved.iter_mut().find(|(known, _)| *known == task) {
                Some((_, known)) => *known = home.max(*known),
                None => self.moved.push((task, home)),
            }
        }
        self.without_profile.extend(other.without_profile);
    }
}

/// The devices of a task's sessions at one analytics manager.
struct OwnDevices<'a> {
    /// Their lanes, rising, each once.
    lanes: Vec<u8>,
    devices: Vec<&'a Device>,
}

impl<'a> OwnDevices<'a> {
    fn of(task: &'a OpenTask, manager: usize) -> OwnDevices<'a> {
        let config = &task.config;
        let places = config.pipeline.layout.sessions().into_iter().enumerate();
        let own = places.filter(|(_, place)| place.analytics_manager == manager);
        let (lanes, devices): (BTreeSet<u8>, Vec<&Device>) = own
            .map(|(number, place)| {
                let device = &config.accel.devices[place.device];
                (lane(config, device, number), device)
            })
            .unzip();
        OwnDevices { lanes: lanes.into_iter().collect(), devices }
    }

    /// What batches take on the device whose largest batch takes longest, and their sizes there.
    fn slowest(&self, profile: impl Fn(&Device) -> Option<Profile>) -> (Profile, Sizes) {
        let all = self.devices.iter();
        let all = all.map(|device| (profile(device).unwrap_or(NO_TIME), sizes(device)));
        let slowest = all.max_by_key(|(profile, sizes)| profile.latency(sizes.largest()));
        slowest.unwrap_or((NO_TIME, Sizes::Any { cap: 1 }))
    }

    fn without_profile(&self, profile: impl Fn(&Device) -> Option<Profile>) -> Vec<String> {
        let unknown = self.devices.iter().filter(|it| profile(it).is_none());
        unknown.map(|device| device.name.clone()).collect()
    }
}

fn of_manager(
    tasks: &[OpenTask],
    devices: &[OwnDevices<'_>],
    profile: &impl Fn(usize, &Device) -> Option<Profile>,
) -> Result<Goals, GraphError> {
    let mut sets: Vec<&[u8]> = Vec::new();
    let mut graph = Vec::new();
    for (number, (task, own)) in tasks.iter().zip(devices).enumerate() {
        let known = sets.iter().position(|set| *set == own.lanes);
        let (profile, sizes) = own.slowest(|device| profile(number, device));
        graph.push(Task {
            profile,
            sizes,
            device_set: known.unwrap_or(sets.len()),
            follows: follows(tasks, task),
            goal: goal(task),
        });
        if known.is_none() {
            sets.push(&own.lanes);
        }
    }
    let shared = Graph::new(graph, sets.iter().map(|set| set.len()).collect())?;
    let homes = shared.homes();
    let graph = shared.decomposed(&homes);
    let moved = tasks.iter().zip(&homes).filter(|(_, home)| **home > 0);
    Ok(Goals {
        out_of_reach: out_of_reach(tasks, devices, &graph),
        moved: moved.map(|(task, home)| (task.name.clone(), *home)).collect(),
        without_profile: without_profile(devices, &shared, profile),
    })
}

fn out_of_reach(tasks: &[OpenTask], devices: &[OwnDevices<'_>], graph: &Graph) -> Vec<OutOfReach> {
    let violations = inherent_violations(graph).into_iter();
    let of = |it: InherentViolation| {
        let is_here = |task: &usize| graph.tasks()[*task].device_set == it.device_set;
        let with: Vec<usize> = (0..tasks.len()).filter(is_here).collect();
        let paths = graph.paths().iter().filter(|path| path.last() == it.task);
        let before = paths.flat_map(|path| &path.tasks).find(|task| is_here(task));
        let waits_for = before.filter(|_| !is_here(&it.task));
        OutOfReach {
            task: tasks[it.task].name.clone(),
            waits_for: waits_for.map(|task| tasks[*task].name.clone()),
            with: with.iter().map(|task| tasks[*task].name.clone()).collect(),
            shares_thread: shares_thread(devices, &with),
            turnaround: it.turnaround,
            goal: it.goal,
        }
    };
    violations.map(of).collect()
}

/// Whether these tasks have different devices and nothing in common but the analytics thread.
fn shares_thread(devices: &[OwnDevices<'_>], tasks: &[usize]) -> bool {
    let own = || tasks.iter().map(|task| &devices[*task]);
    let names: BTreeSet<&str> =
        own().flat_map(|own| &own.devices).map(|device| &*device.name).collect();
    names.len() > 1 && own().all(|own| own.lanes == [SHARED_LANE])
}

/// The devices without a profile of all tasks that share a device with one on the way to a goal.
fn without_profile(
    devices: &[OwnDevices<'_>],
    graph: &Graph,
    profile: &impl Fn(usize, &Device) -> Option<Profile>,
) -> BTreeSet<String> {
    let on_the_way = graph.paths().iter().flat_map(|path| &path.tasks);
    let sets: BTreeSet<usize> = on_the_way.map(|task| graph.tasks()[*task].device_set).collect();
    let tasks = devices.iter().zip(graph.tasks()).enumerate();
    let concerned = tasks.filter(|(_, (_, task))| sets.contains(&task.device_set));
    concerned
        .flat_map(|(number, (own, _))| own.without_profile(|device| profile(number, device)))
        .collect()
}

fn goal(task: &OpenTask) -> Option<Goal> {
    match task.config.analytics.policy {
        BatchPolicy::Slo { latency_goal, delta, .. }
        | BatchPolicy::OnOff { latency_goal, delta, .. } => {
            Some(Goal { latency: latency_goal, delta })
        }
        _ => None,
    }
}

/// The numbers of the tasks that a task waits for.
fn follows(tasks: &[OpenTask], task: &OpenTask) -> Vec<usize> {
    let words = task.after.needs.iter().map(|need| need.words.first);
    let mut follows: Vec<usize> =
        words.filter_map(|word| tasks.iter().position(|it| it.word == word)).collect();
    follows.sort_unstable();
    follows.dedup();
    follows
}
