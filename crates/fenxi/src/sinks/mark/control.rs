//! Marks as the control thread has them: started in mode mark, changed by a reload, flushed at the
//! end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use config::Config;
use config::checked::IoMode;
use dataplane::Error;
use dataplane::sink::Sink;
use flowmgr::record::FlowName;
use flowmgr::{Behaviour, TaskId};
use netfilter::counts::Cause;
use policy::{Label, Mark};
use rustix::thread::CapabilitySet;

use super::{ClassMarks, Counts, Writer, probe, status};
use crate::exit::Failure;
use crate::protocol::Written;
use crate::sinks::netfilter::{
    BehaviourWords, ByRule, Explained, Figures, NO_CONNECTION, OF_CONNECTIONS, Places, WriterSink,
    finish, missing, newest_error, tuple,
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
        let names = start.config.tasks.iter().zip(masks(start.config));
        let tasks =
            names.map(|(task, mask)| Task { name: task.name.clone(), mask: AtomicU32::new(mask) });
        Ok(Some(Box::new(MarkControl {
            tasks: tasks.collect(),
            places: marks.places(),
            writer: Arc::new(Writer::start(marks, start.config.mark.queue)?),
            labels: start.labels.to_vec(),
            zone: start.config.mark.zone,
            table: start.config.mark.table(),
            behaviours: Arc::new(behaviour_words(&start.config.mark).map(AtomicU64::new)),
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

    fn check_labels(&self, config: &Config, labels: &[Arc<[Label]>]) -> Result<(), Error> {
        class_marks(config, labels).map(drop)
    }

    fn empty_report(&self) -> Report {
        Report { status: Vec::new(), live_text: None, ..report(&Counts::none(), 0) }
    }

    fn status_line(&self, sums: &Sums) -> Option<String> {
        status::line(sums)
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("marks_lost", "marks"))
    }
}

/// The marks that a configuration asks for, of as many tasks as there are labels; `None` in other
/// modes than mark.
///
/// # Errors
/// The user named a label that a model does not have.
pub fn class_marks(config: &Config, labels: &[Arc<[Label]>]) -> Result<Option<ClassMarks>, Error> {
    let Some((first, others)) = labels.split_first().filter(|_| config.io.mode == IoMode::Mark)
    else {
        return Ok(None);
    };
    let marks = ClassMarks::new(&config.mark, first).and_then(|marks| {
        let mut others = config.tasks.iter().skip(1).zip(others);
        others.try_fold(marks, |marks, (task, labels)| marks.and_of(task, labels))
    });
    marks.map(Some).map_err(|error| Error::Config(error.to_string()))
}

/// The bits that labels of each task write; 0 where none does.
fn masks(config: &Config) -> impl Iterator<Item = u32> {
    let others = config.tasks.iter().skip(1);
    std::iter::once(config.mark.mask).chain(others.map(|task| task.mark_mask))
}

/// The mark of each behaviour as a word: a behaviour without bits clears the bits of the others.
pub fn behaviour_words(mark: &config::checked::Mark) -> [u64; Behaviour::COUNT] {
    let mask = mark.behaviour_mask();
    let word = |bits| Mark::to_word((mask != 0).then_some(Mark { bits, mask }));
    let mut words = [word(0); Behaviour::COUNT];
    for row in &mark.behaviour {
        words[row.behaviour as usize] = word(row.mark);
    }
    words
}

/// What is reported about a task's marks.
struct Task {
    name: String,
    /// As [`masks`] says.
    mask: AtomicU32,
}

struct MarkControl {
    writer: Arc<Writer>,
    /// By task, as are the two that follow.
    labels: Vec<Arc<[Label]>>,
    places: Places,
    tasks: Arc<[Task]>,
    zone: u16,
    /// The table that gives classes their marks.
    table: &'static str,
    /// See [`behaviour_words`].
    behaviours: Arc<BehaviourWords>,
    /// Flow workers; each may hold one mark.
    workers: AtomicI64,
}

impl SinkControl for MarkControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        self.workers.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(WriterSink {
            writers: [self.writer.shared().clone()].into(),
            zone: self.zone,
            places: self.places.clone(),
            by_rule: ByRule::Marks,
            replaces: true,
            behaviours: self.behaviours.clone(),
        }))
    }

    fn report(&self) -> Report {
        let (writer, counts) = (self.writer.shared(), self.writer.counts());
        let workers = self.workers.load(Ordering::Relaxed);
        report(&counts, missing(writer, &counts, workers))
    }

    fn explain(&self, flow: &FlowName, classes: &[Option<u16>]) -> Vec<Written> {
        let tasks = (0..).map(TaskId).zip(classes).zip(&*self.tasks);
        let mask = |task: &Task| task.mask.load(Ordering::Relaxed);
        let of = |((number, class), task): ((TaskId, &Option<u16>), &Task)| {
            let (what, table) = match number {
                TaskId::FIRST => ("mark".to_owned(), self.table.to_owned()),
                _ => {
                    let name = &task.name;
                    (format!("mark of {name}"), format!("task.{name}.mark"))
                }
            };
            let explained = Explained {
                what,
                done: "the connection has the mark",
                gone: NO_CONNECTION,
                table: &table,
                shown: &|word| {
                    Mark::of_word(word)
                        .map_or(String::new(), |Mark { bits, mask }| format!("{bits:#x}/{mask:#x}"))
                },
            };
            let place = class.and_then(|class| self.places.of_class(number, class));
            let is_meant = |word| Mark::of_word(word).is_some_and(|it| it.mask & mask(task) != 0);
            let tuple = tuple(flow, self.zone);
            explained.of(self.writer.shared(), tuple, place, is_meant)
        };
        // Only the first task has a section for marks, and so something to say where it writes
        // none.
        let told = tasks.filter(|((number, _), task)| *number == TaskId::FIRST || mask(task) != 0);
        told.map(of).collect()
    }

    fn prepare(&self, now: &Config, next: &Config) -> Result<Option<Commit>, Error> {
        let [before, after] = [now, next].map(|config| class_marks(config, &self.labels));
        let (before, after) = (before?, after?);
        let words = behaviour_words(&next.mark);
        let is_changed = before != after || behaviour_words(&now.mark) != words;
        Ok(after.filter(|_| is_changed).map(|marks| {
            let (writer, tasks) = (self.writer.clone(), self.tasks.clone());
            let behaviours = self.behaviours.clone();
            let masks: Vec<u32> = masks(next).collect();
            Box::new(move || {
                writer.change(&marks);
                let places = behaviours.iter().zip(words);
                places.for_each(|(place, word)| place.store(word, Ordering::Relaxed));
                let both = tasks.iter().zip(masks);
                both.for_each(|(task, mask)| task.mask.store(mask, Ordering::Relaxed));
            }) as Commit
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
            Lost { what: "the kernel refuses marks", count: failed, why: newest_error(counts) },
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
        "Marks of connections, mode mark: written; kept, the connection had a mark already; \
         not_found, no connection has the flow's addresses; failed; dropped, the queue was full.",
    ],
    failed: ["fenxi_marks_failed_total", "Marks that the kernel refused, by cause."],
    waiting: ["fenxi_marks_waiting", "Marks that wait to be written."],
    latency: [
        "fenxi_mark_latency_seconds",
        "Time from a label to the kernel's confirmation that the connection has its mark. Bounds \
         are conservative, within 1 %.",
    ],
    fates: OF_CONNECTIONS,
    causes: &[Cause::Permission, Cause::NoMemory, Cause::Unanswered, Cause::Other],
    labels: [&[], &["outcome"], &["cause"]],
};
