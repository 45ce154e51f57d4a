//! FENXI Fig. 7: packets per second of several flow managers together, by number of flows.
//!
//! Each worker has a manager, a share of the flows and a core of its own, as RSS would distribute
//! them. Tables are loaded to one half and have a quarter as many buckets as entries. All points
//! are measured several times. Each time, the thread that uses a table builds it.

use std::sync::Barrier;
use std::thread;

use flowmgr::Pages;

use super::frames::{Frames, Tuple};
use super::report::{Figure, MPPS, Report};
use super::rig::{BURST, GAP_NS, Rig, Table};
use super::rounds::Rates;
use super::threads::{joined, pin};
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::{Machine, cores};

const FLOWS: [u32; 7] = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
/// Passes over the frames that count each time a point is measured; one more pass warms up.
const PASSES: usize = 5;
/// About how long it takes to measure all points once, s.
const LADDER_S: f64 = 10.0;

/// A worker's table, and frames of its flows.
type Share = (Rig, Frames);

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let flows = match args.flows.as_slice() {
        [] => &FLOWS,
        given => given,
    };
    let workers: Vec<usize> = (1..=cores()).collect();
    let points =
        || workers.iter().flat_map(|&workers| flows.iter().map(move |&flows| (workers, flows)));
    let mut rates = vec![Rates::default(); points().count()];
    let mut pages = Pages::Huge;
    for _ in 0..((args.seconds / LADDER_S).round() as usize).max(1) {
        for ((workers, flows), rates) in points().zip(&mut rates) {
            let mut shares = build(workers, flows)?;
            // The largest table shows which pages are available.
            pages = shares[0].0.pages();
            measure(&mut shares, rates);
        }
    }
    let figure = |((workers, flows), rates): ((usize, u32), &Rates)| {
        let name = match workers {
            1 => "1 worker".to_owned(),
            _ => format!("{workers} workers"),
        };
        Figure::millions(name, MPPS, rates).at(f64::from(flows))
    };
    Ok(Report {
        bench: "scale",
        title: "Flow managers: speed by number of flows and of workers, table load 0.5",
        x: "flows",
        machine: Machine::here(pages),
        figures: points().zip(&rates).map(figure).collect(),
        skipped: Vec::new(),
    })
}

/// The workers' tables and frames, each built on its worker's core.
fn build(workers: usize, flows: u32) -> Result<Vec<Share>, Failure> {
    let share = (flows / workers as u32).max(1);
    let frames = (2 * flows as usize).clamp(1 << 18, 1 << 23) / workers;
    let build = |worker: u32| {
        pin(worker as usize);
        let mut rig = Rig::new(Table::with_entries(2 * share as usize))?;
        let first = worker * share;
        rig.preload(share as usize, |i| Tuple::from_flow(first + i as u32));
        let mut rng = Rng::new(u64::from(worker));
        let frames = Frames::new(frames, |_| Tuple::from_flow(first + rng.below(share)));
        Ok((rig, frames))
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..workers as u32).map(|worker| scope.spawn(move || build(worker))).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// Runs all workers at once, pass by pass, and adds up their rates.
fn measure(shares: &mut [Share], rates: &mut Rates) {
    let barrier = Barrier::new(shares.len());
    let work = |worker: usize, (rig, frames): &mut Share| {
        pin(worker);
        let mut pass = |_| {
            barrier.wait();
            rig.pass(frames, BURST, GAP_NS)
        };
        [0; PASSES + 1].map(&mut pass)
    };
    let work = &work;
    let of_workers: Vec<[f64; PASSES + 1]> = thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter_mut()
            .enumerate()
            .map(|(worker, share)| scope.spawn(move || work(worker, share)))
            .collect();
        threads.into_iter().map(joined).collect()
    });
    for pass in 1..=PASSES {
        rates.add(of_workers.iter().map(|passes| passes[pass]).sum());
    }
}
