//! What `scripts/measure/instructions` counts, in one of nine ways:
//!
//! * `walk`: packets of labelled flows, 64-byte frames, 1,024 flows in a table of 2,048, bursts of
//!   64.
//! * `rules`: the same with 2,000 rules, of which each flow has one.
//! * `lookups`: the same where other rules are in force in each round, so that two flows in each
//!   burst of 64 packets are looked up again and the others put off.
//! * `tcp`: packets of labelled flows that are transfers by TCP.
//! * `services`: as `walk`, where each flow belongs to a service.
//! * `merged`: as `walk`, where each packet is merged from 45 datagrams.
//! * `collect`: whole flows of 16 packets, of which the first 10 are collected, from their
//!   beginning to their end.
//! * `records`: the same with their records and samples.
//! * `new`: every packet begins a flow, and earlier flows end by idle timeout and give their
//!   records.
//!
//! usage: `instructions [ROUNDS] [WAY] [FEATURES] [MORE]`. ROUNDS says how many times the 16,384
//! packets are walked, at most 3 of `tcp`; the difference of two counts is the walk alone. FEATURES
//! is a list with commas, `signed_length` by default. MORE is `learn`, a memory of servers and
//! samples of a tenth of the flows, or `measure=` with a measured feature, `default` or `all`.
//! Prints the bytes that a flow takes with these features.
#![allow(clippy::expect_used, reason = "a measurement ends where its set-up fails")]

mod rules;
mod tcp;

use std::hint::black_box;
use std::net::IpAddr;

use cring::{Consumer, Feature, Slot};
use fenxi_benches::flows::{config, label_all};
use flowmgr::{
    Config, Fate, Gso, Manager, Packet, SeriesShare, Service, ServiceFlows, Services,
    ServicesChange, TaskConfig,
};
use measure::Features;
use observe::Writer;
use rules::Rules;

const FLOWS: usize = 1 << 10;
const PACKETS: usize = 1 << 14;
const FRAME: usize = 64;
const BURST: usize = 64;
/// As many datagrams as fit a merged packet, with [`SEGMENT`] bytes of payload each.
const SEGMENTS: usize = 45;
const SEGMENT: usize = 1448;
const K: usize = 10;
/// As `servers.entries` by default.
const SERVERS: usize = 1 << 18;
/// Longer than the idle timeout, so that each round's flows are new ones.
const ROUND_US: i64 = 40_000_000;
/// Where every packet begins a flow: packet time between two packets, and the idle timeout, so that
/// three quarters of a round's flows live at a time at most.
const NEW_GAP_US: i64 = 250;
const NEW_IDLE_S: u16 = 1;

/// A UDP frame of flow `flow` over Ethernet and IPv4, `wire` bytes long.
fn frame(flow: usize, wire: usize) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((wire - 14) as u16).to_be_bytes());
    frame[23] = 17;
    frame[26..30].copy_from_slice(&(flow as u32).to_be_bytes());
    frame[30..34].copy_from_slice(&[198, 51, 100, 1]);
    frame[34..38].copy_from_slice(&[0xc3, 0x50, 0, 53]);
    frame[39] = 30;
    frame
}

fn task(features: &str) -> TaskConfig {
    let by_name = |name| Feature::ALL.into_iter().find(|it| it.name() == name);
    let features = features.split(',').map(|name| by_name(name).expect("a feature"));
    TaskConfig { midstream: true, features: features.collect(), ..TaskConfig::lengths(K, 2) }
}

/// The flow of a packet: an odd factor scatters the flows.
fn flow_of(packet: usize) -> usize {
    packet.wrapping_mul(0x9e37_79b1) % FLOWS
}

/// The datagrams of a round, merged or not, which is walked again and again.
fn datagrams(mode: &str) -> (Vec<u8>, Vec<Packet>) {
    let (wire, gso) = match mode {
        "merged" => (42 + SEGMENTS * SEGMENT, Gso::udp(SEGMENT as u16)),
        _ => (FRAME, Gso::NONE),
    };
    let flow_of = if mode == "new" { |packet| packet } else { flow_of };
    let packet = |number| Packet {
        at: number * FRAME,
        captured: FRAME as u32,
        wire: u32::MAX,
        link: 1,
        time_us: 0,
        rss: None,
        gso,
    };
    let data = (0..PACKETS).flat_map(|packet| frame(flow_of(packet), wire));
    (data.collect(), (0..PACKETS).map(packet).collect())
}

struct World {
    manager: Manager,
    ring: Consumer<Slot>,
    data: Vec<u8>,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
    rules: Option<Rules>,
    /// Rounds walked, of transfers.
    rounds: usize,
}

impl World {
    fn new(task: TaskConfig, mode: &str, learns: bool, measured: Features) -> World {
        // Nobody answers these flows, and such take half of a ring at most.
        let (producer, ring) = cring::ring(2 * FLOWS);
        let mut config = Config {
            tasks: vec![task],
            servers: learns.then_some(SERVERS),
            samples: if learns { SeriesShare::new(0.1) } else { SeriesShare::NONE },
            measured,
            ..config(K, 2 * if mode == "new" { PACKETS } else { FLOWS })
        };
        if mode == "new" {
            config.settings.idle_timeout_s = NEW_IDLE_S;
        }
        let (data, packets) = match mode {
            "tcp" => tcp::packets(),
            _ => datagrams(mode),
        };
        World {
            manager: Manager::new(config, producer).expect("in range"),
            ring,
            data,
            packets,
            fates: Vec::with_capacity(BURST),
            rules: None,
            rounds: 0,
        }
    }

    fn walk(&mut self) {
        let first = self.rounds * PACKETS % self.packets.len();
        self.rounds += 1;
        for burst in self.packets[first..first + PACKETS].chunks(BURST) {
            self.manager.burst(&mut self.data, burst, 0, &mut self.fates);
            if let Some(rules) = &mut self.rules {
                rules.look_up(&mut self.manager, &mut self.data, burst, &mut self.fates);
            }
        }
    }

    /// Labels all series that wait; the same number in each round.
    fn answer(&mut self) {
        let labels = self.manager.labels();
        assert_eq!(label_all(&mut self.ring, &*labels), (FLOWS, FLOWS));
    }

    /// The server of all flows is a service's.
    fn observe(&mut self) {
        let fields = Service::fields(Features::NONE);
        let memory = observe::Service {
            name: "all",
            egresses: 65,
            fields: &fields,
            epoch_ns: 0,
            writer: (0, 1),
            seed: 0,
        };
        let writer = Writer::in_memory(&memory).expect("in range");
        let service = Service::new(ServiceFlows::default(), writer, 65).expect("its fields");
        let part = Services::new(self.manager.max_flows()).expect("memory");
        let server = (IpAddr::from([198, 51, 100, 1]), 32, 0);
        let places = vec![(0, Some(Box::new(service)))];
        let mut change = ServicesChange::new(Some(part), places, [server].into_iter(), 0);
        self.manager.change_services(&mut change);
    }

    /// Whole flows: walked, not answered, ended by the next round's packets. Their records are made
    /// if somebody takes them.
    fn collect(&mut self, has_taker: bool) {
        self.packets.iter_mut().for_each(|packet| packet.time_us += ROUND_US);
        self.walk_and_settle(has_taker);
        let waiting = self.ring.waiting();
        assert_eq!(waiting, FLOWS);
        self.ring.release(waiting);
    }

    /// Every packet begins a flow.
    fn begin_and_end(&mut self) {
        let first = (self.rounds * PACKETS) as i64;
        self.rounds += 1;
        let times = (first..).map(|number| number * NEW_GAP_US);
        self.packets.iter_mut().zip(times).for_each(|(packet, at)| packet.time_us = at);
        self.walk_and_settle(true);
        assert_eq!(self.manager.counters().flows_begun.total(), (self.rounds * PACKETS) as u64);
    }

    fn walk_and_settle(&mut self, has_taker: bool) {
        for burst in self.packets.chunks(BURST) {
            self.manager.burst(&mut self.data, burst, 0, &mut self.fates);
            match has_taker {
                true => self.manager.settle(u64::MAX, 0, &mut |record| {
                    black_box(record);
                }),
                false => self.manager.discard_records(u64::MAX, 0),
            }
        }
    }
}

fn main() {
    // `cargo bench` adds an option of its own behind ours.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok());
    let mode = arguments.next();
    let task = task(arguments.next().as_deref().unwrap_or("signed_length"));
    println!("{}", flowmgr::bytes_per_flow(std::slice::from_ref(&task)));
    let more = arguments.next();
    let learns = more.as_deref() == Some("learn");
    let measured = match more.as_deref().and_then(|more| more.strip_prefix("measure=")) {
        None => Features::NONE,
        Some("all") => Features::ALL,
        Some("default") => Features::DEFAULT,
        Some(name) => Features::ALL.iter().filter(|it| it.name() == name).collect(),
    };
    let mode = mode.as_deref().unwrap_or("walk");
    let mut world = World::new(task, mode, learns, measured);
    if matches!(mode, "collect" | "records") {
        (0..=rounds.unwrap_or(1)).for_each(|_| world.collect(mode == "records"));
        return;
    }
    if mode == "new" {
        (0..=rounds.unwrap_or(1)).for_each(|_| world.begin_and_end());
        return;
    }
    let is_looked_up = mode == "lookups";
    if is_looked_up || mode == "rules" {
        world.rules = Some(Rules::begin(&mut world.manager));
    }
    if mode == "services" {
        world.observe();
    }
    // The first 16 packets of each flow, merged or not: K are collected, then all get their label.
    world.walk();
    world.answer();
    for _ in 0..rounds.unwrap_or(1) {
        if is_looked_up && let Some(rules) = &mut world.rules {
            rules.change(&mut world.manager);
        }
        world.walk();
    }
}
