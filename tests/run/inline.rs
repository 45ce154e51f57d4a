//! Mode inline: hosts talk through fenxi as if it were a wire, and their flows' packets leave with
//! the DSCP of their label.
//!
//! What the far side sees is captured by tcpdump and judged by tshark, not by our own parser.

use std::collections::BTreeMap;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::packets::{self, ETHERNET};
use crate::common::{self, uninterrupted};
use crate::run::backends::Over;
use crate::run::capture::{Seen, listen, listen_on, seen, seen_from};
use crate::run::traffic::{
    PROGRAMS, Servers, ask, ask_dns, ask_udp, connect, every_label, send, stream, talk,
};

/// Left and right, by whether it is IPv6.
pub const LEFT: [&str; 2] = ["10.78.0.1", "fd78:0::1"];
pub const RIGHT: [&str; 2] = ["10.78.0.2", "fd78:0::2"];

/// EF, which every label has here.
const EF: u8 = 46;

/// fenxi on the box, over packet sockets, with further settings.
pub fn start(lab: &Lab, settings: &[&str]) -> Live {
    start_over(Over::Packet, lab, settings)
}

/// The same over a backend.
pub fn start_over(over: Over, lab: &Lab, settings: &[&str]) -> Live {
    over.prepare(lab, "box", &["l", "r"]);
    for host in ["left", "right"] {
        over.prepare(lab, host, &["eth"]);
    }
    let ef = every_label("tag.dscp", &EF.to_string());
    let mut args = match over {
        Over::Packet => vec![],
        Over::Xdp => vec!["--config", "configs/live-inline-xdp.toml"],
    };
    args.extend(["--set", "io.interfaces=[\"l\", \"r\"]"]);
    args.extend(["--set", "io.mode=inline", "--set", &ef]);
    args.extend(over.args());
    args.extend(common::SIMULATED);
    args.extend(settings);
    Live::start(lab, "box", &args)
}

/// All that came was sent on; how many frames.
pub fn all_was_sent(live: Live) -> u64 {
    let summary = live.terminate(0).json();
    let of = |name: &str| summary["live"][name].as_u64().unwrap();
    assert_eq!((of("kernel_dropped"), of("unsent")), (0, 0), "{summary}");
    assert_eq!(of("received"), of("sent"), "{summary}");
    of("sent")
}

/// Once a flow has its DSCP it keeps it. The flows that got it, and those that did not.
pub fn tagged_flows(frames: &[Seen]) -> (usize, usize) {
    let mut flows: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for Seen { flow, dscp } in frames {
        match flow {
            Some(flow) => flows.entry(flow).or_default().push(*dscp),
            None => assert_eq!(*dscp, 0, "a packet of no flow"),
        }
    }
    let is_tagged = |packets: &&Vec<u8>| packets.contains(&EF);
    for (flow, packets) in &flows {
        let untagged = packets.iter().take_while(|dscp| **dscp == 0).count();
        let tagged = &packets[untagged..];
        assert!(tagged.iter().all(|dscp| *dscp == EF), "{flow}: {packets:?}");
    }
    let tagged = flows.values().filter(is_tagged).count();
    (tagged, flows.len() - tagged)
}

/// ping, fragments, DNS, HTTPS, TCP and UDP, both families, with segments that the kernel merges
/// and splits (veth's offloads), with jumbo frames as they are, and over XDP, which takes packets
/// as a wire carries them.
#[test]
fn programs_talk_through_it() {
    for (test, over) in [("merged", Over::Packet), ("jumbo", Over::Packet), ("plain", Over::Xdp)] {
        let is_jumbo = test == "jumbo";
        let tools = [&PROGRAMS[..], &["tcpdump", "tshark", "ethtool"]].concat();
        let Some(lab) = Lab::bridged(test, &tools) else {
            return;
        };
        // Behind the box there are real wires: what leaves it is split and summed up by then.
        let plain = "tx off tso off gso off gro off";
        for port in ["l", "r"] {
            lab.run("box", &format!("ethtool -K {port} {plain}"));
        }
        for host in ["left", "right"].iter().filter(|_| is_jumbo) {
            lab.run(host, &format!("ethtool -K eth {plain}; ip link set dev eth mtu 9000"));
        }
        for port in ["l", "r"].iter().filter(|_| is_jumbo) {
            lab.run("box", &format!("ip link set dev {port} mtu 9000"));
        }
        let large = match test {
            "merged" => 200_000_000,
            _ => 20_000_000,
        };
        let servers = Servers::start(&lab, "right", &[("page", 400_000), ("large", large)]);
        let capture = servers.path("capture");
        let live = start_over(over, &lab, &[]);
        let right = listen(&lab, &live, &capture);

        for address in RIGHT {
            lab.run("left", &format!("ping -c 3 -i 0.1 -W 10 {address}"));
            lab.run("left", &format!("ping -c 2 -i 0.1 -W 10 -s 20000 {address}"));
            if is_jumbo {
                lab.run("left", &format!("ping -c 2 -i 0.1 -W 10 -M do -s 8900 {address}"));
            }
            ask_dns(&lab, "left", address);
            servers.fetch(&lab, "left", address, "page");
            // Once each has its label, so that all that follows carries the DSCP, however fast it
            // passes.
            let sockets = ask_udp(&lab, ["left", "right"], address, 12);
            let [near, far] = connect(&lab, ["left", "right"], address);
            talk([&near, &far], 12);
            live.wait_for("each flow has its label", |live| {
                live.metric_sum("fenxi_series_waiting") == 0.0
            });
            ask(&sockets, 300);
            stream(near, far, 2_000_000);
        }
        right.finish(&live);
        let frames = seen(&capture);
        let (tagged, untagged) = tagged_flows(&frames);
        // By each family's UDP and stream, its question to DNS, which the port names, and TLS where
        // it is long enough.
        assert!(tagged >= 6, "{tagged} {untagged}");

        let family = usize::from(is_jumbo);
        servers.fetch(&lab, "left", RIGHT[family], "large");
        for from_right in LEFT {
            let [near, far] = connect(&lab, ["right", "left"], from_right);
            stream(near, far, 2_000_000);
        }
        let merged = live.metric_sum("fenxi_port_merged_packets_total");
        assert_eq!(merged > 0.0, test == "merged", "{merged} merged");
        all_was_sent(live);
    }
}

/// Frames of all kinds leave as they came but for the DSCP, and in their order.
#[test]
fn frames_leave_as_they_came() {
    let tools = ["tcpdump", "ethtool"];
    let Some(lab) = Lab::new("frames", &["left", "box", "right"], &tools) else {
        return;
    };
    lab.wire("left", "eth", "box", "l");
    lab.wire("right", "eth", "box", "r");
    let frames = frames_of_all_kinds();
    let dir = tempfile::tempdir().unwrap();
    let [first_path, rest_path, seen_path] =
        ["first", "rest", "seen"].map(|name| dir.path().join(name));
    // A quarter is enough for every series.
    let (first, rest) = frames.split_at(frames.len() / 4);
    std::fs::write(&first_path, packets::whole(first.to_vec())).unwrap();
    std::fs::write(&rest_path, packets::whole(rest.to_vec())).unwrap();
    for (layout, over) in [
        ("1:1:1", Over::Packet),
        ("2:1:1", Over::Packet),
        ("1:1:1", Over::Xdp),
        ("2:1:1", Over::Xdp),
    ] {
        let _ = std::fs::remove_file(&seen_path);
        let layout_is = format!("pipeline.layout={layout}");
        over.give_queues(&lab, layout);
        let live = start_over(over, &lab, &["--set", &layout_is]);
        let right = listen(&lab, &live, &seen_path);
        let sent = lab.on("left", || send(&first_path, "eth"));
        live.wait_for("there are labels", |live| live.metric_sum("fenxi_labels_total") >= 4.0);
        let sent = sent + lab.on("left", || send(&rest_path, "eth"));
        assert_eq!(sent, frames.len() as u64);
        let seen = || packets::record_offsets(&std::fs::read(&seen_path).unwrap()).len();
        live.wait_for("the far side has seen all", |_| seen() >= frames.len());
        right.finish(&live);
        assert_eq!(all_was_sent(live), sent);

        let seen: Vec<Vec<u8>> = packets::read_capture(&seen_path)
            .into_iter()
            .map(|(frame, bytes)| {
                assert_eq!(frame.link, ETHERNET);
                bytes
            })
            .collect();
        let plain = |frames: &[Vec<u8>]| -> Vec<Vec<u8>> {
            frames.iter().map(|frame| without_dscp(frame)).collect()
        };
        let [mut came, mut left] = [plain(&frames), plain(&seen)];
        if layout != "1:1:1" {
            // Two flow managers keep the order of each flow only. All frames of a flow here have
            // its number in front.
            let by_flow = |frame: &Vec<u8>| flow_number(frame);
            came.sort_by_key(by_flow);
            left.sort_by_key(by_flow);
        }
        for (at, (came, left)) in came.iter().zip(&left).enumerate() {
            assert_eq!(came, left, "{layout} {over:?}: frame {at}");
        }
        assert_eq!(came.len(), left.len());
        let tagged = seen.iter().filter(|frame| dscp(frame) == Some(EF)).count();
        assert!(tagged > frames.len() / 4, "{tagged}");
    }
}

/// Flows with tags of VLANs and without, in both families; fragments, frames of no flow, and the
/// shortest. Frames of a flow have its number as the last byte of their sender's address, and their
/// own number in their payload.
fn frames_of_all_kinds() -> Vec<Vec<u8>> {
    let tag = |kind: u16, frame: &[u8]| {
        [&frame[..12], &kind.to_be_bytes(), &[0x20, 100], &frame[12..]].concat()
    };
    let mut frames = Vec::new();
    for at in 0..200_u16 {
        let numbered = |mut frame: Vec<u8>, flow: u8| {
            let end = frame.len() - 2;
            frame[end..].copy_from_slice(&at.to_be_bytes());
            frame[11] = flow;
            frame
        };
        let udp = packets::udp([5000, 53], 40 + usize::from(at));
        let v4 = packets::ethernet(0x0800, &packets::ipv4([1, 2], 17, &udp));
        let v6 = packets::ethernet(0x86dd, &packets::ipv6([1, 2], 17, &udp));
        let other = packets::udp([5001, 53], 40);
        let in_vlan = tag(0x8100, &packets::ethernet(0x0800, &packets::ipv4([3, 2], 17, &other)));
        let in_two = tag(
            0x88a8,
            &tag(0x8100, &packets::ethernet(0x86dd, &packets::ipv6([3, 2], 17, &other))),
        );
        let mut fragment = packets::ipv4([4, 2], 17, &udp);
        // Behind the first one, and more to come.
        fragment[6..8].copy_from_slice(&0x2005_u16.to_be_bytes());
        fragment[10..12].fill(0);
        let sum = packets::checksum(&fragment[..20]);
        fragment[10..12].copy_from_slice(&sum.to_be_bytes());
        let fragment = packets::ethernet(0x0800, &fragment);
        let arp = packets::ethernet(0x0806, &[7; 46]);
        let unknown = packets::ethernet(0x88b5, &[9; 46]);
        let kinds = [v4, v6, in_vlan, in_two, fragment, arp, unknown];
        frames.extend(kinds.into_iter().zip(1..).map(|(frame, flow)| numbered(frame, flow)));
    }
    frames
}

fn flow_number(frame: &[u8]) -> u8 {
    frame[11]
}

/// Where the IP header is, behind up to two tags, and its version.
fn ip_header(frame: &[u8]) -> Option<(usize, u8)> {
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0x00] | [0x88, 0xa8]) {
        at += 4;
    }
    match frame[at..at + 2] {
        [0x08, 0x00] => Some((at + 2, 4)),
        [0x86, 0xdd] => Some((at + 2, 6)),
        _ => None,
    }
}

fn dscp(frame: &[u8]) -> Option<u8> {
    let (at, version) = ip_header(frame)?;
    Some(match version {
        4 => frame[at + 1] >> 2,
        _ => (frame[at] & 0x0f) << 2 | frame[at + 1] >> 6,
    })
}

/// The frame with a DSCP of 0, and the checksum that belongs to it. Panics where its own was wrong.
fn without_dscp(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    match ip_header(&frame) {
        Some((at, 4)) => {
            assert_eq!(packets::checksum(&frame[at..at + 20]), 0, "{frame:?}");
            frame[at + 1] &= 0x03;
            frame[at + 10..at + 12].fill(0);
        }
        Some((at, _)) => {
            frame[at] &= 0xf0;
            frame[at + 1] &= 0x3f;
        }
        None => {}
    }
    frame
}

/// Datagrams in the order in which they were sent, none missing.
#[test]
fn datagrams_keep_their_order() {
    let Some(lab) = Lab::bridged("order", &["ethtool"]) else {
        return;
    };
    for (layout, over) in [
        ("1:1:1", Over::Packet),
        ("2:1:1", Over::Packet),
        ("1:1:1", Over::Xdp),
        ("2:1:1", Over::Xdp),
    ] {
        let layout_is = format!("pipeline.layout={layout}");
        over.give_queues(&lab, layout);
        let live = start_over(over, &lab, &["--set", &layout_is]);
        for address in RIGHT {
            let flows: Vec<_> =
                (0..8).map(|_| ask_udp(&lab, ["left", "right"], address, 1)).collect();
            let mut number = 0_u32;
            // As many at a time as the sockets hold.
            for _ in 0..100 {
                let first = number;
                for _ in 0..16 {
                    for [near, _] in &flows {
                        near.send(&number.to_be_bytes()).unwrap();
                    }
                    number += 1;
                }
                for expected in first..number {
                    for [_, far] in &flows {
                        let mut bytes = [0; 4];
                        assert_eq!(uninterrupted(|| far.recv(&mut bytes)).unwrap(), 4);
                        assert_eq!(u32::from_be_bytes(bytes), expected);
                    }
                }
            }
        }
        all_was_sent(live);
    }
    // It leaves the interfaces as they were.
    for port in ["l", "r"] {
        let shown = lab.run("box", &format!("ip -d link show dev {port}"));
        assert!(shown.contains(" promiscuity 0 "), "{shown}");
        assert!(!shown.contains("xdp"), "{shown}");
    }
}

/// Labels inline: a flow worker asks the model itself, so no packet behind a deciding one leaves
/// without its label, and the deciding packet has it as well.
#[test]
fn the_packet_that_decides_a_label_carries_it() {
    // The tenth packet of a flow decides: the fifth that the right sends.
    const UNTAGGED: usize = 4;
    let Some(lab) = Lab::bridged("decides", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let bundle = common::bundle();
    let labels = common::labels(&bundle).into_iter().map(|label| format!("\"{label}\" = {EF}"));
    let dscp = format!("tag.dscp={{ {} }}", labels.collect::<Vec<_>>().join(", "));
    let model = format!("model.path={}", bundle.display());
    for layout in ["1:0:0", "2:0:0"] {
        let layout_is = format!("pipeline.layout={layout}");
        let mut settings = vec!["--set", "accel.devices=[\"native\"]", "--set", &layout_is];
        settings.extend(["--set", &model, "--set", &dscp]);
        let live = start(&lab, &settings);
        let capture = dir.path().join(layout);
        let left = listen_on("left", &lab, &live, &capture);
        let flows: Vec<_> = RIGHT
            .iter()
            .flat_map(|address| (0..10).map(|_| ask_udp(&lab, ["left", "right"], address, 12)))
            .collect();
        left.finish(&live);
        let mut by_flow: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for Seen { flow, dscp } in seen_from(&capture, &RIGHT) {
            if let Some(flow) = flow {
                by_flow.entry(flow).or_default().push(dscp);
            }
        }
        assert_eq!(by_flow.len(), flows.len());
        for (flow, packets) in by_flow {
            let tagged = packets.len() - UNTAGGED;
            assert_eq!(packets, [vec![0; UNTAGGED], vec![EF; tagged]].concat(), "{layout} {flow}");
        }
        let summary = live.terminate(0).json();
        assert_eq!(summary["series"]["inferred"], flows.len(), "{summary}");
        assert_eq!(summary["pipeline"]["layout"], layout);
    }
}
