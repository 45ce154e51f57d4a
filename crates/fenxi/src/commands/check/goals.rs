//! The latency goals of all tasks beside each other: which cannot hold in the worst case, and which tasks leave devices to others.

use std::time::Duration;

use accel::Profile;
use config::checked::{Device, Provider};
use dataplane::goals::{Goals, OutOfReach, goals};
use dataplane::profiles::profile_of_file;
use dataplane::tasks::OpenTask;

use super::finding::{Finding, Level};

const CHECK: &str = "goal";

/// What batches of a task take on a device, by the numbers and names of both.
pub type Measured = Vec<(usize, String, Profile)>;

/// Judges the goals by files of profiles, by simulated devices and by what was measured. Nothing is said where no task has a goal,
/// or where a profile is not known.
pub fn look(tasks: &[OpenTask], measured: &Measured) -> Vec<Finding> {
    let profile = |number: usize, device: &Device| profile(tasks, measured, number, device);
    match goals(tasks, profile) {
        Ok(Some(goals)) => findings(tasks, &goals),
        Ok(None) => Vec::new(),
        Err(error) => vec![Finding::warning(
            CHECK,
            "",
            format!("{error}; no goal is planned for"),
        )],
    }
}

/// What is amiss, for the page of `fenxi check`, a line each.
pub fn lines(findings: &[Finding]) -> String {
    let amiss = findings.iter().filter(|it| it.level != Level::Ok);
    let line = |it: &Finding| format!("\nwarning: goal of task {}: {}\n", it.subject, it.cause);
    amiss.map(line).collect()
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
    if device.provider == Provider::Simulated {
        return Some(device.simulated);
    }
    let mut measured = measured.iter();
    measured
        .find(|(task, name, _)| *task == number && *name == device.name)
        .map(|(_, _, profile)| *profile)
}

fn findings(tasks: &[OpenTask], goals: &Goals) -> Vec<Finding> {
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
    if goals.out_of_reach.is_empty() {
        let with_goal = tasks
            .iter()
            .filter(|task| task.config.analytics.policy.plans());
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

fn out_of_reach(it: &OutOfReach) -> Finding {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (turnaround, goal) = (ms(it.turnaround), ms(it.goal));
    let with = it.with.join(", ");
    let cause = match it.with.len() {
        1 => format!(
            "{goal} ms cannot be promised: its largest batch takes {turnaround:.1} ms; smaller batches (task.{}.batch_sizes) or a \
             longer goal",
            it.task
        ),
        _ => format!(
            "{goal} ms cannot be promised: on its device the largest batches of {with} take {turnaround:.1} ms together; \
             give the slow ones another device (task.NAME.devices) or smaller batches (task.NAME.batch_sizes), or this one a \
             longer goal"
        ),
    };
    Finding::warning(CHECK, &it.task, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_out_of_reach_names_the_tasks_and_the_cure() {
        let of = |with: &[&str]| OutOfReach {
            task: "a".to_owned(),
            with: with.iter().map(|name| (*name).to_owned()).collect(),
            turnaround: Duration::from_micros(5_250),
            goal: Duration::from_millis(2),
        };
        let alone = out_of_reach(&of(&["a"])).cause;
        assert!(
            alone.starts_with("2 ms cannot be promised: its largest batch takes 5.2 ms"),
            "{alone}"
        );
        let shared = out_of_reach(&of(&["a", "b"])).cause;
        assert!(
            shared.contains("batches of a, b take 5.2 ms together"),
            "{shared}"
        );
        assert!(shared.contains("task.NAME.devices"), "{shared}");
    }
}
