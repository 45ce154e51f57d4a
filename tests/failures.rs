//! Devices that fail and models that are exchanged, while a capture is replayed: the packets go on,
//! and every series has exactly one fate.

use crate::common;

use std::path::Path;

use serde_json::Value;

/// What is injected into the first device. A run is a batch, and small batches make many.
const FAULTS: [&str; 8] = [
    "error=2",
    "error-every=3",
    "hang=2:200",
    "hang=1:3600000",
    "vanish=3",
    "nan=2",
    "shape=2",
    "slow=100",
];

/// A replay whose first device has these faults. It works on a thread of its own, or a hang could
/// not be ended.
fn with_faults(faults: &str, layout: &str, speed: &str) -> Value {
    let mut command = common::fenxi_asking_once(["replay", "--json", "--speed", speed]);
    command.arg(common::demo());
    let layout = format!("pipeline.layout={layout}");
    let faults = format!("device.bad.faults={faults}");
    let devices = match layout.ends_with('2') {
        true => "accel.devices=[\"bad\", \"simulated\"]",
        false => "accel.devices=[\"bad\"]",
    };
    for set in [
        &layout,
        &faults,
        devices,
        "device.bad.provider=simulated",
        "device.bad.thread=own",
        "device.bad.deadline_ms=20",
        "analytics.batch_sizes=[1, 4]",
        "analytics.timeout_ms=0.5",
        "flow.max_flows=16384",
        "ring.slots=16",
        "io.burst=4",
    ] {
        command.args(["--set", set]);
    }
    common::run(command).expect_code(0).json()
}

fn series(summary: &Value, fate: &str) -> u64 {
    summary["series"][fate].as_u64().expect("a count")
}

#[track_caller]
fn assert_balanced(summary: &Value, at: &str) {
    assert_eq!(common::sum(&summary["verdicts"]), summary["packets"], "{at}");
    let ended = common::sum(&summary["flows"]["ended"]);
    assert_eq!(summary["flows"]["begun"], ended, "{at}");
    let fates = ["cached", "inferred", "shed", "failed"].map(|fate| series(summary, fate));
    assert_eq!(fates.iter().sum::<u64>(), series(summary, "emitted"), "{at}");
    assert_eq!(summary["packets"], common::demo_packets(), "{at}");
}

#[test]
fn whatever_a_device_does_the_sums_balance() {
    for faults in FAULTS {
        for (layout, speed) in [("1:1:1", "max"), ("1:1:2", "max"), ("1:1:2", "2000x")] {
            let at = format!("{faults}, {layout}, {speed}");
            let summary = with_faults(faults, layout, speed);
            assert_balanced(&summary, &at);
            let device = &summary["devices"][0];
            // Beside a second device it may have had too few batches; slow is within the deadline
            // or not.
            if layout != "1:1:1" || faults == "slow=100" {
                continue;
            }
            let failures = common::sum(&device["failures"]);
            assert!(failures > 0, "{at}: {summary}");
            assert!(device["last_error"].is_string(), "{at}: {device}");
            assert!(device["went_down"].as_u64() > Some(0), "{at}: {device}");
        }
    }
}

/// What the bad device failed on is tried once on the other one, which gives the label.
#[test]
fn a_second_device_takes_over() {
    for faults in ["error-every=2", "nan=1", "vanish=1"] {
        let summary = with_faults(faults, "1:1:2", "max");
        assert!(series(&summary, "retried") > 0, "{faults}: {summary}");
        assert_eq!(series(&summary, "failed"), 0, "{faults}: {summary}");
        assert_eq!(series(&summary, "shed"), 0, "{faults}: {summary}");
    }
}

/// With no device left nobody waits: the series are given up, by name, and the flows stay without a
/// label.
#[test]
fn without_a_device_series_are_shed_and_packets_go_on() {
    let summary = with_faults("vanish=1", "1:1:1", "max");
    assert_eq!(series(&summary, "inferred"), 0, "{summary}");
    assert!(series(&summary, "failed_no_other_device") > 0, "{summary}");
    assert!(series(&summary, "shed_no_device") > 0, "{summary}");
    assert_eq!(common::sum(&summary["labels"]), 0, "{summary}");
}

/// A long replay of the demo with `other` coming in at this interval: its records, without what may
/// differ from run to run, and the summary.
fn swapped(model: &Path, loops: &str, other: Option<(&Path, &str)>) -> (Vec<String>, Value) {
    let dir = tempfile::tempdir().expect("a folder");
    let flows = dir.path().join("flows.jsonl");
    let mut command = common::fenxi(["replay", "--json", "--loop", loops, "--flows"]);
    command.arg(&flows).arg("--model").arg(model).arg(common::demo());
    command.args(["--set", "flow.max_flows=65536", "--set", "pipeline.layout=1:2:2"]);
    if let Some((other, every_ms)) = other {
        command.args(["--swap-every", every_ms, "--swap-model"]).arg(other);
    }
    let summary = common::run(command).expect_code(0).json();
    let lines = common::json_lines(&flows).into_iter().map(|mut record| {
        let fields = record.as_object_mut().expect("an object");
        fields.remove("model_generation");
        record.to_string()
    });
    (lines.collect(), summary)
}

/// The same model again and again: nothing is lost, and no label is another one. A flow of several
/// depths gets no further answer two swaps after its first, so these are further apart than such a
/// flow's packets, which pass in some ten milliseconds, and than a busy machine lets them wait.
#[test]
fn an_exchange_of_the_model_loses_nothing() {
    for (model, loops, every_ms) in
        [(common::bundle(), "200", "1"), (common::shipped_bundle(), "400", "1000")]
    {
        let (expected, unswapped) = swapped(&model, loops, None);
        let (records, summary) = swapped(&model, loops, Some((&model, every_ms)));
        assert!(summary["swaps"]["done"].as_u64() > Some(0), "{summary}");
        assert_eq!(summary["swaps"]["refused"], 0, "{summary}");
        assert!(records == expected, "records differ");
        assert_eq!(summary["series"], unswapped["series"]);
    }
}

/// A copy of the shipped bundle with one text of its manifest replaced.
fn changed_bundle(dir: &Path, from: &str, to: &str) {
    let copy = |folder: &str| {
        std::fs::create_dir_all(dir.join(folder)).expect("a folder");
        for entry in std::fs::read_dir(common::bundle().join(folder)).expect("the bundle") {
            let entry = entry.expect("a file").path();
            if entry.is_file() {
                let name = entry.file_name().expect("a name");
                std::fs::copy(&entry, dir.join(folder).join(name)).expect("a copy");
            }
        }
    };
    copy("");
    copy("golden");
    let manifest = dir.join("model.toml");
    let text = std::fs::read_to_string(&manifest).expect("the manifest");
    assert!(text.contains(from), "{from} is not in the manifest");
    std::fs::write(&manifest, text.replacen(from, to, 1)).expect("a manifest");
}

/// What cannot come in is named, and the old model goes on.
#[test]
fn a_model_that_does_not_fit_is_refused_under_way() {
    let dir = tempfile::tempdir().expect("a folder");
    let other_label = dir.path().join("label");
    changed_bundle(&other_label, "\"TLS\"", "\"SSL\"");
    let other_hash = dir.path().join("hash");
    changed_bundle(&other_hash, "sha256 = \"", "sha256 = \"0");
    let trained_midstream = common::trained_midstream(&common::bundle(), dir.path());
    let nowhere = dir.path().join("nowhere");
    let (expected, _) = swapped(&common::bundle(), "200", None);
    for (bundle, reason) in [
        (&other_label, "the labels are"),
        (&other_hash, "sha256"),
        (&trained_midstream, "midstream is true"),
        (&nowhere, "nowhere"),
    ] {
        let (records, summary) = swapped(&common::bundle(), "200", Some((bundle, "1")));
        let swaps = &summary["swaps"];
        assert_eq!(swaps["done"], 0, "{swaps}");
        assert!(swaps["refused"].as_u64() > Some(0), "{swaps}");
        let said = swaps["last_refusal"].as_str().expect("a reason");
        assert!(said.contains(reason), "{reason}: {said}");
        assert!(records == expected, "records differ: {reason}");
    }
}

#[test]
fn the_threshold_of_a_class_makes_it_unknown() {
    let labels = |sets: &[&str]| -> Value {
        let mut command =
            common::fenxi_asking_once(["replay", "--json", "--set", "flow.max_flows=16384"]);
        command.arg(common::demo());
        for set in sets {
            command.args(["--set", set]);
        }
        common::run(command).expect_code(0).json()["labels"].take()
    };
    let count = |labels: &Value, label: &str| labels[label].as_u64().expect("a count");
    let plain = labels(&[]);
    let strict = labels(&["model.class_confidence.TLS=1"]);
    let unknown = count(&plain, "unknown") + count(&plain, "TLS") - count(&strict, "TLS");
    assert!(count(&strict, "TLS") < count(&plain, "TLS"), "{strict}");
    assert_eq!(count(&strict, "unknown"), unknown);
    // The class's own threshold overrides the general one, and unknown can be mapped.
    let all = labels(&[
        "model.min_confidence=1",
        "model.class_confidence.HTTP=0",
        "tag.dscp.unknown=CS1",
    ]);
    assert!(count(&all, "HTTP") >= count(&plain, "HTTP") && count(&all, "HTTP") > 0);

    let mut command =
        common::fenxi_asking_once(["replay", "--set", "model.class_confidence.TSL=0.5"]);
    command.arg(common::demo());
    let refused = common::run(command).expect_code(78);
    let message = "--set: model.class_confidence: the model app-id-k10 has no label \"TSL\"";
    assert!(refused.stderr.contains(message), "{}", refused.stderr);
}
