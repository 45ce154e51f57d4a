//! `io.capture = "first"`: the kernel sends up the first packets of each flow and counts the
//! others.

use std::path::{Path, PathBuf};

use aya::programs::{SchedClassifier, TcAttachType};
use packetio::{CaptureFormat, CaptureReader, CaptureWriter, Frame, Received, Rx};
use rustix::process::Signal;

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::common::{self};
use crate::run::traffic::{assert_same_flows, connect, flows, send, stream};

const FIRST: [&str; 2] = ["--set", "io.capture=first"];
/// The link type of Ethernet, and bytes of the shortest frame that veth takes with an IP header.
const ETHERNET: u16 = 1;
const FRAME_MIN: usize = 34;
const ADDRESSES: usize = 12;

/// All frames of these captures that a wire takes, one behind the other, in one capture; how many.
pub fn gather(captures: &[PathBuf], to: &Path) -> u64 {
    let file = std::fs::File::create(to).unwrap();
    let format = CaptureFormat::Pcap { nanosecond: false };
    let mut out = CaptureWriter::create(format, file).unwrap();
    let mut frames = 0;
    for capture in captures {
        let Ok(mut reader) = CaptureReader::open(capture) else {
            continue;
        };
        // Some are damaged on purpose: what is before that counts.
        while let Ok(Received::Burst(burst)) = reader.receive(32) {
            for (i, frame) in burst.frames().iter().enumerate() {
                let is_sent = frame.link == ETHERNET
                    && frame.captured == frame.wire
                    && (FRAME_MIN..65_000).contains(&burst.bytes(i).len())
                    && !is_cut_tag(burst.bytes(i))
                    && !is_of_open_length(burst.bytes(i));
                if is_sent {
                    frames += 1;
                    let frame = Frame { time_us: 1_700_000_000_000_000 + frames, ..*frame };
                    out.write(&frame, burst.bytes(i)).unwrap();
                }
            }
        }
    }
    out.finish().unwrap();
    frames as u64
}

/// Whether the kernel drops the frame because its tag is not followed by a type.
fn is_cut_tag(frame: &[u8]) -> bool {
    frame[ADDRESSES] == 0x81 && frame.len() < ADDRESSES + 6
}

/// Whether an IPv4 packet has no length, which a host's own has before its card splits it, and none
/// on a wire.
fn is_of_open_length(frame: &[u8]) -> bool {
    frame[ADDRESSES..ADDRESSES + 2] == [8, 0] && frame[16..18] == [0, 0]
}

/// Two runs at the same end of a wire, one that gets all packets and one with this capture mode;
/// `check` sees the latter before both end. Gives the records of both.
pub fn both(
    lab: &Lab,
    dir: &Path,
    capture: &Path,
    mode: &[&str],
    args: &[&str],
    check: impl FnOnce(&Live, u64),
) -> [PathBuf; 2] {
    let paths = ["all", "first"].map(|name| dir.join(name));
    let start = |path: &Path, more: &[&str]| {
        let _ = std::fs::remove_file(path);
        let own = ["--set", "io.interfaces=[\"b\"]", "--flows"];
        let args = [&own[..], &[path.to_str().unwrap()], args, more].concat();
        Live::start(lab, "host", &args)
    };
    // The capture is sent as fast as it goes, and takes some hundred MiB of ring.
    let all = start(&paths[0], &["--set", "io.blocks=2048"]);
    let first = start(&paths[1], mode);
    first.wait_for_sum("fenxi_port_counts_in_kernel", 1.0);
    let sent = lab.on("host", || send(capture, "a"));
    for live in [&all, &first] {
        live.wait_for_packets(sent);
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        // The kernel itself has no use for some of these frames.
        let ring = live.samples_with("fenxi_port_dropped_packets_total", "reason=\"ring_full\"");
        assert_eq!(ring, [0.0]);
    }
    check(&first, sent);
    for live in [all, first] {
        let summary = live.terminate(0).json();
        assert_eq!(summary["packets"], sent);
        assert_eq!(common::sum(&summary["verdicts"]), sent);
        assert_eq!(summary["series"]["shed"], 0);
    }
    paths
}

/// The shipped capture, by the shipped model: with the series in records, so that they come up
/// whole, and without, so that the kernel is told of each label.
#[test]
fn the_first_packets_give_the_labels_and_records_that_all_give() {
    let Some(lab) = Lab::new("first", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    for series in [&["--series"][..], &[]] {
        let args = [series, &["--set", "ring.slots=65536"]].concat();
        let [all, first] = both(&lab, dir.path(), &common::demo(), &FIRST, &args, |first, sent| {
            let counted = first.metric_sum("fenxi_port_counted_packets_total");
            assert!(counted > 0.1 * sent as f64, "{counted} of {sent}");
        });
        assert!(flows(&all).len() > 10);
        assert_same_flows(&first, &all);
    }
}

/// Flows last for the whole run, whatever its pace.
pub const LASTING: [&str; 10] = [
    "--set",
    "flow.idle_timeout_s=0",
    "--set",
    "flow.half_open_timeout_s=0",
    "--set",
    "flow.end_on_fin_rst=false",
    "--set",
    "flow.max_flows=131072",
    "--set",
    "ring.slots=65536",
];

/// Every shared capture, the damaged and odd ones too, as far as a wire takes their frames, in one
/// capture; `None`, said on the terminal: there are none.
pub fn gather_shared(test: &str, to: &Path) -> Option<()> {
    let Some(folder) = common::shared("captures") else {
        common::lab::skip(test, "../shared/data/captures");
        return None;
    };
    let mut captures = Vec::new();
    for part in ["train", "odd"] {
        let files = std::fs::read_dir(folder.join(part)).unwrap();
        captures.extend(files.map(|file| file.unwrap().path()));
    }
    captures.sort();
    assert!(gather(&captures, to) > 10_000);
    Some(())
}

#[test]
fn all_shared_captures_give_the_same_flows() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("captures");
    let test = "all_shared_captures_give_the_same_flows";
    let (Some(()), Some(lab)) =
        (gather_shared(test, &capture), Lab::new("first-all", &["host"], &[]))
    else {
        return;
    };
    lab.wire_within("host", "a", "b");
    for series in [&["--series"][..], &[]] {
        let args = [series, &LASTING, &common::SIMULATED].concat();
        let [all, first] = both(&lab, dir.path(), &capture, &FIRST, &args, |_, _| {});
        assert!(flows(&all).len() > 1000);
        assert_same_flows(&first, &all);
    }
}

/// Where the kernel refuses the program, all packets come up: one line, a metric, and the run goes
/// on. It is a warning where the first packets were asked for, and no fault where they are the
/// default of the mode.
#[test]
fn where_the_kernel_refuses_all_packets_come_up() {
    let Some(lab) = Lab::new("first-not", &["host"], &["setpriv"]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let launcher = [
        "setpriv",
        "--bounding-set=-all,+net_raw,+net_admin",
        "--inh-caps=-all,+net_raw,+net_admin",
    ];
    for (asked, level) in [(FIRST, "WARN"), (["--set", "io.mode=mark"], "INFO")] {
        let args = [&["--set", "io.interfaces=[\"b\"]"][..], &asked, &common::SIMULATED].concat();
        let live = Live::launch(fenxi_on(&lab, "host", &launcher), &args);
        let sent = lab.on("host", || send(&common::demo(), "a"));
        live.wait_for_packets(sent);
        assert_eq!(live.metric_sum("fenxi_port_counts_in_kernel"), 0.0);
        assert_eq!(live.metric_sum("fenxi_port_packets_total"), sent as f64);
        let refused = "b: the kernel cannot send up the first packets only: ";
        assert_eq!(live.said(refused), 1);
        assert_eq!(live.said(&format!("{level} fenxi::run::ports: {refused}")), 1);
        let cause = "CAP_BPF and CAP_NET_ADMIN are needed; all packets come up instead";
        assert_eq!(live.said(cause), 1);
        live.terminate(0);
    }
}

/// An interface that goes away and comes back is watched again, though most privileges were dropped
/// meanwhile.
#[test]
fn an_interface_that_is_back_is_watched_again() {
    let Some(lab) = Lab::new("first-back", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let args = [&["--set", "io.interfaces=[\"b\"]"][..], &FIRST, &common::SIMULATED].concat();
    let live = Live::start(&lab, "host", &args);
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    lab.run("host", "ip link set dev b down");
    live.wait_for("it is down", |live| live.metric_sum("fenxi_port_up") == 0.0);
    lab.run("host", "ip link set dev b up");
    live.wait_for("it is up", |live| live.metric_sum("fenxi_port_up") == 1.0);
    lab.run("host", "ip link del dev b");
    live.wait_for("it is gone", |live| live.metric_sum("fenxi_port_up") == 0.0);
    lab.wire_within("host", "a", "b");
    live.wait_for("it is back", |live| live.metric_sum("fenxi_port_up") == 1.0);
    let before = seen(&live);
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for("its packets come", |live| seen(live) >= before + sent as f64);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);
}

/// Packets that came up and those that were counted.
fn seen(live: &Live) -> f64 {
    live.metric_sum("fenxi_port_packets_total")
        + live.metric_sum("fenxi_port_counted_packets_total")
}

/// However a run ends, its program is gone from the interface.
#[test]
fn a_killed_run_leaves_no_program_behind() {
    let Some(lab) = Lab::new("first-killed", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let args = [&["--set", "io.interfaces=[\"b\"]"][..], &FIRST, &common::SIMULATED].concat();
    for signal in [Signal::TERM, Signal::KILL] {
        let live = Live::start(&lab, "host", &args);
        assert_eq!(programs(&lab), 2, "both directions");
        live.signal(signal);
        match signal {
            Signal::KILL => live.kill(),
            _ => drop(live.ended(0)),
        }
        assert_eq!(programs(&lab), 0);
    }
}

/// The programs at the end `b` of a wire, in both directions.
pub fn programs(lab: &Lab) -> usize {
    lab.on("host", || {
        let directions = [TcAttachType::Ingress, TcAttachType::Egress];
        let of = |direction| SchedClassifier::query_tcx("b", direction).unwrap().1.len();
        directions.map(of).into_iter().sum()
    })
}

/// A frame of UDP whose IP header claims `claims` bytes, whatever the frame has.
fn udp(from: ([u8; 4], u16), to: ([u8; 4], u16), claims: u16, payload: usize) -> Vec<u8> {
    let length = (20 + 8 + payload) as u16;
    let claims = claims.max(length);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(claims.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([from.0, to.0].concat());
    for number in [from.1, to.1, length - 20, 0] {
        frame.extend(number.to_be_bytes());
    }
    frame.resize(frame.len() + payload, 7);
    frame
}

/// A capture of these frames.
fn write(frames: &[Vec<u8>], to: &Path) {
    let file = std::fs::File::create(to).unwrap();
    let format = CaptureFormat::Pcap { nanosecond: false };
    let mut out = CaptureWriter::create(format, file).unwrap();
    for (i, bytes) in frames.iter().enumerate() {
        let frame = Frame {
            captured: bytes.len() as u32,
            wire: bytes.len() as u32,
            link: ETHERNET,
            time_us: 1_700_000_000_000_000 + i as i64,
            ..Frame::default()
        };
        out.write(&frame, bytes).unwrap();
    }
    out.finish().unwrap();
}

/// Packets and bytes of all records of flows from this port.
fn of_port(records: &Path, port: u16) -> [u64; 2] {
    let records = common::json_lines(records);
    let flows = records.iter().filter(|it| it["type"] == "flow" && it["src_port"] == port);
    flows.fold([0; 2], |sums, flow| {
        let of = |name: &str| flow[name].as_u64().unwrap();
        [
            sums[0] + of("packets_fwd") + of("packets_rev"),
            sums[1] + of("bytes_fwd") + of("bytes_rev"),
        ]
    })
}

/// A table that is full of flows gives entries away; what was counted in them is in the records all
/// the same.
#[test]
fn a_flow_pushed_out_of_the_kernels_table_keeps_its_counts() {
    let Some(lab) = Lab::new("first-full", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let [capture, records] = ["capture", "records"].map(|name| dir.path().join(name));
    // 100 packets of one flow, then more flows than the table holds, several times.
    let victim = ([10, 0, 0, 1], 4000);
    let server = ([10, 0, 0, 2], 9000);
    let mut frames = Vec::new();
    for round in 0..4u16 {
        frames.extend((0..100).map(|_| udp(victim, server, 0, 1000)));
        frames.extend((0..3000u16).map(|i| {
            let other = ([10, 1, (i >> 8) as u8, i as u8], 10_000 + round);
            udp(other, server, 0, 20)
        }));
    }
    write(&frames, &capture);
    let args = [
        &["--set", "io.interfaces=[\"b\"]", "--flows"][..],
        &[records.to_str().unwrap()],
        &["--set", "io.counted_flows=1024"],
        &FIRST,
        &common::SIMULATED,
    ]
    .concat();
    let live = Live::start(&lab, "host", &args);
    let sent = lab.on("host", || send(&capture, "a"));
    live.wait_for("all are seen", |live| seen(live) >= sent as f64);
    assert!(live.metric_sum("fenxi_port_flows_forgotten") > 1000.0);
    live.terminate(0);
    assert_eq!(of_port(&records, 4000), [400, 400 * 1028]);
}

/// Frames that claim more bytes than they have are no packets of a flow: no host takes them.
#[test]
fn forged_lengths_count_for_no_flow() {
    let Some(lab) = Lab::new("forged", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let [capture, records] = ["capture", "records"].map(|name| dir.path().join(name));
    let (victim, server) = (([10, 0, 0, 1], 4000), ([10, 0, 0, 2], 9000));
    let honest = (0..30).map(|_| udp(victim, server, 0, 100));
    // Padded frames are honest, too.
    let padded = (0..30).map(|_| {
        let mut frame = udp(victim, server, 0, 1);
        frame.resize(60, 0);
        frame
    });
    let forged = (0..200).map(|_| {
        let mut frame = udp(victim, server, 65_000, 1);
        frame.resize(60, 0);
        frame
    });
    write(&honest.chain(padded).chain(forged).collect::<Vec<_>>(), &capture);
    for capture_mode in [&[][..], &FIRST] {
        let _ = std::fs::remove_file(&records);
        let args = [
            &["--set", "io.interfaces=[\"b\"]", "--flows"][..],
            &[records.to_str().unwrap()],
            capture_mode,
            &common::SIMULATED,
        ]
        .concat();
        let live = Live::start(&lab, "host", &args);
        let sent = lab.on("host", || send(&capture, "a"));
        live.wait_for("all are seen", |live| seen(live) >= sent as f64);
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let summary = live.terminate(0).json();
        assert_eq!(summary["verdicts"]["ip_length"], 200, "{summary}");
        assert_eq!(of_port(&records, 4000), [60, 30 * 128 + 30 * 29]);
    }
}

/// A connection of many packets costs few of them: the rest is counted, and its record has all.
#[test]
fn a_long_connection_is_counted_to_its_end() {
    let Some(lab) = Lab::routed("first-long", false, &["conntrack", "nft"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("records");
    let args = ["--set", "io.mode=mark", "--set", "io.interfaces=[\"in\"]", "--flows"];
    let args = [&args[..], &[records.to_str().unwrap()], &FIRST, &common::SIMULATED].concat();
    let live = Live::start(&lab, "router", &args);
    let [near, far] = connect(&lab, ["client", "server"], Lab::server(false));
    stream(near, far, 4_000_000);
    live.wait_for("the flow has ended", |live| live.metric_sum("fenxi_flows_ended_total") >= 1.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let came_up = live.metric_sum("fenxi_port_packets_total");
    let counted = live.metric_sum("fenxi_port_counted_packets_total");
    assert!(came_up < 60.0 && counted > 1000.0, "{came_up} came up, {counted} were counted");
    let status = live.ctl(&["status", "--json"]).expect_code(0).json();
    let summary = live.terminate(0).json();
    // The kernel's counts are in both; a few packets may come after the status.
    let shown = status["status"]["overview"]["bytes"].as_u64().unwrap();
    let all = summary["bytes"].as_u64().unwrap();
    assert!(shown > 4_000_000 && all.abs_diff(shown) < 10_000, "{shown} of {all}");
    let records = common::json_lines(&records);
    let flow = records.iter().find(|it| it["type"] == "flow" && it["proto"] == 6).unwrap();
    let sum =
        |names: [&str; 2]| -> u64 { names.iter().map(|name| flow[*name].as_u64().unwrap()).sum() };
    let (packets, bytes) = (sum(["packets_fwd", "packets_rev"]), sum(["bytes_fwd", "bytes_rev"]));
    assert!(packets >= counted as u64, "{packets} packets in the record, {counted} were counted");
    // Headers are a few per cent of full segments.
    assert!((4_000_000..4_400_000).contains(&bytes), "{bytes}");
    assert_eq!(flow["end_reason"], "fin");
}
