//! The parser alone, in cached memory: per packet of common shapes, and over the shipped capture, whose packets come in
//! the order of real traffic, so that the branches are as hard to foresee as there.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flowmgr::wire::{self, Headers};
use packetio::{CaptureReader, MemoryTrace, Rx};
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

const ETHERNET: u16 = 1;
/// Packets parsed in one go, as in a burst.
const BURST: u64 = 64;

fn ipv4_tcp() -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    ip.extend([192, 0, 2, 1, 198, 51, 100, 1]);
    ip.extend([
        0xc3, 0x50, 1, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0,
    ]);
    ip
}

/// UDP behind a hop-by-hop options header.
fn ipv6_udp() -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 16, 0, 64];
    ip.extend([0x20; 32]);
    ip.extend([17, 0, 1, 4, 0, 0, 0, 0]);
    ip.extend([0xc3, 0x50, 1, 0xbb, 0, 8, 0, 0]);
    ip
}

/// An Ethernet frame with these tags, EtherTypes before the last included.
fn ethernet(between: &[u8], ethertype: [u8; 2], ip: &[u8]) -> Vec<u8> {
    [&[2; 12], between, &ethertype, ip].concat()
}

fn shapes(criterion: &mut Criterion) {
    let (v4, v6) = ([0x08, 0x00], [0x86, 0xdd]);
    let two_tags = [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2];
    let frames = [
        ("ipv4_tcp", ethernet(&[], v4, &ipv4_tcp())),
        ("two_tags_ipv4_tcp", ethernet(&two_tags, v4, &ipv4_tcp())),
        ("ipv6_hop_by_hop_udp", ethernet(&[], v6, &ipv6_udp())),
        ("arp", ethernet(&[], [0x08, 0x06], &[0; 28])),
    ];
    let mut group = criterion.benchmark_group("parse");
    group.throughput(Throughput::Elements(BURST));
    for (name, frame) in frames {
        assert_eq!(wire::parse(ETHERNET, &frame).is_ok(), name != "arp");
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                (0..BURST)
                    .filter(|_| wire::parse(black_box(ETHERNET), black_box(&frame)).is_ok())
                    .count()
            });
        });
    }
    group.finish();
}

fn capture(criterion: &mut Criterion) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/office.pcap");
    let mut reader = CaptureReader::open(&path).expect("the shipped capture");
    let mut trace = MemoryTrace::load(&mut reader).expect("the shipped capture is sound");
    let packets = trace.len();
    let burst = trace.receive(packets).expect("memory does not fail");
    let burst = burst.burst().expect("it has packets");
    let mut group = criterion.benchmark_group("parse_capture");
    group.throughput(Throughput::Elements(packets as u64));
    group.bench_function("office", |bencher| {
        bencher.iter(|| {
            let frames = burst.frames().iter().enumerate();
            let parsed = frames.map(|(i, frame)| wire::parse(frame.link, burst.bytes(i)));
            parsed
                .flatten()
                .map(|headers: Headers| u64::from(headers.length))
                .sum::<u64>()
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(40);
    targets = shapes, capture
}
criterion_main!(benches);
