//! What `scripts/instructions` counts: the walk of packets of labelled flows, 64-byte
//! frames, 1,024 flows in a table of 2,048, bursts of 64. The argument says how many
//! times the 16,384 packets are walked; the difference of two counts is the walk alone.

use cring::{Label, Source};
use flowmgr::hash::HashKind;
use flowmgr::{Actions, Config, Effect, Manager, Packet, SeriesTask};

const FLOWS: usize = 1 << 10;
const PACKETS: usize = 1 << 14;
const FRAME: usize = 64;
const BURST: usize = 64;

/// A UDP frame of flow `flow` over Ethernet and IPv4.
fn frame(flow: usize) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[17] = (FRAME - 14) as u8;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&(flow as u32).to_be_bytes());
    frame[30..34].copy_from_slice(&[198, 51, 100, 1]);
    frame[34..38].copy_from_slice(&[0xc3, 0x50, 0, 53]);
    frame[39] = 30;
    frame
}

fn main() {
    // `cargo bench` adds an option of its own behind ours.
    let rounds: usize = std::env::args()
        .nth(1)
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(1);
    // Nobody answers these flows, and such take half of a ring at most.
    let (producer, mut ring) = cring::ring(2 * FLOWS);
    let config = Config {
        tasks: vec![SeriesTask {
            midstream: true,
            ..SeriesTask::lengths(10, 2)
        }],
        idle_timeout_s: 30,
        closed_timeout_s: 5,
        half_open_timeout_s: 0,
        established_timeout_s: 0,
        active_timeout_s: 0,
        end_on_fin_rst: true,
        hash: HashKind::Keyed { seed: 1 },
        max_flows: 2 * FLOWS,
        buckets: FLOWS / 2,
        effect: Effect::Arrival,
        actions: Actions::of_dscp(&[Some(46), None]),
        record_series: false,
        flow_id_first: 0,
        flow_id_step: 1,
    };
    let mut manager = Manager::new(config, producer).expect("in range");
    // An odd factor scatters the flows.
    let flow_of = |packet: usize| packet.wrapping_mul(0x9e37_79b1) % FLOWS;
    let mut data: Vec<u8> = (0..PACKETS)
        .flat_map(|packet| frame(flow_of(packet)))
        .collect();
    let packets: Vec<Packet> = (0..PACKETS)
        .map(|packet| Packet {
            at: packet * FRAME,
            captured: FRAME as u32,
            link: 1,
            time_us: 0,
            rss: None,
        })
        .collect();
    let mut fates = Vec::with_capacity(BURST);
    // The first 16 packets of each flow: K are collected, then all get their label.
    for burst in packets.chunks(BURST) {
        manager.burst(&mut data, burst, 0, &mut fates);
    }
    let labels = manager.labels();
    let waiting = ring.waiting();
    assert_eq!(waiting, FLOWS);
    for at in 0..waiting {
        let flow = ring.get(at).flow;
        let label = Label::Class {
            class: 0,
            confidence: u16::MAX,
            source: Source::Model,
            model: 0,
        };
        labels
            .word(0, flow.index)
            .decide(flow.generation, label)
            .expect("still waiting");
    }
    ring.release(waiting);
    for _ in 0..rounds {
        for burst in packets.chunks(BURST) {
            manager.burst(&mut data, burst, 0, &mut fates);
        }
    }
}
