//! Labels equal what Python's `onnxruntime` gives for the same series.
//!
//! `scripts/test/check_labels.py` reads flow records with their series, runs the bundle's
//! model over them all in one batch, and holds class and confidence against the
//! records. So it checks the way from packet to label word and back: lengths and
//! signs, the order within batches, which flow a result belongs to. In fp32 and in int8.
//! Flows that begin mid-stream have a label only where the bundle says so.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::packets::{capture, read_capture};
use common::root;
use packetio::CaptureFormat;

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

/// Replays `captures` in one run with the model in `bundle` and compares the labels. Returns how
/// many flows were compared, after holding it against the number of flows that have a series.
fn compare(python: &Path, bundle: &Path, captures: &[PathBuf], sets: &[&str]) -> u64 {
    let dir = tempfile::tempdir().expect("a folder");
    let flows = dir.path().join("flows.jsonl");
    let mut replay = common::fenxi(["replay", "--series", "--json", "--flows"]);
    replay.arg(&flows).arg("--model").arg(bundle).args(captures).args(common::ONNXRUNTIME);
    for set in sets {
        replay.args(["--set", set]);
    }
    let summary = common::run(replay).expect_code(0).json();
    let withheld = summary["series"]["withheld"].as_u64().expect("a count");
    if withheld > 0 {
        assert_no_label_midstream(&flows, withheld);
    }

    let mut check = Command::new(python);
    check.arg(root().join("scripts/test/check_labels.py"));
    check.arg(bundle).arg(&flows);
    let output = check.output().expect("Python starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let compared = said
        .lines()
        .find_map(|line| line.strip_prefix("compared ")?.split(',').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no count in: {said}"));
    assert_eq!(summary["series"]["inferred"], compared, "{said}");
    assert_eq!(summary["series"]["emitted"], compared, "{said}");
    compared
}

/// As many flows that began mid-stream as were not asked about have a whole series; and none of
/// them has a label.
fn assert_no_label_midstream(records: &Path, withheld: u64) {
    let k = 10;
    let mut whole = 0;
    for flow in common::json_lines(records) {
        if flow["type"] == "flow" && flow["midstream"] == true {
            assert!(flow["label"].is_null(), "{flow}");
            let series = flow["series"].as_array().expect("a series");
            whole += u64::from(series.len() == k && flow["final"] == true);
        }
    }
    assert_eq!(whole, withheld);
}

#[test]
fn every_label_of_the_demo_is_pythons() {
    let Some(python) = python("every_label_of_the_demo_is_pythons") else {
        return;
    };
    for bundle in [common::bundle(), common::int8_bundle()] {
        let compared = compare(&python, &bundle, &[common::demo()], &[]);
        assert!(compared >= 100, "the demo has {compared} flows with a label");
    }
}

/// Flows of many sources and sizes, in one replay: with 16 slots in the ring and
/// sizes that do not divide each other, in batches of all kinds.
#[test]
fn a_thousand_labels_of_the_shared_captures_are_pythons() {
    let test = "a_thousand_labels_of_the_shared_captures_are_pythons";
    let Some(folder) = common::shared("captures/train") else {
        common::skip(test, "the shared captures");
        return;
    };
    let Some(python) = python(test) else {
        return;
    };
    let files = std::fs::read_dir(folder).expect("a folder of captures");
    let mut captures: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    captures.sort();
    let sets = [
        "flow.idle_timeout_s=0",
        "flow.end_on_fin_rst=false",
        "ring.slots=16",
        "io.burst=1",
        "analytics.batch_sizes=[1, 3, 7, 16]",
        "analytics.timeout_ms=1",
    ];
    let dir = tempfile::tempdir().expect("a folder");
    for bundle in [common::bundle(), common::int8_bundle()] {
        let all = common::trained_midstream(&bundle, dir.path());
        let all = compare(&python, &all, &captures, &sets);
        assert!(all >= 1000, "only {all} flows with a label");
        let begun = compare(&python, &bundle, &captures, &sets);
        assert!(begun < all && begun >= 500, "{begun} flows of {all}");
    }
}

/// Alone, in pairs, in odd batches or all at once: the records are the same, byte for byte.
#[test]
fn int8_labels_do_not_depend_on_the_batch() {
    if !common::has_onnxruntime() {
        return common::skip("int8_labels_do_not_depend_on_the_batch", "ONNX Runtime");
    }
    let records = |sizes: &str| {
        let dir = tempfile::tempdir().expect("a folder");
        let flows = dir.path().join("flows.jsonl");
        let mut replay = common::fenxi(["replay", "--series", "--flows"]);
        replay.arg(&flows).arg("--model").arg(common::int8_bundle()).args(common::ONNXRUNTIME);
        replay.arg("--set").arg(format!("analytics.batch_sizes={sizes}"));
        replay.arg(common::demo());
        common::run(replay).expect_code(0);
        std::fs::read_to_string(flows).expect("records are there")
    };
    let expected = records("[1024]");
    assert!(expected.contains("confidence"), "nothing to compare");
    for sizes in ["[1]", "[2]", "[3, 7]", "[64]"] {
        assert!(records(sizes) == expected, "batches of {sizes}");
    }
}

/// The demo's SSH, as from a server at this port instead of 22.
fn ssh_at(port: u16) -> Vec<u8> {
    let mut frames = read_capture(&common::demo());
    frames.retain_mut(|(_, bytes)| {
        // Ethernet, then IPv4 without options, or IPv6 without extension headers.
        let tcp = match (&bytes[12..14], bytes.get(23), bytes.get(20)) {
            ([0x08, 0x00], Some(6), _) => 34,
            ([0x86, 0xdd], _, Some(6)) => 54,
            _ => return false,
        };
        let ends = [tcp, tcp + 2].map(|at| at..at + 2);
        let server = ends.into_iter().find(|at| bytes[at.clone()] == [0, 22]);
        server.is_some_and(|at| {
            bytes[at].copy_from_slice(&port.to_be_bytes());
            true
        })
    });
    capture(CaptureFormat::Pcap { nanosecond: false }, &frames)
}

/// Off its usual port SSH is named by its lengths, and on the port of another protocol these
/// contradict the port.
#[test]
fn ssh_is_named_on_any_port_and_marked() {
    let dir = tempfile::tempdir().expect("a folder");
    for (port, contradicting) in [(22, 0), (2222, 0), (443, 11)] {
        let [ssh, flows, tagged] =
            ["ssh.pcap", "flows.jsonl", "tagged.pcap"].map(|name| dir.path().join(name));
        std::fs::write(&ssh, ssh_at(port)).expect("a capture");
        for model in ["protocol", "protocol-int8"] {
            let mut replay = common::fenxi(["replay", "--json", "--flows"]);
            replay.arg(&flows).arg("--write").arg(&tagged).arg(&ssh);
            replay.arg("--model").arg(root().join("models").join(model));
            let summary = common::run(replay).expect_code(0).json();
            let records = common::json_lines(&flows);
            let ended = records.iter().filter(|it| it["type"] == "flow");
            let ended: Vec<_> = ended.collect();
            assert_eq!(ended.len(), 11);
            assert!(ended.iter().all(|it| it["label"] == "SSH"), "{ended:?}");
            let against = ended.iter().filter(|it| it["contradicts"] == true);
            assert_eq!(against.count(), contradicting);
            assert_eq!(summary["labels"]["SSH"], 11);
            assert_eq!(common::sum(&summary["labels"]), 11, "{summary}");
            let before = read_capture(&ssh);
            let after = read_capture(&tagged);
            let is_marked = before.iter().zip(&after).any(|(a, b)| a.1 != b.1);
            assert_eq!((is_marked, before.len()), (true, after.len()));
            for file in [&flows, &tagged] {
                std::fs::remove_file(file).expect("was written");
            }
        }
    }
}
