//! Programs that read records from `records.socket`: many, slow, gone, and ones that talk.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::common;
use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::export::{WATCH, generate};

/// A run with a socket of records, and a file of the same if asked for.
fn start(lab: &Lab, dir: &Path, more: &[&str]) -> (Live, PathBuf) {
    let socket = dir.join("records.sock");
    let set = format!("records.socket={}", socket.display());
    let mut args = WATCH.to_vec();
    args.extend(["--set", &set]);
    args.extend(more);
    (Live::start(lab, "host", &args), socket)
}

fn lab(test: &str, tools: &[&str]) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], tools)?;
    lab.wire_within("host", "a", "b");
    Some(lab)
}

/// A program that copies the socket to a file.
fn socat(socket: &Path, to: &Path) -> Child {
    let mut command = Command::new("socat");
    let from = format!("UNIX-CONNECT:{}", socket.display());
    command.args(["-u", &from, &format!("CREATE:{}", to.display())]);
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// The same in Python, which many scripts will be.
fn python(socket: &Path, to: &Path) -> Child {
    let script = "import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
with open(sys.argv[2], 'wb', 0) as out:
    while chunk := s.recv(65536):
        out.write(chunk)
";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(socket).arg(to);
    command.spawn().unwrap()
}

fn readers(live: &Live, count: f64) {
    live.wait_for("readers", |live| live.metric_sum("fenxi_record_readers") == count);
}

fn lines(live: &Live, outcome: &str) -> f64 {
    let outcome = format!("outcome=\"{outcome}\"");
    live.samples_with("fenxi_record_lines_total", &outcome).iter().sum()
}

fn flows_are_over(live: &Live) {
    live.wait_for("all flows are over", |live| live.metric_sum("fenxi_flow_table_entries") == 0.0);
}

#[test]
fn readers_get_what_the_file_has_while_one_stalls_and_one_talks() {
    let Some(lab) = lab("readers", &["socat", "python3"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("flows.jsonl");
    let path = format!("records.path={}", file.display());
    let more = ["--set", &path, "--set", "records.socket_kib=2048"];
    let (live, socket) = start(&lab, dir.path(), &more);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let copies = ["socat", "python"].map(|name| dir.path().join(name));
    let mut programs = [socat(&socket, &copies[0]), python(&socket, &copies[1])];
    readers(&live, 2.0);
    let stalled = UnixStream::connect(&socket).unwrap();
    let mut talking = UnixStream::connect(&socket).unwrap();
    talking.set_nonblocking(true).unwrap();
    while talking.write(&[b'x'; 4096]).is_ok() {}
    readers(&live, 4.0);
    generate(&lab, 3000, 4000);
    flows_are_over(&live);
    let vanishes = UnixStream::connect(&socket).unwrap();
    readers(&live, 5.0);
    drop(vanishes);
    readers(&live, 4.0);
    live.wait_for("one is too slow", |live| lines(live, "lost") > 0.0);
    // It reads at last, and is told.
    let told = Arc::new(AtomicU64::new(0));
    let so_far = told.clone();
    let reading = std::thread::spawn(move || {
        let lines = BufReader::new(stalled).lines().map_while(Result::ok);
        let read = lines.map(|line| {
            let record: Value = serde_json::from_str(&line).unwrap();
            so_far.fetch_add(record["records"].as_u64().unwrap_or(1), Ordering::Relaxed);
            record
        });
        read.collect::<Vec<Value>>()
    });
    // What it may be behind has room then: the kernel holds less than these for it.
    live.wait_for("it reads", |_| told.load(Ordering::Relaxed) > 1000);
    generate(&lab, 500, 200);
    flows_are_over(&live);
    drop(talking);
    readers(&live, 3.0);
    // The end of a run does not wait long for readers.
    live.wait_for("all have read what is written", |live| {
        let written = fs::read_to_string(&file).unwrap();
        let flows = written.lines().filter(|line| line.contains("\"type\":\"flow\"")).count();
        let is_copied = |copy: &PathBuf| {
            fs::metadata(copy).is_ok_and(|copy| copy.len() == written.len() as u64)
        };
        flows as f64 == live.metric_sum("fenxi_flows_ended_total")
            && copies.iter().all(is_copied)
            && told.load(Ordering::Relaxed) == written.lines().count() as u64
    });
    live.terminate(0);
    let ended = programs.iter_mut().all(|it| it.wait().unwrap().success());
    assert!(ended && !socket.exists());
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.lines().count() > 4200);
    for copy in &copies {
        assert!(fs::read_to_string(copy).unwrap() == written, "{copy:?} differs");
    }
    let read = reading.join().unwrap();
    let of_type = |wanted: &str| read.iter().filter(|it| it["type"] == wanted).count() as u64;
    let lost = read.iter().filter(|it| it["type"] == "lost");
    let lost: u64 = lost.map(|it| it["records"].as_u64().unwrap()).sum();
    assert!(lost > 0);
    let all = of_type("label") + of_type("flow") + lost;
    assert_eq!(all, written.lines().count() as u64);
    let schema: Value = {
        let path = common::root().join("docs/records.schema.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let schema = jsonschema::validator_for(&schema).unwrap();
    read.iter().for_each(|it| assert!(schema.is_valid(it), "{it}"));
}

#[test]
fn a_socket_needs_no_file_and_a_second_run_does_not_take_it() {
    let Some(lab) = lab("socket-only", &[]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (live, socket) = start(&lab, dir.path(), &[]);
    generate(&lab, 1000, 50);
    flows_are_over(&live);
    let reader = UnixStream::connect(&socket).unwrap();
    readers(&live, 1.0);
    generate(&lab, 1000, 50);
    flows_are_over(&live);
    let set = format!("records.socket={}", socket.display());
    let mut second = common::live::fenxi_on(&lab, "host", &[]);
    second.args(["run"]).args(WATCH);
    second.args(["--set", &set, "--set", "control.http=", "--set", "control.socket="]);
    let second = common::run(second).expect_code(69);
    assert!(
        second.stderr.contains("records.socket: ")
            && second.stderr.contains("in use by fenxi, process "),
        "{}",
        second.stderr
    );
    live.terminate(0);
    let lines = BufReader::new(reader).lines().map(Result::unwrap);
    let flows = lines.filter(|line| line.contains("\"type\":\"flow\""));
    // One that ended just before may still have been in the queue.
    let count = flows.count();
    assert!((50..100).contains(&count), "{count} since it came");
    assert!(!socket.exists());
}
