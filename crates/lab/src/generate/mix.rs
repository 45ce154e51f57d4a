//! A synthetic mix (FENXI, §6): flows begin as a Poisson process, and each copies a flow of the
//! catalogue, drawn with equal chances: number, lengths, directions, flags and distances of its
//! packets.
//!
//! Memory holds the catalogue and, for each flow that still sends, a few words in a heap ordered
//! by the time of its next packet. By Little's law, there are as many such flows as flows per
//! second times their mean duration.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use packetio::{Received, Rx, RxCounts, RxError};

use super::Flows;
use super::catalogue::Catalogue;
use super::ends::Ends;
use super::frames::Frames;
use crate::rng::Rng;

/// The limit on new flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// After this many flows.
    Flows(u64),
    /// After this many seconds of packet time.
    Seconds(f64),
}

/// A copy that still sends. Ordered by the time of its next packet, then by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    next_ns: u64,
    copy: u64,
    begin_us: u64,
    flow: u32,
    /// Index of its next packet.
    packet: u32,
}

/// The mix, as a port that ends with its last flow.
#[derive(Debug)]
pub struct Mix {
    catalogue: Catalogue,
    seed: u64,
    rng: Rng,
    flows_per_s: f64,
    until: Until,
    /// When the next flow begins; `None` once the limit is reached.
    arrival_s: Option<f64>,
    begun: u64,
    running: BinaryHeap<Reverse<Running>>,
    frames: Frames,
}

impl Mix {
    /// Starts a mix.
    pub fn new(catalogue: Catalogue, flows_per_s: f64, until: Until, seed: u64) -> Mix {
        let mut mix = Mix {
            catalogue,
            seed,
            rng: Rng::new(seed),
            flows_per_s,
            until,
            arrival_s: Some(0.0),
            begun: 0,
            running: BinaryHeap::new(),
            frames: Frames::default(),
        };
        mix.draw_arrival();
        mix
    }

    /// How many flows have begun, and of which originals.
    pub fn flows(&self) -> Flows {
        Flows {
            begun: self.begun,
            originals: self.catalogue.flows.len() as u64,
            original_packets: self.catalogue.packets(),
        }
    }

    /// The share of the flows that have begun, 0 to 1.
    pub fn share(&self) -> f64 {
        match (self.arrival_s, self.until) {
            (Some(_), Until::Flows(flows)) => self.begun as f64 / flows as f64,
            (Some(arrival_s), Until::Seconds(seconds)) => arrival_s / seconds,
            (None, _) => 1.0,
        }
    }

    /// Draws when the next flow begins.
    fn draw_arrival(&mut self) {
        let gap_s = self.rng.gap(self.flows_per_s);
        self.arrival_s = self.arrival_s.map(|arrival_s| arrival_s + gap_s).filter(|&arrival_s| {
            match self.until {
                Until::Flows(flows) => self.begun < flows,
                Until::Seconds(seconds) => arrival_s < seconds,
            }
        });
    }

    /// Begins the flows that are due before the next packet of the running ones.
    fn begin_due(&mut self) {
        while let Some(arrival_s) = self.arrival_s {
            // Whole microseconds: see `catalogue::Packet::after_ns`.
            let begin_us = (arrival_s * 1e6) as u64;
            let first_ns = self.running.peek().map(|Reverse(first)| first.next_ns);
            if first_ns.is_some_and(|first_ns| first_ns < begin_us.saturating_mul(1000)) {
                return;
            }
            let flow = self.rng.below(self.catalogue.flows.len() as u32);
            let first = &self.catalogue.flows[flow as usize].packets[0];
            self.running.push(Reverse(Running {
                next_ns: begin_us.saturating_mul(1000).saturating_add(first.after_ns),
                copy: self.begun,
                begin_us,
                flow,
                packet: 0,
            }));
            self.begun += 1;
            self.draw_arrival();
        }
    }

    /// Appends the frame of a copy's packet.
    fn write(&mut self, running: Running) {
        let flow = &self.catalogue.flows[running.flow as usize];
        let packet = &flow.packets[running.packet as usize];
        let ends = Ends::new(self.seed, running.copy, packet.model.is_v6, flow.server_port);
        let bytes = self.catalogue.bytes(packet);
        let after_us = i64::try_from(running.next_ns / 1000).unwrap_or(i64::MAX);
        let frame = self.frames.push(
            packet.model.length,
            packet.model.length as u32,
            self.catalogue.start_us.saturating_add(after_us),
            (running.next_ns % 1000) as u16,
        );
        packet.model.write(bytes, &ends, frame);
    }
}

impl Rx for Mix {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        self.frames.clear();
        while self.frames.len() < max.max(1) {
            self.begin_due();
            let Some(Reverse(running)) = self.running.pop() else {
                break;
            };
            self.write(running);
            let packets = &self.catalogue.flows[running.flow as usize].packets;
            if let Some(next) = packets.get(running.packet as usize + 1) {
                self.running.push(Reverse(Running {
                    next_ns: running.begin_us.saturating_mul(1000).saturating_add(next.after_ns),
                    packet: running.packet + 1,
                    ..running
                }));
            }
        }
        Ok(self.frames.burst())
    }

    fn name(&self) -> &str {
        "mix"
    }

    fn counts(&mut self) -> RxCounts {
        self.frames.counts
    }
}
