//! Live runs end to end, in network namespaces with veth pairs that each test makes and removes. Skipped by name without root
//! or the programs.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod common;

#[path = "run/lab.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod lab;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use packetio::af_packet::TransmitConfig;
use packetio::{CaptureReader, Port, Transmit};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;

use lab::{Lab, Live};

/// Flows last for the whole capture, whatever the pace at which it is sent.
const WHOLE: [&str; 4] = [
    "--set",
    "flow.idle_timeout_s=0",
    "--set",
    "flow.end_on_fin_rst=false",
];

/// Every label has this DSCP: EF, in the header's byte 0xb8.
fn all_ef() -> String {
    let labels: Vec<String> = common::labels()
        .iter()
        .map(|label| format!("\"{label}\" = 46"))
        .collect();
    format!("tag.dscp={{ {} }}", labels.join(", "))
}

/// Every label has this mark.
fn all_marked() -> String {
    let labels: Vec<String> = common::labels()
        .iter()
        .map(|label| format!("\"{label}\" = 0x4200"))
        .collect();
    format!("mark.class={{ {} }}", labels.join(", "))
}

/// Sends a capture out of an interface of this thread's namespace; the packets sent.
fn send(capture: &Path, interface: &str) -> u64 {
    // veth hands frames over by the queue of the CPU that sends; from two of them they could overtake each other.
    let mut cpu = CpuSet::new();
    cpu.set(0);
    sched_setaffinity(None, &cpu).unwrap();
    let mut reader = CaptureReader::open(capture).unwrap();
    let mut out = Transmit::open(&TransmitConfig {
        interface: interface.to_owned(),
        bypasses_qdisc: false,
        sends_merged: false,
    })
    .unwrap();
    while let Some(burst) = reader.receive(32).unwrap() {
        out.send(&burst).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let counts = out.counts();
    assert_eq!((counts.dropped, counts.too_long, counts.cut), (0, 0, 0));
    counts.sent
}

/// Label and series by flow.
fn flows(path: &Path) -> BTreeMap<String, (Value, Value)> {
    let records = common::json_lines(path).into_iter();
    let flows = records.filter(|record| record["type"] == "flow");
    flows
        .map(|flow| {
            let names = ["src", "src_port", "dst", "dst_port", "proto"];
            let name = names.map(|name| flow[name].to_string()).join(" ");
            (name, (flow["label"].clone(), flow["series"].clone()))
        })
        .collect()
}

fn device() -> &'static [&'static str] {
    match common::has_onnxruntime() {
        true => &[],
        false => &common::SIMULATED,
    }
}

#[test]
fn tap_labels_as_a_replay_does() {
    for layout in ["1:1:1", "2:1:1"] {
        let Some(lab) = Lab::new("tap", &["host"], &[]) else {
            return;
        };
        lab.wire_within("host", "a", "b");
        let dir = tempfile::tempdir().unwrap();
        let [live_path, replay_path] = ["live", "replay"].map(|name| dir.path().join(name));
        let mut replay = common::fenxi(["replay", "--series", "--json"]);
        replay.arg(common::demo()).arg("--flows").arg(&replay_path);
        replay.args(WHOLE).args(device());
        let replayed = common::run(replay).expect_code(0).json();

        let layout = format!("pipeline.layout={layout}");
        let args = [
            "--set",
            "io.interfaces=[\"b\"]",
            "--set",
            &layout,
            "--series",
        ];
        let flows_to = ["--flows", live_path.to_str().unwrap()];
        let live = Live::start(
            &lab,
            "host",
            &[&args[..], &flows_to[..], &WHOLE[..], device()].concat(),
        );
        let sent = lab.on("host", || send(&common::demo(), "a"));
        let metric = "fenxi_packets_total";
        live.wait_for("all packets are seen", |live| {
            live.metric_sum(metric) >= sent as f64
        });
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        assert_eq!(live.metric_sum("fenxi_port_kernel_dropped_total"), 0.0);
        let summary = live.terminate(0).json();

        assert_eq!(summary["packets"], replayed["packets"]);
        assert_eq!(common::sum(&summary["verdicts"]), sent);
        assert_eq!(summary["live"]["kernel_dropped"], 0);
        assert_eq!(
            common::sum(&summary["flows"]["ended"]),
            summary["flows"]["begun"].as_u64().unwrap()
        );
        let (live, replayed) = (flows(&live_path), flows(&replay_path));
        assert!(live.len() > 10);
        let names = live.keys().chain(replayed.keys());
        let differ = names.filter(|name| live.get(*name) != replayed.get(*name));
        let differ: Vec<_> = differ
            .map(|name| (name, live.get(name), replayed.get(name)))
            .collect();
        assert!(
            differ.is_empty(),
            "{} of {}: {differ:?}",
            differ.len(),
            live.len()
        );
    }
}

/// Sends bytes from one host to another over TCP, and checks what arrives.
fn transfer(lab: &Lab, from: &str, to: &str, address: &str, bytes: usize) {
    let content = |at: usize| (at.wrapping_mul(2_654_435_761) >> 7) as u8;
    let listener = lab.on(to, || TcpListener::bind((address, 0)).unwrap());
    let server = listener.local_addr().unwrap();
    let mut near = lab.on(from, || TcpStream::connect(server).unwrap());
    let (mut far, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let sent: Vec<u8> = (0..bytes).map(content).collect();
            near.write_all(&sent).unwrap();
        });
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), bytes);
        assert!(
            received
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == content(at))
        );
    });
}

#[test]
fn inline_forwards_and_sets_dscp() {
    let Some(lab) = Lab::new("inline", &["left", "box", "right"], &["ping", "tcpdump"]) else {
        return;
    };
    for (host, port, address) in [
        ("left", "l", "10.78.0.1/24"),
        ("right", "r", "10.78.0.2/24"),
    ] {
        lab.wire(host, "eth", "box", port);
        lab.run(host, &format!("ip addr add {address} dev eth"));
    }
    let ef = all_ef();
    let mut args = vec![
        "--set",
        "io.interfaces=[\"l\", \"r\"]",
        "--set",
        "io.mode=inline",
        "--set",
        &ef,
    ];
    args.extend(common::SIMULATED);
    let live = Live::start(&lab, "box", &args);
    lab.run("left", "ping -c 3 -i 0.2 -W 5 10.78.0.2");
    // -v checks checksums; the far side must see the mark, and right ones.
    let seen = lab.spawn(
        "right",
        "timeout 30 tcpdump -i eth -nn -v -c 5 ip[1]&0xfc==0xb8",
    );
    std::thread::sleep(Duration::from_millis(500));
    transfer(&lab, "left", "right", "10.78.0.2", 20_000_000);
    transfer(&lab, "right", "left", "10.78.0.1", 20_000_000);
    let seen = seen.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&seen.stdout);
    assert!(seen.status.success(), "{text}");
    assert!(!text.contains("bad cksum"), "{text}");
    let summary = live.terminate(0).json();
    let of = |name: &str| summary["live"][name].as_u64().unwrap();
    assert_eq!(of("received"), of("sent") + of("unsent"));
    assert_eq!((of("kernel_dropped"), of("unsent")), (0, 0), "{summary}");
}

#[test]
fn marks_reach_the_connections_of_a_router() {
    let tools = ["nft", "conntrack"];
    let Some(lab) = Lab::new("mark", &["client", "router", "server"], &tools) else {
        return;
    };
    for (host, port, net) in [("client", "in", 1), ("server", "out", 2)] {
        lab.wire(host, "eth", "router", port);
        lab.run(
            "router",
            &format!("ip addr add 10.79.{net}.1/24 dev {port}"),
        );
        lab.run(host, &format!("ip addr add 10.79.{net}.2/24 dev eth"));
        lab.run(host, &format!("ip route add default via 10.79.{net}.1"));
    }
    lab.on("router", || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()
    });
    lab.run(
        "router",
        "nft add table inet t; add chain inet t c { type filter hook prerouting priority -190; }; \
         add rule inet t c ct state new ct mark set 0xab0000cd",
    );
    let marked = all_marked();
    let mut args = vec![
        "--set",
        "io.interfaces=[\"in\"]",
        "--set",
        "io.mode=mark",
        "--set",
        &marked,
    ];
    args.extend(common::SIMULATED);
    let live = Live::start(&lab, "router", &args);
    let listener = lab.on("server", || TcpListener::bind("10.79.2.2:7777").unwrap());
    let mut near = lab.on("client", || TcpStream::connect("10.79.2.2:7777").unwrap());
    let (mut far, _) = listener.accept().unwrap();
    for _ in 0..10 {
        near.write_all(b"ask").unwrap();
        far.read_exact(&mut [0; 3]).unwrap();
        far.write_all(b"say").unwrap();
        near.read_exact(&mut [0; 3]).unwrap();
    }
    let mark = format!("mark={}", 0xab00_42cd_u32);
    live.wait_for("the connection has its mark", |_| {
        lab.run("router", "conntrack -L -p tcp --orig-port-dst 7777")
            .contains(&mark)
    });
    let summary = live.terminate(0).json();
    assert_eq!(summary["live"]["marks_written"], 1, "{summary}");
    assert_eq!(summary["live"]["sent"], 0);
}

#[test]
fn an_interface_goes_and_comes_back() {
    let Some(lab) = Lab::new("away", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    lab.wire_within("host", "c", "d");
    let mut args = vec!["--set", "io.interfaces=[\"b\", \"d\"]"];
    args.extend(common::SIMULATED);
    let live = Live::start(&lab, "host", &args);
    let all = |live: &Live| live.metric_sum("fenxi_port_packets_total");
    lab.run("host", "ip link del dev a");
    let sent = lab.on("host", || send(&common::demo(), "c")) as f64;
    live.wait_for("the other one goes on", |live| all(live) >= sent);
    lab.wire_within("host", "a", "b");
    // It is opened anew within a second or so.
    let before = all(&live);
    live.wait_for("it is back", |live| {
        lab.on("host", || send(&common::demo(), "a"));
        all(live) > before
    });
    let finished = live.terminate(0);
    assert_eq!(
        finished.stderr.matches("the interface is gone").count(),
        1,
        "{}",
        finished.stderr
    );
    assert_eq!(
        finished.stderr.matches("b: the interface is back").count(),
        1,
        "{}",
        finished.stderr
    );
}

#[test]
fn what_is_missing_is_named() {
    let Some(lab) = Lab::new("missing", &["host"], &["setpriv"]) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    let run = |launcher: &[&str], interface: &str, mode: &str| {
        let mut command = lab.fenxi("host", launcher);
        let interface = format!("io.interfaces=[\"{interface}\"]");
        let mode = format!("io.mode={mode}");
        command.args([
            "run",
            "--set",
            &interface,
            "--set",
            &mode,
            "--set",
            "flow.max_flows=4096",
        ]);
        command.args(["--set", "control.http=", "--set", "control.socket="]);
        command.args(common::SIMULATED);
        common::run(command)
    };
    let missing = run(&[], "wan1", "tap").expect_code(69);
    assert!(
        missing.stderr.contains("did you mean wan0?"),
        "{}",
        missing.stderr
    );
    let without = |capability: &str| {
        let (bounding, inherited) = (
            format!("--bounding-set=-{capability}"),
            format!("--inh-caps=-{capability}"),
        );
        ["setpriv".to_owned(), bounding, inherited]
    };
    for (capability, mode, name) in [
        ("net_raw", "tap", "CAP_NET_RAW"),
        ("net_admin", "mark", "CAP_NET_ADMIN"),
    ] {
        let launcher = without(capability);
        let launcher: Vec<&str> = launcher.iter().map(String::as_str).collect();
        let refused = run(&launcher, "wan0", mode).expect_code(77);
        assert!(refused.stderr.contains(name), "{}", refused.stderr);
    }
}

#[test]
fn a_run_without_traffic_feeds_the_watchdog() {
    let Some(lab) = Lab::new("watchdog", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let mut args = vec![
        "--set",
        "io.interfaces=[\"a\", \"b\"]",
        "--set",
        "io.mode=inline",
    ];
    args.extend(common::SIMULATED);
    let live = Live::start(&lab, "host", &args);
    let fed = Instant::now();
    assert_eq!(live.told(), "WATCHDOG=1");
    assert!(fed.elapsed() < lab::WATCHDOG);
    let finished = live.terminate(0);
    assert_eq!(finished.json()["live"]["unsent"], 0);
}
