//! Labels in the kernel: which packets are elements, and when they are reported.

use std::sync::Arc;

use super::packets::*;
use super::*;
use crate::{KernelDepth, KernelLabels};

/// Asks about flows after 1, 2 and 3 elements; there is no network, so user space labels all.
fn labels() -> KernelLabels {
    let depth = |k| KernelDepth { k, sure: 30_000, contradicts: None };
    KernelLabels {
        net: Vec::new(),
        generation: 0,
        depths: [1, 2, 3].map(depth).to_vec(),
        least: vec![0; 4],
        sure_classes: 4,
        ports: Vec::new(),
        is_ports_first: true,
        keeps_collecting: false,
        marks: None,
        dscp: Vec::new(),
    }
}

fn with(labels: KernelLabels) -> FirstPackets {
    FirstPackets { labels: Some(Arc::new(labels)), ..first(4) }
}

#[test]
fn without_a_network_user_space_labels_all_flows() {
    let Some(netns) = namespace("without_a_network_user_space_labels_all_flows") else { return };
    netns.inside(|| {
        let mut bench = Bench::new(with(labels()));
        let packet = udp(v4(1, 4000), v4(2, 5000), 100);
        bench.send([packet, packet.back(), packet]);
        std::thread::sleep(Duration::from_millis(50));
        let up = bench.up_now();
        assert_eq!(up.frames.len(), 3);
    });
}
