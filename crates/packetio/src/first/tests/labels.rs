//! Labels in the kernel: which packets are elements, and when they are reported. There is no
//! network here, so the program leaves each flow to user space when it would ask.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::packets::*;
use super::*;
use crate::{KernelDepth, KernelEditions, KernelLabels};

/// Asks about flows after these numbers of elements.
fn labels(depths: &[u8]) -> FirstPackets {
    labels_for(depths, false)
}

/// The same, where somebody waits for each element.
fn labels_for(depths: &[u8], reports_at_once: bool) -> FirstPackets {
    let depth = |&k: &u8| KernelDepth { k, sure: 30_000, contradicts: None };
    let labels = KernelLabels {
        net: Vec::new(),
        depths: depths.iter().map(depth).collect(),
        least: vec![0; 4],
        sure_classes: 4,
        ports: Vec::new(),
        is_ports_first: true,
        elements: depths.iter().copied().max().unwrap(),
        keeps_collecting: false,
        reports_at_once,
        marks: None,
        dscp: Vec::new(),
    };
    FirstPackets { labels: Some(Arc::new(KernelEditions::new(labels))), ..first(4) }
}

/// Lengths at the IP layer of the frames that came up, in order.
fn lengths(up: &Bursts) -> Vec<u32> {
    up.frames.iter().map(|up| up.frame.wire - 14).collect()
}

fn handshake(client: End, server: End) -> [Packet; 3] {
    let syn = tcp(client, server, SYN, 0);
    let answer = tcp(server, client, SYN | ACK, 0);
    [syn, answer, tcp(client, server, ACK, 0)]
}

/// What comes up until `frames` are there.
fn up_in_time(bench: &mut Bench, frames: usize) -> Bursts {
    let began = Instant::now();
    let mut up = Bursts::default();
    while up.frames.len() < frames && began.elapsed() < SOON {
        let burst = bench.burst(0, 64);
        up.frames.extend(burst.frames);
        up.counts.extend(burst.counts);
        std::thread::sleep(Duration::from_millis(1));
    }
    up
}

#[test]
fn without_a_network_user_space_labels_all_flows() {
    let Some(netns) = namespace("without_a_network_user_space_labels_all_flows") else { return };
    netns.inside(|| {
        let mut bench = Bench::new(labels(&[1, 2, 3]));
        let packet = udp(v4(1, 4000), v4(2, 5000), 100);
        bench.send([packet, packet.back(), packet]);
        assert_eq!(lengths(&up_in_time(&mut bench, 3)), [128; 3]);
    });
}

#[test]
fn elements_of_a_silent_flow_come_with_the_round_over_the_table() {
    let Some(netns) = namespace("elements_of_a_silent_flow_come_with_the_round_over_the_table")
    else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(labels(&[3]));
        let query = udp(v6(1, 4000), v6(2, 53), 40);
        let answer = Packet { payload: 500, ..query.back() };
        let before_us = now_us();
        bench.send([query, answer]);
        assert_eq!(bench.arrived().offered, 0, "the kernel keeps them");
        let sent_us = now_us();
        let up = up_in_time(&mut bench, 2);
        assert_eq!(lengths(&up), [88, 548]);
        for (up, sent) in up.frames.iter().zip([query, answer]) {
            let headers = &sent.bytes()[14 + 4..14 + 40 + 4];
            assert_eq!(up.bytes[14 + 4..14 + 40 + 4], *headers, "from, to, ports");
            let is_then = (before_us - 1000..=sent_us + 1000).contains(&up.frame.time_us);
            assert!(is_then, "{before_us} {} {sent_us}", up.frame.time_us);
        }
    });
}

#[test]
fn elements_come_at_once_where_somebody_waits_for_them() {
    let Some(netns) = namespace("elements_come_at_once_where_somebody_waits_for_them") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(labels_for(&[3], true));
        let query = udp(v4(1, 4000), v4(2, 53), 40);
        for packet in [query, query.back()] {
            bench.send([packet]);
            // Nothing is read before it has come, so no round brings it.
            assert_eq!(lengths(&bench.up()), [68]);
        }
    });
}

#[test]
fn elements_come_before_the_packet_that_ends_their_connection() {
    let Some(netns) = namespace("elements_come_before_the_packet_that_ends_their_connection")
    else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(labels(&[10]));
        let [client, server] = [v4(1, 4000), v4(2, 80)];
        let request = tcp(client, server, ACK, 300);
        bench.send(handshake(client, server));
        bench.send([request, tcp(server, client, ACK, 0), tcp(server, client, ACK, 1000)]);
        bench.send([tcp(server, client, FIN | ACK, 50), tcp(client, server, FIN | ACK, 0)]);
        // SYNs, request, response, and the one that also ends it; its FIN comes as an element.
        let up = up_in_time(&mut bench, 6);
        assert_eq!(lengths(&up), [40, 40, 340, 1040, 90, 40]);
        assert_eq!(up.frames[4].bytes[14 + 20 + 13] & FIN, FIN);
        // Two packets without payload were counted.
        assert_eq!(bench.packets_counted(&request), [1, 1]);
    });
}

#[test]
fn a_connection_whose_syn_was_not_seen_is_left_to_user_space() {
    let Some(netns) = namespace("a_connection_whose_syn_was_not_seen_is_left_to_user_space") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(labels(&[10]));
        let packet = tcp(v4(1, 4000), v4(2, 80), ACK, 300);
        bench.send([packet; 3]);
        assert_eq!(lengths(&up_in_time(&mut bench, 3)), [340; 3]);
    });
}

/// Both ways of each flow begin at once, on two CPUs: nothing is lost, comes twice, or changes.
#[test]
fn two_cpus_append_to_one_series() {
    const FLOWS: u16 = 2000;
    const EACH: usize = 6;
    let Some(netns) = namespace("two_cpus_append_to_one_series") else { return };
    netns.inside(|| {
        let settings = PortSettings { direction: Direction::Both, ..settings(labels(&[12])) };
        let mut bench = Bench::with(&settings, 1);
        let [forward, back] = [Wire::new("a0"), Wire::new("b0")];
        let packet = |flow: u16, i: usize| udp(v4(1, 10_000 + flow), v4(2, 9), 100 + i);
        let start = &std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for flow in 0..FLOWS {
                    start.wait();
                    (0..EACH).for_each(|i| forward.send(&packet(flow, i).bytes()));
                }
            });
            scope.spawn(move || {
                for flow in 0..FLOWS {
                    start.wait();
                    (0..EACH).for_each(|i| back.send(&packet(flow, EACH + i).back().bytes()));
                }
            });
        });
        let all = usize::from(FLOWS) * 2 * EACH;
        let up = up_in_time(&mut bench, all);
        let mut flows: BTreeMap<u16, [Vec<u32>; 2]> = BTreeMap::new();
        for up in &up.frames {
            let port = |at: usize| u16::from_be_bytes([up.bytes[34 + at], up.bytes[35 + at]]);
            let (from, to) = (port(0), port(2));
            let is_back = from == 9;
            let flow = flows.entry(if is_back { to } else { from }).or_default();
            flow[usize::from(is_back)].push(up.frame.wire - 14 - 28 - 100);
        }
        assert_eq!(flows.len(), usize::from(FLOWS));
        for (flow, directions) in flows {
            let [forward, back] = directions;
            assert_eq!(forward, (0..EACH as u32).collect::<Vec<_>>(), "{flow}");
            assert_eq!(back, (EACH as u32..2 * EACH as u32).collect::<Vec<_>>(), "{flow}");
        }
    });
}
