//! The flow table alone: look-up and update by key, compared with what memory allows.
//!
//! A look-up and update must touch two cache lines at random places, a bucket and an entry. It
//! therefore cannot be faster than half the rate of random line reads. That rate is measured in
//! the same run: over as much memory as the loaded part of the table spans, on the same kind of
//! pages, prefetched, with the best number of reads in flight.

use std::hint::black_box;
use std::time::Instant;

use flowmgr::{BareTable, RandomLines};

use super::frames::Tuple;
use super::report::{Figure, Report};
use super::rig::BURST;
use super::rounds::{Rates, interleave};
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

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries.unwrap_or(1 << 22);
    let (flows, buckets) = (entries / 2, entries / 4);
    let no_memory =
        |error: std::io::Error| Failure::unavailable(format!("no memory for the table: {error}"));
    let mut table = BareTable::new(entries, buckets, 7).map_err(no_memory)?;
    for flow in 0..flows {
        table.insert(&Tuple::from_flow(flow as u32).key());
    }
    let lines = RandomLines::new(buckets * BUCKET + flows * ENTRY).map_err(no_memory)?;

    let mut rng = Rng::new(1);
    let rates = interleave(args.seconds, 1 + DEPTHS.len(), |point| {
        let elapsed_s = match point {
            0 => look_up(&mut table, &mut rng, flows as u32, entries),
            _ => {
                let start = Instant::now();
                black_box(lines.read(DEPTHS[point - 1], entries));
                start.elapsed().as_secs_f64()
            }
        };
        entries as f64 / elapsed_s
    });
    Ok(Report {
        bench: "lookup",
        title: "The flow table alone, one core: look-up and update, compared with random line \
            reads",
        x: "",
        machine: Machine::here(table.pages().min(lines.pages())),
        figures: figures(&rates),
        skipped: Vec::new(),
    })
}

/// Looks up `count` flows drawn at random and returns the time, s. Keys are made in portions that
/// stay in a cache, as the keys of packets that were just parsed do, and only the look-ups are
/// timed.
fn look_up(table: &mut BareTable, rng: &mut Rng, flows: u32, count: usize) -> f64 {
    let mut keys = Vec::with_capacity(PORTION);
    let (mut found, mut elapsed_s) = (0, 0.0);
    for first in (0..count).step_by(PORTION) {
        keys.clear();
        let portion = PORTION.min(count - first);
        keys.extend((0..portion).map(|_| Tuple::from_flow(rng.below(flows)).key()));
        let start = Instant::now();
        for burst in keys.chunks(BURST) {
            found += table.look_up(burst, 1, PACKET_LENGTH);
        }
        elapsed_s += start.elapsed().as_secs_f64();
    }
    assert_eq!(found, count, "every flow was inserted");
    elapsed_s
}

fn figures(rates: &[Rates]) -> Vec<Figure> {
    let mut figures = vec![Figure::millions("look-up and update", "M/s", &rates[0])];
    for (depth, rates) in DEPTHS.iter().zip(&rates[1..]) {
        let name = format!("random reads, {depth} in flight");
        figures.push(Figure::millions(name, "M/s", rates));
    }
    let median = rates[1..].iter().map(Rates::median).fold(0.0, f64::max) / LINES;
    let best = rates[1..].iter().map(Rates::best).fold(0.0, f64::max) / LINES;
    figures.push(Figure {
        median: median / 1e6,
        best: best / 1e6,
        ..Figure::one("bound, two lines each", "M/s", 0.0)
    });
    let share = Figure {
        best: rates[0].best() / best,
        ..Figure::one("share of the bound", "share", rates[0].median() / median)
    };
    figures.push(share.at_least(0.6));
    figures
}
