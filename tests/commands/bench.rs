//! `model bench`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ran;
use crate::common::{Finished, demo, fenxi, has_onnxruntime, json_lines, root, run, shared, skip};

/// Flows that look like DNS, whatever their label.
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
fn bench_gives_the_rows_computed_by_hand() {
    if !has_onnxruntime() {
        return skip("bench_gives_the_rows_computed_by_hand", "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    let report = bench(&dir, TABLE.as_bytes(), &["--json"]).expect_code(0).json();
    assert_eq!(
        report["rows"],
        json!({
            "rows": 13, "unlabelled": 1, "uncertain": 1, "not_in_bundle": 0, "midstream": 1,
            "short": 1, "scored": 9,
        })
    );
    assert_eq!(report["others_are"], "unknown");
    assert_eq!(report["other_labels"], json!([{"label": "Zabbix", "flows": 1}]));
    // The port names each flow, the short one with its SYN.
    assert_eq!(report["names"]["flows"], 10);
    assert_near(&report["names"]["named"], 1.0);
    assert_near(&report["names"]["right"], 0.5);
    assert!(report["speed"]["rows_per_second"].as_f64().unwrap() > 0.0);

    let rows = dir.path().join("rows.csv");
    let option = ["--rows", rows.to_str().unwrap()];
    let text = bench(&dir, TABLE.as_bytes(), &option).expect_code(0).stdout;
    for part in [
        "1  count as unknown, because the bundle does not have the label: Zabbix 1",
        "100.0 % of 10 flows get a name, 0.500 of those are right",
        "rows per second in batches of 256",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let rows = fs::read_to_string(rows).unwrap();
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 11);
    assert_eq!(rows[0], ["line", "truth", "label", "confidence", "decided_by"]);
    assert_eq!(rows[1][..3], ["2", "DNS", "DNS"]);
    assert_eq!(rows[5][..3], ["6", "unknown", "DNS"]);
    assert_eq!((&rows[10][..3], rows[10][4]), (&["12", "TLS", "TLS"][..], "port"));
}

/// Prints how many rows of `model bench` and of the Python package have the same name, of all.
const COMPARE: &str = r#"
import csv, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "models/train")
from fenxi_train import bundle, calibrate, data, ports, runtime
folder, table, column, rows = sys.argv[1:]
made = bundle.read(folder)
flows = data.of_bundle(made, [table], column)
by_port = ports.guesses(flows, made.port_classes)
if made.contradiction:
    flows = ports.hidden(flows, by_port)
depths, session = made.input.depths, made.session()
ask = lambda depth: runtime.run_all(session, made.input.cut(flows.series, depth), flows.seen_context())
least = made.manifest["min_confidence"]
answers = {depth: ask(depth) for depth in depths}
named, _ = calibrate.walk(flows, answers, depths, made.confidences, least, by_port, made.contradiction)
names = [(flows.names[own] if own >= 0 else "") for own in named[~flows.midstream]]
shown = [row["label"] for row in csv.DictReader(open(rows))]
assert len(names) == len(shown), (len(names), len(shown))
none = ("", "unknown", "other")
print(sum(a == b or (a in none and b in none) for a, b in zip(names, shown)), len(names))
"#;

/// The names equal the Python package's, which scores bundles.
#[test]
fn bench_gives_the_names_of_the_python_package() {
    let test = "bench_gives_the_names_of_the_python_package";
    let python = root().join("target/venv/bin/python");
    let Some(tables) = shared("labelled") else {
        return skip(test, "shared/data/labelled");
    };
    if !has_onnxruntime() || !python.exists() {
        return skip(test, "ONNX Runtime, or target/venv (make target/venv)");
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, column, table) in
        [("protocol", "protocol", "cross.csv.gz"), ("iot-family", "family", "iot.csv.gz")]
    {
        let (bundle, table) = (root().join("models").join(name), tables.join(table));
        let rows = dir.path().join(name);
        let option = ["--column", column, "--rows", rows.to_str().unwrap()];
        bench_of(&bundle, &table, &option).expect_code(0);
        let mut compare = Command::new(&python);
        compare.current_dir(root()).args(["-c", COMPARE]);
        compare.args([&bundle, &table]).arg(column).arg(&rows);
        let output = compare.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let counts: Vec<usize> = said.split_whitespace().flat_map(str::parse).collect();
        assert!(
            counts.len() == 2 && counts[0] == counts[1] && counts[1] > 1000,
            "{name}: {said}{errors}"
        );
    }
}

/// Flows end with the same names as in a replay.
#[test]
fn bench_names_flows_as_a_replay_does() {
    if !has_onnxruntime() {
        return skip("bench_names_flows_as_a_replay_does", "ONNX Runtime");
    }
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("records.jsonl");
    let mut replay = fenxi(["replay", "--series", "--flows"]);
    replay.arg(&records).arg("--model").arg(protocol()).arg(demo());
    run(replay).expect_code(0);
    let records = json_lines(&records);
    // A table has no ICMP, of which no model is asked.
    let is_asked = |flow: &Value| flow["proto"] == 6 || flow["proto"] == 17;
    let flows = records.iter().filter(|it| it["type"] == "flow" && it["final"] == true);
    let flows: Vec<&Value> = flows.filter(|it| is_asked(it)).collect();
    let mut table = "proto,dport,midstream,data_lengths,label\n".to_owned();
    for flow in &flows {
        let lengths = flow["series"].as_array().into_iter().flatten().map(Value::to_string);
        let lengths: Vec<String> = lengths.collect();
        let label = flow["label"].as_str().unwrap_or("unknown");
        let [proto, dport, midstream] =
            ["proto", "dst_port", "midstream"].map(|field| &flow[field]);
        table += &format!("{proto},{dport},{midstream},{},{label}\n", lengths.join(" "));
    }
    let rows = dir.path().join("rows.csv");
    let option = ["--json", "--rows", rows.to_str().unwrap()];
    let names = &bench(&dir, table.as_bytes(), &option).expect_code(0).json()["names"];
    assert_eq!((&names["flows"], &names["right"]), (&flows.len().into(), &1.0.into()));
    let mut rows = csv::Reader::from_path(&rows).unwrap();
    let rows = rows.records().map(Result::unwrap);
    for (flow, row) in flows.iter().zip(rows) {
        let wanted = flow["label"].as_str().unwrap_or_default();
        assert_eq!(&row[2], wanted, "{flow}");
        let (shown, wanted) = (row[3].parse::<f64>().unwrap(), &flow["confidence"]);
        if let Some(wanted) = wanted.as_f64() {
            assert!((shown - wanted).abs() < 2e-4, "{row:?} {flow}");
        }
        assert_eq!(&row[4] == "port", flow["decided_by"] == "port", "{flow}");
    }
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
        (Vec::new(), "empty; a table begins with a line of column names"),
        (with(""), "no flows below the line of column names"),
        (b"proto,dport,label\n".to_vec(), "line 1: no column `data_lengths`"),
        (
            b"proto,dport,data_lengths,family\n".to_vec(),
            "line 1: no column `label`; name one with --column: ",
        ),
        (with("17,53,60,DNS\n17,53,60\n"), "line 3: 3 cells for 4 columns"),
        (with("17,53,60 x7,DNS\n"), "line 2: \"x7\": invalid digit"),
        (with("17,dns,60,DNS\n"), "line 2: dport: \"dns\""),
        (with("1,53,60,DNS\n"), "line 2: proto: 1; "),
        (with("17,53,60,DNS\n"), "all flows have one class in `label`, DNS; "),
        (with("17,53,60,\u{1b}[31m\n"), "no label in `label` (\\u{1b}[31m, …)"),
        ([head.as_bytes(), b"17,53,60,\xff\n"].concat(), "line 2: not UTF-8 text; "),
        (packed, "the gzip file is cut off or damaged ("),
        (long, "line 2: longer than 1024 KiB; "),
    ] {
        let refused = bench(&dir, &table, &[]).expect_code(65);
        assert!(
            refused.stderr.contains("flows.csv: ") && refused.stderr.contains(message),
            "{message}: {}",
            refused.stderr
        );
        assert_eq!((refused.stdout.as_str(), refused.stderr.lines().count()), ("", 1));
    }
    for table in ["/nowhere.csv", "/"] {
        bench_of(&protocol(), Path::new(table), &[]).expect_code(66);
    }
    ran(&["model", "bench", "models/protocol"]).expect_code(64);
}
