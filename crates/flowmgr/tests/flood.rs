//! Floods from forged addresses, in packet time: 100,000 packets per second beside ordinary
//! connections. The ordinary ones get their series, of exactly the packets that they sent, whatever
//! the size of the table.

#![allow(clippy::expect_used, reason = "the helpers of tests may panic as the tests do")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;

use cring::{Consumer, Label, Series, Slot, Source, ring};
use flowmgr::hash::HashKind;
use flowmgr::record::Record;
use flowmgr::verdict::Verdict;
use flowmgr::{Actions, Config, Effect, Manager, Packet, Settings, TaskConfig};

const SECOND_US: i64 = 1_000_000;
const K: usize = 10;
const BURST: usize = 128;
/// Between two packets of a flood: 100,000 per second.
const FLOOD_GAP_US: i64 = 10;
/// Between two ordinary connections: 200 per second.
const HONEST_GAP_US: i64 = 5_000;
/// Between two rounds of the stand-in for analytics.
const ROUND_US: i64 = 1_000;
/// Ordinary connections come from here, a flood from everywhere else.
const HONEST: u32 = 0x0a00_0000;
const SERVER: u32 = 0xc633_6401;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// What the flood is made of.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// SYNs that nobody answers.
    Syn,
    /// SYNs to an open port: each is answered by SYN+ACK to an address that does not exist.
    SynAnswered,
    /// SYNs to a closed port: each is answered by RST.
    SynRefused,
    /// Flows of this many UDP packets, one way.
    Udp(u32),
}

/// A packet to come. Ordered by time, then by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time_us: i64,
    number: u64,
    source: (u32, u16),
    destination: (u32, u16),
    protocol: u8,
    flags: u8,
    payload: u16,
}

impl Event {
    fn write(&self, data: &mut Vec<u8>) -> Packet {
        let at = data.len();
        let header = if self.protocol == TCP { 40 } else { 28 };
        let length = header + self.payload;
        data.extend([0x45, 0]);
        data.extend(length.to_be_bytes());
        data.extend([0, 0, 0, 0, 64, self.protocol, 0, 0]);
        data.extend(self.source.0.to_be_bytes());
        data.extend(self.destination.0.to_be_bytes());
        data.extend(self.source.1.to_be_bytes());
        data.extend(self.destination.1.to_be_bytes());
        match self.protocol {
            TCP => data.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, self.flags, 0, 0, 0, 0, 0, 0]),
            _ => data.extend([0, 8 + self.payload as u8, 0, 0]),
        }
        data.resize(at + usize::from(length), 0);
        Packet {
            at,
            captured: u32::from(length),
            wire: u32::MAX,
            link: 101,
            time_us: self.time_us,
            rss: None,
            gso: flowmgr::Gso::NONE,
        }
    }
}

/// The packets of ordinary connections and of a flood, in order of time.
struct Traffic {
    flood: Flood,
    events: BinaryHeap<Reverse<Event>>,
    numbers: u64,
    draws: u64,
}

impl Traffic {
    fn draw(&mut self) -> u32 {
        // SplitMix64.
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.draws;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u32
    }

    fn push(&mut self, mut event: Event) {
        event.number = self.numbers;
        self.numbers += 1;
        self.events.push(Reverse(event));
    }

    /// A connection: handshake, K - 3 packets of data both ways, the end. Each answer takes 1 to
    /// 100 ms.
    fn connection(&mut self, number: u32, mut time_us: i64) {
        let client = (HONEST + number, 40_000);
        let delay_us = 1_000 + i64::from(self.draw() % 99_000);
        let exchange = [(0, SYN, 0), (1, SYN | ACK, 0), (0, ACK, 0)];
        let data = (0..K as u16 - 3).map(|i| (usize::from(i % 3 != 0), ACK, length_of(number, i)));
        let end = [(0, FIN | ACK, 0), (1, FIN | ACK, 0), (0, ACK, 0)];
        for (direction, flags, payload) in exchange.into_iter().chain(data).chain(end) {
            let ends = [client, (SERVER, 443)];
            self.push(Event {
                time_us,
                number: 0,
                source: ends[direction],
                destination: ends[1 - direction],
                protocol: TCP,
                flags,
                payload,
            });
            time_us += delay_us;
        }
    }

    fn forged(&mut self, packet: u32, time_us: i64) {
        let per_flow = match self.flood {
            Flood::Udp(packets) => packets,
            _ => 1,
        };
        // 100 flows are under way at a time.
        let flow = packet / (100 * per_flow) * 100 + packet % 100;
        let source = (0x4000_0000 + flow.wrapping_mul(0x9e37_79b1) % 0x4000_0000, flow as u16);
        let event = Event {
            time_us,
            number: 0,
            source,
            destination: (SERVER, 443),
            protocol: TCP,
            flags: SYN,
            payload: 0,
        };
        let answer = Event {
            time_us: time_us + 50,
            source: event.destination,
            destination: source,
            ..event
        };
        match self.flood {
            Flood::Syn => self.push(event),
            Flood::SynAnswered => {
                self.push(event);
                self.push(Event { flags: SYN | ACK, ..answer });
            }
            Flood::SynRefused => {
                self.push(event);
                self.push(Event { flags: RST | ACK, ..answer });
            }
            Flood::Udp(_) => self.push(Event { protocol: UDP, flags: 0, payload: 20, ..event }),
        }
    }
}

/// Bytes of data packet `i` of a connection: so its series tells it apart.
fn length_of(connection: u32, i: u16) -> u16 {
    100 + (connection.wrapping_mul(31).wrapping_add(u32::from(i) * 7919) % 900) as u16
}

/// The label that a series gets: nearly any other series gets another one.
fn class_of(lengths: impl Iterator<Item = i32>) -> u16 {
    let hash = lengths.fold(17u64, |hash, length| {
        (hash ^ length as u32 as u64).wrapping_mul(0x100_0000_01b3) ^ hash >> 29
    });
    (hash % 4_000) as u16
}

fn class_of_connection(connection: u32) -> u16 {
    let data = (0..K as u16 - 3).map(|i| {
        let length = 40 + i32::from(length_of(connection, i));
        if i % 3 == 0 { length } else { -length }
    });
    class_of([40, -40, 40].into_iter().chain(data))
}

fn class_of_series(series: &Series) -> u16 {
    class_of(series.signed_lengths())
}

/// What happened to the ordinary connections.
#[derive(Debug, Default)]
struct Outcome {
    connections: u32,
    labelled: u32,
    wrong: u32,
    entries_most: usize,
    shed_half_open: u64,
    evicted: u64,
}

/// A table of `max_flows` flows, and analytics that answer `series_per_s` series per second, for
/// `seconds` seconds.
fn run(flood: Flood, max_flows: usize, series_per_s: usize, seconds: i64) -> Outcome {
    let (producer, mut ring) = ring(4096);
    let config = Config {
        tasks: vec![TaskConfig { midstream: true, ..TaskConfig::lengths(K, 4_001) }],
        settings: Settings {
            idle_timeout_s: 30,
            closed_timeout_s: 5,
            half_open_timeout_s: 10,
            established_timeout_s: 2100,
            active_timeout_s: 0,
            end_on_fin_rst: true,
            actions: Actions::of_dscp(&[None; 4_001]),
        },
        hash: HashKind::Keyed { seed: 3 },
        max_flows,
        buckets: max_flows / 4,
        effect: Effect::Arrival,
        record_series: flowmgr::SeriesShare::NONE,
        flow_id_first: 0,
        flow_id_step: 1,
        inside: flowmgr::Inside::default(),
        expects_counts: false,
        behaviour: None,
        servers: None,
        samples: flowmgr::SeriesShare::NONE,
        measured: Default::default(),
    };
    let mut manager = Manager::new(config, producer).expect("the settings are in range");
    let mut traffic = Traffic { flood, events: BinaryHeap::new(), numbers: 0, draws: 1 };
    let mut labels = HashMap::new();
    let mut outcome = Outcome::default();
    let (mut forged, mut answered_us) = (0, 0);
    let (mut data, mut packets, mut fates) = (Vec::new(), Vec::new(), Vec::new());
    let (mut honest_us, mut forged_us) = (0, 0);
    // Connections begin until a while before the end, so that each comes to its K-th packet.
    let last_us = (seconds - 2) * SECOND_US;
    let mut now_us = 0;
    while now_us < seconds * SECOND_US {
        now_us += ROUND_US;
        while forged_us < now_us {
            traffic.forged(forged, forged_us);
            (forged, forged_us) = (forged + 1, forged_us + FLOOD_GAP_US);
        }
        while honest_us < now_us.min(last_us) {
            traffic.connection(outcome.connections, honest_us);
            outcome.connections += 1;
            honest_us += HONEST_GAP_US;
        }
        loop {
            let is_due = |event: &Reverse<Event>| event.0.time_us < now_us;
            if packets.len() == BURST || !traffic.events.peek().is_some_and(is_due) {
                if packets.is_empty() {
                    break;
                }
                manager.burst(&mut data, &packets, 0, &mut fates);
                data.clear();
                packets.clear();
                manager.settle(u64::MAX, 0, &mut |record| note(record, &mut labels));
                let waiting = manager.flows_alive() + manager.flows_unrecorded();
                outcome.entries_most = outcome.entries_most.max(waiting);
            } else if let Some(Reverse(event)) = traffic.events.pop() {
                packets.push(event.write(&mut data));
            }
        }
        let most = ((now_us - answered_us) * series_per_s as i64 / SECOND_US) as usize;
        if most > 0 {
            answer(&manager, &mut ring, most);
            answered_us = now_us;
        }
    }
    for _ in 0..100 {
        answer(&manager, &mut ring, 4096);
        manager.settle(u64::MAX, 0, &mut |record| note(record, &mut labels));
    }
    for connection in 0..outcome.connections {
        match labels.get(&connection) {
            Some(&class) if class == class_of_connection(connection) => outcome.labelled += 1,
            Some(_) => outcome.wrong += 1,
            None => {}
        }
    }
    let counters = manager.counters();
    outcome.shed_half_open = counters.series_shed_half_open();
    outcome.evicted = counters.evictions.half_open;
    assert_eq!(counters.evictions.idle, 0, "none in use goes");
    let ended: u64 = counters.flows_ended.iter().sum();
    let kept = (manager.flows_alive() + manager.flows_unrecorded()) as u64;
    assert_eq!(counters.flows_begun.total(), ended + kept);
    assert_eq!(counters.verdicts.get(Verdict::TableFull), 0);
    outcome
}

/// The label of an ordinary connection, when it is given.
fn note(record: &Record, labels: &mut HashMap<u32, u16>) {
    let Record::Label(label) = record else {
        return;
    };
    for (address, port) in [label.flow.source, label.flow.destination] {
        if let IpAddr::V4(address) = address
            && port == 40_000
        {
            labels.insert(address.to_bits() - HONEST, label.decision.class);
        }
    }
}

fn answer(manager: &Manager, ring: &mut Consumer<Slot>, most: usize) {
    let labels = manager.labels();
    let waiting = ring.waiting().min(most);
    for at in 0..waiting {
        let slot = ring.get(at);
        let label = Label::Class {
            class: class_of_series(&slot.series),
            confidence: u16::MAX,
            source: Source::Model,
            model: 0,
        };
        let _ = labels.word(0, slot.flow.index).decide(slot.flow.generation, label);
    }
    ring.release(waiting);
}

fn holds(flood: Flood, max_flows: usize, series_per_s: usize, seconds: i64) -> Outcome {
    let outcome = run(flood, max_flows, series_per_s, seconds);
    println!("{flood:?} {max_flows}: {outcome:?}");
    assert_eq!(outcome.wrong, 0, "{outcome:?}");
    let (labelled, all) = (outcome.labelled, outcome.connections);
    assert!(f64::from(labelled) >= 0.995 * f64::from(all), "{outcome:?}");
    outcome
}

const PLENTY: usize = 500_000;

#[test]
fn forged_syns_leave_room_in_a_small_table() {
    let outcome = holds(Flood::Syn, 1 << 16, PLENTY, 8);
    assert!(outcome.evicted > 100_000);
}

#[test]
fn forged_syns_that_are_answered_leave_room() {
    let outcome = holds(Flood::SynAnswered, 1 << 16, PLENTY, 8);
    assert!(outcome.evicted > 100_000);
}

#[test]
fn forged_syns_that_are_refused_leave_room() {
    let outcome = holds(Flood::SynRefused, 1 << 16, PLENTY, 8);
    assert!(outcome.evicted > 100_000);
}

#[test]
fn forged_syns_leave_room_in_a_large_table() {
    let outcome = holds(Flood::Syn, 1 << 20, PLENTY, 16);
    assert!(outcome.entries_most > 1_000_000, "the table was full");
}

/// The flood has 8,300 series per second, and analytics answer 2,000.
#[test]
fn series_of_a_one_way_flood_leave_half_of_the_ring() {
    let outcome = holds(Flood::Udp(12), 1 << 16, 2_000, 8);
    assert!(outcome.shed_half_open > 10_000);
}
