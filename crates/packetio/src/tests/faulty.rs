//! [`Faults`] around a port of each backend: what it does to frames adds up, and the port goes on.

use std::time::{Duration, Instant};

use super::frames::{numbered, trace};
use super::netns::{Netns, has_ethtool, skip};
use crate::BackendSettings;
use crate::af_packet::AF_PACKET;
use crate::af_xdp::AF_XDP;
use crate::af_xdp::settings::XdpSettings;
use crate::backend::Backend;
use crate::faults::{FaultRates, Faults};
use crate::open::{open, open_tx};
use crate::rx::{Received, Rx, RxCounts, WaitHandle};
use crate::settings::{Direction, FirstPackets, PortSettings};
use crate::tx::{Selection, Tx};

/// More than any receive ring here holds, so that frames that a fault loses must go back to it.
const FRAMES: u32 = 6000;
/// Longer than the kernel needs for anything here.
const SOON: Duration = Duration::from_secs(20);

/// A port as it was opened.
struct Port(Box<dyn Rx>);

impl Rx for Port {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, crate::RxError> {
        self.0.receive(max)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn counts(&mut self) -> RxCounts {
        self.0.counts()
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        self.0.wait_handle()
    }
}

fn settings() -> PortSettings {
    PortSettings {
        direction: Direction::Incoming,
        wait: Duration::ZERO,
        own: BackendSettings {
            xdp: XdpSettings { frames: 1024, ..XdpSettings::default() },
            ..BackendSettings::default()
        },
        ..PortSettings::new("b0")
    }
}

/// Every packet of the one flow comes up.
fn first() -> PortSettings {
    PortSettings {
        first: Some(FirstPackets {
            packets: FRAMES + 1,
            data_packets: FRAMES + 1,
            bulk_bytes: 0,
            forget: Duration::from_secs(60),
            flows: 1024,
            seed: 1,
            labels: None,
            written: None,
        }),
        direction: Direction::Both,
        ..settings()
    }
}

#[test]
fn faults_are_injected_into_each_backend() {
    const TEST: &str = "faults_are_injected_into_each_backend";
    if !has_ethtool() {
        return skip(TEST, "ethtool");
    }
    for (backend, settings) in
        [(&AF_PACKET, settings()), (&AF_PACKET, first()), (&AF_XDP, settings())]
    {
        let Some(netns) = Netns::with_pair(TEST) else {
            return;
        };
        netns.run(
            "for i in a0 b0; do ethtool -K $i tx off tso off gso off gro off rxvlan off \
            txvlan off; done",
        );
        netns.inside(|| go_through(backend, settings));
    }
}

fn go_through(backend: &Backend, settings: PortSettings) {
    let what = format!("{backend:?}, first: {}", settings.first.is_some());
    let rates = FaultRates { loss: 0.2, truncation: 0.1, corruption: 0.1 };
    let rx = open(backend, &[settings], 1).unwrap().remove(0).remove(0).rx;
    let mut faults = Faults::new(Port(rx), rates, 7);
    let mut tx = open_tx(&AF_PACKET, "a0").unwrap();
    let sent = numbered(FRAMES);
    let (mut out, mut cut, mut changed, began) = (0, 0, 0, Instant::now());
    for portion in sent.chunks(100) {
        send(&mut *tx, portion);
        let goal = faults.faults().received + portion.len() as u64;
        while faults.faults().received < goal {
            assert!(began.elapsed() < SOON, "{what}: {:?}", faults.faults());
            let Received::Burst(burst) = faults.receive(33).unwrap() else {
                continue;
            };
            for (i, frame) in burst.frames().iter().enumerate() {
                let bytes = burst.bytes(i);
                out += 1;
                cut += u64::from(bytes.len() < 14);
                changed += u64::from(!sent.iter().any(|it| it.starts_with(bytes)));
                assert!(frame.captured <= frame.wire, "{what}");
            }
        }
    }
    let counts = faults.faults();
    assert_eq!(counts.received, u64::from(FRAMES), "{what}");
    assert_eq!(out, counts.received - counts.lost, "{what}");
    assert!(counts.lost > 1000 && cut > 0 && counts.truncated > cut, "{what}: {counts:?}, {cut}");
    // A flipped bit may lie behind a cut.
    assert!(changed > 0 && changed <= counts.corrupted, "{what}: {counts:?}, {changed}");
    assert_eq!(faults.counts().dropped, 0, "{what}");
}

fn send(tx: &mut dyn Tx, frames: &[Vec<u8>]) {
    let mut trace = trace(frames);
    while let Received::Burst(burst) = trace.receive(100).unwrap() {
        tx.send(&burst, Selection::All).unwrap();
    }
}
