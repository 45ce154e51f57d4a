//! `fenxi-lab bench`: experiments on both walks that anyone can repeat.
//!
//! All of them run in memory, without ports. For the packet's walk, [`frames`] are prepared, and a
//! [`rig`] takes them through a flow manager and labels its series. Experiments on the series'
//! walk are in [`series`], on rules by tuple in [`policy`].
//! [`rounds`] repeats and interleaves measurements. Each experiment has a file of its own; its
//! [`report`] is printed, and `figures/` draws it.

mod engine;
mod flood;
mod frames;
mod headline;
mod inference;
mod lookup;
mod mix;
mod policy;
mod probes;
mod report;
mod rig;
mod rounds;
mod scale;
mod senders;
mod series;
mod sweep;
mod table;
mod tasks;
mod templates;
mod threads;
mod walk;

use crate::cli::{BenchArgs, BenchName};
use fenxi::exit::{Failure, print, remark};
use report::Report;

/// Runs an experiment and prints what it found.
///
/// # Errors
/// The tables find no memory, or the capture is missing or damaged.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    if let Some(waits) = args.answers {
        return inference::answer(args, waits);
    }
    let report = match args.name {
        BenchName::Table => table::run(args),
        BenchName::Scale => scale::run(args),
        BenchName::Walk => walk::run(args),
        BenchName::Headline => headline::run(args),
        BenchName::Lookup => lookup::run(args),
        BenchName::Engine => engine::run(args),
        BenchName::Inference => inference::run(args),
        BenchName::Flood => flood::run(args),
        BenchName::Sweep => sweep::run(args),
        BenchName::Analytics => series::analytics(args),
        BenchName::Latency => series::latency(args),
        BenchName::Tasks => tasks::run(args),
        BenchName::Probes => probes::run(args),
        BenchName::Policy => policy::run(args),
        BenchName::PolicyUpdates => policy::updates::run(args),
        BenchName::PolicyWalk => policy::walk::run(args),
        BenchName::PolicyAdding => policy::walk::run_adding(args),
    }?;
    for skipped in &report.skipped {
        remark(&format!("SKIPPED {skipped}\n"))?;
    }
    print(&page(&report, args.json)?)
}

fn page(report: &Report, json: bool) -> Result<String, Failure> {
    if !json {
        return Ok(report.to_text());
    }
    let object = report.to_json().map_err(|error| Failure::software(error.to_string()))?;
    Ok(object + "\n")
}
