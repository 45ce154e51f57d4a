//! `io.capture = "kernel"` on a router: the packet that decides a flow's label gives its connection
//! the mark.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self, uninterrupted};
use crate::run::mark::{marks, start};

pub(super) const SMALL: &str = "models/protocol-small";
/// Messages that each side sends in a flow that the model names: two a round are as many as the
/// model wants at most, or more.
pub(super) const ROUNDS: u64 = 6;
/// In a flow that a port names: fewer than those at which an answer may contradict the port.
pub(super) const NAMED_ROUNDS: u64 = 4;
/// Ports that name their flows, and the first of those that do not.
pub(super) const NAMED: [(bool, u16, &str); 4] =
    [(false, 53, "DNS"), (false, 123, "NTP"), (true, 443, "TLS"), (true, 22, "SSH")];
pub(super) const UNNAMED: u16 = 21_000;
pub(super) const UNNAMED_FLOWS: u16 = 24;

/// A flow as it is known behind NAT, too: whether it is of IPv6, whether of TCP, and its server's
/// port.
pub(super) type Name = (bool, bool, u16);

/// A mark of its own for each label.
pub(super) fn mark_of(model: &str, label: &Value) -> u32 {
    let labels = common::names(&common::root().join(model));
    let at = labels.iter().position(|known| label == known.as_str());
    at.map_or(0, |at| (at as u32 + 1) << 24)
}

/// A value for each label of a model.
pub(super) fn table(key: &str, model: &str, value: impl Fn(&str) -> u32) -> String {
    let labels = common::names(&common::root().join(model)).into_iter();
    let entries: Vec<String> =
        labels.map(|label| format!("\"{label}\" = {}", value(&label))).collect();
    format!("{key}={{ {} }}", entries.join(", "))
}

/// fenxi on the router. The last answer names a flow however sure it is.
pub(super) fn start_kernel(
    lab: &Lab,
    interface: &str,
    model: &str,
    records: &Path,
    args: &[&str],
) -> Live {
    let path = format!("model.path={model}");
    let own = ["--set", "io.capture=kernel", "--set", "model.min_confidence=0", "--set", &path];
    let args = [&own, args, &["--flows", records.to_str().unwrap()]].concat();
    let class = table("mark.class", model, |label| mark_of(model, &Value::from(label)));
    let live = start(lab, interface, &class, &args);
    live.wait_for_sum("fenxi_port_labels_in_kernel", 1.0);
    live
}

/// Messages there and back in turn, each awaited and each a packet.
pub(super) fn talk(lab: &Lab, (is_v6, is_tcp, port): Name, lengths: [u16; 2], rounds: u64) {
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
pub(super) fn talk_of_all(lab: &Lab) -> BTreeMap<Name, u64> {
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

pub(super) fn name_of(record: &Value) -> Name {
    let is_v6 = record["dst"].as_str().unwrap().contains(':');
    (is_v6, record["proto"] == 6, record["dst_port"].as_u64().unwrap() as u16)
}

/// The records of these flows, all of which got their labels while they lasted.
pub(super) fn labelled(records: &Path, flows: &BTreeMap<Name, u64>) -> Vec<Value> {
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
pub(super) fn deciding(record: &Value) -> u64 {
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
pub(super) fn wait_for_labels(live: &Live, flows: usize) {
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
        let rule = live.ctl(&["policy", "add", "destination_port = 53, mark = 0x1000000"]);
        assert!(rule.stderr.contains("the kernel marks and tags by labels alone"), "{rule:?}");
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
