//! The whole packet path in memory on one core: parse, hash, table, count, series, label, tag.
//!
//! *Uniform* and *Zipf*: packets of labelled flows in a half-full table. *New flows*: every packet
//! begins a flow, and earlier flows end by idle timeout and give their records. *Mix*: see
//! [`super::mix`]. *No-op*: see [`super::rig::no_op`].

use flowmgr::Pages;

use super::frames::{Frames, Tuple, zipf};
use super::mix::{inline, mix};
use super::report::{Figure, MPPS, Report};
use super::rig::{BURST, GAP_NS, Rig, Table, no_op};
use super::rounds::interleave;
use super::series::inline_models as models;
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Packet time of one pass of new flows. It is longer than an idle timeout of one second plus the
/// sweep, so that the same frames begin new flows in the next pass.
const NEW_PASS_NS: u64 = 4_000_000_000;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries.unwrap_or(1 << 22);
    let seconds = args.seconds / 2.0;
    let (mut figures, pages) = prepared(entries, seconds)?;
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
        x: "",
        machine: Machine::here(pages),
        figures,
        skipped,
    })
}

/// All results except the mix.
fn prepared(entries: usize, seconds: f64) -> Result<(Vec<Figure>, Pages), Failure> {
    let flows = entries as u32 / 2;
    let mut loaded = Rig::new(Table::with_entries(entries))?;
    loaded.preload(flows as usize, |i| Tuple::from_flow(i as u32));
    let mut rng = Rng::new(1);
    let mut uniform = Frames::new(entries, |_| Tuple::from_flow(rng.below(flows)));
    let zipf = zipf(flows);
    let mut skewed =
        Frames::new(entries, |_| Tuple::from_flow(zipf.draw(&mut rng).unwrap_or_default()));
    let mut turnover = Rig::new(Table { idle_timeout_s: 1, ..Table::with_entries(entries) })?;
    let mut fresh = Frames::new(entries, |i| Tuple::from_flow(i as u32));
    let new_gap_ns = NEW_PASS_NS / entries as u64;

    let mut passes = 0;
    let rates = interleave(seconds, 4, |point| match point {
        0 => loaded.pass(&mut uniform, BURST, GAP_NS),
        1 => loaded.pass(&mut skewed, BURST, GAP_NS),
        2 => no_op(&mut uniform, BURST),
        _ => {
            passes += 1;
            turnover.pass(&mut fresh, BURST, new_gap_ns)
        }
    });
    let begun = turnover.manager.counters().flows_begun.total();
    if begun != passes * entries as u64 {
        let passed = passes * entries as u64;
        let error = format!("{begun} flows begun by {passed} packets, each of a new flow");
        return Err(Failure::software(error));
    }
    let figures = vec![
        Figure::millions("uniform", MPPS, &rates[0]).at_least(20.0),
        Figure::millions("Zipf(1.0)", MPPS, &rates[1]).at_least(30.0),
        Figure::millions("no-op", MPPS, &rates[2]),
        Figure::millions("new flows", MPPS, &rates[3]).at_least(8.0),
    ];
    Ok((figures, loaded.pages()))
}
