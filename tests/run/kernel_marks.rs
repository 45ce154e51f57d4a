//! `io.capture = "kernel"` on a router: the packet that decides a flow's label gives its connection
//! the mark, and packets the DSCP.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::packets::{checksum, ethernet, read_capture, whole};
use crate::common::{self, uninterrupted};
use crate::run::mark::{marks, start};
use crate::run::traffic::send;

const SMALL: &str = "models/protocol-small";
/// Messages that each side sends in a flow that the model names: two a round are as many as the
/// model wants at most, or more.
const ROUNDS: u64 = 6;
/// In a flow that a port names: fewer than those at which an answer may contradict the port.
const NAMED_ROUNDS: u64 = 4;
/// Ports that name their flows, and the first of those that do not.
const NAMED: [(bool, u16, &str); 4] =
    [(false, 53, "DNS"), (false, 123, "NTP"), (true, 443, "TLS"), (true, 22, "SSH")];
const UNNAMED: u16 = 21_000;
const UNNAMED_FLOWS: u16 = 24;

/// A flow as it is known behind NAT, too: whether it is of IPv6, whether of TCP, and its server's
/// port.
type Name = (bool, bool, u16);

/// A mark of its own for each label.
fn mark_of(model: &str, label: &Value) -> u32 {
    let labels = common::names(&common::root().join(model));
    let at = labels.iter().position(|known| label == known.as_str());
    at.map_or(0, |at| (at as u32 + 1) << 24)
}

/// A value for each label of a model.
fn table(key: &str, model: &str, value: impl Fn(&str) -> u32) -> String {
    let labels = common::names(&common::root().join(model)).into_iter();
    let entries: Vec<String> =
        labels.map(|label| format!("\"{label}\" = {}", value(&label))).collect();
    format!("{key}={{ {} }}", entries.join(", "))
}

/// fenxi on the router. The last answer names a flow however sure it is.
fn start_kernel(lab: &Lab, interface: &str, model: &str, records: &Path, args: &[&str]) -> Live {
    let path = format!("model.path={model}");
    let own = ["--set", "io.capture=kernel", "--set", "model.min_confidence=0", "--set", &path];
    let args = [&own, args, &["--flows", records.to_str().unwrap()]].concat();
    let class = table("mark.class", model, |label| mark_of(model, &Value::from(label)));
    let live = start(lab, interface, &class, &args);
    assert_eq!(live.metric_sum("fenxi_port_labels_in_kernel"), 1.0);
    live
}

/// Messages there and back in turn, each awaited and each a packet.
fn talk(lab: &Lab, (is_v6, is_tcp, port): Name, lengths: [u16; 2], rounds: u64) {
    let server: IpAddr = Lab::server(is_v6).parse().unwrap();
    let [question, answer] = lengths.map(|length| vec![7; length.into()]);
    if is_tcp {
        let listener = lab.on("server", || TcpListener::bind((server, port)).unwrap());
        let mut near = lab.on("client", || TcpStream::connect((server, port)).unwrap());
        let mut far = listener.accept().unwrap().0;
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        for _ in 0..rounds {
            near.write_all(&question).unwrap();
            far.read_exact(&mut question.clone()).unwrap();
            far.write_all(&answer).unwrap();
            near.read_exact(&mut answer.clone()).unwrap();
        }
        return;
    }
    let bind = |address: IpAddr, port: u16| {
        let socket = UdpSocket::bind((address, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    };
    let far = lab.on("server", || bind(server, port));
    let any = if is_v6 { "::" } else { "0.0.0.0" };
    let near = lab.on("client", || bind(any.parse().unwrap(), 0));
    near.connect((server, port)).unwrap();
    for _ in 0..rounds {
        near.send(&question).unwrap();
        let (_, from) = uninterrupted(|| far.recv_from(&mut [0; 1500])).unwrap();
        far.send_to(&answer, from).unwrap();
        uninterrupted(|| near.recv(&mut [0; 1500])).unwrap();
    }
}

/// Flows of many kinds; the messages that each side sent in each.
fn talk_of_all(lab: &Lab) -> BTreeMap<Name, u64> {
    let mut flows = BTreeMap::new();
    for is_v6 in [false, true] {
        for (is_tcp, port, _) in NAMED {
            talk(lab, (is_v6, is_tcp, port), [60, 200], NAMED_ROUNDS);
            flows.insert((is_v6, is_tcp, port), NAMED_ROUNDS);
        }
        for at in 0..UNNAMED_FLOWS {
            let flow = (is_v6, at % 2 == 1, UNNAMED + at);
            talk(lab, flow, [20 + 53 * at, 1300 - 51 * at], ROUNDS);
            flows.insert(flow, ROUNDS);
        }
    }
    flows
}

/// Counts messages in the forward hook, by flow and mark of the connection.
const COUNTERS: &str = "table inet count {
    set to_server { typeof meta nfproto . meta l4proto . th dport . ct mark
                    flags dynamic; size 4096; }
    set to_client { typeof meta nfproto . meta l4proto . th sport . ct mark
                    flags dynamic; size 4096; }
    chain seen {
        type filter hook forward priority 0; policy accept;
        meta l4proto != { tcp, udp } accept
        meta l4proto tcp tcp flags & psh == 0 accept
        iifname in update @to_server { meta nfproto . meta l4proto . th dport . ct mark counter }
        iifname out update @to_client { meta nfproto . meta l4proto . th sport . ct mark counter }
    }
}";

/// What the rules counted in one direction: packets of each flow, by mark.
fn counted(lab: &Lab, direction: &str) -> BTreeMap<Name, BTreeMap<u32, u64>> {
    let page = lab.run("router", &format!("nft -j list set inet count {direction}"));
    let page: Value = serde_json::from_str(&page).unwrap();
    let sets = page["nftables"].as_array().unwrap();
    let set = sets.iter().find_map(|it| it.get("set")).unwrap();
    let mut flows: BTreeMap<Name, BTreeMap<u32, u64>> = BTreeMap::new();
    for element in set["elem"].as_array().unwrap() {
        let element = &element["elem"];
        let key = &element["val"]["concat"];
        let port = key[2].as_u64().unwrap() as u16;
        let mark = key[3].as_u64().unwrap() as u32;
        let packets = element["counter"]["packets"].as_u64().unwrap();
        flows.entry((key[0] == "ipv6", key[1] == "tcp", port)).or_default().insert(mark, packets);
    }
    flows
}

fn name_of(record: &Value) -> Name {
    let is_v6 = record["dst"].as_str().unwrap().contains(':');
    (is_v6, record["proto"] == 6, record["dst_port"].as_u64().unwrap() as u16)
}

/// The records of these flows, all of which got their labels while they lasted.
fn labelled(records: &Path, flows: &BTreeMap<Name, u64>) -> Vec<Value> {
    let records = common::json_lines(records).into_iter();
    let records: Vec<Value> = records
        .filter(|it| it["type"] == "flow" && (it["proto"] == 6 || it["proto"] == 17))
        .filter(|it| flows.contains_key(&name_of(it)))
        .collect();
    assert_eq!(records.len(), flows.len());
    for record in &records {
        assert!(!record["time_to_label_us"].is_null(), "{record}");
    }
    records
}

/// The place, among its messages, of the one that decided a flow; 0 where the port did.
fn deciding(record: &Value) -> u64 {
    record["depth"].as_u64().unwrap()
}

/// How many messages pass the forward hook without a mark, from the client and from the server.
///
/// What comes in by the watched interface is marked before it is forwarded, and what leaves by it
/// after that. A connection is confirmed when its first packet leaves the router: where that comes
/// in by the watched interface, it cannot be marked yet, and the answer marks it.
fn unmarked(interface: &str, is_tcp: bool, deciding: u64) -> [u64; 2] {
    match interface {
        "in" => [if is_tcp { deciding } else { deciding.max(2) } / 2; 2],
        _ => {
            let deciding = if is_tcp { deciding } else { deciding.max(1) };
            [deciding.div_ceil(2), deciding.saturating_sub(1) / 2]
        }
    }
}

fn outcomes(live: &Live, outcome: &str) -> u64 {
    let label = format!("outcome=\"{outcome}\"");
    live.samples_with("fenxi_marks_total", &label).iter().sum::<f64>() as u64
}

/// Waits until fenxi knows of all labels, and has nothing to write any more.
fn wait_for_labels(live: &Live, flows: usize) {
    live.wait_for("all labels are known", |live| {
        live.metric_sum("fenxi_labels_total") >= flows as f64
            && live.metric_sum("fenxi_marks_waiting") == 0.0
    });
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
}

/// Each packet from the deciding one on has its connection's mark, and none before, for all flows,
/// wherever fenxi looks, behind NAT too.
#[test]
fn the_deciding_packet_is_forwarded_with_its_mark() {
    for (model, masquerades, interface) in [
        (SMALL, false, "in"),
        (SMALL, true, "in"),
        (SMALL, true, "out"),
        ("models/protocol", true, "in"),
    ] {
        let Some(lab) = Lab::routed("kernel-marks", masquerades, &[]) else { return };
        lab.nft("router", COUNTERS);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let live = start_kernel(&lab, interface, model, &path, &[]);
        let flows = talk_of_all(&lab);
        wait_for_labels(&live, flows.len());
        let summary = live.terminate(0).json();

        let seen = ["to_server", "to_client"].map(|direction| counted(&lab, direction));
        let mut by_depth: BTreeMap<u64, u64> = BTreeMap::new();
        let mut contradicted = 0;
        for record in labelled(&path, &flows) {
            let name = name_of(&record);
            let mark = mark_of(model, &record["label"]);
            let deciding = deciding(&record);
            if mark != 0 {
                *by_depth.entry(deciding).or_default() += 1;
            }
            // Until an answer contradicts the port, the port's mark is there.
            let is_contradicted = record["contradicts"] == true;
            contradicted += u64::from(is_contradicted);
            let named = if is_contradicted { 0 } else { deciding };
            let port = NAMED.iter().find(|(_, port, _)| *port == name.2);
            let port = Value::from(port.map_or("", |(_, _, label)| *label));
            let port = mark_of(model, &port);
            // `unknown` has no mark.
            let mark = if mark == 0 && is_contradicted { port } else { mark };
            let before = unmarked(interface, name.1, named);
            let by_then = unmarked(interface, name.1, deciding);
            for (at, seen) in seen.iter().enumerate() {
                let mut wanted = BTreeMap::new();
                for (mark, packets) in [
                    (0, before[at]),
                    (port, by_then[at] - before[at]),
                    (mark, flows[&name] - by_then[at]),
                ] {
                    if packets > 0 {
                        *wanted.entry(FOREIGN | mark).or_default() += packets;
                    }
                }
                assert_eq!(seen[&name], wanted, "{interface}: {record}");
            }
        }
        let written = summary["live"]["marks_written"].as_u64().unwrap();
        let marked = by_depth.values().sum::<u64>();
        assert!((marked..=marked + contradicted).contains(&written), "{written} of {marked}");
        assert_eq!(summary["live"]["marks_asked"], written);
        let by_port = by_depth[&0] + contradicted;
        assert_eq!(by_port, 2 * NAMED.len() as u64, "{by_depth:?}");
        let is_by_later = by_depth.iter().any(|(deciding, flows)| *deciding > 1 && *flows > 4);
        assert!(is_by_later, "{by_depth:?}");
    }
}

/// Somebody else's mark, where fenxi writes its own: on all connections of IPv6.
const THEIRS: u32 = 0x4100_0000;
const MARKED_BY_OTHERS: &str = "table inet theirs {
    chain others {
        type filter hook prerouting priority -180; policy accept;
        meta nfproto ipv6 ct state new ct mark set 0x4100cd40
    }
}";

#[test]
fn a_mark_of_somebody_else_stays_unless_it_is_to_be_overwritten() {
    for overwrites in [false, true] {
        let Some(lab) = Lab::routed("kernel-kept", false, &[]) else { return };
        lab.nft("router", MARKED_BY_OTHERS);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let overwrite = format!("mark.overwrite={overwrites}");
        let live = start_kernel(&lab, "in", SMALL, &path, &["--set", &overwrite]);
        let flows = talk_of_all(&lab);
        wait_for_labels(&live, flows.len());
        let [written, kept] = ["written", "kept"].map(|outcome| outcomes(&live, outcome));
        live.terminate(0);
        let [mut ours, mut theirs] = [0, 0];
        let marks = marks(&lab);
        for record in labelled(&path, &flows) {
            let text = |name: &str| record[name].to_string().replace('"', "");
            let tuple = ["src", "src_port", "dst", "dst_port", "proto"].map(text);
            let own = mark_of(SMALL, &record["label"]);
            let stays = name_of(&record).0 && (!overwrites || own == 0);
            let mark = if stays { THEIRS } else { own };
            assert_eq!(marks[&tuple.join(" ")], FOREIGN | mark, "{record}");
            theirs += u64::from(own != 0 && stays);
            ours += u64::from(own != 0 && !stays);
        }
        assert_eq!([written, kept], [ours, theirs]);
        assert_eq!(theirs > 0, !overwrites);
    }
}

/// AF11, and the congestion bits that the server sets (ECT(1)).
const DSCP: u8 = 10;
const ECN: u8 = 1;
const SETS_ECN: &str = "table inet congestion {
    chain out {
        type filter hook output priority 0; policy accept;
        ip ecn set ect1
        ip6 ecn set ect1
    }
}";

/// What a message from the server carries: its flow, and the byte with DSCP and ECN. `None`: it is
/// none.
fn carried(frame: &[u8]) -> Option<(Name, u8)> {
    let (packet, is_v6) = match frame[12..14] {
        [0x08, 0x00] => (&frame[14..], false),
        [0x86, 0xdd] => (&frame[14..], true),
        _ => return None,
    };
    let length_at = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let (protocol, header, class, length) = match is_v6 {
        true => (packet[6], 40, packet[0] << 4 | packet[1] >> 4, 40 + length_at(4)),
        false => (packet[9], 20, packet[1], length_at(2)),
    };
    assert_eq!(packet[0] >> 4, if is_v6 { 6 } else { 4 });
    assert!(is_v6 || checksum(&packet[..header]) == 0, "{:x?}", &packet[..header]);
    let is_tcp = protocol == 6;
    if !is_tcp && protocol != 17 {
        return None;
    }
    let own = if is_tcp { usize::from(packet[header + 12] >> 4) * 4 } else { 8 };
    let port = length_at(header) as u16;
    (length > header + own).then_some(((is_v6, is_tcp, port), class))
}

/// From the deciding packet on, a flow's packets that leave by the watched interface carry the DSCP
/// that its label has, with all else of their headers as it was.
#[test]
fn packets_of_labelled_flows_leave_with_the_dscp_of_their_label() {
    let Some(lab) = Lab::routed("kernel-dscp", true, &["tcpdump"]) else { return };
    lab.nft("server", SETS_ECN);
    let dir = tempfile::tempdir().unwrap();
    let [path, capture] = ["records", "capture"].map(|name| dir.path().join(name));
    let dscp = table("tag.dscp", SMALL, |_| DSCP.into());
    let args = ["--set", "tag.in_kernel=true", "--set", &dscp];
    let live = start_kernel(&lab, "in", SMALL, &path, &args);
    // It ends by itself once it has all messages; acknowledgements are shorter than any of them.
    let messages = NAMED.len() as u64 * NAMED_ROUNDS + u64::from(UNNAMED_FLOWS) * ROUNDS;
    let line = format!(
        "timeout 60 tcpdump -i eth -Q in -U --immediate-mode -s 0 -c {} -w {} greater 120",
        2 * messages,
        capture.display(),
    );
    let seen = lab.spawn("client", &line);
    live.wait_for("tcpdump listens", |_| capture.metadata().is_ok_and(|file| file.len() > 0));
    let flows = talk_of_all(&lab);
    seen.wait();
    live.terminate(0);

    let mut classes: BTreeMap<Name, Vec<u8>> = BTreeMap::new();
    for (_, frame) in read_capture(&capture) {
        if let Some((name, class)) = carried(&frame).filter(|(name, _)| flows.contains_key(name)) {
            classes.entry(name).or_default().push(class);
        }
    }
    for record in labelled(&path, &flows) {
        let name = name_of(&record);
        let before = deciding(&record).saturating_sub(1) / 2;
        let is_unknown = record["label"] == "unknown";
        let wanted: Vec<u8> = (0..flows[&name])
            .map(|at| if at < before || is_unknown { ECN } else { DSCP << 2 | ECN })
            .collect();
        assert_eq!(classes[&name], wanted, "{record}");
    }
}

/// A capture of SYNs, each of a flow of its own, from and to addresses that nobody has.
fn write_flood(path: PathBuf, numbers: std::ops::Range<u32>) -> PathBuf {
    let syn = |number: u32| {
        let mut ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 0, 0, 0, 0, 198, 51, 100, 1];
        ip[12..16].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut tcp = [0; 20];
        tcp[..2].copy_from_slice(&(1024 + (number % 60_000) as u16).to_be_bytes());
        tcp[2..4].copy_from_slice(&443_u16.to_be_bytes());
        (tcp[12], tcp[13], tcp[14], tcp[15]) = (0x50, 2, 0xff, 0xff);
        let mut frame = ethernet(0x0800, &[ip, tcp].concat());
        frame[..6].fill(0xff);
        frame
    };
    std::fs::write(&path, whole(numbers.map(syn))).unwrap();
    path
}

/// Honest connections beside 200,000 SYNs of flows that never go on: all have their labels and
/// marks, and fenxi needs no more memory.
#[test]
fn a_flood_of_syns_takes_no_label_from_honest_connections() {
    const CONNECTIONS: u16 = 100;
    const PORT: u16 = 22_000;
    let Some(lab) = Lab::routed("kernel-flood", false, &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let warm = write_flood(dir.path().join("warm"), 0..50_000);
    let flood = write_flood(dir.path().join("flood"), 50_000..250_000);
    let live = start_kernel(&lab, "in", SMALL, &path, &["--set", "ring.slots=65536"]);
    lab.on("client", || send(&warm, "eth"));
    live.wait_for_packets(50_000);
    let before = live.resident_kib();
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(lab.entering("client", || send(&flood, "eth")));
        for at in 0..CONNECTIONS {
            let flow = (at % 2 == 1, true, PORT + at);
            talk(&lab, flow, [20 + 11 * at, 1300 - 11 * at], ROUNDS);
        }
        flood.join().unwrap()
    });
    assert_eq!(sent, 200_000);
    let grown = live.resident_kib().saturating_sub(before);
    assert!(grown < 4096, "{grown} KiB more than {before}");
    // Their port names the flows of the SYNs.
    wait_for_labels(&live, 250_000 + usize::from(CONNECTIONS));
    let summary = live.terminate(0).json();
    let flows = (0..CONNECTIONS).map(|at| ((at % 2 == 1, true, PORT + at), ROUNDS)).collect();
    let marks = marks(&lab);
    let mut marked = 0;
    for record in labelled(&path, &flows) {
        let text = |name: &str| record[name].to_string().replace('"', "");
        let tuple = ["src", "src_port", "dst", "dst_port", "proto"].map(text);
        let mark = mark_of(SMALL, &record["label"]);
        assert_eq!(marks[&tuple.join(" ")], FOREIGN | mark, "{record}");
        marked += u64::from(mark != 0);
    }
    assert_eq!(summary["live"]["marks_written"], marked);
}
