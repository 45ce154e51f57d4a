//! A model gets the features that its bundle names: the series in the records equal the reference
//! extractor's, for both units and all features, and the labels equal what Python's `onnxruntime`
//! gives for these series.
//!
//! Two trained bundles take part (`tests/bundles`): one with `unit = "data"` and K = 3, one with
//! signed lengths and inter-arrival times. Two more ask for all features of 32 elements; their
//! model is never run.

use crate::common;
mod reference;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::root;
use reference::{Capture, Series, captures};
use serde_json::{Value, json};

/// Flows that nothing ends, as the reference has them.
const REFERENCE_LIFETIMES: [&str; 6] = [
    "--set",
    "flow.idle_timeout_s=0",
    "--set",
    "flow.active_timeout_s=0",
    "--set",
    "flow.end_on_fin_rst=false",
];

const FEATURES: [&str; 4] = ["signed_length", "payload_length", "inter_arrival_us", "tcp_flags"];

/// A trained bundle.
fn trained(name: &str) -> PathBuf {
    root().join("tests/bundles").join(name)
}

/// A bundle in `dir` for all features of 32 elements, around a model that is never run.
fn of_all_features(dir: &Path, unit: &str) -> PathBuf {
    let path = dir.join(unit);
    let from = trained("data-k3");
    std::fs::create_dir_all(path.join("golden")).expect("a folder");
    std::fs::copy(from.join("model.onnx"), path.join("model.onnx")).expect("a model");
    let manifest = std::fs::read_to_string(from.join("model.toml")).expect("a manifest");
    let lines = |line: &str| match line.split(' ').next() {
        Some("k") => "k = 32\n".to_owned(),
        Some("unit") => format!("unit = {unit:?}\n"),
        Some("features") => format!("features = {FEATURES:?}\n"),
        _ => format!("{line}\n"),
    };
    let manifest: String = manifest.lines().map(lines).collect();
    let classes = manifest.matches("[[labels]]").count();
    let zeros = |count: usize| vec!["0"; count].join(",");
    for (file, text) in [
        ("model.toml", manifest),
        ("golden/inputs.csv", zeros(32 * FEATURES.len())),
        ("golden/outputs.csv", zeros(classes)),
    ] {
        std::fs::write(path.join(file), text).expect("a file of the bundle");
    }
    path
}

/// The unit, K and features that a bundle declares.
struct Asked {
    unit: String,
    k: usize,
    features: Vec<String>,
}

impl Asked {
    fn from_manifest(bundle: &Path) -> Asked {
        let text = std::fs::read_to_string(bundle.join("model.toml")).expect("a manifest");
        let manifest: toml::Table = text.parse().expect("TOML");
        let features = manifest["features"].as_array().expect("a list");
        let text = |value: &toml::Value| value.as_str().expect("a text").to_owned();
        Asked {
            unit: text(&manifest["unit"]),
            k: manifest["k"].as_integer().expect("a number") as usize,
            features: features.iter().map(text).collect(),
        }
    }

    /// The fields of a record that hold this series.
    fn fields(&self, series: &Series) -> Value {
        let series = series.first(self.k);
        let with = |feature: &str, numbers: &[i64]| {
            let is_asked = self.features.iter().any(|it| it == feature);
            if is_asked { json!(numbers) } else { Value::Null }
        };
        // Records with series always have lengths and times.
        json!([
            series.lengths,
            series.offsets_us,
            with("payload_length", &series.payloads),
            with("inter_arrival_us", &series.gaps_us()),
            with("tcp_flags", &series.flags),
        ])
    }
}

/// The same fields of a flow record.
fn recorded(record: &Value) -> Value {
    json!([
        record["series"],
        record["series_us"],
        record["series_payload"],
        record["series_inter_arrival_us"],
        record["series_tcp_flags"],
    ])
}

/// Replays a capture with the bundle, on the device that starts quickly, and returns the flows
/// whose series differ from the reference.
fn differences(bundle: &Path, asked: &Asked, capture: &Capture) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a folder");
    let flows = dir.path().join("flows.jsonl");
    let mut replay = common::fenxi(["replay", "--series", "--json", "--flows"]);
    replay.arg(&flows).arg("--model").arg(bundle);
    replay.args(["--set", "flow.max_flows=8192"]);
    replay.args(REFERENCE_LIFETIMES).args(common::SIMULATED);
    let finished = common::run({
        replay.arg(&capture.path);
        replay
    });
    // 65: the capture is damaged, which the reference has seen too.
    assert!(matches!(finished.code, 0 | 65), "{}", finished.stderr);
    let mut found: Vec<Value> = common::json_lines(&flows);
    // The reference knows no ICMP.
    let is_known = |proto: &Value| proto == 6 || proto == 17;
    found.retain(|record| record["type"] == "flow" && is_known(&record["proto"]));
    found.sort_by_key(|record| record["flow_id"].as_u64());
    assert_eq!(found.len(), capture.flows.len(), "{}", capture.path.display());
    let mut different = Vec::new();
    let mut complete = 0;
    for (number, (record, flow)) in found.iter().zip(&capture.flows).enumerate() {
        let series = flow.of_unit(&asked.unit);
        let (expected, found) = (asked.fields(series), recorded(record));
        complete += usize::from(series.lengths.len() >= asked.k);
        if expected != found {
            eprintln!("{} {number}: expected {expected}\n  found {found}", capture.path.display());
            different.push(format!("{}/{number}", capture.path.display()));
        }
    }
    // Series that are complete are emitted, unless the flow begins mid-stream.
    let series = &finished.json()["series"];
    let emitted = series["emitted"].as_u64().zip(series["withheld"].as_u64());
    let (emitted, withheld) = emitted.expect("counts");
    assert_eq!(emitted + withheld, complete as u64, "{}: {series}", capture.path.display());
    different
}

/// [`differences`] of all captures, two at a time.
fn assert_series_are_those_of_the_reference(bundle: &Path, captures: &[Capture]) {
    let asked = Asked::from_manifest(bundle);
    let (next, different) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(capture) = captures.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = differences(bundle, &asked, capture);
                    different.lock().expect("no panic").extend(found);
                }
            });
        }
    });
    let different = different.into_inner().expect("no panic");
    assert!(different.is_empty(), "{}: {different:?}", bundle.display());
}

#[test]
fn series_are_those_of_the_reference_for_both_units_and_all_features() {
    let test = "series_are_those_of_the_reference_for_both_units_and_all_features";
    let Some(data) = common::shared("") else {
        return common::skip(test, "the shared captures and their reference");
    };
    let captures = captures(&data);
    assert!(captures.len() > 400, "only {} captures", captures.len());
    let dir = tempfile::tempdir().expect("a folder");
    for bundle in [
        trained("data-k3"),
        trained("times-k10"),
        of_all_features(dir.path(), "packet"),
        of_all_features(dir.path(), "data"),
    ] {
        assert_series_are_those_of_the_reference(&bundle, &captures);
    }
}

/// Python with `onnxruntime`, if it and fenxi's own library are there.
fn python(test: &str) -> Option<PathBuf> {
    if !common::has_onnxruntime() {
        common::skip(test, "ONNX Runtime (make onnxruntime)");
        return None;
    }
    let python = root().join("target/venv/bin/python");
    if !python.exists() {
        common::skip(test, "target/venv (make target/venv)");
        return None;
    }
    Some(python)
}

/// All captures in one replay, in batches of all kinds.
#[test]
fn labels_are_pythons() {
    let test = "labels_are_pythons";
    let Some(data) = common::shared("captures/train") else {
        return common::skip(test, "the shared captures");
    };
    let Some(python) = python(test) else {
        return;
    };
    let files = std::fs::read_dir(data).expect("a folder of captures");
    let mut captures: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    captures.sort();
    let dir = tempfile::tempdir().expect("a folder");
    let bundles = [
        (trained("data-k3"), 500),
        (trained("times-k10"), 500),
        // With depths, a second input and ports.
        (root().join("models/protocol"), 2000),
        (root().join("models/protocol-int8"), 2000),
        // Trees.
        (root().join("models/iot-family"), 2000),
        (root().join("models/fenxi-cnn-k10"), 1000),
    ];
    for (bundle, least) in bundles {
        let name = bundle.display();
        let flows = dir.path().join("flows.jsonl");
        let mut replay = common::fenxi(["replay", "--series", "--json", "--flows"]);
        replay.arg(&flows).arg("--model").arg(&bundle).args(common::ONNXRUNTIME);
        replay.args(REFERENCE_LIFETIMES);
        for set in [
            "ring.slots=16",
            "io.burst=1",
            "analytics.batch_sizes=[1, 3, 7, 16]",
            "analytics.timeout_ms=1",
        ] {
            replay.args(["--set", set]);
        }
        replay.args(&captures);
        let summary = common::run(replay).expect_code(0).json();
        let mut check = Command::new(&python);
        check.arg(root().join("scripts/test/check_labels.py"));
        let output = check.arg(&bundle).arg(&flows).output();
        let output = output.expect("Python starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}{errors}");
        let labels = summary["labels"].as_object().expect("counts by label");
        let compared: u64 = labels.values().filter_map(Value::as_u64).sum();
        assert!(
            said.contains(&format!("compared {compared}, differences 0")),
            "{name}: {compared} labelled: {said}"
        );
        assert!(compared >= least, "{name}: only {compared} labels");
    }
}

/// K is the bundle's; a `flow.k` that asks for another is refused.
#[test]
fn k_follows_the_bundle() {
    let check = |sets: &[&str]| {
        let mut check = common::fenxi(["check", "--config-only", "--set"]);
        check.arg(format!("model.path={:?}", trained("data-k3")));
        for set in sets {
            check.args(["--set", set]);
        }
        check.args(common::SIMULATED);
        common::run(check)
    };
    let drawn = check(&[]).expect_code(0).stdout;
    assert!(drawn.contains("\nasked     after 3 packets with payload\n"), "{drawn}");
    check(&["flow.k=3"]).expect_code(0);
    let refused = check(&["flow.k=5"]).expect_code(78).stderr;
    assert!(
        refused.contains("--set: flow.k = 5: the model ")
            && refused.contains("wants k = 3 packets; set flow.k = 3"),
        "{refused}"
    );
}
