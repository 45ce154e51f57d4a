//! Hosts get the names of their devices, in captures of devices that are known; and a host's name
//! depends on the packets and the model alone.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The bundle that names families of smart-home devices, and hosts by them.
fn iot_bundle() -> PathBuf {
    common::root().join("models/iot-family")
}

/// Whether the test is skipped for want of ONNX Runtime; prints so.
fn is_skipped(test: &str) -> bool {
    let is_skipped = !common::has_onnxruntime();
    if is_skipped {
        common::skip(test, "ONNX Runtime (make onnxruntime)");
    }
    is_skipped
}

/// A replay's records and summary.
fn replay(bundle: &Path, capture: &Path, options: &[&str]) -> (Vec<Value>, Value) {
    let dir = tempfile::tempdir().expect("a folder");
    let flows = dir.path().join("flows.jsonl");
    let mut command = common::fenxi(["replay", "--json", "--flows"]);
    command.arg(&flows).arg("--model").arg(bundle).arg(capture);
    command.args(["--set", "flow.max_flows=16384"]).args(options);
    let summary = common::run(command).expect_code(0).json();
    (common::json_lines(&flows), summary)
}

fn host_records(records: Vec<Value>) -> Vec<Value> {
    let mut records = records;
    records.retain(|record| record["type"] == "host");
    records
}

/// The family that a type of device belongs to: types with one network end or one platform are one.
fn family(device: &str) -> &str {
    match device {
        "HueBridge" | "HueSwitch" => "Hue",
        "D-LinkHomeHub" | "D-LinkDoorSensor" => "D-LinkHub",
        "D-LinkSensor" | "D-LinkSiren" | "D-LinkSwitch" | "D-LinkWaterSensor" => "D-LinkHNAP",
        "EdimaxPlug1101W" | "EdimaxPlug2101W" => "EdimaxPlug",
        "TP-LinkPlugHS100" | "TP-LinkPlugHS110" => "TP-LinkPlug",
        "SmarterCoffee" | "iKettle2" => "Smarter",
        device => device,
    }
}

/// The device of a capture: the end of most of its flows.
fn device_of(records: &[Value]) -> String {
    let mut flows: BTreeMap<String, usize> = BTreeMap::new();
    for record in records.iter().filter(|record| record["type"] == "flow") {
        for end in ["src", "dst"] {
            let address = record[end].as_str().expect("an address");
            *flows.entry(address.to_owned()).or_default() += 1;
        }
    }
    let most = flows.into_iter().max_by_key(|(_, flows)| *flows);
    most.expect("a flow").0
}

/// The model has seen these captures in training, so this says that the sums are right, not how
/// good the model is: its card has that. Eight of the captures name no device: their flows get no
/// label, or none that is sure enough.
#[test]
fn devices_of_the_shared_captures_get_their_names() {
    let test = "devices_of_the_shared_captures_get_their_names";
    let Some(folder) = common::shared("labelled/iot_captures") else {
        return common::skip(test, "the shared captures");
    };
    if is_skipped(test) {
        return;
    }
    let index = fs::read_to_string(folder.join("index.csv")).expect("the list of captures");
    let (mut captures, mut named, mut wrong) = (0, 0, Vec::new());
    for line in index.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let (records, _) = replay(&iot_bundle(), &folder.join(cells[0]), &[]);
        let device = device_of(&records);
        let hosts = host_records(records);
        captures += 1;
        // The last record is what the host is called in the end.
        let Some(host) = hosts.iter().rfind(|it| it["address"] == device.as_str()) else {
            continue;
        };
        named += 1;
        if host["label"] != family(cells[1]) {
            wrong.push(host.to_string());
        }
    }
    assert!(named >= 45, "{named} of {captures}");
    assert!(wrong.len() <= 2, "{wrong:?}");
}

#[test]
fn names_do_not_depend_on_batches_nor_on_who_counts() {
    let test = "names_do_not_depend_on_batches_nor_on_who_counts";
    if is_skipped(test) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = common::naming_hosts(dir.path());
    let (records, summary) = replay(&bundle, &common::demo(), &[]);
    let expected = host_records(records);
    assert!(!expected.is_empty());
    for options in [
        ["--set", "analytics.batch_sizes=[1, 3]"],
        ["--set", "ring.slots=16"],
        ["--set", "io.burst=1"],
    ] {
        let (records, other) = replay(&bundle, &common::demo(), &options);
        assert_eq!(host_records(records), expected, "{options:?}");
        assert_eq!(other["hosts_named"], summary["hosts_named"]);
    }
    // Without records a thread of its own counts.
    let mut command = common::fenxi(["replay", "--json", "--model"]);
    command.arg(&bundle).arg(common::demo());
    let unrecorded = common::run(command).expect_code(0).json();
    for sum in ["hosts_tracked", "hosts_named", "hosts_evicted"] {
        assert_eq!(unrecorded[sum], summary[sum], "{sum}");
    }
}

#[test]
fn hosts_are_where_the_configuration_says() {
    let test = "hosts_are_where_the_configuration_says";
    if is_skipped(test) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = common::naming_hosts(dir.path());
    let inside = |networks: &str| {
        let set = format!("hosts.networks={networks}");
        let (records, _) = replay(&bundle, &common::demo(), &["--set", &set]);
        let hosts = host_records(records).into_iter();
        let addresses = hosts.map(|host| host["address"].as_str().expect("text").to_owned());
        addresses.collect::<Vec<_>>()
    };
    let found = inside("[\"2001:db8:a::/48\"]");
    assert!(!found.is_empty() && found.iter().all(|it| it.starts_with("2001:db8:a:")));
    assert_eq!(inside("[\"10.0.0.0/8\"]"), Vec::<String>::new());
}

/// Sums of one model say nothing under another rule.
#[test]
fn a_model_with_other_hosts_is_not_swapped_in() {
    let test = "a_model_with_other_hosts_is_not_swapped_in";
    if is_skipped(test) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = common::naming_hosts(dir.path());
    let mut command = common::fenxi(["replay", "--json", "--swap-every", "1", "--swap-model"]);
    command.arg(common::bundle()).arg("--model").arg(&bundle);
    command.arg("--loop").arg("100").arg(common::demo());
    let finished = common::run(command);
    let said = format!("{}{}", finished.stdout, finished.stderr);
    let parts = ["the hosts are not named", "named by 2 to 20 flows from 0.5"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}
