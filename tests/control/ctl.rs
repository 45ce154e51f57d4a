//! `fenxi ctl`, and what the socket refuses.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{Finished, SIMULATED, demo, demo_packets, fenxi, naming_hosts, run, skip};
use crate::control::{PATIENCE, Served};

/// The reply to a line.
fn ask(stream: &mut UnixStream, line: &str) -> Value {
    let _ = stream.write_all(line.as_bytes());
    reply(stream)
}

fn reply(stream: &UnixStream) -> Value {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn connect(served: &Served) -> UnixStream {
    UnixStream::connect(served.ctl_path()).unwrap()
}

fn is_closed(mut stream: &UnixStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    matches!(stream.read(&mut [0]), Ok(0) | Err(_))
}

#[test]
fn a_running_replay_answers() {
    let mut served = Served::start(&["--speed", "max", "--flows", "/dev/null"]);
    served.wait_for_the_end();
    let status = served.ctl(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["code"], 200);
    assert_eq!(status["status"]["state"], "draining");
    let figures = status["status"]["figures"].as_array().unwrap();
    let packets = figures.iter().find(|figure| figure["name"] == "fenxi_port_packets_total");
    assert_eq!(packets.unwrap()["unit"], "packets");
    let page = served.ctl(&["status"]).expect_code(0).stdout;
    assert!(page.starts_with("draining: fenxi "), "{page}");
    assert!(page.lines().count() <= 24, "it fits a terminal:\n{page}");
    let widest = page.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{page}");
    let metrics = served.ctl(&["metrics"]).expect_code(0).stdout;
    assert!(
        metrics.contains("fenxi_series_emitted_total{pipeline=\"0\",task=\"default\"}"),
        "{metrics}"
    );
    let begins = |word: &str| page.lines().any(|line| line.starts_with(word));
    let first = ["traffic ", "labels ", "lost ", "latency "];
    assert!(first.iter().all(|word| begins(word)), "{page}");
    let overview = &status["status"]["overview"];
    assert_eq!(overview["packets"], demo_packets());
    assert!(overview["label_p99_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(
        (&overview["dropped"], &overview["series_lost"]),
        (&Value::from(0), &Value::from(0))
    );

    let threads = served.ctl(&["threads", "--json"]).expect_code(0).json();
    let names = threads["threads"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|thread| thread["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["flow-0.0", "analytics-0.0"]);
    assert_eq!(threads["threads"][0]["packets"], demo_packets());
    assert!(threads["threads"][1]["series"].as_u64() > Some(0));
    let page = served.ctl(&["threads"]).expect_code(0).stdout;
    assert!(page.contains("100.0 %"), "{page}");
    let devices = served.ctl(&["devices", "--json"]).expect_code(0).json();
    assert_eq!(devices["devices"][0]["state"], "up");

    let flows = served.ctl(&["flows", "--top", "5", "--json"]).expect_code(0).json();
    let bytes: Vec<u64> = flows["flows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|flow| flow["bytes"].as_u64().unwrap())
        .collect();
    assert!(bytes.len() == 5 && bytes.is_sorted_by(|a, b| a >= b), "{bytes:?}");
    let label = flows["flows"].as_array().unwrap().iter().find_map(|flow| flow["label"].as_str());
    let label = label.expect("a flow with a label");
    let page = served.ctl(&["flows", "--label", label]).expect_code(0).stdout;
    assert!(page.lines().skip(1).all(|line| line.contains(label)), "{page}");
    served.ctl(&["flows", "--label", "no-such-label"]).expect_code(65);
    for command in [&["reload"][..], &["log", "debug"], &["model", "load", "models/app-id-k10"]] {
        let refused = served.ctl(command).expect_code(69);
        assert!(refused.stderr.contains("not supported during a replay"), "{}", refused.stderr);
    }
    let (http, ctl) = (served.http_path(), served.ctl_path());
    let summary = served.drain();
    assert_eq!(summary["interrupted"], false);
    assert!(!http.exists() && !ctl.exists());
}

#[test]
fn hosts_are_listed_with_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = naming_hosts(dir.path());
    let bundle = bundle.to_str().unwrap();
    let mut served = Served::start(&["--speed", "max", "--model", bundle]);
    served.wait_for_the_end();
    // A thread of its own counts the last labels.
    served.wait_for("all labels are counted", |served| {
        let scrape = served.scrape();
        let unknown = scrape.sum("fenxi_labels_total", "label=\"unknown\"");
        let labels = scrape.sum("fenxi_labels_total", "") - unknown;
        labels > 0.0 && scrape.sum("fenxi_host_flows_total", "") == labels
    });
    let scrape = served.scrape();
    let listed = served.ctl(&["hosts", "--top", "1000", "--json"]);
    let listed = listed.expect_code(0).json();
    let hosts = listed["hosts"].as_array().unwrap();
    assert_eq!(hosts.len() as f64, scrape.sum("fenxi_hosts_tracked", ""));
    let flows: u64 = hosts.iter().map(|host| host["flows"].as_u64().unwrap()).sum();
    let counted = scrape.sum("fenxi_host_flows_total", "outcome=\"counted\"");
    assert_eq!(flows as f64, counted);
    let named: Vec<&Value> = hosts.iter().filter(|host| host["label"].is_string()).collect();
    assert_eq!(named.len() as f64, scrape.sum("fenxi_hosts", ""));
    assert!(named.iter().all(|host| host["confidence"].as_f64() > Some(0.0)));
    let times: Vec<&str> = hosts.iter().map(|host| host["last"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");

    let label = named[0]["label"].as_str().unwrap();
    let page = served.ctl(&["hosts", "--label", label]).expect_code(0).stdout;
    let mut lines = page.lines();
    assert!(lines.next().unwrap().starts_with("host "), "{page}");
    assert!(lines.all(|line| line.contains(label)), "{page}");
    served.ctl(&["hosts", "--label", "no-such-label"]).expect_code(65);
    let status = served.ctl(&["status"]).expect_code(0).stdout;
    let line = format!("hosts     {} named of {}", named.len(), hosts.len());
    assert!(status.lines().any(|it| it == line), "{status}");
    assert_eq!(served.drain()["hosts_named"], named.len());
}

#[test]
fn a_model_that_names_no_hosts_says_so() {
    let served = Served::start(&["--speed", "real"]);
    let refused = served.ctl(&["hosts"]).expect_code(69).stderr;
    assert!(refused.contains("this model does not name devices"), "{refused}");
}

#[test]
fn drain_ends_a_replay_before_its_time() {
    let served = Served::start(&["--speed", "real"]);
    let dir = served.ctl_path();
    let mut served = served;
    served.ctl(&["drain"]).expect_code(0);
    let child = served.child.take().unwrap();
    let summary = Finished::from_output(child.wait_with_output().unwrap()).expect_code(0).json();
    assert_eq!(summary["interrupted"], true);
    assert!(!dir.exists());
}

#[test]
fn nobody_listens_or_we_may_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ctl");
    let ctl = |path: &Path| {
        let mut command = fenxi(["ctl", "status", "--socket"]);
        command.arg(path);
        run(command)
    };
    assert!(ctl(&path).expect_code(69).stderr.contains("no fenxi listens"));
    // A socket that a dead program left.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    ctl(&path).expect_code(69);
}

#[test]
fn a_second_one_on_the_same_socket_is_refused() {
    let served = Served::start(&["--speed", "real"]);
    let mut command = fenxi(["replay", "--control"]);
    command.arg(demo()).args(SIMULATED).args(["--set", "control.http="]);
    command.args(["--set", &format!("control.socket={}", served.ctl_path().display())]);
    let finished = run(command).expect_code(69);
    assert!(finished.stderr.contains("in use by fenxi, process "), "{}", finished.stderr);
    served.ctl(&["status"]).expect_code(0);
}

#[test]
fn what_is_no_request_is_refused_and_the_next_one_is_answered() {
    let served = Served::start(&["--speed", "real"]);
    let mut stream = connect(&served);
    for line in [
        "\n",
        "status\n",
        "{\"command\":\"halt\"}\n",
        "{\"command\":\"flows\",\"top\":-1}\n",
        "\u{0}\n",
    ] {
        let reply = ask(&mut stream, line);
        assert_eq!(reply["code"], 400, "{line:?}: {reply}");
    }
    assert_eq!(ask(&mut stream, "{\"command\":\"threads\"}\n")["code"], 200);
    // Too long, with and without an end.
    for line in ["x".repeat(100_000), "y".repeat(5000) + "\n"] {
        let mut stream = connect(&served);
        assert_eq!(ask(&mut stream, &line)["code"], 413);
        assert!(is_closed(&stream));
    }
    served.ctl(&["status"]).expect_code(0);
}

/// Clients that send no request make room for new ones.
#[test]
fn the_slow_and_the_many_are_turned_away_and_others_are_served() {
    let served = Served::start(&["--speed", "real"]);
    let mut first = connect(&served);
    first.write_all(b"{\"command\":").unwrap();
    let streams: Vec<UnixStream> = (0..200).map(|_| connect(&served)).collect();
    for _ in 0..3 {
        served.ctl(&["status"]).expect_code(0);
    }
    assert_eq!(reply(&first)["code"], 503);
    assert_eq!(reply(&streams[0])["code"], 503);
    // Those that have a place and ask nothing lose it after a while.
    assert_eq!(reply(streams.last().unwrap())["code"], 408);
    assert!(is_closed(streams.last().unwrap()));
    served.ctl(&["status"]).expect_code(0);
}

/// The mode of the file keeps others out, and where somebody opens it, the credentials do.
#[test]
fn another_user_is_refused() {
    const NAME: &str = "another_user_is_refused";
    let served = Served::start(&["--speed", "real"]);
    let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let program = served.dir.path().join("fenxi");
    fs::copy(env!("CARGO_BIN_EXE_fenxi"), &program).unwrap();
    open(served.dir.path(), 0o755);
    let ask = |socket: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command.args(["ctl", "status", "--socket"]).arg(socket);
        command.current_dir("/").output()
    };
    let ctl = || ask(&served.ctl_path());
    let Some(output) = ctl().ok().filter(|_| is_root()) else {
        return skip(NAME, "root and setpriv");
    };
    let by_mode = Finished::from_output(output).expect_code(77);
    assert!(by_mode.stderr.contains("permission denied"), "{}", by_mode.stderr);
    // The socket of HTTP has its mode, and is the group's too.
    let http = Finished::from_output(ask(&served.http_path()).unwrap()).expect_code(77);
    assert!(http.stderr.contains("permission denied"), "{}", http.stderr);
    open(&served.ctl_path(), 0o666);
    let by_credentials = Finished::from_output(ctl().unwrap()).expect_code(77);
    assert!(by_credentials.stderr.contains("only root"), "{}", by_credentials.stderr);
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout == b"0\n")
}
