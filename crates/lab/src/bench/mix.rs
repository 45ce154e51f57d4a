//! The walk on a real mix: frames and flows drawn from a capture, at the rates of 100 Gb/s of real
//! traffic.
//!
//! The table is first brought to the state after minutes of such traffic: flows that send, and
//! flows that were silent for less than the idle timeout. Then the traffic continues, with new
//! flows, ends and series: a receive ring is filled with frames of their real lengths and
//! processed; only the processing is timed.
//!
//! Rates are given for a table of 2^22 entries; a smaller table gets a smaller share of the
//! traffic.

use std::path::Path;
use std::time::Instant;

use flowmgr::{BURST_MAX, Packet};

use super::report::{Figure, MPPS};
use super::rig::{BURST, K, Rig, Table};
use super::rounds::{Rates, interleave};
use super::senders::{Past, Senders};
use super::templates::{Drawn, Templates};
use super::threads::thread_s;
use fenxi::exit::Failure;

/// Rates of an average 100 Gb/s link (FENXI §2).
pub const PACKETS_PER_S: f64 = 13.4e6;
const FLOWS_PER_S: f64 = 56.6e3;
/// Entries of the table that the rates are for.
const ENTRIES: f64 = (1 << 22) as f64;
/// Idle timeout of flows.
const IDLE_TIMEOUT_S: u16 = 30;
/// About how many packets are drawn at a time.
const PIECE: usize = 1 << 20;
/// Frames in memory at a time: first as many as a NIC's receive ring holds, which the NIC writes
/// into the last-level cache; then enough that no header is in a cache when its packet is
/// processed.
pub const RINGS: [usize; 2] = [1 << 12, 1 << 17];
/// Time 0 of the process in packet time: later than any past.
pub const START_S: f64 = 1000.0;

/// The rate at which one core processes the mix, and the share of the core that is left.
pub fn mix(capture: &Path, entries: usize, seconds: f64) -> Result<Vec<Figure>, Failure> {
    let (templates, share) = (templates(Some(capture))?, share(entries));
    let mut rig = Rig::new(table(entries))?;
    let mut senders = prepare(&mut rig, &templates, share);
    let mut ring = Ring::default();
    let packets = PIECE.min(2 * entries) as f64;
    let begun = rig.manager.counters().flows_begun.total();
    let mut walked = 0;
    let rates = interleave(seconds, RINGS.len(), |point| {
        let drawn = senders.window(&templates, packets / (PACKETS_PER_S * share));
        walked += drawn.len();
        let mut elapsed_s = 0.0;
        for received in drawn.chunks(RINGS[point]) {
            ring.fill(&templates, received);
            let start = Instant::now();
            ring.walk(&mut rig, BURST);
            elapsed_s += start.elapsed().as_secs_f64();
        }
        drawn.len() as f64 / elapsed_s
    });
    let begun = (rig.manager.counters().flows_begun.total() - begun) as f64;
    let spare = |rate: f64| 1.0 - PACKETS_PER_S / rate;
    let spared = Figure {
        best: spare(rates[0].best()),
        ..Figure::one("mix, core to spare at 13.4 Mpps", "share", spare(rates[0].median()))
    };
    let flows = rig.manager.flows_alive() as f64;
    let new_flows = begun / walked as f64 * PACKETS_PER_S / 1e3;
    Ok(vec![
        Figure::millions("mix", MPPS, &rates[0]),
        Figure::millions("mix, headers out of cache", MPPS, &rates[1]),
        spared.at_least(0.3),
        Figure::one("mix, flows in the table", "M", flows / 1e6),
        Figure::one("mix, new flows at 13.4 Mpps", "k/s", new_flows),
    ])
}

/// The rate of the mix whose series a model answers at once, as a share of the rate where the bench
/// answers them for nothing, by CPU time: both in turn, with the same packets.
pub fn inline(
    capture: &Path,
    entries: usize,
    seconds: f64,
    model: &Path,
) -> Result<Vec<Figure>, Failure> {
    let (templates, share) = (templates(Some(capture))?, share(entries));
    let side = |is_inline| -> Result<(Rig, Senders, Rates), Failure> {
        let mut rig = Rig::of_model(table(entries), model, is_inline)?;
        let senders = prepare(&mut rig, &templates, share);
        Ok((rig, senders, Rates::default()))
    };
    let mut sides = [side(false)?, side(true)?];
    let mut ring = Ring::default();
    let packets = PIECE.min(2 * entries) as f64;
    let series = |rig: &Rig| rig.manager.counters().series_emitted() as f64;
    let walked = |rig: &Rig| rig.manager.counters().verdicts.total() as f64;
    let before = (series(&sides[1].0), walked(&sides[1].0));
    let shares = interleave(seconds, 1, |_| {
        let rates = sides.each_mut().map(|(rig, senders, rates)| {
            let drawn = senders.window(&templates, packets / (PACKETS_PER_S * share));
            let mut elapsed_s = 0.0;
            for received in drawn.chunks(RINGS[0]) {
                ring.fill(&templates, received);
                let start_s = thread_s();
                ring.walk(rig, BURST);
                elapsed_s += thread_s() - start_s;
            }
            let rate = drawn.len() as f64 / elapsed_s;
            rates.add(rate);
            rate
        });
        rates[1] / rates[0]
    });
    let name = model.file_name().unwrap_or_default().display();
    let [by_bench, by_model] = sides;
    let (series, walked) = (series(&by_model.0) - before.0, walked(&by_model.0) - before.1);
    let asked = series / walked * PACKETS_PER_S;
    Ok(vec![
        Figure::millions(format!("mix, answered by the bench, {name}"), MPPS, &by_bench.2),
        Figure::millions(format!("mix, labels inline, {name}"), MPPS, &by_model.2),
        Figure {
            best: shares[0].best(),
            ..Figure::one(format!("the same, share, {name}"), "share", shares[0].median())
        }
        .at_least(0.95),
        Figure::one(format!("mix, series at 13.4 Mpps, {name}"), "k/s", asked / 1e3),
    ])
}

/// Flows of a capture, lengthened until they send all packets of the link.
pub fn templates(capture: Option<&Path>) -> Result<Templates, Failure> {
    let missing = || Failure::usage("--capture FILE is missing, from which flows are drawn");
    let mut templates = Templates::read(capture.ok_or_else(missing)?)?;
    templates.lengthen(PACKETS_PER_S / FLOWS_PER_S);
    Ok(templates)
}

/// A table with the idle timeout of the mix.
pub fn table(entries: usize) -> Table {
    Table { idle_timeout_s: IDLE_TIMEOUT_S, ..Table::with_entries(entries) }
}

/// The share of the link's rates that a table gets.
pub fn share(entries: usize) -> f64 {
    entries as f64 / ENTRIES
}

/// Brings the table to the state after minutes of such traffic; the flows that go on.
pub fn prepare(rig: &mut Rig, templates: &Templates, share: f64) -> Senders {
    let mut past = Vec::new();
    let silence_s = f64::from(IDLE_TIMEOUT_S) + 2.0;
    let senders = Senders::new(templates, FLOWS_PER_S * share, silence_s, &mut past);
    relive(rig, templates, &past, &mut Ring::default());
    senders
}

/// Puts the flows of the past into the table: each flow's packets up to the K-th, all stamped with
/// the time of its last packet.
fn relive(rig: &mut Rig, templates: &Templates, past: &[Past], ring: &mut Ring) {
    let mut received = Vec::new();
    for flows in past.chunks(BURST) {
        received.clear();
        for flow in flows {
            let packets = flow.sent.min(K as u32 + 1);
            received.extend((0..packets).map(|number| {
                let packet = Drawn {
                    template: flow.template,
                    copy: flow.copy,
                    number,
                    is_last: flow.has_ended && number + 1 == packets,
                };
                (flow.last_s, packet)
            }));
        }
        ring.fill(templates, &received);
        ring.walk(rig, BURST_MAX);
    }
}

/// Frames in memory, and their descriptors.
#[derive(Default)]
pub struct Ring {
    data: Vec<u8>,
    packets: Vec<Packet>,
}

impl Ring {
    /// Writes these packets, and nothing else.
    pub fn fill(&mut self, templates: &Templates, received: &[(f64, Drawn)]) {
        let mut at = 0;
        self.packets.clear();
        for (at_s, packet) in received {
            let time_us = ((START_S + at_s) * 1e6) as i64;
            let descriptor = templates.write(*packet, time_us, &mut self.data, at);
            // Frames begin on cache lines, as in receive buffers.
            at = (at + descriptor.captured as usize).next_multiple_of(64);
            self.packets.push(descriptor);
        }
    }

    /// Packets in it.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Takes them through a rig.
    pub fn walk(&mut self, rig: &mut Rig, burst: usize) {
        for packets in self.packets.chunks(burst) {
            rig.burst(&mut self.data, packets);
        }
    }
}
