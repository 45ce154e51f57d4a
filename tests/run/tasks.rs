//! Several tasks in a router: marks of two in one connection, and what happens to the others when
//! one of them fails, is swapped or reloaded.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::mark::{HOSTS, marks};
use crate::run::traffic::{PROGRAMS, Servers, ask_udp, connect, stream};

/// Bits of each task, each label its number and one more in them.
const SHIFTS: [(&str, u32); 2] = [("protocol", 24), ("app", 16)];

/// Two tasks of these models, each with a mark for each of its labels; `more` is added to the
/// second, and `devices` stands below.
fn config(bundles: &[PathBuf; 2], more: &str, devices: &str) -> String {
    let tasks = SHIFTS.iter().zip(bundles).map(|((name, shift), bundle)| {
        let labels = common::labels(bundle).into_iter().zip(1_u32..);
        let marks = labels.map(|(label, number)| format!("\"{label}\" = {:#x}", number << shift));
        format!(
            "[[task]]\nname = \"{name}\"\nmodel = \"{}\"\nmark = {{ {} }}\nmark_mask = {:#x}\n",
            bundle.display(),
            marks.collect::<Vec<_>>().join(", "),
            0xff_u32 << shift
        )
    });
    let [first, second] = tasks.collect::<Vec<_>>().try_into().unwrap();
    format!(
        "[io]\nmode = \"mark\"\ninterfaces = [\"in\"]\n[mark]\nmask = 0xff000000\n{first}depths = \
         [3, 10]\n{second}{more}\n{devices}"
    )
}

/// The bits of a label under its task's mask.
fn bits(bundles: &[PathBuf; 2], task: usize, label: &Value) -> u32 {
    let labels = common::labels(&bundles[task]);
    let at = labels.iter().position(|known| label == known.as_str());
    at.map_or(0, |at| (at as u32 + 1) << SHIFTS[task].1)
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

/// The label that a record has of the second task.
fn second(flow: &Value) -> &Value {
    let labels = flow["labels"].as_array().map_or(&[][..], Vec::as_slice);
    let of_task = |it: &&Value| it["task"] == SHIFTS[1].0;
    labels.iter().find(of_task).unwrap_or(&Value::Null)
}

/// Each connection has the bits of both labels; other programs' bits are unchanged.
#[test]
fn a_connection_has_the_marks_of_two_tasks() {
    have_marks_of_both("twomarks", "first", &[common::shipped_bundle(), common::bundle()]);
}

/// The first task's bits by the kernel, the second's by fenxi.
#[test]
fn a_connection_has_the_marks_of_the_kernel_and_of_another_task() {
    let small = common::root().join("models/protocol-small");
    have_marks_of_both("kernel-twomarks", "kernel", &[small, common::shipped_bundle()]);
}

fn have_marks_of_both(test: &str, capture: &str, bundles: &[PathBuf; 2]) {
    let Some(lab) = Lab::routed(test, false, &PROGRAMS) else {
        return;
    };
    let servers = Servers::start(&lab, "server", &[("page", 300_000)]);
    let [records, file] = ["records", "fenxi.toml"].map(|name| servers.path(name));
    // The second task is asked about flows of TCP alone, and only once the first has its label.
    write(&file, &config(bundles, "when = \"protocol = tcp and protocol.confidence >= 0\"", ""));
    let mut args = vec!["--config", file.to_str().unwrap()];
    let capture_of = format!("io.capture={capture}");
    args.extend(["--set", &capture_of, "--flows", records.to_str().unwrap()]);
    let live = Live::start(&lab, "router", &args);
    let by_kernel = if capture == "kernel" { 1.0 } else { 0.0 };
    live.wait_for_sum("fenxi_port_labels_in_kernel", by_kernel);
    for is_v6 in [false, true] {
        let server = Lab::server(is_v6);
        servers.fetch(&lab, "client", server, "page");
        live.ctl(&["model", "load", bundles[1].to_str().unwrap(), "--task", "app"]).expect_code(0);
        ask_udp(&lab, HOSTS, server, 20);
        let [near, far] = connect(&lab, HOSTS, server);
        stream(near, far, 20_000);
    }
    live.wait_for("no mark is under way", |live| {
        live.metric_sum("fenxi_marks_total") > 4.0 && live.metric_sum("fenxi_marks_waiting") == 0.0
    });
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);
    let marks = marks(&lab);
    let flows = common::json_lines(&records).into_iter();
    let (mut both, mut udp) = (0, 0);
    for flow in flows.filter(|record| record["type"] == "flow") {
        let text = |name: &str| flow[name].to_string().replace('"', "");
        let tuple = ["src", "src_port", "dst", "dst_port", "proto"].map(text);
        let of = |task: usize, label: &Value| match label["time_to_label_us"].is_null() {
            // What a flow is named at its end comes too late for a mark.
            true => 0,
            false => bits(bundles, task, &label["label"]),
        };
        let expected = [of(0, &flow), of(1, second(&flow))];
        let mark = marks.get(&tuple.join(" ")).copied();
        assert_eq!(mark, Some(FOREIGN | expected[0] | expected[1]), "{flow}");
        both += u32::from(!expected.contains(&0));
        if flow["proto"] == 17 {
            assert_eq!(*second(&flow), Value::Null, "{flow}");
            udp += 1;
        }
    }
    assert!(both >= 2 && udp >= 2, "{both}, {udp}");
}

/// Series of a task that met a fate, by that.
fn series(live: &Live, task: &str, outcome: &str) -> f64 {
    let page = live.scrape();
    let is_it = |line: &&str| {
        line.starts_with("fenxi_series_total{")
            && line.contains(&format!("task=\"{task}\""))
            && line.contains(&format!("outcome=\"{outcome}\""))
    };
    let values = page.lines().filter(is_it);
    values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// A device that fails, a swap and a reload concern one task: the labels of the other go on, and
/// sums close for each.
#[test]
fn what_happens_to_one_task_leaves_the_others_alone() {
    let Some(lab) = Lab::routed("onetask", false, &PROGRAMS) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fenxi.toml");
    let bundles = [common::shipped_bundle(), common::bundle()];
    let failing = "[device.bad]\nprovider = \"simulated\"\nfaults = \"vanish=1\"\n";
    let devices =
        |bad: &str| format!("devices = [\"{bad}\"]\npolicy = \"slo\"\nlatency_goal_ms = 5");
    write(&file, &config(&bundles, &devices("bad"), failing));
    let args = ["--config", file.to_str().unwrap()];
    let live = Live::start(&lab, "router", &args);
    let talk = |flows: usize| {
        for _ in 0..flows {
            ask_udp(&lab, HOSTS, Lab::server(false), 20);
        }
    };
    talk(5);
    live.wait_for("the first task labels, the second fails", |live| {
        series(live, "protocol", "inferred") >= 5.0
            && series(live, "app", "failed") + series(live, "app", "shed") >= 5.0
    });
    assert_eq!(series(&live, "protocol", "failed"), 0.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);

    // Another device for the second task alone.
    write(&file, &config(&bundles, &devices("native"), failing));
    let reloaded = live.ctl(&["reload"]).expect_code(0);
    assert!(reloaded.stdout.contains("task.app.devices"), "{}", reloaded.stdout);
    let (before, other) = (series(&live, "protocol", "inferred"), series(&live, "app", "inferred"));
    talk(5);
    live.wait_for("both tasks label", |live| {
        series(live, "protocol", "inferred") >= before + 5.0
            && series(live, "app", "inferred") >= other + 5.0
    });
    assert_eq!(series(&live, "protocol", "failed"), 0.0);

    // Another model for the second task alone.
    let model = common::int8_bundle();
    let model = model.to_str().unwrap();
    let refused = live.ctl(&["model", "load", model]);
    assert!(refused.stderr.contains("--task"), "{}", refused.stderr);
    live.ctl(&["model", "load", model, "--task", "app"]).expect_code(0);
    let generations = |live: &Live| {
        let page = live.scrape();
        let lines = page.lines().filter(|line| line.starts_with("fenxi_model_info{"));
        let of = |line: &str| {
            let value = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
                rest.split('"').next().unwrap().to_owned()
            };
            (value("task"), value("generation"))
        };
        lines.map(of).collect::<Vec<_>>()
    };
    let expected =
        [("protocol", "0"), ("app", "2")].map(|(task, it)| (task.to_owned(), it.to_owned()));
    assert_eq!(generations(&live), expected);
    let before = series(&live, "app", "inferred");
    talk(5);
    live.wait_for("the new model labels", |live| series(live, "app", "inferred") >= before + 5.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);
}
