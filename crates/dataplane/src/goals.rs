//! Which latency goals can hold on the devices of a configuration, before it runs (Batchy, §4).
//!
//! In the worst case a series waits until each task that shares its device has run its largest batch. A goal that is not
//! longer than that cannot be promised, whatever the plan. A manager that has several devices keeps tasks with longer goals
//! off the first of them, as far as that helps ([`analytics::controller::Graph::homes`]).

use std::time::Duration;

use accel::Profile;
use analytics::controller::{Goal, Graph, GraphError, Task, inherent_violations};
use config::checked::{BatchPolicy, Device};

use crate::devices::{lane, sizes};
use crate::tasks::OpenTask;

/// What the goals of all tasks come to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Goals {
    /// Tasks with a goal, as far as one is out of reach.
    pub out_of_reach: Vec<OutOfReach>,
    /// Tasks that leave devices to others: their names, and how many of the first devices.
    pub moved: Vec<(String, usize)>,
}

/// A goal that cannot be promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfReach {
    /// Name of the task.
    pub task: String,
    /// The tasks that share its device, itself included.
    pub with: Vec<String>,
    /// How long their largest batches take together.
    pub turnaround: Duration,
    /// What the configuration asks for.
    pub goal: Duration,
}

/// Looks at the first analytics manager; the others have the same tasks on the same kinds of devices. `profile` says what
/// batches of a task take on a device.
///
/// # Errors
/// More chains of tasks than one controller takes. `None` where no task has a goal, or a profile is not known.
pub fn goals(
    tasks: &[OpenTask],
    profile: impl Fn(usize, &Device) -> Option<Profile>,
) -> Result<Option<Goals>, GraphError> {
    let has_goal = tasks.iter().any(|task| goal(task).is_some());
    let devices: Vec<Vec<(u8, &Device)>> = tasks.iter().map(devices).collect();
    let of_first = |(number, own): (usize, &Vec<(u8, &Device)>)| {
        own.first().and_then(|(_, device)| profile(number, device))
    };
    let profiles: Option<Vec<Profile>> = devices.iter().enumerate().map(of_first).collect();
    let Some(profiles) = profiles.filter(|_| has_goal) else {
        return Ok(None);
    };
    let mut sets: Vec<Vec<u8>> = Vec::new();
    let mut graph = Vec::new();
    for ((task, own), profile) in tasks.iter().zip(&devices).zip(profiles) {
        let lanes: Vec<u8> = own.iter().map(|(lane, _)| *lane).collect();
        let known = sets.iter().position(|set| *set == lanes);
        graph.push(Task {
            profile,
            sizes: sizes(own[0].1),
            device_set: known.unwrap_or(sets.len()),
            follows: follows(tasks, task),
            goal: goal(task),
        });
        if known.is_none() {
            sets.push(lanes);
        }
    }
    let shared = Graph::new(graph, sets.iter().map(Vec::len).collect())?;
    let homes = shared.homes();
    Ok(Some(found(tasks, &shared.decomposed(&homes), &homes)))
}

fn found(tasks: &[OpenTask], graph: &Graph, homes: &[usize]) -> Goals {
    let violations = inherent_violations(graph).into_iter();
    let out_of_reach = violations.map(|it| {
        let shares = |task: &usize| graph.tasks()[*task].device_set == it.device_set;
        let with = (0..tasks.len()).filter(shares);
        OutOfReach {
            task: tasks[it.task].name.clone(),
            with: with.map(|task| tasks[task].name.clone()).collect(),
            turnaround: it.turnaround,
            goal: it.goal,
        }
    });
    let moved = tasks.iter().zip(homes).filter(|(_, home)| **home > 0);
    Goals {
        out_of_reach: out_of_reach.collect(),
        moved: moved
            .map(|(task, home)| (task.name.clone(), *home))
            .collect(),
    }
}

/// The devices of a task's session at the first analytics manager, by their lanes; one of each.
fn devices(task: &OpenTask) -> Vec<(u8, &Device)> {
    let config = &task.config;
    let places = config.pipeline.layout.sessions().into_iter().enumerate();
    let own = places.filter(|(_, place)| place.analytics_manager == 0);
    let mut devices: Vec<(u8, &Device)> = own
        .map(|(number, place)| {
            let device = &config.accel.devices[place.device];
            (lane(config, device, number), device)
        })
        .collect();
    devices.sort_by_key(|(lane, _)| *lane);
    devices.dedup_by_key(|(lane, _)| *lane);
    devices
}

fn goal(task: &OpenTask) -> Option<Goal> {
    match task.config.analytics.policy {
        BatchPolicy::Slo {
            latency_goal,
            delta,
            ..
        }
        | BatchPolicy::OnOff {
            latency_goal,
            delta,
            ..
        } => Some(Goal {
            latency: latency_goal,
            delta,
        }),
        _ => None,
    }
}

/// The numbers of the tasks that a task waits for.
fn follows(tasks: &[OpenTask], task: &OpenTask) -> Vec<usize> {
    let words = task.after.needs.iter().map(|need| need.words.first);
    let mut follows: Vec<usize> = words
        .filter_map(|word| tasks.iter().position(|it| it.word == word))
        .collect();
    follows.sort_unstable();
    follows.dedup();
    follows
}
