//! Marks as the control thread has them: started in mode mark, changed by a reload, flushed at the end.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use config::Config;
use config::checked::IoMode;
use dataplane::Error;
use dataplane::run::PAUSE;
use dataplane::sink::Sink;
use flowmgr::record::FlowName;
use netfilter::conntrack::Change;
use policy::{Label, Mark};
use rustix::thread::CapabilitySet;

use super::sink::tuple;
use super::{ClassMarks, Counts, MarkSink, StartError, Writer, probe};
use crate::exit::Failure;
use crate::metric::{Family, Kind, Metric, TIMES, US, buckets, count, number, sample};
use crate::protocol::Written;
use crate::sinks::records::rfc3339;
use crate::sinks::{Commit, Lost, Report, Rights, SinkControl, SinkKind, Start, Sums};

/// How long after the last label the end of a run waits for marks that are still to be written.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// Connection marks, in mode mark.
pub struct Marks;

impl SinkKind for Marks {
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        if start.replay.is_some() {
            return Ok(None);
        }
        let Some(marks) = class_marks(start.config, start.labels)? else {
            return Ok(None);
        };
        Ok(Some(Box::new(MarkControl {
            writer: Arc::new(Writer::start(marks, start.config.mark.queue)?),
            labels: start.labels.clone(),
            workers: AtomicI64::new(0),
        })))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        let mut rights = Rights::none();
        if config.io.mode == IoMode::Mark {
            rights.capabilities = CapabilitySet::NET_ADMIN;
        }
        rights
    }

    fn probe(&self, config: &Config, _: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        match config.io.mode {
            IoMode::Mark => Ok(probe()?),
            _ => Ok(()),
        }
    }

    fn check_labels(&self, config: &Config, labels: &[Label]) -> Result<(), Error> {
        class_marks(config, labels).map(drop)
    }

    fn empty_report(&self) -> Report {
        report(&Counts::none(), 0)
    }

    fn status_line(&self, sums: &Sums) -> Option<String> {
        use crate::figures::grouped;
        let names = ["marks_written", "marks_kept", "marks_not_found"];
        let [written, kept, not_found] =
            names.map(|name| sums.get(name).copied().unwrap_or_default());
        (written + kept + not_found > 0).then(|| {
            format!(
                "marks     {} written, {} kept as they were, {} without a connection",
                grouped(written),
                grouped(kept),
                grouped(not_found)
            )
        })
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("marks_lost", "marks"))
    }
}

/// The marks that a configuration asks for; `None` in other modes than mark.
///
/// # Errors
/// The user named a label that the model does not have.
pub fn class_marks(config: &Config, labels: &[Label]) -> Result<Option<ClassMarks>, Error> {
    if config.io.mode != IoMode::Mark {
        return Ok(None);
    }
    let marks = ClassMarks::new(&config.mark, labels);
    marks
        .map(Some)
        .map_err(|error| Error::Config(error.to_string()))
}

struct MarkControl {
    writer: Arc<Writer>,
    labels: Arc<[Label]>,
    /// Flow workers, each of which may have one mark in its hands.
    workers: AtomicI64,
}

impl SinkControl for MarkControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        self.workers.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(MarkSink::new(self.writer.clone())))
    }

    fn report(&self) -> Report {
        let under_way = self.writer.room() as i64 + self.workers.load(Ordering::Relaxed);
        report(&self.writer.counts(), under_way)
    }

    fn explain(&self, flow: &FlowName, class: Option<u16>) -> Option<Written> {
        let written = |value: String, outcome: String, at| Written {
            what: "mark".to_owned(),
            value,
            outcome,
            at,
        };
        let Some(class) = class else {
            let why = "nothing, since there is no label to write";
            return Some(written(String::new(), why.to_owned(), None));
        };
        let label = self
            .labels
            .get(usize::from(class))
            .map_or("", |label| label.name.as_str());
        if let Some(fate) = self.writer.memory().of(tuple(flow)) {
            let since = fate.at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let at = rfc3339(since.as_micros() as i64);
            return Some(written(shown(fate.change), fate.sentence(), Some(at)));
        }
        Some(match self.writer.mark_of(class) {
            None => written(
                String::new(),
                format!("nothing: [mark.class] gives \"{label}\" no bits"),
                None,
            ),
            Some(Mark { bits, mask }) => written(
                shown(Change::Mark { bits, mask }),
                "waits to be written, found the queue full, or is longer ago than is remembered"
                    .to_owned(),
                None,
            ),
        })
    }

    fn prepare(&self, now: &Config, next: &Config) -> Result<Option<Commit>, Error> {
        let [before, after] = [now, next].map(|config| class_marks(config, &self.labels));
        let (before, after) = (before?, after?);
        let is_changed = before != after;
        Ok(after.filter(|_| is_changed).map(|marks| {
            let writer = self.writer.clone();
            Box::new(move || writer.change(&marks)) as Commit
        }))
    }

    /// Waits a moment until the last marks are written.
    fn finish(&self, ended: Instant) -> Result<(), Failure> {
        while self.writer.waiting() > 0 && Instant::now() < ended + FLUSH_WITHIN {
            std::thread::sleep(PAUSE);
        }
        if self.writer.waiting() > 0 {
            // The last one to let go of the writer would wait for everything in its queue.
            std::mem::forget(self.writer.clone());
            dataplane::leave_threads_behind();
        }
        Ok(())
    }
}

/// `0x100/0xff00`: bits and mask.
fn shown(change: Change) -> String {
    match change {
        Change::Mark { bits, mask } => format!("{bits:#x}/{mask:#x}"),
        Change::Labels { .. } => "labels".to_owned(),
    }
}

/// `most`: the most marks that can be under way; what waits beyond that is missing.
fn report(counts: &Counts, most: i64) -> Report {
    let waiting = counts.waiting();
    let failed = counts.failed();
    Report {
        metrics: metrics(counts),
        balance: Some(("marks", waiting - waiting.clamp(0, most))),
        losses: vec![
            Lost {
                what: "the kernel refuses marks",
                count: failed,
                why: io::Error::from_raw_os_error(counts.last_errno).to_string(),
            },
            Lost {
                what: "marks are dropped because their queue is full; see mark.queue",
                count: counts.dropped,
                why: String::new(),
            },
        ],
        status: vec![
            ("marks_written", counts.written),
            ("marks_kept", counts.kept),
            ("marks_not_found", counts.not_found),
            ("marks_lost", failed + counts.dropped),
        ],
        summary: Vec::new(),
        summary_text: None,
        live_summary: vec![
            ("marks_asked", counts.asked),
            ("marks_written", counts.written),
            ("marks_kept", counts.kept),
            ("marks_not_found", counts.not_found),
            ("marks_failed", failed),
            ("marks_dropped", counts.dropped),
        ],
        live_text: Some(format!(
            "marks: {} written, {} kept, {} without a connection, {failed} refused, {} dropped",
            counts.written, counts.kept, counts.not_found, counts.dropped
        )),
    }
}

fn metrics(counts: &Counts) -> Vec<Family> {
    let outcomes = [
        ("written", counts.written),
        ("kept", counts.kept),
        ("not_found", counts.not_found),
        ("failed", counts.failed()),
        ("dropped", counts.dropped),
    ];
    let causes = counts.failed_by_cause();
    vec![
        Family::counter(
            "fenxi_marks_total",
            "marks",
            &["outcome"],
            "Marks of connections, mode mark: written; kept, the connection had a mark already; not_found, no connection has the flow's addresses; failed; dropped, the queue was full.",
            outcomes.map(|(outcome, marks)| count(&[outcome], marks)),
        ),
        Family::counter(
            "fenxi_marks_failed_total",
            "marks",
            &["cause"],
            "Marks that the kernel refused, by cause.",
            causes.map(|(cause, marks)| count(&[cause], marks)),
        ),
        Family {
            metric: Metric::new(
                Kind::Gauge,
                "fenxi_marks_waiting",
                "marks",
                &[],
                "Marks that wait to be written.",
            ),
            samples: vec![number(&[], counts.waiting() as f64)],
        },
        Family {
            metric: Metric::new(
                Kind::Histogram,
                "fenxi_mark_latency_seconds",
                "seconds",
                &[],
                "Time from a label to the kernel's confirmation that the connection has its mark. Bounds are conservative, within 1 %.",
            ),
            samples: vec![sample(&[], buckets(&TIMES, US, &counts.latency_us))],
        },
    ]
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        let message = error.to_string();
        match error {
            StartError::Capability => Failure::not_allowed(message),
            StartError::Kernel(_) | StartError::Thread(_) => Failure::unavailable(message),
        }
    }
}
