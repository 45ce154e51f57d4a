//! A forwarder that does nothing else: what comes in on one of two interfaces leaves by the other.
//! `figures/live` holds fenxi against it.
//!
//!     forward ONE OTHER [BACKEND]

#![allow(clippy::expect_used, reason = "a program of the bench may end with a message of its own")]

use std::time::Duration;

use packetio::{Backend, Direction, Opened, PortSettings, Received, Selection, open, wait};

/// As `io.burst`.
const BURST: usize = 128;
/// Empty rounds before it sleeps, as in fenxi.
const ROUNDS_BEFORE_SLEEP: u32 = 1;
const SLEEP: Duration = Duration::from_millis(5);

fn settings(interface: &str) -> PortSettings {
    PortSettings {
        direction: Direction::Incoming,
        is_promiscuous: true,
        wait: Duration::ZERO,
        completes_checksums: true,
        sends: true,
        ..PortSettings::new(interface)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let backend = arguments.get(2).map_or(Some(<&Backend>::default()), |name| Backend::parse(name));
    let (Some([one, other]), Some(backend)) = (arguments.first_chunk(), backend) else {
        eprintln!("usage: forward ONE OTHER [BACKEND]");
        std::process::exit(64);
    };
    let opened =
        open(backend, &[settings(one), settings(other)], 1).expect("both interfaces are there");
    let mut ports =
        opened.into_iter().flatten().map(|Opened { rx, tx, .. }| (rx, tx.expect("it sends")));
    let (Some((mut one, mut to_one)), Some((mut other, mut to_other))) =
        (ports.next(), ports.next())
    else {
        unreachable!("a port was asked for on each interface");
    };
    let mut idle = 0;
    loop {
        let mut received = 0;
        for (from, to) in [(&mut one, &mut to_other), (&mut other, &mut to_one)] {
            if let Received::Burst(burst) = from.receive(BURST).expect("the interface is there") {
                received += burst.len();
                to.send(&burst, Selection::All).expect("the interface is there");
            }
        }
        idle = if received == 0 { idle + 1 } else { 0 };
        if idle > ROUNDS_BEFORE_SLEEP {
            wait([&*one, &*other], None, SLEEP);
        }
    }
}
