//! Packets that are malformed, cut, nested or absurd: each gets the verdict with its name, and the
//! verdicts add up.

use serde_json::Value;

use crate::common::packets::{capture, conversation, ethernet, ipv4, ipv6, pcap, timed, udp};
use crate::common::{SIMULATED, fenxi_asking_once, run, sum};

/// The verdicts of a capture.
fn verdicts(bytes: &[u8]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.pcap");
    std::fs::write(&path, bytes).unwrap();
    let mut command = fenxi_asking_once(["replay", "--json"]);
    command.arg(path).args(SIMULATED);
    run(command).expect_code(0).json()["verdicts"].clone()
}

/// Holds each frame against its verdict: one at a time, then all together.
#[track_caller]
fn assert_verdicts(frames: &[(&str, Vec<u8>)]) {
    for (verdict, frame) in frames {
        let found = verdicts(&pcap([frame.clone()]));
        assert_eq!(sum(&found), 1);
        assert_eq!(
            found[*verdict],
            1,
            "{verdict}: {found} for {:02x?}",
            &frame[..frame.len().min(80)]
        );
    }
    let found = verdicts(&pcap(frames.iter().map(|(_, frame)| frame.clone())));
    assert_eq!(sum(&found), frames.len() as u64);
    for (verdict, _) in frames {
        let expected = frames.iter().filter(|(other, _)| other == verdict).count();
        assert_eq!(found[*verdict], expected, "{verdict}");
    }
}

fn datagram() -> Vec<u8> {
    ipv4([1, 2], 17, &udp([4000, 53], 12))
}

/// The frame of a plain datagram with one byte of its IP packet set.
fn with(at: usize, value: u8) -> Vec<u8> {
    let mut ip = datagram();
    ip[at] = value;
    ethernet(0x0800, &ip)
}

fn tcp(doff: u8, options: usize) -> Vec<u8> {
    let mut header = vec![0; 20 + options];
    (header[1], header[3], header[12], header[13]) = (80, 99, doff << 4, 2);
    ethernet(0x0800, &ipv4([1, 2], 6, &header))
}

#[test]
fn malformed_headers() {
    assert_verdicts(&[
        ("unlabelled", ethernet(0x0800, &datagram())),
        ("ip_version", with(0, 0x55)),
        ("ip_version", ethernet(0x86dd, &datagram())),
        ("ip_ihl", with(0, 0x44)),
        ("ip_short", with(0, 0x4f)),
        ("ip_length", with(3, 19)),
        ("l4_short", with(3, 27)),
        ("fragment", with(7, 1)),
        ("other_l4", with(9, 47)),
        ("unlabelled", with(9, 1)),
        ("other_l4", with(9, 58)),
        ("udp_length", with(25, 7)),
        ("tcp_doff", tcp(4, 0)),
        ("l4_short", tcp(15, 39)),
        ("unlabelled", tcp(15, 40)),
        ("non_ip", ethernet(0x0806, &[0; 28])),
    ]);
}

#[test]
fn cut_packets() {
    let frame = ethernet(0x0800, &datagram());
    let v6 = ethernet(0x86dd, &ipv6([1, 2], 17, &udp([4000, 53], 12)));
    let cut = |frame: &[u8], length: usize| frame[..length].to_vec();
    assert_verdicts(&[
        ("link_short", Vec::new()),
        ("link_short", cut(&frame, 13)),
        ("ip_short", cut(&frame, 14)),
        ("ip_short", cut(&frame, 33)),
        ("l4_short", cut(&frame, 34)),
        ("l4_short", cut(&frame, 41)),
        ("unlabelled", cut(&frame, 42)),
        ("ip_short", cut(&v6, 53)),
        ("l4_short", cut(&v6, 61)),
        ("unlabelled", cut(&v6, 62)),
    ]);
}

/// `depth` VLAN tags, alternately of both kinds, over an Ethernet frame's payload.
fn tagged(depth: usize, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut stack = Vec::new();
    for level in 1..=depth {
        let next = if level == depth { ethertype } else { 0x8100 };
        stack.extend([[0, level as u8], next.to_be_bytes()].concat());
    }
    ethernet(0x88a8, &[&stack[..], payload].concat())
}

fn mpls(depth: usize, payload: &[u8]) -> Vec<u8> {
    let mut stack = [0, 1, 0, 64].repeat(depth);
    stack[4 * depth - 2] |= 1;
    ethernet(0x8847, &[&stack[..], payload].concat())
}

/// `count` destination options, the last of them before UDP.
fn extended(count: usize) -> Vec<u8> {
    let mut chain = [60, 0, 0, 0, 0, 0, 0, 0].repeat(count);
    chain[8 * (count - 1)] = 17;
    ipv6([1, 2], 60, &[chain, udp([4000, 53], 12)].concat())
}

#[test]
fn nested_packets() {
    let endless = [0, 1, 0x81, 0].repeat(350);
    let chain = extended(150);
    let later_fragment = [17, 0, 0, 8, 0, 0, 0, 9];
    assert_verdicts(&[
        ("unlabelled", tagged(50, 0x0800, &datagram())),
        ("unlabelled", tagged(50, 0x86dd, &extended(1))),
        ("non_ip", tagged(50, 0x0806, &[0; 28])),
        ("link_short", ethernet(0x8100, &endless)),
        ("unlabelled", mpls(100, &datagram())),
        ("non_ip", mpls(3, &[0; 30])),
        ("link_short", ethernet(0x8847, &[0, 1, 0, 64].repeat(100))),
        ("link_short", mpls(2, &[])),
        ("unlabelled", ethernet(0x86dd, &chain)),
        ("ip6_ext_short", ethernet(0x86dd, &chain[..40 + 8 * 75 + 3])),
        ("ip6_ext_short", ethernet(0x86dd, &ipv6([1, 2], 0, &[17, 255, 0, 0, 0, 0, 0, 0]))),
        ("fragment", ethernet(0x86dd, &ipv6([1, 2], 44, &later_fragment))),
        ("other_l4", ethernet(0x86dd, &ipv6([1, 2], 4, &datagram()))),
    ]);
}

#[test]
fn the_longest_frame_that_captures_hold() {
    let mut jumbo = ethernet(0x0800, &datagram());
    jumbo.resize(262_144, 0);
    let found = verdicts(&pcap([jumbo.clone(), Vec::new(), jumbo]));
    assert_eq!(
        (&found["unlabelled"], &found["link_short"], sum(&found)),
        (&2.into(), &1.into(), 3)
    );
}

#[test]
fn link_types_that_are_not_read() {
    for link in [127, 147, 65535] {
        let format = packetio::CaptureFormat::Pcap { nanosecond: false };
        let found = verdicts(&capture(format, &timed(link, conversation(false, 1, 12))));
        assert_eq!((&found["unsupported_link"], sum(&found)), (&12.into(), 12), "{link}");
    }
}

#[test]
fn more_flows_than_the_table_holds() {
    // 30 flows that are answered, and 70 that are not, which make room for each other.
    let answered = (0..30).flat_map(|port| conversation(false, 1000 + port, 2));
    let asking = (30..100).map(|port| conversation(false, 1000 + port, 1).remove(0));
    let frames = answered.chain(asking).collect();
    assert_eq!(in_a_table_of_64(frames), [0, 100, 36, 130]);
    // Flows in use both ways stay.
    let answered = (0..100).flat_map(|port| conversation(false, 1000 + port, 2));
    assert_eq!(in_a_table_of_64(answered.collect()), [72, 64, 0, 200]);
}

/// Packets that found the table full, flows begun, flows evicted, packets.
fn in_a_table_of_64(frames: Vec<Vec<u8>>) -> [u64; 4] {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("many.pcap");
    std::fs::write(&path, pcap(frames)).unwrap();
    let mut command = fenxi_asking_once([
        "replay",
        "--json",
        "--set",
        "flow.max_flows=64",
        "--set",
        "flow.buckets=8",
    ]);
    command.arg(path).args(SIMULATED);
    let summary = run(command).expect_code(0).json();
    let (verdicts, flows) = (&summary["verdicts"], &summary["flows"]);
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let begun = count(&flows["begun"]);
    assert_eq!(sum(&flows["ended"]), begun);
    let evicted = count(&flows["ended"]["evicted"]);
    [count(&verdicts["table_full"]), begun, evicted, sum(verdicts)]
}
