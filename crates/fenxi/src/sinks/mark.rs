//! Labels for the kernel: the class of a flow as bits of its connection's mark.
//!
//! Where the kernel forwards (`mode = "mark"`), fenxi touches no packet. It writes the class into
//! the conntrack entry over ctnetlink, and rules of nftables, tc and ip-rule act on it from the
//! connection's next packet on. What is written stays when fenxi dies, and the kernel goes on.
//!
//! The crate `netfilter` has the messages, the queue and the thread. `docs/mark.md` explains marks
//! to users.

mod classes;
mod now;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use config::Config;
use config::checked::IoMode;
use dataplane::Error;
use dataplane::sink::Sink;
use flowmgr::record::FlowName;
use flowmgr::{Behaviour, TaskId};
use netfilter::connections::{self, Wording};
use netfilter::conntrack::{Change, Tuple};
use netfilter::counts::{Cause, Fate, UpdateCounts};
use netfilter::writer::StartError;
use packetio::WrittenMarks;
use policy::{Label, Mark};

use super::netfilter::{
    BehaviourWords, ByRule, ConnectionWriter, Explained, Figures, NO_CONNECTION, OF_CONNECTIONS,
    Places, Row, WriterSink, Writers, connections_line, connections_sentence, kernel_mark,
    newest_error, tuple,
};
use super::{Commit, Lost, Report, Rights, SinkControl, SinkKind, Start, Sums};
use crate::exit::Failure;
use crate::figures::grouped;
use crate::protocol::Written;
use classes::ClassMarks;

const WORDING: Wording = Wording { doing: "marking connections", what: "connection marks" };

const NOTHING: Change = Change::Mark { bits: 0, mask: 0 };

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
        let writer = start_writer(&marks, start.config.mark.queue)?;
        Ok(Some(Box::new(MarkControl {
            tasks: tasks.collect(),
            places: marks.places(),
            writers: Writers::new(vec![(None, writer.words.clone())], start.config.mark.zone),
            writer,
            labels: start.labels.to_vec(),
            table: start.config.mark.table(),
            behaviours: Arc::new(behaviour_words(&start.config.mark).map(AtomicU64::new)),
            by_kernel: start.marks_by_kernel.clone(),
        })))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        Rights::of_netfilter(config.io.mode == IoMode::Mark)
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
        Report { status: Vec::new(), live_text: None, ..report(&[(None, UpdateCounts::none())], 0) }
    }

    fn status_line(&self, sums: &Sums) -> Option<String> {
        line(sums)
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("marks_lost", "marks"))
    }
}

/// Opens the socket in the network namespace of the calling thread, and starts the thread. A class
/// without a mark leaves its connections as they are, and so does a mark that is there, unless
/// `marks` overwrite it.
fn start_writer(marks: &ClassMarks, queue: usize) -> Result<ConnectionWriter, StartError> {
    let change = |word| {
        Mark::of_word(word).map_or(NOTHING, |Mark { bits, mask }| Change::Mark { bits, mask })
    };
    let (words, overwrites) = (marks.words(), marks.overwrites);
    ConnectionWriter::start("marks", (NOTHING, WORDING), queue, words, overwrites, change)
}

/// Whether the kernel takes marks from us, in the network namespace of the calling thread.
pub fn probe() -> Result<(), StartError> {
    connections::open(NOTHING, WORDING).map(drop)
}

/// The marks that a configuration asks for, of as many tasks as there are labels; `None` in other
/// modes than mark.
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

struct Task {
    name: String,
    /// As [`masks`] says.
    mask: AtomicU32,
}

struct MarkControl {
    /// Has only the writer below.
    writers: Writers,
    writer: ConnectionWriter,
    /// By task, as are the two that follow.
    labels: Vec<Arc<[Label]>>,
    places: Places,
    tasks: Arc<[Task]>,
    /// The table that gives classes their marks.
    table: &'static str,
    behaviours: Arc<BehaviourWords>,
    by_kernel: Option<Arc<WrittenMarks>>,
}

impl MarkControl {
    /// The marks that a connection got by labels and rules, of each task, as far as they are
    /// remembered.
    fn marks_of(&self, tuple: Tuple) -> Vec<Mark> {
        let of = |task: &Task| {
            let mask = task.mask.load(Ordering::Relaxed);
            let is_meant = |word| Mark::of_word(word).is_some_and(|it| it.mask & mask != 0);
            self.writer.words.written_of(tuple, is_meant).and_then(Mark::of_word)
        };
        self.tasks.iter().filter_map(of).collect()
    }

    /// The mark that the kernel's program wrote for the first task's class, if remembered.
    fn mark_by_kernel(&self, flow: &FlowName, classes: &[Option<u16>]) -> Option<Mark> {
        let (marks, class) = self.by_kernel.as_ref().zip(*classes.first()?)?;
        let place = self.places.of_class(TaskId::FIRST, class)?;
        match kernel_mark(marks, flow, class)? {
            Fate::Written => Mark::of_word(self.writer.words.word_of(place)),
            _ => None,
        }
    }
}

impl SinkControl for MarkControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(WriterSink {
            by_rule: ByRule::Marks,
            behaviours: self.behaviours.clone(),
            by_kernel: self.by_kernel.clone(),
            ..self.writers.half(self.places.clone())
        }))
    }

    fn report(&self) -> Report {
        let mut rows = self.writers.rows();
        let missing = self.writers.missing(&rows);
        if let Some(marks) = &self.by_kernel {
            add_kernels(&mut rows[0].1, marks);
        }
        report(&rows, missing)
    }

    fn explain(&self, flow: &FlowName, classes: &[Option<u16>]) -> Vec<Written> {
        let tasks = (0..).map(TaskId).zip(classes).zip(&*self.tasks);
        let mask = |task: &Task| task.mask.load(Ordering::Relaxed);
        let tuple = tuple(flow, self.writers.zone);
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
            let first = class.filter(|_| number == TaskId::FIRST);
            let marks = self.by_kernel.as_ref().zip(first);
            let by_kernel = marks.and_then(|(marks, class)| kernel_mark(marks, flow, class));
            if let Some((place, fate)) = place.zip(by_kernel) {
                return explained.written_by_kernel(self.writer.words.word_of(place), fate);
            }
            let is_meant = |word| Mark::of_word(word).is_some_and(|it| it.mask & mask(task) != 0);
            explained.written(&self.writer.words, tuple, place, is_meant)
        };
        // Only the first task has a section for marks, and so something to say where it writes
        // none.
        let told = tasks.filter(|((number, _), task)| *number == TaskId::FIRST || mask(task) != 0);
        let found = connections::find(tuple);
        let mut written = self.marks_of(tuple);
        written.extend(self.mark_by_kernel(flow, classes));
        told.map(of).chain([now::connection(found, &written)]).collect()
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
                writer.change(marks.words(), marks.overwrites);
                let places = behaviours.iter().zip(words);
                places.for_each(|(place, word)| place.store(word, Ordering::Relaxed));
                let both = tasks.iter().zip(masks);
                both.for_each(|(task, mask)| task.mask.store(mask, Ordering::Relaxed));
            }) as Commit
        }))
    }

    fn finish(&self, ended: Instant) -> Result<(), Failure> {
        self.writers.finish(ended);
        Ok(())
    }
}

/// Adds the marks that the kernel's program wrote or kept.
fn add_kernels(counts: &mut UpdateCounts, marks: &WrittenMarks) {
    let [written, kept] = marks.counts();
    counts.asked += written + kept;
    counts.written += written;
    counts.kept += kept;
}

fn report(rows: &[Row<'_>], missing: i64) -> Report {
    let (_, counts) = &rows[0];
    let nowhere = fault(counts);
    Report {
        losses: vec![
            Lost {
                what: "the kernel refuses marks",
                count: counts.failed(),
                why: newest_error(counts),
            },
            Lost::new(
                "marks are dropped because their queue is full; see mark.queue",
                counts.dropped,
            ),
            Lost {
                what: "labels change nothing, because no connection is found for any of them",
                count: nowhere.as_ref().map_or(0, |_| counts.not_found),
                why: nowhere.clone().unwrap_or_default(),
            },
        ],
        fault: nowhere.map(|fault| ("marks", fault)),
        live_text: Some(sentence(counts)),
        ..FIGURES.report(rows, missing)
    }
}

const FIGURES: Figures = Figures {
    sink: "marks",
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
        "Time from a label to the kernel's confirmation that the connection has its mark.",
    ],
    fates: OF_CONNECTIONS,
    causes: &[Cause::Permission, Cause::NoMemory, Cause::Unanswered, Cause::Other],
    labels: [&[], &["outcome"], &["cause"]],
    sums: &[
        "marks_asked",
        "marks_written",
        "marks_kept",
        "marks_not_found",
        "marks_failed",
        "marks_dropped",
    ],
    status: (4, "marks_lost"),
};

/// Minimum labels without a connection for a warning, if no label had one.
const SUSPICIOUS: u64 = 64;

/// The line of `fenxi ctl status`; `None`: the run writes no marks.
fn line(sums: &Sums) -> Option<String> {
    let of = |name: &str| sums.get(name).copied().unwrap_or_default();
    let asked = *sums.get("marks_asked")?;
    let [written, kept, not_found] = ["marks_written", "marks_kept", "marks_not_found"].map(of);
    Some(match asked {
        0 => "marks     0 written: no label of a flow has a mark yet; `fenxi check` lists those \
            that have"
            .to_owned(),
        _ if written + kept == 0 && not_found > 0 => format!("marks     {}", nothing(not_found)),
        _ => connections_line("marks", [written, kept, not_found]),
    })
}

fn sentence(counts: &UpdateCounts) -> String {
    match counts.asked {
        0 => "marks: 0 written: no label of a flow has a mark; `fenxi check` lists those that have"
            .to_owned(),
        _ if is_nothing(counts) => format!("marks: {}", nothing(counts.not_found)),
        _ => connections_sentence("marks", counts),
    }
}

/// What is wrong where no connection was ever found; `None` as long as that may be chance.
fn fault(counts: &UpdateCounts) -> Option<String> {
    let is_certain = is_nothing(counts) && counts.not_found >= SUSPICIOUS;
    is_certain.then(|| nothing(counts.not_found))
}

fn is_nothing(counts: &UpdateCounts) -> bool {
    counts.written + counts.kept == 0 && counts.not_found > 0
}

fn nothing(not_found: u64) -> String {
    format!(
        "0 written: no connection was found for {} labels; is connection tracking on (conntrack \
         -C), and is mark.zone right? \
         fenxi check --deep looks",
        grouped(not_found)
    )
}

#[cfg(test)]
mod tests_of_status {
    use super::*;

    fn sums(asked: u64, written: u64, not_found: u64) -> Sums {
        let rows = [
            ("marks_asked", asked),
            ("marks_written", written),
            ("marks_kept", 0),
            ("marks_not_found", not_found),
        ];
        rows.map(|(name, sum)| (name.to_owned(), sum)).into()
    }

    #[test]
    fn a_run_that_writes_nothing_says_why() {
        let said = |asked, written, not_found| line(&sums(asked, written, not_found)).unwrap();
        assert!(said(0, 0, 0).contains("0 written: no label of a flow has a mark yet"));
        assert!(said(512, 0, 512).contains("0 written: no connection was found for 512 labels"));
        assert!(
            said(513, 1, 512).ends_with("1 written, 0 kept as they were, 512 without a connection")
        );
        assert_eq!(line(&Sums::new()), None, "another mode");
    }

    #[test]
    fn marks_of_the_kernels_program_count_as_others() {
        let marks = WrittenMarks::default();
        let end = |port| ([10, 0, 0, 1].into(), port);
        marks.note(6, [end(1), end(2)], 0, packetio::KernelMark::Written);
        marks.note(6, [end(1), end(3)], 0, packetio::KernelMark::Kept);
        let mut counts = UpdateCounts::none();
        add_kernels(&mut counts, &marks);
        assert_eq!((counts.waiting(), fault(&counts)), (0, None));
        assert!(sentence(&counts).starts_with("marks: 1 written, 1 kept, "));
    }

    #[test]
    fn a_few_labels_without_a_connection_are_no_fault() {
        let counts = |written, not_found| {
            let mut counts = UpdateCounts::none();
            (counts.asked, counts.written) = (written + not_found, written);
            counts.not_found = not_found;
            counts
        };
        assert_eq!(fault(&counts(0, SUSPICIOUS - 1)), None);
        assert_eq!(fault(&counts(1, 1000)), None);
        assert!(fault(&counts(0, SUSPICIOUS)).unwrap().contains("64 labels"));
        assert!(sentence(&counts(0, 3)).contains("no connection was found for 3 labels"));
    }
}
