//! The whole packet path in memory on one core: parse, hash, table, count, series, label, tag.
//!
//! *Uniform* and *Zipf*: packets of labelled flows in a half-full table. *In a cache*: the same
//! with few flows and few frames, so that what is left is instructions. *New flows*: every packet
//! begins a flow, and earlier flows end by idle timeout and give their records. *Mix*: see
//! [`super::mix`]. *No-op*: see [`super::rig::no_op`]. *Bound* and look-up: see [`super::lookup`].
//!
//! Bars are ratios to other points of the same rounds, because rates differ by processor and by
//! hour.

use flowmgr::Pages;

use super::frames::{Frames, Tuple, zipf};
use super::lookup::{BOUND, Bound, SHARE, loaded, look_up};
use super::mix::{inline, mix};
use super::report::{Figure, MPPS, Report};
use super::rig::{BURST, GAP_NS, Rig, Table, no_op};
use super::rounds::{Rates, interleave};
use super::series::inline_models as models;
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Packet time of one pass of new flows. It is longer than an idle timeout of one second plus the
/// sweep, so that the same frames begin new flows in the next pass.
const NEW_PASS_NS: u64 = 4_000_000_000;
/// Numbers of flows beside half of the table's entries, unless `--flows` says otherwise.
const FLOWS: [u32; 1] = [1 << 10];
/// Flows and frames that stay in a core's own cache, and packets of a pass over them.
const CACHED_FLOWS: u32 = 1 << 10;
const CACHED_FRAMES: usize = 1 << 12;
const CACHED_PACKETS: usize = 1 << 20;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries.unwrap_or(1 << 22);
    let seconds = args.seconds / 2.0;
    let others = if args.flows.is_empty() { &FLOWS[..] } else { &args.flows };
    let (mut figures, pages) = prepared(entries, others, seconds)?;
    let mut skipped = Vec::new();
    match &args.capture {
        Some(capture) => {
            figures.extend(mix(capture, entries, seconds)?);
            for model in models(args)? {
                figures.extend(inline(capture, entries, seconds, &model)?);
            }
        }
        None => skipped.push("mix: needs --capture FILE".to_owned()),
    }
    Ok(Report {
        bench: "walk",
        title: "The whole packet path in memory, one core",
        x: "flows",
        machine: Machine::here(pages),
        figures,
        skipped,
    })
}

/// Labelled flows in a half-full table, and packets drawn from them with equal chances.
struct Loaded {
    flows: u32,
    rig: Rig,
    frames: Frames,
    /// Passes over the frames that are one measurement.
    passes: usize,
}

impl Loaded {
    fn new(flows: u32, frames: usize) -> Result<Loaded, Failure> {
        let mut rig = Rig::new(Table::with_entries(2 * flows as usize))?;
        rig.preload(flows as usize, |i| Tuple::from_flow(i as u32));
        let mut rng = Rng::new(1);
        let frames = Frames::new(frames, |_| Tuple::from_flow(rng.below(flows)));
        Ok(Loaded { flows, rig, frames, passes: 1 })
    }

    /// Packets per second.
    fn rate(&mut self) -> f64 {
        let each = (0..self.passes).map(|_| self.rig.pass(&mut self.frames, BURST, GAP_NS).recip());
        self.passes as f64 / each.sum::<f64>()
    }
}

/// What is measured in turn: these, then the other numbers of flows, then the reads of the bound.
const UNIFORM: usize = 0;
const ZIPF: usize = 1;
const NO_OP: usize = 2;
const NEW: usize = 3;
const LOOK_UP: usize = 4;
const CACHED: usize = 5;
const OTHERS: usize = 6;

/// All results except the mix.
fn prepared(entries: usize, others: &[u32], seconds: f64) -> Result<(Vec<Figure>, Pages), Failure> {
    let flows = entries as u32 / 2;
    let mut uniform = Loaded::new(flows, entries)?;
    let others = others.iter().filter(|&&other| other != flows);
    let others = others.map(|&other| Loaded::new(other, entries));
    let mut others = others.collect::<Result<Vec<Loaded>, Failure>>()?;
    let passes = CACHED_PACKETS.min(entries).div_ceil(CACHED_FRAMES);
    let mut cached = Loaded { passes, ..Loaded::new(CACHED_FLOWS, CACHED_FRAMES)? };
    let mut rng = Rng::new(1);
    let zipf = zipf(flows);
    let mut skewed =
        Frames::new(entries, |_| Tuple::from_flow(zipf.draw(&mut rng).unwrap_or_default()));
    let mut turnover = Rig::new(Table { idle_timeout_s: 1, ..Table::with_entries(entries) })?;
    let mut fresh = Frames::new(entries, |i| Tuple::from_flow(i as u32));
    let new_gap_ns = NEW_PASS_NS / entries as u64;
    let (mut table, bound) = (loaded(entries)?, Bound::new(entries)?);

    let mut passes = 0;
    let reads = OTHERS + others.len();
    let rates = interleave(seconds, reads + Bound::POINTS, |point| match point {
        UNIFORM => uniform.rate(),
        ZIPF => uniform.rig.pass(&mut skewed, BURST, GAP_NS),
        NO_OP => no_op(&mut uniform.frames, BURST),
        NEW => {
            passes += 1;
            turnover.pass(&mut fresh, BURST, new_gap_ns)
        }
        LOOK_UP => look_up(&mut table, &mut rng, entries),
        CACHED => cached.rate(),
        _ => match others.get_mut(point - OTHERS) {
            Some(other) => other.rate(),
            None => bound.rate(point - reads, entries),
        },
    });
    let begun = turnover.manager.counters().flows_begun.total();
    if begun != passes * entries as u64 {
        let passed = passes * entries as u64;
        let error = format!("{begun} flows begun by {passed} packets, each of a new flow");
        return Err(Failure::software(error));
    }
    let others: Vec<u32> = others.iter().map(|other| other.flows).collect();
    Ok((figures(&rates, flows, &others), uniform.rig.pages()))
}

/// `others` are the other numbers of flows.
fn figures(rates: &[Rates], flows: u32, others: &[u32]) -> Vec<Figure> {
    let (rates, reads) = rates.split_at(OTHERS + others.len());
    let bound = Bound::of(reads);
    let of = |point: usize| rates[point].both();
    let mut by_flows = vec![(flows, &rates[UNIFORM])];
    by_flows.extend(others.iter().copied().zip(&rates[OTHERS..]));
    by_flows.sort_by_key(|(flows, _)| *flows);
    let at = |flows: u32| f64::from(flows);
    let uniform = by_flows
        .iter()
        .map(|(flows, rates)| Figure::millions("uniform", MPPS, rates).at(at(*flows)));
    let mut figures: Vec<Figure> = uniform.collect();
    figures.extend([
        Figure::millions("Zipf(1.0)", MPPS, &rates[ZIPF]),
        Figure::millions("new flows", MPPS, &rates[NEW]),
        Figure::millions("in a cache", MPPS, &rates[CACHED]),
        Figure::millions("no-op", MPPS, &rates[NO_OP]),
        Figure::millions("look-up and update", "M/s", &rates[LOOK_UP]),
        Figure::pair(BOUND, "M/s", bound.map(|rate| rate / 1e6)),
        Figure::ratio("uniform vs the bound", of(UNIFORM), bound).at_least(SHARE),
        // The most that prefetches can reach: no packet waits for memory.
        Figure::ratio("in a cache vs the bound", of(CACHED), bound),
        Figure::ratio("look-up and update vs the bound", of(LOOK_UP), bound).at_least(SHARE),
        Figure::ratio("uniform vs in a cache", of(UNIFORM), of(CACHED)).at_least(0.5),
        Figure::ratio("Zipf(1.0) vs uniform", of(ZIPF), of(UNIFORM)).at_least(0.95),
        Figure::ratio("new flows vs uniform", of(NEW), of(UNIFORM)).at_least(0.4),
        Figure::ratio("uniform vs no-op", of(UNIFORM), of(NO_OP)).at_least(0.05),
    ]);
    // A packet's time with more flows, by its time with the fewest.
    let (least, fastest) = by_flows[0];
    figures.extend(by_flows[1..].iter().map(|(flows, rates)| {
        let line = format!("time of a packet vs with {least}");
        Figure::ratio(line, fastest.both(), rates.both()).at(at(*flows)).at_most(2.5)
    }));
    figures
}
