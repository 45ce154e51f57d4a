//! Profiles that a start measures, what the next start does with them, and what a run does whose
//! profile is wrong.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};

/// Plans by profiles of the CPU. The goal leaves room for a profile that is far too slow.
const PLANS: [&str; 12] = [
    "--set",
    "io.interfaces=[\"b\"]",
    "--set",
    "flow.idle_timeout_s=1",
    "--set",
    "analytics.policy=\"slo\"",
    "--set",
    "analytics.latency_goal_ms=50",
    "--set",
    "accel.devices=[\"cpu\"]",
    "--set",
    "log.level=info,fenxi::profiles=debug",
];

fn lab(name: &str) -> Option<Lab> {
    if !common::has_onnxruntime() {
        common::skip(name, "ONNX Runtime");
        return None;
    }
    let lab = Lab::new(name, &["host"], &[])?;
    lab.wire_within("host", "a", "b");
    Some(lab)
}

/// A run with the folder of systemd's unit.
fn start(lab: &Lab, cache: &Path) -> Live {
    let mut command = fenxi_on(lab, "host", &[]);
    command.env("CACHE_DIRECTORY", cache);
    Live::launch(command, &PLANS)
}

fn only_file(cache: &Path) -> PathBuf {
    let files = fs::read_dir(cache.join("profiles")).unwrap();
    let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn a_second_start_does_not_measure_again() {
    let Some(lab) = lab("a_second_start_does_not_measure_again") else {
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    let first = start(&lab, cache.path());
    assert_eq!((first.said("; measured in "), first.said("WARN")), (1, 0));
    first.terminate(0);
    let file = only_file(cache.path());
    let written = || fs::metadata(&file).unwrap().modified().unwrap();
    let (text, before) = (fs::read_to_string(&file).unwrap(), written());
    let second = start(&lab, cache.path());
    assert_eq!(second.said("; measured in "), 0);
    assert_eq!(second.said("; an earlier start measured it: "), 1);
    let profile = second.samples("fenxi_device_profile_seconds");
    assert_eq!(profile.len(), 2, "{profile:?}");
    second.terminate(0);
    assert_eq!(written(), before);
    // After an upgrade, or with half of a file.
    for damaged in
        [text.replace("library = \"", "library = \"0."), text[..text.len() / 2].to_owned()]
    {
        fs::write(&file, damaged).unwrap();
        let third = start(&lab, cache.path());
        assert_eq!((third.said("it is ignored"), third.said("; measured in ")), (1, 1));
        third.terminate(0);
        let again = fs::read_to_string(only_file(cache.path())).unwrap();
        assert!(again.contains("origin = \"measured\""), "{again}");
    }
}

#[test]
fn a_profile_that_does_not_hold_is_said_and_stored_anew() {
    let Some(lab) = lab("a_profile_that_does_not_hold_is_said_and_stored_anew") else {
        return;
    };
    let cache = tempfile::tempdir().unwrap();
    start(&lab, cache.path()).terminate(0);
    let file = only_file(cache.path());
    // As if the device had been slower then by far.
    let text = fs::read_to_string(&file).unwrap();
    let slower = |line: &str| match line.split_once(" = ") {
        Some(("t0_us", _)) => "t0_us = 9000.0".to_owned(),
        _ => line.to_owned(),
    };
    let text: Vec<String> = text.lines().map(slower).collect();
    fs::write(&file, text.join("\n")).unwrap();
    let live = start(&lab, cache.path());
    // A drift must last for some seconds of batches.
    let stored = "; the next start begins with that: ";
    for _ in 0..60 {
        crate::live::generate(&lab, 1000, 500);
        if live.said(stored) > 0 {
            break;
        }
    }
    live.wait_for("a drift", |live| live.said(stored) > 0);
    assert!(live.metric_sum("fenxi_device_profile_drifts_total") >= 1.0);
    live.terminate(0);
    let text = fs::read_to_string(only_file(cache.path())).unwrap();
    let t0_us = text.lines().find_map(|line| line.strip_prefix("t0_us = "));
    let t0_us: f64 = t0_us.unwrap().parse().unwrap();
    assert!(text.contains("origin = \"run\"") && t0_us < 6000.0, "{text}");
    let next = start(&lab, cache.path());
    assert_eq!(next.said("; an earlier run found it: "), 1);
    next.terminate(0);
}
