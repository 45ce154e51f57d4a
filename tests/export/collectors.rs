//! What collectors decode is what the records in JSON say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::common;
use crate::export::messages::{Messages, tshark};

/// Far more than a collector takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The demo as a collector got it, and its flow records in JSON.
struct Replay {
    dir: TempDir,
    flows: Vec<Value>,
}

impl Replay {
    /// Where the messages are, if they went to a file.
    fn file(&self) -> PathBuf {
        self.dir.path().join("flows.ipfix")
    }
}

/// Replays the demo to a collector, or to a file.
fn replay(to: Option<&str>) -> Replay {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("flows.jsonl");
    let file = format!("file:{}", dir.path().join("flows.ipfix").display());
    let mut command = common::fenxi(["replay", "--json", "--ipfix", to.unwrap_or(&file)]);
    command.arg("--flows").arg(&json).arg(common::demo());
    let summary = common::run(command).expect_code(0).json();
    let mut flows = common::json_lines(&json);
    flows.retain(|record| record["type"] == "flow");
    assert_eq!(summary["ipfix_sent"], flows.len());
    assert_eq!(summary["ipfix_lost"], 0);
    Replay { dir, flows }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A collector on this machine; ended when dropped.
struct Collector {
    child: Child,
    port: u16,
}

impl Collector {
    /// Starts a program that listens on a port of this machine. `None`, said on the terminal: it is
    /// not there.
    fn start(
        test: &str,
        program: &str,
        args: impl FnOnce(u16) -> Vec<String>,
    ) -> Option<Collector> {
        // Free now, and hardly taken in the next moment.
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(program);
        command.args(args(port)).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            common::skip(test, &format!("the program {program}"));
            return None;
        };
        let collector = Collector { child, port };
        collector.wait_until_it_listens();
        Some(collector)
    }

    fn wait_until_it_listens(&self) {
        let place = format!(":{:04X} ", self.port);
        wait_until("the collector listens", || {
            let sockets = fs::read_to_string("/proc/net/udp").unwrap();
            sockets.contains(&place)
        });
    }

    fn to(&self) -> String {
        format!("udp://127.0.0.1:{}", self.port)
    }

    /// Ends it as Ctrl-C does, so that it writes what it has.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let _ = self.child.wait().unwrap();
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is compared of a flow: both ends, protocol, and packets and bytes in both directions.
type Flow = (String, u64, String, u64, u64, [u64; 4]);

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// A time in RFC 3339 to ms, without its zone.
fn to_milliseconds(time: &Value) -> String {
    text(time)[..23].replace(' ', "T")
}

fn expected(flow: &Value) -> Flow {
    let counts = ["packets_fwd", "bytes_fwd", "packets_rev", "bytes_rev"];
    (
        text(&flow["src"]),
        number(&flow["src_port"]),
        text(&flow["dst"]),
        number(&flow["dst_port"]),
        number(&flow["proto"]),
        counts.map(|name| number(&flow[name])),
    )
}

/// Type and code of ICMP.
fn icmp(flow: &Value) -> [Option<u64>; 2] {
    ["icmp_type", "icmp_code"].map(|name| flow.get(name).map(number))
}

#[test]
fn nfdump_decodes_every_record() {
    let test = "nfdump_decodes_every_record";
    if Command::new("nfdump").arg("-V").output().is_err() {
        return common::skip(test, "the program nfdump");
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap().to_owned();
    let args = |port: u16| {
        let args = format!("-b 127.0.0.1 -p {port} -t 3600 -w {folder}");
        args.split(' ').map(str::to_owned).collect()
    };
    let Some(nfcapd) = Collector::start(test, "nfcapd", args) else {
        return;
    };
    let replay = replay(Some(&nfcapd.to()));
    nfcapd.end();
    let mut command = Command::new("nfdump");
    command.args(["-o", "json", "-R", &folder]).env("TZ", "UTC");
    let output = command.output().unwrap();
    let decoded: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let count = |flow: &Value, name: &str| flow.get(name).map_or(0, number);
    let decoded = decoded.iter().map(|flow| {
        let address = |end: &str| {
            let found = ["4", "6"].map(|ip| flow.get(format!("{end}{ip}_addr")));
            text(found.into_iter().flatten().next().unwrap())
        };
        let what = (
            address("src"),
            count(flow, "src_port"),
            address("dst"),
            count(flow, "dst_port"),
            number(&flow["proto"]),
            ["in_packets", "in_bytes", "out_packets", "out_bytes"].map(|name| count(flow, name)),
        );
        let [first, last] = ["first", "last"].map(|name| to_milliseconds(&flow[name]));
        let tos = number(&flow["src_tos"]) >> 2;
        let flags = flow.get("tcp_flags").map_or_else(|| "........".to_owned(), text);
        (what, ([first, last, flags, tos.to_string()], icmp(flow)))
    });
    let wanted = replay.flows.iter().map(|flow| {
        let [first, last] = ["first", "last"].map(|name| to_milliseconds(&flow[name]));
        let flags = number(&flow["tcp_flags_fwd"]);
        let flags = (0..8).map(|bit| match flags >> (7 - bit) & 1 {
            0 => '.',
            _ => char::from(b"CEUAPRSF"[bit]),
        });
        let of_first = [first, last, flags.collect(), flow["dscp_fwd"].to_string()];
        (expected(flow), (of_first, icmp(flow)))
    });
    let wanted: Vec<_> = wanted.collect();
    assert!(wanted.iter().any(|(.., (_, icmp))| *icmp == [Some(128), Some(0)]));
    assert!(wanted.iter().any(|(.., (_, icmp))| *icmp == [Some(3), Some(3)]));
    assert_same(decoded.collect(), wanted);
}

#[test]
fn pmacct_decodes_every_record() {
    let test = "pmacct_decodes_every_record";
    let dir = tempfile::tempdir().unwrap();
    let (file, settings) = (dir.path().join("out.json"), dir.path().join("conf"));
    let args = |port: u16| {
        let lines = [
            "nfacctd_ip: 127.0.0.1".to_owned(),
            format!("nfacctd_port: {port}"),
            "plugins: print".to_owned(),
            "print_refresh_time: 1".to_owned(),
            "print_output: json".to_owned(),
            format!("print_output_file: {}", file.display()),
            "print_output_file_append: true".to_owned(),
            // So the file is there as soon as the plugin that writes it works.
            "print_write_empty_file: true".to_owned(),
            "timestamps_utc: true".to_owned(),
            "aggregate: src_host, dst_host, src_port, dst_port, proto, timestamp_start, \
             timestamp_end"
                .to_owned(),
        ];
        fs::write(&settings, lines.join("\n")).unwrap();
        vec!["-f".to_owned(), settings.to_str().unwrap().to_owned()]
    };
    let Some(nfacctd) = Collector::start(test, "nfacctd", args) else {
        return;
    };
    // The process that receives wakes the plugin with what it passes on. What it passes on before
    // the plugin waits for it stays in their queue until more comes, and here no more comes.
    wait_until("its plugin works", || file.exists());
    let replay = replay(Some(&nfacctd.to()));
    let lines = || fs::read_to_string(&file).unwrap_or_default();
    wait_until("all flows are written", || lines().lines().count() >= replay.flows.len());
    nfacctd.end();
    let protocol = |flow: &Value| match flow["ip_proto"].as_str() {
        Some("tcp") => 6,
        Some("udp") => 17,
        Some("icmp") => 1,
        Some("ipv6-icmp") => 58,
        other => panic!("{other:?}"),
    };
    let lines = lines();
    let decoded = lines.lines().map(|line| {
        let flow: Value = serde_json::from_str(line).unwrap();
        let what = (
            text(&flow["ip_src"]),
            number(&flow["port_src"]),
            text(&flow["ip_dst"]),
            number(&flow["port_dst"]),
            protocol(&flow),
            // It has no reverse direction.
            [number(&flow["packets"]), number(&flow["bytes"]), 0, 0],
        );
        let times = ["timestamp_start", "timestamp_end"];
        (what, times.map(|name| to_milliseconds(&flow[name])))
    });
    let wanted = replay.flows.iter().map(|flow| {
        let mut what = expected(flow);
        what.5[2..].fill(0);
        let times = ["first", "last"].map(|name| to_milliseconds(&flow[name]));
        (what, times)
    });
    assert_same(decoded.collect(), wanted.collect());
}

fn assert_same<T: Ord + Debug>(mut decoded: Vec<(Flow, T)>, mut wanted: Vec<(Flow, T)>) {
    decoded.sort();
    wanted.sort();
    assert_eq!(decoded.len(), wanted.len());
    for (decoded, wanted) in decoded.iter().zip(&wanted) {
        assert_eq!(decoded, wanted);
    }
}

/// All fields that are not addresses, the reverse elements among them, and the names of the labels
/// in records and by the options template.
#[test]
fn tshark_decodes_every_record_and_finds_the_names_of_labels() {
    let test = "tshark_decodes_every_record_and_finds_the_names_of_labels";
    let replay = replay(None);
    let fields = [
        "cflow.flow_id",
        "cflow.appl_id.selector_id",
        "cflow.appl_name",
        "cflow.flow_end_reason",
        "cflow.biflow_direction",
        "cflow.packets",
        "cflow.octets",
        "cflow.protocol",
        "cflow.ip_version",
        "cflow.tcpflags",
        "cflow.tos",
        "_ws.malformed",
    ];
    let Some(messages) = tshark(test, &replay.file(), &fields) else {
        return;
    };
    let (mut names, mut decoded) = (BTreeMap::new(), BTreeMap::new());
    for message in &messages {
        let of = |field: usize| -> Vec<&str> {
            let values = message[field].split(',');
            values.filter(|value| !value.is_empty()).collect()
        };
        assert!(of(11).is_empty(), "malformed");
        let selectors = of(1);
        if of(0).is_empty() {
            names.extend(selectors.iter().copied().zip(of(2)));
            continue;
        }
        for (at, id) in of(0).into_iter().enumerate() {
            let both = |field: usize| [of(field)[2 * at], of(field)[2 * at + 1]].join(" ");
            let one = |field: usize| of(field)[at].to_owned();
            assert_eq!(of(2)[at], names[selectors[at]]);
            // Records in JSON have the DSCP only.
            let dscp = |tos: &str| u8::from_str_radix(&tos[2..], 16).unwrap() >> 2;
            let dscps = [of(10)[2 * at], of(10)[2 * at + 1]].map(|tos| dscp(tos).to_string());
            let pairs = [both(5), both(6), both(9), dscps.join(" ")];
            let flow = [2, 3, 4, 7, 8].map(one).into_iter().chain(pairs).collect::<Vec<_>>();
            decoded.insert(id.parse::<u64>().unwrap(), flow);
        }
    }
    let wanted = replay.flows.iter().map(|flow| {
        let both =
            |name: &str| format!("{} {}", flow[format!("{name}_fwd")], flow[format!("{name}_rev")]);
        let reason = match flow["end_reason"].as_str().unwrap() {
            "idle" => 1,
            "active" => 2,
            "fin" | "rst" => 3,
            "drain" => 4,
            _ => 5,
        };
        let version = if text(&flow["src"]).contains(':') { 6 } else { 4 };
        let is_initiator = flow["midstream"] == false;
        // In reverse first.
        let seen = |name: &str| ["rev", "fwd"].map(|way| number(&flow[format!("{name}_{way}")]));
        let flow_fields = vec![
            flow["label"].as_str().unwrap_or("unlabelled").to_owned(),
            reason.to_string(),
            u8::from(is_initiator).to_string(),
            flow["proto"].to_string(),
            version.to_string(),
            both("packets"),
            both("bytes"),
            seen("tcp_flags").map(|flags| format!("0x{flags:02x}")).join(" "),
            seen("dscp").map(|dscp| dscp.to_string()).join(" "),
        ];
        (number(&flow["flow_id"]), flow_fields)
    });
    let wanted: BTreeMap<u64, _> = wanted.collect();
    assert_eq!(decoded, wanted);
    let labels: BTreeSet<String> = common::labels(&common::shipped_bundle()).into_iter().collect();
    let sent: BTreeSet<String> = names.into_values().map(str::to_owned).collect();
    assert!(labels.is_subset(&sent) && sent.contains("unlabelled"));
}

/// The same bytes whatever the transport, and each time.
#[test]
fn a_replay_repeats_and_a_connection_carries_what_a_file_has() {
    let first = replay(None);
    let again = replay(None);
    let bytes = fs::read(first.file()).unwrap();
    assert!(bytes == fs::read(again.file()).unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp://{}", listener.local_addr().unwrap());
    let reading = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut bytes).unwrap();
        bytes
    });
    replay(Some(&to));
    assert!(bytes == reading.join().unwrap());
    let mut messages = Messages::default();
    messages.extend(&bytes);
    assert!(messages.is_whole());
    assert_eq!((messages.first_sequence(), messages.flows()), (0, first.flows.len()));
}

/// One line that names the thing, the place and the cure, and nothing done.
#[test]
fn what_is_wrong_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("office.pcap");
    fs::copy(common::demo(), &capture).unwrap();
    let in_dir = |name: &str| format!("file:{}", dir.path().join(name).display());
    let replay = |to: &str, more: &[&str]| {
        let mut command = common::fenxi(["replay", "--ipfix", to]);
        command.args(common::SIMULATED).arg(&capture).args(more);
        common::run(command)
    };
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = format!("tcp://{}", closed.local_addr().unwrap());
    drop(closed);
    for (to, code, said) in [
        ("collector:4739", 78, "expected udp://HOST:PORT"),
        ("udp://collector:0", 78, "expected udp://HOST:PORT"),
        (&refused, 69, "cannot reach the collector: Connection refused"),
        ("udp://collector.invalid:4739", 69, "cannot reach the collector"),
        (&in_dir("none/flows.ipfix"), 73, "cannot be created"),
        (&in_dir("office.pcap"), 64, "one of the captures"),
    ] {
        let ended = replay(to, &[]).expect_code(code);
        assert!(ended.stderr.contains(said), "{to}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{to}: {}", ended.stderr);
    }
    let flows = dir.path().join("one");
    let ended = replay(&in_dir("one"), &["--flows", flows.to_str().unwrap()]).expect_code(64);
    assert!(ended.stderr.contains("--flows and --ipfix both name"), "{}", ended.stderr);
    assert_eq!(fs::read(&capture).unwrap(), fs::read(common::demo()).unwrap());
    if Path::new("/dev/full").exists() {
        let ended = replay("file:/dev/full", &[]).expect_code(74);
        assert!(ended.stderr.contains("No space left"), "{}", ended.stderr);
    }
}
