//! What headers say in addition to the key.

use super::*;

const PSH: u8 = 0x08;

/// A packet with a type of service.
fn marked(packet: Tcp, tos: u8) -> (i64, Vec<u8>) {
    let mut bytes = packet.bytes();
    bytes[1] = tos;
    (packet.time_us, bytes)
}

proptest! {
    /// Once they are known, usual flags are not noted again.
    #[test]
    fn no_flag_of_either_direction_is_lost(
        packets in prop::collection::vec((any::<bool>(), any::<u8>()), 1..40),
    ) {
        let mut bench = Bench::new(config());
        let mut seen = [0; 2];
        // No FIN and RST, so that it stays one flow.
        for (time_us, (is_reverse, flags)) in (0..).zip(packets) {
            let opens = if time_us == 0 { TCP_SYN } else { 0 };
            let flags = flags & !(TCP_FIN | wire::TCP_RST | TCP_SYN) | opens;
            let is_reverse = is_reverse && time_us != 0;
            let (from, to) = if is_reverse { (2, 1) } else { (1, 2) };
            seen[usize::from(is_reverse)] |= flags;
            bench.burst(&[tcp(time_us, from, to, flags)]);
        }
        let [flow] = bench.finish().try_into().expect("one flow");
        prop_assert_eq!(flow.tcp_flags(), seen);
    }
}

#[test]
fn flags_are_of_all_packets_and_the_type_of_service_is_of_the_first_as_it_came() {
    let mut bench = Bench::new(Config { effect: Effect::Arrival, ..config() });
    bench.frames(&[
        marked(tcp(0, 1, 2, TCP_SYN), 0x28),
        marked(tcp(1, 2, 1, TCP_SYN | TCP_ACK), 0x4b),
        marked(tcp(2, 1, 2, TCP_ACK), 0),
    ]);
    bench.answer(CLASS_0);
    bench.frames(&[
        marked(tcp(3, 1, 2, TCP_ACK | PSH), 0x50),
        marked(tcp(4, 2, 1, TCP_ACK), 0x60),
        marked(tcp(5, 1, 2, TCP_ACK | TCP_FIN), 0),
        // Another flow, whose label does not come.
        marked(tcp(6, 3, 4, TCP_ACK), 0x20),
    ]);
    let [labelled, other] = bench.finish().try_into().expect("two flows");
    assert_eq!(labelled.tcp_flags(), [0x1b, TCP_SYN | TCP_ACK]);
    assert_eq!((labelled.headers.tos, labelled.headers.dscp_set()), ([0x28, 0x4b], Some(46)));
    assert_eq!(other.tcp_flags(), [TCP_ACK, 0]);
    assert_eq!((other.headers.tos, other.headers.dscp_set()), ([0x20, 0], None));
}

/// A packet that answers a flow with a label has its type of service from before it is tagged.
#[test]
fn an_answer_is_read_before_it_is_tagged() {
    let tasks = vec![task(&[1], 0)];
    let mut bench = Bench::new(Config { effect: Effect::Arrival, tasks, ..config() });
    bench.frames(&[marked(tcp(0, 1, 2, TCP_SYN), 0)]);
    bench.answer(CLASS_0);
    let sent = bench.frames(&[marked(tcp(1, 2, 1, TCP_SYN | TCP_ACK), 0x20)]);
    assert_eq!(sent[1] >> 2, 46);
    let [flow] = bench.finish().try_into().expect("one flow");
    assert_eq!(flow.headers.tos, [0, 0x20]);
}

/// IPv6 has it in four bits of two bytes. A report says it, and the next record says it again.
#[test]
fn every_record_of_a_flow_says_it_and_ipv6_has_it_too() {
    let mut config = config();
    config.settings.active_timeout_s = 1;
    let mut bench = Bench::new(config);
    let datagram = |second: i64, ends: [u8; 2]| {
        let mut bytes = vec![0x6b, 0x8f, 0xff, 0xff, 0, 8, wire::UDP, 64];
        ends.iter().for_each(|end| bytes.extend([&[0xfd; 15][..], &[*end]].concat()));
        bytes.extend([0, 80, 0, 80, 0, 8, 0, 0]);
        (second * SECOND_US, bytes)
    };
    for second in 0..3 {
        bench.frames(&[datagram(second, [1, 2]), datagram(second, [2, 1])]);
        bench.answer(CLASS_0);
        bench.settle();
    }
    let records = bench.finish();
    assert!(records.len() > 1);
    assert!(records.iter().all(|it| it.headers.tos == [0xb8; 2]));
    assert!(records.iter().all(|it| it.tcp_flags() == [0; 2]));
}

/// A report does not make the packet behind it the first.
#[test]
fn the_type_of_service_stays_over_reports() {
    let mut config = config();
    config.settings.active_timeout_s = 1;
    let mut bench = Bench::new(config);
    for (second, tos) in [(0, 0x28), (3, 0x50), (6, 0)] {
        bench.frames(&[marked(tcp(second * SECOND_US, 1, 2, TCP_SYN), tos)]);
        bench.answer(CLASS_0);
        bench.settle();
    }
    let records = bench.finish();
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|it| it.headers.tos == [0x28, 0]));
}
