//! The latency goals of all tasks beside each other: which cannot hold in the worst case, and which
//! tasks leave devices to others (Batchy, §4).
//!
//! In the worst case a series waits until each task that shares its device has run its largest
//! batch. A goal that is not longer than that cannot be promised, whatever the plan. A manager that
//! has several devices keeps tasks with longer goals off the first of them, as far as that helps
//! ([`analytics::controller::Graph::homes`]).
//!
//! Tasks share devices here if they have the same ones. Of tasks that share some devices and not
//! others, none is seen to wait for another; the controller of a run looks at them in the same way.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use accel::{Profile, Sizes};
use analytics::controller::{
    Goal, Graph, GraphError, InherentViolation, Task, inherent_violations,
};
use config::checked::Device;
use dataplane::profiles::profile_of_file;
use dataplane::session::{executor, sizes};
use dataplane::tasks::OpenTask;

use super::finding::Finding;

const CHECK: &str = "goal";

/// What batches of a task take on a device, by the numbers and names of both.
pub type Measured = BTreeMap<(usize, String), Profile>;

/// Judges the goals by files of profiles, by simulated devices and by what was measured; `None`:
/// nothing was. There are no findings if no task has a goal, or none waits for a batch. Devices
/// without a profile are named only if they should have been measured.
pub fn findings(tasks: &[OpenTask], measured: Option<&Measured>) -> Vec<Finding> {
    if tasks.iter().all(|task| task.is_inline) {
        return Vec::new();
    }
    let none = Measured::new();
    let known = measured.unwrap_or(&none);
    let profile = |number: usize, device: &Device| profile(tasks, known, number, device);
    match goals(tasks, profile) {
        Ok(Some(goals)) => {
            let mut findings = by_task(tasks, &goals);
            findings.extend(measured.and_then(|_| without_profile(&goals)));
            findings
        }
        Ok(None) => Vec::new(),
        Err(error) => vec![Finding::warning(CHECK, "", format!("{error}; no goal is planned for"))],
    }
}

fn profile(
    tasks: &[OpenTask],
    measured: &Measured,
    number: usize,
    device: &Device,
) -> Option<Profile> {
    if let Ok(Some(file)) = profile_of_file(&tasks[number].bundle, device) {
        return Some(file.profile());
    }
    if !device.provider.computes {
        return Some(device.simulated);
    }
    measured.get(&(number, device.name.clone())).copied()
}

fn by_task(tasks: &[OpenTask], goals: &Goals) -> Vec<Finding> {
    let moved = goals.moved.iter().map(|(task, devices)| {
        let first = match devices {
            1 => "first device".to_owned(),
            devices => format!("first {devices} devices"),
        };
        let cause = format!(
            "leaves the {first} to tasks with shorter goals, which could not hold otherwise"
        );
        Finding::ok(CHECK, task, cause)
    });
    let mut findings: Vec<Finding> = moved.collect();
    findings.extend(goals.out_of_reach.iter().map(out_of_reach));
    if goals.out_of_reach.is_empty() && goals.without_profile.is_empty() {
        let with_goal = tasks.iter().filter(|task| task.config.analytics.name.has_goal());
        findings.push(Finding::ok(
            CHECK,
            "",
            match with_goal.count() {
                1 => "holds with the largest batches".to_owned(),
                count => format!("all {count} hold with the largest batches of all tasks"),
            },
        ));
    }
    findings
}

/// Devices that could not be measured, so that goals may be out of reach that seem not to be.
fn without_profile(goals: &Goals) -> Option<Finding> {
    let devices: Vec<&str> = goals.without_profile.iter().map(|name| &**name).collect();
    let cause = format!(
        "could not be fully judged, because device {} has no profile; once it runs, fenxi check \
         --deep measures it",
        devices.join(", ")
    );
    (!devices.is_empty()).then(|| Finding::warning(CHECK, "", cause))
}

fn out_of_reach(it: &OutOfReach) -> Finding {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (turnaround, goal) = (ms(it.turnaround), ms(it.goal));
    let why = match it.with.as_slice() {
        [only] => alone(it, only, turnaround),
        _ => together(it, turnaround),
    };
    Finding::warning(CHECK, &it.task, format!("{goal} ms cannot be promised: {why}"))
}

fn alone(it: &OutOfReach, only: &str, turnaround: f64) -> String {
    let batch = match &it.waits_for {
        None => "its largest batch".to_owned(),
        Some(before) => format!("the largest batch of {before}, for which it waits,"),
    };
    format!(
        "{batch} takes {turnaround:.1} ms; use smaller batches (task.{only}.batch_sizes) or a \
         longer goal"
    )
}

fn together(it: &OutOfReach, turnaround: f64) -> String {
    let (what, cure) = match it.shares_thread {
        true => ("thread", "give the devices threads of their own (device.NAME.thread = \"own\")"),
        false => ("device", "give the slow ones another device (task.NAME.devices)"),
    };
    let place = match &it.waits_for {
        None => format!("on its {what}"),
        Some(before) => format!("on the {what} of {before}, for which it waits,"),
    };
    format!(
        "{place} the largest batches of {} take {turnaround:.1} ms together; {cure} or smaller \
         batches (task.NAME.batch_sizes), or this \
         one a longer goal",
        it.with.join(", ")
    )
}

/// The executor of the analytics thread, which devices without a thread of their own share.
const SHARED_EXECUTOR: u8 = 0;

/// A batch on a device whose profile is not known.
const NO_TIME: Profile = Profile { t0_us: 0.0, t1_us: 0.0 };

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
        let devices = tasks.iter().map(|task| OwnDevices::new(task, manager));
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
    /// Their executors, rising, each once.
    executors: Vec<u8>,
    devices: Vec<&'a Device>,
}

impl<'a> OwnDevices<'a> {
    fn new(task: &'a OpenTask, manager: usize) -> OwnDevices<'a> {
        let config = &task.config;
        let places = config.pipeline.layout.sessions().into_iter().enumerate();
        let own = places.filter(|(_, place)| place.analytics_manager == manager);
        let (executors, devices): (BTreeSet<u8>, Vec<&Device>) = own
            .map(|(number, place)| {
                let device = &config.accel.devices[place.device];
                (executor(config, device, number), device)
            })
            .unzip();
        OwnDevices { executors: executors.into_iter().collect(), devices }
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
        let known = sets.iter().position(|set| *set == own.executors);
        let (profile, sizes) = own.slowest(|device| profile(number, device));
        graph.push(Task {
            profile,
            sizes,
            device_set: known.unwrap_or(sets.len()),
            follows: follows(tasks, task),
            goal: goal(task),
        });
        if known.is_none() {
            sets.push(&own.executors);
        }
    }
    let shared = Graph::new(graph, sets.iter().map(|set| set.len()).collect())?;
    let homes = shared.homes();
    let graph = shared.decomposed(&homes);
    let moved = tasks.iter().zip(&homes).filter(|(_, home)| **home > 0);
    Ok(Goals {
        out_of_reach: violations(tasks, devices, &graph),
        moved: moved.map(|(task, home)| (task.name.clone(), *home)).collect(),
        without_profile: unmeasured(devices, &shared, profile),
    })
}

fn violations(tasks: &[OpenTask], devices: &[OwnDevices<'_>], graph: &Graph) -> Vec<OutOfReach> {
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
    names.len() > 1 && own().all(|own| own.executors == [SHARED_EXECUTOR])
}

/// The devices without a profile of all tasks that share a device with one on the way to a goal.
fn unmeasured(
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
    let (latency, delta) = task.config.analytics.policy().goal()?;
    Some(Goal { latency, delta })
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
