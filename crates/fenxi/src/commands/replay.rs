//! `fenxi replay`: captures through the whole path.

use crate::cli::{ReplayArgs, is_dash};
use crate::exit::{Failure, print, remark};
use crate::outcome::Outcome;
use crate::replay::{self, Plan};
use crate::summary::Summary;
use config::Config;
use dataplane::bundle::find_bundle;

/// Replays, then prints the summary: as JSON on standard output where asked, else
/// for people on standard error.
///
/// # Errors
/// What was wrong before the first packet, or what ended the replay before its
/// time; the summary of what was done is printed all the same.
pub fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    if let Some(dir) = &args.recorded {
        return super::recorded::replay(dir, &args.output);
    }
    let config = Config::load(args.config.config.as_deref(), &args.config.sets)?;
    let bundle = find_bundle(&config, args.model.as_deref())?;
    let outcome = replay::run(&Plan {
        config: &config,
        args,
        bundle,
    })?;
    let summary = Summary::of(&outcome);
    let printed = if args.output.json {
        print(&format!("{}\n", summary.to_json()))
    } else {
        Ok(())
    };
    let remarked = remark(&remarks(args, &outcome, &summary));
    let failures = [outcome.failure, printed.err(), remarked.err()];
    failures
        .into_iter()
        .flatten()
        .reduce(Failure::and)
        .map_or(Ok(()), Err)
}

/// What is said on standard error: the summary for people, and what is missing. Nothing where the
/// reader of our output has gone; no page of zeros where nothing could be replayed.
fn remarks(args: &ReplayArgs, outcome: &Outcome, summary: &Summary) -> String {
    let failure = outcome.failure.as_ref();
    let is_quiet = failure.is_some_and(Failure::is_quiet);
    let is_vain = failure.is_some() && outcome.flows.verdicts.total() == 0;
    let mut page = String::new();
    if !args.output.json && !is_quiet && !is_vain {
        page += &summary.to_text();
    }
    if !args.output.json && outcome.interrupted {
        page += "fenxi: interrupted; the figures above cover what was done so far\n";
    }
    let records_dropped = outcome.sink_sum("records_dropped");
    if records_dropped > 0 {
        let output = args
            .output
            .flows
            .as_deref()
            .filter(|output| !is_dash(output));
        let output = output.map_or("stdout".to_owned(), |output| output.display().to_string());
        page += &format!(
            "fenxi: {output}: {records_dropped} records were dropped because their queue was full; raise records.queue\n"
        );
    }
    page
}
