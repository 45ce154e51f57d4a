//! Interfaces that go, come back and change while fenxi runs, and what is missing at the start.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::common::lab::Lab;
use crate::common::live::{Live, WATCHDOG, fenxi_on};
use crate::common::{self, Finished};
use crate::run::backends::Over;
use crate::run::traffic::{PROGRAMS, Servers, connect, send, stream};

/// How often something was said.
fn said(finished: &Finished, text: &str) -> usize {
    finished.stderr.matches(text).count()
}

/// fenxi on a host, over packet sockets, with these interfaces, in that mode.
fn start(lab: &Lab, host: &str, interfaces: &str, mode: &str) -> Live {
    start_over(Over::Packet, lab, host, interfaces, mode)
}

/// The same over a backend.
fn start_over(over: Over, lab: &Lab, host: &str, interfaces: &str, mode: &str) -> Live {
    let interfaces = format!("io.interfaces={interfaces}");
    let mode = format!("io.mode={mode}");
    let args = ["--set", &interfaces, "--set", &mode, "--set", "io.give_up_s=2"];
    let args = [&args[..], &over.args(), &common::SIMULATED].concat();
    Live::start(lab, host, &args)
}

/// Packets taken so far.
fn taken(live: &Live) -> f64 {
    live.metric_sum("fenxi_port_packets_total")
}

#[test]
fn an_interface_is_deleted_and_made_again() {
    for (layout, over) in [("1:1:1", Over::Packet), ("2:1:1", Over::Packet), ("1:1:1", Over::Xdp)] {
        let Some(lab) = Lab::new("away", &["host"], &["ethtool"]) else {
            return;
        };
        lab.wire_within("host", "a", "b");
        lab.wire_within("host", "c", "d");
        over.prepare(&lab, "host", &["a", "b", "c", "d"]);
        let layout = format!("pipeline.layout={layout}");
        let args = ["--set", "io.interfaces=[\"b\", \"d\"]", "--set", &layout];
        let args = [&args[..], &over.args(), &common::SIMULATED].concat();
        let live = Live::start(&lab, "host", &args);
        lab.run("host", "ip link del dev a");
        let sent = lab.on("host", || send(&common::demo(), "c"));
        // Each packet of the other one is still counted.
        live.wait_for_packets(sent);
        assert_eq!(taken(&live), sent as f64);
        lab.wire_within("host", "a", "b");
        over.prepare(&lab, "host", &["a", "b"]);
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
        let other = said(&finished, "d: the interface");
        assert_eq!(other, 0, "{}", finished.stderr);
    }
}

#[test]
fn an_interface_goes_down_and_up() {
    Over::ALL.into_iter().for_each(goes_down_and_up);
}

fn goes_down_and_up(over: Over) {
    let Some(lab) = Lab::new("down", &["host"], &["ethtool"]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    over.prepare(&lab, "host", &["a", "b"]);
    let live = start_over(over, &lab, "host", "[\"b\"]", "tap");
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

/// Hosts go on talking after one of the wires was replaced, and after all of them took longer
/// frames.
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
    lab.run("box", "ip link set dev l mtu 9000; ip link set dev r mtu 9000");
    lab.run("right", "ip link set dev eth mtu 9000");
    lab.run("left", "ip link set dev eth mtu 9000; ethtool -K eth tso off gso off");
    for address in ["10.78.0.2", "fd78:0::2"] {
        lab.run("left", &format!("ping -c 3 -i 0.1 -W 10 -M do -s 8900 {address}"));
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

    lab.run("box", "ip link set dev r down; sleep 1; ip link set dev r up");
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

/// One wire's far host goes, then the other's: fenxi goes on with what is left, and ends when
/// nothing is.
#[test]
fn the_run_ends_when_all_interfaces_are_gone() {
    for (mode, over) in [("tap", Over::Packet), ("inline", Over::Packet), ("inline", Over::Xdp)] {
        let hosts = ["left", "box", "right"];
        let Some(lab) = Lab::new("gone", &hosts, &["ethtool"]) else {
            return;
        };
        for (host, port) in [("left", "l"), ("right", "r")] {
            lab.wire(host, "eth", "box", port);
            over.prepare(&lab, host, &["eth"]);
            over.prepare(&lab, "box", &[port]);
        }
        let live = start_over(over, &lab, "box", "[\"l\", \"r\"]", mode);
        lab.remove("left");
        live.wait_for("it notices", |live| live.said("l: the interface is gone") == 1);
        let before = taken(&live);
        let sent = lab.on("right", || send(&common::demo(), "eth"));
        live.wait_for("the other one goes on", |live| taken(live) == before + sent as f64);
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

/// What `/readyz` says: the status line and the page.
fn readiness(live: &Live) -> (String, String) {
    let mut stream = UnixStream::connect(live.http()).unwrap();
    stream.write_all(b"GET /readyz?verbose HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), page.to_owned())
}

/// With one of two interfaces it is degraded, but labels traffic. With none it is not ready, unless
/// the configuration permits that. Inline needs both.
#[test]
fn a_run_whose_interfaces_are_away_is_not_ready() {
    for (mode, without, after_one, after_both) in [
        ("tap", "false", "200 OK", "503 Service Unavailable"),
        ("tap", "true", "200 OK", "200 OK"),
        ("inline", "false", "503 Service Unavailable", "503 Service Unavailable"),
    ] {
        let Some(lab) = Lab::new("ready", &["host"], &[]) else {
            return;
        };
        lab.wire_within("host", "a", "b");
        lab.wire_within("host", "c", "d");
        let mode_is = format!("io.mode={mode}");
        let without = format!("control.ready_without_interfaces={without}");
        let interfaces = "io.interfaces=[\"b\", \"d\"]";
        let args = ["--set", interfaces, "--set", &mode_is, "--set", &without];
        let live = Live::start(&lab, "host", &[&args[..], &common::SIMULATED].concat());
        let all_up = "[+] interfaces: all 2 up";
        live.wait_for("it is ready", |live| {
            let (status, page) = readiness(live);
            status == "HTTP/1.1 200 OK" && page.contains(all_up)
        });
        for (line, away, expected) in
            [("ip link set dev b down", "b", after_one), ("ip link del dev c", "b, d", after_both)]
        {
            lab.run("host", line);
            let expected = format!("HTTP/1.1 {expected}");
            let sign = if expected.contains("200") { '+' } else { '-' };
            let reason = format!("[{sign}] interfaces: down or gone: {away}\n");
            live.wait_for(&format!("{mode}: {reason}"), |live| {
                let (status, page) = readiness(live);
                status == expected && page.contains(&reason)
            });
            assert_eq!(live.samples_with("fenxi_state", "degraded"), [1.0]);
        }
        assert_eq!(live.metric_sum("fenxi_port_up"), 0.0);
        lab.wire_within("host", "c", "d");
        lab.run("host", "ip link set dev b up");
        live.wait_for("it is ready again", |live| readiness(live).1.contains(all_up));
        assert_eq!(live.metric_sum("fenxi_port_up"), 2.0);
        live.terminate(0);
    }
}

/// Two runs inline between the same interfaces would send each frame twice: the second is refused,
/// under whatever names and in whatever order, until the first one is gone, however that ended.
#[test]
fn a_second_run_inline_on_the_same_pair_is_refused() {
    let Some(lab) = Lab::new("pair", &["host", "other"], &[]) else {
        return;
    };
    for host in ["host", "other"] {
        lab.wire_within(host, "a", "b");
        lab.wire_within(host, "c", "d");
    }
    lab.run("host", "ip link property add dev b altname uplink");
    let live = start(&lab, "host", "[\"b\", \"d\"]", "inline");
    for interfaces in ["[\"b\", \"d\"]", "[\"d\", \"uplink\"]"] {
        let mut second = fenxi_on(&lab, "host", &[]);
        let interfaces = format!("io.interfaces={interfaces}");
        second.args(["run", "--set", "io.mode=inline", "--set", &interfaces]);
        second.args(["--set", "control.http=", "--set", "control.socket="]);
        second.args(["--set", "flow.max_flows=4096"]);
        second.args(common::SIMULATED);
        let refused = common::run(second).expect_code(69);
        let who = format!("process {} already runs fenxi inline between them", live.pid());
        assert!(refused.stderr.contains(&who), "{}", refused.stderr);
        let cure = format!("stop it first: kill {}", live.pid());
        assert!(refused.stderr.contains(&cure), "{}", refused.stderr);
    }
    // Elsewhere, on another pair, and in another mode it is no concern of theirs.
    start(&lab, "other", "[\"b\", \"d\"]", "inline").terminate(0);
    start(&lab, "host", "[\"a\", \"c\"]", "inline").terminate(0);
    start(&lab, "host", "[\"b\", \"d\"]", "tap").terminate(0);
    live.kill();
    start(&lab, "host", "[\"b\", \"d\"]", "inline").terminate(0);
}

/// While it is up, or down. Nothing was lost for want of room in a ring, and nobody is told so.
#[test]
fn an_interface_that_is_renamed_is_told_of_by_its_new_name() {
    for renaming in [
        "ip link set dev lan0 down; ip link set dev lan0 name wan7; ip link set dev wan7 up",
        "ip link set dev lan0 name wan7",
    ] {
        rename(renaming);
    }
}

fn rename(renaming: &str) {
    let Some(lab) = Lab::new("renamed", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "lan0");
    let live = start(&lab, "host", "[\"lan0\"]", "tap");
    let sent = lab.on("host", || send(&common::demo(), "a"));
    live.wait_for_packets(sent);
    lab.run("host", renaming);
    live.wait_for("it is told", |live| live.said("lan0: the interface is now called wan7") == 1);
    // Packets come in all the same; or it ends by itself, because this interface is not there any
    // more.
    let is_up = !renaming.contains("down");
    let finished = match is_up {
        true => {
            let more = lab.on("host", || send(&common::demo(), "a"));
            live.wait_for_packets(sent + more);
            live.terminate(0)
        }
        false => live.ended(69),
    };
    assert_eq!(said(&finished, "a receive ring is full"), 0, "{}", finished.stderr);
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
        for setting in [&interface, &mode, max_flows, "control.http=", "control.socket="] {
            command.args(["--set", setting]);
        }
        command.args(common::SIMULATED);
        common::run(command)
    };
    let missing = run(&[], "wan1", "tap").expect_code(69);
    assert!(missing.stderr.contains("did you mean wan0?"), "{}", missing.stderr);
    for (capability, mode, name) in
        [("net_raw", "tap", "CAP_NET_RAW"), ("net_admin", "mark", "CAP_NET_ADMIN")]
    {
        let bounding = format!("--bounding-set=-{capability}");
        let inherited = format!("--inh-caps=-{capability}");
        let refused = run(&["setpriv", &bounding, &inherited], "wan0", mode).expect_code(77);
        assert!(refused.stderr.contains(name), "{}", refused.stderr);
    }
    // The proposed cure depends on whether systemd started it, which an environment variable says.
    let without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    let by_hand = run(&without, "wan0", "mark").expect_code(77).stderr;
    assert!(
        by_hand.contains("run it as root, or: setcap cap_net_admin,cap_net_raw+ep /"),
        "{by_hand}"
    );
    let as_service = ["sh", "-c", "SYSTEMD_EXEC_PID=$$ exec \"$@\"", "sh"];
    let service = run(&[&without[..], &as_service].concat(), "wan0", "mark").expect_code(77).stderr;
    let cure = ".service lacks its drop-in mark.conf; install it: install -d /etc/systemd/system/";
    assert!(service.contains(cure) && !service.contains("setcap"), "{service}");
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

/// A tunnel's packets that the sender's machine left unsplit cannot be sent on. That is counted,
/// and told with its cure.
#[test]
fn merged_packets_of_tunnels_are_told_of() {
    let Some(lab) = Lab::bridged("tunnel", &["ethtool", "ping"]) else {
        return;
    };
    let live = start(&lab, "box", "[\"l\", \"r\"]", "inline");
    for (host, near, far) in [("left", 1, 2), ("right", 2, 1)] {
        lab.run(
            host,
            &format!(
                "ip link add dev t type vxlan id 7 local 10.78.0.{near} remote 10.78.0.{far} \
                 dstport 4789 && \
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
        lab.run(host, "for d in eth t; do ethtool -K $d tso off gso off; done");
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
    assert!(said.ends_with(" flows, 0 lost, model protocol"), "{said}");
    assert!(said.contains("pps, "), "{said}");
    live.terminate(0);
}
