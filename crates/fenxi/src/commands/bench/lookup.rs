//! The table alone: look-up and update by key, and how near that is to what memory allows.
//!
//! A look-up and update must touch two cache lines at random places, a bucket and an entry. So it cannot be faster than
//! half the rate of random line reads, which is measured beside it: over as much memory as the loaded part of the table
//! spans, on the same kind of pages, prefetched, with as many reads in flight as are best.

use std::hint::black_box;
use std::time::Instant;

use flowmgr::{Key, LookUp, RandomLines};

use super::frames::{Draws, Tuple};
use super::machine::Machine;
use super::report::{Figure, Report};
use super::rig::BURST;
use super::rounds::{Rates, interleave};
use crate::cli::BenchArgs;
use crate::exit::Failure;

/// Random reads in flight that are tried.
const DEPTHS: [usize; 4] = [8, 16, 32, 64];
/// Lines that a look-up and update must touch.
const LINES: f64 = 2.0;
/// Bytes of a bucket, and of the two lines of an entry.
const BUCKET: usize = 64;
const ENTRY: usize = 128;
const PACKET_LENGTH: u32 = 50;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries_or(1 << 22);
    let (flows, buckets) = (entries / 2, entries / 4);
    let no_memory =
        |error: std::io::Error| Failure::unavailable(format!("no memory for the table: {error}"));
    let mut table = LookUp::new(entries, buckets, 7).map_err(no_memory)?;
    for flow in 0..flows {
        table.insert(&Tuple::of(flow as u32).key());
    }
    let mut draws = Draws::new(1);
    let keys: Vec<Key> = (0..entries)
        .map(|_| Tuple::of(draws.below(flows as u32)).key())
        .collect();
    let lines = RandomLines::new(buckets * BUCKET + flows * ENTRY).map_err(no_memory)?;

    let mut second = 0;
    let rates = interleave(args.seconds, 1 + DEPTHS.len(), |point| {
        let start = Instant::now();
        match point {
            0 => {
                second += 1;
                let bursts = keys.chunks(BURST);
                let found: usize = bursts
                    .map(|burst| table.look_up(burst, second, PACKET_LENGTH))
                    .sum();
                assert_eq!(found, keys.len(), "every flow was inserted");
            }
            _ => drop(black_box(lines.read(DEPTHS[point - 1], keys.len()))),
        }
        keys.len() as f64 / start.elapsed().as_secs_f64()
    });
    Ok(Report {
        bench: "lookup",
        title: "The table alone, one core: look-up and update, beside random line reads",
        x: "",
        machine: Machine::here(table.pages().min(lines.pages())),
        figures: figures(&rates),
        skipped: Vec::new(),
    })
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
