//! The walk on a real mix: frames and flows drawn from a capture, at the rates of 100 Gb/s of real traffic.
//!
//! The table is first brought to the state in which it would be after minutes of such traffic: flows that send, and
//! flows that were silent for less than the idle timeout. Then pieces of the process are laid out in memory, frames at
//! their real lengths, and walked; each piece goes on where the last one ended, with new flows, ends and series.
//!
//! A smaller table gets a smaller share of the traffic: rates are those of a table of 2^22 entries.

use std::path::Path;
use std::time::Instant;

use flowmgr::{BURST_MAX, Packet};

use super::report::{Figure, MPPS};
use super::rig::{BURST, K, Rig, Table};
use super::rounds::interleave;
use super::senders::{Past, Senders};
use super::templates::{Drawn, Templates};
use crate::exit::Failure;

const PACKETS_PER_S: f64 = 13.4e6;
const FLOWS_PER_S: f64 = 56.6e3;
/// Of the table that these rates are for.
const ENTRIES: f64 = (1 << 22) as f64;
const IDLE_TIMEOUT_S: u16 = 30;
/// Packets of a piece, about.
const PIECE: usize = 1 << 20;
/// Time 0 of the process in packet time: later than any past.
const START_S: f64 = 1000.0;

/// The rate at which one core walks the mix, and what it has to spare.
pub fn mix(capture: &Path, entries: usize, seconds: f64) -> Result<Vec<Figure>, Failure> {
    let mut templates = Templates::read(capture)?;
    templates.lengthen(PACKETS_PER_S / FLOWS_PER_S);
    let share = entries as f64 / ENTRIES;
    let mut rig = Rig::new(Table {
        idle_timeout_s: IDLE_TIMEOUT_S,
        ..Table::of(entries)
    })?;
    let mut past = Vec::new();
    let silence_s = f64::from(IDLE_TIMEOUT_S) + 2.0;
    let mut senders = Senders::new(&templates, FLOWS_PER_S * share, silence_s, &mut past);
    let mut piece = Piece::default();
    relive(&mut rig, &templates, &past, &mut piece);
    drop(past);

    let packets = PIECE.min(2 * entries) as f64;
    let begun = rig.manager.counters().flows_begun;
    let mut walked = 0;
    let rates = interleave(seconds, 1, |_| {
        let drawn = senders.window(&templates, packets / (PACKETS_PER_S * share));
        piece.clear();
        for (at_s, packet) in drawn {
            piece.add(&templates, at_s, packet);
        }
        walked += piece.packets.len();
        let start = Instant::now();
        piece.walk(&mut rig, BURST);
        piece.packets.len() as f64 / start.elapsed().as_secs_f64()
    });
    let begun = (rig.manager.counters().flows_begun - begun) as f64;
    let rate = &rates[0];
    let spare = |rate: f64| 1.0 - PACKETS_PER_S / rate;
    let spared = Figure {
        best: spare(rate.best()),
        ..Figure::one(
            "mix, core to spare at 13.4 Mpps",
            "share",
            spare(rate.median()),
        )
    };
    let flows = rig.manager.flows_alive() as f64;
    let new_flows = begun / walked as f64 * PACKETS_PER_S / 1e3;
    Ok(vec![
        Figure::millions("mix", MPPS, rate),
        spared.at_least(0.3),
        Figure::one("mix, flows in the table", "M", flows / 1e6),
        Figure::one("mix, new flows at 13.4 Mpps", "k/s", new_flows),
    ])
}

/// Lets the table meet the flows of the past: of each the packets up to the K-th, all at the time of its last.
fn relive(rig: &mut Rig, templates: &Templates, past: &[Past], piece: &mut Piece) {
    for flows in past.chunks(BURST) {
        piece.clear();
        for flow in flows {
            let packets = flow.sent.min(K as u32 + 1);
            for number in 0..packets {
                let packet = Drawn {
                    template: flow.template,
                    copy: flow.copy,
                    number,
                    is_last: flow.has_ended && number + 1 == packets,
                };
                piece.add(templates, flow.last_s, packet);
            }
        }
        piece.walk(rig, BURST_MAX);
    }
}

/// Frames in memory, and their descriptors.
#[derive(Default)]
struct Piece {
    data: Vec<u8>,
    /// Bytes of `data` in use.
    end: usize,
    packets: Vec<Packet>,
}

impl Piece {
    fn clear(&mut self) {
        self.end = 0;
        self.packets.clear();
    }

    fn add(&mut self, templates: &Templates, at_s: f64, packet: Drawn) {
        let time_us = ((START_S + at_s) * 1e6) as i64;
        let descriptor = templates.write(packet, time_us, &mut self.data, &mut self.end);
        self.packets.push(descriptor);
    }

    fn walk(&mut self, rig: &mut Rig, burst: usize) {
        for packets in self.packets.chunks(burst) {
            rig.burst(&mut self.data, packets);
        }
    }
}
