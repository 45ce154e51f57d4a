//! `io.capture = "kernel"`: the kernel labels flows as fenxi would. Where it cannot, fenxi does,
//! and says why.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use accel::Bundle;
use engine::{Answer, Network};
use rustix::process::Signal;
use serde_json::Value;

use crate::common;
use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::run::first::{LASTING, both, gather_shared, programs};
use crate::run::traffic::{OF_PACKETS, assert_same, assert_same_flows, fields, flows, send};

/// A model whose network is small enough.
const KERNEL: [&str; 4] =
    ["--set", "io.capture=kernel", "--set", "model.path=models/protocol-small"];
const AT_B: [&str; 2] = ["--set", "io.interfaces=[\"b\"]"];

pub(super) fn on_a_wire(test: &str, tools: &[&str]) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], tools)?;
    lab.wire_within("host", "a", "b");
    Some(lab)
}

const LABELS: &str = "fenxi_port_labels_in_kernel";
const COUNTS: &str = "fenxi_port_counts_in_kernel";

/// Runs with all packets and with labels in the kernel; the records of both.
pub(super) fn both_label(
    lab: &Lab,
    dir: &Path,
    capture: &Path,
    args: &[&str],
    check: impl FnOnce(&Live),
) -> [PathBuf; 2] {
    let args = [&LASTING[..], args].concat();
    both(lab, dir, capture, &KERNEL[..2], &args, |live, _| {
        live.wait_for_sum(LABELS, 1.0);
        assert_eq!(live.said("WARN fenxi::run::ports"), 0);
        check(live);
    })
}

/// The same labels, decided by the same at the same depths.
pub(super) fn assert_same_labels([all, kernel]: &[PathBuf; 2]) {
    assert_same_flows(kernel, all);
    let decisions = |records: &Path| {
        fields(records, &["decided_by", "depth", "contradicts", "model_generation"])
    };
    assert_same(&decisions(kernel), &decisions(all));
    assert!(flows(all).len() > 10);
}

#[test]
fn the_kernel_gives_the_labels_that_fenxi_gives() {
    let Some(lab) = on_a_wire("kernel", &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let records = both_label(&lab, dir.path(), &common::demo(), &KERNEL[2..], |live| {
        let flows = live.ctl(&["flows", "--json", "-n", "1000"]).expect_code(0).json();
        let flows = flows["flows"].as_array().unwrap().clone();
        let by = |who: &str| flows.iter().find(|flow| flow["decided_by"] == who).cloned();
        let where_is = |flow: &Value| {
            let id = flow["flow_id"].to_string();
            live.ctl(&["explain", &id, "--json"]).expect_code(0).json()["explained"]["where"]
                .clone()
        };
        assert_eq!(where_is(&by("model").unwrap()), "kernel");
        if let Some(flow) = by("port") {
            assert!(where_is(&flow).is_null(), "{flow}");
        }
    });
    assert_same_labels(&records);
}

#[test]
fn the_kernel_labels_all_shared_captures_as_fenxi_does() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("captures");
    let test = "the_kernel_labels_all_shared_captures_as_fenxi_does";
    let (Some(()), Some(lab)) = (gather_shared(test, &capture), on_a_wire("kernel-all", &[]))
    else {
        return;
    };
    for series in [&["--series"][..], &[]] {
        let args = [&KERNEL[2..], series].concat();
        assert_same_labels(&both_label(&lab, dir.path(), &capture, &args, |_| {}));
    }
}

/// Trees read times, which differ from one look at a packet to the next. So each run's answers are
/// held against the engine's to the series in its records.
#[test]
fn trees_in_the_kernel_give_the_answers_of_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("captures");
    let test = "trees_in_the_kernel_give_the_answers_of_the_engine";
    let (Some(()), Some(lab)) = (gather_shared(test, &capture), on_a_wire("kernel-trees", &[]))
    else {
        return;
    };
    let model = common::root().join("models/iot-family");
    let path = format!("model.path={}", model.display());
    let args = ["--series", "--set", &path];
    let [all, kernel] = both_label(&lab, dir.path(), &capture, &args, |_| {});
    assert_same(&fields(&kernel, &OF_PACKETS), &fields(&all, &OF_PACKETS));
    let bundle = Bundle::open(&model).unwrap();
    let [by_all, by_kernel] = [all, kernel].map(|records| answered(&records, &bundle));
    assert!(by_all.len() > 100 && by_all.keys().eq(by_kernel.keys()));
    let same = by_all.iter().filter(|(ends, answer)| by_kernel[*ends] == **answer).count();
    assert!(same > by_all.len() * 9 / 10, "{same} of {}", by_all.len());
}

/// The flows that a model labelled, each with its label and depth, which the engine's answers to
/// the series in the records give, too.
fn answered(records: &Path, bundle: &Bundle) -> BTreeMap<String, (String, u64)> {
    // The kernel's fixed point, and the records' four decimals.
    const TOLERANCE: f32 = 1.0 / 16_384.0 + 0.00005;
    let network = Network::compile(&bundle.read_model().unwrap(), bundle.ranges()).unwrap();
    let mut scratch = network.scratch();
    let mut ask = |record: &Value, elements: usize| {
        let channel = |name: &str| {
            let numbers = record[name].as_array().unwrap().iter().take(elements);
            let mut channel: Vec<f32> = numbers.map(|it| it.as_f64().unwrap() as f32).collect();
            channel.resize(bundle.k(), 0.0);
            channel
        };
        let series = ["series", "series_inter_arrival_us"].map(channel).concat();
        let context = ["proto", "dst_port"].map(|name| record[name].as_f64().unwrap() as f32);
        let mut answers = [Answer::default()];
        network.run(&mut scratch, &series, &context, &mut answers);
        answers[0]
    };
    let mut flows = BTreeMap::new();
    let records = common::json_lines(records);
    for record in records.iter().filter(|it| it["type"] == "flow" && it["decided_by"] == "model") {
        let decided = record["depth"].as_u64().unwrap() as usize;
        for depth in bundle.depths().iter().take_while(|it| it.elements <= decided) {
            let Answer { class, confidence } = ask(record, depth.elements);
            let label = bundle.labels().get(usize::from(class)).map(|it| it.name.as_str());
            let label = label.filter(|_| confidence >= bundle.min_confidence());
            let above = confidence - depth.confidence;
            if depth.elements < decided {
                assert!(label.is_none() || above < TOLERANCE, "{}: {record}", depth.elements);
                continue;
            }
            assert_eq!(record["label"], label.unwrap_or("unknown"), "{confidence}: {record}");
            let recorded = record["confidence"].as_f64().unwrap() as f32;
            assert!((recorded - confidence).abs() <= TOLERANCE, "{confidence}: {record}");
        }
        let ends = ["src", "src_port", "dst", "dst_port", "proto"].map(|it| record[it].to_string());
        let label = record["label"].as_str().unwrap().to_owned();
        flows.insert(ends.join(" "), (label, decided as u64));
    }
    flows
}

/// The labels' bounds change by a reload, and come back where it is not confirmed.
#[test]
fn a_reload_changes_what_the_kernel_labels_by() {
    let Some(lab) = on_a_wire("kernel-reload", &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fenxi.toml");
    let model = common::root().join("models/protocol-small");
    let write = |confidence: &str| {
        let text = format!(
            "[io]\ncapture = \"kernel\"\ninterfaces = [\"b\"]\n[model]\npath = {model:?}\n\
             min_confidence = {confidence}\n"
        );
        fs::write(&file, text).unwrap();
    };
    write("0.0");
    let records = dir.path().join("records");
    let args = ["--config", file.to_str().unwrap(), "--flows", records.to_str().unwrap()];
    let live = Live::start(&lab, "host", &args);
    live.wait_for_sum(LABELS, 1.0);
    write("1.0");
    live.ctl(&["reload", "--confirm-within", "1s"]).expect_code(0);
    live.wait_for("it is undone", |live| live.said("has been undone") > 0);
    live.ctl(&["reload"]).expect_code(0);
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    live.terminate(0);
    let records = common::json_lines(&records);
    let by_model = records.iter().filter(|it| it["type"] == "flow" && it["decided_by"] == "model");
    let by_model: Vec<&Value> = by_model.collect();
    assert!(by_model.len() > 10);
    for record in by_model {
        assert!(record["label"] == "unknown" || record["confidence"] == 1.0, "{record}");
        assert_eq!(record["model_generation"], 3, "{record}");
    }
}

/// However a run ends, its program is gone from the interface.
#[test]
fn a_killed_run_leaves_no_program_in_the_kernel() {
    let Some(lab) = on_a_wire("kernel-killed", &[]) else { return };
    for signal in [Signal::TERM, Signal::KILL] {
        let live = Live::start(&lab, "host", &[&AT_B[..], &KERNEL].concat());
        live.wait_for_sum(LABELS, 1.0);
        assert_eq!(programs(&lab), 2);
        live.signal(signal);
        match signal {
            Signal::KILL => live.kill(),
            _ => drop(live.ended(0)),
        }
        assert_eq!(programs(&lab), 0);
    }
}

/// A run and `fenxi check` give the reason once; the first packets come up, and fenxi labels them.
#[test]
fn where_the_kernel_cannot_label_fenxi_does_and_says_why() {
    let Some(lab) = on_a_wire("kernel-not", &[]) else { return };
    for (sets, reason) in [
        (&["model.path=models/app-id-k10"][..], "task default counts packets without payload, too"),
        (&["cache.prefix=3"], "the prefix cache may give other labels; leave cache.prefix out"),
        (
            &["accel.devices=[\"simulated\"]"],
            "task default runs on the device simulated, whose answers may differ from its own; use \
             native",
        ),
    ] {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let args = [&AT_B[..], &KERNEL[..2], &sets].concat();
        let line = format!("the kernel cannot label flows: {reason}");
        let live = Live::start(&lab, "host", &args);
        live.wait_for_sum(COUNTS, 1.0);
        assert_eq!(live.metric_sum(LABELS), 0.0, "{reason}");
        assert_eq!(live.said(&format!("WARN fenxi::run::ports: {line}")), 1, "{reason}");
        assert_eq!(live.said("fenxi labels them instead, as with io.capture = \"first\""), 1);
        live.terminate(0);
        let check = common::fenxi([&["check", "--deep", "--config-only"][..], &args].concat());
        let page = common::run(check).expect_code(0).stdout;
        assert!(page.contains(&line), "{page}");
    }
}

/// Without the right to load programs, all packets come up, and that is the one thing said.
#[test]
fn where_the_kernel_refuses_both_programs_all_packets_come_up() {
    let Some(lab) = on_a_wire("kernel-rights", &["setpriv"]) else { return };
    let launcher = [
        "setpriv",
        "--bounding-set=-all,+net_raw,+net_admin",
        "--inh-caps=-all,+net_raw,+net_admin",
    ];
    let args = [&AT_B[..], &KERNEL[..2]].concat();
    let live = Live::launch(fenxi_on(&lab, "host", &launcher), &args);
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    assert_eq!([LABELS, COUNTS].map(|name| live.metric_sum(name)), [0.0; 2]);
    assert_eq!(live.said("WARN fenxi::run::ports: b: the kernel cannot send up the first"), 1);
    assert_eq!(live.said("all packets come up instead, as with io.capture = \"all\""), 1);
    assert_eq!(live.said("the kernel cannot label"), 0);
    live.terminate(0);
}
