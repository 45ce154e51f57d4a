//! Mode mark: a router forwards by itself, and its connections get the marks of their labels.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::traffic::{PROGRAMS, Servers, ask_dns, ask_udp, connect, every_label, stream};

pub const HOSTS: [&str; 2] = ["client", "server"];

/// fenxi on the router, at an interface; `class` is the table of marks.
pub fn start(lab: &Lab, interface: &str, class: &str, args: &[&str]) -> Live {
    let interfaces = format!("io.interfaces=[\"{interface}\"]");
    let mut all = vec!["--set", &interfaces, "--set", "io.mode=mark", "--set", class];
    all.extend(args);
    Live::start(lab, "router", &all)
}

/// A mark of its own for each label.
fn mark_of(label: &Value) -> u32 {
    let labels = common::names(&common::shipped_bundle());
    let at = labels.iter().position(|known| label == known.as_str());
    at.map_or(0, |at| (at as u32 + 1) << 24)
}

fn own_marks() -> String {
    let labels = common::names(&common::shipped_bundle()).into_iter();
    let entries: Vec<String> = labels
        .map(|label| format!("\"{label}\" = {}", mark_of(&Value::from(label.as_str()))))
        .collect();
    format!("mark.class={{ {} }}", entries.join(", "))
}

/// Marks of all connections with ports, as conntrack lists them, by each tuple that somebody may
/// have seen.
pub fn marks(lab: &Lab) -> BTreeMap<String, u32> {
    let mut marks = BTreeMap::new();
    for family in ["ipv4", "ipv6"] {
        for line in lab.run("router", &format!("conntrack -L -f {family}")).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let of = |name: &str| -> Vec<&str> {
                let of_name = words.iter().filter_map(|word| word.strip_prefix(name));
                of_name.collect()
            };
            let (ends, ports) = ([of("src="), of("dst=")], [of("sport="), of("dport=")]);
            let mark = of("mark=")[0].parse().unwrap();
            for (at, source_port) in ports[0].iter().enumerate() {
                let proto = words[1];
                let (source, far, far_port) = (ends[0][at], ends[1][at], ports[1][at]);
                marks.insert(format!("{source} {source_port} {far} {far_port} {proto}"), mark);
                marks.insert(format!("{far} {far_port} {source} {source_port} {proto}"), mark);
            }
        }
    }
    marks
}

/// The mark of the connection that this socket of the client's has.
pub fn mark_at(lab: &Lab, near: SocketAddr) -> u32 {
    let start = format!("{} {} ", near.ip(), near.port());
    let marks = marks(lab);
    let found = marks.iter().find(|(tuple, _)| tuple.starts_with(&start));
    *found.unwrap().1
}

/// Each connection has the mark of the label that its flow's record has, wherever fenxi looks, and
/// no other.
#[test]
fn each_connection_gets_the_mark_of_its_label() {
    let places = [(false, "in"), (false, "out"), (true, "in"), (true, "out")];
    let all = places.map(|(masquerades, interface)| ("all", masquerades, interface));
    let first = [("first", false, "in"), ("first", true, "out")];
    for (capture, masquerades, interface) in all.into_iter().chain(first) {
        let test = format!("marks-{capture}-{masquerades}-{interface}");
        let Some(lab) = Lab::routed(&test, masquerades, &PROGRAMS) else {
            return;
        };
        let servers = Servers::start(&lab, "server", &[("page", 300_000)]);
        let records = servers.path("records");
        let args = ["--flows", records.to_str().unwrap()];
        let shipped = match capture {
            "first" => ["--config", "configs/live-mark-first.toml"],
            _ => ["--config", "configs/live-mark.toml"],
        };
        let args = [&shipped[..], &args].concat();
        let live = start(&lab, interface, &own_marks(), &args);
        for is_v6 in [false, true] {
            let server = Lab::server(is_v6);
            servers.fetch(&lab, "client", server, "page");
            ask_dns(&lab, "client", server);
            for rounds in [20, 3] {
                ask_udp(&lab, HOSTS, server, rounds);
                let [near, far] = connect(&lab, HOSTS, server);
                stream(near, far, rounds * 1000);
            }
        }
        live.wait_for("no mark is under way", |live| {
            live.metric_sum("fenxi_marks_total") > 0.0
                && live.metric_sum("fenxi_marks_waiting") == 0.0
        });
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let in_time = live.metric_sum("fenxi_mark_latency_seconds_count");
        assert_eq!(in_time, live.metric_sum("fenxi_marks_total"), "all are written");
        let summary = live.terminate(0).json();
        // Marks stay when fenxi has gone.
        let marks = marks(&lab);
        let flows = common::json_lines(&records).into_iter();
        let flows: Vec<Value> = flows.filter(|record| record["type"] == "flow").collect();
        let mut labelled = 0;
        for flow in &flows {
            let text = |name: &str| flow[name].to_string().replace('"', "");
            let tuple = ["src", "src_port", "dst", "dst_port", "proto"].map(text);
            let mark = marks.get(&tuple.join(" "));
            // A name that a flow gets at its end, of its port or of an answer that was not sure,
            // comes too late for a mark.
            let in_time = !flow["time_to_label_us"].is_null();
            let label = if in_time { &flow["label"] } else { &Value::Null };
            assert_eq!(mark, Some(&(FOREIGN | mark_of(label))), "{flow}");
            labelled += u64::from(in_time);
        }
        assert!(labelled >= 6, "{labelled} of {}", flows.len());
        let is_dns = |flow: &&Value| flow["dst_port"] == 53 && flow["proto"] == 17;
        let dns: Vec<&Value> = flows.iter().filter(is_dns).collect();
        let in_time = |flow: &&Value| flow["label"] == "DNS" && flow["time_to_label_us"] == 0;
        assert!(!dns.is_empty() && dns.iter().all(in_time), "{dns:?}");
        let live = &summary["live"];
        let unknown = flows
            .iter()
            .filter(|flow| flow["label"] == "unknown" && !flow["time_to_label_us"].is_null());
        assert_eq!(live["marks_written"].as_u64().unwrap(), labelled - unknown.count() as u64);
        assert_eq!(live["marks_asked"], live["marks_written"]);
        for name in ["marks_not_found", "marks_failed", "marks_dropped", "sent"] {
            assert_eq!(live[name], 0, "{name}");
        }
    }
}

/// A number of packets there and back, more than a series has.
fn talk([near, far]: &mut [TcpStream; 2]) {
    for _ in 0..12 {
        near.write_all(&[7; 500]).unwrap();
        far.read_exact(&mut [0; 500]).unwrap();
        far.write_all(b"more").unwrap();
        near.read_exact(&mut [0; 4]).unwrap();
    }
}

/// Marks asked for, by what became of them.
fn marks_with(live: &Live, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    live.samples_with("fenxi_marks_total", &label).iter().sum()
}

/// Connections that stay open: what fenxi wrote stays when it is killed, started again, or has
/// forgotten the flow for its silence, also where it then labels them otherwise; `mark.overwrite`
/// gives them the new label.
#[test]
fn a_mark_outlives_restarts_and_silence_unless_it_is_to_be_overwritten() {
    const CONNECTIONS: usize = 4;
    let Some(lab) = Lab::routed("kept", true, &[]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let trained = common::trained_midstream(&common::shipped_bundle(), dir.path());
    let trained = format!("model.path={}", trained.display());
    let mark_of = |class: u32| every_label("mark.class", &class.to_string());
    let start = |class: u32, more: &[&str]| {
        let args = [
            &common::SIMULATED[..],
            &["--set", "flow.idle_timeout_s=1"],
            &["--set", "flow.established_timeout_s=0"],
            more,
        ];
        start(&lab, "in", &mark_of(class), &args.concat())
    };
    let mut connections: Vec<_> =
        (0..CONNECTIONS).map(|at| connect(&lab, HOSTS, Lab::server(at % 2 == 1))).collect();
    let clients: Vec<_> = connections.iter().map(|[near, _]| near.local_addr().unwrap()).collect();
    let marks = || -> Vec<u32> { clients.iter().map(|it| mark_at(&lab, *it)).collect() };
    let all = |class: u32| vec![FOREIGN | class; CONNECTIONS];

    // Never seen from their beginning, they are not marked.
    let live = start(0x4100_0000, &[]);
    connections.iter_mut().for_each(talk);
    live.wait_for("they are found to be mid-stream", |live| {
        live.metric_sum("fenxi_series_withheld_total") == CONNECTIONS as f64
    });
    assert_eq!(live.metric_sum("fenxi_series_emitted_total"), 0.0);
    assert_eq!(marks(), all(0));
    drop(connections);

    let mut connections: Vec<_> =
        (0..CONNECTIONS).map(|at| connect(&lab, HOSTS, Lab::server(at % 2 == 1))).collect();
    let clients: Vec<_> = connections.iter().map(|[near, _]| near.local_addr().unwrap()).collect();
    let marks = || -> Vec<u32> { clients.iter().map(|it| mark_at(&lab, *it)).collect() };
    connections.iter_mut().for_each(talk);
    live.wait_for("they have their marks", |_| marks() == all(0x4100_0000));

    // Silent until fenxi knows nothing of them any more.
    live.wait_for("the flows have ended", |live| {
        live.metric_sum("fenxi_flow_table_entries") == 0.0
    });
    let withheld = live.metric_sum("fenxi_series_withheld_total");
    connections.iter_mut().for_each(talk);
    live.wait_for("they go on mid-stream", |live| {
        live.metric_sum("fenxi_series_withheld_total") == withheld + CONNECTIONS as f64
    });
    assert_eq!(marks_with(&live, "written"), CONNECTIONS as f64);
    assert_eq!(marks(), all(0x4100_0000));
    live.kill();

    // A start with other marks.
    let live = start(0x4200_0000, &[]);
    connections.iter_mut().for_each(talk);
    live.wait_for("they are found to be mid-stream", |live| {
        live.metric_sum("fenxi_series_withheld_total") == CONNECTIONS as f64
    });
    assert_eq!(live.metric_sum("fenxi_marks_total"), 0.0);
    assert_eq!(marks(), all(0x4100_0000));
    let status = live.ctl(&["status"]).expect_code(0).stdout;
    assert!(status.contains("4 flows began mid-stream"), "{status}");
    live.kill();

    // A model that labels them all the same: what is set stays.
    let live = start(0x4200_0000, &["--set", &trained]);
    connections.iter_mut().for_each(talk);
    live.wait_for("their marks are kept", |live| marks_with(live, "kept") == CONNECTIONS as f64);
    assert_eq!(marks_with(&live, "written"), 0.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    assert_eq!(marks(), all(0x4100_0000));
    let status = live.ctl(&["status"]).expect_code(0).stdout;
    assert!(status.contains("0 written, 4 kept as they were"), "{status}");
    let summary = live.terminate(0).json();
    assert_eq!(summary["live"]["marks_kept"], CONNECTIONS);

    // Unless they are to be overwritten.
    let live = start(0x4200_0000, &["--set", &trained, "--set", "mark.overwrite=true"]);
    connections.iter_mut().for_each(talk);
    live.wait_for("they have the new mark", |_| marks() == all(0x4200_0000));
    assert_eq!(marks_with(&live, "kept"), 0.0);
    live.terminate(0);
}

/// `kill -9` in the middle of a transfer: the traffic does not notice, and marks stay.
#[test]
fn nobody_notices_that_it_was_killed() {
    let Some(lab) = Lab::routed("killed", true, &[]) else {
        return;
    };
    let class = every_label("mark.class", "0x42000000");
    for interface in ["in", "out"] {
        let live = start(&lab, interface, &class, &common::SIMULATED);
        let [mut near, mut far] = connect(&lab, HOSTS, Lab::server(false));
        let client = near.local_addr().unwrap();
        let chunk = [7; 50_000];
        let mut talk = || {
            near.write_all(&chunk).unwrap();
            let mut received = [0; 50_000];
            far.read_exact(&mut received).unwrap();
            assert_eq!(received, chunk);
            far.write_all(b"more").unwrap();
            near.read_exact(&mut [0; 4]).unwrap();
        };
        (0..10).for_each(|_| talk());
        live.wait_for("the connection has its mark", |_| {
            mark_at(&lab, client) == FOREIGN | 0x4200_0000
        });
        std::thread::scope(|scope| {
            let talking = scope.spawn(|| (0..200).for_each(|_| talk()));
            live.kill();
            talking.join().unwrap();
        });
        assert_eq!(mark_at(&lab, client), FOREIGN | 0x4200_0000);
        let [near, far] = connect(&lab, HOSTS, Lab::server(false));
        let unseen = near.local_addr().unwrap();
        stream(near, far, 100_000);
        assert_eq!(mark_at(&lab, unseen), FOREIGN);
    }
}

/// Packets with these verdicts.
fn with_verdicts(live: &Live, verdicts: &[&str]) -> f64 {
    let of = |verdict: &&str| -> f64 {
        let label = format!("verdict=\"{verdict}\"");
        live.samples_with("fenxi_packets_total", &label).iter().sum()
    };
    verdicts.iter().map(of).sum()
}

/// fenxi watches two interfaces of the router while one host talks to another, there and back by
/// IPv4 and IPv6; what it made of the flows.
fn watch_two(lab: &Lab, interfaces: [&str; 2], pairs: &[([&str; 2], u8)]) -> (Live, usize) {
    let [one, other] = interfaces;
    let interfaces = format!("io.interfaces=[\"{one}\", \"{other}\"]");
    let class = every_label("mark.class", "0x41000000");
    let mut args = vec!["--set", &interfaces, "--set", "io.mode=mark", "--set", &class];
    args.extend(common::SIMULATED);
    let live = Live::start(lab, "router", &args);
    let mut connections = Vec::new();
    for (hosts, net) in pairs {
        for address in [format!("10.77.{net}.2"), format!("fd77:{net}::2")] {
            let mut connection = connect(lab, *hosts, &address);
            talk(&mut connection);
            connections.push(connection);
        }
    }
    let flows = connections.len();
    live.wait_for("all are labelled", |live| live.metric_sum("fenxi_labels_total") >= flows as f64);
    drop(connections);
    (live, flows)
}

/// Each packet is seen on its way in and on its way out, and counts once; so do flows, series and
/// marks.
#[test]
fn a_flow_on_two_interfaces_counts_once() {
    let Some(lab) = Lab::routed("twice", false, &[]) else {
        return;
    };
    let (live, flows) = watch_two(&lab, ["in", "out"], &[(HOSTS, 2), (["server", "client"], 1)]);
    live.wait_for("both interfaces have seen all", |live| {
        let counted = with_verdicts(live, &["labelled", "unlabelled"]);
        counted > 0.0 && counted == with_verdicts(live, &["seen_elsewhere"])
    });
    live.wait_for("all marks are written", |live| marks_with(live, "written") == flows as f64);
    assert_eq!(live.metric_sum("fenxi_marks_total"), flows as f64);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let summary = live.terminate(0).json();
    assert_eq!(summary["flows"]["begun"], flows);
    // Each flow gives one series for each depth of the model, until an answer is sure.
    let depths = summary["decided"]["by_depth"].as_array().unwrap().len();
    let emitted = summary["series"]["emitted"].as_u64().unwrap() as usize;
    assert!((flows..=flows * depths).contains(&emitted), "{emitted}");
}

/// A router with two inner interfaces, which translates addresses on the outer one: the inner ones
/// see each flow once, those between them and those to the outside. If the outer one is watched as
/// well, a connection is a second flow there, as documented.
#[test]
fn inner_interfaces_count_each_flow_once_behind_nat() {
    let pairs = [(HOSTS, 2), (["client", "third"], 3), (["third", "server"], 2)];
    let Some(mut lab) = Lab::routed("inner", true, &[]) else {
        return;
    };
    lab.join("third", "dmz", 3);
    let (live, flows) = watch_two(&lab, ["in", "dmz"], &pairs);
    live.wait_for("all marks are written", |live| marks_with(live, "written") == flows as f64);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    assert_eq!(live.terminate(0).json()["flows"]["begun"], flows);

    let (live, flows) = watch_two(&lab, ["in", "out"], &pairs[..1]);
    live.wait_for("both flows of each connection are there", |live| {
        live.metric_sum("fenxi_flows_begun_total") == 2.0 * flows as f64
    });
    live.wait_for("one mark is written for both", |live| {
        marks_with(live, "written") + marks_with(live, "kept") == 2.0 * flows as f64
    });
    assert_eq!(marks_with(&live, "written"), flows as f64);
    live.terminate(0);
}
