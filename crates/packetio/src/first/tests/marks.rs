//! Packets that begin and end connections.

use super::packets::{ACK, FIN, Packet, RST, SYN, flow, tcp, v4, v6};
use super::{Bench, first, namespace};
use crate::rx::Notice;

/// What the frames of TCP that came up have for flags.
fn flags(bench: &mut Bench) -> Vec<u8> {
    let up = bench.up().frames;
    up.iter().map(|up| up.bytes[14 + 20 + 13]).collect()
}

#[test]
fn what_begins_or_ends_a_connection_always_comes_up() {
    let Some(netns) = namespace("what_begins_or_ends_a_connection_always_comes_up") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(1));
        let (a, b) = (v4(1, 7000), v4(2, 80));
        let (data, answer) = (tcp(a, b, ACK, 10), tcp(b, a, ACK, 0));
        bench.send([tcp(a, b, SYN, 0), tcp(a, b, SYN, 0), tcp(b, a, SYN | ACK, 0)]);
        assert_eq!(flags(&mut bench), [SYN, SYN, SYN | ACK]);
        bench.send([data; 3]);
        assert_eq!(flags(&mut bench), [ACK]);
        bench.send([tcp(b, a, SYN | ACK, 0), answer, data]);
        assert_eq!(flags(&mut bench), [SYN | ACK]);
        let enough = bench.ports[0].enough.clone().unwrap();
        enough.note(6, [a, b]);
        bench.send([tcp(a, b, FIN | ACK, 10), answer, tcp(b, a, FIN, 0), data]);
        assert_eq!(flags(&mut bench), [FIN | ACK, FIN]);
        bench.send([tcp(b, a, RST, 0), tcp(a, b, RST | ACK, 0), tcp(b, a, RST, 0)]);
        assert_eq!(flags(&mut bench), [RST, RST | ACK, RST]);
        assert_eq!(bench.packets_counted(&data), [4, 2]);
        assert_eq!(bench.sums().counted, 6);
    });
}

#[test]
fn a_flood_of_syns_takes_no_place() {
    let Some(netns) = namespace("a_flood_of_syns_takes_no_place") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(crate::FirstPackets { flows: 4, ..first(1) });
        let known = tcp(v4(1, 1), v4(2, 1), ACK, 1);
        assert_eq!(bench.up_of([known; 3]), 1);
        let syns = (0..500).map(|port| tcp(v4(3, port), v4(2, 80), SYN, 0));
        assert_eq!(bench.up_of(syns), 500);
        assert_eq!(bench.up_of([known; 3]), 0);
        assert_eq!(bench.packets_counted(&known), [5, 0]);
        assert_eq!(bench.sums().forgotten, 0);
    });
}

#[test]
fn the_counts_of_a_connection_come_with_its_end() {
    let Some(netns) = namespace("the_counts_of_a_connection_come_with_its_end") else {
        return;
    };
    netns.inside(|| {
        for (flags, (a, b)) in [
            (FIN | ACK, (v4(1, 7000), v4(2, 80))),
            (RST, (v4(2, 7000), v4(1, 80))),
            (FIN, (v6(1, 7000), v6(2, 80))),
        ] {
            let mut bench = Bench::new(first(2));
            let (data, answer) = (tcp(a, b, ACK, 10), tcp(b, a, ACK, 1000));
            bench.send([data, answer, data, answer, answer, tcp(a, b, flags, 0)]);
            bench.arrived();
            let burst = bench.burst(0, 64);
            assert_eq!(burst.frames.len(), 3, "with the end, at once");
            assert_eq!(
                bench.counted(&data),
                ([1, 2], [data.ip_bytes() as u64, 2 * answer.ip_bytes() as u64])
            );
            let told = bench.told[&flow(&data)];
            let off_us = told.last_us - burst.frames[2].frame.time_us;
            assert!(off_us.abs() < 5_000_000, "{off_us}");
        }
    });
}

fn reused(a: Packet) -> Packet {
    Packet { flags: SYN, payload: 0, ..a }
}

#[test]
fn where_ports_are_used_again_the_counts_begin_again() {
    let Some(netns) = namespace("where_ports_are_used_again_the_counts_begin_again") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(2));
        let data = tcp(v4(1, 7000), v4(2, 80), ACK, 10);
        assert_eq!(bench.up_of([data; 5]), 2);
        assert_eq!(bench.up_of([reused(data)]), 1);
        let before = bench.told[&flow(&data)];
        assert_eq!(before.packets, [3, 0], "what was before it");
        assert_eq!(bench.up_of([data; 7]), 2);
        assert_eq!(bench.packets_counted(&data), [5, 0]);
        assert_ne!(bench.told[&flow(&data)].generation, before.generation);
        // An answer to SYN begins nothing.
        assert_eq!(bench.up_of([tcp(v4(2, 80), v4(1, 7000), SYN | ACK, 0)]), 1);
        assert_eq!(bench.up_of([data; 2]), 0);
        assert_eq!(bench.packets_counted(&data), [7, 0]);
    });
}

/// Counts are for after the frames of their burst. So those from before a SYN come before its
/// burst, and those from behind it not before it, though the table may hold them already.
#[test]
fn counts_come_on_their_side_of_a_syn() {
    let Some(netns) = namespace("counts_come_on_their_side_of_a_syn") else {
        return;
    };
    netns.inside(|| {
        for max in [64, 1, 2, 3] {
            let mut bench = Bench::new(first(2));
            let data = tcp(v4(1, 7000), v4(2, 80), ACK, 10);
            assert_eq!(bench.up_of([data; 5]), 2);
            bench.send([data, data, reused(data)]);
            bench.send([data; 9]);
            bench.arrived();
            // The table is read as soon as it can be.
            bench.ports[0].rx.notify(Notice::Drain);
            let mut has_begun = false;
            loop {
                let burst = bench.burst(0, max);
                if burst.frames.is_empty() && burst.counts.is_empty() {
                    break;
                }
                let is_syn = |bytes: &[u8]| bytes[14 + 20 + 13] == SYN;
                has_begun |= burst.frames.iter().any(|up| is_syn(&up.bytes));
                let packets = if has_begun { [0, 7] } else { [0, 5] };
                for counts in &burst.counts {
                    let is_right = packets.contains(&counts.packets[0]);
                    assert!(is_right, "max {max}, begun {has_begun}: {counts:?}");
                }
            }
            assert!(has_begun);
            assert_eq!(bench.packets_counted(&data), [7, 0]);
        }
    });
}

/// Who is told of the connection before, and knows it no more, does not mean the one that has
/// begun.
#[test]
fn a_connection_that_is_forgotten_leaves_the_next_one_its_place() {
    let Some(netns) = namespace("a_connection_that_is_forgotten_leaves_the_next_one_its_place")
    else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(2));
        let data = tcp(v4(1, 7000), v4(2, 80), ACK, 10);
        assert_eq!(bench.up_of([data; 5]), 2);
        bench.send([reused(data)]);
        bench.send([data; 5]);
        bench.arrived();
        let burst = bench.burst(0, 64);
        assert_eq!((burst.frames.len(), burst.counts.len()), (0, 1));
        bench.ports[0].rx.notify(Notice::Forget(&[0]));
        assert_eq!(bench.how_many_up(), 3);
        assert_eq!(bench.up_of([data; 2]), 0);
        assert_eq!(bench.packets_counted(&data), [5, 0]);
    });
}

/// Several connections with the same ports wait in the ring: each has its own counts.
#[test]
fn each_of_several_connections_has_its_own_counts() {
    let Some(netns) = namespace("each_of_several_connections_has_its_own_counts") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(2));
        let data = tcp(v4(1, 7000), v4(2, 80), ACK, 10);
        let end = Packet { flags: FIN | ACK, ..data };
        for connection in 1..=4 {
            bench.send([reused(data)]);
            bench.send(vec![data; 2 + connection]);
            bench.send([end]);
        }
        bench.arrived();
        let mut begun = 0;
        let mut told = Vec::new();
        loop {
            let burst = bench.burst(0, 64);
            if burst.frames.is_empty() && burst.counts.is_empty() {
                break;
            }
            let is_syn = |bytes: &[u8]| bytes[14 + 20 + 13] == SYN;
            begun += burst.frames.iter().filter(|up| is_syn(&up.bytes)).count() as u64;
            let counts = burst.counts.iter().map(|counts| counts.packets[0]);
            // The frame that comes first has none yet.
            told.extend(counts.filter(|packets| *packets != 0).map(|packets| (begun, packets)));
        }
        // With the FIN, and with the SYN of the next one.
        assert_eq!(begun, 4);
        told.dedup();
        assert_eq!(told, [(1, 1), (2, 2), (3, 3), (4, 4)]);
    });
}
