//! The program on real interfaces: veth pairs in network namespaces. Without root and `ip` the
//! tests are skipped by name.

mod editions;
mod filters;
mod flows;
mod frames;
mod interfaces;
mod keys;
mod labels;
mod marks;
mod merged;
mod packets;
pub(super) mod rights;
mod rings;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::net::{SendFlags, send};

use crate::af_packet::AF_PACKET;
use crate::backend::Opened;
use crate::burst::Frame;
use crate::first::FlowCounts;
use crate::interface::Interface;
use crate::open::open;
use crate::rx::{Notice, Received, RxCounts};
use crate::settings::{Direction, FirstPackets, PortSettings};
use crate::sys;
use crate::tests::netns::{Netns, skip};
use packets::{Packet, flow};

/// Longer than the kernel needs for anything here.
const SOON: Duration = Duration::from_secs(10);

/// A namespace with the pair `a0`, `b0`; `None`, said on the terminal, where there can be none.
fn namespace(test: &str) -> Option<Netns> {
    Netns::with_pair(test)
}

/// The first `packets` of each flow, and nothing is forgotten.
fn first(packets: u32) -> FirstPackets {
    FirstPackets {
        packets,
        data_packets: 0,
        bulk_bytes: 0,
        forget: Duration::ZERO,
        flows: 1 << 12,
        seed: 0x5eed_5eed_5eed_5eed,
        labels: None,
        written: None,
    }
}

/// What comes in at `b0`.
fn settings(first: FirstPackets) -> PortSettings {
    PortSettings {
        direction: Direction::Incoming,
        first: Some(first),
        blocks: 16,
        ..PortSettings::new("b0")
    }
}

/// One end of the pair, to send on. Frames go through the queueing discipline, where the program
/// sees them.
struct Wire(OwnedFd);

impl Wire {
    fn new(interface: &str) -> Wire {
        let interface = Interface::open(interface).unwrap();
        let socket = sys::packet_socket().unwrap();
        sys::bind(socket.as_fd(), interface.index as i32, sys::NO_PROTOCOL).unwrap();
        Wire(socket)
    }

    fn send(&self, frame: &[u8]) {
        let sent = send(&self.0, frame, SendFlags::empty()).unwrap();
        assert_eq!(sent, frame.len());
    }
}

/// A frame that came up.
#[derive(Clone, Debug)]
struct Up {
    frame: Frame,
    bytes: Vec<u8>,
    /// Number of the port.
    port: usize,
}

/// One burst, or several in a row.
#[derive(Default)]
struct Bursts {
    frames: Vec<Up>,
    counts: Vec<FlowCounts>,
}

/// The ports of `b0`, what their counts said last of each flow, and the other end of the pair.
struct Bench {
    ports: Vec<Opened>,
    wire: Wire,
    told: HashMap<(u8, [(IpAddr, u16); 2]), FlowCounts>,
    /// Packets sent so far.
    sent: u64,
}

impl Bench {
    /// One port for what comes in at `b0`.
    fn new(first: FirstPackets) -> Bench {
        Bench::with(&settings(first), 1)
    }

    fn with(settings: &PortSettings, workers: u16) -> Bench {
        let mut ports = open(&AF_PACKET, std::slice::from_ref(settings), workers).unwrap();
        Bench { ports: ports.remove(0), wire: Wire::new("a0"), told: HashMap::new(), sent: 0 }
    }

    fn send(&mut self, packets: impl IntoIterator<Item = Packet>) {
        for packet in packets {
            self.wire.send(&packet.bytes());
            self.sent += 1;
        }
    }

    /// The sums of all ports.
    fn sums(&mut self) -> RxCounts {
        let mut sums = RxCounts::default();
        let ports = self.ports.iter_mut();
        ports.for_each(|port| sums.merge(&port.rx.counts()));
        sums
    }

    /// The next burst of a port, empty if there is nothing; notes what it tells of flows.
    fn burst(&mut self, port: usize, max: usize) -> Bursts {
        let Received::Burst(burst) = self.ports[port].rx.receive(max).unwrap() else {
            return Bursts::default();
        };
        let up = |(i, frame): (usize, &Frame)| Up {
            frame: *frame,
            bytes: burst.bytes(i).to_vec(),
            port,
        };
        let bursts = Bursts {
            frames: burst.frames().iter().enumerate().map(up).collect(),
            counts: burst.counts().to_vec(),
        };
        for counts in &bursts.counts {
            self.told.insert((counts.protocol, counts.ends), *counts);
        }
        bursts
    }

    /// Waits until the kernel has seen as many packets as were sent. Then none is on its way.
    fn arrived(&mut self) -> RxCounts {
        let began = Instant::now();
        loop {
            let sums = self.sums();
            // Read after the sums: elements that are reported in between count as neither for now,
            // and never twice.
            let kept = self.ports[0].enough.as_ref().unwrap().0.elements_kept();
            let seen = sums.offered + sums.counted + kept;
            if seen >= self.sent {
                assert_eq!(seen, self.sent, "{sums:?}, {kept} kept");
                return sums;
            }
            assert!(began.elapsed() < SOON, "{} sent, {sums:?}, {kept} kept", self.sent);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What came up of all that was sent.
    fn up(&mut self) -> Bursts {
        self.arrived();
        self.up_now()
    }

    /// What came up and waits.
    fn up_now(&mut self) -> Bursts {
        let began = Instant::now();
        let mut up = Bursts::default();
        for port in 0..self.ports.len() {
            while self.ports[port].rx.counts().waiting != 0 {
                assert!(began.elapsed() < SOON);
                let burst = self.burst(port, 64);
                up.frames.extend(burst.frames);
                up.counts.extend(burst.counts);
            }
        }
        up
    }

    /// How many packets of those sent came up.
    fn how_many_up(&mut self) -> usize {
        self.up().frames.len()
    }

    /// Sends packets; how many of them came up.
    fn up_of(&mut self, packets: impl IntoIterator<Item = Packet>) -> usize {
        self.send(packets);
        self.how_many_up()
    }

    /// Asks for all counts at once.
    fn drain(&mut self) {
        self.arrived();
        for port in 0..self.ports.len() {
            self.ports[port].rx.notify(Notice::Drain);
            while let Received::Burst(burst) = self.ports[port].rx.receive(64).unwrap() {
                for counts in burst.counts() {
                    self.told.insert((counts.protocol, counts.ends), *counts);
                }
            }
        }
    }

    /// Packets and bytes of a packet's flow as they were told last, from its source and to it;
    /// nothing if they never were.
    fn counted(&self, packet: &Packet) -> ([u64; 2], [u64; 2]) {
        let Some(counts) = self.told.get(&flow(packet)) else {
            return ([0; 2], [0; 2]);
        };
        let is_low = counts.ends[0] == packet.from;
        let turned = |[low, high]: [u64; 2]| if is_low { [low, high] } else { [high, low] };
        (turned(counts.packets), turned(counts.bytes))
    }

    /// The same after all counts were asked for; packets alone.
    fn packets_counted(&mut self, packet: &Packet) -> [u64; 2] {
        self.drain();
        self.counted(packet).0
    }
}

fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON);
        std::thread::yield_now();
    }
}

/// Wall time, µs.
fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_micros() as i64
}
