//! A forwarder that does nothing else: what comes in on one of two interfaces leaves by the other. `scripts/bench-live`
//! holds fenxi against it.
//!
//!     forward ONE OTHER

#![allow(
    clippy::expect_used,
    reason = "a program of the bench may end with a message of its own"
)]

use std::time::Duration;

use packetio::af_packet::{Direction, PortConfig, Transmit, TransmitConfig, rest};
use packetio::{AfPacket, Port};

/// As `io.burst`.
const BURST: usize = 128;
/// Rounds in vain before it rests, as in fenxi's lanes.
const ROUNDS_BEFORE_REST: u32 = 1;
const REST: Duration = Duration::from_millis(5);

fn open(interface: &str) -> (AfPacket, Transmit) {
    let receiving = PortConfig {
        direction: Direction::Incoming,
        is_promiscuous: true,
        wait: Duration::ZERO,
        completes_checksums: true,
        ..PortConfig::new(interface)
    };
    let sending = TransmitConfig {
        interface: interface.to_owned(),
        bypasses_qdisc: false,
        sends_merged: true,
    };
    let port = AfPacket::open(&receiving).expect("the interface receives");
    (port, Transmit::open(&sending).expect("the interface sends"))
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [one, other] = &names[..] else {
        eprintln!("usage: forward ONE OTHER");
        std::process::exit(64);
    };
    let ((mut one, mut to_one), (mut other, mut to_other)) = (open(one), open(other));
    let mut idle = 0;
    loop {
        let mut received = 0;
        for (from, to) in [(&mut one, &mut to_other), (&mut other, &mut to_one)] {
            let burst = from.receive(BURST).expect("the interface is there");
            let burst = burst.expect("interfaces do not end");
            received += burst.len();
            to.send(&burst).expect("the interface is there");
        }
        idle = if received == 0 { idle + 1 } else { 0 };
        if idle > ROUNDS_BEFORE_REST {
            rest([&one, &other], REST);
        }
    }
}
