//! The latency goals of all tasks beside each other: which cannot hold in the worst case, and which
//! tasks leave devices to others.

mod reach;

use std::collections::BTreeMap;
use std::time::Duration;

use accel::Profile;
use config::checked::Device;
use dataplane::profiles::profile_of_file;
use dataplane::tasks::OpenTask;

use super::finding::Finding;
use reach::{Goals, OutOfReach, goals};

const CHECK: &str = "goal";

/// What batches of a task take on a device, by the numbers and names of both.
pub type Measured = BTreeMap<(usize, String), Profile>;

/// Judges the goals by files of profiles, by simulated devices and by what was measured; `None`:
/// nothing was. There are no findings if no task has a goal. Devices without a profile are named
/// only if they should have been measured.
pub fn findings(tasks: &[OpenTask], measured: Option<&Measured>) -> Vec<Finding> {
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
        let with_goal = tasks.iter().filter(|task| task.config.analytics.policy.plans());
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

/// One task has its device for itself.
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

/// Several tasks wait for each other.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(with: &[&str], waits_for: Option<&str>, shares_thread: bool) -> String {
        let it = OutOfReach {
            task: "a".to_owned(),
            waits_for: waits_for.map(str::to_owned),
            with: with.iter().map(|name| (*name).to_owned()).collect(),
            shares_thread,
            turnaround: Duration::from_micros(5_250),
            goal: Duration::from_millis(2),
        };
        out_of_reach(&it).cause
    }

    #[test]
    fn a_goal_out_of_reach_names_the_tasks_and_the_cure() {
        for (cause, says) in [
            (
                of(&["a"], None, false),
                "2 ms cannot be promised: its largest batch takes 5.2 ms; use smaller batches \
                 (task.a.batch_sizes) or a longer goal",
            ),
            (
                of(&["b"], Some("b"), false),
                "the largest batch of b, for which it waits, takes 5.2 ms; use smaller batches \
                 (task.b.batch_sizes) or a longer goal",
            ),
            (
                of(&["a", "b"], None, false),
                "on its device the largest batches of a, b take 5.2 ms together; give the slow \
                 ones another device (task.NAME.devices) or",
            ),
            (
                of(&["b", "c"], Some("b"), false),
                "on the device of b, for which it waits, the largest batches of b, c take 5.2 ms \
                 together; give the slow ones",
            ),
            (
                of(&["a", "b"], None, true),
                "on its thread the largest batches of a, b take 5.2 ms together; give the devices \
                 threads of their own \
                 (device.NAME.thread = \"own\") or smaller batches",
            ),
        ] {
            assert!(cause.contains(says), "{cause}");
        }
    }

    #[test]
    fn devices_without_a_profile_are_named() {
        let mut goals = Goals::default();
        assert_eq!(without_profile(&goals), None);
        goals.without_profile.insert("npu".to_owned());
        let cause = without_profile(&goals).unwrap().cause;
        assert!(cause.contains("because device npu has no profile"), "{cause}");
    }
}
