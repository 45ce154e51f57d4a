//! What the batcher, the ring and the hash do with time is not seen in the result.
//!
//! A replay at `--speed max` gives the same records, byte for byte, and the same
//! labels, verdicts and coverage, however its batches fall: which series share a
//! batch hangs on the scheduler, so every run here is another draw. With the prefix
//! cache on, batches decide which flows hit; those, and only those, may differ.

use crate::common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

/// Bundles that the engine runs.
const SHIPPED: [&str; 5] =
    ["protocol", "protocol-small", "app-id-k10", "fenxi-cnn-k10", "iot-family"];

/// Labels of flows, by flow id: the label and who decided.
type Labels = BTreeMap<u64, (Value, Value)>;

/// What a replay left behind.
struct Replay {
    /// The file of records, as it is.
    records: String,
    summary: Value,
}

impl Replay {
    fn run(captures: &[PathBuf], options: &[&str]) -> Replay {
        let dir = tempfile::tempdir().expect("a folder");
        let flows = dir.path().join("flows.jsonl");
        let mut command = common::fenxi(["replay", "--series", "--json", "--flows"]);
        command.arg(&flows).args(captures);
        // Later settings override; a small table starts quickly.
        command.args(["--set", "flow.max_flows=65536"]);
        for option in options {
            if option.starts_with("--") {
                command.args(option.split(' '));
            } else {
                command.args(["--set", option]);
            }
        }
        let summary = common::run(command).expect_code(0).json();
        let records = std::fs::read_to_string(flows).expect("records are there");
        Replay { records, summary }
    }

    fn lines(&self) -> impl Iterator<Item = Value> {
        let lines = self.records.lines();
        lines.map(|line| serde_json::from_str(line).expect("a line of JSON"))
    }

    fn labels(&self) -> Labels {
        let flows = self.lines().filter(|record| record["type"] == "flow");
        let by_id = flows.map(|flow| {
            let id = flow["flow_id"].as_u64().expect("a number");
            (id, (flow["label"].clone(), flow["decided_by"].clone()))
        });
        by_id.collect()
    }

    fn series(&self, fate: &str) -> u64 {
        self.summary["series"][fate].as_u64().expect("a count")
    }

    /// The parts of the summary that say nothing of time and batches.
    fn outcome(&self) -> Vec<&Value> {
        let parts = ["packets", "bytes", "verdicts", "flows", "labels", "coverage", "series"];
        parts.iter().map(|part| &self.summary[part]).collect()
    }
}

/// The setting for a model that is asked once about a flow, so that series and labels are as many.
fn asking_once() -> String {
    format!("model.path={}", common::bundle().display())
}

/// The demo, and shared captures with many flows; each is replayed by itself.
fn captures(test: &str) -> Vec<Vec<PathBuf>> {
    let mut captures = vec![vec![common::demo()]];
    match common::shared("captures/train") {
        Some(folder) => {
            // The capture with the most flows, and all in one run, with times that jump
            // back and forth from file to file.
            captures.push(vec![folder.join("gnutella.pcap")]);
            let files = std::fs::read_dir(folder).expect("a folder of captures");
            let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
            files.sort();
            captures.push(files);
        }
        None => common::skip(test, "the shared captures; the demo is replayed"),
    }
    captures
}

/// Short enough for a message.
fn named(captures: &[PathBuf]) -> String {
    let first = captures[0].file_name().expect("a file");
    format!("{} and {} more", first.display(), captures.len() - 1)
}

/// Whatever may change batches, waiting and bursts. Before each burst a replay waits
/// for as many free slots, so a ring little larger than the burst is right but slow.
const VARIANTS: &[&[&str]] = &[
    &[],
    &["analytics.timeout_ms=0.1"],
    &["analytics.timeout_ms=50", "analytics.phi=0"],
    &["analytics.phi=0.5", "analytics.batch_sizes=[2, 3, 5, 64]"],
    &["analytics.policy=none"],
    &["analytics.policy=none", "analytics.batch_sizes=[1]", "io.burst=2"],
    &["analytics.policy=timeout", "accel.fixed_sizes=true"],
    &["accel.fixed_sizes=true", "analytics.batch_sizes=[4, 32]", "ring.slots=64", "io.burst=4"],
    &["ring.slots=16", "io.burst=1"],
    &["ring.slots=1024", "io.burst=256", "analytics.batch_sizes=[7]"],
    &["io.burst=1", "ring.slots=4096", "records.queue=1024"],
];

/// On ONNX Runtime a row's answer may not depend on its batch either.
#[test]
fn batches_ring_and_bursts_change_nothing() {
    let test = "batches_ring_and_bursts_change_nothing";
    if !common::has_onnxruntime() {
        return common::skip(test, "ONNX Runtime (make onnxruntime)");
    }
    let cpu = "accel.devices=[\"cpu\"]";
    for captures in captures(test) {
        let expected = Replay::run(&captures, &[cpu]);
        assert!(expected.series("inferred") > 0, "nothing to compare");
        for variant in VARIANTS {
            let replay = Replay::run(&captures, &[variant, &[cpu][..]].concat());
            let at = format!("{variant:?} on {}", named(&captures));
            assert_eq!(replay.outcome(), expected.outcome(), "{at}");
            let mut lines = replay.records.lines().zip(expected.records.lines());
            let different = lines.find(|(found, expected)| found != expected);
            assert_eq!(different, None, "{at}");
            assert!(replay.records == expected.records, "{at}: more or fewer records");
        }
    }
}

/// The device `native`: a row's answer depends on that row alone. It needs no library.
#[test]
fn batches_change_nothing_on_the_engine() {
    let engine = ["accel.devices=[\"native\"]", "accel.library=/nowhere"];
    for model in SHIPPED {
        let model = format!("model.path={}", common::root().join("models").join(model).display());
        let replay = |variant: &[&str]| {
            Replay::run(&[common::demo()], &[&engine[..], &[model.as_str()], variant].concat())
        };
        let expected = replay(&[]);
        assert!(expected.series("inferred") > 0, "nothing to compare");
        // The first is another run of the same.
        for variant in VARIANTS {
            let again = replay(variant);
            assert_eq!(again.outcome(), expected.outcome(), "{model}, {variant:?}");
            assert!(again.records == expected.records, "{model}, {variant:?}: records differ");
        }
    }
}

/// Integers may change what the model is unsure of, and nothing else.
#[test]
fn the_engine_names_flows_as_onnx_runtime_does_where_it_is_sure() {
    const SURE: f64 = 0.85;
    let test = "the_engine_names_flows_as_onnx_runtime_does_where_it_is_sure";
    if !common::has_onnxruntime() {
        return common::skip(test, "ONNX Runtime (make onnxruntime)");
    }
    for captures in captures(test) {
        for model in SHIPPED {
            let path = common::root().join("models").join(model);
            let path = format!("model.path={}", path.display());
            let replay = |device: &str| {
                Replay::run(&captures, &[&path, &format!("accel.devices=[\"{device}\"]")])
            };
            let (cpu, native) = (replay("cpu"), replay("native"));
            let flows = |replay: &Replay| {
                let flows = replay.lines().filter(|record| record["type"] == "flow");
                flows.map(|flow| (id(&flow), flow)).collect()
            };
            let [of_cpu, of_native]: [BTreeMap<u64, Value>; 2] = [flows(&cpu), flows(&native)];
            assert!(of_cpu.keys().eq(of_native.keys()), "{model}: flows");
            let is_sure = |flow: &&Value| flow["confidence"].as_f64().is_some_and(|it| it >= SURE);
            let mut compared = 0;
            for cpu in of_cpu.values().filter(is_sure) {
                let native = &of_native[&id(cpu)];
                assert_eq!(cpu["label"], native["label"], "{model}: {cpu} {native}");
                compared += 1;
            }
            assert!(compared > 0, "{model}: no flow is sure");
            for part in ["packets", "bytes", "flows"] {
                assert_eq!(cpu.summary[part], native.summary[part], "{model}: {part}");
            }
        }
    }
}

fn id(flow: &Value) -> u64 {
    flow["flow_id"].as_u64().unwrap()
}

/// Where the flows lie in the table decides in which order idle ones are found, and
/// nothing else.
#[test]
fn the_hash_changes_only_the_order_of_the_records() {
    fn sorted(replay: &Replay) -> Vec<&str> {
        let mut lines: Vec<&str> = replay.records.lines().collect();
        lines.sort_unstable();
        lines
    }
    for captures in captures("the_hash_changes_only_the_order_of_the_records") {
        let expected = Replay::run(&captures, &[]);
        for variant in [
            &["flow.hash=fenxi"][..],
            &["flow.hash_seed=7"],
            &["flow.buckets=131072", "flow.hash_seed=8"],
            &["flow.buckets=1048576"],
        ] {
            let replay = Replay::run(&captures, variant);
            let at = format!("{variant:?} on {}", named(&captures));
            assert_eq!(replay.outcome(), expected.outcome(), "{at}");
            let (found, expected) = (sorted(&replay), sorted(&expected));
            let different = found.iter().zip(&expected).find(|(found, expected)| found != expected);
            assert_eq!(different, None, "{at}");
            assert_eq!(found.len(), expected.len(), "{at}");
        }
    }
}

/// Paced, a flow may end before its label comes, but no other label comes.
#[test]
fn speed_may_cost_labels_but_changes_none() {
    let captures = [common::demo()];
    // A paced replay does not ask depths after a sure answer.
    let once = asking_once();
    let expected = Replay::run(&captures, &[&once]);
    let decided = expected.labels();
    let mut compared = 0;
    for speed in ["--speed 100x", "--speed 1000x"] {
        let replay = Replay::run(&captures, &[&once, speed, "analytics.timeout_ms=0.5"]);
        let labels = replay.labels();
        assert!(labels.keys().eq(decided.keys()), "{speed}: flows");
        let emitted = [&replay, &expected].map(|replay| replay.series("emitted"));
        assert_eq!(emitted[0], emitted[1], "{speed}: series");
        for (id, label) in labels.iter().filter(|(_, (label, _))| !label.is_null()) {
            assert_eq!(decided.get(id), Some(label), "{speed}: flow {id}");
            compared += 1;
        }
    }
    assert!(compared > 0, "no flow got its label in time");
}

/// A ring of 16 slots makes batches small, so that later series find in the cache
/// what earlier ones were given.
#[test]
fn with_the_cache_only_hits_may_differ() {
    for captures in captures("with_the_cache_only_hits_may_differ") {
        let once = asking_once();
        let expected = Replay::run(&captures, &[&once]).labels();
        let mut differ_at_1 = 0;
        for prefix in [1, 4] {
            let prefix_set = format!("cache.prefix={prefix}");
            let replay = Replay::run(
                &captures,
                &[&once, &prefix_set, "cache.audit=0.5", "ring.slots=16", "io.burst=1"],
            );
            let labels = replay.labels();
            assert!(labels.keys().eq(expected.keys()), "{prefix_set}: flows");
            let hits = labels.values().filter(|(_, by)| by == "cache").count() as u64;
            assert_eq!(hits, replay.series("cached"), "{prefix_set}");
            assert!(hits > 0, "{prefix_set}: no hit");
            for (id, (label, by)) in &labels {
                let differs = *label != expected[id].0;
                assert!(
                    !differs || by == "cache",
                    "{prefix_set}: flow {id} differs: {label} by {by}"
                );
                differ_at_1 += u64::from(differs && prefix == 1);
            }
        }
        assert!(differ_at_1 > 0, "one length cannot tell all classes; is the cache used?");
    }
}

/// All K lengths are the whole input of the model: a hit is as good as an inference.
#[test]
fn with_an_exact_prefix_the_cache_changes_no_label() {
    for captures in captures("with_an_exact_prefix_the_cache_changes_no_label") {
        // What the second time brings was inferred the first time: it is found, however the batches
        // fall.
        let twice = ["--loop 2", "analytics.policy=none"];
        let expected = Replay::run(&captures, &twice);
        let at = named(&captures);
        let exact =
            [twice[0], twice[1], "cache.prefix=10", "cache.audit=1", "ring.slots=16", "io.burst=1"];
        let replay = Replay::run(&captures, &exact);
        assert!(replay.series("cached") > 0, "{at}: no hit");
        assert_eq!(replay.summary["cache"]["audits_differ"], 0);
        assert_eq!(replay.summary["labels"], expected.summary["labels"]);
        let without_source = |replay: &Replay| -> Vec<(u64, Value)> {
            let labels = replay.labels().into_iter();
            labels.map(|(id, (label, _))| (id, label)).collect()
        };
        assert_eq!(without_source(&replay), without_source(&expected), "{at}");
    }
}
