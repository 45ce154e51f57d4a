//! `model bench`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ran;
use crate::common::{Finished, demo, fenxi, has_onnxruntime, json_lines, root, run, shared, skip};

/// Flows that look like DNS, whatever their label. Of each capture, the other one is what the baselines learn from.
const TABLE: &str = "capture,proto,dport,flags,data_lengths,label,confidence\n\
                     a,17,53,,74 -129,DNS,dpi\n\
                     a,17,53,,74 -129,DNS,dpi\n\
                     a,17,53,,74 -129,DNS,\n\
                     a,17,53,,74 -129,TLS,dpi\n\
                     a,17,53,,74 -129,Zabbix,dpi\n\
                     b,17,53,,74 -129,DNS,dpi\n\
                     b,17,53,,74 -129,TLS,dpi\n\
                     b,17,53,,74 -129,TLS,dpi\n\
                     b,17,53,,74 -129,TLS,dpi\n\
                     b,6,80,24 16,300 -900,HTTP,dpi\n\
                     b,6,443,2,,TLS,dpi\n\
                     b,17,53,,74 -129,,dpi\n\
                     b,17,53,,74 -129,DNS,port\n";

fn protocol() -> PathBuf {
    root().join("models/protocol")
}

/// `model bench` of the bundle of protocols on a table in `dir`.
fn bench(dir: &TempDir, table: &[u8], more: &[&str]) -> Finished {
    let path = dir.path().join("flows.csv");
    fs::write(&path, table).unwrap();
    bench_of(&protocol(), &path, more)
}

fn bench_of(bundle: &Path, table: &Path, more: &[&str]) -> Finished {
    let mut command = fenxi(["model", "bench"]);
    command.arg(bundle).arg("--labels").arg(table).args(more);
    run(command)
}

fn assert_near(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

#[test]
fn bench_gives_the_scores_computed_by_hand() {
    if !has_onnxruntime() {
        return skip("bench_gives_the_scores_computed_by_hand", "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    let report = bench(&dir, TABLE.as_bytes(), &["--json"])
        .expect_code(0)
        .json();
    assert_eq!(
        report["rows"],
        json!({"rows": 13, "unlabelled": 1, "uncertain": 1, "not_in_bundle": 0, "midstream": 1, "short": 1, "scored": 9})
    );
    assert_eq!(report["others_are"], "unknown");
    assert_eq!(
        report["other_labels"],
        json!([{"label": "Zabbix", "flows": 1}])
    );
    let depths: Vec<_> = report["depths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["elements"])
        .collect();
    assert_eq!(depths, [1, 2]);
    for depth in report["depths"].as_array().unwrap() {
        assert_eq!(depth["flows"], 9);
        // All are called DNS: a precision of 4/9, a recall of 1. TLS and others have an F1 of 0.
        assert_near(&depth["accuracy"], 4.0 / 9.0);
        assert_near(&depth["macro_f1"], 8.0 / 13.0 / 3.0);
        // One bin.
        let bin = &depth["reliability"][0];
        assert_near(
            &depth["ece"],
            bin["probability"].as_f64().unwrap() - 4.0 / 9.0,
        );
        // Half of each other capture is right by its commonest class: TLS for a, DNS for b.
        for baseline in ["constant", "port_table", "prefix_table"] {
            let scores = &depth["baselines"][baseline];
            assert_near(&scores["accuracy"], 2.0 / 9.0);
            assert_near(&scores["macro_f1"], (0.25 + 2.0 / 9.0) / 3.0);
        }
    }
    assert_eq!(report["baselines"], json!({"folds": 2, "groups": 2}));
    // The port names each flow, the short one with its SYN.
    assert_eq!(report["names"]["flows"], 10);
    assert_near(&report["names"]["named"], 1.0);
    assert_near(&report["names"]["right"], 0.5);
    assert_eq!(
        report["names"]["confusions"],
        json!([{"label": "TLS", "name": "DNS", "flows": 4}, {"label": "unknown", "name": "DNS", "flows": 1}])
    );

    let grouped = bench(&dir, TABLE.as_bytes(), &["--json", "--group", "dport"]);
    assert_eq!(
        grouped.expect_code(0).json()["baselines"],
        json!({"folds": 3, "groups": 3})
    );

    let text = bench(&dir, TABLE.as_bytes(), &[]).expect_code(0).stdout;
    for part in [
        "1  count as unknown, because the bundle does not have the label: Zabbix 1",
        "by 2 folds of 2 groups of flows",
        "Names that flows end with: 100.0 % of 10 flows get one, 0.500 of those are right.",
        "4  TLS named DNS",
        "of 256",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The scores are those of the Python package on the flows of others.
#[test]
fn bench_gives_the_scores_of_the_python_package() {
    let test = "bench_gives_the_scores_of_the_python_package";
    let python = root().join("target/venv/bin/python");
    let Some(tables) = shared("labelled") else {
        return skip(test, "shared/data/labelled");
    };
    if !has_onnxruntime() || !python.exists() {
        return skip(test, "ONNX Runtime, or target/venv (make target/venv)");
    }
    for (name, column, table) in [
        ("protocol", "protocol", "cross.csv.gz"),
        ("iot-family", "family", "iot.csv.gz"),
    ] {
        let (bundle, table) = (root().join("models").join(name), tables.join(table));
        let report = bench_of(&bundle, &table, &["--column", column, "--json"])
            .expect_code(0)
            .stdout;
        let mut check = Command::new(&python);
        check
            .arg(root().join("scripts/check_bench.py"))
            .args([&bundle, &table])
            .arg(column);
        check
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut check = check.spawn().unwrap();
        check
            .stdin
            .take()
            .unwrap()
            .write_all(report.as_bytes())
            .unwrap();
        let output = check.wait_with_output().unwrap();
        let (said, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(said, "5 depths and the names agree\n", "{name}: {errors}");
    }
}

/// The names that flows end with are those of a replay.
#[test]
fn bench_names_flows_as_a_replay_does() {
    if !has_onnxruntime() {
        return skip("bench_names_flows_as_a_replay_does", "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("records.jsonl");
    let mut replay = fenxi(["replay", "--series", "--flows"]);
    replay
        .arg(&records)
        .arg("--model")
        .arg(protocol())
        .arg(demo());
    run(replay).expect_code(0);
    let records = json_lines(&records);
    let flows = records
        .iter()
        .filter(|it| it["type"] == "flow" && it["final"] == true);
    let flows: Vec<&Value> = flows.collect();
    let mut table = "proto,dport,midstream,data_lengths,label\n".to_owned();
    for flow in &flows {
        let lengths = flow["series"]
            .as_array()
            .into_iter()
            .flatten()
            .map(Value::to_string);
        let lengths: Vec<String> = lengths.collect();
        let label = flow["label"].as_str().unwrap_or("unknown");
        let [proto, dport, midstream] =
            ["proto", "dst_port", "midstream"].map(|field| &flow[field]);
        table += &format!(
            "{proto},{dport},{midstream},{},{label}\n",
            lengths.join(" ")
        );
    }
    let names = &bench(&dir, table.as_bytes(), &["--json"])
        .expect_code(0)
        .json()["names"];
    assert_eq!(
        (&names["flows"], &names["right"]),
        (&flows.len().into(), &1.0.into())
    );
    assert_eq!(names["confusions"], json!([]));
    let decided_by = names["decided_by"].as_array().unwrap();
    let by_port = decided_by.iter().find(|it| it["by"] == "port").unwrap();
    let own = flows.iter().filter(|it| it["decided_by"] == "port").count() as f64;
    assert_near(&by_port["flows"], own / flows.len() as f64);
}

#[test]
fn bench_overwrites_no_file_but_its_own_plots() {
    if !has_onnxruntime() {
        return skip("bench_overwrites_no_file_but_its_own_plots", "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    let plots = dir.path().join("plots");
    let option = ["--plots", plots.to_str().unwrap()];
    for _ in 0..2 {
        bench(&dir, TABLE.as_bytes(), &option).expect_code(0);
    }
    let mut names: Vec<_> = fs::read_dir(&plots)
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["confusion.svg", "reliability-1.svg", "reliability-2.svg"]
    );
    let matrix = fs::read_to_string(plots.join("confusion.svg")).unwrap();
    assert!(
        matrix.contains(">DNS</text>") && matrix.ends_with("</svg>\n"),
        "{matrix}"
    );

    fs::write(plots.join("confusion.svg"), "mine").unwrap();
    let refused = bench(&dir, TABLE.as_bytes(), &option).expect_code(73);
    assert!(
        refused
            .stderr
            .contains("confusion.svg: exists and was not written by this command"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        (
            refused.stdout.as_str(),
            fs::read_to_string(plots.join("confusion.svg"))
                .unwrap()
                .as_str()
        ),
        ("", "mine")
    );
}

#[test]
fn bench_refuses_bad_tables_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    for line in TABLE.lines().cycle().take(2000) {
        writeln!(packed, "{line}").unwrap();
    }
    let mut packed = packed.finish().unwrap();
    packed.truncate(packed.len() - 10);
    let head = "proto,dport,data_lengths,label\n";
    let with = |rows: &str| format!("{head}{rows}").into_bytes();
    let long = with(&"60 ".repeat(1 << 20));
    for (table, message) in [
        (
            Vec::new(),
            "empty; a table begins with a line of column names",
        ),
        (with(""), "no flows below the line of column names"),
        (
            b"proto,dport,label\n".to_vec(),
            "line 1: no column `data_lengths`",
        ),
        (
            b"proto,dport,data_lengths,family\n".to_vec(),
            "line 1: no column `label`; name one with --column: ",
        ),
        (
            with("17,53,60,DNS\n17,53,60\n"),
            "line 3: 3 cells for 4 columns",
        ),
        (with("17,53,60 x7,DNS\n"), "line 2: \"x7\": invalid digit"),
        (with("17,dns,60,DNS\n"), "line 2: dport: \"dns\""),
        (with("1,53,60,DNS\n"), "line 2: proto: 1; "),
        (
            with("17,53,60,DNS\n"),
            "all flows have one class in `label`, DNS; ",
        ),
        (
            with("17,53,60,\u{1b}[31m\n"),
            "no label in `label` (\\u{1b}[31m, …)",
        ),
        (
            [head.as_bytes(), b"17,53,60,\xff\n"].concat(),
            "line 2: not UTF-8 text; ",
        ),
        (packed, "the gzip file is cut off or damaged ("),
        (long, "line 2: longer than 1024 KiB; "),
    ] {
        let refused = bench(&dir, &table, &[]).expect_code(65);
        assert!(
            refused.stderr.contains("flows.csv: ") && refused.stderr.contains(message),
            "{message}: {}",
            refused.stderr
        );
        assert_eq!(
            (refused.stdout.as_str(), refused.stderr.lines().count()),
            ("", 1)
        );
    }
    for table in ["/nowhere.csv", "/"] {
        bench_of(&protocol(), Path::new(table), &[]).expect_code(66);
    }
    let grouped = bench(&dir, TABLE.as_bytes(), &["--group", "host"])
        .expect_code(65)
        .stderr;
    assert!(
        grouped.contains("line 1: no column `host`; name one with --group: capture, "),
        "{grouped}"
    );
    ran(&["model", "bench", "models/protocol"]).expect_code(64);
    let simulated = bench(&dir, TABLE.as_bytes(), &["--device", "simulated"])
        .expect_code(64)
        .stderr;
    assert!(
        simulated.contains("computes no probabilities to score; name another --device"),
        "{simulated}"
    );
}
