//! The small parts of the packet's walk, in cache: the bucket hashes, a look-up with its
//! update, the tag, and a packet that is added to its flow's series.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fenxi_benches::flows::config;
use flowmgr::hash::{HashKind, Hasher, Toeplitz};
use flowmgr::{BareTable, Config, Key, Manager, Packet, Settings, tag};

const BURST: usize = 64;
const UDP: u8 = 17;
const RAW_IP: u16 = 101;

fn key(host: u32) -> Key {
    let server = Ipv4Addr::new(198, 51, 100, 1).into();
    Key::of(
        UDP,
        (Ipv4Addr::from_bits(host).into(), 50_000),
        (server, 53),
    )
}

fn hashes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hash");
    let keyed = Hasher::new(HashKind::Keyed { seed: 1 });
    let fenxi = Hasher::new(HashKind::Fenxi);
    let toeplitz = Toeplitz::new();
    let key = key(7);
    group.bench_function("keyed", |b| b.iter(|| keyed.hash(black_box(&key), None)));
    group.bench_function("fenxi", |b| b.iter(|| fenxi.hash(black_box(&key), None)));
    group.bench_function("toeplitz", |b| b.iter(|| toeplitz.hash(black_box(&key))));
}

fn look_up(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table");
    group.throughput(Throughput::Elements(BURST as u64));
    let mut table = BareTable::new(1 << 10, 1 << 8, 1).expect("memory");
    let keys: Vec<Key> = (0..512).map(key).collect();
    assert!(keys.iter().all(|key| table.insert(key)));
    let mut bursts = keys.chunks(BURST).cycle();
    group.bench_function("look_up", |b| {
        b.iter(|| bursts.next().map(|keys| table.look_up(keys, 1, 64)));
    });
}

fn tagging(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tag");
    for (name, first, length) in [("ipv4", 0x45, 20), ("ipv6", 0x60, 40)] {
        let mut frame = vec![0; 14 + length];
        frame[14] = first;
        let mut dscp = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                dscp = (dscp + 1) & 63;
                tag::set_dscp(black_box(&mut frame), 14, dscp);
            });
        });
    }
}

/// Bursts of one flow each that never reaches K: each packet is added to a series.
fn series(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("series");
    group.throughput(Throughput::Elements(cring::K_MAX as u64 - 1));
    let (producer, _ring) = cring::ring(64);
    let config = Config {
        settings: Settings {
            idle_timeout_s: 1,
            closed_timeout_s: 1,
            ..config(cring::K_MAX, 1 << 10).settings
        },
        ..config(cring::K_MAX, 1 << 10)
    };
    let mut manager = Manager::new(config, producer).expect("in range");
    let mut data = [0; 28];
    data[0] = 0x45;
    data[3] = 28;
    data[9] = UDP;
    data[25] = 8;
    let mut fates = Vec::with_capacity(BURST);
    let mut time_us = 0;
    group.bench_function("collect", |b| {
        b.iter(|| {
            time_us += 10_000_000; // the flow before is over
            let packet = Packet {
                at: 0,
                captured: 28,
                wire: u32::MAX,
                link: RAW_IP,
                time_us,
                rss: None,
                gso: flowmgr::Gso::NONE,
            };
            manager.burst(&mut data, &[packet; cring::K_MAX - 1], 0, &mut fates);
            manager.settle(u64::MAX, 0, &mut |record| drop(black_box(record)));
        });
    });
}

fn settings() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! { name = parts; config = settings(); targets = hashes, look_up, tagging, series }
criterion_main!(parts);
