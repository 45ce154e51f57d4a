//! The packet's walk allocates nothing once it is warm: not for packets of known flows, for new
//! flows, for series on their way, for labels, for reports of flows that go on, nor for flows that
//! end and are settled. A manager takes its memory when it is made.
//!
//! Only the test's own thread is counted, because the harness has others. What allocates by design
//! is not here: `drain`, which sorts what is left, and records that carry their series.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

use std::ops::Range;
use std::sync::Arc;

use allocation_counter::measure;
use cring::{Consumer, Label, Labels, Slot, Source};
use flowmgr::hash::HashKind;
use flowmgr::record::Record;
use flowmgr::{
    Actions, BURST_MAX, Bounds, Config, Counted, DepthConfig, Effect, Fate, Key, Manager, Packet,
    Settings, Target, TargetOf, TaskConfig,
};

/// Allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    measure(work).count_total
}

const FLOWS: u16 = 1000;
const K: usize = 3;
const SECOND_US: i64 = 1_000_000;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A manager, the consumers of its rings, and how many records it gave.
struct World {
    manager: Manager,
    rings: Vec<Consumer<Slot>>,
    labels: Arc<dyn Labels>,
    time_us: i64,
    data: Vec<u8>,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
    label_records: u64,
    flow_records: u64,
    samples: u64,
    /// Those that are not in use.
    settings: Settings,
}

impl World {
    fn new(effect: Effect) -> World {
        World::with(World::config(effect, false))
    }

    fn config(effect: Effect, expects_counts: bool) -> Config {
        Config {
            tasks: vec![TaskConfig { midstream: true, ..TaskConfig::lengths(K, 2) }],
            settings: Settings {
                idle_timeout_s: 30,
                closed_timeout_s: 5,
                half_open_timeout_s: 0,
                established_timeout_s: 0,
                active_timeout_s: 60,
                end_on_fin_rst: true,
                actions: Actions::of_dscp(&[Some(46), None]),
            },
            hash: HashKind::Keyed { seed: 3 },
            max_flows: 2 * usize::from(FLOWS),
            buckets: 256,
            effect,
            record_series: flowmgr::SeriesShare::NONE,
            flow_id_first: 0,
            flow_id_step: 1,
            inside: flowmgr::Inside::default(),
            expects_counts,
            servers: None,
            samples: flowmgr::SeriesShare::NONE,
            measured: ::measure::Features::ALL,
            behaviour: Some(Bounds {
                bulk_bytes: 1000,
                small_bytes: 300,
                interactive_packets_max: 30,
                realtime_packets_min: 10,
                hold_s: 2,
                idle_s: 2,
            }),
        }
    }

    fn with(config: Config) -> World {
        let (producer, ring) = cring::ring(2048);
        let manager = Manager::new(config, producer).unwrap();
        World {
            labels: manager.labels(),
            manager,
            rings: vec![ring],
            time_us: 1_700_000_000 * SECOND_US,
            data: Vec::with_capacity(BURST_MAX * 64),
            packets: Vec::with_capacity(BURST_MAX),
            fates: Vec::with_capacity(BURST_MAX),
            label_records: 0,
            flow_records: 0,
            samples: 0,
            settings: Settings {
                idle_timeout_s: 20,
                closed_timeout_s: 4,
                half_open_timeout_s: 3,
                established_timeout_s: 300,
                active_timeout_s: 90,
                end_on_fin_rst: true,
                actions: Actions::of_dscp(&[None, Some(10)]),
            },
        }
    }

    /// The same with two tasks, of which the second has two depths and a target, and marks packets,
    /// too.
    fn of_two_tasks(effect: Effect) -> World {
        let mut world = World::new(effect);
        let mut config = World::config(effect, false);
        let depth = |k| DepthConfig { k, sure: 60_000, contradicts: None };
        let second = TaskConfig {
            depths: vec![depth(K - 1), depth(K)],
            target: Some(Target { of: TargetOf::Volume, edges: Vec::new() }),
            ..config.tasks[0].clone()
        };
        config.tasks.push(second);
        config.settings.actions = Actions::of_tasks([[Some(46), None], [Some(12), None]]);
        let rings = [cring::ring(2048), cring::ring(4096)];
        let (producers, consumers): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
        let producers = producers.into_iter().map(|ring| vec![ring]).collect();
        world.manager = Manager::with_rings(config, producers).unwrap();
        world.labels = world.manager.labels();
        world.rings = consumers;
        world
    }

    /// One TCP packet of each of these flows.
    fn talk(&mut self, flows: Range<u16>, flags: u8) {
        for flow in flows {
            self.packets.push(Packet {
                at: self.data.len(),
                captured: 40,
                wire: u32::MAX,
                link: 101,
                time_us: self.time_us,
                rss: None,
                gso: flowmgr::Gso::NONE,
            });
            let [high, low] = flow.to_be_bytes();
            self.data.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
            self.data.extend([192, 0, 2, 1, 198, 51, 100, 1, high, low]);
            self.data.extend([0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags]);
            self.data.extend([0; 6]);
            if self.packets.len() == BURST_MAX {
                self.burst();
            }
        }
        self.burst();
    }

    fn burst(&mut self) {
        let World { manager, data, packets, fates, .. } = self;
        manager.burst(data, packets, 0, fates);
        data.clear();
        packets.clear();
    }

    fn answer(&mut self) {
        let label = Label::Class { class: 0, confidence: 50_000, source: Source::Model, model: 0 };
        for ring in &mut self.rings {
            let waiting = ring.waiting();
            for at in 0..waiting {
                let slot = ring.get(at);
                let word = self.labels.word(slot.series.task, slot.flow.index);
                // The flow of a series may have ended since.
                let _ = word.decide(slot.flow.generation, label);
            }
            ring.release(waiting);
        }
    }

    fn settle(&mut self) {
        let World { label_records: labels, flow_records: flows, samples, .. } = self;
        self.manager.settle(u64::MAX, 0, &mut |record| match record {
            Record::Label(_) => *labels += 1,
            Record::Flow(_) => *flows += 1,
            Record::Behaviour(_) => {}
            Record::Sample(_) => *samples += 1,
        });
    }

    /// Reports packets of each of these flows that were counted where they passed, `packets` in
    /// total by now.
    fn count(&mut self, flows: Range<u16>, packets: u64) -> usize {
        let ends = |flow| {
            let (client, server) = ([192, 0, 2, 1].into(), [198, 51, 100, 1].into());
            Key::from_ends(6, (client, flow), (server, 80))
        };
        let is_known = |flow: &u16| {
            self.manager.count(&Counted {
                key: ends(*flow),
                packets: [packets, packets / 2],
                bytes: [1500 * packets, 40 * packets],
                generation: 1,
                last_us: self.time_us,
            })
        };
        flows.filter(is_known).count()
    }

    /// Some seconds of packets of one ongoing flow, so that time passes.
    fn wait(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.time_us += SECOND_US;
            self.talk(FLOWS..FLOWS + 1, ACK);
            self.settle();
        }
    }
}

/// Something that happens to all flows, and its name.
type Step = (&'static str, fn(&mut World));

/// The life of [`FLOWS`] flows.
const LIFE: [Step; 9] = [
    ("new flows", |world| world.talk(0..FLOWS, SYN)),
    ("packets before the K-th", |world| world.talk(0..FLOWS, ACK)),
    ("the K-th packets, series on their way", |world| {
        world.talk(0..FLOWS, ACK);
        world.settle();
    }),
    ("labels come", |world| {
        world.answer();
        world.settle();
    }),
    ("packets of labelled flows", |world| world.talk(0..FLOWS, ACK)),
    ("reports of flows that go on", |world| {
        for _ in 0..3 {
            world.wait(25);
            world.talk(0..FLOWS, ACK);
            world.settle();
        }
    }),
    ("other settings, and the old ones again", |world| {
        for _ in 0..2 {
            world.manager.configure(&mut world.settings);
            world.talk(0..FLOWS, ACK);
        }
    }),
    ("half of the flows reset, a SYN on each, and all settled", |world| {
        world.talk(0..FLOWS / 2, RST);
        world.talk(0..FLOWS / 2, SYN);
        world.settle();
    }),
    ("the rest idle for long", |world| world.wait(40)),
];

/// Lives several lives and returns how many samples the last one gave.
fn live(effect: Effect, world: World, tasks: u64) -> u64 {
    let mut world = world;
    // What one life leaves behind belongs to the next.
    for (_, step) in LIFE.iter().chain(&LIFE) {
        step(&mut world);
    }
    (world.label_records, world.flow_records, world.samples) = (0, 0, 0);
    for (name, step) in LIFE {
        let before = world.samples;
        let allocated = allocations(|| step(&mut world));
        assert_eq!(allocated, world.samples - before, "{effect:?}, {name}");
    }
    // Steps that do nothing would allocate nothing, too. So each flow must have a label by each
    // task, a report and an end, and half of them began and ended twice.
    let flows = u64::from(FLOWS);
    assert_eq!(world.label_records, tasks * flows);
    assert!(world.flow_records >= 2 * flows + flows / 2);
    assert_eq!(world.manager.flows_alive(), 1);
    world.samples
}

#[test]
fn a_live_walk_allocates_nothing() {
    let effect = Effect::Arrival;
    assert_eq!(live(effect, World::new(effect), 1), 0);
    assert_eq!(live(effect, World::of_two_tasks(effect), 2), 0);
}

#[test]
fn a_replay_allocates_nothing() {
    let effect = Effect::PacketTime { delay_us: 1000 };
    assert_eq!(live(effect, World::new(effect), 1), 0);
    assert_eq!(live(effect, World::of_two_tasks(effect), 2), 0);
}

#[test]
fn samples_are_boxed_and_allocate_nothing_else() {
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 1000 }] {
        let samples = flowmgr::SeriesShare::ALL;
        let config = Config { samples, ..World::config(effect, false) };
        // The series of half of the flows is complete, of the others too, which end later.
        assert_eq!(live(effect, World::with(config), 1), u64::from(FLOWS));
    }
}

#[test]
fn counts_of_packets_that_were_not_walked_allocate_nothing() {
    let mut world = World::with(World::config(Effect::Arrival, true));
    for (_, step) in &LIFE[..5] {
        step(&mut world);
    }
    let mut known = 0;
    let allocated = allocations(|| {
        // Beyond the active timeout, so flows are reported; of those that are not there nothing is
        // kept.
        for round in 1..=80 {
            known += world.count(0..2 * FLOWS, 1000 * round);
            world.wait(1);
        }
    });
    assert_eq!((allocated, known), (0, 80 * usize::from(FLOWS) + 79));
    assert!(world.flow_records >= u64::from(FLOWS));
}

#[test]
fn a_look_at_the_table_allocates_nothing() {
    let mut world = World::new(Effect::Arrival);
    for (_, step) in &LIFE[..5] {
        step(&mut world);
    }
    let mut rows = Vec::with_capacity(4 * flowmgr::CHAIN_FLOWS_MAX);
    let mut seen = 0;
    let allocated = allocations(|| {
        let mut from = Some(0);
        while let Some(next) = from {
            rows.clear();
            from = world.manager.read_flows(next, usize::MAX, &mut rows);
            seen += rows.len();
            let missing = flowmgr::Wanted::Id(u64::MAX);
            let _ = world.manager.look_for(next, 64, &missing);
        }
    });
    assert_eq!((allocated, seen), (0, usize::from(FLOWS)));
}

#[test]
fn the_allocator_counts() {
    let boxed = allocations(|| drop(std::hint::black_box(Box::new([0u8; 100]))));
    assert_eq!(boxed, 1);
    let grown = allocations(|| {
        let mut numbers = vec![1u64];
        numbers.reserve(1000);
        drop(std::hint::black_box(numbers));
    });
    assert_eq!(grown, 2);
}
