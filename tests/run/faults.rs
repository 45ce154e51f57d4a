//! Interfaces that go, come back and change while fenxi runs, and what is missing at the start.

use std::io::Write;

use crate::common::lab::Lab;
use crate::common::live::{Live, WATCHDOG, fenxi_on};
use crate::common::{self, Finished};
use crate::traffic::{PROGRAMS, Servers, connect, send, stream};

/// How often something was said.
fn said(finished: &Finished, text: &str) -> usize {
    finished.stderr.matches(text).count()
}

/// fenxi on a host, with these interfaces, in that mode.
fn start(lab: &Lab, host: &str, interfaces: &str, mode: &str) -> Live {
    let interfaces = format!("io.interfaces={interfaces}");
    let mode = format!("io.mode={mode}");
    let args = [
        "--set",
        &interfaces,
        "--set",
        &mode,
        "--set",
        "io.give_up_s=2",
    ];
    Live::start(lab, host, &[&args[..], &common::SIMULATED].concat())
}

/// Packets taken so far.
fn taken(live: &Live) -> f64 {
    live.metric_sum("fenxi_port_packets_total")
}

#[test]
fn an_interface_is_deleted_and_made_again() {
    for layout in ["1:1:1", "2:1:1"] {
        let Some(lab) = Lab::new("away", &["host"], &[]) else {
            return;
        };
        lab.wire_within("host", "a", "b");
        lab.wire_within("host", "c", "d");
        let layout = format!("pipeline.layout={layout}");
        let args = ["--set", "io.interfaces=[\"b\", \"d\"]", "--set", &layout];
        let live = Live::start(&lab, "host", &[&args[..], &common::SIMULATED].concat());
        lab.run("host", "ip link del dev a");
        let sent = lab.on("host", || send(&common::demo(), "c"));
        // Each packet of the other one is still counted.
        live.wait_for_packets(sent);
        assert_eq!(taken(&live), sent as f64);
        lab.wire_within("host", "a", "b");
        // It is opened anew within a second or so, by each flow manager.
        live.wait_for("all rings are back", |live| {
            let before = taken(live);
            let sent = lab.on("host", || send(&common::demo(), "a"));
            live.wait_for_packets(0);
            taken(live) == before + sent as f64
        });
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let finished = live.terminate(0);
        for news in ["b: the interface is gone", "b: the interface is back"] {
            assert_eq!(said(&finished, news), 1, "{}", finished.stderr);
        }
        assert_eq!(said(&finished, "d: "), 0, "{}", finished.stderr);
    }
}

#[test]
fn an_interface_goes_down_and_up() {
    let Some(lab) = Lab::new("down", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let live = start(&lab, "host", "[\"b\"]", "tap");
    let mut sent = 0;
    for times in 1..=2 {
        sent += lab.on("host", || send(&common::demo(), "a"));
        live.wait_for_packets(sent);
        lab.run("host", "ip link set dev b down");
        // Longer than it waits for one that is gone.
        std::thread::sleep(std::time::Duration::from_secs(3));
        lab.run("host", "ip link set dev b up");
        let what = format!("it was up {times} times");
        live.wait_for(&what, |live| live.said("b: the interface is back") == times);
    }
    sent += lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    let finished = live.terminate(0);
    assert_eq!(finished.json()["packets"], sent);
    for news in ["b: the interface is down", "b: the interface is back"] {
        assert_eq!(said(&finished, news), 2, "{}", finished.stderr);
    }
}

/// Hosts go on talking after one of the wires was replaced, and after all of them took longer frames.
#[test]
fn a_bridge_survives_its_interfaces() {
    let tools = [&PROGRAMS[..], &["ethtool"]].concat();
    let Some(lab) = Lab::bridged("bridge", &tools) else {
        return;
    };
    let servers = Servers::start(&lab, "right", &[("page", 500_000)]);
    let live = start(&lab, "box", "[\"l\", \"r\"]", "inline");
    let talk = || {
        for address in ["10.78.0.2", "fd78:0::2"] {
            servers.fetch(&lab, "left", address, "page");
        }
    };
    talk();
    // Longer frames, with checksums that are left to the card, and the next moment.
    lab.run(
        "box",
        "ip link set dev l mtu 9000; ip link set dev r mtu 9000",
    );
    lab.run("right", "ip link set dev eth mtu 9000");
    lab.run(
        "left",
        "ip link set dev eth mtu 9000; ethtool -K eth tso off gso off",
    );
    for address in ["10.78.0.2", "fd78:0::2"] {
        lab.run(
            "left",
            &format!("ping -c 3 -i 0.1 -W 10 -M do -s 8900 {address}"),
        );
    }
    talk();
    assert_eq!(live.metric_sum("fenxi_port_unsent_total"), 0.0);
    // What does not fit is counted.
    lab.run("box", "ip link set dev r mtu 1500");
    let large = "ping -c 1 -W 1 -M do -s 8900 10.78.0.2 || true";
    lab.run("left", large);
    live.wait_for("it is counted as unsent", |live| {
        live.metric_sum("fenxi_port_unsent_total") == 1.0
    });
    lab.run("box", "ip link set dev r mtu 9000");

    lab.run(
        "box",
        "ip link set dev r down; sleep 1; ip link set dev r up",
    );
    talk();
    lab.run("box", "ip link del dev l");
    lab.bridge("left");
    live.wait_for("the new interface is used", |_| {
        let ping = "ping -c 1 -W 1 10.78.0.2 >/dev/null && echo answered || true";
        lab.run("left", ping) == "answered\n"
    });
    talk();
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let finished = live.terminate(0);
    let summary = finished.json();
    let of = |name: &str| summary["live"][name].as_u64().unwrap();
    assert_eq!(of("received"), of("sent") + of("unsent"));
    for news in ["r: the interface is down", "r: the interface is back"] {
        assert_eq!(said(&finished, news), 1, "{}", finished.stderr);
    }
    for news in ["l: the interface is gone", "l: the interface is back"] {
        assert_eq!(said(&finished, news), 1, "{}", finished.stderr);
    }
    assert_eq!(said(&finished, "sending"), 0, "{}", finished.stderr);
}

/// One wire's far host goes, then the other's: fenxi goes on with what is left, and ends when nothing is.
#[test]
fn the_run_ends_when_all_interfaces_are_gone() {
    for mode in ["tap", "inline"] {
        let Some(lab) = Lab::new("gone", &["left", "box", "right"], &[]) else {
            return;
        };
        lab.wire("left", "eth", "box", "l");
        lab.wire("right", "eth", "box", "r");
        let live = start(&lab, "box", "[\"l\", \"r\"]", mode);
        lab.remove("left");
        live.wait_for("it notices", |live| {
            live.said("l: the interface is gone") == 1
        });
        let before = taken(&live);
        let sent = lab.on("right", || send(&common::demo(), "eth"));
        live.wait_for("the other one goes on", |live| {
            taken(live) == before + sent as f64
        });
        lab.remove("right");
        let finished = live.ended(69);
        assert!(said(&finished, "l, r: no interface is left") == 1);
        for news in ["l: the interface is gone", "r: the interface is gone"] {
            assert_eq!(said(&finished, news), 1, "{}", finished.stderr);
        }
        // It still says what it did.
        let summary = finished.json();
        assert_eq!(summary["packets"].as_f64().unwrap(), before + sent as f64);
    }
}

#[test]
fn what_is_missing_is_named() {
    let Some(lab) = Lab::new("missing", &["host"], &["setpriv"]) else {
        return;
    };
    lab.wire_within("host", "wan0", "lan0");
    let run = |launcher: &[&str], interface: &str, mode: &str| {
        let mut command = fenxi_on(&lab, "host", launcher);
        let interface = format!("io.interfaces=[\"{interface}\"]");
        let mode = format!("io.mode={mode}");
        let max_flows = "flow.max_flows=4096";
        command.arg("run");
        for setting in [
            &interface,
            &mode,
            max_flows,
            "control.http=",
            "control.socket=",
        ] {
            command.args(["--set", setting]);
        }
        command.args(common::SIMULATED);
        common::run(command)
    };
    let missing = run(&[], "wan1", "tap").expect_code(69);
    assert!(
        missing.stderr.contains("did you mean wan0?"),
        "{}",
        missing.stderr
    );
    for (capability, mode, name) in [
        ("net_raw", "tap", "CAP_NET_RAW"),
        ("net_admin", "mark", "CAP_NET_ADMIN"),
    ] {
        let bounding = format!("--bounding-set=-{capability}");
        let inherited = format!("--inh-caps=-{capability}");
        let refused = run(&["setpriv", &bounding, &inherited], "wan0", mode).expect_code(77);
        assert!(refused.stderr.contains(name), "{}", refused.stderr);
    }
}

#[test]
fn a_run_without_traffic_feeds_the_watchdog() {
    let Some(lab) = Lab::new("watchdog", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let live = start(&lab, "host", "[\"a\", \"b\"]", "inline");
    let fed = std::time::Instant::now();
    assert_eq!(live.told(), "WATCHDOG=1");
    assert!(fed.elapsed() < WATCHDOG);
    let finished = live.terminate(0);
    assert_eq!(finished.json()["live"]["unsent"], 0);
}

/// A tunnel's packets that the sender's machine left unsplit cannot be sent on. That is counted, and told with its cure.
#[test]
fn merged_packets_of_tunnels_are_told_of() {
    let Some(lab) = Lab::bridged("tunnel", &["ethtool"]) else {
        return;
    };
    let live = start(&lab, "box", "[\"l\", \"r\"]", "inline");
    for (host, near, far) in [("left", 1, 2), ("right", 2, 1)] {
        lab.run(
            host,
            &format!(
                "ip link add dev t type vxlan id 7 local 10.78.0.{near} remote 10.78.0.{far} dstport 4789 && \
                 ip addr add 10.99.0.{near}/24 dev t && ip link set dev t up"
            ),
        );
    }
    lab.run("left", "ping -c 2 -i 0.1 -W 10 10.99.0.2");
    // Nobody waits for its end: what is lost is sent again, later and later.
    let [mut near, far] = connect(&lab, ["left", "right"], "10.99.0.2");
    near.set_nonblocking(true).unwrap();
    let _ = near.write(&[0; 200_000]);
    live.wait_for("people know", |live| {
        live.said("merged packets that cannot be split again") == 1
    });
    assert!(live.metric_sum("fenxi_port_unsent_total") > 0.0);
    drop([near, far]);
    for host in ["left", "right"] {
        lab.run(
            host,
            "for d in eth t; do ethtool -K $d tso off gso off; done",
        );
    }
    let [near, far] = connect(&lab, ["left", "right"], "10.99.0.2");
    stream(near, far, 1_000_000);
    let finished = live.terminate(0);
    let cure = said(&finished, "ethtool -K INTERFACE gro off");
    assert_eq!(cure, 1, "{}", finished.stderr);
    assert_eq!(said(&finished, "sending"), 0, "{}", finished.stderr);
}

#[test]
fn the_service_manager_hears_how_it_goes() {
    let Some(lab) = Lab::new("status", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let live = start(&lab, "host", "[\"b\"]", "tap");
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    let said = loop {
        let said = live.told();
        if said != "WATCHDOG=1" {
            break said;
        }
    };
    assert!(said.starts_with("STATUS=tap on b: "), "{said}");
    assert!(said.ends_with(" flows, 0 lost, model app-id-k10"), "{said}");
    assert!(said.contains("pps, "), "{said}");
    live.terminate(0);
}
