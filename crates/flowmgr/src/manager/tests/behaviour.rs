//! Behaviours in the walk: the packet at which `bulk` comes, samples by packet time and live,
//! questions and records.

use super::*;
use crate::behaviour::{Behaviour, Bounds};
use crate::key::UDP;
use crate::rules::{RuleAnswer, RuleMemory, RulesChange};

const BOUNDS: Bounds = Bounds {
    bulk_bytes: 1000,
    small_bytes: 300,
    interactive_packets_max: 30,
    realtime_packets_min: 10,
    hold_s: 3,
    idle_s: 5,
};

fn behaving(effect: Effect) -> Config {
    Config { effect, behaviour: Some(BOUNDS), record_series: crate::SeriesShare::NONE, ..config() }
}

/// With a bound of 20,000 bytes.
fn larger(effect: Effect) -> Config {
    Config { behaviour: Some(Bounds { bulk_bytes: 20_000, ..BOUNDS }), ..behaving(effect) }
}

const BY_PACKET_TIME: Effect = Effect::PacketTime { delay_us: 0 };

/// A packet of `length` bytes at the IP layer.
fn sized(time_us: i64, from: u8, to: u8, length: u8) -> Tcp {
    Tcp { payload: length - 40, ..tcp(time_us, from, to, TCP_ACK) }
}

/// A packet of UDP with a payload of 100 bytes.
fn udp(bench: &mut Bench, time_us: i64, from: u8, to: u8) {
    let mut data = vec![0x45, 0, 0, 128, 0, 0, 0, 0, 64, UDP, 0, 0];
    data.extend([10, 0, 0, from, 10, 0, 0, to, 0, 80, 0, 80, 0, 108, 0, 0]);
    data.resize(128, 0);
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

fn now(bench: &Bench, flow: u32) -> Behaviour {
    bench.manager.walk.behaviour(flow)
}

fn changes(bench: &Bench) -> Vec<Behaviour> {
    let change = |record: &Record| match record {
        Record::Behaviour(change) => Some(change.behaviour),
        _ => None,
    };
    bench.records.iter().filter_map(change).collect()
}

#[test]
fn the_packet_that_crosses_the_bound_makes_a_flow_bulk() {
    for effect in [BY_PACKET_TIME, Effect::Arrival] {
        let mut bench = Bench::new(behaving(effect));
        bench.burst(&[sized(0, 1, 2, 250); 4]);
        assert_eq!(now(&bench, 0), Behaviour::None, "1000 bytes are not more");
        bench.burst(&[sized(1, 2, 1, 40)]);
        assert_eq!(now(&bench, 0), Behaviour::Bulk);
        let flows = bench.finish();
        assert_eq!(flows[0].behaviour, Behaviour::Bulk);
        assert_eq!(flows[0].counts.bytes, [1000, 40]);
    }
}

proptest! {
    /// However packets go and records come in between: `bulk` starts with the first packet beyond
    /// the bound, and counts are the same as without behaviours, or where they are forgone.
    #[test]
    fn bulk_comes_with_exactly_that_packet_and_counts_stay(
        packets in prop::collection::vec((prop::bool::ANY, 40u8..=255), 1..300),
        bulk_bytes in 1u32..40_000,
        active_timeout_s in 0u32..3,
    ) {
        let with = |behaviour| {
            let mut config = Config { behaviour, ..behaving(Effect::Arrival) };
            config.settings.active_timeout_s = active_timeout_s;
            Bench::new(config)
        };
        let bounds = Some(Bounds { bulk_bytes, ..BOUNDS });
        let (mut bench, mut plain, mut forgone) = (with(bounds), with(None), with(bounds));
        forgone.manager.forgo_behaviours();
        let mut bytes = 0;
        for (at, &(forward, length)) in packets.iter().enumerate() {
            let (from, to) = if forward { (1, 2) } else { (2, 1) };
            let packet = sized(at as i64 * 20_000, from, to, length);
            bench.burst(&[packet]);
            plain.burst(&[packet]);
            forgone.burst(&[packet]);
            bytes += u32::from(length);
            let is_bulk = now(&bench, 0) == Behaviour::Bulk;
            // Slow flows of small packets both ways do not count towards the bound.
            prop_assert!(is_bulk == (bytes > bulk_bytes) || changes_without_bulk(&bench));
        }
        let clear = |mut flow: FlowRecord| { flow.behaviour = Behaviour::None; flow };
        let flows: Vec<_> = bench.finish().into_iter().map(clear).collect();
        prop_assert_eq!(&flows, &plain.finish());
        prop_assert_eq!(flows, forgone.finish());
        let counted = forgone.manager.counters().behaviours;
        prop_assert_eq!(counted.iter().map(|it| it.packets).sum::<u64>(), 0);
        let counted = bench.manager.counters().behaviours;
        prop_assert_eq!(counted.iter().map(|it| it.bytes).sum::<u64>(), u64::from(bytes));
        prop_assert_eq!(counted.iter().map(|it| it.packets).sum::<u64>(), packets.len() as u64);
    }
}

fn changes_without_bulk(bench: &Bench) -> bool {
    let counted = bench.manager.counters().behaviours;
    counted[Behaviour::Interactive as usize].flows > 0
}

/// UDP packets of a flow, `per_s` a second in each direction.
fn exchange(bench: &mut Bench, hosts: (u8, u8), from_s: i64, seconds: i64, per_s: i64) {
    for at in 0..seconds * per_s {
        let time_us = from_s * SECOND_US + at * SECOND_US / per_s;
        udp(bench, time_us, hosts.0, hosts.1);
        udp(bench, time_us + 10, hosts.1, hosts.0);
    }
}

#[test]
fn a_steady_exchange_is_realtime_whatever_its_bytes_and_bulk_once_it_bursts() {
    let mut bench = Bench::new(larger(BY_PACKET_TIME));
    exchange(&mut bench, (1, 2), 0, 3, 20);
    assert_eq!(now(&bench, 0), Behaviour::None);
    exchange(&mut bench, (1, 2), 3, 20, 20);
    assert_eq!(now(&bench, 0), Behaviour::Realtime, "117,760 bytes");
    exchange(&mut bench, (1, 2), 23, 1, 100);
    assert_eq!(now(&bench, 0), Behaviour::Bulk, "25,600 in a second");
}

#[test]
fn a_slow_exchange_is_interactive_and_idle_when_it_stops() {
    let mut bench = Bench::new(larger(BY_PACKET_TIME));
    exchange(&mut bench, (1, 2), 0, 1, 2);
    // Silent seconds in between neither help nor harm.
    exchange(&mut bench, (1, 2), 3, 1, 2);
    exchange(&mut bench, (1, 2), 5, 2, 2);
    assert_eq!(now(&bench, 0), Behaviour::Interactive);
    for second in 7..11 {
        udp(&mut bench, second * SECOND_US, 3, 4);
        assert_eq!(now(&bench, 0), Behaviour::Interactive);
    }
    udp(&mut bench, 11 * SECOND_US, 3, 4);
    assert_eq!(now(&bench, 0), Behaviour::Idle);
    assert_eq!(now(&bench, 1), Behaviour::None, "nobody answers it");
    exchange(&mut bench, (1, 2), 12, 1, 2);
    udp(&mut bench, 13 * SECOND_US, 3, 4);
    assert_eq!(now(&bench, 0), Behaviour::Interactive);
    let flows = bench.finish();
    assert_eq!(flows[0].behaviour, Behaviour::Interactive);
    let counted = bench.manager.counters().behaviours;
    assert_eq!(counted[Behaviour::Idle as usize].bytes, 0);
    assert_eq!(counted[Behaviour::Interactive as usize].flows, 2);
}

/// Packet by packet, in bursts, and in several managers that share the flows.
#[test]
fn by_packet_time_behaviours_repeat_whatever_bursts_and_layout() {
    let mut packets = Vec::new();
    for at in 0..2000i64 {
        let host = 1 + 2 * (at * 7 % 5) as u8;
        let time_us = at * 17_000;
        let is_paused = host == 3 && at > 500;
        let length = if host == 5 { 250 } else { 60 };
        if !is_paused {
            packets.push(sized(time_us, host, host + 1, length));
            packets.push(sized(time_us + 5, host + 1, host, 60));
        }
    }
    let end_of = |bursts: usize, hosts: &dyn Fn(u8) -> bool| {
        let mut bench = Bench::new(behaving(BY_PACKET_TIME));
        let own: Vec<Tcp> = packets.iter().copied().filter(|it| hosts(it.from)).collect();
        own.chunks(bursts).for_each(|burst| {
            bench.burst(burst);
            bench.answer(CLASS_0);
        });
        let mut flows = bench.finish();
        flows.sort_by_key(|flow| flow.flow.first_us);
        let row = |flow: &FlowRecord| (flow.flow.first_us, flow.behaviour);
        let counted = bench.manager.counters().behaviours;
        (flows.iter().map(row).collect::<Vec<_>>(), counted)
    };
    let (all, counted) = end_of(1, &|_| true);
    assert!(all.iter().any(|row| row.1 == Behaviour::Interactive));
    assert!(all.iter().any(|row| row.1 == Behaviour::Bulk));
    assert_eq!(end_of(64, &|_| true), (all.clone(), counted));
    let is_first = |host: u8| host <= 4;
    let (mut parts, one) = end_of(32, &is_first);
    let (others, other) = end_of(7, &|host| !is_first(host));
    parts.extend(others);
    parts.sort_by_key(|row| row.0);
    assert_eq!(parts, all);
    for (number, sum) in counted.iter().enumerate() {
        let flows = |counted: [crate::BehaviourCounters; 5]| counted[number].flows;
        assert_eq!(flows(one) + flows(other), sum.flows, "{number}");
    }
}

#[test]
fn live_the_sweep_samples_and_changes_are_told() {
    let mut bench = Bench::new(larger(Effect::Arrival));
    for tenth in 0..60 {
        udp(&mut bench, tenth * 100_000, 1, 2);
        udp(&mut bench, tenth * 100_000 + 50_000, 2, 1);
        bench.settle();
    }
    exchange(&mut bench, (1, 2), 6, 4, 3);
    bench.settle();
    for tenth in 0..100 {
        bench.manager.pass(10 * SECOND_US + tenth * 100_000);
        bench.settle();
    }
    assert_eq!(changes(&bench), [Behaviour::Realtime, Behaviour::Interactive, Behaviour::Idle]);
    assert_eq!(bench.finish()[0].behaviour, Behaviour::Interactive);
}

#[test]
fn counts_from_elsewhere_cross_the_bound_at_once() {
    let mut bench = Bench::new(Config { expects_counts: true, ..behaving(Effect::Arrival) });
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    let counted = |packets| super::counted::counted(10, packets);
    bench.manager.count(&counted([9, 0]));
    assert_eq!(now(&bench, 0), Behaviour::None, "940 bytes");
    bench.manager.count(&counted([10, 0]));
    assert_eq!(now(&bench, 0), Behaviour::Bulk);
    assert!(!bench.manager.is_settled(), "sinks have to be told");
    bench.settle();
    assert!(bench.manager.is_settled());
    assert_eq!(changes(&bench), [Behaviour::Bulk]);
    // Far beyond what the counter holds.
    let mut bench = Bench::new(Config { expects_counts: true, ..behaving(Effect::Arrival) });
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    bench.manager.count(&counted([0, 1 << 20]));
    assert_eq!(now(&bench, 0), Behaviour::Bulk);
    assert_eq!(bench.finish()[0].counts.bytes, [40, 1000 << 20]);
}

fn by_behaviour(question: &crate::RuleQuestion) -> RuleAnswer {
    let is_bulk = question.behaviour == Behaviour::Bulk;
    RuleAnswer {
        rule: is_bulk.then_some(0),
        action: Action::of_dscp(is_bulk.then_some(1)),
        ..RuleAnswer::default()
    }
}

#[test]
fn a_rule_for_bulk_acts_from_the_packet_behind_the_one_that_crosses() {
    // Live, a question raised by a flow's first packet is answered after the burst, by what the
    // flow does then.
    for (effect, all_bursts) in [(BY_PACKET_TIME, &[1, 3, 64][..]), (Effect::Arrival, &[1, 3])] {
        for &bursts in all_bursts {
            let mut bench = Bench::new(behaving(effect));
            let flows = bench.manager.max_flows();
            bench.manager.change_rules(&mut RulesChange {
                has_behaviours: true,
                is_renumbered: true,
                memory: Some(RuleMemory::new(flows).unwrap()),
                ..RulesChange::default()
            });
            let packets: Vec<Tcp> = (0..10).map(|at| sized(at, 1, 2, 250)).collect();
            let mut dscps = Vec::new();
            for burst in packets.chunks(bursts) {
                bench.ruled(burst, by_behaviour);
                dscps.extend(bench.fates.iter().map(|fate| fate.by_rule().dscp));
            }
            let expected: Vec<_> = (0..10).map(|at| (at > 4).then_some(1)).collect();
            assert_eq!(dscps, expected, "{effect:?}, bursts of {bursts}");
            assert_eq!(bench.finish()[0].rule, Some(0));
        }
    }
}
