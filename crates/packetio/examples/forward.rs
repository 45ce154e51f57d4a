//! A forwarder that does nothing else: what comes in on one of two interfaces leaves by the other. `scripts/bench-live`
//! holds fenxi against it.
//!
//!     forward ONE OTHER

#![allow(
    clippy::expect_used,
    reason = "a program of the bench may end with a message of its own"
)]

use std::time::Duration;

use packetio::{Backend, Direction, Opened, PortSettings, Received, Rx, Selection, Tx, open, wait};

/// As `io.burst`.
const BURST: usize = 128;
/// Empty rounds before it sleeps, as in fenxi.
const ROUNDS_BEFORE_SLEEP: u32 = 1;
const SLEEP: Duration = Duration::from_millis(5);

type Port = (Box<dyn Rx>, Box<dyn Tx>);

fn open_port(interface: &str) -> Port {
    let settings = PortSettings {
        direction: Direction::Incoming,
        is_promiscuous: true,
        wait: Duration::ZERO,
        completes_checksums: true,
        sends: true,
        ..PortSettings::new(interface)
    };
    let mut opened = open(Backend::AfPacket, &settings, 1).expect("the interface is there");
    let Some(Opened { rx, tx: Some(tx) }) = opened.pop() else {
        unreachable!("one port was asked for, and that it sends");
    };
    (rx, tx)
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [one, other] = &names[..] else {
        eprintln!("usage: forward ONE OTHER");
        std::process::exit(64);
    };
    let ((mut one, mut to_one), (mut other, mut to_other)) = (open_port(one), open_port(other));
    let mut idle = 0;
    loop {
        let mut received = 0;
        for (from, to) in [(&mut one, &mut to_other), (&mut other, &mut to_one)] {
            if let Received::Burst(burst) = from.receive(BURST).expect("the interface is there") {
                received += burst.len();
                to.send(&burst, Selection::All)
                    .expect("the interface is there");
            }
        }
        idle = if received == 0 { idle + 1 } else { 0 };
        if idle > ROUNDS_BEFORE_SLEEP {
            wait([&*one, &*other], None, SLEEP);
        }
    }
}
