//! Half-open flows: what establishes one, how long each kind lasts, who makes room for whom.

use super::*;

fn live() -> Config {
    Config {
        effect: Effect::Arrival,
        max_flows: 8,
        settings: Settings {
            half_open_timeout_s: 10,
            established_timeout_s: 600,
            ..config().settings
        },
        ..config()
    }
}

fn half_open_after(packets: &[Tcp]) -> usize {
    let mut bench = Bench::new(live());
    bench.burst(packets);
    assert_eq!(bench.manager.flows_alive(), 1);
    bench.manager.flows_half_open()
}

#[test]
fn a_handshake_establishes_and_less_does_not() {
    let [syn, answer, ack] = handshake(0, 1, 2);
    let reset = tcp(0, 1, 2, TCP_RST);
    let refused = tcp(0, 2, 1, TCP_RST | TCP_ACK);
    for half_open in [
        &[syn][..],
        &[syn, syn, syn],
        &[syn, answer],
        &[syn, answer, answer],
        &[syn, answer, syn],
        &[syn, answer, reset],
        &[syn, refused],
        // One direction of a connection.
        &[syn, ack, ack, ack],
        &[ack, ack],
    ] {
        assert_eq!(half_open_after(half_open), 1, "{half_open:?}");
    }
    for established in [
        &[syn, answer, ack][..],
        &[syn, syn, answer, answer, ack],
        // Begun before fenxi was, or with the answer.
        &[ack, tcp(0, 2, 1, TCP_ACK), ack],
        &[answer, ack, tcp(0, 2, 1, TCP_ACK)],
    ] {
        assert_eq!(half_open_after(established), 0, "{established:?}");
    }
}

/// Answered pings make room for connections, and take none from them.
#[test]
fn answers_to_pings_establish_nothing() {
    let mut bench = Bench::new(live());
    bench.burst(&handshake(0, 1, 2));
    for host in 10..40 {
        let ping = [[host, 2], [2, host]].map(|[from, to]| icmp::echo(1, from, to));
        bench.frames(&ping);
    }
    assert_eq!((bench.manager.flows_alive(), bench.manager.flows_half_open()), (8, 7));
    let begun = bench.manager.counters().flows_begun.total();
    bench.burst(&handshake(2, 3, 4));
    assert_eq!(bench.manager.counters().flows_begun.total(), begun + 1);
    assert_eq!(are_there(&mut bench, 3, 1..2), [false]);
    assert_eq!(bench.manager.flows_half_open(), 6);
}

/// A report restarts the counts, but an answer counted before it stays one.
#[test]
fn an_answer_before_a_report_is_an_answer() {
    let mut bench = Bench::new(Config {
        settings: Settings { half_open_timeout_s: 20, active_timeout_s: 10, ..live().settings },
        ..live()
    });
    let [syn, answer, _] = handshake(0, 1, 2);
    bench.burst(&[syn, answer]);
    bench.burst(&[tcp(11 * SECOND_US, 1, 2, TCP_ACK)]);
    bench.settle();
    assert_eq!(bench.flows()[0].reason, EndReason::Active);
    assert_eq!(bench.manager.flows_half_open(), 0);
}

/// The flows of these clients with host 99 that are in the table: a further packet begins none of
/// them.
fn are_there(bench: &mut Bench, time_us: i64, clients: std::ops::Range<u8>) -> Vec<bool> {
    let begun = |bench: &Bench| bench.manager.counters().flows_begun.total();
    clients
        .map(|client| {
            let before = begun(bench);
            bench.burst(&[tcp(time_us, client, 99, TCP_ACK)]);
            begun(bench) == before
        })
        .collect()
}

#[test]
fn an_established_flow_in_use_is_never_evicted_for_a_half_open_one() {
    let mut bench = Bench::new(live());
    for client in 0..7 {
        bench.burst(&handshake(0, client, 99));
    }
    for client in 100..200 {
        bench.burst(&[tcp(SECOND_US, client, 99, TCP_SYN)]);
        assert_eq!(bench.verdicts(), [Verdict::Unlabelled]);
        bench.settle();
    }
    let evictions = bench.manager.counters().evictions;
    assert_eq!(evictions.half_open, 99);
    assert_eq!(bench.manager.flows_alive(), 8);
    assert_eq!(are_there(&mut bench, SECOND_US, 0..7), [true; 7]);
    let counters = bench.manager.counters();
    assert_eq!(counters.evictions, evictions);
    assert_eq!(counters.flows_ended[EndReason::Evicted as usize], 99);
    let ends = bench.finish();
    assert_eq!(ends.len(), 107);
    let half_open = ends.iter().filter(|flow| flow.is_half_open).count();
    assert_eq!(half_open, 100);
}

/// Flows that are silent for longer than the idle timeout are evicted while there are few half-open
/// ones, so that these do not evict each other; half-open ones go first once they hold a quarter of
/// the table.
#[test]
fn idle_connections_make_room_until_a_quarter_is_half_open() {
    let mut bench = Bench::new(live());
    for client in 0..8 {
        bench.burst(&handshake(0, client, 99));
    }
    let now_us = 60 * SECOND_US;
    bench.burst(&[tcp(now_us, 0, 99, TCP_ACK)]);
    for client in 100..110 {
        bench.burst(&[tcp(now_us, client, 99, TCP_SYN)]);
        assert_eq!(bench.verdicts(), [Verdict::Unlabelled]);
        bench.settle();
    }
    let evictions = bench.manager.counters().evictions;
    assert_eq!((evictions.idle, evictions.half_open), (3, 7));
    assert_eq!(bench.manager.flows_half_open(), 3);
    assert_eq!(are_there(&mut bench, now_us, 0..1), [true], "it was in use");
}

#[test]
fn closed_flows_make_room_and_keep_their_reason() {
    let mut bench = Bench::new(live());
    for client in 0..8 {
        bench.burst(&handshake(0, client, 99));
    }
    bench.burst(&[tcp(0, 3, 99, TCP_RST), tcp(0, 100, 99, TCP_SYN)]);
    assert_eq!(bench.manager.counters().evictions.closed, 1);
    bench.settle();
    let reasons: Vec<_> = bench.flows().iter().map(|flow| flow.reason).collect();
    assert_eq!(reasons, [EndReason::Rst]);
}

#[test]
fn a_full_chain_takes_new_flows_at_the_expense_of_half_open_ones() {
    // One bucket, so all flows are of one chain.
    let mut bench =
        Bench::new(Config { buckets: 8, max_flows: 64, hash: HashKind::Fenxi, ..live() });
    for client in 0..=254 {
        // Source and destination differ only in bits that the hash does not see.
        bench.burst(&[tcp(0, client, client ^ 1, TCP_SYN)]);
        bench.settle();
    }
    let counters = bench.manager.counters();
    assert_eq!(counters.verdicts.get(Verdict::TableFull), 0);
    assert!(counters.evictions.half_open > 60);
}

/// Ends of silent flows, by the second in which a sweep finds them.
fn lifetime_s(packets: &[Tcp]) -> i64 {
    let mut bench = Bench::new(live());
    bench.burst(packets);
    for second in 0..2000 {
        bench.manager.pass(second * SECOND_US);
        if bench.manager.flows_alive() == 0 {
            return second;
        }
    }
    panic!("it never ended");
}

#[test]
fn each_kind_of_flow_has_its_timeout() {
    let [syn, answer, ack] = handshake(0, 1, 2);
    let fin = tcp(0, 1, 2, TCP_FIN | TCP_ACK);
    let rounds = |timeout_s: i64| timeout_s + 1..=timeout_s + 7;
    for (packets, timeout_s) in [
        (&[syn][..], 10),
        (&[syn, answer], 10),
        // One way, but with a series: on a link that carries one direction all flows are such.
        (&[syn, ack, ack], 30),
        (&[syn, answer, ack], 600),
        // After a FIN nothing keeps a flow alive.
        (&[syn, answer, ack, fin], 30),
        (&[syn, answer, ack, fin, tcp(0, 2, 1, TCP_FIN)], 5),
        (&[syn, tcp(0, 2, 1, TCP_RST)], 5),
    ] {
        let lifetime_s = lifetime_s(packets);
        assert!(rounds(timeout_s).contains(&lifetime_s), "{lifetime_s} s for {packets:?}");
    }
}

#[test]
fn a_connection_keeps_its_label_between_keep_alives_and_a_new_one_does_not_inherit_it() {
    let mut bench = Bench::new(live());
    bench.burst(&handshake(0, 1, 2));
    bench.answer(CLASS_0);
    for minute in 1..10 {
        bench.burst(&[tcp(minute * 120 * SECOND_US, 1, 2, TCP_ACK)]);
        assert_eq!(bench.verdicts(), [Verdict::Labelled], "minute {}", 2 * minute);
    }
    // The client left without closing and uses the port again.
    bench.burst(&handshake(1200 * SECOND_US, 1, 2));
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled; 3]);
    assert_eq!(bench.manager.counters().flows_begun.total(), 2);
    // A SYN that comes twice is no new connection.
    bench.burst(&[tcp(1201 * SECOND_US, 1, 2, TCP_SYN)]);
    assert_eq!(bench.manager.counters().flows_begun.total(), 2);
}

#[test]
fn live_series_of_half_open_flows_leave_half_of_the_ring() {
    let shed = |effect| {
        let config = Config { effect, max_flows: 64, ..live() };
        let (producer, _ring) = ring(8);
        let mut bench = Bench::new(config.clone());
        bench.manager = Manager::new(config, producer).unwrap();
        for client in 0..8 {
            bench.burst(&[tcp(0, 100 + client, 99, TCP_SYN); 3]);
        }
        for client in 0..8 {
            bench.burst(&handshake(0, client, 99));
        }
        let counters = bench.manager.counters();
        assert_eq!(counters.series_emitted(), 16);
        (counters.series_shed(), counters.series_shed_half_open())
    };
    assert_eq!(shed(Effect::Arrival), (8, 3));
    assert_eq!(shed(Effect::PacketTime { delay_us: 0 }), (8, 0));
}
