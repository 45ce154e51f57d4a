//! `fenxi run`: live traffic through the whole path.

use std::hash::{BuildHasher, Hasher, RandomState};

use tracing::info;

use crate::cli::RunArgs;
use crate::config::Config;
use crate::exit::{Failure, print, remark};
use crate::log;
use crate::pipeline::find_bundle;
use crate::run::{self, Plan};
use crate::summary::Summary;

/// Runs until told to end, then prints the summary: as JSON on standard output where asked, else for people on standard
/// error.
///
/// # Errors
/// What keeps it from starting, or what ended it before its time; the summary of what was done is printed all the same.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let (mut config, _) = Config::load(args.config.config.as_deref(), &args.config.sets)?;
    let flow = &mut config.flow;
    flow.active_timeout = flow.active_timeout_live;
    flow.hash_seed = flow.hash_seed.or_else(|| Some(random()));
    log::start(&config.log)?;
    let bundle = find_bundle(&config, args.model.as_deref())?;
    let outcome = run::run(&Plan {
        config: &config,
        args,
        bundle,
    })?;
    info!(
        "ended after {:.0} s: {} packets, {} flows, {} records dropped",
        outcome.wall.as_secs_f64(),
        outcome.flows.verdicts.total(),
        outcome.flows.flows_begun.total(),
        outcome.records_dropped
    );
    log::finish();
    let summary = Summary::of(&outcome);
    let printed = match args.output.json {
        true => print(&format!("{}\n", summary.to_json())),
        false => remark(&summary.to_text()),
    };
    let failures = [outcome.failure, printed.err()];
    let failure = failures.into_iter().flatten().reduce(Failure::and);
    failure.map_or(Ok(()), Err)
}

/// A seed that nobody who sends packets can know.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
