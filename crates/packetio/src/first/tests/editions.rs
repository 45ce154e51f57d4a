//! Swaps of what the kernel labels by, while packets pass. The networks here give every flow the
//! same class, each another one, so that an answer tells which network it is of.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Arc, Barrier};

use super::packets::*;
use super::*;
use crate::burst::FrameAnswer;
use crate::first::marks_connections;
use crate::tests::netns::output;
use crate::{KernelDepth, KernelEditions, KernelLabels, KernelMarks, KernelPort};

const BLOCK: usize = 65_536 + 256;
const CLASSES: u16 = 60;
/// A confidence that no answer has.
const NEVER: u16 = u16::MAX;

/// One tree that is a leaf: `struct forest` of `bpf/net.h`.
fn net(class: u16) -> Vec<u8> {
    const NODE: u32 = 1024;
    const STEPS: u32 = 2048;
    const EXPONENTIALS: u32 = 4096;
    let mut bytes = vec![0; BLOCK];
    let mut put = |at: u32, number: u32| {
        bytes[at as usize..][..4].copy_from_slice(&number.to_ne_bytes());
    };
    let head = [0, 1, 12, u32::from(CLASSES)];
    let forest = [1, STEPS, 7, 4, NODE];
    (0..).zip(head.into_iter().chain(forest)).for_each(|(i, number)| put(4 * i, number));
    (0..13).for_each(|depth| put(32 + 4 * 64 + 4 * depth, EXPONENTIALS));
    put(NODE + 4, 1 << 31);
    // The sum of the class is 1, all others are 0.
    put(STEPS + 4 * u32::from(class / 2), 1 << (class % 2 * 16));
    put(EXPONENTIALS, 1e-30_f32.to_bits());
    put(EXPONENTIALS + 4, 1_f32.to_bits());
    bytes
}

/// Gives flows a class: with the first element, if it is sure, else with the third.
fn labels(class: u16, is_sure: bool) -> KernelLabels {
    let sure = if is_sure { 0 } else { NEVER };
    KernelLabels {
        net: net(class),
        depths: [1, 2, 3].map(|k| KernelDepth { k, sure, contradicts: None }).into(),
        least: vec![0; usize::from(CLASSES)],
        sure_classes: CLASSES,
        ports: Vec::new(),
        is_ports_first: false,
        elements: 3,
        keeps_collecting: false,
        reports_at_once: false,
        marks: None,
        dscp: Vec::new(),
    }
}

fn begin(first_edition: KernelLabels) -> (FirstPackets, Arc<KernelEditions>) {
    let editions = Arc::new(KernelEditions::new(first_edition));
    let labels = Some(editions.clone());
    (FirstPackets { labels, flows: 1 << 16, ..first(4) }, editions)
}

/// What came up of a flow.
#[derive(Debug, Default)]
struct Told {
    frames: usize,
    answers: Vec<FrameAnswer>,
}

impl Told {
    /// The class and generation of each answer.
    fn answered(&self) -> Vec<(u16, u16)> {
        self.answers.iter().map(|it| (it.class, it.generation)).collect()
    }
}

/// What came up, by the port that is not the server's.
type Flows = BTreeMap<u16, Told>;

const SERVER: u16 = 9;

/// Adds what a burst of the port tells; whether there was one.
fn read(bench: &mut Bench, flows: &mut Flows) -> bool {
    let Received::Burst(burst) = bench.ports[0].rx.receive(64).unwrap() else { return false };
    let mut answers = burst.answers().iter().peekable();
    for (i, frame) in burst.frames().iter().enumerate() {
        let bytes = burst.bytes(i);
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let told = flows.entry(if port(34) == SERVER { port(36) } else { port(34) }).or_default();
        told.frames += 1;
        told.answers.extend(answers.next_if(|answer| answer.at == frame.at));
    }
    assert_eq!(answers.next(), None, "each is of a frame");
    true
}

/// Reads until flows have told enough.
fn read_until(bench: &mut Bench, flows: &mut Flows, is_enough: impl Fn(&Flows) -> bool) {
    let began = Instant::now();
    while !is_enough(flows) && began.elapsed() < SOON {
        if !read(bench, flows) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A packet of the flow with this port of the client.
fn packet(port: u16) -> Packet {
    udp(v4(1, port), v4(2, SERVER), 100)
}

#[test]
fn a_flow_keeps_the_edition_that_was_asked_first() {
    let Some(netns) = namespace("a_flow_keeps_the_edition_that_was_asked_first") else { return };
    netns.inside(|| {
        let (first, editions) = begin(labels(5, false));
        let mut bench = Bench::new(first);
        let [before, across, behind] = [1000, 2000, 3000].map(packet);
        bench.send([before, before, before, across]);
        bench.arrived();
        editions.commit(&labels(6, true), 1).unwrap();
        bench.send([across, across, behind]);
        let mut flows = Flows::new();
        read_until(&mut bench, &mut flows, |flows| flows.len() == 3);
        assert_eq!(flows[&1000].answered(), [(5, 0); 3]);
        assert_eq!(flows[&2000].answered(), [(5, 0); 3]);
        assert_eq!(flows[&3000].answered(), [(6, 1)]);
        assert!(flows.values().flat_map(|it| &it.answers).all(|it| it.confidence > 32_000));
    });
}

#[test]
fn thresholds_are_of_the_edition() {
    let Some(netns) = namespace("thresholds_are_of_the_edition") else { return };
    netns.inside(|| {
        let (first, editions) = begin(labels(5, false));
        let mut bench = Bench::new(first);
        bench.send([packet(1000)]);
        bench.arrived();
        let unknown = KernelLabels { least: vec![NEVER; 60], ..labels(5, false) };
        editions.commit(&unknown, 1).unwrap();
        bench.send([packet(1000), packet(1000), packet(2000), packet(2000), packet(2000)]);
        let mut flows = Flows::new();
        read_until(&mut bench, &mut flows, |flows| flows.len() == 2);
        assert_eq!(flows[&1000].answered(), [(5, 0); 3]);
        assert_eq!(flows[&2000].answered(), [(CLASSES, 1); 3], "unknown");
    });
}

#[test]
fn a_flow_whose_edition_is_gone_is_left_to_user_space() {
    let Some(netns) = namespace("a_flow_whose_edition_is_gone_is_left_to_user_space") else {
        return;
    };
    netns.inside(|| {
        let (first, editions) = begin(labels(5, false));
        let mut bench = Bench::new(first);
        bench.send([packet(1000), packet(2000)]);
        bench.arrived();
        for swap in 1..=3 {
            editions.commit(&labels(5 + swap, false), swap).unwrap();
        }
        bench.send([packet(1000)]);
        bench.arrived();
        editions.commit(&labels(9, false), 4).unwrap();
        bench.send([packet(1000), packet(2000), packet(2000)]);
        let mut flows = Flows::new();
        read_until(&mut bench, &mut flows, |flows| {
            flows.values().map(|told| told.frames).sum::<usize>() == 6
        });
        for port in [1000, 2000] {
            assert_eq!(flows[&port].frames, 3);
            assert_eq!(flows[&port].answered(), [], "user space asks about all of it");
        }
    });
}

/// Packets of both directions, on two CPUs, through swaps: one in two ticks, so that however slow
/// the machine is, a flow's three answers are over before its edition is gone.
#[test]
fn no_flow_has_answers_of_two_editions() {
    const FLOWS: u16 = 20_000;
    /// Flows that begin in a tick; each has an element per tick. Swaps take several milliseconds.
    const AT_ONCE: u16 = 40;
    const TICK: Duration = Duration::from_millis(3);
    const TICKS: u16 = FLOWS / AT_ONCE + 10;
    // The number of an edition is one more, and wraps behind 255.
    let edition = |generation: u16| labels(generation % CLASSES, generation.is_multiple_of(2));
    let Some(netns) = namespace("no_flow_has_answers_of_two_editions") else { return };
    netns.inside(|| {
        let (first, editions) = begin(edition(0));
        let settings = PortSettings { direction: Direction::Both, ..settings(first) };
        let mut bench = Bench::with(&settings, 1);
        let began = Instant::now();
        let [with_swap, without] = &[3, 2].map(Barrier::new);
        // 3 to 10 elements each, every other one from the server.
        let send = |interface: &str, is_back: bool| {
            let wire = Wire::new(interface);
            move || {
                for tick in 0..TICKS {
                    if tick.is_multiple_of(2) { with_swap } else { without }.wait();
                    for element in (0..10.min(tick + 1)).filter(|it| (it % 2 == 1) == is_back) {
                        let first = (tick - element) * AT_ONCE;
                        let flows = (first..first + AT_ONCE).filter(|it| element < 3 + it % 8);
                        for port in flows.filter(|flow| *flow < FLOWS).map(|flow| 10_000 + flow) {
                            let packet = packet(port);
                            wire.send(&if is_back { packet.back() } else { packet }.bytes());
                        }
                    }
                    std::thread::sleep(TICK);
                }
            }
        };
        let mut flows = Flows::new();
        let swaps = std::thread::scope(|scope| {
            let senders =
                [("a0", false), ("b0", true)].map(|(it, back)| scope.spawn(send(it, back)));
            let swapper = scope.spawn(|| {
                let swaps = 1..=TICKS.div_ceil(2);
                swaps.clone().for_each(|swap| {
                    with_swap.wait();
                    editions.commit(&edition(swap % 255), swap % 255).unwrap();
                });
                swaps.len()
            });
            while !senders.iter().all(|it| it.is_finished()) {
                read(&mut bench, &mut flows);
            }
            swapper.join().unwrap()
        });
        bench.sent = (0..FLOWS).map(|flow| u64::from(3 + flow % 8)).sum();
        bench.arrived();
        bench.ports[0].rx.notify(Notice::Drain);
        while read(&mut bench, &mut flows) {}
        let mut seen = BTreeSet::new();
        let mut left = 0;
        for (port, told) in &flows {
            let Some(&(class, generation)) = told.answered().first() else {
                left += 1;
                continue;
            };
            let answers = if generation.is_multiple_of(2) { 1 } else { 3 };
            assert_eq!(told.answered(), vec![(class, generation); answers], "{port}");
            assert_eq!(class, generation % CLASSES, "{port}");
            seen.insert(generation);
        }
        println!("{swaps} swaps in {:?}, {} seen, {left} flows left", began.elapsed(), seen.len());
        assert_eq!(flows.len(), usize::from(FLOWS));
        assert!(left < FLOWS / 20, "{left} flows without an answer");
        assert!(seen.len() > 30, "{} editions, {swaps} swaps", seen.len());
    });
}

#[test]
fn what_a_program_is_loaded_for_stays() {
    let marks = KernelMarks { bits: vec![1; 60], mask: 1, overwrites: false };
    let first = labels(5, true);
    let editions = KernelEditions::new(first.clone());
    let refused = |next: &KernelLabels| editions.check(next).unwrap_err().to_string();
    let mut other = first.clone();
    other.depths[2].k = 4;
    assert_eq!(refused(&other), "the program keeps the depths");
    other.depths.pop();
    assert_eq!(refused(&other), "the program keeps the depths");
    let port = KernelPort { protocol: 6, port: 443, class: 1 };
    let other = KernelLabels { reports_at_once: true, ..first.clone() };
    assert_eq!(
        refused(&other),
        "the program keeps when it reports them, and policy.rules or another task came or went"
    );
    let other = KernelLabels { ports: vec![port], ..first.clone() };
    assert_eq!(refused(&other), "the program keeps the labels of ports");
    let other = KernelLabels { is_ports_first: true, ..first.clone() };
    assert_eq!(refused(&other), "the program keeps when ports name flows");
    let other = KernelLabels { marks: Some(marks), ..first.clone() };
    assert_eq!(refused(&other), "the program keeps whether there are marks");
    let other = KernelLabels { dscp: vec![Some(10); 60], ..first.clone() };
    assert_eq!(refused(&other), "the program keeps whether there are DSCPs");
    editions.check(&labels(6, false)).unwrap();
}

#[test]
fn a_network_that_is_larger_than_the_maps_is_refused() {
    let Some(netns) = namespace("a_network_that_is_larger_than_the_maps_is_refused") else {
        return;
    };
    netns.inside(|| {
        let (first, editions) = begin(labels(5, true));
        let _bench = Bench::new(first);
        let larger = KernelLabels { net: vec![0; 2 * BLOCK], ..labels(5, true) };
        let why = editions.check(&larger).unwrap_err().to_string();
        assert_eq!(why, "the network takes 2 blocks of 64 KiB, and the program has 1");
        let broken = KernelLabels { net: vec![0; BLOCK - 1], ..labels(5, true) };
        let why = editions.check(&broken).unwrap_err().to_string();
        assert_eq!(why, "a network has no whole number of blocks");
        editions.check(&labels(6, true)).unwrap();
    });
}

/// A connection is there only behind a flow's first packet, which names the flow.
#[test]
fn marks_are_of_the_edition_that_named_the_flow() {
    let test = "marks_are_of_the_edition_that_named_the_flow";
    let Some(netns) = namespace(test) else { return };
    if marks_connections().is_err() || output(Command::new("conntrack").arg("-V")).is_err() {
        return skip(test, "conntrack, in the kernel and as a tool");
    }
    netns.run("ip link set b0 address 02:00:00:00:00:02 && ip address add 10.0.0.2/24 dev b0");
    netns.run(
        "nft add table ip t && nft add chain ip t in { type filter hook input priority 0\\; }",
    );
    netns.run("nft add rule ip t in ct state new counter");
    let mark = |port: u16| {
        let line = format!("conntrack -L -p udp --sport {port} 2>/dev/null");
        let listed = netns.run(&line);
        let mark = listed.split_whitespace().find_map(|it| it.strip_prefix("mark="));
        mark.and_then(|mark| mark.parse::<u32>().ok())
    };
    netns.inside(|| {
        let with_marks = |bits: u32| {
            let marks = KernelMarks { bits: vec![bits; 60], mask: 0xff, overwrites: true };
            KernelLabels { marks: Some(marks), ..labels(5, true) }
        };
        let (first, editions) = begin(with_marks(1));
        let mut bench = Bench::new(first);
        let mut send = |ports: &[u16]| {
            bench.send(ports.iter().copied().map(packet));
            bench.arrived();
            // A connection is listed somewhat later.
            for port in ports {
                until(|| mark(*port).is_some());
            }
        };
        send(&[1000, 2000]);
        editions.commit(&with_marks(2), 1).unwrap();
        send(&[1000, 3000]);
        send(&[3000]);
        assert_eq!([1000, 2000, 3000].map(mark), [Some(1), Some(0), Some(2)]);
        for swap in 3..=5 {
            editions.commit(&with_marks(swap), 1).unwrap();
        }
        send(&[2000]);
        assert_eq!(mark(2000), Some(5), "its edition is gone");
    });
}
