//! `fenxi replay`: replays captures through the whole pipeline.

use crate::cli::{ReplayArgs, is_dash};
use crate::control;
use crate::exit::{Failure, print, remark};
use crate::figures::grouped;
use crate::outcome::Outcome;
use crate::protocol::FlowQuery;
use crate::replay::{self, Plan};
use crate::sinks;
use crate::summary::Summary;
use config::when::{Term, shortened};
use config::{Config, Sources};
use dataplane::bundle::find_bundle;

/// Replays, then prints the summary: as JSON to stdout with `--json`, otherwise as text to stderr.
///
/// # Errors
/// The replay could not start, or ended early; in the latter case the summary is still printed.
pub fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    if let Some(dir) = &args.recorded {
        return super::recorded::replay(dir, &args.output);
    }
    let sets: Vec<String> = args.config.sets.iter().cloned().chain(args.output.sets()).collect();
    let sources = sinks::known(Sources::named(args.config.config.as_deref(), &sets));
    let mut config = sources.load()?.replayed().config;
    // The configuration may be a live run's, whose collector must not get a capture's records.
    if args.output.ipfix.is_none() {
        config.reset("ipfix.to");
    }
    let outcome = replay::run(&Plan { config: &config, args })?;
    if let Some(query) = &args.explain {
        let explained = explain(query, &config, args, &outcome);
        return Failure::all([outcome.failure, explained.err()]);
    }
    let summary = Summary::new(&outcome);
    let printed =
        if args.output.json { print(&format!("{}\n", summary.to_json())) } else { Ok(()) };
    let remarked = remark(&(remarks(args, &outcome, &summary) + &tasks_by_in_port(&config)));
    Failure::all([outcome.failure, printed.err(), remarked.err()])
}

fn explain(
    query: &FlowQuery,
    config: &Config,
    args: &ReplayArgs,
    outcome: &Outcome,
) -> Result<(), Failure> {
    let names = &outcome.names;
    let recent = outcome.recent.as_ref();
    let found =
        recent.and_then(|recent| control::explain::of_records(recent, query, config, names));
    let Some((subject, others)) = found else {
        let packets = grouped(outcome.flows.verdicts.total());
        return Err(Failure::data(format!(
            "no flow {query} among the {} of {packets} packets. Only TCP and UDP make flows, by \
             the addresses of the outer \
             header; fragments do not",
            grouped(outcome.flows.flows_begun.total())
        )));
    };
    let dirs = (0..config.tasks.len()).map(|number| match number {
        0 => find_bundle(config, args.model.as_deref()),
        _ => find_bundle(&config.of_task(number), None),
    });
    let dirs = dirs.collect::<Result<Vec<_>, _>>()?;
    let explanation = control::explain::after_a_replay(&subject, others, config, names, &dirs)?;
    print(&match args.output.json {
        true => super::devices::to_json(&explanation)?,
        false => console::explanation::text(&explanation),
    })
}

/// A line for each task that is asked about no flow, because a capture has no interfaces.
fn tasks_by_in_port(config: &Config) -> String {
    let mut page = String::new();
    for task in &config.tasks {
        let mut terms = task.when.terms.iter();
        if let Some(term) = terms.find(|term| matches!(term, Term::InPort(_))) {
            let term = term.named(|task| &config.tasks[task].name).to_string();
            let (origin, name) = (&task.when_origin, &task.name);
            page += &format!(
                "fenxi: {origin}: task.{name}.when: {}: a capture does not say by which interface \
                 packets came in, so task {name} was \
                 asked about no flow; leave the term out for a replay\n",
                shortened(&term)
            );
        }
    }
    page
}

/// The text for stderr: the summary, and what is missing from it. Empty if the reader of our output
/// has closed the pipe; without the summary if nothing could be replayed.
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
        let output = args.output.flows.as_deref().filter(|output| !is_dash(output));
        let output = output.map_or("stdout".to_owned(), |output| output.display().to_string());
        page += &format!(
            "fenxi: {output}: {records_dropped} records were dropped because their queue was full; \
             raise records.queue\n"
        );
    }
    page
}
