//! What `scripts/instructions` counts: the walk of packets of labelled flows, 64-byte
//! frames, 1,024 flows in a table of 2,048, bursts of 64. The argument says how many
//! times the 16,384 packets are walked; the difference of two counts is the walk alone.

use fenxi_benches::flows::{config, label_all};
use flowmgr::{Manager, Packet};

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
    let mut manager = Manager::new(config(10, 2 * FLOWS), producer).expect("in range");
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
    assert_eq!(label_all(&mut ring, &*labels), (FLOWS, FLOWS));
    for _ in 0..rounds {
        for burst in packets.chunks(BURST) {
            manager.burst(&mut data, burst, 0, &mut fates);
        }
    }
}
