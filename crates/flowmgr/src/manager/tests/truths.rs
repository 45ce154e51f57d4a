//! Labels that are bands: what counts as the truth, and which flows have one.

use super::*;
use crate::{Target, TargetOf};

/// One task of the bands 0, 1 (from 100 bytes) and `unknown`, asked after two packets; each packet
/// has 40 bytes.
fn bands(effect: Effect) -> Config {
    let target = Some(Target { of: TargetOf::Volume, edges: vec![100] });
    Config { tasks: vec![TaskConfig { target, ..task(&[2], 0) }], effect, ..config() }
}

const fn band(class: u16) -> Label {
    Label::Class { class, confidence: 60_000, source: Source::Model, model: 0 }
}

/// One flow of `packets` packets a second apart, the last with these flags.
fn send(bench: &mut Bench, packets: i64, last: u8) {
    for at in 0..packets {
        let flags = if at + 1 == packets { last } else { TCP_ACK };
        bench.burst(&[tcp(at * SECOND_US, 1, 2, flags)]);
    }
}

fn truth(bench: &mut Bench) -> Option<u16> {
    let flows = bench.finish();
    flows.last().and_then(|flow| flow.decisions[0]).and_then(|decision| decision.truth)
}

#[test]
fn what_comes_behind_the_deciding_packet_is_the_truth() {
    for (packets, expected) in [(2, 0), (4, 0), (5, 1)] {
        let mut bench = Bench::new(bands(Effect::PacketTime { delay_us: 0 }));
        send(&mut bench, packets, TCP_RST);
        bench.answer(band(1));
        assert_eq!(truth(&mut bench), Some(expected), "{packets} packets");
        let score = &bench.manager.counters().scores[0].all;
        assert_eq!(score.flows_of(1)[usize::from(expected)], 1);
        assert_eq!((score.judged(), score.bytes[1]), (1, 40 * (packets as u64 - 2)));
    }
}

#[test]
fn an_active_timeout_takes_nothing_from_it() {
    let mut config = bands(Effect::PacketTime { delay_us: 0 });
    config.settings.active_timeout_s = 2;
    let mut bench = Bench::new(config);
    send(&mut bench, 9, TCP_RST);
    bench.answer(band(0));
    assert_eq!(truth(&mut bench), Some(1));
    assert!(bench.flows().len() > 2, "it was reported");
    assert_eq!(bench.manager.counters().scores[0].all.bytes, [280, 0, 0]);
    let reported = bench.flows().into_iter().filter(|flow| !flow.is_final());
    assert!(reported.filter_map(|flow| flow.decisions[0]).all(|it| it.truth.is_none()));
}

#[test]
fn a_flow_that_was_cut_counts_only_where_its_band_is_known() {
    for (packets, said, expected) in [(4, 0, None), (4, 1, None), (9, 0, Some(1)), (9, 1, Some(1))]
    {
        let mut bench = Bench::new(bands(Effect::PacketTime { delay_us: 0 }));
        send(&mut bench, packets, TCP_ACK);
        bench.answer(band(said));
        assert_eq!(truth(&mut bench), expected, "{packets} packets, {said}");
        let score = &bench.manager.counters().scores[0].all;
        let judged = u64::from(expected.is_some());
        assert_eq!((score.judged(), score.cut), (judged, 1 - judged));
    }
}

#[test]
fn a_duration_ends_with_the_last_packet() {
    let mut config = bands(Effect::PacketTime { delay_us: 0 });
    let edges = vec![2 * SECOND_US as u64];
    config.tasks[0].target = Some(Target { of: TargetOf::Duration, edges });
    for (packets, expected) in [(3, 0), (4, 1)] {
        let mut bench = Bench::new(config.clone());
        send(&mut bench, packets, TCP_RST);
        bench.answer(band(0));
        assert_eq!(truth(&mut bench), Some(expected), "{packets} packets");
    }
}

#[test]
fn only_a_label_that_was_there_in_time_counts() {
    let mut bench = Bench::new(bands(Effect::Arrival));
    send(&mut bench, 4, TCP_RST);
    bench.manager.drain();
    bench.settle();
    assert_eq!(bench.flows()[0].decisions[0], None);
    assert_eq!(bench.manager.counters().scores[0], crate::TaskScores::new(3));
    // An entry's next flow has none of the last one's.
    let mut bench = Bench::new(bands(Effect::PacketTime { delay_us: 0 }));
    send(&mut bench, 1, TCP_RST);
    assert_eq!(truth(&mut bench), None);
    assert_eq!(bench.manager.counters().scores[0].all.judged(), 0);
    let without = Bench::new(config());
    assert!(without.manager.counters().scores.is_empty());
}
