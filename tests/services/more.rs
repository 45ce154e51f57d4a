//! Services by label, rule and VLAN; by neighbour and interface; of a replay; and what one run does
//! to another.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use observe::{Egress, EgressKind, Reader};
use serde_json::Value;

use super::{ACK, CLIENT, SYN, WEB, World, ask, connection, segment, sum};
use crate::common::lab::Lab;
use crate::common::live::fenxi_on;
use crate::common::packets::pcap;
use crate::common::{self};
use crate::run::inline::{self, RIGHT};
use crate::run::traffic::ask_udp;

/// The frame with a VLAN tag, for this neighbour.
fn tagged(vlan: u16, mac: u8, frame: &[u8]) -> Vec<u8> {
    let tag = [[0x81, 0], vlan.to_be_bytes()].concat();
    [&[mac; 6][..], &frame[6..12], &tag, &frame[12..]].concat()
}

/// Packets with payload in both directions.
fn talk(client: u16, server: ([u8; 4], u16), rounds: usize) -> Vec<Vec<u8>> {
    let client = (CLIENT, client);
    let round = |_| [segment(client, server, (ACK, 50)), segment(server, client, (ACK, 500))];
    (0..rounds).flat_map(round).collect()
}

fn handshake(client: u16, server: ([u8; 4], u16)) -> Vec<Vec<u8>> {
    connection(client, server, 10).into_iter().take(2).collect()
}

#[test]
fn flows_join_by_label_rule_and_vlan() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.toml");
    let voice = "[[rule]]\nname = \"voice\"\ndestination = \"10.0.2.1\"\ndscp = \"EF\"\n";
    fs::write(&rules, voice).unwrap();
    let config = "[service.labelled]\nservers = [\"10.0.1.0/24\"]\n\
                  when = \"default.label != unknown\"\n\
                  [service.ruled]\nservers = [\"10.0.2.0/24\"]\nwhen = \"rule = voice\"\n\
                  [service.tagged]\nservers = [\"10.0.3.0/24\"]\nwhen = \"vlan = 10 and in_port = \
                  in\"\negress = \"next-hop\"\n";
    let rules = format!("policy.rules={}", rules.display());
    // It is asked after ten packets.
    let model = format!("model.path={}", common::bundle().display());
    let sets = [rules.as_str(), &model];
    let Some(world) = World::new("services-when", config, &sets) else { return };
    let open = |name: &str| Reader::open(&world.file(name)).unwrap();
    let [labelled, ruled, vlans] = ["labelled.0", "ruled.0", "tagged.0"].map(open);

    let server = ([10, 0, 1, 1], 80);
    world.send([handshake(2000, server), talk(2000, server, 20)].concat());
    world.live.wait_for("the label is decided", |live| live.metric_sum("fenxi_labels_total") > 0.0);
    let before = sum(&labelled, "packets_in");
    world.send(talk(2000, server, 5));
    world.live.wait_for("what comes then counts", |_| sum(&labelled, "packets_in") >= before + 5);
    assert_eq!(sum(&labelled, "flows_begun"), 1);
    assert!(sum(&labelled, "packets_in") < 26, "not what came before the label");

    // The rule is known behind the burst of the first packet, which counts nevertheless.
    let both = [1, 2].map(|n| connection(2001, ([10, 0, 2, n], 80), 9));
    world.send(both.iter().map(|frames| frames[0].clone()).collect());
    world.send(both.iter().flat_map(|frames| frames[1..].to_vec()).collect());
    world.live.wait_for("the rule's flow", |_| sum(&ruled, "flows_ended") == 1);
    assert_eq!([sum(&ruled, "packets_in"), sum(&ruled, "packets_out")], [3, 3]);

    let of_vlan = |vlan, mac, port| {
        let frames = connection(port, ([10, 0, 3, 1], 80), 9);
        frames.into_iter().map(move |frame| tagged(vlan, mac, &frame))
    };
    let frames = [(10, 8, 1), (10, 9, 2), (11, 8, 3)];
    world.send(frames.into_iter().flat_map(|(vlan, mac, port)| of_vlan(vlan, mac, port)).collect());
    world.live.wait_for("the VLAN's flows", |_| sum(&vlans, "flows_ended") == 2);
    let mut snapshot = vlans.snapshot();
    vlans.read(&mut snapshot).unwrap();
    let hops: Vec<Egress> = snapshot.egresses().skip(1).map(|row| row.egress()).collect();
    assert_eq!(hops, [8, 9].map(|mac| Egress::next_hop([mac; 6])));
    let shown = world.service("tagged");
    assert_eq!(shown["egresses"][0]["egress"], "08:08:08:08:08:08");
    world.live.terminate(0);
}

#[test]
fn inline_traffic_is_divided_by_the_interface_that_it_leaves_by() {
    let Some(lab) = Lab::bridged("services-inline", &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let folder = format!("observe.folder={}", dir.path().display());
    let sets = ["service.all.servers=[\"10.78.0.0/24\"]", "service.all.egress=out-port", &folder];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let live = inline::start(&lab, &sets);
    let reader = Reader::open(&dir.path().join("all.0")).unwrap();
    for hosts in [["left", "right"], ["right", "left"]] {
        let address = if hosts[1] == "right" { RIGHT[0] } else { inline::LEFT[0] };
        ask_udp(&lab, hosts, address, 3);
    }
    live.wait_for("both flows", |_| sum(&reader, "packets_out") == 6);
    let shown = live.ctl(&["--json", "services", "all"]).expect_code(0).json();
    let egresses = shown["services"][0]["egresses"].as_array().unwrap().clone();
    let mut names: Vec<&str> = egresses.iter().filter_map(|it| it["egress"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["l", "others", "r"]);
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot).unwrap();
    let kinds = snapshot.egresses().skip(1).map(|row| row.egress().kind);
    assert!(kinds.into_iter().all(|kind| kind == EgressKind::OUT_PORT));
    live.terminate(0);
}

/// `services` of a replay with this configuration, and its text.
fn replayed(capture: &Path, config: &str, more: &[&str]) -> (Value, String) {
    let dir = capture.parent().unwrap();
    let file = dir.join("replay.toml");
    fs::write(&file, config).unwrap();
    let run = |json: &[&str]| {
        let mut fenxi = common::fenxi(["replay"]);
        fenxi.arg(capture).arg("--config").arg(&file).args(more).args(json);
        common::run(fenxi).expect_code(0)
    };
    (run(&["--json"]).json()["services"].clone(), run(&[]).stderr)
}

#[test]
fn a_replay_sums_up_what_a_live_run_would_have_in_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("made.pcap");
    let mut frames = Vec::new();
    for at in 0..300 {
        let server = [10, 0, 1, if at % 3 == 0 { 1 } else { 2 }];
        frames.extend(connection(2000 + at, (server, 80), 1000));
        frames.extend(connection(3000 + at, (server, 81), 10));
    }
    frames.push(segment((CLIENT, 5001), ([10, 0, 1, 3], 80), (SYN, 0)));
    // Far more servers than have figures of their own, of which some answer often.
    for at in 0..3000_u16 {
        let server = ([10, 1, 0, (at * 7 % 200) as u8], 443);
        frames.extend(connection(6000 + at, server, usize::from(at % 200)));
    }
    fs::write(&capture, pcap(frames)).unwrap();
    let config = format!("{WEB}[service.many]\nservers = [\"10.1.0.0/16\"]\negresses = 5\n");
    let (services, text) = replayed(&capture, &config, &[]);
    assert!(text.contains("service   web: 301 flows begun, 300 answered, 301 ended"), "{text}");
    let web = services.as_array().unwrap().iter().find(|it| it["name"] == "web").unwrap();
    let rows = web["egresses"].as_array().unwrap();
    let of = |server: &str, name: &str| {
        let row = rows.iter().find(|row| row["egress"] == server).unwrap();
        row[name].as_u64().unwrap()
    };
    for (name, expected) in [
        ("flows_begun", [100, 200, 1]),
        ("flows_ended", [100, 200, 1]),
        ("syns_unanswered", [0, 0, 1]),
        ("packets_in", [300, 600, 1]),
        ("packets_out", [300, 600, 0]),
        ("bytes_in", [22_000, 44_000, 40]),
        ("bytes_out", [112_000, 224_000, 0]),
        ("flows_in_flight", [0, 0, 0]),
    ] {
        assert_eq!([1, 2, 3].map(|it| of(&format!("10.0.1.{it}"), name)), expected, "{name}");
    }
    // However packets come in bursts.
    let again = replayed(&capture, &config, &["--set", "io.burst=7"]);
    assert_eq!(again.0, services);

    let labelled = format!("{WEB}when = \"default.label != unknown\"\n");
    let inline = ["--set", "pipeline.layout=1:0:0"];
    let (services, _) = replayed(&capture, &labelled, &inline);
    let again = replayed(&capture, &labelled, &[&inline[..], &["--set", "io.burst=7"]].concat());
    assert_eq!(again.0, services);
    let mut late = common::fenxi(["replay", "--set", "pipeline.layout=1:1:1", "--config"]);
    late.arg(dir.path().join("replay.toml")).arg(&capture);
    let refused = common::run(late).expect_code(78).stderr;
    assert!(refused.contains("only where flow workers run the model; set"), "{refused}");
}

#[test]
fn runs_keep_out_of_each_others_way() {
    let Some(world) = World::new("services-first", "", &[]) else { return };
    // The folder is there for the first service.
    world.reload(WEB);
    let reader = Reader::open(&world.file("web.0")).unwrap();
    let folder = world.dir.path().join("services");
    let mut second = fenxi_on(&world.lab, "box", &[]);
    second.args(["run", "-i", "in", "--set", "service.web.servers=[\"10.0.1.0/24\"]"]);
    second.args(["--set", &format!("observe.folder={}", folder.display())]);
    for (key, kind) in [("http", "unix:"), ("socket", "")] {
        let path = world.dir.path().join(key);
        second.args(["--set", &format!("control.{key}={kind}{}", path.display())]);
    }
    let refused = common::run(second).expect_code(69).stderr;
    assert!(refused.contains("another fenxi has its services there; set observe"), "{refused}");
    assert!(!reader.is_ended() && world.file("web.0").exists());
    world.live.terminate(0);

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("memory");
    let set = format!("observe.socket={}", socket.display());
    let Some(world) = World::new("services-silent", WEB, &[&set]) else { return };
    // Those that say nothing keep nobody from asking.
    let connect = |_| UnixStream::connect(&socket).unwrap();
    let _silent: Vec<UnixStream> = (0..100).map(connect).collect();
    assert!(ask(&socket, "web 0\n").is_some());
    world.live.terminate(0);
}
