//! `fenxi replay --recorded`: replays what `fenxi run --record` wrote.

use std::path::Path;
use std::time::Instant;

use dataplane::sink::Sink;

use serde_json::json;

use crate::cli::{OutputArgs, is_dash};
use crate::exit::{Failure, print, remark};
use crate::outcome::{Outcome, Table};
use crate::sinks::records::{Lines, Names, start_replay};
use crate::sinks::{self, ReplayStart, WritingThread};
use crate::summary::Summary;
use config::layout::Layout;
use dataplane::placement::Cores;
use dataplane::state::Swaps;
use recording::{self, Header, Replayed, Report};

/// Size of the queue to the records thread; the replay waits if it is full.
const QUEUE: usize = 1024;

/// Replays a recording and compares counters; prints the summary and the first difference.
///
/// # Errors
/// 65: the counters differ, or the recording is damaged. 66: there is no recording.
pub fn replay(dir: &Path, output: &OutputArgs) -> Result<(), Failure> {
    let header = Header::read(dir)?;
    let names = Names::new(&header.names(), &[]);
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
        records.iter_mut().for_each(|it| it.record(&record));
    });
    let wall = began.elapsed();
    drop(records);
    let written = thread.map_or(Ok(()), |thread| thread.finish());
    let (header, replayed) = replayed?;
    let outcome = outcome(&header, &replayed, wall)?;
    let (summary, report) = (Summary::new(&outcome), &replayed.report);
    let said = match output.json {
        true => {
            // A summary always serializes.
            let mut page = serde_json::to_value(&summary).unwrap_or_default();
            page["recorded"] = json!(report);
            print(&format!("{page}\n"))
        }
        false => remark(&(summary.to_text() + &text(report))),
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

fn text(report: &Report) -> String {
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

fn outcome(
    header: &Header,
    replayed: &Replayed,
    wall: std::time::Duration,
) -> Result<Outcome, Failure> {
    let layout = Layout::parse(&header.layout);
    let layout = layout.ok_or_else(|| Failure::data("layout is not F:A:D"))?;
    let (flow, workers) = (&header.flow, replayed.packets_by_worker.len());
    Ok(Outcome {
        flows: replayed.flows.clone(),
        tasks: replayed.tasks.clone(),
        layout,
        instances: header.instances,
        cores: Cores::of_one(&layout, header.instances, "a recording is replayed on one thread"),
        swaps: Swaps { done: replayed.swaps, ..Swaps::default() },
        names: header.names(),
        table: Table {
            max_flows: flow.max_flows * workers,
            bytes: flowmgr::table_bytes(flow.max_flows, flow.buckets, &flow.tasks, flow.behaviour)
                * workers,
            pages: replayed.pages,
        },
        bytes: replayed.bytes,
        packets_by_worker: replayed.packets_by_worker.clone(),
        clock_steps: 0,
        sinks: sinks::empty_reports(),
        live: None,
        wall,
        interrupted: false,
        recent: None,
        failure: None,
    })
}
