//! Which packets of a flow come up, and what is counted of the others.

use std::time::{Duration, Instant};

use super::packets::{ACK, SYN, UDP, flow, tcp, udp, v4, v6};
use super::{Bench, SOON, first, namespace, now_us};
use crate::rx::Notice;
use crate::settings::FirstPackets;

/// A flow is forgotten behind a silence. No machine is so slow that one comes by itself.
const FORGET: Duration = Duration::from_secs(4);
const SILENCE: Duration = Duration::from_millis(4200);

#[test]
fn the_first_packets_come_up_in_order_and_the_others_are_counted_by_direction() {
    let test = "the_first_packets_come_up_in_order_and_the_others_are_counted_by_direction";
    let Some(netns) = namespace(test) else {
        return;
    };
    netns.inside(|| {
        for (a, b) in [
            (v4(1, 7000), v4(2, 53)),
            (v4(2, 7000), v4(1, 53)),
            (v4(1, 9), v4(1, 8)),
            (v6(1, 7000), v6(2, 53)),
            (v6(2, 7000), v6(1, 53)),
            (v6(1, 8), v6(1, 9)),
        ] {
            let mut bench = Bench::new(first(4));
            let packets: Vec<_> = (0..12)
                .map(|i| match i % 3 {
                    2 => udp(b, a, 500 + i),
                    _ => udp(a, b, 20 * i),
                })
                .collect();
            let before_us = now_us();
            bench.send(packets.iter().copied());
            let up = bench.up().frames;
            let after_us = now_us();
            assert_eq!(up.len(), 4);
            for (up, packet) in up.iter().zip(&packets) {
                let bytes = packet.bytes();
                assert_eq!(up.frame.wire as usize, bytes.len());
                assert_eq!(up.bytes.len(), bytes.len().min(136));
                assert_eq!(up.bytes, bytes[..up.bytes.len()]);
                assert_eq!((up.frame.link, up.frame.rss), (1, None));
                assert!(up.frame.gso.is_none());
                // The clocks may be set while the test runs, by little.
                let expected = before_us - 1_000_000..=after_us + 1_000_000;
                assert!(expected.contains(&up.frame.time_us));
            }
            assert!(up.is_sorted_by_key(|up| up.frame.time_us));

            bench.drain();
            let sums = |from| {
                let rest = packets[4..].iter().filter(|packet| packet.from == from);
                rest.fold((0, 0), |(packets, bytes), packet| {
                    (packets + 1, bytes + packet.ip_bytes() as u64)
                })
            };
            let ((packets_out, bytes_out), (packets_back, bytes_back)) = (sums(a), sums(b));
            assert_eq!(
                bench.counted(&packets[0]),
                ([packets_out, packets_back], [bytes_out, bytes_back])
            );
            let told = bench.told[&flow(&packets[0])];
            assert_eq!((told.protocol, told.ends), flow(&packets[0]));
            let expected = before_us - 1_000_000..=after_us + 1_000_000;
            assert!(expected.contains(&told.last_us));

            let counts = bench.sums();
            assert!(counts.counts_in_kernel && !counts.is_away);
            assert_eq!((counts.offered, counts.received), (4, 4));
            assert_eq!((counts.counted, counts.dropped, counts.waiting), (8, 0, 0));
            let frames: usize = packets[4..].iter().map(|it| it.bytes().len()).sum();
            assert_eq!(counts.counted_bytes, frames as u64);
            let wire: usize = packets[..4].iter().map(|it| it.bytes().len()).sum();
            assert_eq!(counts.bytes, wire as u64);
        }
    });
}

#[test]
fn counts_come_by_themselves_and_go_on() {
    let Some(netns) = namespace("counts_come_by_themselves_and_go_on") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(1));
        let packet = udp(v4(1, 7), v4(2, 9), 10);
        assert_eq!(bench.up_of([packet]), 1);
        for expected in [[3, 0], [6, 1], [9, 2]] {
            bench.send([packet; 3]);
            if expected[1] > bench.counted(&packet).0[1] {
                bench.send([packet.back()]);
            }
            let began = Instant::now();
            while bench.counted(&packet).0 != expected {
                assert!(began.elapsed() < SOON, "{:?}", bench.told);
                assert!(bench.burst(0, 64).frames.is_empty());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
}

#[test]
fn packets_with_payload_come_up_for_longer_than_others() {
    let Some(netns) = namespace("packets_with_payload_come_up_for_longer_than_others") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(FirstPackets { data_packets: 5, ..first(3) });
        let (a, b) = (v4(1, 7000), v4(2, 80));
        let (ack, data) = (tcp(a, b, ACK, 0), tcp(b, a, ACK, 100));
        assert_eq!(bench.up_of([ack; 3]), 3);
        assert_eq!(bench.up_of([ack; 2]), 0, "only its payload is wanted now");
        assert_eq!(bench.up_of([data, ack, data, ack, data]), 3);
        assert_eq!(bench.up_of([data; 3]), 2);
        assert_eq!(bench.up_of([data, ack]), 0);
        assert_eq!(bench.packets_counted(&ack), [5, 2]);

        // Those with payload among the first count for both.
        let (a, b) = (v4(1, 7001), v4(2, 80));
        let (ack, data) = (tcp(a, b, ACK, 0), tcp(b, a, ACK, 1));
        assert_eq!(bench.up_of([data, data, data, ack, ack]), 3);
        assert_eq!(bench.up_of([data; 4]), 2);
        assert_eq!(bench.packets_counted(&ack), [2, 2]);

        // So it is with UDP, empty or not.
        let (a, b) = (v6(1, 7001), v6(2, 80));
        assert_eq!(bench.up_of([udp(a, b, 0); 5]), 3);
        assert_eq!(bench.up_of([udp(a, b, 1); 9]), 5);
    });
}

/// The packet that crosses the bound, and the next one, which finds it crossed; near to the bound
/// all of them, since user space may have seen some bytes more.
#[test]
fn packets_that_cross_the_bound_of_bulk_come_up() {
    let Some(netns) = namespace("packets_that_cross_the_bound_of_bulk_come_up") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(FirstPackets { bulk_bytes: 10_000, ..first(2) });
        let (a, b) = (v4(1, 7000), v4(2, 80));
        // 1,028 bytes each way in turn.
        let packets =
            |many: usize| [udp(a, b, 1000), udp(b, a, 1000)].into_iter().cycle().take(many);
        assert_eq!(bench.up_of(packets(9)), 2, "9,252 bytes");
        assert_eq!(bench.up_of(packets(1)), 1, "10,280 bytes");
        let (_, bytes) = bench.counted(&udp(a, b, 0));
        assert_eq!(bytes.iter().sum::<u64>(), 7 * 1028, "told in front of it");
        assert_eq!(bench.up_of(packets(9)), 1);
        assert_eq!(bench.up_of(packets(50)), 0);
        assert_eq!(bench.packets_counted(&udp(a, b, 0)).iter().sum::<u64>(), 65);
        // Who begins again does so with nothing.
        let (a, b) = (v4(1, 7001), v4(2, 80));
        let (data, syn) = (tcp(a, b, ACK, 960), tcp(a, b, SYN, 0));
        assert_eq!(bench.up_of([data; 30]), 5);
        assert_eq!(bench.up_of([syn]), 1);
        assert_eq!(bench.up_of([data; 30]), 4, "10,040 and 11,040");
        // Small ones near to the bound.
        let (a, b) = (v6(1, 7001), v6(2, 80));
        assert_eq!(bench.up_of([udp(a, b, 952); 9]), 2, "9,000 bytes");
        assert_eq!(bench.up_of([udp(a, b, 752)]), 1, "9,800 bytes");
        assert_eq!(bench.up_of([udp(a, b, 52); 9]), 4, "9,900 to 10,200");
    });
}

#[test]
fn who_has_enough_gets_no_more() {
    let Some(netns) = namespace("who_has_enough_gets_no_more") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(FirstPackets { data_packets: 100, ..first(100) });
        let enough = bench.ports[0].enough.clone().unwrap();
        for (port, is_turned) in [(1, false), (2, true)] {
            let (a, b) = (v4(1, port), v4(2, 53));
            let other = udp(v4(1, port), v4(2, 54), 1);
            assert_eq!(bench.up_of([udp(a, b, 1), udp(b, a, 1), other]), 3);
            let ends = if is_turned { [b, a] } else { [a, b] };
            // One of TCP is not meant.
            enough.note(6, ends);
            assert_eq!(bench.up_of([udp(a, b, 1)]), 1);
            enough.note(UDP, ends);
            assert_eq!(bench.up_of([udp(a, b, 1), udp(b, a, 1), other]), 1);
            assert_eq!(bench.packets_counted(&udp(a, b, 1)), [1, 1]);
        }
        // Nothing is kept of a flow without an entry.
        let unknown = udp(v4(8, 1), v4(9, 1), 1);
        enough.note(UDP, [unknown.from, unknown.to]);
        assert_eq!(bench.up_of([unknown; 2]), 2);

        // It holds until the flow begins anew.
        let packet = tcp(v4(1, 3), v4(2, 3), ACK, 1);
        assert_eq!(bench.up_of([packet; 2]), 2);
        enough.note(6, [packet.from, packet.to]);
        assert_eq!(bench.up_of([packet; 2]), 0);
        let syn = tcp(packet.from, packet.to, SYN, 0);
        assert_eq!(bench.up_of([syn, packet, packet]), 3);
    });
}

#[test]
fn a_flow_that_nobody_knows_comes_up_again() {
    let Some(netns) = namespace("a_flow_that_nobody_knows_comes_up_again") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(first(2));
        let packets =
            [udp(v4(1, 7), v4(2, 9), 10), udp(v4(1, 8), v4(2, 9), 10), udp(v6(1, 7), v6(2, 9), 10)];
        for packet in packets {
            assert_eq!(bench.up_of([packet; 5]), 2);
        }
        bench.arrived();
        bench.ports[0].rx.notify(Notice::Drain);
        let counts = bench.burst(0, 64).counts;
        assert_eq!(counts.len(), 3);
        let number = |i: usize| {
            let is_it = |it: &crate::FlowCounts| (it.protocol, it.ends) == flow(&packets[i]);
            counts.iter().position(is_it).unwrap() as u32
        };
        // A number of none is no reason to fall over.
        bench.ports[0].rx.notify(Notice::Forget(&[number(0), number(2), 9]));
        assert_eq!(bench.up_of([packets[0]; 4]), 2);
        assert_eq!(bench.up_of([packets[1]; 4]), 0);
        assert_eq!(bench.up_of([packets[2]; 4]), 2);
        assert_eq!(bench.packets_counted(&packets[0]), [2, 0]);
        assert_eq!(bench.packets_counted(&packets[1]), [7, 0]);
        assert_eq!(bench.packets_counted(&packets[2]), [2, 0]);
    });
}

#[test]
fn a_flow_that_was_silent_for_long_begins_anew() {
    let Some(netns) = namespace("a_flow_that_was_silent_for_long_begins_anew") else {
        return;
    };
    netns.inside(|| {
        let mut bench = Bench::new(FirstPackets { data_packets: 2, forget: FORGET, ..first(3) });
        let enough = bench.ports[0].enough.clone().unwrap();
        let packet = tcp(v4(1, 7), v4(2, 9), ACK, 10);
        for _ in 0..3 {
            assert_eq!(bench.up_of([packet; 5]), 3);
            std::thread::sleep(SILENCE);
        }
        assert_eq!(bench.up_of([packet; 1]), 1);
        enough.note(6, [packet.from, packet.to]);
        assert_eq!(bench.up_of([packet; 1]), 0);
        std::thread::sleep(SILENCE);
        assert_eq!(bench.up_of([packet; 5]), 3, "nobody has enough of it yet");
    });
}

/// A flow that was silent for long has ended for the counting side, and its next packet begins
/// another one, which must not have the counts of the first.
#[test]
fn counts_from_before_a_long_silence_do_not_come_behind_it() {
    let Some(netns) = namespace("counts_from_before_a_long_silence_do_not_come_behind_it") else {
        return;
    };
    netns.inside(|| {
        for max in [64, 1] {
            let mut bench = Bench::new(FirstPackets { forget: FORGET, ..first(3) });
            let packet = udp(v4(1, 7), v4(2, 9), 10);
            assert_eq!(bench.up_of([packet; 10]), 3);
            assert_eq!(bench.packets_counted(&packet), [7, 0]);
            std::thread::sleep(SILENCE);
            bench.send([packet; 5]);
            bench.arrived();
            let mut has_begun = false;
            loop {
                let burst = bench.burst(0, max);
                if burst.frames.is_empty() && burst.counts.is_empty() {
                    break;
                }
                has_begun |= !burst.frames.is_empty();
                for counts in &burst.counts {
                    let most = if has_begun { 2 } else { 7 };
                    assert!(counts.packets[0] <= most, "max {max}: {counts:?}");
                }
            }
            assert!(has_begun);
            assert_eq!(bench.packets_counted(&packet), [2, 0]);
        }
    });
}
