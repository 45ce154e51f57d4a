//! Several ports, each of which sees the packets that a router forwards.

use super::*;

/// The same packets at two ports, in bursts that come in any order: each flow counts once.
#[test]
fn a_flow_counts_at_the_port_where_it_was_first_seen() {
    let mut bench = Bench::new(config());
    let packets: Vec<Tcp> =
        (0..8).flat_map(|at| [tcp(at, 1, 2, TCP_ACK), tcp(at, 2, 1, TCP_ACK)]).collect();
    for (at, burst) in packets.chunks(4).enumerate() {
        // Which port is read first differs from burst to burst.
        let ports = if at % 2 == 0 { [1, 2] } else { [2, 1] };
        for port in ports {
            bench.manager.receive_from(port);
            bench.burst(burst);
            assert_eq!(bench.verdicts()[0] == Verdict::SeenElsewhere, port == 2);
        }
        bench.answer(CLASS_0);
    }
    let [flow] = bench.finish().try_into().expect("one flow");
    assert_eq!(flow.counts.packets, [8, 8]);
    assert_eq!((flow.headers.in_port, flow.headers.out_port), (1, 2));
    let counters = bench.manager.counters();
    assert_eq!(counters.verdicts.get(Verdict::SeenElsewhere), 16);
    assert_eq!(counters.verdicts.total(), 32);
    assert_eq!(counters.flow_bytes, 16 * 40);
    assert_eq!(counters.series_emitted(), 1);
}

/// Once the flow is over, the next packet begins one at the port where it is seen.
#[test]
fn a_flow_that_is_over_belongs_to_no_port() {
    let mut bench = Bench::new(config());
    bench.manager.receive_from(1);
    bench.burst(&[tcp(0, 1, 2, TCP_SYN), tcp(1, 2, 1, TCP_RST)]);
    bench.manager.receive_from(2);
    bench.burst(&[tcp(2, 2, 1, TCP_ACK)]);
    assert_eq!(bench.verdicts(), [Verdict::SeenElsewhere]);
    // The port is used again.
    bench.burst(&[tcp(3, 1, 2, TCP_SYN), tcp(4, 1, 2, TCP_ACK)]);
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled; 2]);
    bench.burst(&[tcp(40 * SECOND_US, 1, 2, TCP_ACK)]);
    bench.manager.receive_from(1);
    bench.burst(&[tcp(80 * SECOND_US, 1, 2, TCP_ACK)]);
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled]);
    assert_eq!(bench.finish().len(), 4);
}
