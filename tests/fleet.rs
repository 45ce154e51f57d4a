//! The views of `examples/fleet`, over records that the real program wrote.

use std::fs;
use std::process::Command;

use crate::common;

#[test]
fn clickhouse_and_duckdb_give_the_answers_that_the_records_give() {
    let python = common::root().join("target/fleet-venv/bin/python");
    if !python.exists() {
        let test = "clickhouse_and_duckdb_give_the_answers_that_the_records_give";
        return common::skip(test, "target/fleet-venv (make target/fleet-venv)");
    }
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("flows.jsonl");
    let mut command = common::fenxi(["replay", "--set", "flow.active_timeout_s=5"]);
    command.arg(common::demo()).arg("--flows").arg(&records);
    common::run(command).expect_code(0);
    // Hosts with private addresses on either side, hours of several days.
    let moved = fs::read_to_string(&records).unwrap();
    let moved = moved.replace("\"src\":\"192.0.2.1", "\"src\":\"10.0.0.1");
    let moved = moved.replace("\"dst\":\"198.51.100.8", "\"dst\":\"fd00::8");
    let moved = moved.replace("\"2026-11-21T00:", "\"2026-11-24T03:");
    fs::write(&records, fs::read_to_string(&records).unwrap() + &moved).unwrap();
    let check = common::root().join("tests/fleet/check.py");
    let output = Command::new(python).arg(check).arg(&records).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.lines().count() == 5, "{said}{wrong}");
}
