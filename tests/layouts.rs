//! Layouts: in each, a flow gets the label that it gets in a 1:1:1 pipeline.
//!
//! The shipped configurations and further layouts replay the same captures. Records come in another
//! order from run to run where several flow managers write them, so they are compared as sets. Only
//! the flow's number may differ between layouts.

use crate::common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

/// A layout as the command line asks for it.
const LAYOUTS: [&[&str]; 9] = [
    &["--config", "configs/1-1-1.toml"],
    &["--config", "configs/1-1-2.toml"],
    &["--config", "configs/2-1-1.toml"],
    &["--set", "pipeline.layout=2:2:2"],
    &["--set", "pipeline.layout=1:2:2"],
    &["--set", "pipeline.layout=1:3:2"],
    &["--set", "pipeline.layout=4:3:1"],
    &["--set", "pipeline.instances=2"],
    &["--set", "pipeline.instances=3", "--set", "pipeline.layout=2:1:2"],
];

/// With labels inline, which only the engine gives.
const INLINE: [&[&str]; 3] = [
    &["--set", "pipeline.layout=1:0:0"],
    &["--set", "pipeline.layout=3:0:0"],
    &["--set", "pipeline.layout=2:0:0", "--set", "pipeline.instances=2"],
];

struct Replay {
    records: Vec<Value>,
    summary: Value,
}

fn replay(capture: &PathBuf, options: &[&str]) -> Replay {
    let dir = tempfile::tempdir().expect("a folder");
    let flows = dir.path().join("flows.jsonl");
    let mut command = common::fenxi(["replay", "--series", "--json", "--flows"]);
    command.arg(&flows).arg(capture).args(options);
    // Small tables start quickly.
    command.args(["--set", "flow.max_flows=16384"]);
    let summary = common::run(command).expect_code(0).json();
    let records = common::json_lines(&flows);
    Replay { records, summary }
}

/// A record without what a layout may change.
fn lasting(record: &Value) -> String {
    let mut record = record.clone();
    let fields = record.as_object_mut().expect("an object");
    fields.remove("flow_id").expect("a number");
    record.to_string()
}

fn sorted(replay: &Replay) -> Vec<String> {
    let mut lines: Vec<String> = replay.records.iter().map(lasting).collect();
    lines.sort_unstable();
    lines
}

fn flow_ids(replay: &Replay) -> Vec<u64> {
    let flows = replay.records.iter();
    let flows = flows.filter(|record| record["type"] == "flow");
    flows.map(|record| record["flow_id"].as_u64().expect("a number")).collect()
}

/// The same records, with their labels, from every layout; so both directions of a flow stayed
/// together, or it would be two flows. Every packet is counted, and every series has its label.
fn assert_same(capture: &PathBuf, options: &[&str]) {
    let expected = replay(capture, options);
    let records = sorted(&expected);
    assert!(expected.summary["series"]["inferred"].as_u64() > Some(0));
    let is_native = !options.contains(&common::SIMULATED[1]);
    let inline = INLINE.iter().filter(|_| is_native);
    for layout in LAYOUTS.iter().chain(inline) {
        let at = format!("{layout:?} on {}", capture.display());
        let found = replay(capture, &[*layout, options].concat());
        for sums in ["packets", "bytes", "verdicts", "labels", "series", "coverage"] {
            assert_eq!(found.summary[sums], expected.summary[sums], "{sums}, {at}");
        }
        let lines = sorted(&found);
        let mut pairs = lines.iter().zip(&records);
        assert_eq!(pairs.find(|(found, expected)| found != expected), None, "{at}");
        assert_eq!(lines.len(), records.len(), "{at}");
        let ids = flow_ids(&found);
        let distinct: BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "flow ids, {at}");
    }
}

#[test]
fn every_layout_gives_the_demo_the_same_labels() {
    assert_same(&common::demo(), &[]);
}

#[test]
fn every_layout_gives_a_large_capture_the_same_labels() {
    let test = "every_layout_gives_a_large_capture_the_same_labels";
    let Some(folder) = common::shared("captures/train") else {
        return common::skip(test, "the shared captures");
    };
    assert_same(&folder.join("gnutella.pcap"), &["--label-delay-ms", "3"]);
}

/// Without a library: the answers of the simulated device are a function of the series.
#[test]
fn every_layout_agrees_on_simulated_devices() {
    assert_same(&common::demo(), &common::SIMULATED);
}

/// The set of records repeats; with one flow manager their order does as well.
#[test]
fn a_layout_repeats_itself() {
    let two = ["--set", "pipeline.layout=2:2:1"];
    let options = [&two[..], &common::SIMULATED].concat();
    let all = |replay: Replay| {
        let mut lines: Vec<String> = replay.records.iter().map(Value::to_string).collect();
        lines.sort_unstable();
        lines
    };
    let first = all(replay(&common::demo(), &options));
    assert_eq!(all(replay(&common::demo(), &options)), first);
}

#[test]
fn a_layout_may_be_paced() {
    let paced = ["--speed", "1000x", "--set", "pipeline.layout=2:1:2"];
    let options = [&paced[..], &common::SIMULATED].concat();
    let summary = replay(&common::demo(), &options).summary;
    assert_eq!(summary["packets"], common::demo_packets());
    assert_eq!(common::sum(&summary["verdicts"]), common::demo_packets() as u64);
    let ended = common::sum(&summary["flows"]["ended"]);
    assert_eq!(summary["flows"]["begun"], ended);
}

#[test]
fn written_packets_want_one_flow_manager() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = dir.path().join("tagged.pcap");
    for set in ["pipeline.layout=2:1:1", "pipeline.instances=2"] {
        let mut command = common::fenxi(["replay", "--set", set, "--write"]);
        command.arg(&output).arg(common::demo()).args(common::SIMULATED);
        let finished = common::run(command).expect_code(64);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(finished.stderr.contains("--write must keep the order"), "{}", finished.stderr);
        assert!(!output.exists());
    }
    let mut command = common::fenxi(["replay", "--set", "pipeline.layout=1:2:2", "--write"]);
    command.arg(&output).arg(common::demo()).args(common::SIMULATED);
    common::run(command).expect_code(0);
}

/// Pinned to the cores that are named, the result is the same; a core that is not there is refused
/// before anything starts.
#[test]
fn cores_are_taken_as_named() {
    let cores = ["--set", "pipeline.cores=[0, 0]"];
    let options = [&cores[..], &common::SIMULATED].concat();
    let pinned = replay(&common::demo(), &options);
    let free = replay(&common::demo(), &common::SIMULATED);
    assert_eq!(sorted(&pinned), sorted(&free));

    let mut command = common::fenxi(["replay", "--set", "pipeline.cores=[0, 4095]"]);
    command.arg(common::demo()).args(common::SIMULATED);
    let finished = common::run(command).expect_code(78);
    assert!(
        finished.stderr.contains("pipeline.cores: this process may not use CPU 4095"),
        "{}",
        finished.stderr
    );
}

/// A capture that breaks off ends every executor, and what came before is counted.
#[test]
fn a_broken_capture_ends_all_executors() {
    let dir = tempfile::tempdir().expect("a folder");
    let broken = dir.path().join("broken.pcap");
    let bytes = std::fs::read(common::demo()).expect("the capture");
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).expect("a file");
    let mut command = common::fenxi(["replay", "--json", "--set", "pipeline.layout=3:1:1"]);
    command.arg(&broken).args(common::SIMULATED);
    let finished = common::run(command).expect_code(65);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    let summary = finished.json();
    assert!(summary["packets"].as_u64() > Some(1000), "{summary}");
    assert_eq!(common::sum(&summary["verdicts"]), summary["packets"]);
}
