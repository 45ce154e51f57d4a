//! Goals of tasks on simulated devices, whose profiles the tests name.

use std::path::Path;

use config::Config;

use super::*;

const S1: &str = "s1";

/// Tasks called a, b and so on with these keys; the devices s1, s2 and s3 have these profiles and
/// threads of their own.
fn judged(profiles: &[(&str, Option<f64>)], tasks: &[&[&str]], sets: &[&str]) -> Goals {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/app-id-k10"));
    let mut all: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    for (device, _) in profiles {
        all.push(format!("device.{device}.provider=simulated"));
        if !all.contains(&format!("device.{device}.thread=shared")) {
            all.push(format!("device.{device}.thread=own"));
        }
    }
    for (name, keys) in ('a'..='z').zip(tasks) {
        all.push(format!("task.{name}.model={}", model.display()));
        all.extend(keys.iter().map(|key| format!("task.{name}.{key}")));
    }
    let config = Config::load(None, &all).expect("a configuration");
    let tasks = OpenTask::open_all(&config, None).expect("tasks");
    let profile = |_: usize, device: &Device| {
        let known = profiles.iter().find(|(name, _)| *name == device.name);
        let t0_us = known.and_then(|(_, t0_us)| *t0_us)?;
        Some(Profile { t0_us, t1_us: 0.0 })
    };
    goals(&tasks, profile).expect("a graph").expect("a goal")
}

const GOAL: [&str; 2] = ["policy=slo", "latency_goal_ms=3"];

/// The tasks whose goals are out of reach, each with those whose batches take too long.
fn names(goals: &Goals) -> Vec<(&str, String)> {
    let all = goals.out_of_reach.iter();
    all.map(|it| (it.task.as_str(), it.with.join(" "))).collect()
}

#[test]
fn the_slowest_device_of_any_manager_counts() {
    let profiles = [(S1, Some(100.0)), ("s2", Some(100_000.0))];
    for layout in ["1:2:2", "1:1:2"] {
        for devices in ["devices=[\"s1\", \"s2\"]", "devices=[\"s2\", \"s1\"]"] {
            let layout = format!("pipeline.layout={layout}");
            let goals = judged(&profiles, &[&[GOAL[0], GOAL[1], devices]], &[&layout]);
            assert_eq!(names(&goals), [("a", "a".to_owned())], "{layout} {devices}");
            let turnaround = goals.out_of_reach[0].turnaround;
            assert_eq!(turnaround, Duration::from_millis(100));
        }
    }
}

#[test]
fn a_device_without_a_profile_leaves_what_the_others_take() {
    let profiles = [(S1, Some(5_000.0)), ("s2", None), ("s3", None)];
    let tasks: [&[&str]; 3] = [
        &[GOAL[0], GOAL[1], "devices=[\"s1\"]"],
        &[GOAL[0], GOAL[1], "devices=[\"s2\"]"],
        // Nobody with a goal waits for it.
        &["devices=[\"s3\"]"],
    ];
    let goals = judged(&profiles, &tasks, &[]);
    assert_eq!(names(&goals), [("a", "a".to_owned())]);
    assert_eq!(goals.without_profile, BTreeSet::from(["s2".to_owned()]));
}

#[test]
fn the_task_whose_batches_take_too_long_may_be_another() {
    let profiles = [(S1, Some(4_000.0)), ("s2", Some(100.0))];
    let tasks: [&[&str]; 2] =
        [&["devices=[\"s1\"]"], &[GOAL[0], GOAL[1], "devices=[\"s2\"]", "when=a.confidence < 0.9"]];
    let goals = judged(&profiles, &tasks, &[]);
    assert_eq!(names(&goals), [("b", "a".to_owned())]);
    assert_eq!(goals.out_of_reach[0].waits_for.as_deref(), Some("a"));
}

#[test]
fn different_devices_may_share_the_analytics_thread() {
    let profiles = [(S1, Some(2_000.0)), ("s2", Some(2_000.0))];
    let tasks: [&[&str]; 2] = [&[GOAL[0], GOAL[1], "devices=[\"s1\"]"], &["devices=[\"s2\"]"]];
    let shared = ["device.s1.thread=shared", "device.s2.thread=shared"];
    let goals = judged(&profiles, &tasks, &shared);
    assert_eq!(names(&goals), [("a", "a b".to_owned())]);
    assert!(goals.out_of_reach[0].shares_thread);
    assert_eq!(judged(&profiles, &tasks, &[]), Goals::default());
    // One device is no reason for another thread.
    let same: [&[&str]; 2] = [tasks[0], &["devices=[\"s1\"]"]];
    let goals = judged(&profiles, &same, &shared);
    assert!(!goals.out_of_reach[0].shares_thread);
}

fn sentence(with: &[&str], waits_for: Option<&str>, shares_thread: bool) -> String {
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
            sentence(&["a"], None, false),
            "2 ms cannot be promised: its largest batch takes 5.2 ms; use smaller batches \
             (task.a.batch_sizes) or a longer goal",
        ),
        (
            sentence(&["b"], Some("b"), false),
            "the largest batch of b, for which it waits, takes 5.2 ms; use smaller batches \
             (task.b.batch_sizes) or a longer goal",
        ),
        (
            sentence(&["a", "b"], None, false),
            "on its device the largest batches of a, b take 5.2 ms together; give the slow \
             ones another device (task.NAME.devices) or",
        ),
        (
            sentence(&["b", "c"], Some("b"), false),
            "on the device of b, for which it waits, the largest batches of b, c take 5.2 ms \
             together; give the slow ones",
        ),
        (
            sentence(&["a", "b"], None, true),
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
