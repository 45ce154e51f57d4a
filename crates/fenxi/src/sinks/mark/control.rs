//! Marks as the control thread has them: started in mode mark, changed by a reload, flushed at the end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use config::Config;
use config::checked::IoMode;
use dataplane::Error;
use dataplane::sink::Sink;
use flowmgr::record::FlowName;
use netfilter::counts::Cause;
use policy::{Label, Mark};
use rustix::thread::CapabilitySet;

use super::{ClassMarks, Counts, Writer, probe, status};
use crate::exit::Failure;
use crate::protocol::Written;
use crate::sinks::netfilter::{
    ByRule, Explained, Figures, NO_CONNECTION, OF_CONNECTIONS, WriterSink, finish, missing,
    newest_error, tuple,
};
use crate::sinks::{Commit, Lost, Report, Rights, SinkControl, SinkKind, Start, Sums};

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
            zone: start.config.mark.zone,
            table: start.config.mark.table(),
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
        Report {
            status: Vec::new(),
            ..report(&Counts::none(), 0)
        }
    }

    fn status_line(&self, sums: &Sums) -> Option<String> {
        status::line(sums)
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
    zone: u16,
    /// The table that gives classes their marks.
    table: &'static str,
    /// Flow workers, each of which may have one mark in its hands.
    workers: AtomicI64,
}

impl SinkControl for MarkControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        self.workers.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(WriterSink {
            writers: [self.writer.shared().clone()].into(),
            zone: self.zone,
            by_rule: ByRule::Marks,
        }))
    }

    fn report(&self) -> Report {
        let (writer, counts) = (self.writer.shared(), self.writer.counts());
        let workers = self.workers.load(Ordering::Relaxed);
        report(&counts, missing(writer, &counts, workers))
    }

    fn explain(&self, flow: &FlowName, class: Option<u16>) -> Vec<Written> {
        let explained = Explained {
            what: "mark".to_owned(),
            done: "the connection has the mark",
            gone: NO_CONNECTION,
            table: self.table,
            shown: &|word| {
                Mark::of_word(word).map_or(String::new(), |Mark { bits, mask }| {
                    format!("{bits:#x}/{mask:#x}")
                })
            },
        };
        vec![explained.of(self.writer.shared(), tuple(flow, self.zone), class)]
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
        finish(std::slice::from_ref(self.writer.shared()), ended);
        Ok(())
    }
}

fn report(counts: &Counts, missing: i64) -> Report {
    let failed = counts.failed();
    let nowhere = status::fault(counts);
    Report {
        metrics: FIGURES.families(&[(None, counts.clone())]),
        balance: Some(("marks", missing)),
        losses: vec![
            Lost {
                what: "the kernel refuses marks",
                count: failed,
                why: newest_error(counts),
            },
            Lost {
                what: "marks are dropped because their queue is full; see mark.queue",
                count: counts.dropped,
                why: String::new(),
            },
            Lost {
                what: "labels change nothing, because no connection is found for any of them",
                count: nowhere.as_ref().map_or(0, |_| counts.not_found),
                why: nowhere.clone().unwrap_or_default(),
            },
        ],
        fault: nowhere.map(|fault| ("marks", fault)),
        status: vec![
            ("marks_asked", counts.asked),
            ("marks_written", counts.written),
            ("marks_kept", counts.kept),
            ("marks_not_found", counts.not_found),
            ("marks_lost", failed + counts.dropped + counts.not_found),
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
        live_text: Some(status::sentence(counts)),
    }
}

const FIGURES: Figures = Figures {
    unit: "marks",
    total: [
        "fenxi_marks_total",
        "Marks of connections, mode mark: written; kept, the connection had a mark already; not_found, no connection has the flow's addresses; failed; dropped, the queue was full.",
    ],
    failed: [
        "fenxi_marks_failed_total",
        "Marks that the kernel refused, by cause.",
    ],
    waiting: ["fenxi_marks_waiting", "Marks that wait to be written."],
    latency: [
        "fenxi_mark_latency_seconds",
        "Time from a label to the kernel's confirmation that the connection has its mark. Bounds are conservative, within 1 %.",
    ],
    fates: OF_CONNECTIONS,
    causes: &[
        Cause::Permission,
        Cause::NoMemory,
        Cause::Unanswered,
        Cause::Other,
    ],
    labels: [&[], &["outcome"], &["cause"]],
};
