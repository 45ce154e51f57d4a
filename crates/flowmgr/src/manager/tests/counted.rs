//! Packets that the kernel counted: what a flow has of them.

use super::*;
use crate::key::UDP;

fn counting() -> Config {
    Config {
        effect: Effect::Arrival,
        inside: crate::Inside::default(),
        expects_counts: true,
        ..config()
    }
}

/// The key of the flow between two hosts of [`tcp`].
fn key(protocol: u8, one: u8, other: u8) -> crate::Key {
    let end = |host: u8| ([10, 0, 0, host].into(), 80);
    crate::Key::from_ends(protocol, end(one), end(other))
}

/// The TCP flow between hosts 1 and 2 with `packets` from each since the counter began; 100 bytes
/// each from host 1, and 1000 from host 2.
pub(super) fn counted(last_us: i64, packets: [u64; 2]) -> Counted {
    Counted {
        key: key(wire::TCP, 1, 2),
        packets,
        bytes: [100 * packets[0], 1000 * packets[1]],
        generation: 1,
        last_us,
    }
}

/// One packet of UDP between two hosts.
fn udp(bench: &mut Bench, time_us: i64, from: u8, to: u8) {
    let mut data = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0];
    data.extend([10, 0, 0, from, 10, 0, 0, to, 0, 80, 0, 80, 0, 8, 0, 0]);
    let packet = Packet {
        at: 0,
        captured: data.len() as u32,
        wire: u32::MAX,
        link: 101,
        time_us,
        rss: None,
        gso: Gso::NONE,
    };
    let Bench { manager, fates, .. } = bench;
    manager.burst(&mut data, &[packet], 0, fates);
}

fn only_flow(bench: &mut Bench) -> FlowRecord {
    let [flow] = bench.finish().try_into().expect("one flow");
    flow
}

/// No packet behind the label is walked, and those that the kernel forwards get the DSCP.
#[test]
fn a_label_sets_the_dscp_of_packets_that_are_counted() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_SYN), tcp(1, 2, 1, TCP_ACK), tcp(2, 1, 2, TCP_ACK)]);
    let set = |bench: &Bench| {
        let mut rows = Vec::with_capacity(crate::CHAIN_FLOWS_MAX);
        bench.manager.read_flows(0, usize::MAX, &mut rows);
        rows[0].headers.dscp_set()
    };
    assert_eq!(set(&bench), None);
    bench.answer(CLASS_0);
    assert_eq!(set(&bench), Some(46));
    assert_eq!(only_flow(&mut bench).headers.dscp_set(), Some(46));
}

#[test]
fn what_was_counted_is_added_to_the_record_by_direction() {
    for (from, to) in [(1, 2), (2, 1)] {
        let mut bench = Bench::new(counting());
        bench.burst(&[tcp(0, from, to, TCP_SYN), tcp(10, to, from, TCP_ACK)]);
        assert!(bench.manager.count(&counted(70, [5, 300])));
        assert_eq!(bench.manager.counters().flow_bytes, 80 + 300_500);
        let flow = only_flow(&mut bench);
        let mut expected = ([6, 301], [540, 300_040]);
        if from == 2 {
            expected.0.reverse();
            expected.1.reverse();
        }
        assert_eq!((flow.counts.packets, flow.counts.bytes), expected);
        assert_eq!(flow.last_us, 70);
        let counters = bench.manager.counters();
        assert_eq!(counters.verdicts.total(), 2, "none of them was walked");
        assert_eq!(counters.flows_begun.total(), 1);
        assert_eq!(counters.flows_one_way, 0);
    }
}

#[test]
fn large_counts_are_exact() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    let counted = Counted {
        packets: [10_000_000_000, 1],
        bytes: [15_000_000_000_007, 1 << 40],
        ..counted(1, [0, 0])
    };
    bench.manager.count(&counted);
    let counts = only_flow(&mut bench).counts;
    assert_eq!(counts.packets, [10_000_000_001, 1]);
    assert_eq!(counts.bytes, [15_000_000_000_047, 1 << 40]);
}

#[test]
fn what_was_told_before_is_not_added_again() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    for (at, packets) in [(5, [3, 0]), (5, [3, 0]), (6, [4, 2]), (6, [4, 2]), (5, [4, 2])] {
        assert!(bench.manager.count(&counted(at, packets)));
    }
    let flow = only_flow(&mut bench);
    assert_eq!(flow.counts.packets, [5, 2]);
    assert_eq!(flow.counts.bytes, [440, 2000]);
    assert_eq!(flow.last_us, 6);
}

/// Counts that come with a packet were read before it, and the table may be read meanwhile.
#[test]
fn counts_that_were_read_earlier_add_nothing() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    for packets in [[6, 3], [5, 2], [0, 0], [7, 1], [6, 4]] {
        assert!(bench.manager.count(&counted(5, packets)));
    }
    let flow = only_flow(&mut bench);
    assert_eq!(flow.counts.packets, [8, 4]);
    assert_eq!(flow.counts.bytes, [740, 4000]);
}

#[test]
fn a_counter_of_another_generation_began_anew() {
    // Whether the new counts are lower, the same or higher.
    for second in [[2, 0], [5, 0], [4, 9], [7, 7], [0, 0]] {
        let mut bench = Bench::new(counting());
        bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
        bench.manager.count(&counted(1, [5, 0]));
        for at in [2, 3] {
            let second = Counted { generation: 7, ..counted(at, second) };
            bench.manager.count(&second);
        }
        let counts = only_flow(&mut bench).counts;
        assert_eq!(counts.packets, [6 + second[0], second[1]], "{second:?}");
        assert_eq!(counts.bytes, [540 + 100 * second[0], 1000 * second[1]], "{second:?}");
    }
}

#[test]
fn a_flow_that_is_not_there_is_unknown() {
    let mut bench = Bench::new(counting());
    assert!(!bench.manager.count(&counted(0, [1, 1])));
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    for key in [key(UDP, 1, 2), key(wire::TCP, 1, 3)] {
        let other = Counted { key, ..counted(0, [1, 1]) };
        assert!(!bench.manager.count(&other));
    }
    assert!(bench.manager.count(&counted(0, [0, 0])), "it is known");
    assert_eq!(only_flow(&mut bench).counts.packets, [1, 0]);
    assert_eq!(bench.manager.counters().flow_bytes, 40);
}

#[test]
fn nothing_is_added_to_a_flow_that_has_ended() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_SYN), tcp(1, 1, 2, TCP_RST)]);
    bench.manager.count(&counted(2, [4, 0]));
    // The ports are used again: a flow of its own, with a counter that begins again.
    bench.burst(&[tcp(3, 1, 2, TCP_SYN)]);
    bench.manager.count(&counted(4, [9, 0]));
    bench.settle();
    bench.manager.drain();
    assert!(!bench.manager.count(&counted(5, [20, 0])));
    bench.settle();
    let flows = bench.flows();
    let packets: Vec<_> = flows.iter().map(|flow| flow.counts.packets[0]).collect();
    assert_eq!(packets, [6, 10]);
    assert_eq!(flows[0].reason, EndReason::Rst);
}

/// An entry is reused by a later flow, which must not inherit the first one's counts.
#[test]
fn a_new_flow_inherits_no_counts() {
    let mut bench = Bench::new(counting());
    for (round, packets) in [(0, 50), (1, 60), (2, 10)] {
        let time_us = round * 100 * SECOND_US;
        bench.burst(&[tcp(time_us, 1, 2, TCP_SYN)]);
        bench.manager.count(&counted(time_us + 1, [packets, 0]));
        bench.settle();
    }
    let flows = bench.finish();
    let packets: Vec<_> = flows.iter().map(|flow| flow.counts.packets[0]).collect();
    assert_eq!(packets, [51, 61, 11]);
}

#[test]
fn counts_of_another_port_are_left_out() {
    let mut bench = Bench::new(counting());
    bench.manager.receive_from(1);
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    bench.manager.receive_from(2);
    assert!(bench.manager.count(&counted(8, [7, 7])), "the flow is known");
    bench.manager.receive_from(1);
    assert!(bench.manager.count(&counted(5, [3, 1])));
    bench.manager.receive_from(2);
    assert!(bench.manager.count(&counted(9, [8, 8])));
    bench.manager.receive_from(1);
    bench.manager.count(&counted(6, [4, 1]));
    let flow = only_flow(&mut bench);
    assert_eq!((flow.counts.packets, flow.last_us), ([5, 1], 6));
}

#[test]
fn a_label_counts_for_what_is_counted_once_it_is_there() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_ACK); 3]);
    bench.manager.count(&counted(1, [4, 0]));
    let labelled = |bench: &Bench| {
        let counters = bench.manager.counters();
        let volume = counters.labelled_by_class[0];
        assert_eq!(volume.bytes, counters.labelled_bytes);
        (volume.packets, volume.bytes)
    };
    assert_eq!(labelled(&bench), (0, 0));
    assert_eq!(bench.answer(CLASS_0), 1);
    bench.manager.count(&counted(2, [5, 2]));
    assert_eq!(labelled(&bench), (3, 2100));
    bench.burst(&[tcp(3, 1, 2, TCP_ACK)]);
    assert_eq!(bench.verdicts(), [Verdict::Labelled]);
    bench.manager.count(&counted(4, [5, 3]));
    assert_eq!(labelled(&bench), (5, 3140));
    let flow = only_flow(&mut bench);
    assert_eq!(flow.counts.packets, [9, 3]);
    assert_eq!(flow.decisions[0].unwrap().class, 0);
}

#[test]
fn a_flow_without_a_label_has_no_labelled_bytes() {
    for label in [Label::Unlabelled, Label::None] {
        let mut bench = Bench::new(counting());
        bench.burst(&[tcp(0, 1, 2, TCP_ACK); 3]);
        if label == Label::Unlabelled {
            bench.answer(label);
        }
        bench.manager.count(&counted(1, [4, 4]));
        assert_eq!(bench.manager.counters().labelled_bytes, 0);
    }
}

#[test]
fn packets_that_were_counted_are_no_elements_of_a_series() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_ACK); 2]);
    bench.manager.count(&counted(1, [40, 40]));
    assert_eq!(bench.ring.waiting(), 0);
    bench.burst(&[tcp(2, 1, 2, TCP_ACK)]);
    assert_eq!(bench.ring.waiting(), 1);
    let series = bench.ring.get(0).series;
    let lengths: Vec<_> = (0..series.k()).map(|i| series.signed(i)).collect();
    assert_eq!(lengths, [40; 3]);
}

/// As `half_open::live`, with counts.
fn half_open() -> Config {
    Config {
        settings: Settings {
            half_open_timeout_s: 10,
            established_timeout_s: 600,
            ..config().settings
        },
        ..counting()
    }
}

#[test]
fn a_counted_answer_answers_a_flow_of_udp() {
    let mut bench = Bench::new(half_open());
    udp(&mut bench, 0, 1, 2);
    let of_udp = |packets| Counted { key: key(UDP, 1, 2), ..counted(1, packets) };
    assert!(bench.manager.count(&of_udp([3, 0])));
    assert_eq!(bench.manager.flows_half_open(), 1);
    assert!(bench.manager.count(&of_udp([3, 1])));
    assert_eq!(bench.manager.flows_half_open(), 0);
    assert_eq!(bench.manager.flows_alive(), 1);
    // It matters neither who began it nor which end is the low one.
    let mut bench = Bench::new(half_open());
    udp(&mut bench, 0, 2, 1);
    bench.manager.count(&of_udp([0, 1]));
    assert_eq!(bench.manager.flows_half_open(), 1);
    bench.manager.count(&of_udp([1, 1]));
    assert_eq!(bench.manager.flows_half_open(), 0);
}

#[test]
fn counted_packets_both_ways_answer_a_flow_of_tcp() {
    for from_low in [true, false] {
        let (client, server) = if from_low { (1, 2) } else { (2, 1) };
        let turned = |[forward, reverse]: [u64; 2]| match from_low {
            true => [forward, reverse],
            false => [reverse, forward],
        };
        let half_open_after = |walked: &[Tcp], told: &[[u64; 2]]| {
            let mut bench = Bench::new(half_open());
            bench.burst(walked);
            for packets in told {
                assert!(bench.manager.count(&counted(1, turned(*packets))));
            }
            assert_eq!(bench.manager.flows_alive(), 1);
            bench.manager.flows_half_open()
        };
        let [syn, answer, _] = handshake(0, client, server);
        assert_eq!(half_open_after(&[syn], &[[5, 0]]), 1);
        assert_eq!(half_open_after(&[syn], &[[0, 5]]), 1);
        assert_eq!(half_open_after(&[syn], &[[5, 0], [5, 1]]), 1);
        assert_eq!(half_open_after(&[syn, answer], &[[0, 4]]), 1);
        assert_eq!(half_open_after(&[syn, answer], &[[1, 0]]), 0);
        assert_eq!(half_open_after(&[syn], &[[1, 1]]), 0);
        assert_eq!(half_open_after(&[syn], &[[0, 1], [1, 1]]), 0);
        assert_eq!(half_open_after(&[syn], &[[5, 0], [5, 1], [6, 1]]), 0);
    }
}

/// As for packets that are walked: a report restarts the counts, but an answer counted before it
/// stays one.
#[test]
fn an_answer_before_a_report_is_an_answer_to_counted_packets_too() {
    let mut bench = Bench::new(Config {
        settings: Settings {
            half_open_timeout_s: 20,
            active_timeout_s: 10,
            ..half_open().settings
        },
        ..half_open()
    });
    let [syn, answer, _] = handshake(0, 1, 2);
    bench.burst(&[syn, answer]);
    bench.manager.pass(11 * SECOND_US);
    bench.manager.count(&counted(11 * SECOND_US, [1, 0]));
    bench.settle();
    assert_eq!(bench.flows()[0].reason, EndReason::Active);
    assert_eq!(bench.manager.flows_half_open(), 0);
}

/// In which second a sweep finds that the flow is over.
fn ends_in_second(bench: &mut Bench) -> i64 {
    for second in 0..2000 {
        bench.manager.pass(second * SECOND_US);
        if bench.manager.flows_alive() == 0 {
            return second;
        }
    }
    panic!("it never ended");
}

/// Counts come up to two seconds late, so flows live as much longer.
#[test]
fn a_flow_is_idle_from_its_last_counted_packet_on() {
    // A round of the sweep takes as long as the shortest timeout: 5 s, and the two more.
    let rounds = |timeout_s: i64| timeout_s + 1..=timeout_s + 8;
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_ACK)]);
    let second = ends_in_second(&mut bench);
    assert!(rounds(32).contains(&second), "{second}");

    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_ACK)]);
    for second in 1..=100 {
        bench.manager.pass(second * SECOND_US);
        // Told a second late.
        let last_us = (second - 1) * SECOND_US;
        assert!(bench.manager.count(&counted(last_us, [second as u64, 0])));
        bench.settle();
    }
    assert_eq!(bench.manager.flows_alive(), 1);
    let second = ends_in_second(&mut bench);
    assert!(rounds(99 + 32).contains(&second), "{second}");
    let flow = only_flow(&mut bench);
    assert_eq!((flow.reason, flow.last_us), (EndReason::Idle, 99 * SECOND_US));
    assert_eq!(flow.counts.packets, [101, 0]);
}

/// The same counts, reported again, are no sign of life.
#[test]
fn counts_without_new_packets_keep_no_flow_alive() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_ACK)]);
    for second in 1..=60 {
        bench.manager.pass(second * SECOND_US);
        let is_known = bench.manager.count(&counted(SECOND_US, [9, 0]));
        assert_eq!(is_known, bench.manager.flows_alive() == 1);
    }
    assert_eq!(bench.manager.flows_alive(), 0);
}

#[test]
fn closed_and_half_open_flows_live_two_seconds_longer_too() {
    let [syn, answer, ack] = handshake(0, 1, 2);
    let reset = tcp(0, 2, 1, TCP_RST);
    let rounds = |timeout_s: i64| timeout_s + 1..=timeout_s + 8;
    for (packets, timeout_s) in [(&[syn][..], 12), (&[syn, reset], 7), (&[syn, answer, ack], 602)] {
        let mut bench = Bench::new(half_open());
        bench.burst(packets);
        let second = ends_in_second(&mut bench);
        assert!(rounds(timeout_s).contains(&second), "{second} s");
    }
}

#[test]
fn counted_packets_bring_reports_of_flows_that_go_on() {
    let mut bench = Bench::new(Config {
        settings: Settings { active_timeout_s: 10, ..config().settings },
        ..counting()
    });
    bench.burst(&[tcp(0, 1, 2, TCP_ACK)]);
    for second in 1..=35 {
        let time_us = second * SECOND_US;
        bench.manager.pass(time_us);
        bench.manager.count(&counted(time_us, [second as u64, 0]));
        bench.settle();
    }
    let flows = bench.finish();
    let seen: Vec<_> =
        flows.iter().map(|flow| (flow.reason, flow.counts.packets[0], flow.last_us)).collect();
    assert_eq!(
        seen,
        [
            (EndReason::Active, 10, 9 * SECOND_US),
            (EndReason::Active, 10, 19 * SECOND_US),
            (EndReason::Active, 10, 29 * SECOND_US),
            (EndReason::Drain, 6, 35 * SECOND_US)
        ]
    );
    let bytes: u64 = flows.iter().map(|flow| flow.counts.bytes[0]).sum();
    assert_eq!(bytes, bench.manager.counters().flow_bytes);
}

#[test]
fn counts_that_nobody_expects_are_not_added() {
    let mut bench = Bench::new(Config {
        inside: crate::Inside::default(),
        expects_counts: false,
        ..counting()
    });
    assert!(!bench.manager.count(&counted(0, [1, 1])));
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    assert!(bench.manager.count(&counted(5, [3, 3])));
    let flow = only_flow(&mut bench);
    assert_eq!((flow.counts.packets, flow.last_us), ([1, 0], 0));
    assert_eq!(bench.manager.counters().flow_bytes, 40);
}

/// A packet that was walked later is the last one, though counts of earlier ones arrive after it.
#[test]
fn late_counts_do_not_turn_time_back() {
    let mut bench = Bench::new(counting());
    bench.burst(&[tcp(0, 1, 2, TCP_SYN), tcp(5 * SECOND_US, 1, 2, TCP_ACK)]);
    bench.manager.count(&counted(4 * SECOND_US, [7, 0]));
    let flow = only_flow(&mut bench);
    assert_eq!((flow.counts.packets[0], flow.last_us), (9, 5 * SECOND_US));
}

proptest! {
    /// However counts are cut into reports, a flow has all packets once, and so have its records.
    #[test]
    fn sums_do_not_depend_on_when_counts_are_told(
        steps in prop::collection::vec((0u64..400, 0u64..400, any::<bool>(), any::<bool>()), 1..40),
        active_timeout_s in 0u32..4,
    ) {
        let settings = Settings { active_timeout_s, ..config().settings };
        let mut bench = Bench::new(Config { settings, ..counting() });
        bench.burst(&[tcp(0, 2, 1, TCP_SYN)]);
        let (mut since, mut all) = ([0u64; 2], [0, 1]);
        let (mut time_us, mut generation) = (0, 1);
        for (low, high, begins_anew, is_walked) in steps {
            time_us += SECOND_US / 2;
            bench.manager.pass(time_us);
            if is_walked {
                bench.burst(&[tcp(time_us, 1, 2, TCP_ACK)]);
                all[0] += 1;
            }
            generation += u32::from(begins_anew);
            since = match begins_anew {
                true => [low, high],
                false => [since[0] + low, since[1] + high],
            };
            all = [all[0] + low, all[1] + high];
            let told = Counted { generation, ..counted(time_us, since) };
            prop_assert!(bench.manager.count(&told));
            bench.settle();
        }
        let flows = bench.finish();
        let sum = |at: usize| flows.iter().map(|flow| flow.counts.packets[at]).sum::<u64>();
        // Host 2 began it, so forward is from the high end.
        prop_assert_eq!([sum(1), sum(0)], all);
    }
}
