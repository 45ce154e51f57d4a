//! What `measure.flows` says of shared captures, against tshark's analysis of the same packets.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use common::lab::skip;

const SYN: u64 = 0x02;
const RST: u64 = 0x04;
const ACK: u64 = 0x10;

/// Sender and receiver, with ports.
type Ends = [(String, String); 2];

/// A packet as tshark sees it.
struct Packet {
    stream: u64,
    time_s: f64,
    ends: Ends,
    flags: u64,
    is_retransmission: bool,
}

fn tshark(capture: &Path) -> Vec<Packet> {
    const FIELDS: [&str; 10] = [
        "tcp.stream",
        "frame.time_epoch",
        "ip.src",
        "ipv6.src",
        "tcp.srcport",
        "ip.dst",
        "ipv6.dst",
        "tcp.dstport",
        "tcp.flags",
        "tcp.analysis.retransmission",
    ];
    let mut command = Command::new("tshark");
    command
        .args([
            "-Y",
            "tcp.stream and not (icmp or icmpv6)",
            "-T",
            "fields",
            "-E",
            "occurrence=f",
            "-r",
        ])
        .arg(capture);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let packet = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let end = |at: usize| {
            let address = if fields[at].is_empty() { fields[at + 1] } else { fields[at] };
            (address.to_owned(), fields[at + 2].to_owned())
        };
        Packet {
            stream: fields[0].parse().expect("a number"),
            time_s: fields[1].parse().expect("a time"),
            ends: [end(2), end(5)],
            flags: u64::from_str_radix(fields[8].trim_start_matches("0x"), 16).expect("flags"),
            is_retransmission: !fields[9].is_empty(),
        }
    };
    text.lines().map(packet).collect()
}

/// Times of a handshake, s: the server's step and the client's.
fn handshakes(packets: &[Packet]) -> Vec<(Ends, f64, Option<f64>)> {
    let mut streams: BTreeMap<u64, Vec<&Packet>> = BTreeMap::new();
    for packet in packets {
        streams.entry(packet.stream).or_default().push(packet);
    }
    let handshake = |packets: Vec<&Packet>| {
        let is = |packet: &Packet, wanted| packet.flags & (SYN | ACK | RST) == wanted;
        let first = packets.first().filter(|first| is(first, SYN))?;
        let answer = packets.iter().position(|it| is(it, SYN | ACK))?;
        let client = |it: &&&Packet| it.ends == first.ends;
        let syn = packets[..answer].iter().rev().filter(client).find(|it| is(it, SYN))?;
        let ack = (answer..packets.len())
            .find(|&at| packets[at].ends == first.ends && is(packets[at], ACK));
        let last_answer = |ack: usize| packets[..ack].iter().rev().find(|it| is(it, SYN | ACK));
        let client_s = ack.and_then(|ack| Some(packets[ack].time_s - last_answer(ack)?.time_s));
        Some((first.ends.clone(), packets[answer].time_s - syn.time_s, client_s))
    };
    streams.into_values().filter_map(handshake).collect()
}

/// The last records of flows over TCP.
fn replay(capture: &Path) -> Vec<Value> {
    let dir = tempfile::tempdir().expect("a folder");
    let flows = dir.path().join("flows.jsonl");
    // A flow is a stream of tshark's, which no silence ends.
    let settings = ["measure.flows=true", "flow.idle_timeout_s=0", "flow.end_on_fin_rst=false"];
    let mut command = common::fenxi(["replay", "--flows"]);
    command.arg(&flows).args(settings.iter().flat_map(|setting| ["--set", setting])).arg(capture);
    common::run(command).expect_code(0);
    let mut records = common::json_lines(&flows);
    records.retain(|it| it["type"] == "flow" && it["final"] == true && it["proto"] == 6);
    records
}

fn ends(record: &Value) -> Ends {
    let end = |address: &str, port: &str| {
        (record[address].as_str().unwrap_or_default().to_owned(), record[port].to_string())
    };
    [end("src", "src_port"), end("dst", "dst_port")]
}

/// Whether a step is within 1 ms or 5 % of tshark's.
fn is_near(measured_us: &Value, wanted_s: f64) -> bool {
    let near = |us: f64| (us / 1e6 - wanted_s).abs() <= 0.001_f64.max(0.05 * wanted_s);
    measured_us.as_f64().is_some_and(near)
}

#[test]
fn handshakes_and_retransmissions_are_tsharks() {
    let name = "handshakes_and_retransmissions_are_tsharks";
    let Some(captures) = common::shared("captures/train") else {
        return skip(name, "../shared/data");
    };
    if Command::new("tshark").arg("--version").output().is_err() {
        return skip(name, "the program tshark");
    }
    let mut steps = 0;
    for (capture, tsharks, ours) in CAPTURES {
        let path = captures.join(capture);
        let (packets, records) = (tshark(&path), replay(&path));
        for (of, server_s, client_s) in handshakes(&packets) {
            let wanted =
                [("server_handshake_us", Some(server_s)), ("client_handshake_us", client_s)];
            for (step, wanted_s) in wanted.iter().filter_map(|(step, it)| Some((step, (*it)?))) {
                let mut flows = records.iter().filter(|record| ends(record) == of);
                let is_it = flows.any(|record| is_near(&record["measured"][step], wanted_s));
                assert!(is_it, "{capture} {of:?}: {step} is not {wanted_s} s");
                steps += 1;
            }
        }
        let sides = records.iter().flat_map(|it| ["fwd", "rev"].map(|side| &it["measured"][side]));
        let measured: u64 = sides.filter_map(|side| side["retransmits"].as_u64()).sum();
        let wanted = packets.iter().filter(|it| it.is_retransmission).count() as u64;
        assert_eq!((wanted, measured), (tsharks, ours), "{capture}");
    }
    assert!(steps > 700, "{steps}");
}

/// TCP with handshakes, losses and keep-alives, over IPv4 and IPv6, and how many retransmissions
/// tshark and fenxi count. They differ where what comes late is resent for one and out of order for
/// the other, as tshark decides by the round trip, and where a server answers a SYN several times
/// with other sequence numbers.
const CAPTURES: [(&str, u64, u64); 15] = [
    ("KakaoTalk_chat.pcap", 18, 18),
    ("alexa-app.pcapng", 197, 197),
    ("android.pcap", 19, 19),
    ("conncheck.pcap", 17, 17),
    ("dnp3.pcap", 230, 230),
    ("ethereum.pcap", 14, 14),
    ("gnutella.pcap", 184, 184),
    ("s7comm-plus.pcap", 26, 26),
    ("sites.pcapng", 8, 8),
    ("tls_multiple_synack_different_seq.pcapng", 8, 1),
    ("tls_port_80.pcapng", 9, 9),
    ("waze.pcap", 10, 10),
    ("webex.pcap", 39, 39),
    ("weibo.pcap", 41, 40),
    ("wow.pcap", 20, 20),
];
