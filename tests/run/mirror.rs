//! Copies of packets, as rules ask for them: what another interface gets, and that nothing else is
//! lost where it gets nothing.

use std::cell::Cell;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::{self, packets};
use crate::run::backends::Over;
use crate::run::capture::{listen_on, seen_from};
use crate::run::inline::{self, LEFT, RIGHT};
use crate::run::traffic::{ask, ask_udp, connect, patient_socket, stream, talk};

const AF41: u8 = 34;
/// Protocols of IP.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Two hosts and a third one, wired to the box by `m`.
fn lab(test: &str) -> Option<Lab> {
    let mut lab = Lab::bridged(test, &["tcpdump", "tshark", "ethtool", "tc"])?;
    lab.attach("ids", "m");
    Some(lab)
}

/// Length and bytes of the frames of a protocol that this address has sent.
fn frames_of(capture: &Path, source: &str, protocol: u8) -> Vec<(u32, Vec<u8>)> {
    let (ethertype, at, source) = match source.parse().unwrap() {
        IpAddr::V4(address) => ([8, 0], (23, 26), address.octets().to_vec()),
        IpAddr::V6(address) => ([0x86, 0xdd], (20, 22), address.octets().to_vec()),
    };
    let is_meant = |bytes: &[u8]| {
        bytes[12..14] == ethertype && bytes[at.0] == protocol && bytes[at.1..].starts_with(&source)
    };
    let frames = packets::read_capture(capture).into_iter();
    frames.filter(|(_, bytes)| is_meant(bytes)).map(|(frame, bytes)| (frame.wire, bytes)).collect()
}

/// The other interface gets what leaves of the flows that are meant, both ways, byte for byte, and
/// nothing else; of a flow that is dropped it gets all.
#[test]
fn the_packets_of_a_flow_are_copied_as_they_leave() {
    for over in Over::ALL {
        let Some(lab) = lab(&format!("mirror{over:?}")) else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let [file, to_left, to_right, to_ids] =
            ["rules.toml", "left", "right", "ids"].map(|name| dir.path().join(name));
        let rules = format!(
            "[[rule]]\nsource = \"{}\"\nprotocol = \"udp\"\ndscp = \"AF41\"\nmirror = \"m\"\n\
             [[rule]]\nsource = \"{1}\"\nprotocol = \"udp\"\ndrop = true\nmirror = \"m\"\n\
             [[rule]]\nsource = \"{1}\"\nprotocol = \"tcp\"\nmirror = \"m\"\n",
            LEFT[0], LEFT[1]
        );
        fs::write(&file, rules).unwrap();
        let rules = format!("policy.rules={}", file.display());
        let set = ["--set", &rules, "--set", "policy.mirror=m"];
        let live = inline::start_over(over, &lab, &set);
        let left = listen_on("left", &lab, &live, &to_left);
        let right = listen_on("right", &lab, &live, &to_right);
        let ids = listen_on("ids", &lab, &live, &to_ids);

        ask_udp(&lab, ["left", "right"], RIGHT[0], 20);
        // No rule is for them.
        let [near, far] = connect(&lab, ["left", "right"], RIGHT[0]);
        talk([&near, &far], 5);
        // With segments that the kernel merges, where it does.
        let [near, far] = connect(&lab, ["left", "right"], RIGHT[1]);
        stream(near, far, 1_000_000);
        let far = lab.on("right", || patient_socket(RIGHT[1]));
        let near = lab.on("left", || patient_socket("::"));
        near.connect(far.local_addr().unwrap()).unwrap();
        for sent in 1..=5 {
            near.send(&[1; 100]).unwrap();
            live.wait_for("it is dropped", |live| {
                let dropped = live.samples_with("fenxi_packets_total", "verdict=\"dropped\"");
                dropped.iter().sum::<f64>() >= f64::from(sent)
            });
        }
        left.finish(&live);
        right.finish(&live);
        ids.finish(&live);

        let copied = |source, protocol| frames_of(&to_ids, source, protocol);
        let mut all = 0;
        for (sources, protocol) in [([LEFT[0], RIGHT[0]], UDP), ([LEFT[1], RIGHT[1]], TCP)] {
            for (source, capture) in sources.into_iter().zip([&to_right, &to_left]) {
                let left = frames_of(capture, source, protocol);
                let copies = copied(source, protocol);
                assert!(
                    !left.is_empty() && copies == left,
                    "{over:?}: {source}: {} of {}",
                    copies.len(),
                    left.len()
                );
                all += copies.len();
            }
        }
        assert_eq!(copied(LEFT[0], UDP).len(), 20);
        assert_eq!(copied(LEFT[1], UDP).len(), 5);
        assert_eq!(frames_of(&to_right, LEFT[1], UDP), []);
        all += 5;
        let captured = packets::read_capture(&to_ids);
        assert_eq!(captured.len(), all, "{over:?}: and no other");
        for sources in [LEFT[0], RIGHT[0]] {
            let seen = seen_from(&to_ids, &[sources]);
            assert_eq!(seen.len(), 20);
            assert!(seen.iter().all(|frame| frame.dscp == AF41));
        }
        let bytes: u32 = captured.iter().map(|(frame, _)| frame.wire).sum();
        assert_eq!(live.metric_sum("fenxi_mirror_packets_total"), all as f64);
        assert_eq!(live.metric_sum("fenxi_mirror_bytes_total"), f64::from(bytes));
        assert_eq!(live.metric_sum("fenxi_mirror_lost_packets_total"), 0.0);
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let summary = live.terminate(0).json();
        let of = |name: &str| summary["live"][name].as_u64().unwrap();
        assert_eq!((of("copied"), of("copies_lost")), (all as u64, 0));
        assert_eq!((of("ruled_out"), of("unsent")), (5, 0), "{summary}");
    }
}

/// Copies for a link that is down, cut off, full, too short or gone are lost and counted, and come
/// again with it; what is forwarded knows nothing of it.
#[test]
fn a_link_that_is_away_loses_copies_and_nothing_else() {
    let Some(lab) = lab("mirrorless") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.toml");
    fs::write(&file, "[[rule]]\nprotocol = \"udp\"\nmirror = \"m\"\n").unwrap();
    let rules = format!("policy.rules={}", file.display());
    let set = ["--set", &rules, "--set", "policy.mirror=m"];
    let live = inline::start(&lab, &[&set[..], &["--set", "pipeline.layout=2:1:1"]].concat());
    let flow = ask_udp(&lab, ["left", "right"], RIGHT[0], 10);
    // Questions and answers.
    let packets = Cell::new(20.0);
    // Copies that were sent, and those that were lost, once each packet has become one or the
    // other.
    let counts = || {
        let read = |live: &Live| {
            ["fenxi_mirror_packets_total", "fenxi_mirror_lost_packets_total"]
                .map(|name| live.metric_sum(name))
        };
        live.wait_for("every packet is copied or lost", |live| {
            read(live).iter().sum::<f64>() == packets.get()
        });
        read(&live)
    };
    // Each answer comes, whatever becomes of the copies.
    let more = |rounds: usize| {
        ask(&flow, rounds);
        packets.set(packets.get() + 2.0 * rounds as f64);
        counts()
    };
    assert_eq!(counts(), [20.0, 0.0]);
    // Asks until one of the two counts, and then only that one, goes up.
    let until_only = |which: usize| {
        let what = ["copies come again", "copies are lost"][which];
        let before = counts()[which];
        live.wait_for(what, |_| more(1)[which] > before);
        let other = counts()[1 - which];
        assert_eq!(more(5)[1 - which], other, "{what}");
    };
    let again = || until_only(0);
    let away = || until_only(1);
    for (host, down, up) in [
        ("box", "ip link set dev m down", "ip link set dev m up"),
        ("ids", "ip link set dev eth down", "ip link set dev eth up"),
    ] {
        lab.run(host, down);
        away();
        lab.run(host, up);
        again();
    }
    // A queue with room for a few packets that hardly leave it.
    lab.run("box", "tc qdisc add dev m root tbf rate 8kbit burst 2000 limit 3000");
    let before = counts()[1];
    live.wait_for("copies find it full", |_| more(20)[1] > before);
    lab.run("box", "tc qdisc del dev m root");
    again();
    lab.run("box", "ip link set dev m mtu 1000");
    flow[0].send(&[1; 1200]).unwrap();
    packets.set(packets.get() + 1.0);
    live.wait_for("it is too long", |live| {
        let too_long = live.samples_with("fenxi_mirror_lost_packets_total", "too_long");
        too_long.iter().sum::<f64>() == 1.0
    });
    common::uninterrupted(|| flow[1].recv_from(&mut [0; 1500])).unwrap();
    lab.run("box", "ip link del dev m");
    away();
    lab.wire("ids", "eth", "box", "m");
    again();

    for (says, times) in [
        ("m: the interface is down, or has no carrier: copies of packets are lost", 2),
        ("m: the interface is gone: copies of packets are lost", 1),
        ("m: copies of packets are sent again", 3),
    ] {
        live.wait_for(says, |live| live.said(says) == times);
    }
    inline::all_was_sent(live);
}

/// An interface for copies has to be there when a run begins, and to be none of the others; a check
/// says the same.
#[test]
fn a_run_is_refused_without_the_interface_for_copies() {
    let Some(lab) = Lab::bridged("nomirror", &[]) else {
        return;
    };
    lab.run("box", "ip link property add dev r altname another");
    for (name, code, says) in [
        ("ids0", 69, "ids0: no such interface; there are: lo, l, r\n"),
        ("another", 78, "another is another name of r, "),
    ] {
        for program in [&["run"][..], &["check"]] {
            let mut command = common::live::fenxi_on(&lab, "box", &[]);
            command.args(program);
            command.args(["--set", "io.interfaces=[\"l\", \"r\"]"]);
            command.args(["--set", "io.mode=inline"]);
            command.args(["--set", &format!("policy.mirror={name}")]);
            command.args(common::SIMULATED);
            let said = common::run(command).expect_code(code).stderr;
            let expected = format!("fenxi: policy.mirror: {says}");
            assert!(said.contains(&expected), "{program:?}: {said}");
        }
    }
}
