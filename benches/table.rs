//! The packet's walk through the flow manager, in bursts of 32 with parse, hash and tag.
//!
//! *Known flows*: every packet is one of a labelled flow, in an order without locality, so that at
//! 2²⁰ flows each packet misses the caches twice, for its bucket and its entry. *New flows*: every
//! packet begins a flow, and the flows before it end by idle timeout and are settled; this is the
//! life of a flow of one packet, its sweep and its record.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fenxi_benches::flows::{config, label_all};
use flowmgr::{Config, Manager, Packet, Settings};
use std::hint::black_box;
use std::time::Duration;

const BURST: usize = 32;
const RAW_IP: u16 = 101;
const UDP_PACKET: usize = 28;

/// A manager with room for `flows`, K = 1, and the far end of its ring.
fn manager(flows: usize, idle_timeout_s: u16) -> (Manager, cring::Consumer<cring::Slot>) {
    let config = Config {
        settings: Settings { idle_timeout_s, ..config(1, flows).settings },
        ..config(1, flows)
    };
    let (producer, consumer) = cring::ring(4 * BURST);
    (Manager::new(config, producer).expect("in range"), consumer)
}

/// UDP packets one after the other in one buffer, and where each lies.
struct Packets {
    data: Vec<u8>,
    packets: Vec<Packet>,
}

impl Packets {
    /// Packet i is of flow `flow_of(i)`.
    fn new(count: usize, flow_of: impl Fn(usize) -> u32) -> Packets {
        let mut data = Vec::with_capacity(count * UDP_PACKET);
        for i in 0..count {
            data.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
            data.extend(flow_of(i).to_be_bytes());
            data.extend([198, 51, 100, 1, 0xc3, 0x50, 0, 53, 0, 8, 0, 0]);
        }
        let packet = |i| Packet {
            at: i * UDP_PACKET,
            captured: UDP_PACKET as u32,
            wire: u32::MAX,
            link: RAW_IP,
            time_us: 0,
            rss: None,
            gso: flowmgr::Gso::NONE,
        };
        Packets { data, packets: (0..count).map(packet).collect() }
    }
}

fn known_flows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("known_flows");
    group.throughput(Throughput::Elements(BURST as u64));
    for bits in [16, 20] {
        let flows = 1usize << bits;
        let (mut manager, mut ring) = manager(flows, 30);
        // An odd factor permutes the numbers below a power of two.
        let scattered = |i: usize| (i.wrapping_mul(0x9e37_79b1) % flows) as u32;
        let Packets { mut data, packets } = Packets::new(flows, scattered);
        let mut fates = Vec::with_capacity(BURST);
        let labels = manager.labels();
        for burst in packets.chunks(BURST) {
            manager.burst(&mut data, burst, 0, &mut fates);
            let (series, labelled) = label_all(&mut ring, &*labels);
            assert_eq!(series, labelled, "each flow waits for its label");
        }
        assert_eq!(manager.flows_alive(), flows);
        manager.settle(u64::MAX, 0, &mut |record| {
            black_box(record);
        });

        let mut bursts = packets.chunks(BURST).cycle();
        group.bench_function(format!("2^{bits}"), |bencher| {
            bencher.iter(|| {
                let burst = bursts.next().expect("it goes round");
                manager.burst(&mut data, burst, 0, &mut fates);
            });
        });
        assert_eq!(manager.flows_alive(), flows);
    }
    group.finish();
}

/// Flows begin every 16 µs and are over after one to two seconds, so some 2¹⁷ are alive.
fn new_flows(criterion: &mut Criterion) {
    const GAP_US: i64 = 16;
    let (mut manager, ring) = manager(1 << 18, 1);
    drop(ring); // series of one packet are shed
    let Packets { mut data, mut packets } = Packets::new(BURST, |_| 0);
    let mut fates = Vec::with_capacity(BURST);
    let (mut flow, mut records) = (0u32, 0u64);
    let mut group = criterion.benchmark_group("new_flows");
    group.throughput(Throughput::Elements(BURST as u64));
    group.bench_function("begin_to_record", |bencher| {
        bencher.iter(|| {
            for packet in &mut packets {
                flow = flow.wrapping_add(1);
                packet.time_us += BURST as i64 * GAP_US;
                data[packet.at + 12..packet.at + 16].copy_from_slice(&flow.to_be_bytes());
            }
            manager.burst(&mut data, &packets, 0, &mut fates);
            manager.settle(u64::MAX, 0, &mut |record| {
                black_box(record);
                records += 1;
            });
        });
    });
    let alive = manager.flows_alive() as u64;
    assert!(records + alive == u64::from(flow) && alive < 1 << 18);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(1000))
        .measurement_time(Duration::from_secs(2))
        .sample_size(40);
    targets = known_flows, new_flows
}
criterion_main!(benches);
