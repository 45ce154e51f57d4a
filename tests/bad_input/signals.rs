//! Ctrl-C ends a replay cleanly: what was done so far is written out and adds up.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::packets::{conversation, pcap, read_capture, record_offsets};
use crate::common::{Finished, SIMULATED, fenxi, fenxi_asking_once, json_lines, sum};

fn interrupt(child: &Child) {
    // The shell's own kill: a program of that name is not everywhere.
    let kill = format!("kill -INT {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.expect("there is a shell").success());
}

/// Reads the first line of what the child says, then interrupts it and waits for its end.
fn interrupt_after_first_line(mut child: Child) -> Finished {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut told = String::new();
    stdout.read_line(&mut told).unwrap();
    interrupt(&child);
    stdout.read_to_string(&mut told).unwrap();
    let mut finished = Finished::from_output(child.wait_with_output().unwrap());
    finished.stdout = told;
    finished
}

/// A conversation that reaches its label within 12 ms and goes on after an hour.
fn with_a_pause() -> Vec<u8> {
    let mut bytes = pcap(conversation(false, 4000, 30));
    for at in record_offsets(&bytes).into_iter().skip(20) {
        // The seconds come first in a record.
        let seconds = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        bytes[at..at + 4].copy_from_slice(&(seconds + 3600).to_le_bytes());
    }
    bytes
}

#[test]
fn a_paced_replay_is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let [input, tagged] = ["in.pcap", "tagged.pcap"].map(|name| dir.path().join(name));
    std::fs::write(&input, with_a_pause()).unwrap();
    let mut command = fenxi_asking_once(["replay", "--speed", "real", "--flows", "-"]);
    command.arg(&input).arg("--write").arg(&tagged).args(SIMULATED);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let finished = interrupt_after_first_line(command.spawn().unwrap()).expect_code(0);
    assert!(finished.stderr.contains("fenxi: interrupted; "), "{}", finished.stderr);
    let records: Vec<serde_json::Value> =
        finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: Vec<_> = records.iter().map(|record| record["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["label", "flow"]);
    let flow = &records[1];
    assert_eq!((&flow["end_reason"], &flow["final"]), (&"drain".into(), &true.into()));
    // The label may have come before the last of the 20 packets.
    let packets = flow["packets_fwd"].as_u64().unwrap() + flow["packets_rev"].as_u64().unwrap();
    assert!((10..=20).contains(&packets), "{packets}");
    assert_eq!(read_capture(&tagged).len() as u64, packets);
}

#[test]
fn the_sums_of_an_interrupted_replay_balance() {
    let dir = tempfile::tempdir().unwrap();
    let [input, records] = ["in.pcap", "flows.jsonl"].map(|name| dir.path().join(name));
    std::fs::write(&input, with_a_pause()).unwrap();
    let mut command = fenxi_asking_once(["replay", "--speed", "real", "--json"]);
    command.arg(&input).arg("--flows").arg(&records).args(SIMULATED);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // Its record of the label shows that the replay has come to the pause.
    while !std::fs::read_to_string(&records).is_ok_and(|text| text.contains("\"label\"")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    interrupt(&child);
    let finished = Finished::from_output(child.wait_with_output().unwrap()).expect_code(0);
    let summary = finished.json();
    assert_eq!(summary["interrupted"], true);
    assert_eq!(summary["packets"], sum(&summary["verdicts"]));
    assert_eq!((&summary["flows"]["begun"], sum(&summary["flows"]["ended"])), (&1.into(), 1));
    assert_eq!(json_lines(&records).last().unwrap()["final"], true);
}

/// Waits until the child handles SIGINT (signal 2, bit 1 of the caught ones).
fn wait_until_ready(child: &Child) {
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        Some(u64::from_str_radix(caught.trim(), 16).ok()? & 2 != 0)
    };
    while catches() != Some(true) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn standard_input_that_falls_silent_is_interrupted() {
    let mut command = fenxi(["replay", "-", "--json"]);
    command.args(SIMULATED);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Inside a packet: the cut is ours, and no fault of the capture.
    let bytes = pcap(conversation(false, 4000, 30));
    stdin.write_all(&bytes[..bytes.len() - 3]).unwrap();
    wait_until_ready(&child);
    interrupt(&child);
    let finished = Finished::from_output(child.wait_with_output().unwrap()).expect_code(0);
    drop(stdin);
    assert_eq!(finished.stderr, "");
    assert_eq!(finished.json()["interrupted"], true);
}
