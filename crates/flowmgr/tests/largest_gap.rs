//! A part of flows from outside: the largest gap between two packets of a flow. It needs no line
//! anywhere else.

use cring::ring;
use flowmgr::hash::HashKind;
use flowmgr::wire::Gso;
use flowmgr::{
    Actions, Config, Counts, Effect, First, Inside, Manager, Packet, Part, Seen, SeriesShare,
    Settings, TaskConfig,
};

/// By entry: the time of the last packet, and the largest gap so far, µs.
struct LargestGap {
    flows: Vec<(i64, i64)>,
    /// The largest gap of each flow that has ended.
    ended_us: Vec<i64>,
}

impl LargestGap {
    fn new(max_flows: usize) -> LargestGap {
        LargestGap {
            flows: vec![(0, 0); Manager::<LargestGap>::entries(max_flows)],
            ended_us: Vec::new(),
        }
    }
}

impl Part for LargestGap {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        self.flows[index as usize] = (first.time_us, 0);
    }

    fn packet(&mut self, index: u32, packet: &Seen<'_>) {
        let (last_us, gap_us) = &mut self.flows[index as usize];
        *gap_us = (*gap_us).max(packet.time_us - *last_us);
        *last_us = packet.time_us;
    }

    fn end(&mut self, index: u32, _: &Counts) {
        self.ended_us.push(self.flows[index as usize].1);
    }
}

const MAX_FLOWS: usize = 64;

fn config() -> Config {
    Config {
        tasks: vec![TaskConfig::lengths(3, 2)],
        inside: Inside::default(),
        settings: Settings {
            idle_timeout_s: 30,
            closed_timeout_s: 5,
            half_open_timeout_s: 0,
            established_timeout_s: 0,
            active_timeout_s: 0,
            end_on_fin_rst: true,
            actions: Actions::of_dscp(&[None; 2]),
        },
        hash: HashKind::Keyed { seed: 1 },
        max_flows: MAX_FLOWS,
        buckets: 8,
        effect: Effect::Arrival,
        record_series: SeriesShare::NONE,
        flow_id_first: 0,
        flow_id_step: 1,
        expects_counts: false,
        behaviour: None,
        servers: None,
        samples: flowmgr::SeriesShare::NONE,
        measured: Default::default(),
    }
}

/// UDP over raw IPv4, without payload.
fn datagram(from: u8) -> [u8; 28] {
    let mut packet = [0; 28];
    packet[..4].copy_from_slice(&[0x45, 0, 0, 28]);
    (packet[8], packet[9]) = (64, 17);
    packet[12..20].copy_from_slice(&[10, 0, 0, from, 10, 0, 0, 9]);
    packet[20..28].copy_from_slice(&[0, 80, 0, 81, 0, 8, 0, 0]);
    packet
}

#[test]
fn a_part_sees_each_packet_of_its_flow() {
    let (producer, _ring) = ring(64);
    let part = LargestGap::new(MAX_FLOWS);
    let mut manager = Manager::with_parts(config(), vec![vec![producer]], part).unwrap();
    let mut fates = Vec::new();
    let packets = [(1, 0), (2, 5), (1, 1_000), (1, 9_000), (2, 9_001), (1, 9_500)];
    for (from, time_us) in packets {
        let mut data = datagram(from);
        let packet = Packet {
            at: 0,
            captured: data.len() as u32,
            wire: u32::MAX,
            link: 101,
            time_us,
            rss: None,
            gso: Gso::NONE,
        };
        manager.burst(&mut data, &[packet], 0, &mut fates);
    }
    manager.drain();
    manager.settle(u64::MAX, 0, &mut |_| {});
    assert_eq!(manager.parts().ended_us, [8_000, 8_996]);
    assert!(manager.is_settled());
}
