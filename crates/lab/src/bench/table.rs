//! FENXI Fig. 6: packets per second of one flow manager by burst size and table load.
//!
//! As in §4.2 the table has 2^19 entries and 2^17 buckets, and is loaded before: packets are drawn
//! from its flows with equal chances. Load 0 is a single flow. The no-op reference receives and
//! forwards the same frames.

use super::frames::{Frames, Tuple};
use super::report::{Figure, MPPS, Report};
use super::rig::{GAP_NS, Rig, Table, no_op};
use super::rounds::interleave;
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

const LOADS: [f64; 4] = [0.0, 0.25, 0.5, 0.75];
const BURSTS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries.unwrap_or(1 << 19);
    let mut rigs = Vec::new();
    for load in LOADS {
        let flows = ((entries as f64 * load) as u32).max(1);
        let mut rig = Rig::new(Table::with_entries(entries))?;
        rig.preload(flows as usize, |i| Tuple::from_flow(i as u32));
        let mut rng = Rng::new(1);
        let count = entries.min(1 << 19);
        rigs.push((rig, Frames::new(count, |_| Tuple::from_flow(rng.below(flows)))));
    }
    let pages = rigs[0].0.pages();

    // For each burst size all loads, then the reference.
    let lines = LOADS.len() + 1;
    let rates = interleave(args.seconds, BURSTS.len() * lines, |point| {
        let burst = BURSTS[point / lines];
        match rigs.get_mut(point % lines) {
            Some((rig, frames)) => rig.pass(frames, burst, GAP_NS),
            None => no_op(&mut rigs[lines - 2].1, burst),
        }
    });
    let names = LOADS.map(|load| format!("load {load}"));
    let names = names.into_iter().chain(["no-op".to_owned()]);
    let mut figures = Vec::new();
    for (line, name) in names.enumerate() {
        for (at, burst) in BURSTS.into_iter().enumerate() {
            let rates = &rates[at * lines + line];
            figures.push(Figure::millions(&name, MPPS, rates).at(burst as f64));
        }
    }
    Ok(Report {
        bench: "table",
        title: "Flow manager, one core: speed by burst size and table load",
        x: "burst",
        machine: Machine::here(pages),
        figures,
        skipped: Vec::new(),
    })
}
