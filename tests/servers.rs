//! The memory of servers, through the real program: a model that reads only what it says, and a
//! capture in which a server's first flow has ended before the next begins.

use crate::common;
use crate::common::packets::{ETHERNET, capture, ethernet, ipv4, timed, udp};

use std::path::PathBuf;
use std::process::Command;

use packetio::CaptureFormat;
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
