//! The memory of servers, through the real program: a model that reads only what it says, and a
//! capture in which a server's first flow has ended before the next begins.

use crate::common;
use crate::common::lab::{Lab, skip};
use crate::common::live::{Live, fenxi_on};
use crate::common::packets::{ETHERNET, capture, ethernet, ipv4, timed, udp, whole};

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use packetio::{Backend, CaptureFormat, CaptureReader, Received, Rx, Selection};
use serde_json::Value;

/// Calls flows `large` if their server's flows weighed 64 KiB or more.
fn bundle() -> PathBuf {
    common::root().join("tests/bundles/server-volume")
}

/// Host 1 gets 100 kB from host 2. A minute later it asks host 2 again, and host 5 for the first
/// time. Hosts 3 and 4 talk all the time.
fn heavy_then_light() -> Vec<u8> {
    let from = |hosts, ports, bytes| ethernet(0x0800, &ipv4(hosts, 17, &udp(ports, bytes)));
    let heavy = (0..101).map(|at| match at {
        0 => from([1, 2], [1000, 53], 40),
        _ => from([2, 1], [53, 1000], 1000),
    });
    let others = (0..600).map(|_| from([3, 4], [7, 7], 40));
    let light = [from([1, 2], [1001, 53], 40), from([1, 5], [1002, 5353], 40)];
    let mut frames = timed(ETHERNET, heavy.chain(others).chain(light));
    let start_us = frames[0].0.time_us;
    for (at, (frame, _)) in frames.iter_mut().enumerate().skip(101) {
        frame.time_us = start_us + 100_000 * at as i64;
    }
    capture(CaptureFormat::Pcap { nanosecond: true }, &frames)
}

fn replay(dir: &tempfile::TempDir, sets: &[&str]) -> Command {
    let file = dir.path().join("heavy.pcap");
    std::fs::write(&file, heavy_then_light()).unwrap();
    let mut command = common::fenxi(["replay", "--json", "--model"]);
    command.arg(bundle()).arg(file).args(["--set", "flow.max_flows=1024"]);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    command
}

/// The records of flows by the port of their client.
fn flows(sets: &[&str]) -> Vec<(u64, Value)> {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("flows.jsonl");
    let mut command = replay(&dir, sets);
    command.arg("--flows").arg(&records);
    common::run(command).expect_code(0);
    let lines = common::json_lines(&records);
    let flows = lines.into_iter().filter(|record| record["type"] == "flow");
    flows.map(|flow| (flow["src_port"].as_u64().unwrap(), flow)).collect()
}

#[test]
fn a_flow_to_a_server_of_large_flows_is_known_by_its_first_packet() {
    let expected = [(7, "small"), (1000, "small"), (1001, "large"), (1002, "small")];
    for sets in [
        &["pipeline.layout=1:0:0"][..],
        &["pipeline.layout=1:1:1"],
        // The flows begin alike, so a cache would give all of them the first one's answer.
        &["pipeline.layout=1:1:1", "cache.prefix=1"],
        &["pipeline.layout=1:1:1", "accel.devices=[\"cpu\"]"],
    ] {
        if sets.iter().any(|set| set.contains("cpu")) && !common::has_onnxruntime() {
            continue;
        }
        let mut found = flows(sets);
        found.sort_by_key(|(port, _)| *port);
        let found: Vec<(u64, &str)> =
            found.iter().map(|(port, flow)| (*port, flow["label"].as_str().unwrap())).collect();
        assert_eq!(found, expected, "{sets:?}");
    }
}

#[test]
fn an_explanation_says_what_the_servers_flows_weighed() {
    let flows = flows(&[]);
    let explained = |port: u64| {
        let (_, flow) = flows.iter().find(|(of, _)| *of == port).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut command = replay(&dir, &[]);
        command.arg("--explain").arg(flow["flow_id"].to_string());
        let explained = common::run(command).expect_code(0).json();
        explained["why"].as_str().unwrap().to_owned()
    };
    let (known, unknown) = (explained(1001), explained(1002));
    assert!(
        known.contains("this server's flows weighed ") && known.contains("(1 flow)"),
        "{known}"
    );
    assert!(unknown.contains("no earlier flow to this server was remembered"), "{unknown}");
}

#[test]
fn what_would_not_repeat_or_is_off_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (sets, parts) in [
        (&["servers.entries=0"][..], ["servers.entries = 0", "reads server_flows"]),
        (&["pipeline.layout=2:1:1"], ["pipeline.layout", "server_flows"]),
    ] {
        let said = common::run(replay(&dir, sets)).expect_code(78).stderr;
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn the_engine_and_the_golden_rows_agree() {
    let mut command = common::fenxi(["model", "check"]);
    command.arg(bundle());
    if !common::has_onnxruntime() {
        command.args(["--device", "native"]);
    }
    common::run(command).expect_code(0);
}

/// Sends frames out of the lab's wire.
fn send(lab: &Lab, dir: &Path, frames: impl IntoIterator<Item = Vec<u8>>) {
    let file = dir.join("sent.pcap");
    fs::write(&file, whole(frames)).unwrap();
    lab.on("host", || {
        let mut reader = CaptureReader::open(&file).unwrap();
        let mut out = packetio::open_tx(<&Backend>::default(), "a").unwrap();
        while let Received::Burst(burst) = reader.receive(32).unwrap() {
            out.send(&burst, Selection::All).unwrap();
        }
        assert_eq!(out.counts().unsent(), 0);
    });
}

/// A packet between two hosts, by the ends' ports.
fn packet(hosts: [u8; 2], ports: [u16; 2], bytes: usize) -> Vec<u8> {
    ethernet(0x0800, &ipv4(hosts, 17, &udp(ports, bytes)))
}

/// A run that keeps its memory in `servers` of this folder, and its records in `flows`.
fn start(lab: &Lab, dir: &Path, sets: &[&str]) -> Live {
    let keys = [
        "io.interfaces=[\"b\"]".to_owned(),
        "flow.idle_timeout_s=1".to_owned(),
        format!("model.path={}", bundle().display()),
        format!("records.path={}", dir.join("flows").display()),
        format!("servers.path={}", dir.join("kept/servers").display()),
        "servers.every_s=1".to_owned(),
    ];
    let keys = keys.iter().map(String::as_str).chain(sets.iter().copied());
    let args: Vec<&str> = keys.flat_map(|key| ["--set", key]).collect();
    Live::start(lab, "host", &args)
}

fn files(live: &Live, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    live.samples_with("fenxi_server_files_total", &label).iter().sum()
}

fn wait_for_another(live: &Live, outcome: &str) {
    let before = files(live, outcome);
    live.wait_for("two more attempts", |live| files(live, outcome) >= before + 2.0);
}

/// From this port host 1 asks host 5, and host 2, which answers with 100 kB.
fn flows_of(port: u16) -> Vec<Vec<u8>> {
    let asked = [([1, 2], [port, 53], 40), ([1, 5], [port, 5353], 40)];
    let answers = (0..100).map(|_| ([2, 1], [53, port], 1000));
    let all = asked.into_iter().chain(answers);
    all.map(|(hosts, ports, bytes)| packet(hosts, ports, bytes)).collect()
}

/// What the flows to hosts 2 and 5 from this port are called.
fn asked(lab: &Lab, dir: &Path, live: Live, port: u16) -> [String; 2] {
    send(lab, dir, flows_of(port));
    live.wait_for_packets(102);
    live.terminate(0);
    let records = common::json_lines(&dir.join("flows"));
    [2, 5].map(|server| {
        let is_it = |record: &&Value| {
            let to = record["dst"].as_str().is_some_and(|it| it.ends_with(&format!(".{server}")));
            record["type"] == "flow" && record["src_port"] == port && to
        };
        let flow = records.iter().find(is_it);
        flow.unwrap_or_else(|| panic!("no flow from {port}"))["label"].as_str().unwrap().to_owned()
    })
}

#[test]
fn the_next_run_knows_the_servers_of_one_that_was_killed() {
    let Some(lab) = Lab::new("kept", &["host"], &[]) else { return };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kept/servers");
    fs::create_dir(dir.path().join("kept")).unwrap();
    let live = start(&lab, dir.path(), &[]);
    send(&lab, dir.path(), flows_of(1000));
    live.wait_for_packets(102);
    live.wait_for("all flows are over", |live| live.metric_sum("fenxi_flow_table_entries") == 0.0);
    wait_for_another(&live, "written");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    live.kill();
    // With more workers, each knows all servers, and what they know is one again.
    for (port, layout) in [(1001, "2:1:1"), (1002, "1:0:0")] {
        let live = start(&lab, dir.path(), &[&format!("pipeline.layout={layout}")]);
        assert_eq!(live.said("cells of the memory of servers"), 1);
        assert_eq!(asked(&lab, dir.path(), live, port), ["large", "small"], "{layout}");
    }
    let mut damaged = fs::read(&file).unwrap();
    damaged[60] ^= 1;
    fs::write(&file, damaged).unwrap();
    let live = start(&lab, dir.path(), &[]);
    assert_eq!(live.said("it is damaged; the memory of servers is empty at first"), 1);
    assert_eq!(asked(&lab, dir.path(), live, 1003), ["small", "small"]);
    // The end of the run has written a whole one.
    let live = start(&lab, dir.path(), &[]);
    assert_eq!(live.said("cells of the memory of servers"), 1);
    live.terminate(0);
    let left: Vec<_> = fs::read_dir(dir.path().join("kept")).unwrap().collect();
    assert_eq!(left.len(), 2, "it and its lock: {left:?}");
}

#[test]
fn a_second_instance_with_the_same_file_is_refused() {
    let Some(lab) = Lab::new("kept-twice", &["host"], &[]) else { return };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("kept")).unwrap();
    let live = start(&lab, dir.path(), &[]);
    let file = dir.path().join("kept/servers");
    let second = |file: &Path| {
        let mut command = fenxi_on(&lab, "host", &[]);
        command.args(["run", "--set", "io.interfaces=[\"a\"]"]);
        let control = dir.path().join("second");
        for (key, value) in [
            ("model.path", bundle()),
            ("servers.path", file.to_owned()),
            ("control.socket", control.with_extension("sock")),
        ] {
            command.args(["--set", &format!("{key}={}", value.display())]);
        }
        command.args(["--set", "control.http="]);
        command
    };
    let said = common::run(second(&file)).expect_code(69).stderr;
    let line = format!("another instance of fenxi keeps {}", file.display());
    assert_eq!(said.matches(&line).count(), 1, "{said}");
    live.terminate(0);
    // The lock ends with the run.
    start(&lab, dir.path(), &[]).terminate(0);
}

/// A file system of 64 KiB, as long as it lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<SmallDisk> {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&at).status();
        mounted.is_ok_and(|status| status.success()).then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_once_and_the_run_goes_on() {
    let Some(lab) = Lab::new("full", &["host"], &["mount"]) else { return };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("kept")) else {
        return skip("a_full_disk_is_told_once_and_the_run_goes_on", "the right to mount");
    };
    let filling = disk.0.join("filling");
    assert!(fs::write(&filling, vec![1; 1 << 20]).is_err(), "it is full");
    let live = start(&lab, dir.path(), &[]);
    wait_for_another(&live, "failed");
    assert_eq!(live.said("the memory of servers cannot be written: No space left"), 1);
    assert_eq!(files(&live, "written"), 0.0);
    send(&lab, dir.path(), [packet([1, 2], [1000, 53], 40)]);
    live.wait_for_packets(1);
    fs::remove_file(filling).unwrap();
    live.wait_for("it is written", |live| files(live, "written") > 0.0);
    assert_eq!(live.said("the memory of servers is written again"), 1);
    live.terminate(0);
    let mut left: Vec<_> =
        fs::read_dir(&disk.0).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["servers", "servers.lock"]);
}

#[test]
fn a_folder_that_is_not_there_is_refused_by_check_and_by_run() {
    let set = format!("model.path={}", bundle().display());
    for command in ["check", "run"] {
        let mut command = common::fenxi([command, "--set", "io.interfaces=[\"lo\"]"]);
        command.args(["--set", &set, "--set", "servers.path=/nowhere/servers"]);
        command.args(["--set", "control.http=", "--set", "control.socket="]);
        let said = common::run(command).expect_code(73).stderr;
        assert!(said.contains("/nowhere/servers: cannot be created"), "{said}");
    }
}
