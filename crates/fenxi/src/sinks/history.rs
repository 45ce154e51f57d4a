//! The history as the control thread has it.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use config::{Config, Keyed, Section};
use crossbeam_channel::{Receiver, Sender, unbounded};
use dataplane::Error;
use dataplane::sink::Sink;
use flowmgr::record::Record;
use tracing::warn;

use crate::access::may_make;
use crate::exit::Failure;
use crate::history::Keys;
use crate::history::store::{self, Limits, Store};
use crate::metric::{Family, count};
use crate::servers;
use crate::sinks::queue::{Drain, Queued, RecordSender, RunKind, WritingThread};
use crate::sinks::{Commit, Lost, Report, Rights, SinkControl, SinkKind, Start};
use ledger::{Ledger, Services};
use writer::{Counts, Writer, damaged, set_aside};

mod ledger;
mod writer;

const HOURS_PER_DAY: i64 = 24;

/// Sums per hour, where `history.path` names a file.
pub struct History;

impl SinkKind for History {
    fn sections(&self) -> &'static [&'static Section] {
        &[Keys::SECTION]
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let keys: Keys = start.config.section();
        let Some(path) = keys.path.clone() else { return Ok(None) };
        let lock = servers::lock(&path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => Failure::unavailable(format!(
                "history.path: another instance of fenxi writes {}; give each a file of its own",
                path.display()
            )),
            _ => Failure::creating(&path, &error),
        })?;
        let (store, trouble) = open(&path, start.replay.is_some())?;
        let drain = Arc::new(Drain::new(start.config.records.drain_within));
        let counts = Arc::new(Counts::default());
        let (changes, services) = unbounded();
        let writer = Writer {
            path: path.clone(),
            every: keys.every,
            limits: Limits {
                bytes: keys.max_bytes,
                hours: i64::from(keys.max_days) * HOURS_PER_DAY,
            },
            store,
            ledger: Ledger::new(start.config, Services::from_config(start.config)),
            services,
            classes: start.names[0].classes.clone(),
            names: start.host_names.names.clone(),
            counts: counts.clone(),
            drain: start.replay.is_none().then(|| drain.clone()),
            held: 0,
            latest: 0,
            trouble,
        };
        let run = match &start.replay {
            Some(replay) => RunKind::Replay(replay),
            None => RunKind::Live(drain),
        };
        let work = move |records: &Receiver<Queued>| {
            // Nobody else writes the file as long as this is open.
            let _lock = lock;
            writer.run(records)
        };
        let (name, queue) = (path.display().to_string(), start.config.records.queue);
        let of_queue = counts.records.clone();
        let thread = WritingThread::start(("history", &name), queue, run, of_queue, work)?;
        Ok(Some(Box::new(Control { thread, counts, changes })))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        let path = config.section::<Keys>().path;
        Rights { written: path.into_iter().collect(), ..Rights::none() }
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        match config.section::<Keys>().path {
            Some(path) if !is_exempt(&path) => {
                may_make(&path).map_err(|error| Failure::creating(&path, &error))
            }
            _ => Ok(()),
        }
    }

    fn empty_report(&self) -> Report {
        report(&Counts::default())
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("history_lost", "records of the history"))
    }
}

/// Opens the file. Live, one that is damaged makes room for another; one that cannot be written now
/// may be later, and this says why.
fn open(path: &Path, is_replay: bool) -> Result<(Option<Store>, Option<String>), Failure> {
    let mut opened = Store::open(path);
    if opened.as_ref().is_err_and(store::Error::is_damage) {
        if is_replay {
            return Err(damaged(path));
        }
        set_aside(path).map_err(|error| Failure::creating(path, &error))?;
        opened = Store::open(path);
    }
    let name = path.display();
    match opened {
        Ok(store) => Ok((Some(store), None)),
        Err(error) if error.is_refusal() => {
            Err(Failure::config(format!("history.path: {name}: {error}")))
        }
        Err(error) if is_replay => {
            Err(Failure::cannot_create(format!("history.path: {name}: {error}")))
        }
        Err(error) => {
            warn!("history.path: {name} cannot be written: {error}");
            Ok((None, Some(error.to_string())))
        }
    }
}

struct Control {
    thread: WritingThread,
    counts: Arc<Counts>,
    changes: Sender<Services>,
}

impl SinkControl for Control {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(Worker(self.thread.sender()?)))
    }

    fn report(&self) -> Report {
        report(&self.counts)
    }

    fn prepare(&self, _: &Config, next: &Config) -> Result<Option<Commit>, Error> {
        let (services, changes) = (Services::from_config(next), self.changes.clone());
        // The thread is gone only at the end of the run.
        Ok(Some(Box::new(move || drop(changes.send(services)))))
    }

    /// Waits until everything is written, live for `records.drain_s` at most.
    fn finish(&self, _: Instant) -> Result<(), Failure> {
        self.thread.finish()
    }
}

/// The data path's end: hands over the records of flows, without what is on the heap.
struct Worker(RecordSender);

impl Sink for Worker {
    fn record(&mut self, record: &Record) {
        if let Record::Flow(flow) = record {
            self.0.send(Record::Flow(flow.without_series()));
        }
    }

    fn drain(&mut self) {
        self.0.drain();
    }
}

fn report(counts: &Counts) -> Report {
    let (records, sum) = (&counts.records, |it: &AtomicU64| it.load(Ordering::Relaxed));
    let (dropped, failed) = (records.dropped(), records.failed());
    Report {
        metrics: vec![
            Family::counter(
                "fenxi_history_records_total",
                "records",
                &["outcome"],
                "Records of flows for the history: written; failed, they were too many for \
                 memory while the file could not be written; dropped, the queue \
                 was full.",
                [
                    count(&["written"], records.written()),
                    count(&["failed"], failed),
                    count(&["dropped"], dropped),
                ],
            ),
            Family::counter(
                "fenxi_history_other_total",
                "records",
                &[],
                "Of these, records that count for their label alone, because too many came \
                 between two writes.",
                [count(&[], sum(&counts.other))],
            ),
            Family::counter(
                "fenxi_history_writes_total",
                "writes",
                &["outcome"],
                "Attempts to write the history: written; failed, and sums wait in memory.",
                [
                    count(&["written"], sum(&counts.writes)),
                    count(&["failed"], sum(&counts.failed_writes)),
                ],
            ),
            Family::counter(
                "fenxi_history_rows_gone_total",
                "rows",
                &["reason"],
                "Rows that left the history: other, the least busy of an hour that had too many; \
                 limit, by history.max_days or history.max_mib.",
                [count(&["other"], sum(&counts.folded)), count(&["limit"], sum(&counts.removed))],
            ),
            Family::gauge(
                "fenxi_history_bytes",
                "bytes",
                &[],
                "Size of the history.",
                [count(&[], sum(&counts.bytes))],
            ),
        ],
        losses: vec![
            Lost::new(
                "records for the history are dropped because their queue is full; see \
                 records.queue",
                dropped,
            ),
            Lost::new("records for the history are lost; see history.path", failed),
        ],
        status: vec![("history_lost", dropped + failed)],
        ..Report::default()
    }
}
