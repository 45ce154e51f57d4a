//! Flows whose beginning was not seen.

use super::*;

fn untrained(effect: Effect) -> Config {
    Config { tasks: vec![TaskConfig::lengths(3, 3)], effect, ..config() }
}

/// Five packets both ways, the first one with these flags.
fn flow_with_first(flags: u8) -> Vec<Tcp> {
    let turns = [(1, 2), (2, 1), (1, 2), (2, 1), (1, 2)];
    let packets = turns.into_iter().enumerate();
    packets
        .map(|(at, (from, to))| tcp(at as i64, from, to, if at == 0 { flags } else { TCP_ACK }))
        .collect()
}

#[test]
fn flows_that_begin_midstream_are_not_asked_about() {
    for effect in [Effect::PacketTime { delay_us: 0 }, Effect::Arrival] {
        for flags in [0, TCP_ACK, TCP_SYN | TCP_ACK, TCP_FIN] {
            let mut bench = Bench::new(untrained(effect));
            bench.burst(&flow_with_first(flags));
            assert_eq!(bench.answer(CLASS_0), 0, "flags {flags}");
            bench.settle();
            // Nor is it ever.
            bench.burst(&flow_with_first(TCP_ACK));
            assert_eq!(bench.verdicts(), [Verdict::Unlabelled; 5], "flags {flags}");
            assert_eq!(bench.answer(CLASS_0), 0);
            let flows = bench.finish();
            assert_eq!((flows.len(), bench.labels()), (1, 0));
            assert!(flows[0].midstream && flows[0].decisions[0].is_none());
            assert_eq!(flows[0].counts.packets, [6, 4]);
            // What was seen of it is still in its record.
            assert_eq!(flows[0].series.as_ref().unwrap().lengths, [40, -40, 40]);
            let counters = bench.manager.counters();
            assert_eq!((counters.flows_midstream, counters.series_withheld()), (1, 1));
            assert_eq!((counters.series_emitted(), counters.flows_short), (0, 0));
            let verdicts = counters.verdicts;
            assert_eq!((verdicts.get(Verdict::Unlabelled), verdicts.total()), (10, 10));
            assert_eq!(counters.labelled_bytes, 0);
        }
    }
}

#[test]
fn flows_seen_from_their_syn_on_are_asked_about() {
    for effect in [Effect::PacketTime { delay_us: 0 }, Effect::Arrival] {
        let mut bench = Bench::new(untrained(effect));
        bench.burst(&flow_with_first(TCP_SYN));
        assert_eq!(bench.answer(CLASS_0), 1);
        bench.burst(&[tcp(9, 1, 2, TCP_ACK)]);
        assert_eq!(bench.verdicts(), [Verdict::Labelled]);
        let flows = bench.finish();
        assert!(!flows[0].midstream && flows[0].decisions[0].is_some());
        let counters = bench.manager.counters();
        assert_eq!((counters.flows_midstream, counters.series_withheld()), (0, 0));
    }
}

/// Where the model was trained for it.
#[test]
fn a_model_may_want_flows_that_begin_midstream() {
    let mut bench = Bench::new(config());
    bench.burst(&flow_with_first(TCP_SYN | TCP_ACK));
    assert_eq!(bench.answer(CLASS_0), 1);
    let flows = bench.finish();
    assert!(flows[0].midstream && flows[0].decisions[0].is_some());
    let counters = bench.manager.counters();
    assert_eq!((counters.flows_midstream, counters.series_withheld()), (1, 0));
}

/// The next flow in the entry of one that was not asked about is asked about.
#[test]
fn an_entry_keeps_nothing_of_a_flow_that_was_not_asked_about() {
    let mut bench =
        Bench::new(Config { max_flows: 1, ..untrained(Effect::PacketTime { delay_us: 0 }) });
    bench.burst(&flow_with_first(TCP_ACK));
    bench.burst(&[tcp(10, 1, 2, TCP_RST)]);
    bench.settle();
    bench.burst(&flow_with_first(TCP_SYN));
    assert_eq!(bench.answer(CLASS_0), 1);
    let flows = bench.finish();
    let midstream: Vec<_> = flows.iter().map(|flow| flow.midstream).collect();
    assert_eq!(midstream, [true, false]);
    assert!(flows[0].decisions[0].is_none() && flows[1].decisions[0].is_some());
}

/// An active timeout does not take back promises that were never made.
#[test]
fn reports_of_flows_that_were_not_asked_about_balance() {
    let mut bench = Bench::new(Config {
        settings: Settings {
            active_timeout_s: 10,
            ..untrained(Effect::PacketTime { delay_us: 0 }).settings
        },
        ..untrained(Effect::PacketTime { delay_us: 0 })
    });
    for second in 0..25 {
        bench.burst(&[tcp(second * SECOND_US, 1, 2, TCP_ACK)]);
        bench.settle();
    }
    let flows = bench.finish();
    assert_eq!(flows.len(), 3);
    let verdicts = bench.manager.counters().verdicts;
    assert_eq!((verdicts.get(Verdict::Unlabelled), verdicts.total()), (25, 25));
}
