//! The walk, packet by packet, and against a model of flows in a `HashMap`.

mod awaited;
mod behaviour;
mod clock;
mod counted;
mod depths;
mod half_open;
mod headers;
mod icmp;
mod inline;
mod labels;
mod look;
mod merged;
mod midstream;
mod ports;
mod ports_first;
mod rules;
mod samples;
mod servers;
mod services;
mod settings;
mod tasks;
mod truths;

use crate::BURST_MAX;
use std::collections::HashMap;

use cring::{Consumer, Label, Source, ring};
use proptest::prelude::*;

use super::*;
use crate::Volume;
use crate::config::Effect;
use crate::hash::HashKind;
use crate::record::{EndReason, FlowRecord, Record};
use crate::wire;
use crate::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use crate::{DepthConfig, Settings, TaskConfig};

const SECOND_US: i64 = 1_000_000;

/// A task of three classes that is asked about every flow, after these numbers of packets.
fn task(ks: &[usize], sure: u16) -> TaskConfig {
    let depth = |&k: &usize| DepthConfig { k, sure, contradicts: None };
    TaskConfig {
        midstream: true,
        depths: ks.iter().map(depth).collect(),
        ..TaskConfig::lengths(1, 3)
    }
}

fn config() -> Config {
    Config {
        tasks: vec![TaskConfig { midstream: true, ..TaskConfig::lengths(3, 3) }],
        settings: Settings {
            idle_timeout_s: 30,
            closed_timeout_s: 5,
            half_open_timeout_s: 0,
            established_timeout_s: 0,
            active_timeout_s: 0,
            end_on_fin_rst: true,
            actions: Actions::of_dscp(&[Some(46), None, None]),
        },
        hash: HashKind::Keyed { seed: 1 },
        max_flows: 64,
        buckets: 8,
        effect: Effect::PacketTime { delay_us: 0 },
        record_series: crate::SeriesShare::ALL,
        flow_id_first: 0,
        flow_id_step: 1,
        inside: crate::Inside::default(),
        expects_counts: false,
        behaviour: None,
        servers: None,
        samples: crate::SeriesShare::NONE,
        measured: Default::default(),
    }
}

/// A TCP packet between two numbered hosts.
#[derive(Clone, Copy, Debug)]
struct Tcp {
    time_us: i64,
    from: u8,
    to: u8,
    flags: u8,
    payload: u8,
}

impl Tcp {
    fn bytes(self) -> Vec<u8> {
        let mut ip = vec![0x45, 0, 0, 40 + self.payload, 0, 0, 0, 0, 64, wire::TCP, 0, 0];
        ip.extend([10, 0, 0, self.from, 10, 0, 0, self.to]);
        ip.extend([0, 80, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, self.flags, 0, 0, 0, 0, 0, 0]);
        ip.resize(ip.len() + usize::from(self.payload), 0);
        ip
    }
}

fn tcp(time_us: i64, from: u8, to: u8, flags: u8) -> Tcp {
    Tcp { time_us, from, to, flags, payload: 0 }
}

/// A manager, the consumer of its ring, and its records.
struct Bench<P: Part = ()> {
    manager: Manager<P>,
    ring: Consumer<Slot>,
    records: Vec<Record>,
    fates: Vec<Fate>,
}

impl Bench {
    fn new(config: Config) -> Bench {
        let (producer, ring) = ring(64);
        Bench {
            manager: Manager::new(config, producer).unwrap(),
            ring,
            records: Vec::new(),
            fates: Vec::new(),
        }
    }
}

impl<P: Part> Bench<P> {
    /// Walks one burst; returns its bytes as they leave.
    fn burst(&mut self, packets: &[Tcp]) -> Vec<u8> {
        let frames = packets.iter().map(|packet| (packet.time_us, packet.bytes()));
        self.frames(&frames.collect::<Vec<_>>())
    }

    /// The same of packets' times and bytes.
    fn frames(&mut self, frames: &[(i64, Vec<u8>)]) -> Vec<u8> {
        let mut data = Vec::new();
        let mut burst = Vec::new();
        for &(time_us, ref bytes) in frames {
            burst.push(Packet {
                at: data.len(),
                captured: bytes.len() as u32,
                wire: u32::MAX,
                link: 101,
                time_us,
                rss: None,
                gso: Gso::NONE,
            });
            data.extend(bytes);
        }
        self.manager.burst(&mut data, &burst, 0, &mut self.fates);
        data
    }

    fn verdicts(&self) -> Vec<Verdict> {
        self.fates.iter().map(|fate| fate.verdict).collect()
    }

    /// Answers every waiting series with `label`.
    fn answer(&mut self, label: Label) -> usize {
        let labels = self.manager.labels();
        let waiting = self.ring.waiting();
        for at in 0..waiting {
            let flow = self.ring.get(at).flow;
            let _ = labels.word(0, flow.index).decide(flow.generation, label);
        }
        self.ring.release(waiting);
        waiting
    }

    fn settle(&mut self) {
        let records = &mut self.records;
        self.manager.settle(u64::MAX, 0, &mut |record| records.push(record.clone()));
    }

    fn finish(&mut self) -> Vec<FlowRecord> {
        self.manager.drain();
        self.answer(CLASS_0);
        self.settle();
        assert!(self.manager.is_settled());
        self.flows()
    }

    fn flows(&self) -> Vec<FlowRecord> {
        let flow = |record: &Record| match record {
            Record::Flow(flow) => Some(flow.clone()),
            _ => None,
        };
        self.records.iter().filter_map(flow).collect()
    }

    fn labels(&self) -> usize {
        self.records.len() - self.flows().len()
    }
}

const CLASS_0: Label =
    Label::Class { class: 0, confidence: 60_000, source: Source::Model, model: 0 };

#[test]
fn the_kth_packet_emits_and_is_the_first_that_is_tagged() {
    let mut bench = Bench::new(config());
    let packets = [
        tcp(0, 1, 2, TCP_SYN),
        tcp(1, 2, 1, TCP_SYN | TCP_ACK),
        tcp(2, 1, 2, TCP_ACK),
        tcp(3, 1, 2, TCP_ACK),
    ];
    bench.burst(&packets);
    assert_eq!(
        bench.verdicts(),
        [Verdict::Unlabelled, Verdict::Unlabelled, Verdict::Labelled, Verdict::Labelled]
    );
    assert_eq!(bench.ring.waiting(), 1);
    let slot = *bench.ring.get(0);
    assert_eq!((slot.series.k(), slot.kth_us), (3, 2));
    assert_eq!((0..3).map(|i| slot.series.signed(i)).collect::<Vec<_>>(), [40, -40, 40]);
    assert_eq!(bench.fates[3].label_of, Some(slot.flow));

    let flows = bench.finish();
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].counts.packets, [3, 1]);
    assert_eq!(flows[0].counts.bytes, [120, 40]);
    assert_eq!(flows[0].reason, EndReason::Drain);
    assert!(!flows[0].midstream && !flows[0].is_one_way());
    assert_eq!(flows[0].decisions[0].unwrap().class, 0);
    assert_eq!(flows[0].series.as_ref().unwrap().offsets_us, [0, 1, 2]);
    assert_eq!(bench.labels(), 1);
    let counters = bench.manager.counters();
    let labelled = counters.labelled_by_class[0];
    assert_eq!(labelled.packets, counters.verdicts.get(Verdict::Labelled));
    assert_eq!(labelled.bytes, counters.labelled_bytes);
}

#[test]
fn a_label_that_never_comes_takes_its_promise_back() {
    let mut bench = Bench::new(config());
    let packets: Vec<Tcp> = (0..8).map(|at| tcp(at, 1, 2, TCP_ACK)).collect();
    bench.burst(&packets);
    assert_eq!(bench.manager.counters().verdicts.get(Verdict::Labelled), 6);
    bench.answer(Label::Unlabelled);
    let flows = bench.finish();
    let counters = bench.manager.counters();
    assert_eq!(flows[0].decisions[0], None);
    assert_eq!(counters.verdicts.get(Verdict::Labelled), 0);
    assert_eq!(counters.verdicts.total(), 8);
    assert_eq!((counters.labelled_bytes, counters.flow_bytes), (0, 320));
    let mut labelled = counters.labelled_by_class.iter();
    assert!(labelled.all(|labelled| *labelled == Volume::default()));
    assert_eq!(bench.manager.flows_unrecorded(), 0);
}

#[test]
fn records_wait_for_labels_in_order_and_for_the_writer() {
    let mut bench = Bench::new(config());
    bench.burst(&[
        tcp(0, 1, 2, TCP_SYN),
        tcp(0, 1, 2, 0),
        tcp(0, 1, 2, 0), // emits
        tcp(0, 3, 4, TCP_SYN),
        tcp(0, 3, 4, TCP_RST),
        tcp(1, 3, 4, TCP_SYN), // ends at once
    ]);
    bench.settle();
    assert_eq!(bench.records, []);
    bench.answer(CLASS_0);
    bench.settle();
    assert_eq!((bench.labels(), bench.flows().len()), (1, 1));
    assert_eq!(bench.flows()[0].reason, EndReason::Rst);

    bench.manager.drain();
    let records = &mut bench.records;
    bench.manager.settle(5, 0, &mut |record| records.push(record.clone()));
    assert_eq!(bench.flows().len(), 1, "packet 6 is not written yet");
    bench.settle();
    assert_eq!(bench.flows().len(), 3);
}

#[test]
fn on_arrival_packets_are_tagged_in_place_and_nothing_waits() {
    let mut bench = Bench::new(Config { effect: Effect::Arrival, ..config() });
    let packet = tcp(0, 1, 2, TCP_ACK);
    let data = bench.burst(&[packet; 4]);
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled; 4]);
    assert_eq!(data, packet.bytes().repeat(4));
    bench.settle();
    assert_eq!(bench.manager.labels_awaited(), 1);
    bench.answer(CLASS_0);
    bench.settle();
    assert_eq!(bench.manager.labels_awaited(), 0);
    let data = bench.burst(&[packet]);
    assert_eq!(bench.verdicts(), [Verdict::Labelled]);
    assert_eq!(data[1] >> 2, 46);

    bench.burst(&[tcp(0, 3, 4, 0); 3]);
    bench.manager.drain();
    bench.settle();
    assert_eq!(bench.flows().len(), 2);
    assert_eq!(bench.flows()[1].decisions[0], None);
    assert_eq!(bench.ring.waiting(), 1);
    let flow = bench.ring.get(0).flow;
    let labels = bench.manager.labels();
    let decided = labels.word(0, flow.index).decide(flow.generation, CLASS_0);
    assert!(decided.is_err(), "post-mortem");
}

#[test]
fn live_a_pause_is_swept_in_bounded_portions() {
    let mut bench = Bench::new(Config {
        effect: Effect::Arrival,
        max_flows: 1 << 14,
        buckets: 1 << 12,
        ..config()
    });
    for from in 0..100 {
        let packets: Vec<Tcp> = (100..200).map(|to| tcp(0, from, to, 0)).collect();
        bench.burst(&packets);
    }
    let mut alive = bench.manager.flows_alive();
    assert_eq!(alive, 10_000);
    // All are over at once, and each of the bursts that follow does a share of the work.
    for bursts in 1.. {
        bench.burst(&[tcp(3_600 * SECOND_US, 0, 250, 0)]);
        let ended = alive - bench.manager.flows_alive();
        assert!(ended <= 3 * BURST_MAX, "{ended} in one burst");
        alive = bench.manager.flows_alive();
        if alive == 1 {
            assert!(bursts >= 10);
            break;
        }
        assert!(bursts < 100, "{alive} flows are left");
    }
}

#[test]
fn time_passes_without_packets() {
    let mut bench = Bench::new(Config { effect: Effect::Arrival, ..config() });
    bench.burst(&[tcp(0, 1, 2, 0), tcp(0, 3, 4, 0)]);
    bench.manager.pass(20 * SECOND_US);
    assert_eq!(bench.manager.flows_alive(), 2);
    for second in 30..40 {
        bench.manager.pass(second * SECOND_US);
    }
    assert_eq!(bench.manager.flows_alive(), 0);
    bench.manager.pass(0);
    let ends: Vec<_> = bench.finish().iter().map(|flow| flow.reason).collect();
    assert_eq!(ends, [EndReason::Idle; 2]);
}

#[test]
fn flows_that_end_say_how_late_and_whether_anybody_answered() {
    let mut bench = Bench::new(Config {
        effect: Effect::Arrival,
        settings: Settings { active_timeout_s: 10, ..config().settings },
        ..config()
    });
    bench.burst(&[tcp(0, 1, 2, 0), tcp(0, 2, 1, 0), tcp(0, 3, 4, 0)]);
    // The first one's answer comes before its report, after which its counts restart.
    bench.burst(&[tcp(11 * SECOND_US, 1, 2, 0), tcp(12 * SECOND_US, 1, 2, 0)]);
    bench.settle();
    assert_eq!(bench.manager.counters().flows_one_way, 0);
    // The second is over since 30 s, the first since 42 s; a packet finds one, the end of the input
    // the other.
    bench.manager.walk.flows.clock.advance(47 * SECOND_US);
    bench.burst(&[tcp(47 * SECOND_US, 3, 4, 0)]);
    bench.finish();
    let counters = bench.manager.counters();
    assert_eq!(counters.flows_begun.by_kind()[0], ("4", "tcp", 3));
    assert_eq!(counters.flows_one_way, 2);
    // The third did not expire.
    let lag = counters.expiry_lag;
    assert_eq!(lag.flows().iter().sum::<u64>(), 2);
    assert_eq!((lag.flows()[2], lag.flows()[4]), (1, 1));
    assert_eq!(lag.sum_s(), 5.0 + 17.0);
}

#[test]
fn a_full_ring_sheds() {
    let (producer, _ring) = ring(2);
    let mut manager = Manager::new(config(), producer).unwrap();
    let mut bench = Bench::new(config());
    std::mem::swap(&mut bench.manager, &mut manager);
    for flow in 0..5 {
        bench.burst(&[tcp(0, 100 + flow, 1, 0); 3]);
    }
    let counters = bench.manager.counters();
    assert_eq!((counters.series_emitted(), counters.series_shed()), (5, 3));
    assert!(!bench.manager.has_room(1));
}

/// Each flow's series is on one ring, and none is idle; the sums of managers add up.
#[test]
fn several_rings_share_the_flows() {
    let ((first, mut left), (second, mut right)) = (ring(64), ring(64));
    let mut bench = Bench::new(config());
    bench.manager = Manager::with_rings(config(), vec![vec![first, second]]).unwrap();
    for host in 0..8 {
        bench.burst(&[tcp(0, 100 + host, 1, 0); 3]);
    }
    assert_eq!((left.waiting(), right.waiting()), (4, 4));
    assert!(Manager::with_rings(config(), Vec::new()).is_err());

    let mut sums = bench.manager.counters().clone();
    sums.merge(&bench.manager.counters().clone());
    assert_eq!((sums.verdicts.total(), sums.flows_begun.total()), (48, 16));
    assert_eq!(sums.series_emitted(), 16);
}

/// A handshake.
fn handshake(time_us: i64, client: u8, server: u8) -> [Tcp; 3] {
    [
        tcp(time_us, client, server, TCP_SYN),
        tcp(time_us, server, client, TCP_SYN | TCP_ACK),
        tcp(time_us, client, server, TCP_ACK),
    ]
}

#[test]
fn a_full_table_forwards_and_counts() {
    let mut bench = Bench::new(Config { max_flows: 4, ..config() });
    for host in 0..4 {
        bench.burst(&handshake(0, host, 99));
    }
    let packets: Vec<Tcp> = (3..6).map(|host| tcp(0, host, 99, TCP_SYN)).collect();
    bench.burst(&packets);
    assert_eq!(bench.verdicts(), [Verdict::Labelled, Verdict::TableFull, Verdict::TableFull]);
    bench.burst(&[tcp(0, 0, 99, 0)]);
    assert_eq!(bench.verdicts(), [Verdict::Labelled], "known flows go on");
    bench.burst(&[tcp(60 * SECOND_US, 5, 99, TCP_SYN)]);
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled], "silent flows made room");
    assert_eq!(bench.finish().len(), 5);
}

#[test]
fn closed_flows_linger_until_a_syn() {
    let mut bench = Bench::new(config());
    bench.burst(&[
        tcp(0, 1, 2, TCP_SYN),
        tcp(1, 1, 2, TCP_FIN),
        tcp(2, 2, 1, TCP_FIN | TCP_ACK),
        tcp(3, 1, 2, TCP_ACK),
        tcp(4, 2, 1, TCP_SYN),
        tcp(5, 2, 1, TCP_ACK),
    ]);
    let flows = bench.finish();
    assert_eq!(flows.len(), 2);
    assert_eq!((flows[0].reason, flows[0].counts.packets), (EndReason::Fin, [3, 1]));
    assert_eq!((flows[1].reason, flows[1].counts.packets), (EndReason::Drain, [2, 0]));
    assert_eq!(flows[1].flow.source.0.to_string(), "10.0.0.2");
}

#[test]
fn active_timeouts_report_what_was_added() {
    let mut bench = Bench::new(Config {
        settings: Settings { active_timeout_s: 10, idle_timeout_s: 0, ..config().settings },
        ..config()
    });
    for second in 0..=35 {
        bench.burst(&[tcp(second * SECOND_US, 1, 2, TCP_ACK)]);
        bench.answer(CLASS_0);
        bench.settle();
    }
    let flows = bench.finish();
    let seen: Vec<_> = flows.iter().map(|flow| (flow.reason, flow.counts.packets[0])).collect();
    assert_eq!(
        seen,
        [
            (EndReason::Active, 10),
            (EndReason::Active, 10),
            (EndReason::Active, 10),
            (EndReason::Drain, 6)
        ]
    );
    assert_eq!(flows.iter().filter(|flow| flow.is_final()).count(), 1);
    assert_eq!(flows[0].last_us, 9 * SECOND_US);
    assert!(flows.iter().all(|flow| flow.decisions[0].is_some()));
}

/// Flows as a plain map: what the manager should record.
#[derive(Default)]
struct Model {
    flows: HashMap<(u8, u8), (FlowSeen, u64)>,
    ended: Vec<(u64, FlowSeen, EndReason)>,
    begun: u64,
    now_us: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct FlowSeen {
    forward_from: u8,
    packets: [u64; 2],
    last_us: i64,
    touched_us: i64,
    fins: [bool; 2],
    rst: bool,
}

impl FlowSeen {
    fn is_closed(&self) -> bool {
        self.rst || self.fins == [true; 2]
    }

    fn reason(&self, otherwise: EndReason) -> EndReason {
        match self {
            FlowSeen { rst: true, .. } => EndReason::Rst,
            seen if seen.is_closed() => EndReason::Fin,
            _ => otherwise,
        }
    }
}

impl Model {
    fn walk(&mut self, packet: Tcp) {
        self.now_us = self.now_us.max(packet.time_us);
        let key = (packet.from.min(packet.to), packet.from.max(packet.to));
        if let Some(&(seen, id)) = self.flows.get(&key) {
            let silent_s =
                self.now_us.div_euclid(SECOND_US) - seen.touched_us.div_euclid(SECOND_US);
            let is_over = silent_s > 30 || (seen.is_closed() && silent_s > 5);
            let opens = packet.flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
            if is_over || (seen.is_closed() && opens) {
                self.ended.push((id, seen, seen.reason(EndReason::Idle)));
                self.flows.remove(&key);
            }
        }
        let (seen, _) = self.flows.entry(key).or_insert_with(|| {
            self.begun += 1;
            (FlowSeen { forward_from: packet.from, ..FlowSeen::default() }, self.begun - 1)
        });
        let direction = usize::from(packet.from != seen.forward_from);
        seen.packets[direction] += 1;
        (seen.last_us, seen.touched_us) = (packet.time_us, self.now_us);
        let was_closed = seen.is_closed();
        seen.fins[direction] |= packet.flags & TCP_FIN != 0;
        seen.rst |= packet.flags & TCP_RST != 0 && !was_closed;
    }

    fn finish(mut self) -> Vec<(u64, u8, [u64; 2], i64, EndReason)> {
        let now_s = self.now_us.div_euclid(SECOND_US);
        for (_, (seen, id)) in self.flows.drain() {
            let silent_s = now_s - seen.touched_us.div_euclid(SECOND_US);
            let otherwise = if silent_s > 30 { EndReason::Idle } else { EndReason::Drain };
            self.ended.push((id, seen, seen.reason(otherwise)));
        }
        self.ended.sort_by_key(|&(id, ..)| id);
        self.ended
            .into_iter()
            .map(|(id, seen, reason)| (id, seen.forward_from, seen.packets, seen.last_us, reason))
            .collect()
    }
}

fn packet() -> impl Strategy<Value = Tcp> {
    let step_us = prop_oneof![
        8 => 0i64..3 * SECOND_US,
        2 => 20 * SECOND_US..40 * SECOND_US,
        1 => -2 * SECOND_US..0,
        // Around the wrap of 16 bits of seconds.
        1 => 65_500 * SECOND_US..65_600 * SECOND_US,
        1 => 32_700 * SECOND_US..32_800 * SECOND_US,
    ];
    let flags = prop::sample::select(vec![
        0,
        TCP_ACK,
        TCP_SYN,
        TCP_SYN | TCP_ACK,
        TCP_FIN,
        TCP_FIN | TCP_ACK,
        TCP_RST,
    ]);
    (step_us, 0u8..3, 0u8..3, flags)
        .prop_map(|(time_us, from, to, flags)| tcp(time_us, from, to, flags))
}

proptest! {
    #[test]
    fn flows_are_those_of_a_plain_map(
        packets in prop::collection::vec(packet(), 1..120),
        burst in 1usize..20,
        buckets in prop::sample::select(vec![1usize, 2, 8]),
        k in 1usize..6,
    ) {
        let mut packets = packets;
        let mut now_us = 1_000_000 * SECOND_US;
        for packet in &mut packets {
            now_us += packet.time_us;
            packet.time_us = now_us;
        }
        let tasks = vec![TaskConfig { midstream: true, ..TaskConfig::lengths(k, 3) }];
        let mut bench = Bench::new(Config { buckets, max_flows: 8 * buckets, tasks, ..config() });
        let mut model = Model { now_us: i64::MIN, ..Model::default() };
        for burst in packets.chunks(burst) {
            bench.burst(burst);
            bench.answer(CLASS_0);
            bench.settle();
            burst.iter().for_each(|&packet| model.walk(packet));
        }
        let mut said: Vec<_> = bench.finish().into_iter().map(|flow| {
            let std::net::IpAddr::V4(source) = flow.flow.source.0 else { panic!("v4 only") };
            let labelled = flow.counts.packets_total() >= k as u64;
            assert_eq!(flow.decisions[0].is_some(), labelled);
            (flow.flow.flow_id, source.octets()[3], flow.counts.packets, flow.last_us, flow.reason)
        }).collect();
        said.sort_by_key(|&(id, ..)| id);
        prop_assert_eq!(said, model.finish());
        let counters = bench.manager.counters();
        prop_assert_eq!(counters.verdicts.total(), packets.len() as u64);
        prop_assert_eq!(counters.flows_begun.total(), counters.flows_ended.iter().sum::<u64>());
    }

    /// Records do not depend on how the packets were cut into bursts.
    #[test]
    fn bursts_change_nothing(
        packets in prop::collection::vec(packet(), 1..120),
        burst in 1usize..64,
        active_timeout_s in 0u32..4,
    ) {
        let mut now_us = 0;
        let packets: Vec<Tcp> = packets.into_iter().map(|packet| {
            now_us += packet.time_us;
            Tcp { time_us: now_us, ..packet }
        }).collect();
        let run = |burst: usize| {
            let settings = Settings { active_timeout_s, ..config().settings };
            let mut bench = Bench::new(Config { settings, ..config() });
            for packets in packets.chunks(burst) {
                bench.burst(packets);
                bench.answer(CLASS_0);
                bench.settle();
            }
            bench.finish();
            (bench.records, bench.manager.counters().verdicts)
        };
        prop_assert_eq!(run(1), run(burst));
    }
}
