//! Mode tap: what a live run sees is what there is to be seen.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use console::protocol::{Body, Client, Request};
use serde_json::Value;

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::common::{self};
use crate::run::merged::{NO_OFFLOADS, WIRES};
use crate::run::traffic::{
    PROGRAMS, Servers, ask_dns, ask_udp, assert_same_flows, connect, flows, send, stream,
};

/// A replay of a capture into records.
fn replay(capture: &std::path::Path, records: &std::path::Path, args: &[&str]) -> Command {
    let mut replay = common::fenxi(["replay", "--series", "--json"]);
    replay.arg(capture).arg("--flows").arg(records);
    replay.args(args);
    replay
}

/// Packets by verdict. When a label is there is a matter of time, so labelled and unlabelled are
/// one.
fn verdicts(summary: &Value) -> BTreeMap<String, u64> {
    let mut verdicts = BTreeMap::new();
    for (verdict, packets) in summary["verdicts"].as_object().unwrap() {
        let verdict = match verdict.as_str() {
            "unlabelled" => "labelled",
            verdict => verdict,
        };
        *verdicts.entry(verdict.to_owned()).or_default() += packets.as_u64().unwrap();
    }
    verdicts
}

/// The same interface, seen by fenxi and by tcpdump; a replay of what tcpdump saw gives the live
/// run's records.
#[test]
fn a_replay_of_what_tcpdump_saw_gives_the_same_flows() {
    for (mode, interface) in [("tap", "in"), ("mark", "in"), ("mark", "out")] {
        let tools = [&PROGRAMS[..], &["tcpdump", "ethtool"]].concat();
        let test = format!("seen-{mode}-{interface}");
        let Some(lab) = Lab::routed(&test, interface == "out", &tools) else {
            return;
        };
        // tcpdump does not write of what a packet was merged.
        for (host, device) in WIRES {
            lab.run(host, &format!("ethtool -K {device} {NO_OFFLOADS}"));
        }
        let servers = Servers::start(&lab, "server", &[("page", 300_000)]);
        let [capture, live_path, replay_path] =
            ["capture", "live", "replay"].map(|name| servers.path(name));
        let seen = lab.spawn(
            "router",
            &format!(
                "tcpdump -i {interface} -U --immediate-mode -s 0 -B 65536 -w {}",
                capture.display()
            ),
        );
        let interfaces = format!("io.interfaces=[\"{interface}\"]");
        let mode_is = format!("io.mode={mode}");
        let mut args = vec!["--set", &interfaces, "--set", &mode_is, "--series"];
        args.extend(["--set", "io.capture=all"]);
        args.extend(["--flows", live_path.to_str().unwrap()]);
        let live = Live::start(&lab, "router", &args);
        // tcpdump has written its header once it listens.
        live.wait_for("tcpdump listens", |_| {
            std::fs::metadata(&capture).is_ok_and(|file| file.len() > 0)
        });

        let seen_by_now = |lab: &Lab| -> u64 {
            let counters = format!("cat /sys/class/net/{interface}/statistics/[rt]x_packets");
            let counters = lab.run("router", &counters);
            let counters = counters.lines().map(|line| line.parse::<u64>().unwrap());
            counters.sum()
        };
        let before = seen_by_now(&lab);
        let hosts = ["client", "server"];
        for is_v6 in [false, true] {
            let server = Lab::server(is_v6);
            servers.fetch(&lab, "client", server, "page");
            ask_dns(&lab, "client", server);
            ask_udp(&lab, hosts, server, 20);
            lab.run("client", &format!("ping -c 2 -i 0.1 -s 4000 {server}"));
        }
        let open = connect(&lab, hosts, Lab::server(false));

        live.wait_for_packets(seen_by_now(&lab) - before);
        live.wait_for("tcpdump has written it all", |live| {
            let [packets, bytes] = ["fenxi_port_packets_total", "fenxi_port_bytes_total"]
                .map(|name| live.metric_sum(name) as u64);
            let written = std::fs::metadata(&capture).unwrap().len();
            written >= 24 + 16 * packets + bytes
        });
        let said = seen.interrupt();
        assert!(said.contains("\n0 packets dropped by kernel"), "{said}");
        let summary = live.terminate(0).json();
        drop(open);
        let captured = said.split(" packets captured").next().unwrap();
        let captured = captured.lines().last().unwrap();
        assert_eq!(summary["packets"].to_string(), captured);
        assert_eq!(summary["live"]["kernel_dropped"], 0);

        let replayed = common::run(replay(&capture, &replay_path, &[])).expect_code(0);
        let replayed = replayed.json();
        assert_eq!(verdicts(&summary), verdicts(&replayed));
        assert_eq!(summary["flows"]["begun"], replayed["flows"]["begun"]);
        assert!(flows(&live_path).len() >= 11);
        assert_same_flows(&live_path, &replay_path);
        // Of fragments, the first are counted.
        let of_pings = ["proto", "icmp_type", "icmp_code", "packets_fwd", "packets_rev"];
        let mut pings = common::json_lines(&live_path);
        pings.retain(|it| it["icmp_type"].is_u64());
        let pings = pings.iter().map(|it| of_pings.map(|name| it[name].as_u64().unwrap()));
        assert_eq!(pings.collect::<Vec<_>>(), [[1, 8, 0, 2, 2], [58, 128, 0, 2, 2]]);
    }
}

/// What each host is called in the end.
fn host_names(records: &std::path::Path) -> BTreeMap<String, String> {
    let mut hosts = common::json_lines(records);
    hosts.retain(|record| record["type"] == "host");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names = hosts.iter().map(|it| (text(&it["address"]), text(&it["label"])));
    names.collect()
}

/// The shipped capture, sent out of one end of a wire, to a model that names hosts.
#[test]
fn hosts_get_the_names_that_a_replay_gives_them() {
    let Some(lab) = Lab::new("hosts", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let [live_path, replay_path] = ["live", "replay"].map(|name| dir.path().join(name));
    let bundle = common::naming_hosts(dir.path());
    let model = ["--model", bundle.to_str().unwrap()];
    common::run(replay(&common::demo(), &replay_path, &model)).expect_code(0);
    let expected = host_names(&replay_path);
    assert!(!expected.is_empty());

    let args = ["--set", "io.interfaces=[\"b\"]", "--flows"];
    let flows_to = [live_path.to_str().unwrap()];
    let live = Live::start(&lab, "host", &[&args[..], &flows_to[..], &model[..]].concat());
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    live.wait_for("all hosts are named", |live| {
        live.metric_sum("fenxi_hosts") == expected.len() as f64
    });
    let listed = live.ctl(&["hosts", "--top", "1000", "--json"]).expect_code(0).json();
    let listed = listed["hosts"].as_array().unwrap().iter();
    let named: BTreeMap<String, String> = listed
        .filter_map(|host| Some((host["address"].as_str()?.into(), host["label"].as_str()?.into())))
        .collect();
    assert_eq!(named.len(), expected.len());
    // The live view has the same names, whatever the label of a host's fastest flow.
    let client = Client::new(&live.socket(), Duration::from_secs(10));
    let (_, reply) = client.ask(&Request::Top { rows: 1000 }).unwrap();
    let Some(Body::Top(top)) = reply.body else {
        panic!("{reply:?}");
    };
    let mut seen = 0;
    for host in top.hosts {
        if let Some(name) = named.get(&host.address) {
            assert_eq!(host.label.as_ref(), Some(name), "{}", host.address);
            seen += 1;
        }
    }
    assert!(seen > 0);
    let summary = live.terminate(0).json();
    assert_eq!(summary["hosts_named"], expected.len());
    assert_eq!(host_names(&live_path), expected);
}

/// The shipped capture, sent out of one end of a wire.
#[test]
fn tap_labels_as_a_replay_does() {
    /// Flows last for the whole capture, whatever the pace at which it is sent.
    const WHOLE: [&str; 4] =
        ["--set", "flow.idle_timeout_s=0", "--set", "flow.end_on_fin_rst=false"];
    let Some(lab) = Lab::new("tap", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let [live_path, replay_path] = ["live", "replay"].map(|name| dir.path().join(name));
    let replayed = common::run(replay(&common::demo(), &replay_path, &WHOLE));
    let replayed = replayed.expect_code(0).json();

    let args = ["--set", "io.interfaces=[\"b\"]", "--series", "--flows"];
    let flows_to = [live_path.to_str().unwrap()];
    let live = Live::start(&lab, "host", &[&args[..], &flows_to[..], &WHOLE[..]].concat());
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    assert_eq!(live.metric_sum("fenxi_port_dropped_packets_total"), 0.0);
    let summary = live.terminate(0).json();

    assert_eq!(summary["packets"], replayed["packets"]);
    assert_eq!(common::sum(&summary["verdicts"]), sent);
    assert_eq!(summary["live"]["kernel_dropped"], 0);
    assert_eq!(
        common::sum(&summary["flows"]["ended"]),
        summary["flows"]["begun"].as_u64().unwrap()
    );
    assert!(flows(&live_path).len() > 10);
    assert_same_flows(&live_path, &replay_path);
}

/// Root with one capability is nobody's root.
#[test]
fn cap_net_raw_alone_suffices() {
    let Some(lab) = Lab::new("raw", &["host"], &["setpriv"]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let launcher = ["setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all,+net_raw"];
    let args = ["--set", "io.interfaces=[\"b\"]"];
    let args = [&args[..], &common::SIMULATED].concat();
    let live = Live::launch(fenxi_on(&lab, "host", &launcher), &args);
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    live.terminate(0);
}

/// A merged packet counts as the packets that were on the wire. A packet of BIG TCP, longer than an
/// IP header can say, counts as one: this is logged once, with the cure.
#[test]
fn merged_packets_of_unknown_segments_are_told_of() {
    let Some(lab) = Lab::bridged("tso", &["ethtool", "ping"]) else {
        return;
    };
    let args = ["--set", "io.interfaces=[\"l\"]", "--set", "io.promiscuous=true"];
    let live = Live::start(&lab, "box", &[&args[..], &common::SIMULATED].concat());
    // A bridge of the kernel's between the two.
    lab.run(
        "box",
        "ip link add dev br type bridge && ip link set dev l master br && \
         ip link set dev r master br && ip link set dev br up",
    );
    let warning = "l: packets of up to";
    let merged = |live: &Live, segments: &str| -> f64 {
        let label = format!("segments=\"{segments}\"");
        let samples = live.samples_with("fenxi_merged_packets_total", &label);
        samples.iter().sum()
    };
    let talk = |address| {
        let [near, far] = connect(&lab, ["left", "right"], address);
        stream(near, far, 4_000_000);
    };
    lab.run("left", "ping -c 3 -i 0.2 -W 10 10.78.0.2");
    assert_eq!(live.metric_sum("fenxi_port_merged_packets_total"), 0.0);
    live.wait_for("merged packets come", |live| {
        talk("10.78.0.2");
        merged(live, "known") > 0.0
    });
    assert_eq!(merged(&live, "unknown"), 0.0);
    assert!(live.metric_sum("fenxi_packets_total") > live.metric_sum("fenxi_port_packets_total"));

    lab.run("left", "ip link set dev eth gso_max_size 200000");
    live.wait_for("people know", |live| {
        talk("fd78:0::2");
        live.said(warning) > 0
    });
    assert!(merged(&live, "unknown") > 0.0);
    let finished = live.terminate(0);
    let cure = "ip link set dev l gso_max_size 65536 gro_max_size 65536";
    assert_eq!(finished.stderr.matches(cure).count(), 1, "{}", finished.stderr);
    let merged = &finished.json()["merged"];
    assert!(merged["segments"].as_u64() > merged["packets"].as_u64(), "{merged}");
}
