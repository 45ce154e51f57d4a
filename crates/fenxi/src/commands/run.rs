//! `fenxi run`: live traffic through the whole path.

use std::hash::{BuildHasher, Hasher, RandomState};

use tracing::info;

use crate::cli::RunArgs;
use crate::exit::{Failure, print, remark};
use crate::log;
use crate::run::{self, Plan};
use crate::summary::Summary;
use config::Sources;
use dataplane::bundle::find_bundle;

/// Runs until told to end, then prints the summary: as JSON on standard output where asked, else for people on standard
/// error.
///
/// # Errors
/// What keeps it from starting, or what ended it before its time; the summary of what was done is printed all the same.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let sources = sources(args)?;
    let loaded = sources.load()?.live();
    let mut config = loaded.config.clone();
    let flow = &mut config.flow;
    flow.hash_seed = flow.hash_seed.or_else(|| Some(random()));
    log::start(&config.log)?;
    let bundle = find_bundle(&config, None)?;
    let outcome = run::run(&Plan {
        sources,
        loaded,
        config: &config,
        args,
        bundle,
    })?;
    info!(
        "ended after {:.0} s: {} packets, {} flows, {} records dropped",
        outcome.wall.as_secs_f64(),
        outcome.flows.verdicts.total(),
        outcome.flows.flows_begun.total(),
        outcome.sink_sum("records_dropped")
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

/// `--model` is model.path on the command line, so that a reload does not forget it.
fn sources(args: &RunArgs) -> Result<Sources, Failure> {
    let mut sets = args.config.sets.clone();
    if let Some(dir) = &args.model {
        let text = dir.to_str().map(str::to_owned);
        let text = text.ok_or_else(|| {
            Failure::usage(format!(
                "--model {}: the path is not UTF-8 text",
                dir.display()
            ))
        })?;
        sets.push(format!("model.path={}", toml::Value::String(text)));
    }
    Ok(Sources::of_service(args.config.config.as_deref(), &sets))
}

/// A seed that nobody who sends packets can know.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
