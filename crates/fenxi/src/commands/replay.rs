//! `fenxi replay`: captures through the whole path.

use crate::cli::{ReplayArgs, is_dash};
use crate::config::Config;
use crate::exit::{Failure, print};
use crate::pipeline::find_bundle;
use crate::replay::{self, Plan};
use crate::summary::Summary;

/// Replays, then prints the summary: as JSON on standard output where asked, else
/// for people on standard error.
///
/// # Errors
/// What was wrong before the first packet, or what ended the replay before its
/// time; the summary of what was done is printed all the same.
pub fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let (config, _) = Config::load(args.config.config.as_deref(), &args.config.sets)?;
    let bundle = find_bundle(&config, args.model.as_deref())?;
    let outcome = replay::run(&Plan {
        config: &config,
        args,
        bundle,
    })?;
    let summary = Summary::of(&outcome);
    let quiet = outcome.failure.as_ref().is_some_and(Failure::is_quiet);
    let printed = if args.json {
        print(&format!("{}\n", summary.to_json()))
    } else {
        if !quiet {
            eprint!("{}", summary.to_text());
        }
        Ok(())
    };
    let interrupted = outcome.interrupted && !args.json;
    if interrupted {
        eprintln!("fenxi: interrupted; the above is what was done so far");
    }
    if outcome.records_dropped > 0 {
        let output = args.flows.as_deref().filter(|output| !is_dash(output));
        let output = output.map_or("stdout".to_owned(), |output| output.display().to_string());
        eprintln!(
            "fenxi: {output}: {} records found no room in their queue and are missing; \
             raise records.queue",
            outcome.records_dropped
        );
    }
    match (outcome.failure, printed) {
        (None, printed) => printed,
        (Some(failure), Ok(())) => Err(failure),
        (Some(failure), Err(other)) => Err(failure.and(other)),
    }
}
