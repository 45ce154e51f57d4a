//! `fenxi run`: live traffic through the whole pipeline.

use std::hash::{BuildHasher, Hasher, RandomState};

use tracing::info;

use crate::cli::RunArgs;
use crate::exit::{Failure, print, remark};
use crate::log;
use crate::memory;
use crate::proc::Machine;
use crate::run::{self, RunPlan};
use crate::summary::Summary;

/// Runs until asked to stop, then prints the summary: as JSON to stdout with `--json`, otherwise as
/// text to stderr.
///
/// # Errors
/// The run could not start, or ended early; in the latter case the summary is still printed.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let memory = memory::total(&Machine::here());
    let sources = args.live.sources(args.output.sets())?.within(memory);
    let loaded = sources.load()?.live();
    let mut config = loaded.config.clone();
    let flow = &mut config.flow;
    // A seed that senders of packets cannot guess.
    let random = || RandomState::new().build_hasher().finish();
    flow.hash_seed = flow.hash_seed.or_else(|| Some(random()));
    log::start(&config.log)?;
    let outcome = run::run(&RunPlan { sources: &sources, loaded: &loaded, config: &config, args })?;
    info!(
        "ended after {:.0} s: {} packets, {} flows, {} records dropped",
        outcome.wall.as_secs_f64(),
        outcome.flows.verdicts.total(),
        outcome.flows.flows_begun.total(),
        outcome.sink_sum("records_dropped")
    );
    log::finish();
    let summary = Summary::new(&outcome);
    let printed = match args.output.json {
        true => print(&format!("{}\n", summary.to_json())),
        false => remark(&summary.to_text()),
    };
    Failure::all([outcome.failure, printed.err()])
}
