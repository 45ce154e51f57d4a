//! The memory of servers, told by the walk: which flows count, with how many bytes.

use super::*;
use cring::{Context, NOTHING_KNOWN};

fn remembering() -> Config {
    Config { servers: Some(64), tasks: vec![task(&[1], 0)], ..config() }
}

/// What the next series says of its server: its mean bytes' log2, and its flows.
fn told(bench: &mut Bench) -> [f32; 2] {
    assert!(bench.ring.waiting() > 0, "a series");
    let series = &bench.ring.get(0).series;
    let told = [Context::ServerVolume, Context::ServerFlows].map(|it| it.value(series));
    bench.ring.release(1);
    told
}

/// A flow of three packets to host 2, of 40 bytes each; it ends. `flags` of the first packet.
fn flow(bench: &mut Bench, from: u8, at_us: i64, flags: u8) {
    bench.burst(&[tcp(at_us, from, 2, flags), tcp(at_us + 3 * SECOND_US, 2, from, TCP_ACK)]);
    bench.burst(&[tcp(at_us + 6 * SECOND_US, from, 2, TCP_RST)]);
    bench.manager.pass(at_us + 60 * SECOND_US);
    while bench.manager.flows_alive() > 0 {
        bench.manager.pass(at_us + 60 * SECOND_US);
    }
}

#[test]
fn a_flow_counts_when_it_leaves_the_table_with_all_its_bytes() {
    for active_timeout_s in [0, 2] {
        let mut config = remembering();
        config.settings.active_timeout_s = active_timeout_s;
        let mut bench = Bench::new(config);
        flow(&mut bench, 1, 0, TCP_SYN);
        assert_eq!(told(&mut bench), [NOTHING_KNOWN[0], 0.0]);
        // Nobody has settled yet: by packet time the record may wait for a label.
        assert_eq!(bench.manager.flows_unrecorded(), 1);
        flow(&mut bench, 3, 100 * SECOND_US, TCP_SYN);
        let [volume, flows] = told(&mut bench);
        // 120 bytes four times drawn to the wider cell's mean by a third, from 5000 bytes on.
        let mean = (0..4).fold(5000.0, |wider: f64, _| (120.0 + 2.0 * wider) / 3.0);
        let log2 = (mean.floor() + 1.0) / 1024.0 - 1.0 + 10.0;
        assert!((f64::from(volume) - log2).abs() < 1e-4, "{volume} instead of {log2}");
        assert_eq!(flows, 1.0);
        bench.settle();
        let counters = bench.manager.counters().servers;
        assert_eq!((counters.cells, counters.evicted, counters.unknown), (3, 0, 1));
    }
}

#[test]
fn flows_that_begin_midstream_neither_count_nor_ask() {
    let mut bench = Bench::new(remembering());
    flow(&mut bench, 1, 0, TCP_ACK);
    flow(&mut bench, 3, 100 * SECOND_US, TCP_SYN);
    flow(&mut bench, 4, 200 * SECOND_US, TCP_ACK);
    let all: Vec<[f32; 2]> = (0..3).map(|_| told(&mut bench)).collect();
    assert_eq!(all, [[NOTHING_KNOWN[0], 0.0]; 3]);
}
