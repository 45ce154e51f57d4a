//! `fenxi-lab generate`: what its copies have of their originals, when they come, and where they
//! go.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod common;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use common::packets::{RAW_IP, capture, ipv4, read_capture, record_offsets, timed, udp};
use common::{
    Finished, SIMULATED, demo, demo_packets, fenxi, fenxi_lab, json_lines, root, run, skip,
};

/// Runs `fenxi-lab` with these arguments.
fn ran<S: AsRef<OsStr>>(args: &[S]) -> Finished {
    run(fenxi_lab(args))
}

/// The summary of a mix, written to `to`.
fn generated(to: &Path, args: &[&str]) -> Value {
    let mut command = fenxi_lab(["generate", "--json", "--to"]);
    command.arg(to).args(args);
    run(command).expect_code(0).json()
}

/// The flow records of a replay, whose labels are a fixed function of the series.
fn flows_of(capture: &Path) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("flows.jsonl");
    let mut command = fenxi(["replay", "--series", "--flows"]);
    command.arg(&records).arg(capture).args(SIMULATED);
    command.args(["--set", "flow.active_timeout_s=0"]);
    run(command).expect_code(0);
    let mut flows = json_lines(&records);
    flows.retain(|record| record["type"] == "flow");
    flows
}

/// What a copy has of its original: all but who and when, and how the end of the capture found it.
fn lasting(flow: &Value) -> String {
    let is_v6 = flow["src"].as_str().unwrap().contains(':');
    let ports = ["src_port", "dst_port"].map(|port| flow[port].as_u64().unwrap());
    let fields = [
        "proto",
        "midstream",
        "packets_fwd",
        "packets_rev",
        "bytes_fwd",
        "bytes_rev",
        "series",
        "series_us",
    ];
    let values = fields.map(|field| {
        let value = &flow[field];
        assert!(!value.is_null(), "{field} in {flow}");
        value.to_string()
    });
    // In the shipped capture the server's port is the lower one, as in all copies of it.
    format!("{is_v6} {} {}", ports[0].min(ports[1]), values.join(" "))
}

#[test]
fn copies_are_flows_like_their_originals_with_the_same_labels() {
    let dir = tempfile::tempdir().unwrap();
    let mix = dir.path().join("mix.pcap");
    let summary = generated(&mix, &["--flows", "1000", "--flows-per-s", "200"]);
    assert_eq!(summary["flows"]["begun"], 1000);
    assert_eq!(summary["flows"]["originals"], 444);
    let page = fs::read_to_string(root().join("docs/bench.md")).unwrap();
    for field in summary.as_object().unwrap().keys() {
        let named = [format!("`{field}`"), format!("`{field}.")];
        assert!(named.iter().any(|name| page.contains(name)), "{field}");
    }

    let labels: HashMap<String, Value> =
        flows_of(&demo()).iter().map(|flow| (lasting(flow), flow["label"].clone())).collect();
    let copies = flows_of(&mix);
    assert_eq!(copies.len(), 1000);
    let labelled = copies.iter().filter(|copy| !copy["label"].is_null());
    assert!(labelled.count() > 300);
    let mut copied = HashSet::new();
    for copy in &copies {
        let original = lasting(copy);
        let label = labels.get(&original);
        assert_eq!(label, Some(&copy["label"]), "{copy}");
        copied.insert(original);
    }
    // Most flows that can be told apart were drawn.
    assert!(copied.len() * 10 > labels.len() * 8, "{}", copied.len());
    let ends: HashSet<String> =
        copies.iter().map(|copy| copy["community_id"].to_string()).collect();
    assert_eq!(ends.len(), 1000);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let [one, same, other] = ["one", "same", "other"].map(|name| dir.path().join(name));
    let args = ["--seconds", "2", "--flows-per-s", "300", "--seed"];
    generated(&one, &[&args[..], &["7"]].concat());
    generated(&same, &[&args[..], &["7"]].concat());
    generated(&other, &[&args[..], &["8"]].concat());
    let bytes = [one, same, other].map(|path| fs::read(path).unwrap());
    assert!(bytes[0] == bytes[1]);
    assert!(bytes[0] != bytes[2]);
    // On stdout, and from the capture by its name.
    let mut command = fenxi_lab(["generate", "--to", "-", "--seed", "7"]);
    command.args(&args[..4]).arg(demo());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.stdout == bytes[0]);
}

#[test]
fn flows_arrive_at_the_rate_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mix = dir.path().join("mix.pcap");
    // 4000 expected, with a standard deviation of 63.
    let args = ["--flows-per-s", "400", "--seconds", "10"];
    let begun = generated(&mix, &args)["flows"]["begun"].as_u64().unwrap();
    assert!((3800..4200).contains(&begun), "{begun}");

    // Gaps of a Poisson process have a standard deviation of their mean.
    let mut clients = HashSet::new();
    let mut arrivals_us = Vec::new();
    for (frame, bytes) in read_capture(&mix) {
        let headers = flowmgr::wire::parse(frame.link, &bytes).unwrap();
        if clients.insert(headers.key) {
            arrivals_us.push(frame.time_us);
        }
    }
    assert_eq!(arrivals_us.len() as u64, begun);
    let gaps = arrivals_us.windows(2).map(|two| (two[1] - two[0]) as f64);
    let mean = gaps.clone().sum::<f64>() / (begun - 1) as f64;
    let variance = gaps.map(|gap| (gap - mean).powi(2)).sum::<f64>() / (begun - 1) as f64;
    assert!((2375.0..2625.0).contains(&mean), "{mean}");
    assert!((0.9..1.1).contains(&(variance.sqrt() / mean)), "{variance}");
}

#[test]
fn wireshark_takes_it_and_finds_the_checksums_right() {
    let dir = tempfile::tempdir().unwrap();
    for payload in ["zero", "copy"] {
        let mix = dir.path().join(payload);
        let args = ["--flows", "500", "--payload", payload];
        let packets = generated(&mix, &args)["packets"].as_u64().unwrap();
        let mut tshark = Command::new("tshark");
        for checked in ["ip", "tcp", "udp"] {
            tshark.args(["-o", &format!("{checked}.check_checksum:TRUE")]);
        }
        for field in ["ip", "tcp", "udp"] {
            tshark.args(["-e", &format!("{field}.checksum.status")]);
        }
        // Stops at TCP and UDP: what the payload would be is not asked.
        tshark.args(["-T", "fields", "-E", "separator=,", "-r"]).arg(&mix);
        let Ok(output) = tshark.stderr(Stdio::null()).output() else {
            return skip("wireshark_takes_it_and_finds_the_checksums_right", "tshark");
        };
        assert!(output.status.success());
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(told.lines().count() as u64, packets);
        for line in told.lines() {
            // Good, of IPv4 also in the header; and nothing else.
            assert!(["1,1,", "1,,1", ",1,", ",,1"].contains(&line), "{line}");
        }
    }
}

#[test]
fn a_replay_has_another_rate_and_the_same_frames() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("even.pcap");
    let summary = generated(&out, &["--replay", "--pps", "3000"]);
    assert_eq!(summary["packets"], demo_packets());
    assert!(summary["flows"].is_null());
    let (even, original) = (read_capture(&out), read_capture(&demo()));
    let start_us = original[0].0.time_us;
    assert_eq!(even.len(), original.len());
    for (at, (one, other)) in even.iter().zip(&original).enumerate() {
        assert_eq!(one.1, other.1);
        let time_us = start_us + at as i64 * 1_000_000 / 3000;
        assert_eq!(one.0.time_us, time_us);
    }
    // Two captures one after the other, into memory.
    let demo = demo();
    let args = ["--replay", "--pps", "1", demo.to_str().unwrap(), demo.to_str().unwrap()];
    let summary = generated(Path::new("memory"), &args);
    assert_eq!(summary["packets"], 2 * demo_packets());
    assert!(!root().join("memory").exists());
}

#[test]
fn raw_ip_becomes_ethernet() {
    let dir = tempfile::tempdir().unwrap();
    let [raw, mix] = ["raw", "mix"].map(|name| dir.path().join(name));
    let packets = (0..3).map(|i| ipv4([1, 2], 17, &udp([40_000, 53], i)));
    let format = packetio::CaptureFormat::Pcapng;
    fs::write(&raw, capture(format, &timed(RAW_IP, packets))).unwrap();
    generated(&mix, &["--flows", "2", raw.to_str().unwrap()]);
    let lengths = read_capture(&mix).into_iter().map(|(frame, _)| frame.captured);
    let mut lengths: Vec<u32> = lengths.collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [42, 42, 43, 43, 44, 44]);
}

#[test]
fn what_cannot_be_generated_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let [empty, cut] = ["empty.pcap", "cut.pcap"].map(|name| dir.path().join(name));
    fs::write(&empty, capture(packetio::CaptureFormat::Pcapng, &[])).unwrap();
    let whole = fs::read(demo()).unwrap();
    fs::write(&cut, &whole[..record_offsets(&whole)[20] + 5]).unwrap();
    let (empty, cut) = (empty.to_str().unwrap(), cut.to_str().unwrap());
    let nowhere = dir.path().join("no/out.pcap");
    for (args, code, part) in [
        (&["--to", "memory", "/nowhere.pcap"][..], 66, "/nowhere.pcap"),
        (&["--to", "memory", empty], 65, "no TCP or UDP flows"),
        (&["--to", "memory", cut], 65, "cut.pcap"),
        (&["--to", "memory", "--replay", "--pps", "9", cut], 65, "cut.pcap"),
        (&["--to", nowhere.to_str().unwrap()], 73, "cannot be created"),
        (&["--to", "/dev/full"], 74, "/dev/full: write failed"),
        (&["--to", "-", "--json"], 64, "both want stdout"),
        (&["--to", "memory", "-", "-"], 64, "read once only"),
    ] {
        let refused = ran(&[&["generate"], args].concat()).expect_code(code);
        assert_eq!(refused.stdout, "", "{args:?}");
        let told = refused.stderr.lines().filter(|line| line.starts_with("fenxi-lab: "));
        let told: Vec<&str> = told.collect();
        assert_eq!(told.len(), 1, "{args:?}: {}", refused.stderr);
        assert!(told[0].contains(part), "{args:?}: {}", told[0]);
    }
    for (args, part) in [
        (&[][..], "--interface"),
        (&["--to", "a", "--interface", "b"], "--interface"),
        (&["--to", "memory", "--replay"], "--pps"),
        (&["--to", "memory", "--replay", "--pps", "1", "--seed", "2"], "--seed"),
        (&["--to", "memory", "--flows", "0"], "--flows"),
        (&["--to", "memory", "--flows", "1", "--seconds", "1"], "--seconds"),
        (&["--to", "memory", "--flows-per-s", "0"], "--flows-per-s"),
        (&["--to", "memory", "--pps", "0"], "--pps"),
    ] {
        let refused = ran(&[&["generate"], args].concat()).expect_code(64);
        assert!(refused.stderr.contains(part), "{args:?}: {}", refused.stderr);
    }
}

#[test]
fn rules_are_as_many_as_asked_for_and_the_same_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let written = |name: &str, args: &[&str]| {
        let path = dir.path().join(name);
        let mut all = vec!["generate", "rules", "--rules", "700"];
        all.extend(args);
        all.push(path.to_str().unwrap());
        ran(&all).expect_code(0);
        fs::read_to_string(path).unwrap()
    };
    let one = written("one", &["--seed", "ipc1"]);
    let lines: std::collections::HashSet<&str> = one.lines().collect();
    assert_eq!((one.lines().count(), lines.len()), (700, 700));
    assert_eq!(one, written("same", &["--seed", "ipc1", "--random", "1"]));
    assert_ne!(one, written("other", &["--seed", "ipc1", "--random", "2"]));
    let v6 = written("v6", &["--seed", "ipc1", "--ipv6"]);
    assert_eq!(v6.lines().count(), 700);
    assert!(v6.lines().any(|line| line.starts_with("@2001:db8:")));

    let nowhere = dir.path().join("no/rules");
    let nowhere = nowhere.to_str().unwrap();
    for (args, code, part) in [
        (&["--seed", "acl9", "rules.txt"][..], 64, "there are acl1, acl2"),
        (&["--rules", "0", "rules.txt"], 64, "--rules"),
        (&[nowhere], 73, "cannot be created"),
    ] {
        let refused = ran(&[&["generate", "rules"], args].concat()).expect_code(code);
        assert!(refused.stderr.contains(part), "{args:?}: {}", refused.stderr);
    }
}

/// A namespace with a veth pair `a0`, `b0`; removed when dropped.
struct Netns(String);

impl Netns {
    /// `None` where this cannot be had.
    fn with_pair() -> Option<Netns> {
        let name = format!("fenxi-gen-{}", std::process::id());
        let added = Command::new("ip").args(["netns", "add", &name]).output();
        added.ok().filter(|output| output.status.success())?;
        let netns = Netns(name);
        netns.shell(
            "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; \
             ip link add a0 mtu 9000 type veth peer name b0 mtu 9000; \
             ip link set a0 up; ip link set b0 up; \
             until [ $(ip -o link show up | grep -c 'state UP') = 2 ]; do sleep 0.01; done",
        );
        Some(netns)
    }

    fn shell(&self, line: &str) -> String {
        let exec = ["netns", "exec", &self.0, "sh", "-ec", line];
        let output = Command::new("ip").args(exec).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The program, inside.
    fn fenxi_lab(&self, args: &[&str]) -> Command {
        let program = fenxi_lab(args);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]);
        command.arg(program.get_program()).args(program.get_args());
        command.current_dir(root());
        command
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn an_interface_sends_what_was_generated() {
    let test = "an_interface_sends_what_was_generated";
    let Some(netns) = Netns::with_pair() else {
        return skip(test, "root and ip");
    };
    let args = ["generate", "--json", "--interface", "a0", "--pps", "20000", "--flows", "300"];
    let summary = run(netns.fenxi_lab(&args)).expect_code(0).json();
    let sent = &summary["interface"];
    let count = |name: &str| sent[name].as_u64().unwrap();
    let packets = summary["packets"].as_u64().unwrap();
    assert_eq!(count("sent") + count("dropped") + count("too_long"), packets);
    let received = netns.shell("cat /sys/class/net/b0/statistics/rx_packets");
    assert_eq!(received.trim(), count("sent").to_string());
    assert!(count("sent") > packets / 2, "{summary}");
    // Not faster than asked.
    let wall_s = summary["wall_s"].as_f64().unwrap();
    assert!(wall_s >= (packets - 1) as f64 / 20_000.0, "{summary}");

    let refused = run(netns.fenxi_lab(&["generate", "--interface", "a1"])).expect_code(69);
    assert!(refused.stderr.contains("a1: no such interface; there are: "), "{}", refused.stderr);
    let mut command = Command::new("setpriv");
    let program = fenxi_lab(["generate", "--interface", "lo"]);
    command.args(["--bounding-set", "-net_raw"]);
    command.arg(program.get_program()).args(program.get_args());
    command.current_dir(root());
    if command.output().is_err() {
        return skip(test, "setpriv, to be without a capability");
    }
    let refused = run(command).expect_code(77);
    assert!(refused.stderr.contains("CAP_NET_RAW"), "{}", refused.stderr);
}

#[test]
fn a_signal_ends_it_in_order() {
    let mut command =
        fenxi_lab(["generate", "--json", "--replay", "--pps", "1", "--to", "memory", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Nothing ever comes through this pipe. The file of the capture would be read before the
    // signal.
    let pipe = child.stdin.take();
    let signals = format!("/proc/{}/status", child.id());
    let handles = |status: &str| {
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        caught & 1 << 14 != 0
    };
    while !handles(&fs::read_to_string(&signals).unwrap()) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let finished = Finished::from_output(child.wait_with_output().unwrap()).expect_code(0);
    drop(pipe);
    assert_eq!(finished.json()["interrupted"], true);
    assert_eq!(finished.json()["packets"], 0);
}
