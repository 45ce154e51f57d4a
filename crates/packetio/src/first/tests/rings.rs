//! Full tables, full rings, several workers, and who sleeps.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::packets::{ACK, End, SYN, flow, tcp, udp, v4, v6};
use super::{Bench, FlowCounts, SOON, first, namespace, settings};
use crate::rx::{Notice, Received, WaitHandle, wait};
use crate::settings::{FirstPackets, PortSettings};

#[test]
fn a_new_flow_takes_the_place_of_the_one_that_was_silent_for_longest() {
    let test = "a_new_flow_takes_the_place_of_the_one_that_was_silent_for_longest";
    let Some(netns) = namespace(test) else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(FirstPackets { flows: 4, ..first(1) });
        let packet = |port| udp(v4(1, port), v4(2, 9), 10);
        let later = || std::thread::sleep(Duration::from_millis(40));
        for port in 1..=4 {
            assert_eq!(bench.up_of([packet(port); 3]), 1);
            later();
        }
        assert_eq!(bench.up_of([packet(1)]), 0);
        later();
        assert_eq!(bench.sums().forgotten, 0);
        assert_eq!(bench.up_of([packet(5); 3]), 1);
        assert_eq!(bench.sums().forgotten, 1);
        assert_eq!(bench.up_of([1, 3, 4, 5].map(packet)), 0);
        later();
        assert_eq!(bench.up_of([packet(2); 4]), 1, "it begins again");
        assert_eq!(bench.sums().forgotten, 2);
        assert_eq!(bench.packets_counted(&packet(2)), [3, 0]);
        assert_eq!(bench.packets_counted(&packet(5)), [3, 0]);
    });
}

/// A client may choose its tuples so that they meet in one set of the table, and so push a flow out
/// of it. Whatever was counted comes up all the same, with the packet that takes the entry.
#[test]
fn what_was_counted_of_a_flow_that_loses_its_entry_comes_up() {
    let Some(netns) = namespace("what_was_counted_of_a_flow_that_loses_its_entry_comes_up") else {
        return;
    };
    netns.inside(|| {
        for (a, b) in [(v4(1, 7000), v4(2, 53)), (v6(1, 7000), v6(2, 53))] {
            let mut bench = Bench::new(FirstPackets { flows: 4, ..first(1) });
            let flow = udp(a, b, 100);
            assert_eq!(bench.up_of([flow, flow.back(), flow, flow]), 1);
            std::thread::sleep(Duration::from_millis(40));
            // These take the other three entries, then the flow's.
            for port in 1..=4 {
                let up = bench.up_of([udp(v4(3, port), v4(4, 9), 10)]);
                assert_eq!(up, 1);
            }
            assert_eq!(bench.sums().forgotten, 1);
            let ip_bytes = flow.ip_bytes() as u64;
            assert_eq!(
                bench.counted(&flow),
                ([2, 1], [2 * ip_bytes, ip_bytes]),
                "nobody read the table"
            );
            // It comes up again, and is counted from the start.
            assert_eq!(bench.up_of([flow; 3]), 1);
            assert_eq!(bench.packets_counted(&flow), [2, 0]);
        }
    });
}

/// Where the ring is full, so that counts cannot come up, the flow keeps its entry.
#[test]
fn a_flow_keeps_its_entry_while_its_counts_find_no_room() {
    let Some(netns) = namespace("a_flow_keeps_its_entry_while_its_counts_find_no_room") else {
        return;
    };
    netns.inside(|| {
        let settings = PortSettings {
            block_bytes: 4096,
            blocks: 2,
            ..settings(FirstPackets { flows: 4, ..first(1) })
        };
        let mut bench = Bench::with(&settings, 1);
        let flows = [1, 2, 3, 4].map(|port| udp(v4(1, port), v4(2, 9), 10));
        bench.send(flows.into_iter().flat_map(|flow| [flow; 3]));
        bench.send((0..1000).map(|port| tcp(v4(3, port), v4(4, 80), SYN, 0)));
        assert!(bench.arrived().dropped > 0);
        bench.send((0..50).map(|port| udp(v4(5, port), v4(6, 9), 10)));
        assert_eq!(bench.arrived().forgotten, 0);
        bench.up_now();
        for flow in flows {
            assert_eq!(bench.packets_counted(&flow), [2, 0]);
        }
    });
}

/// As many flows, whose addresses and ports differ in their top bits only, as a client can make up:
/// they find room like any others.
#[test]
fn flows_that_differ_in_top_bits_only_are_not_forgotten() {
    let Some(netns) = namespace("flows_that_differ_in_top_bits_only_are_not_forgotten") else {
        return;
    };
    netns.inside(|| {
        let settings = PortSettings {
            block_bytes: 1 << 20,
            ..settings(FirstPackets { flows: 131_072, ..first(1) })
        };
        let mut bench = Bench::with(&settings, 1);
        let flows = (0..3968u16).map(|i| {
            let address = [0x80 | (i % 64) as u8, 0, 0, 9];
            udp(v4(1, 5000), (address.into(), (i / 64) << 10 | 5), 10)
        });
        bench.send(flows);
        let sums = bench.arrived();
        assert_eq!((sums.offered, sums.dropped), (3968, 0));
        // Of as many random ones, one is forgotten in a hundred tables.
        assert!(sums.forgotten <= 2, "{sums:?}");
    });
}

/// The reader must see that counts restarted, however many entries were freed in between.
#[test]
fn a_flow_that_lost_its_place_has_another_generation_when_it_is_back() {
    let test = "a_flow_that_lost_its_place_has_another_generation_when_it_is_back";
    let Some(netns) = namespace(test) else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(FirstPackets { flows: 4, ..first(1) });
        let packet = |port| udp(v4(1, port), v4(2, 9), 10);
        let begin = |bench: &mut Bench, port| {
            assert_eq!(bench.up_of([packet(port); 3]), 1);
            std::thread::sleep(Duration::from_millis(40));
        };
        let forget = |bench: &mut Bench, port| {
            assert_eq!(bench.up_of([packet(port)]), 0);
            bench.ports[0].rx.notify(Notice::Drain);
            let counts = bench.burst(0, 64).counts;
            let is_it = |it: &FlowCounts| (it.protocol, it.ends) == flow(&packet(port));
            let number = counts.iter().position(is_it).unwrap();
            bench.ports[0].rx.notify(Notice::Forget(&[number as u32]));
        };
        (1..=4).for_each(|port| begin(&mut bench, port));
        bench.drain();
        let before = bench.told[&flow(&packet(1))];
        // Its entry is taken, and another flow's is free again.
        forget(&mut bench, 4);
        begin(&mut bench, 5);
        begin(&mut bench, 6);
        forget(&mut bench, 5);
        begin(&mut bench, 1);
        bench.drain();
        let after = bench.told[&flow(&packet(1))];
        assert_eq!((before.packets, after.packets), ([2, 0], [2, 0]));
        assert_ne!(before.generation, after.generation);
        assert!(before.generation != 0 && after.generation != 0);
    });
}

#[test]
fn all_packets_are_accounted_for_however_small_the_table_is() {
    let Some(netns) = namespace("all_packets_are_accounted_for_however_small_the_table_is") else {
        return;
    };
    netns.inside(|| {
        for (flows, workers) in [(1, 1), (4, 1), (5, 2), (64, 3)] {
            let first = FirstPackets { flows, ..first(2) };
            let mut bench = Bench::with(&settings(first), workers);
            let packets = (0..3000u16).map(|i| match i % 7 {
                0 => udp(v6(1, i % 30), v6(2, 9), 10),
                _ => udp(v4(1, i / 11), v4(2, 9), 10),
            });
            let up = bench.up_of(packets) as u64;
            let sums = bench.sums();
            assert!(sums.forgotten > 10 && sums.counted > 10, "{sums:?}");
            assert_eq!(sums.dropped, 0);
            assert_eq!((sums.received, up + sums.counted), (up, 3000));
        }
    });
}

#[test]
fn both_directions_of_a_flow_meet_at_one_port() {
    let Some(netns) = namespace("both_directions_of_a_flow_meet_at_one_port") else {
        return;
    };
    netns.inside(|| {
        for workers in [2, 3] {
            let mut bench = Bench::with(&settings(first(2)), workers);
            assert_eq!(bench.ports.len(), usize::from(workers));
            let ends = |i: u16| -> (End, End) {
                match i % 2 {
                    0 => (v4(i as u8, 32_768 + i), v4(200, 53)),
                    _ => (v6(250, 32_768 + i), v6(i as u8, 53)),
                }
            };
            let flows = 300;
            for i in 0..flows {
                let (a, b) = ends(i);
                let packet = udp(a, b, 10);
                bench.send([packet, packet.back(), packet.back(), packet, packet]);
            }
            let up = bench.up().frames;
            let mut ports = HashMap::new();
            for up in &up {
                // Behind the headers of IP: the two ports, of which one is the flow's own.
                let at = if up.bytes[12] == 8 { 34 } else { 54 };
                let port = |at: usize| u16::from_be_bytes([up.bytes[at], up.bytes[at + 1]]);
                let number = port(at).max(port(at + 2));
                let known = *ports.entry(number).or_insert(up.port);
                assert_eq!(known, up.port, "flow {number} is seen at two ports");
            }
            assert_eq!((ports.len(), up.len()), (300, 600));
            for worker in 0..usize::from(workers) {
                let share = ports.values().filter(|port| **port == worker).count();
                assert!(share * usize::from(workers) * 2 > 300, "{share} flows");
                assert_ne!(bench.ports[worker].rx.counts().counted, 0);
            }
            bench.drain();
            for i in 0..flows {
                let (a, b) = ends(i);
                assert_eq!(bench.counted(&udp(a, b, 10)).0, [2, 1]);
            }
            assert_eq!(bench.told.len(), 300);
            assert_eq!(bench.sums().counted, 900);
        }
    });
}

/// Counts of a flow come from one port, so that nobody counts them twice.
#[test]
fn each_flow_is_told_of_by_the_port_that_has_its_packets() {
    let Some(netns) = namespace("each_flow_is_told_of_by_the_port_that_has_its_packets") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::with(&settings(first(1)), 2);
        let packets = (0..50).map(|port| udp(v4(1, port), v4(2, 9), 10));
        bench.send(packets.flat_map(|packet| [packet; 3]));
        bench.arrived();
        let mut told = HashMap::new();
        for port in 0..2 {
            bench.ports[port].rx.notify(Notice::Drain);
            while let Received::Burst(burst) = bench.ports[port].rx.receive(64).unwrap() {
                for counts in burst.counts() {
                    let known = *told.entry((counts.protocol, counts.ends)).or_insert(port);
                    assert_eq!(known, port);
                }
            }
        }
        assert_eq!(told.len(), 50);
        let ends = flow(&udp(v4(1, 7), v4(2, 9), 0));
        assert!(told.contains_key(&ends));
    });
}

#[test]
fn what_finds_the_ring_full_is_dropped_and_counted() {
    let Some(netns) = namespace("what_finds_the_ring_full_is_dropped_and_counted") else {
        return;
    };
    netns.inside(|| {
        let settings = PortSettings { block_bytes: 4096, blocks: 2, ..settings(first(2)) };
        let mut bench = Bench::with(&settings, 1);
        let packets = (0..1000).map(|port| udp(v4(1, port), v4(2, 9), 10));
        bench.send(packets.flat_map(|packet| [packet; 3]));
        let early = bench.arrived();
        // A ring is 64 KiB at least.
        assert!(early.dropped > 1000, "{early:?}");
        assert_eq!((early.offered, early.counted), (2000, 1000));
        assert_eq!(early.waiting, 2000 - early.dropped);
        let up = bench.how_many_up() as u64;
        assert!(up > 200);
        let sums = bench.sums();
        assert_eq!((sums.received, sums.dropped), (up, 2000 - up));
        assert_eq!((sums.waiting, sums.counted), (0, 1000));
        // It goes on.
        let syns = (0..50).map(|port| tcp(v4(3, port), v4(4, 80), SYN, 0));
        assert_eq!(bench.up_of(syns), 50);
        assert_eq!(bench.sums().dropped, sums.dropped);
    });
}

#[test]
fn bursts_are_not_larger_than_asked_for() {
    let Some(netns) = namespace("bursts_are_not_larger_than_asked_for") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(1));
        bench.send((0..10).map(|port| tcp(v4(1, port), v4(2, 80), ACK, 0)));
        bench.arrived();
        let sizes = [0, 1, 3, 64, 64].map(|max| bench.burst(0, max).frames.len());
        assert_eq!(sizes, [1, 1, 3, 5, 0]);
    });
}

#[test]
fn frames_wake_a_thread_that_waits_and_a_silent_port_does_not() {
    let test = "first: frames_wake_a_thread_that_waits_and_a_silent_port_does_not";
    let Some(netns) = namespace(test) else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::with(&settings(first(1)), 2);
        let sleeps = |bench: &mut Bench| {
            let began = Instant::now();
            let is_asleep = |bench: &Bench| {
                let mut ports = bench.ports.iter();
                ports.all(|port| matches!(port.rx.wait_handle(), WaitHandle::Fd(_)))
            };
            while !is_asleep(bench) {
                assert!(began.elapsed() < SOON);
                for port in 0..2 {
                    assert!(bench.burst(port, 64).frames.is_empty());
                }
            }
        };
        let waited = |bench: &Bench, most: Duration| {
            let began = Instant::now();
            wait(bench.ports.iter().map(|port| &*port.rx), None, most);
            began.elapsed()
        };
        let short = Duration::from_millis(30);
        for round in 0..5 {
            sleeps(&mut bench);
            assert!(waited(&bench, short) >= short);
            let packets: Vec<_> =
                (0..20).map(|i| udp(v4(1, 20 * round + i), v4(2, 9), 9).bytes()).collect();
            let wire = &bench.wire;
            let ports = bench.ports.iter().map(|port| &*port.rx);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(short);
                    packets.iter().for_each(|packet| wire.send(packet));
                });
                let began = Instant::now();
                wait(ports, None, SOON);
                assert!(began.elapsed() < SOON);
            });
            bench.sent += 20;
            assert_eq!(bench.how_many_up(), 20);
        }
    });
}
