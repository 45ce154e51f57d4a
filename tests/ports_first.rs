//! A bundle whose ports name flows with their first packets, and whose model may contradict them.
//!
//! The bundle is the shipped one with `contradiction` in its manifest.
//! `scripts/test/check_labels.py` says what each label should be.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::packets::{capture, read_capture};
use common::root;
use packetio::CaptureFormat;
use serde_json::Value;

const CONTRADICTION: &str = "contradiction = [1.0, 0.9, 0.9, 0.9, 0.9]";
/// Lower thresholds, so that some flow of the demo contradicts its port.
const LIGHTLY: &str = "contradiction = [1.0, 1.0, 1.0, 0.5, 0.5]";

/// A copy of a shipped bundle in `dir`, with this line in its manifest.
fn ports_first(dir: &Path, model: &str, line: &str) -> PathBuf {
    let (from, to) = (root().join("models").join(model), dir.join(model));
    common::copy_bundle(&from, &to);
    let manifest = std::fs::read_to_string(from.join("model.toml")).expect("a manifest");
    let lines = manifest.lines().filter(|it| !it.starts_with("contradiction"));
    let with_line = |it: &str| match it.starts_with("depths = ") {
        true => format!("{it}\n{line}\n"),
        false => format!("{it}\n"),
    };
    let manifest: String = lines.map(with_line).collect();
    std::fs::write(to.join("model.toml"), manifest).expect("a manifest");
    to
}

/// The demo, with its SSH as from a server at this port.
fn ssh_at(port: u16, file: &Path) {
    let mut frames = read_capture(&common::demo());
    for (_, bytes) in &mut frames {
        // Ethernet, then IPv4 without options, or IPv6 without extension headers.
        let tcp = match (&bytes[12..14], bytes.get(23), bytes.get(20)) {
            ([0x08, 0x00], Some(6), _) => 34,
            ([0x86, 0xdd], _, Some(6)) => 54,
            _ => continue,
        };
        let mut ends = [tcp, tcp + 2].map(|at| at..at + 2).into_iter();
        if let Some(at) = ends.find(|at| bytes[at.clone()] == [0, 22]) {
            bytes[at].copy_from_slice(&port.to_be_bytes());
        }
    }
    let capture = capture(CaptureFormat::Pcap { nanosecond: false }, &frames);
    std::fs::write(file, capture).expect("a capture");
}

/// What a replay said, and its summary.
struct Replayed {
    records: Vec<Value>,
    text: String,
    summary: Value,
}

impl Replayed {
    fn run(bundle: &Path, input: &Path, flows: &Path, options: &[&str]) -> Replayed {
        let mut replay = common::fenxi(["replay", "--series", "--json", "--flows"]);
        replay.arg(flows).arg("--model").arg(bundle).arg(input);
        let summary = common::run({
            replay.args(options);
            replay
        });
        Replayed {
            records: common::json_lines(flows),
            text: std::fs::read_to_string(flows).expect("records are there"),
            summary: summary.expect_code(0).json(),
        }
    }

    fn contradicting(&self) -> Vec<&Value> {
        let records = self.records.iter();
        records.filter(|it| it["type"] == "flow" && it["contradicts"] == true).collect()
    }

    fn of_type(&self, name: &str, port: u16) -> Vec<&Value> {
        let records = self.records.iter();
        records
            .filter(|it| it["type"] == name && it["dst_port"] == port && it["proto"] == 6)
            .collect()
    }
}

#[test]
fn a_port_names_a_flow_with_its_first_packet() {
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = ports_first(dir.path(), "protocol", CONTRADICTION);
    let flows = dir.path().join("flows.jsonl");
    let tagged = dir.path().join("tagged.pcap");
    let write = ["--write", tagged.to_str().expect("a path")];
    let replayed = Replayed::run(&bundle, &common::demo(), &flows, &write);
    let ssh = replayed.of_type("label", 22);
    assert_eq!(ssh.len(), 11, "each flow is named once");
    for label in ssh {
        let (by, depth) = (&label["decided_by"], &label["depth"]);
        assert_eq!((by.as_str(), depth.as_u64()), (Some("port"), Some(0)));
        assert_eq!((&label["time"], &label["label"]), (&label["first"], &"SSH".into()));
        assert_eq!(label["time_to_label_us"], 0);
    }
    for flow in replayed.of_type("flow", 22) {
        assert_eq!((&flow["label"], &flow["decided_by"]), (&"SSH".into(), &"port".into()));
        assert!(flow.get("contradicts").is_none(), "{flow}");
    }
    // It leaves with its DSCP from the SYN on.
    let [before, after] = [common::demo(), tagged].map(|file| read_capture(&file));
    let is_syn = |bytes: &[u8]| bytes[23] == 6 && bytes[36..38] == [0, 22] && bytes[47] == 2;
    let both = before.iter().zip(&after);
    let mut syns = both.filter(|((_, it), _)| it[12..14] == [8, 0] && is_syn(it));
    assert!(syns.all(|((_, before), (_, after))| before[15] == 0 && after[15] != 0));
    // Without the key the model decides, and nothing is there with the SYN.
    let shipped = ports_first(dir.path(), "protocol", "");
    let replayed = Replayed::run(&shipped, &common::demo(), &flows, &[]);
    assert!(replayed.of_type("label", 22).iter().all(|it| it["decided_by"] != "port"));
}

#[test]
fn an_answer_contradicts_a_port() {
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = ports_first(dir.path(), "protocol", LIGHTLY);
    let [input, flows] = ["ssh.pcap", "flows.jsonl"].map(|name| dir.path().join(name));
    // The port of FTP.
    ssh_at(21, &input);
    let replayed = Replayed::run(&bundle, &input, &flows, &[]);
    let contradicting = replayed.contradicting();
    assert!(!contradicting.is_empty(), "{}", replayed.summary);
    for flow in &contradicting {
        let id = &flow["flow_id"];
        let said = replayed.records.iter();
        let said: Vec<_> =
            said.filter(|it| it["type"] == "label" && it["flow_id"] == *id).collect();
        let [by_port, by_model] = said[..] else {
            panic!("{said:?}");
        };
        assert_eq!((&by_port["decided_by"], &by_port["depth"]), (&"port".into(), &0.into()));
        assert_ne!(by_port["label"], by_model["label"]);
        assert_eq!((&by_model["label"], &by_model["contradicts"]), (&flow["label"], &true.into()));
        assert_eq!(flow["decided_by"], "model");
    }
    assert_eq!(replayed.summary["decided"]["contradicting"], contradicting.len());
    // Where no depth may contradict, none does.
    let never = ports_first(dir.path(), "protocol", "contradiction = [1.0, 1.0, 1.0, 1.0, 1.0]");
    let replayed = Replayed::run(&never, &input, &flows, &[]);
    assert!(replayed.contradicting().is_empty());
    assert_eq!(replayed.of_type("flow", 21).len(), 11);
    assert!(replayed.of_type("flow", 21).iter().all(|it| it["label"] == "FTP_CONTROL"));
}

/// Batches, rings and bursts are not seen in the records, nor is the prefix cache where it is
/// exact.
#[test]
fn ports_first_is_deterministic() {
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = ports_first(dir.path(), "protocol-int8", LIGHTLY);
    let [input, flows] = ["ssh.pcap", "flows.jsonl"].map(|name| dir.path().join(name));
    ssh_at(443, &input);
    let of = |options: &[&str]| Replayed::run(&bundle, &input, &flows, options);
    let expected = of(&[]);
    for options in [
        &["--set", "analytics.batch_sizes=[1]", "--set", "io.burst=1"][..],
        &["--set", "ring.slots=64", "--set", "analytics.batch_sizes=[3, 7]"],
        &["--label-delay-ms", "0"],
    ] {
        let other = of(options);
        assert!(other.summary["verdicts"].is_object());
        if options[0] == "--label-delay-ms" {
            let labels = |it: &Replayed| it.summary["labels"].clone();
            assert_eq!(labels(&other), labels(&expected));
            continue;
        }
        assert!(other.text == expected.text, "{options:?}");
        assert_eq!(other.summary["verdicts"], expected.summary["verdicts"]);
    }
    let labels = |it: &Replayed| {
        let flows = it.records.iter().filter(|it| it["type"] == "flow");
        let parts = ["flow_id", "label", "contradicts"];
        flows.map(|flow| parts.map(|part| flow[part].clone())).collect::<Vec<_>>()
    };
    let cached = of(&["--set", "cache.prefix=10", "--set", "cache.entries=1000"]);
    assert_eq!(labels(&cached), labels(&expected));
}

#[test]
fn labels_are_those_that_the_script_says() {
    let test = "labels_are_those_that_the_script_says";
    let python = root().join("target/venv/bin/python");
    if !python.exists() {
        return common::skip(test, "target/venv (make target/venv)");
    }
    if !common::has_onnxruntime() {
        return common::skip(test, "ONNX Runtime (make onnxruntime)");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let [input, flows] = ["ssh.pcap", "flows.jsonl"].map(|name| dir.path().join(name));
    for (model, port) in [("protocol", 443), ("protocol-int8", 21)] {
        let bundle = ports_first(dir.path(), model, LIGHTLY);
        ssh_at(port, &input);
        Replayed::run(&bundle, &input, &flows, &common::ONNXRUNTIME);
        let mut check = Command::new(&python);
        check.arg(root().join("scripts/test/check_labels.py"));
        let output = check.arg(&bundle).arg(&flows).output().expect("Python starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{errors}");
    }
}

#[test]
fn explanations_name_the_port_and_the_contradiction() {
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = ports_first(dir.path(), "protocol", LIGHTLY);
    let [input, flows] = ["ssh.pcap", "flows.jsonl"].map(|name| dir.path().join(name));
    ssh_at(21, &input);
    let replayed = Replayed::run(&bundle, &input, &flows, &[]);
    let explained = |flow: &Value| {
        let id = flow["flow_id"].to_string();
        let mut replay = common::fenxi(["replay", "--explain", &id]);
        replay.arg("--model").arg(&bundle).arg(&input);
        common::run(replay).expect_code(0).stdout
    };
    let contradicting = replayed.contradicting();
    let other = contradicting.first().expect("one is");
    let said = explained(other);
    let by_port = format!("by port {} it was ", other["dst_port"]);
    let then = " until the model contradicted that";
    assert!(said.contains(&by_port) && said.contains(then), "{said}");
    let mut flows = replayed.of_type("flow", 443).into_iter();
    let tls = flows.find(|it| it["decided_by"] == "port");
    let said = explained(tls.expect("one is"));
    assert!(said.contains("by port 443 (TCP), with the flow's first packet"), "{said}");
}
