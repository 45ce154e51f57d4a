//! The exporter as the control thread has it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use config::{Config, Keyed, Section};
use crossbeam_channel::Receiver;
use dataplane::sink::Sink;
use flowmgr::TaskId;
use flowmgr::record::Record;
use measure::Features;

use super::connection::probe;
use super::exporter::{ExportCounts, Exporter};
use super::flows::Flows;
use super::{Destination, IpfixKeys};
use crate::exit::Failure;
use crate::metric::{Family, count, number};
use crate::sinks::queue::{Drain, Queued, RecordSender, RunKind, WritingThread};
use crate::sinks::reopen::Reopener;
use crate::sinks::{Connects, Lost, ReplayStart, Report, Rights, SinkControl, SinkKind, Start};

/// Records for a collector, where a run has one.
pub struct Ipfix;

impl SinkKind for Ipfix {
    fn sections(&self) -> &'static [&'static Section] {
        &[IpfixKeys::SECTION]
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let config: IpfixKeys = start.config.section();
        let Some(to) = config.to.clone() else {
            return Ok(None);
        };
        let counts = Arc::new(ExportCounts::default());
        let is_replay = start.replay.is_some();
        let task = start.config.task_number(config.task.as_deref());
        let interfaces = start.interfaces();
        let is_measured = start.config.measure.in_use() != Features::NONE;
        let flows = Flows::new(TaskId(task as u8), &start.names[task].classes, interfaces);
        let exporter =
            Exporter::new(to.clone(), &config, flows, is_measured, is_replay, counts.clone());
        let control = match &start.replay {
            Some(replay) => start_replay(exporter, &to, config.queue, replay, counts)?,
            None => start_live(exporter, &to, start.config, counts)?,
        };
        Ok(Some(Box::new(control)))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        let mut rights = Rights::none();
        match config.section::<IpfixKeys>().to {
            Some(Destination::Tcp(endpoint)) => {
                rights.connects = Connects::Ports(vec![endpoint.port]);
            }
            Some(Destination::File(path)) => rights.written.push(path),
            Some(Destination::Udp(_)) | None => {}
        }
        rights
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        match config.section::<IpfixKeys>().to {
            Some(Destination::File(path)) if !is_exempt(&path) => {
                probe(&path).map_err(|error| Failure::creating(&path, &error))
            }
            _ => Ok(()),
        }
    }

    fn empty_report(&self) -> Report {
        report(&ExportCounts::default(), false)
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("ipfix_lost", "IPFIX records"))
    }
}

/// A replay needs the collector from the beginning, and ends where sending breaks off.
fn start_replay(
    mut exporter: Exporter,
    to: &Destination,
    queue: usize,
    replay: &ReplayStart,
    counts: Arc<ExportCounts>,
) -> Result<IpfixControl, Failure> {
    exporter.connect().map_err(|error| unreachable(to, &error))?;
    let name = to.to_string();
    let work = move |records: &Receiver<Queued>| {
        let sent = exporter.replay(records);
        let failed = |error| Failure::io(format!("{}: cannot send records: {error}", exporter.to));
        sent.map_err(failed)
    };
    let shared = counts.records.clone();
    let run = RunKind::Replay(replay);
    let thread = WritingThread::start(("ipfix", &name), queue, run, shared, work)?;
    Ok(IpfixControl { counts, reopener: None, thread })
}

/// A live run goes on without the collector, and tries again; but a file must be there.
fn start_live(
    mut exporter: Exporter,
    to: &Destination,
    config: &Config,
    counts: Arc<ExportCounts>,
) -> Result<IpfixControl, Failure> {
    let mut reopener = None;
    let (asker, commands) = Reopener::new();
    if let Destination::File(_) = to {
        exporter.connect().map_err(|error| unreachable(to, &error))?;
        reopener = Some(asker);
    }
    let drain = Arc::new(Drain::new(config.records.drain_within));
    let ending = drain.clone();
    let work = move |records: &Receiver<Queued>| exporter.run(records, &commands, &ending);
    let (name, queue) = (to.to_string(), config.section::<IpfixKeys>().queue);
    let shared = counts.records.clone();
    let run = RunKind::Live(drain);
    let thread = WritingThread::start(("ipfix", &name), queue, run, shared, work)?;
    Ok(IpfixControl { counts, reopener, thread })
}

fn unreachable(to: &Destination, error: &io::Error) -> Failure {
    match to {
        Destination::File(path) => Failure::creating(path, error),
        _ => Failure::unavailable(format!(
            "{to}: cannot reach the collector: {error}; start it, or name another one in --ipfix"
        )),
    }
}

struct IpfixControl {
    counts: Arc<ExportCounts>,
    /// Live, to a file.
    reopener: Option<Reopener>,
    thread: WritingThread,
}

impl SinkControl for IpfixControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(FlowSender(self.thread.sender()?)))
    }

    fn report(&self) -> Report {
        report(&self.counts, true)
    }

    fn reopener(&self) -> Option<Reopener> {
        self.reopener.clone()
    }

    /// Waits until all records are sent, live for `records.drain_s` at most.
    fn finish(&self, _: Instant) -> Result<(), Failure> {
        self.thread.finish()
    }
}

/// The data path's end: hands over the records of flows.
struct FlowSender(RecordSender);

impl Sink for FlowSender {
    fn record(&mut self, record: &Record) {
        if let Record::Flow(flow) = record {
            self.0.send(Record::Flow(flow.without_series()));
        }
    }

    fn drain(&mut self) {
        self.0.drain();
    }
}

fn report(counts: &ExportCounts, is_used: bool) -> Report {
    let records = &counts.records;
    let (sent, dropped, failed) = (records.written(), records.dropped(), records.failed());
    let sums = vec![("ipfix_sent", sent), ("ipfix_lost", dropped + failed)];
    Report {
        metrics: metrics(counts),
        losses: vec![
            Lost::new(
                "records for the collector are dropped because their queue is full; see \
                 ipfix.queue",
                dropped,
            ),
            Lost::new("records for the collector cannot be sent", failed),
        ],
        status: sums.clone(),
        summary: if is_used { sums } else { Vec::new() },
        summary_text: is_used
            .then(|| format!("ipfix     {sent} records sent, {} lost", dropped + failed)),
        ..Report::default()
    }
}

fn metrics(counts: &ExportCounts) -> Vec<Family> {
    let records = &counts.records;
    let connected = counts.is_connected.load(Ordering::Relaxed);
    vec![
        Family::counter(
            "fenxi_ipfix_records_total",
            "records",
            &["outcome"],
            "Records for a collector: sent; failed; dropped, the queue was full.",
            [
                count(&["sent"], records.written()),
                count(&["failed"], records.failed()),
                count(&["dropped"], records.dropped()),
            ],
        ),
        Family::counter(
            "fenxi_ipfix_messages_total",
            "messages",
            &[],
            "IPFIX messages sent, templates among them.",
            [count(&[], counts.messages.load(Ordering::Relaxed))],
        ),
        Family::counter(
            "fenxi_ipfix_sessions_total",
            "sessions",
            &[],
            "Transport sessions with the collector that were begun.",
            [count(&[], counts.sessions.load(Ordering::Relaxed))],
        ),
        Family::gauge(
            "fenxi_ipfix_connected",
            "",
            &[],
            "1 while there is a session with the collector; over UDP, nobody knows whether it \
             listens.",
            [number(&[], f64::from(u8::from(connected)))],
        ),
    ]
}
