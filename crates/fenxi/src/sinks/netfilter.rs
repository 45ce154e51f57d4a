//! What the sinks share that write into the kernel's netfilter: the writers with both of their
//! ends, and the figures.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use dataplane::rules::{Ruled, RulesInForce};
use dataplane::run::PAUSE;
use dataplane::sink::Sink;
use flowmgr::record::{DecidedBy, FlowName, LabelRecord, Record};
use flowmgr::{Behaviour, TaskId};
use netfilter::connections::{self, Wording};
use netfilter::conntrack::{Change, Tuple};
use netfilter::counts::{Cause, Fate, UpdateCounts};
use netfilter::writer::{StartError, Writer};
use packetio::{KernelMark, WrittenMarks};
use policy::{Label, Mark};

use crate::exit::Failure;
use crate::figures::grouped;
use crate::metric::{Family, Kind, Metric, Sample, TIMES, US, buckets, count, number, sample};
use crate::protocol::Written;
use crate::service_unit::{MARK, set_capabilities};
use crate::sinks::Report;
use crate::sinks::records::rfc3339;

const TCP: u8 = 6;
/// How long after the last label the end of a run waits for what is still to be written.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// Where the words of each task's classes stand in a writer's list: the first, and how many there
/// are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places(Vec<(u16, u16)>);

impl Places {
    /// For tasks with these numbers of classes, `unknown` included. The numbers suffice:
    /// [`cring::TASKS_MAX`] times [`cring::CLASSES_MAX`] is less than `u16::MAX`.
    pub fn new(classes: impl IntoIterator<Item = usize>) -> Places {
        let mut first = 0;
        let mut place = |classes: usize| {
            let of_task = (first, classes as u16);
            first += classes as u16;
            of_task
        };
        Places(classes.into_iter().map(&mut place).collect())
    }

    /// For a writer that takes the labels of all tasks.
    pub fn of_labels(labels: &[Arc<[Label]>]) -> Places {
        Places::new(labels.iter().map(|labels| labels.len()))
    }

    /// The place of a task's class; `None`: nothing is ever written for it.
    pub fn of_class(&self, task: TaskId, class: u16) -> Option<u16> {
        let &(first, classes) = self.0.get(task.index())?;
        (class < classes).then_some(first + class)
    }
}

const _: () = assert!(cring::TASKS_MAX * cring::CLASSES_MAX < u16::MAX as usize);

/// A flow worker's end of writers; each knows which classes it writes.
pub struct WriterSink {
    pub writers: Box<[Arc<Writer>]>,
    /// Where conntrack has the connections.
    pub zone: u16,
    pub places: Places,
    pub by_rule: ByRule,
    /// What the label of a port wrote gives way where an answer contradicts it. Elements of sets
    /// stay until their timeout, since other flows may have written them too.
    pub replaces: bool,
    /// What is written for behaviours, by their numbers; 0: nothing.
    pub behaviours: Arc<BehaviourWords>,
    /// What the kernel's program writes for the first task's labels.
    pub by_kernel: Option<Arc<WrittenMarks>>,
}

/// The words of behaviours, by their numbers.
pub type BehaviourWords = [AtomicU64; Behaviour::COUNT];

/// What rules mean for a writer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ByRule {
    /// Nothing: labels alone decide.
    Nothing,
    /// Rules may ask for marks, once there are some.
    Marks,
    /// Rules are in force, and each label of the first task comes by [`Sink::ruled`].
    InForce,
}

impl Sink for WriterSink {
    fn take_rules(&mut self, _: &RulesInForce) {
        if self.by_rule == ByRule::Marks {
            self.by_rule = ByRule::InForce;
        }
    }

    fn ruled(&mut self, ruled: &Ruled) {
        if self.by_rule != ByRule::InForce || ruled.flow.is_icmp() {
            return;
        }
        let tuple = tuple(&ruled.flow, self.zone);
        for writer in &self.writers {
            let before = ruled.contradicts.map_or(0, |class| writer.word_of(class));
            match (ruled.mark, ruled.class) {
                (Some(mark), _) => {
                    writer.replace_word(tuple, before, Mark::to_word(Some(mark)));
                }
                (None, Some(class)) => {
                    writer.replace_word(tuple, before, writer.word_of(class));
                }
                (None, None) => {}
            }
        }
    }

    fn record(&mut self, record: &Record) {
        // conntrack tells its connections apart by what a flow does not know, their ids.
        if record.flow().is_some_and(FlowName::is_icmp) {
            return;
        }
        if let Record::Behaviour(change) = record {
            let word = self.behaviours[change.behaviour as usize].load(Ordering::Relaxed);
            let tuple = tuple(&change.flow, self.zone);
            let writers = self.writers.iter();
            writers.for_each(|writer| writer.overwrite_word(tuple, word));
        }
        if let Record::Label(label) = record
            && (self.by_rule != ByRule::InForce || label.task != TaskId::FIRST)
            && !self.is_by_kernel(label)
            && let Some(place) = self.places.of_class(label.task, label.decision.class)
        {
            let tuple = tuple(&label.flow, self.zone);
            let before = label.decision.contradicts.filter(|_| self.replaces);
            let before = before.and_then(|class| self.places.of_class(label.task, class));
            for writer in &self.writers {
                let before = before.map_or(0, |place| writer.word_of(place));
                writer.replace_word(tuple, before, writer.word_of(place));
            }
        }
    }

    /// The kernel acts on what is written from the connection's next packet on.
    fn is_urgent(&self) -> bool {
        true
    }
}

impl WriterSink {
    /// Whether the kernel's program wrote the label, or will with the flow's first payload.
    fn is_by_kernel(&self, label: &LabelRecord) -> bool {
        let decision = &label.decision;
        self.by_kernel.as_ref().filter(|_| label.task == TaskId::FIRST).is_some_and(|marks| {
            // A port names a TCP flow by its SYN, which comes up before the flow is reported.
            let is_by_syn = decision.decided_by == DecidedBy::Port && label.flow.protocol == TCP;
            is_by_syn && marks.has_ports()
                || kernel_mark(marks, &label.flow, decision.class).is_some()
        })
    }
}

/// What became of the mark that the kernel's program wrote for a flow's class.
pub fn kernel_mark(marks: &WrittenMarks, flow: &FlowName, class: u16) -> Option<Fate> {
    let mark = marks.find(flow.protocol, [flow.source, flow.destination], class)?;
    Some(match mark {
        KernelMark::Written => Fate::Written,
        KernelMark::Kept => Fate::Kept,
    })
}

/// The flow as a packet of its forward direction has it.
pub fn tuple(name: &FlowName, zone: u16) -> Tuple {
    Tuple { zone, protocol: name.protocol, source: name.source, destination: name.destination }
}

/// What a writer writes, in the words of `fenxi ctl explain`.
pub struct Explained<'a> {
    /// `mark`; `connlabel`; `nftset.NAME`.
    pub what: String,
    /// What the connection or the set then has: `the connection has the mark`.
    pub done: &'a str,
    /// Why it is not there: the connection or the set is gone.
    pub gone: &'a str,
    /// The table of the configuration that gives classes something to write.
    pub table: &'a str,
    /// What a word means, as in `0x100/0xff00`.
    pub shown: &'a dyn Fn(u64) -> String,
}

impl Explained<'_> {
    /// What was written about a flow of the class that has this place, or why nothing was.
    /// `is_meant` are the words of its task.
    pub fn written(
        self,
        writer: &Writer,
        tuple: Tuple,
        place: Option<u16>,
        is_meant: impl Fn(u64) -> bool,
    ) -> Written {
        let word = place.map(|place| writer.word_of(place));
        let settled = writer.latest_of(tuple, is_meant);
        let (value, outcome) = match (word, settled) {
            // A rule writes without a label, too.
            (_, Some(settled)) => (Some(settled.word), self.sentence(settled.fate)),
            (None, None) => (None, "nothing, since there is no label to write".to_owned()),
            (Some(0), None) => {
                (None, format!("nothing: [{}] has nothing for this label", self.table))
            }
            (Some(word), None) => (
                Some(word),
                "waits to be written, found the queue full, or is longer ago than is remembered"
                    .to_owned(),
            ),
        };
        let time = |at: std::time::SystemTime| {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            rfc3339(since.as_micros() as i64)
        };
        Written {
            what: self.what,
            value: value.map(self.shown).unwrap_or_default(),
            outcome,
            at: settled.map(|settled| time(settled.at)),
        }
    }

    /// What became of a word that the kernel's program wrote.
    pub fn written_by_kernel(self, word: u64, fate: Fate) -> Written {
        let outcome = self.sentence(fate);
        Written { what: self.what, value: (self.shown)(word), outcome, at: None }
    }

    fn sentence(&self, fate: Fate) -> String {
        let (done, what) = (self.done, &self.what);
        match fate {
            Fate::Written => done.to_owned(),
            Fate::Refreshed => format!("{done}; it was there before, and its timeout began again"),
            Fate::Kept => format!(
                "the connection had one already and keeps it; {what}.overwrite = true would \
                 replace it"
            ),
            Fate::NotFound => self.gone.to_owned(),
            Fate::OtherFamily => "nothing: the set holds addresses of the other family".to_owned(),
            Fate::Refused(errno) => {
                let error = io::Error::from_raw_os_error(errno);
                format!("the kernel refused it: {error}")
            }
            Fate::Unanswered => "the kernel's answer was lost; it may be there".to_owned(),
        }
    }
}

/// Why a connection does not get what it should.
pub const NO_CONNECTION: &str =
    "no connection has these addresses and ports: it was over, or conntrack does not track it";

/// A writer of connections, and whether what a connection has gives way.
#[derive(Clone)]
pub struct ConnectionWriter {
    pub words: Arc<Writer>,
    overwrites: Arc<AtomicBool>,
}

impl ConnectionWriter {
    /// Opens the socket in the network namespace of the calling thread, makes sure that the kernel
    /// takes `nothing`, which changes nothing, and starts the thread. `queue` updates may wait for
    /// it. `change` is what a word means.
    pub fn start(
        thread: &str,
        (nothing, wording): (Change, Wording),
        queue: usize,
        words: impl Iterator<Item = u64>,
        overwrites: bool,
        change: impl Fn(u64) -> Change + Send + 'static,
    ) -> Result<ConnectionWriter, StartError> {
        let socket = connections::open(nothing, wording)?;
        let overwrites = Arc::new(AtomicBool::new(overwrites));
        let write = connections::writer(socket, overwrites.clone(), change);
        let words = Arc::new(Writer::start(thread, words, queue, write)?);
        Ok(ConnectionWriter { words, overwrites })
    }

    /// From now on labels get these words; they are of the same classes. Updates that wait keep
    /// theirs.
    pub fn change(&self, words: impl Iterator<Item = u64>, overwrites: bool) {
        self.words.change(words);
        self.overwrites.store(overwrites, Ordering::Relaxed);
    }
}

/// What a writer counted, with its name where a sink has several.
pub type Row<'a> = (Option<&'a str>, UpdateCounts);

/// The writers of a sink as the control thread has them, each with its name where there are
/// several.
pub struct Writers {
    pub all: Vec<(Option<String>, Arc<Writer>)>,
    /// Where conntrack has the connections.
    pub zone: u16,
    /// Flow workers; each may hold one update.
    workers: AtomicI64,
}

impl Writers {
    pub fn new(all: Vec<(Option<String>, Arc<Writer>)>, zone: u16) -> Writers {
        Writers { all, zone, workers: AtomicI64::new(0) }
    }

    /// The half of another flow worker, for which neither rules nor behaviours count.
    pub fn half(&self, places: Places) -> WriterSink {
        self.workers.fetch_add(1, Ordering::Relaxed);
        WriterSink {
            writers: self.all.iter().map(|(_, writer)| writer.clone()).collect(),
            zone: self.zone,
            places,
            by_rule: ByRule::Nothing,
            replaces: true,
            behaviours: Arc::default(),
            by_kernel: None,
        }
    }

    pub fn rows(&self) -> Vec<Row<'_>> {
        self.all.iter().map(|(name, writer)| (name.as_deref(), writer.counts())).collect()
    }

    /// Updates that are missing: more wait than the queue, the thread and the hands of the workers
    /// hold.
    pub fn missing(&self, rows: &[Row<'_>]) -> i64 {
        let workers = self.workers.load(Ordering::Relaxed);
        let missing = |((_, writer), (_, counts)): (&(_, Arc<Writer>), &Row<'_>)| {
            let waiting = counts.waiting();
            waiting - waiting.clamp(0, writer.room() as i64 + workers)
        };
        self.all.iter().zip(rows).map(missing).sum()
    }

    pub fn finish(&self, ended: Instant) {
        let waits = || self.all.iter().any(|(_, writer)| writer.waiting() > 0);
        while waits() && Instant::now() < ended + FLUSH_WITHIN {
            std::thread::sleep(PAUSE);
        }
        if waits() {
            // The last one to let go of a writer would wait for everything in its queue.
            std::mem::forget(self.all.clone());
            dataplane::leave_threads_behind();
        }
    }
}

pub fn newest_error(counts: &UpdateCounts) -> String {
    io::Error::from_raw_os_error(counts.last_errno).to_string()
}

/// An outcome by its name, and how many updates had it.
pub type UpdateCount = (&'static str, fn(&UpdateCounts) -> u64);

/// The line of `fenxi ctl status` about what was written to connections.
pub fn connections_line(sink: &str, [written, kept, not_found]: [u64; 3]) -> String {
    format!(
        "{sink:<9} {} written, {} kept as they were, {} without a connection",
        grouped(written),
        grouped(kept),
        grouped(not_found)
    )
}

/// The same for the summary.
pub fn connections_sentence(sink: &str, counts: &UpdateCounts) -> String {
    format!(
        "{sink}: {} written, {} kept, {} without a connection, {} refused, {} dropped",
        counts.written,
        counts.kept,
        counts.not_found,
        counts.failed(),
        counts.dropped
    )
}

/// The outcomes of what is written to connections.
pub const OF_CONNECTIONS: &[UpdateCount] = &[
    ("written", |counts| counts.written),
    ("kept", |counts| counts.kept),
    ("not_found", |counts| counts.not_found),
    ("failed", UpdateCounts::failed),
    ("dropped", |counts| counts.dropped),
];

/// The figures of a sink; of each metric the name and the help.
pub struct Figures {
    /// Its name in the balance of a run.
    pub sink: &'static str,
    pub unit: &'static str,
    /// By outcome.
    pub total: [&'static str; 2],
    /// By cause.
    pub failed: [&'static str; 2],
    pub waiting: [&'static str; 2],
    pub latency: [&'static str; 2],
    pub fates: &'static [UpdateCount],
    pub causes: &'static [Cause],
    /// The labels of the metrics without an outcome or cause: none, or the name of what is written.
    pub labels: [&'static [&'static str]; 3],
    /// Names of the sums: updates asked for, then each outcome.
    pub sums: &'static [&'static str],
    /// How many of these `fenxi ctl status` has, and the name of what was given up.
    pub status: (usize, &'static str),
}

impl Figures {
    /// The report of these writers, without losses and sentences.
    pub fn report(&self, rows: &[Row<'_>], missing: i64) -> Report {
        let sum =
            |of: fn(&UpdateCounts) -> u64| rows.iter().map(|(_, counts)| of(counts)).sum::<u64>();
        let asked: fn(&UpdateCounts) -> u64 = |counts| counts.asked;
        let all = std::iter::once(asked).chain(self.fates.iter().map(|(_, of)| *of));
        let sums: Vec<_> = self.sums.iter().copied().zip(all.map(sum)).collect();
        let lost = sum(UpdateCounts::failed) + sum(|it| it.dropped) + sum(|it| it.not_found);
        let (shown, lost_name) = self.status;
        Report {
            metrics: self.families(rows),
            balance: Some((self.sink, missing)),
            status: [&sums[..shown], &[(lost_name, lost)]].concat(),
            live_summary: sums,
            ..Report::default()
        }
    }

    /// The metrics of these writers, each with its name where the metrics have a label for it.
    pub fn families(&self, writers: &[Row<'_>]) -> Vec<Family> {
        let [plain, by_outcome, by_cause] = self.labels;
        type Samples<'a> = &'a dyn Fn(&[&str], &UpdateCounts) -> Vec<Sample>;
        let family = |kind, [name, help]: [&'static str; 2], unit, labels, samples: Samples<'_>| {
            let rows = writers.iter();
            let samples = rows.flat_map(|(name, counts)| samples(name.as_slice(), counts));
            let metric = Metric::new(kind, name, unit, labels, help);
            Family { metric, samples: samples.collect() }
        };
        let outcomes = |labels: &[&str], counts: &UpdateCounts| {
            let fates = self.fates.iter();
            fates.map(|(name, of)| count(&with(labels, name), of(counts))).collect()
        };
        let causes = |labels: &[&str], counts: &UpdateCounts| {
            let sample =
                |cause: &Cause| count(&with(labels, cause.name()), counts.failed_by(*cause));
            self.causes.iter().map(sample).collect()
        };
        let waiting =
            |labels: &[&str], counts: &UpdateCounts| vec![number(labels, counts.waiting() as f64)];
        let latency = |labels: &[&str], counts: &UpdateCounts| {
            vec![sample(labels, buckets(&TIMES, US, &counts.latency_us))]
        };
        vec![
            family(Kind::Counter, self.total, self.unit, by_outcome, &outcomes),
            family(Kind::Counter, self.failed, self.unit, by_cause, &causes),
            family(Kind::Gauge, self.waiting, self.unit, plain, &waiting),
            family(Kind::Histogram, self.latency, "seconds", plain, &latency),
        ]
    }
}

/// Values of labels, followed by `last`.
fn with<'a>(labels: &[&'a str], last: &'a str) -> Vec<&'a str> {
    [labels, &[last]].concat()
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        let message = error.to_string();
        match error {
            StartError::Capability { .. } => {
                let by_hand = || format!("run it as root, or: {}", set_capabilities(true));
                let cure = MARK.cure().unwrap_or_else(by_hand);
                Failure::not_allowed(format!("{message}; {cure}"))
            }
            StartError::Kernel { .. } | StartError::Thread { .. } => Failure::unavailable(message),
            StartError::Unfit(_) => Failure::config(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use flowmgr::record::{BehaviourRecord, DecidedBy, Decision, LabelRecord};

    use super::*;

    fn flow() -> FlowName {
        FlowName {
            flow_id: 0,
            protocol: 6,
            source: ([10, 0, 0, 1].into(), 1),
            destination: ([10, 0, 0, 2].into(), 443),
            first_us: 0,
        }
    }

    fn behaviour(behaviour: Behaviour) -> Record {
        Record::Behaviour(BehaviourRecord { flow: flow(), time_us: 0, behaviour })
    }

    fn label(task: u8, class: u16) -> Record {
        Record::Label(LabelRecord {
            flow: flow(),
            task: TaskId(task),
            time_us: 0,
            decision: Decision {
                contradicts: None,
                class,
                confidence: 0,
                decided_by: DecidedBy::Model,
                depth: 10,
                model: 0,
                time_to_label_us: None,
                truth: None,
            },
        })
    }

    /// The words that these labels lead to.
    fn words_of(places: Places, by_rule: ByRule, labels: &[Record]) -> Vec<u64> {
        words_beside(None, places, by_rule, labels)
    }

    /// The same beside the kernel's program.
    fn words_beside(
        by_kernel: Option<Arc<WrittenMarks>>,
        places: Places,
        by_rule: ByRule,
        labels: &[Record],
    ) -> Vec<u64> {
        let (sender, words) = std::sync::mpsc::channel();
        let write = move |batch: &mut Vec<netfilter::writer::Update>, _: &_| {
            let words = batch.drain(..).map(|update| update.word);
            words.for_each(|word| sender.send(word).unwrap());
        };
        let writer = Writer::start("test", [1, 2, 3, 4].into_iter(), 8, write).unwrap();
        let mut sink = WriterSink {
            writers: [Arc::new(writer)].into(),
            zone: 0,
            places,
            by_rule,
            replaces: true,
            behaviours: Arc::new([0, 50, 0, 30, 0].map(AtomicU64::new)),
            by_kernel,
        };
        labels.iter().for_each(|label| sink.record(label));
        // The thread ends with the writer.
        drop(sink);
        words.iter().collect()
    }

    #[test]
    fn each_task_has_words_of_its_own() {
        let two = Places::new([2, 2]);
        let labels = [label(0, 1), label(1, 0), label(1, 1), label(0, 2), label(2, 0)];
        assert_eq!(words_of(two.clone(), ByRule::Marks, &labels), [2, 3, 4]);
        // Rules give the marks of the first task.
        assert_eq!(words_of(two, ByRule::InForce, &labels), [3, 4]);
        assert_eq!(words_of(Places::new([2]), ByRule::Nothing, &labels[..2]), [2]);
    }

    #[test]
    fn what_the_kernels_program_wrote_is_not_written_again() {
        let marks = Arc::new(WrittenMarks::default());
        let flow = flow();
        let ends = [flow.destination, flow.source];
        marks.note(flow.protocol, ends, 1, KernelMark::Kept);
        let mut by_port = label(0, 0);
        if let Record::Label(label) = &mut by_port {
            label.decision.decided_by = DecidedBy::Port;
        }
        let labels = [by_port, label(0, 0), label(0, 1), label(1, 1)];
        let words = |marks: &Arc<WrittenMarks>| {
            words_beside(Some(marks.clone()), Places::new([2, 2]), ByRule::Nothing, &labels)
        };
        assert_eq!(words(&marks), [1, 1, 4], "the class of the other task is written");
        marks.begin_with_ports();
        assert_eq!(words(&marks), [1, 4]);
    }

    #[test]
    fn behaviours_have_words_beside_labels_whatever_rules_say() {
        let records = [
            behaviour(Behaviour::Bulk),
            behaviour(Behaviour::Idle),
            label(0, 1),
            behaviour(Behaviour::Realtime),
        ];
        let one = Places::new([2]);
        assert_eq!(
            words_of(one.clone(), ByRule::Marks, &records),
            [50, 2, 30],
            "nothing is written for the second"
        );
        assert_eq!(words_of(one, ByRule::InForce, &records), [50, 30]);
    }
}
