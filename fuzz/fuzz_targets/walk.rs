//! Any packets at any times through a flow manager with a table for eight flows: no panic, and
//! the sums always balance.
//!
//! The packets are few hosts talking over few ports, so that they meet in the table, and any
//! bytes between them. Labels come or fail at any time, records are settled at any time. In the
//! end the table is drained: packets = verdicts, flows begun = final records, and the records
//! hold each packet and byte of a flow once.
#![no_main]

use cring::{Consumer, Label, Slot, Source};
use flowmgr::hash::HashKind;
use flowmgr::record::{EndReason, Record};
use flowmgr::verdict::Verdict;
use flowmgr::{Actions, BURST_MAX, Config, Effect, Fate, Manager, Packet, Settings, TaskConfig};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

const RAW_IP: u16 = 101;

#[derive(Arbitrary, Debug)]
struct Run {
    /// Labels count on arrival, or this long after the K-th packet.
    delay_us: Option<u32>,
    has_idle_timeout: bool,
    has_active_timeout: bool,
    end_on_fin_rst: bool,
    is_keyed: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Talk { forward: bool, flow: u8, flags: u8, length: u8 },
    Frame { link: u16, bytes: Vec<u8> },
    Later { milliseconds: u16 },
    Jump { to_us: i64 },
    Burst,
    Answer { class: Option<u8> },
    Settle { written: u8 },
}

fuzz_target!(|run: Run| {
    let (producer, consumer) = cring::ring(4);
    let mut bench = Bench {
        manager: Manager::new(config(&run), producer).expect("a valid configuration"),
        ring: consumer,
        time_us: 1_700_000_000_000_000,
        data: Vec::new(),
        packets: Vec::new(),
        fates: Vec::new(),
        sums: Sums::default(),
    };
    run.steps.iter().for_each(|step| bench.step(step));
    bench.finish();
});

fn config(run: &Run) -> Config {
    Config {
        tasks: vec![TaskConfig { midstream: true, ..TaskConfig::lengths(3, 2) }],
        settings: Settings {
            idle_timeout_s: if run.has_idle_timeout { 30 } else { 0 },
            closed_timeout_s: 5,
            half_open_timeout_s: 0,
            established_timeout_s: 0,
            active_timeout_s: if run.has_active_timeout { 10 } else { 0 },
            end_on_fin_rst: run.end_on_fin_rst,
            actions: Actions::of_dscp(&[Some(46), None]),
        },
        hash: match run.is_keyed {
            true => HashKind::Keyed { seed: 7 },
            false => HashKind::Fenxi,
        },
        max_flows: 8,
        buckets: 2,
        effect: match run.delay_us {
            Some(delay_us) => Effect::PacketTime { delay_us: delay_us.into() },
            None => Effect::Arrival,
        },
        record_series: flowmgr::SeriesShare::ALL,
        flow_id_first: 0,
        flow_id_step: 1,
        inside: flowmgr::Inside::default(),
        expects_counts: false,
        servers: Some(64),
        samples: flowmgr::SeriesShare::ALL,
        measured: measure::Features::ALL,
        behaviour: None,
    }
}

struct Bench {
    manager: Manager,
    ring: Consumer<Slot>,
    time_us: i64,
    /// The next burst.
    data: Vec<u8>,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
    sums: Sums,
}

/// What was given and what came out.
#[derive(Default)]
struct Sums {
    packets: u64,
    finals: u64,
    packets_recorded: u64,
    bytes_recorded: u64,
}

impl Bench {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Talk { forward, flow, flags, length } => {
                self.add(RAW_IP, &talk(*forward, *flow, *flags, *length));
            }
            Step::Frame { link, bytes } => self.add(*link, bytes),
            Step::Later { milliseconds } => {
                self.time_us = self.time_us.saturating_add(i64::from(*milliseconds) * 1000);
            }
            Step::Jump { to_us } => self.time_us = *to_us,
            Step::Burst => self.burst(),
            Step::Answer { class } => self.answer(*class),
            Step::Settle { written } => self.settle((*written).into()),
        }
    }

    fn add(&mut self, link: u16, bytes: &[u8]) {
        self.packets.push(Packet {
            at: self.data.len(),
            captured: bytes.len() as u32,
            wire: u32::MAX,
            link,
            time_us: Packet::clamp_time(self.time_us),
            rss: None,
            gso: flowmgr::Gso::NONE,
        });
        self.data.extend(bytes);
        if self.packets.len() == BURST_MAX {
            self.burst();
        }
    }

    fn burst(&mut self) {
        self.manager.burst(&mut self.data, &self.packets, 0, &mut self.fates);
        assert_eq!(self.fates.len(), self.packets.len());
        self.sums.packets += self.packets.len() as u64;
        assert_eq!(self.manager.counters().verdicts.total(), self.sums.packets);
        self.data.clear();
        self.packets.clear();
    }

    /// Labels the series on the ring, or says that their labels never come.
    fn answer(&mut self, class: Option<u8>) {
        let labels = self.manager.labels();
        let label = match class {
            Some(class) => Label::Class {
                class: u16::from(class % 2),
                confidence: 9,
                source: Source::Model,
                model: 0,
            },
            None => Label::Unlabelled,
        };
        let waiting = self.ring.waiting();
        for i in 0..waiting {
            let flow = self.ring.get(i).flow;
            // Post-mortem where the flow has ended, on arrival.
            let _ = labels.word(0, flow.index).decide(flow.generation, label);
        }
        self.ring.release(waiting);
    }

    fn settle(&mut self, written: u64) {
        let sums = &mut self.sums;
        self.manager.settle(written, 0, &mut |record| {
            if let Record::Flow(flow) = record {
                sums.finals += u64::from(flow.is_final());
                sums.packets_recorded += flow.counts.packets.iter().sum::<u64>();
                sums.bytes_recorded += flow.counts.bytes.iter().sum::<u64>();
            }
        });
    }

    fn finish(mut self) {
        self.burst();
        self.manager.drain();
        self.answer(Some(0));
        self.settle(u64::MAX);
        assert!(self.manager.is_settled());
        assert_eq!(self.manager.flows_alive(), 0);

        let (sums, counters) = (&self.sums, self.manager.counters());
        let reports = counters.flows_ended[EndReason::Active as usize];
        assert_eq!(counters.flows_begun.total(), sums.finals);
        assert_eq!(counters.flows_ended.iter().sum::<u64>(), sums.finals + reports);
        assert_eq!(counters.verdicts.total(), sums.packets);
        let of_flows =
            counters.verdicts.get(Verdict::Labelled) + counters.verdicts.get(Verdict::Unlabelled);
        assert_eq!(of_flows, sums.packets_recorded);
        assert_eq!(counters.flow_bytes, sums.bytes_recorded);
        assert!(counters.labelled_bytes <= counters.flow_bytes);
        assert!(counters.series_shed() <= counters.series_emitted());
    }
}

/// A packet of one of 32 flows, IPv4 or IPv6, TCP or UDP.
fn talk(forward: bool, flow: u8, flags: u8, length: u8) -> Vec<u8> {
    let (is_v6, is_udp) = (flow & 1 != 0, flow & 2 != 0);
    let ends = [[10, 0, 0, 1], [10, 0, 0, 2 + (flow >> 2) % 8]];
    let (source, destination) = (ends[usize::from(!forward)], ends[usize::from(forward)]);
    let mut layer4 = vec![0, 80, 0, 80];
    match is_udp {
        true => layer4.extend([0, 8, 0, 0]),
        false => layer4.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]),
    }
    let size = layer4.len() as u16 + u16::from(length);
    let protocol = if is_udp { 17 } else { 6 };
    let mut packet = Vec::new();
    if is_v6 {
        packet.extend([0x60, 0, 0, 0]);
        packet.extend(size.to_be_bytes());
        packet.extend([protocol, 64]);
        for end in [source, destination] {
            packet.extend([0; 12]);
            packet.extend(end);
        }
    } else {
        packet.extend([0x45, 0]);
        packet.extend((size + 20).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        packet.extend(source);
        packet.extend(destination);
    }
    packet.extend(layer4); // the payload is not captured
    packet
}
