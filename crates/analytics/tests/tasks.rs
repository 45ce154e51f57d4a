//! Two tasks on the same flows, from packets to records: each has its own unit, features, ring,
//! manager, device and label word, and the device's answers tell which row they are of.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

use std::collections::HashMap;
use std::sync::Arc;

use accel::{Profile, Shape, SimulatedDevice, Sizes};
use analytics::{CacheConfig, Config, Manager, Policy, RingInput, Task};
use cring::{Feature, Labels, Unit};
use flowmgr::hash::HashKind;
use flowmgr::record::{FlowRecord, LabelRecord, Record};
use flowmgr::wire::{TCP_ACK, TCP_SYN};
use flowmgr::{Actions, Effect, Packet, TaskConfig};

const FLOWS: usize = 24;
/// In order of the model's channels.
const DATA_FEATURES: [Feature; 2] = [Feature::InterArrival, Feature::PayloadLength];
const PACKET_FEATURES: [Feature; 3] =
    [Feature::SignedLength, Feature::TcpFlags, Feature::InterArrival];
const SHAPES: [Shape; 2] = [
    Shape { channels: 2, k: 3, context: 0, classes: 1009 },
    Shape { channels: 3, k: 10, context: 0, classes: 997 },
];

fn tasks() -> Vec<TaskConfig> {
    let task = |unit, features: &[Feature], shape: Shape| TaskConfig {
        unit,
        features: features.iter().copied().collect(),
        ..TaskConfig::lengths(shape.k, shape.classes)
    };
    vec![
        task(Unit::Data, &DATA_FEATURES, SHAPES[0]),
        task(Unit::Packet, &PACKET_FEATURES, SHAPES[1]),
    ]
}

/// One packet of the traffic.
#[derive(Clone, Copy)]
struct Sent {
    flow: usize,
    time_us: i64,
    is_reverse: bool,
    flags: u8,
    payload: u8,
}

impl Sent {
    fn length(self) -> u8 {
        40 + self.payload
    }

    fn frame(self) -> Vec<u8> {
        let ends = [[10, 0, 0, self.flow as u8], [10, 9, 9, 9]];
        let (from, to) = (usize::from(self.is_reverse), usize::from(!self.is_reverse));
        let mut ip = vec![0x45, 0, 0, self.length(), 0, 0, 0, 0, 64, 6, 0, 0];
        ip.extend([ends[from], ends[to]].concat());
        let ports = [[0, 80], [1, 187]];
        ip.extend([ports[from], ports[to]].concat());
        ip.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, self.flags, 0, 0, 0, 0, 0, 0]);
        ip.resize(usize::from(self.length()), 0);
        ip
    }
}

/// Flows of 4 to 15 packets side by side; every third packet of a flow is empty, and some flows
/// begin mid-stream.
fn traffic() -> Vec<Sent> {
    let mut packets = Vec::new();
    for turn in 0..15 {
        for flow in (0..FLOWS).filter(|flow| turn < 4 + flow / 2) {
            let flags = match turn {
                0 if !is_midstream(flow) => TCP_SYN,
                1 if !is_midstream(flow) => TCP_SYN | TCP_ACK,
                _ => TCP_ACK,
            };
            packets.push(Sent {
                flow,
                time_us: 1000 + (turn * turn) as i64 * 700 + flow as i64 * 3,
                is_reverse: turn % 2 == 1,
                flags,
                payload: if turn % 3 == 0 { 0 } else { (flow * 7 + turn) as u8 },
            });
        }
    }
    packets
}

fn is_midstream(flow: usize) -> bool {
    flow % 8 == 5
}

/// What the simulated device answers to the row of a flow's packets; `None` if there are too few.
fn expected(packets: &[Sent], task: usize) -> Option<u16> {
    let shape = SHAPES[task];
    let elements = packets.iter().filter(|it| task == 1 || it.payload != 0);
    let elements: Vec<&Sent> = elements.take(shape.k).collect();
    if elements.len() < shape.k {
        return None;
    }
    let features: &[Feature] = [&DATA_FEATURES[..], &PACKET_FEATURES][task];
    let values = features.iter().flat_map(|feature| {
        (0..shape.k).map(|i| match feature {
            Feature::SignedLength => u64::from(elements[i].length()),
            Feature::PayloadLength => u64::from(elements[i].payload),
            Feature::TcpFlags => u64::from(elements[i].flags),
            Feature::InterArrival if i == 0 => 0,
            Feature::InterArrival => (elements[i].time_us - elements[i - 1].time_us) as u64,
        })
    });
    let sum: u64 = values.zip(1..).map(|(value, place)| value * place).sum();
    Some((sum % shape.classes as u64) as u16)
}

struct World {
    flows: flowmgr::Manager,
    series: Vec<Manager>,
    labels: Arc<dyn Labels>,
    records: Vec<Record>,
    now_ns: u64,
}

impl World {
    fn new(effect: Effect, cache: usize) -> World {
        let rings = [cring::ring(64), cring::ring(64)];
        let (producers, consumers): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
        let config = flowmgr::Config {
            tasks: tasks(),
            settings: flowmgr::Settings {
                idle_timeout_s: 30,
                closed_timeout_s: 5,
                half_open_timeout_s: 0,
                established_timeout_s: 0,
                active_timeout_s: 0,
                end_on_fin_rst: true,
                actions: Actions::of_dscp(&[None]),
            },
            hash: HashKind::Keyed { seed: 5 },
            max_flows: 64,
            buckets: 16,
            effect,
            record_series: flowmgr::SeriesShare::ALL,
            flow_id_first: 0,
            flow_id_step: 1,
            inside: flowmgr::Inside::default(),
            expects_counts: false,
            behaviour: None,
            servers: None,
            samples: flowmgr::SeriesShare::NONE,
            measured: Default::default(),
        };
        let rings = producers.into_iter().map(|producer| vec![producer]);
        let flows = flowmgr::Manager::with_rings(config, rings.collect()).unwrap();
        let labels = flows.labels();
        let series = consumers.into_iter().enumerate().map(|(task, series)| {
            let ring_input = RingInput { series, labels: labels.clone() };
            let config = Config {
                context: Vec::new(),
                k: SHAPES[task].k,
                features: [&DATA_FEATURES[..], &PACKET_FEATURES][task].to_vec(),
                policy: Policy::None,
                cache: CacheConfig { prefix: cache, entries: 100, audit: 0.0 },
                probe: Vec::new(),
                word: 0,
                priority: 0,
                after: analytics::After::default(),
            };
            let profile = Profile { t0_us: 0.0, t1_us: 0.0 };
            let device = SimulatedDevice::new(profile, Sizes::Any { cap: 8 }, SHAPES[task]);
            let device: Box<dyn accel::Device> = Box::new(device);
            let task = Task::new(config, vec![ring_input], vec![device.into()]).unwrap();
            Manager::new(vec![task])
        });
        World { series: series.collect(), flows, labels, records: Vec::new(), now_ns: 0 }
    }

    fn burst(&mut self, packets: &[Sent]) {
        let mut data = Vec::new();
        let mut burst = Vec::new();
        for packet in packets {
            let frame = packet.frame();
            burst.push(Packet {
                at: data.len(),
                captured: frame.len() as u32,
                wire: u32::MAX,
                link: 101,
                time_us: packet.time_us,
                rss: None,
                gso: flowmgr::Gso::NONE,
            });
            data.extend(frame);
        }
        let mut fates = Vec::new();
        self.flows.burst(&mut data, &burst, self.now_ns, &mut fates);
    }

    fn rounds(&mut self) {
        for manager in &mut self.series {
            for _ in 0..20 {
                self.now_ns += 1000;
                manager.round(self.now_ns);
            }
        }
        let records = &mut self.records;
        let mut keep = |record: &mut Record| records.push(record.clone());
        self.flows.settle(u64::MAX, self.now_ns, &mut keep);
        // All that were emitted have an outcome, and none waits for the other task.
        for (task, manager) in self.series.iter().enumerate() {
            let (flows, series) =
                (&self.flows.counters().depths[task], manager.tasks()[0].counters());
            assert_eq!(flows.series_emitted, series.series, "task {task}");
            assert_eq!(series.cached + series.inferred, series.series);
            assert_eq!((flows.series_shed, series.post_mortem), (0, 0));
        }
    }

    fn finish(&mut self) {
        self.flows.drain();
        self.rounds();
        assert_eq!(self.flows.flows_unrecorded(), 0);
    }
}

fn labels_by_flow(records: &[Record]) -> HashMap<(u64, u8), &LabelRecord> {
    let labels = records.iter().filter_map(|record| match record {
        Record::Label(label) => Some(((label.flow.flow_id, label.task.0), label)),
        _ => None,
    });
    let count = labels.clone().count();
    let by_flow: HashMap<_, _> = labels.collect();
    assert_eq!(by_flow.len(), count, "a label is said once");
    by_flow
}

fn flow_records(records: &[Record]) -> Vec<&FlowRecord> {
    let flows = records.iter().filter_map(|record| match record {
        Record::Flow(flow) => Some(flow),
        _ => None,
    });
    flows.collect()
}

#[test]
fn each_label_reaches_the_word_and_the_record_of_its_task() {
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 5 }] {
        let mut world = World::new(effect, 0);
        let packets = traffic();
        for burst in packets.chunks(FLOWS) {
            world.burst(burst);
            world.rounds();
        }
        // The words of flows that are alive: entries are taken in the order of flows.
        for flow in 0..FLOWS {
            let own: Vec<Sent> = packets.iter().copied().filter(|it| it.flow == flow).collect();
            for task in 0..2 {
                let is_asked = !is_midstream(flow);
                let class = expected(&own, task).filter(|_| is_asked);
                let found = match world.labels.word(task as u8, flow as u32).read().1 {
                    cring::Label::Class { class, .. } => Some(class),
                    cring::Label::None => None,
                    other => panic!("{other:?}"),
                };
                assert_eq!(found, class, "word of task {task}, flow {flow}");
            }
        }
        world.finish();
        check_records(&world, &packets);
    }
}

fn check_records(world: &World, packets: &[Sent]) {
    let labels = labels_by_flow(&world.records);
    let flows = flow_records(&world.records);
    assert_eq!(flows.len(), FLOWS);
    let mut asked = [0; 2];
    for record in flows {
        let flow = record.flow.flow_id as usize;
        let own: Vec<Sent> = packets.iter().copied().filter(|it| it.flow == flow).collect();
        for (task, decision) in [record.decisions[0], record.decisions[1]].into_iter().enumerate() {
            let class = expected(&own, task).filter(|_| !is_midstream(flow));
            assert_eq!(decision.map(|it| it.class), class, "task {task}, flow {flow}");
            let label = labels.get(&(record.flow.flow_id, task as u8));
            assert_eq!(label.map(|it| it.decision), decision);
            asked[task] += u64::from(class.is_some());
        }
        // Records have the series of the first task's unit, with what tasks of that unit ask for.
        let data: Vec<&Sent> = own.iter().filter(|it| it.payload != 0).take(3).collect();
        let series = record.series.as_ref().unwrap();
        let payloads: Vec<u16> = data.iter().map(|it| it.payload.into()).collect();
        assert_eq!(series.payloads.as_ref(), Some(&payloads));
        let offsets: Vec<i64> = data.iter().map(|it| it.time_us - own[0].time_us).collect();
        assert_eq!(series.offsets_us, offsets);
        assert_eq!((series.lengths.len(), &series.tcp_flags), (data.len(), &None));
    }
    // Both tasks have labelled some flows, and not the same ones.
    assert!(asked[0] > asked[1] && asked[1] > 0, "{asked:?}");
    for (task, counters) in world.flows.counters().depths.iter().enumerate() {
        assert_eq!(counters.series_emitted, asked[task]);
        assert_eq!(counters.labels_given.iter().sum::<u64>(), asked[task]);
        assert_eq!(counters.flows_labelled.iter().sum::<u64>(), asked[task]);
        assert!(counters.series_withheld > 0);
    }
}

/// Flows that end while one task's label is on its way: by packet time the record waits for all
/// tasks, live for none of them.
#[test]
fn a_record_by_packet_time_waits_for_all_tasks() {
    for (effect, waits) in [(Effect::PacketTime { delay_us: 0 }, true), (Effect::Arrival, false)] {
        let mut world = World::new(effect, 0);
        let packets: Vec<Sent> = traffic().into_iter().filter(|it| it.flow == 23).collect();
        world.burst(&packets);
        world.flows.drain();
        // The first task only.
        for _ in 0..20 {
            world.now_ns += 1000;
            world.series[0].round(world.now_ns);
        }
        let records = &mut world.records;
        let mut keep = |record: &mut Record| records.push(record.clone());
        world.flows.settle(u64::MAX, world.now_ns, &mut keep);
        assert_eq!(flow_records(&world.records).is_empty(), waits);
        world.series[1].round(world.now_ns);
        world.series[1].round(world.now_ns + 1_000_000);
        let records = &mut world.records;
        let mut keep = |record: &mut Record| records.push(record.clone());
        world.flows.settle(u64::MAX, world.now_ns, &mut keep);
        let flows = flow_records(&world.records);
        let has_label = [flows[0].decisions[0].is_some(), flows[0].decisions[1].is_some()];
        assert_eq!((flows.len(), has_label), (1, [true, waits]));
        let late = world.series[1].tasks()[0].counters().post_mortem;
        assert_eq!(late, u64::from(!waits), "given to nobody else");
    }
}

/// A repeated series is known to the cache of the task that saw it, whatever the other task's
/// series is.
#[test]
fn caches_are_of_one_task() {
    let mut world = World::new(Effect::PacketTime { delay_us: 0 }, 3);
    let own: Vec<Sent> = traffic().into_iter().filter(|it| it.flow == 22).collect();
    for flow in [1, 2] {
        let packets: Vec<Sent> = own.iter().map(|it| Sent { flow, ..*it }).collect();
        world.burst(&packets);
        world.rounds();
    }
    for manager in &world.series {
        let counters = manager.tasks()[0].counters();
        assert_eq!((counters.inferred, counters.cached), (1, 1));
    }
    world.finish();
    let flows = flow_records(&world.records);
    assert_eq!(flows[0].decisions[0].map(|it| it.class), flows[1].decisions[0].map(|it| it.class));
    let [first, second] = [0, 1].map(|flow| flows[flow].decisions[1].unwrap().class);
    assert_eq!(first, second);
    assert_eq!(Some(first), expected(&own, 1));
}

#[test]
fn tasks_may_share_a_unit_and_a_ring_each_is_needed() {
    let config = |tasks| flowmgr::Config {
        tasks,
        settings: flowmgr::Settings {
            idle_timeout_s: 30,
            closed_timeout_s: 5,
            half_open_timeout_s: 0,
            established_timeout_s: 0,
            active_timeout_s: 0,
            end_on_fin_rst: true,
            actions: Actions::of_dscp(&[None]),
        },
        hash: HashKind::Keyed { seed: 5 },
        max_flows: 64,
        buckets: 16,
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
    let tasks = vec![TaskConfig::lengths(10, 1), TaskConfig::lengths(3, 1)];
    let one_ring = flowmgr::Manager::new(config(tasks.clone()), cring::ring(8).0);
    assert!(one_ring.is_err());
    let (long, mut long_ring) = cring::ring(8);
    let (short, mut short_ring) = cring::ring(8);
    let rings = vec![vec![long], vec![short]];
    let mut flows = flowmgr::Manager::with_rings(config(tasks), rings).unwrap();
    let packets = traffic().into_iter().filter(|it| it.flow == 23);
    for packet in packets {
        let mut data = packet.frame();
        let packet = Packet {
            at: 0,
            captured: data.len() as u32,
            wire: u32::MAX,
            link: 101,
            time_us: packet.time_us,
            rss: None,
            gso: flowmgr::Gso::NONE,
        };
        flows.burst(&mut data, &[packet], 0, &mut Vec::new());
    }
    assert_eq!((long_ring.waiting(), short_ring.waiting()), (1, 1));
    let [long, short] = [long_ring.get(0).series, short_ring.get(0).series];
    assert_eq!((long.task, long.k(), short.task, short.k()), (0, 10, 1, 3));
    let of = |series: &cring::Series| series.signed_lengths().collect::<Vec<_>>();
    assert_eq!(of(&long)[..3], of(&short));
    assert_eq!(short.directions, 0b010);
}
