//! The flow table alone: look-up and update by key, compared with what memory allows.
//!
//! A look-up and update must touch two cache lines at random places, a bucket and an entry. It
//! therefore cannot be faster than half the rate of random line reads. That rate is measured in
//! the same run: over as much memory as the loaded part of the table spans, on the same kind of
//! pages, prefetched, with the best number of reads in flight.

use std::hint::black_box;

use flowmgr::{BareTable, RandomLines};

use super::frames::Tuple;
use super::report::{Figure, Report};
use super::rig::BURST;
use super::rounds::{Rates, interleave};
use super::threads::thread_s;
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Numbers of random reads in flight.
const DEPTHS: [usize; 4] = [8, 16, 32, 64];
/// Lines that a look-up and update must touch.
const LINES: f64 = 2.0;
/// Bytes of a bucket, and of the two lines of an entry.
const BUCKET: usize = 64;
const ENTRY: usize = 128;
/// Keys made at a time.
const PORTION: usize = 1 << 12;
const PACKET_LENGTH: u32 = 50;
/// Name of the bound, and the share of it that a look-up should reach.
pub const BOUND: &str = "bound, two lines each";
pub const SHARE: f64 = 0.6;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries.unwrap_or(1 << 22);
    let mut table = loaded(entries)?;
    let bound = Bound::new(entries)?;
    let mut rng = Rng::new(1);
    let rates = interleave(args.seconds, 1 + Bound::POINTS, |point| match point {
        0 => look_up(&mut table, &mut rng, entries),
        _ => bound.rate(point - 1, entries),
    });
    Ok(Report {
        bench: "lookup",
        title: "The flow table alone, one core: look-up and update, compared with random line \
            reads",
        x: "",
        machine: Machine::here(table.pages().min(bound.lines.pages())),
        figures: figures(&rates),
        skipped: Vec::new(),
    })
}

fn no_memory(error: std::io::Error) -> Failure {
    Failure::unavailable(format!("no memory for the table: {error}"))
}

/// A table with a quarter as many buckets as entries, loaded to one half.
pub fn loaded(entries: usize) -> Result<BareTable, Failure> {
    let mut table = BareTable::new(entries, entries / 4, 7).map_err(no_memory)?;
    for flow in 0..entries / 2 {
        table.insert(&Tuple::from_flow(flow as u32).key());
    }
    Ok(table)
}

/// Random reads of lines, over as much memory as the loaded part of [`loaded`] spans.
pub struct Bound {
    lines: RandomLines,
}

impl Bound {
    /// How many numbers of reads in flight are measured.
    pub const POINTS: usize = DEPTHS.len();

    pub fn new(entries: usize) -> Result<Bound, Failure> {
        let bytes = entries / 4 * BUCKET + entries / 2 * ENTRY;
        Ok(Bound { lines: RandomLines::new(bytes).map_err(no_memory)? })
    }

    /// Lines per second of CPU time with the `point`-th number of reads in flight.
    pub fn rate(&self, point: usize, reads: usize) -> f64 {
        let start_s = thread_s();
        black_box(self.lines.read(DEPTHS[point], reads));
        reads as f64 / (thread_s() - start_s)
    }

    /// Look-ups per second that the rates of all points allow: by medians, and at best.
    pub fn of(rates: &[Rates]) -> [f64; 2] {
        [Rates::median, Rates::best].map(|of| rates.iter().map(of).fold(0.0, f64::max) / LINES)
    }
}

/// Looks up `count` flows of a [`loaded`] table, drawn at random, and returns look-ups per second
/// of CPU time. Keys are made in portions that stay in a cache, as the keys of packets that were
/// just parsed do, and only the look-ups are timed.
pub fn look_up(table: &mut BareTable, rng: &mut Rng, count: usize) -> f64 {
    let flows = count as u32 / 2;
    let mut keys = Vec::with_capacity(PORTION);
    let (mut found, mut elapsed_s) = (0, 0.0);
    for first in (0..count).step_by(PORTION) {
        keys.clear();
        let portion = PORTION.min(count - first);
        keys.extend((0..portion).map(|_| Tuple::from_flow(rng.below(flows)).key()));
        let start_s = thread_s();
        for burst in keys.chunks(BURST) {
            found += table.look_up(burst, 1, PACKET_LENGTH);
        }
        elapsed_s += thread_s() - start_s;
    }
    assert_eq!(found, count, "every flow was inserted");
    count as f64 / elapsed_s
}

fn figures(rates: &[Rates]) -> Vec<Figure> {
    let mut figures = vec![Figure::millions("look-up and update", "M/s", &rates[0])];
    for (depth, rates) in DEPTHS.iter().zip(&rates[1..]) {
        let name = format!("random reads, {depth} in flight");
        figures.push(Figure::millions(name, "M/s", rates));
    }
    let bound = Bound::of(&rates[1..]);
    figures.extend([
        Figure::pair(BOUND, "M/s", bound.map(|rate| rate / 1e6)),
        Figure::ratio("share of the bound", rates[0].both(), bound).at_least(SHARE),
    ]);
    figures
}
