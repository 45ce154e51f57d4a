//! `fenxi replay`: replays captures through the whole pipeline, or, with `--recorded`, what
//! `fenxi run --record` wrote.

use std::path::Path;
use std::time::{Duration, Instant};

use dataplane::sink::Sink;
use serde_json::json;

use crate::cli::{OutputArgs, ReplayArgs, is_dash};
use crate::control;
use crate::exit::{Failure, print, remark};
use crate::figures::grouped;
use crate::outcome::{RunOutcome, Table};
use crate::protocol::FlowQuery;
use crate::replay;
use crate::sinks::records::{Lines, Names, start_replay};
use crate::sinks::{self, Interfaces, ReplayStart, WritingThread};
use crate::summary::Summary;
use config::layout::Layout;
use config::origin::Origin;
use config::when::{Term, shortened};
use config::{Config, Sources};
use dataplane::bundle::find_bundle;
use dataplane::placement::Cores;
use dataplane::state::Swaps;
use recording::{Header, Replayed, Report};

/// Replays, then prints the summary: as JSON to stdout with `--json`, otherwise as text to stderr.
///
/// # Errors
/// The replay could not start, or ended early; in the latter case the summary is still printed.
pub fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    if let Some(dir) = &args.recorded {
        return replay_recorded(dir, &args.output);
    }
    let sets: Vec<String> = args.config.sets.iter().cloned().chain(args.output.sets()).collect();
    let sources = sinks::known(Sources::named(args.config.config.as_deref(), &sets));
    let loaded = sources.load()?.replayed();
    let keys = loaded.effective().config;
    let is_asked = |key: &str| keys.iter().any(|it| it.key == key && it.origin == Origin::Set);
    let mut config = loaded.config;
    // The configuration may be a live run's, whose collector and history must not get a capture's
    // records, and whose tuner must not learn from it.
    if args.output.ipfix.is_none() {
        config.reset("ipfix.to");
    }
    if !is_asked("history.path") {
        config.reset("history.path");
    }
    if !is_asked("learn.socket") {
        config.learn.socket = None;
    }
    let outcome = replay::run(&config, args)?;
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
    outcome: &RunOutcome,
) -> Result<(), Failure> {
    let names = &outcome.names;
    let recent = outcome.recent.as_ref();
    let found =
        recent.and_then(|recent| control::explain::of_records(recent, query, config, names));
    let Some((subject, others)) = found else {
        let packets = grouped(outcome.flows.verdicts.total());
        return Err(Failure::data(format!(
            "no flow {query} among the {} of {packets} packets. Only TCP, UDP and ICMP make flows, \
             by the addresses of the outer header; fragments do not",
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
fn remarks(args: &ReplayArgs, outcome: &RunOutcome, summary: &Summary) -> String {
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

/// Size of the queue to the records thread; the replay waits if it is full.
const QUEUE: usize = 1024;

/// Replays a recording and compares counters; prints the summary and the first difference.
///
/// # Errors
/// 65: the counters differ, or the recording is damaged. 66: there is no recording.
fn replay_recorded(dir: &Path, output: &OutputArgs) -> Result<(), Failure> {
    let header = Header::read(dir)?;
    let names = Names::new(&header.names(), &[], None, Interfaces::default());
    // A recording has no bundle to name hosts with.
    let lines = Lines::new(names, None);
    let start = ReplayStart { waits: true, stopped: None };
    let path = output.flows.as_deref();
    let thread = path.map(|path| start_replay(path, QUEUE, lines, &start)).transpose()?;
    let mut records = thread.as_ref().and_then(WritingThread::sender);
    let began = Instant::now();
    let series = match output.series {
        true => flowmgr::SeriesShare::ALL,
        false => flowmgr::SeriesShare::NONE,
    };
    let replayed = recording::replay(dir, series, &mut |record| {
        records.iter_mut().for_each(|it| it.record(record));
    });
    let wall = began.elapsed();
    drop(records);
    let written = thread.map_or(Ok(()), |thread| thread.finish());
    let (header, replayed) = replayed?;
    let outcome = recorded_outcome(&header, &replayed, wall)?;
    let (summary, report) = (Summary::new(&outcome), &replayed.report);
    let said = match output.json {
        true => {
            // A summary always serializes.
            let mut page = serde_json::to_value(&summary).unwrap_or_default();
            page["recorded"] = json!(report);
            print(&format!("{page}\n"))
        }
        false => remark(&(summary.to_text() + &recorded_text(report))),
    };
    let to_stdout = output.flows.as_deref().is_some_and(is_dash);
    let verdict = verdict(dir, report).err();
    // A closed pipe of records does not suppress the verdict.
    let written = written.err().filter(|it| !(to_stdout && it.is_quiet()));
    Failure::all([verdict, written, said.err()])
}

fn verdict(dir: &Path, report: &Report) -> Result<(), Failure> {
    let why = match &report.first_difference {
        Some(first) => format!(
            "the replay differs from the run, first at event {}, {:.3} s after the start: {}",
            first.event, first.at_s, first.what
        ),
        None if report.compared == 0 => {
            "the recording ends before the first counters, so there is nothing to compare"
                .to_owned()
        }
        None => return Ok(()),
    };
    Err(Failure::data(format!("{}: {why}", dir.display())))
}

fn recorded_text(report: &Report) -> String {
    let mut page = format!(
        "recorded  by fenxi {} from {}: {} events; {}\n",
        report.fenxi, report.started, report.events, report.end
    );
    for note in &report.notes {
        page += &format!("request   {note}\n");
    }
    let same = if report.same { "yes" } else { "no" };
    page += &format!("same      {same}: counters compared {} times\n", report.compared);
    page
}

fn recorded_outcome(
    header: &Header,
    replayed: &Replayed,
    wall: Duration,
) -> Result<RunOutcome, Failure> {
    let layout = Layout::parse(&header.layout);
    let layout = layout.ok_or_else(|| Failure::data("layout is not F:A:D"))?;
    let (flow, workers) = (&header.flow, replayed.packets_by_worker.len());
    Ok(RunOutcome {
        flows: replayed.flows.clone(),
        tasks: replayed.tasks.clone(),
        layout,
        instances: header.instances,
        cores: Cores::of_one(&layout, header.instances, "a recording is replayed on one thread"),
        swaps: Swaps { done: replayed.swaps, ..Swaps::default() },
        names: header.names(),
        devices_why: Vec::new(),
        table: Table {
            max_flows: flow.max_flows * workers,
            bytes: flowmgr::table_bytes(
                flow.max_flows,
                flow.buckets,
                &flow.tasks,
                flow.behaviour,
                flow.servers,
                flow.samples,
                flow.measured,
            ) * workers,
            pages: replayed.pages,
        },
        bytes: replayed.bytes,
        packets_by_worker: replayed.packets_by_worker.clone(),
        clock_steps: 0,
        sinks: sinks::empty_reports(),
        services: Vec::new(),
        live: None,
        wall,
        interrupted: false,
        recent: None,
        failure: None,
    })
}
