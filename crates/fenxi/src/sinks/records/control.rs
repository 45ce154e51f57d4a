//! Records as the control thread has them.
//!
//! A replay ends where writing breaks off. A live run goes on: what cannot be written is kept, up
//! to a bound, and tried again every second; what comes beyond the bound is dropped and counted. A
//! reader that takes nothing holds up the thread that writes, then fills the queue, and is never
//! felt in front of it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Config, Keyed, Section};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use dataplane::sink::Sink;

use super::lines::Lines;
use super::live::Live;
use super::output::Output;
use super::stream::{self, Stream};
use super::topic::{self, Kafka, Topic, TopicCounts};
use super::{Names, WRITE_WITHIN, output};
use crate::access::is_dash;
use crate::exit::Failure;
use crate::metric::{Family, count};
use crate::sinks::broadcast::{self, Broadcaster, READ_WITHIN, serve};
use crate::sinks::queue::{Drain, Queued, RecordCounts, RunKind, WritingThread};
use crate::sinks::reopen::Reopener;
use crate::sinks::{Connects, Lost, ReplayStart, Report, Rights, SinkControl, SinkKind, Start};
use crate::unix_socket::{self, UnixSocket};

pub struct Records;

impl SinkKind for Records {
    fn sections(&self) -> &'static [&'static Section] {
        &[Kafka::SECTION]
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let config = &start.config.records;
        if !start.has_lines() {
            if start.record_series && start.replay.is_none() {
                return Err(Failure::usage(
                    "--series includes the series in records, but no records are written; add \
                     --flows FILE or set records.path",
                ));
            }
            if config.series > 0.0 && start.replay.is_none() {
                return Err(Failure::config(
                    "records.series includes series in records, but no records are written; set \
                     records.path or add --flows FILE",
                ));
            }
            return Ok(None);
        }
        let hosts = start.hosts.map(|hosts| hosts.task);
        let interfaces = start.interfaces();
        let names = Names::new(start.names, &start.config.tasks, hosts, interfaces)
            .with_hosts(start.host_names.names.clone());
        let lines = Lines::new(names, start.hosts.cloned());
        let control = match (&start.replay, start.records) {
            (Some(replay), Some(path)) => RecordControl {
                thread: start_replay(path, config.queue, lines, replay)?,
                reopener: None,
                readers: None,
                topic: None,
                drain_within: config.drain_within,
            },
            (_, path) => start_live(start, path, lines)?,
        };
        Ok(Some(Box::new(control)))
    }

    fn rights(&self, config: &Config, records: Option<&Path>) -> Rights {
        let file = records.filter(|path| !is_dash(path));
        let connects = match config.section::<Kafka>().brokers.is_empty() {
            true => Connects::default(),
            false => Connects::Any,
        };
        Rights {
            connects,
            written: file.map(Path::to_owned).into_iter().collect(),
            ..Rights::none()
        }
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        let records = &config.records;
        let kafka: Kafka = config.section();
        if !kafka.brokers.is_empty() {
            Topic::start(&kafka, kafka.topic.as_deref().unwrap_or_default())?;
        }
        if let Some(path) = records.socket.as_deref().filter(|path| !is_exempt(path)) {
            unix_socket::probe("records.socket", path)?;
        }
        match records.path.as_deref() {
            Some(path) if !is_exempt(path) => {
                output::probe(path).map_err(|error| Failure::creating(path, &error))
            }
            _ => Ok(()),
        }
    }

    fn empty_report(&self) -> Report {
        report(&RecordCounts::default(), broadcast::Counts::default(), None)
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("records_dropped", "records"))
    }
}

struct RecordControl {
    thread: WritingThread,
    /// Live only, as are the two that follow: with a file, a socket, brokers of Kafka.
    reopener: Option<Reopener>,
    /// With the socket, whose file goes with it.
    readers: Option<(Arc<Broadcaster>, Arc<UnixSocket>)>,
    topic: Option<Arc<Topic>>,
    /// How long the end of the run may take.
    drain_within: Duration,
}

/// Creates `output` (`-`: standard output) and starts the thread that writes to it.
pub fn start_replay(
    output: &Path,
    queue: usize,
    mut lines: Lines,
    replay: &ReplayStart,
) -> Result<WritingThread, Failure> {
    let mut output = Output::create(output).map_err(|error| Failure::creating(output, &error))?;
    let counts = Arc::new(RecordCounts::default());
    let (shared, name) = (counts.clone(), output.name.clone());
    let work = move |records: &Receiver<Queued>| {
        let written = write_all(records, &mut output, &mut lines, &shared);
        written.map_err(|error| Failure::writing(&output.name, &error))
    };
    WritingThread::start(("records", &name), queue, RunKind::Replay(replay), counts, work)
}

/// Opens the file (`-`: standard output) behind what is there, serves the socket, and starts the
/// thread.
fn start_live(
    start: &Start<'_>,
    path: Option<&Path>,
    lines: Lines,
) -> Result<RecordControl, Failure> {
    let config = &start.config.records;
    let protocol = stream::protocol(config.socket_backlog);
    let readers = start.record_socket.map(|socket| serve("records.socket", socket, protocol));
    let readers = readers.transpose()?;
    let kafka: Kafka = start.config.section();
    let topic = kafka.records_topic().map(|topic| Topic::start(&kafka, topic));
    let topic = topic.transpose()?.map(Arc::new);
    let open = |path: &Path| {
        let opened = Output::append(path, config.rotate());
        opened.map_err(|error| Failure::creating(path, &error))
    };
    let output = path.map(open).transpose()?;
    let name = match &output {
        Some(output) => output.name.as_str(),
        None if readers.is_some() => "records.socket",
        None => "kafka.brokers",
    };
    let name = name.to_owned();
    let (reopener, commands) = Reopener::new();
    let reopener = output.is_some().then_some(reopener);
    let counts = Arc::new(RecordCounts::default());
    let drain = Arc::new(Drain::new(config.drain_within));
    let live = Live {
        output,
        stream: readers.as_ref().map(|(broadcaster, _)| Stream::new(broadcaster.clone())),
        topic: topic.clone(),
        lines,
        counts: counts.clone(),
        drain: drain.clone(),
        trouble: None,
    };
    let work = move |records: &Receiver<Queued>| live.run(records, &commands);
    let run = RunKind::Live(drain);
    let thread = WritingThread::start(("records", &name), config.queue, run, counts, work)?;
    Ok(RecordControl { thread, reopener, readers, topic, drain_within: config.drain_within })
}

/// A replay's records, until there are no more or one cannot be written.
fn write_all(
    records: &Receiver<Queued>,
    output: &mut Output,
    lines: &mut Lines,
    counts: &RecordCounts,
) -> io::Result<()> {
    loop {
        let is_over = match records.recv_timeout(WRITE_WITHIN) {
            Ok(queued) => {
                lines.push(&queued)?;
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if is_over || lines.is_due() {
            let result = output.write(lines);
            counts.write(lines.take_written(), lines.count);
            result?;
        }
        if is_over {
            return Ok(());
        }
    }
}

impl SinkControl for RecordControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(self.thread.sender()?))
    }

    fn report(&self) -> Report {
        let readers = self.readers.as_ref().map(|(broadcaster, _)| broadcaster.counts());
        let topic = self.topic.as_ref().map(|topic| topic.counts());
        report(&self.thread.counts, readers.unwrap_or_default(), topic)
    }

    fn reopener(&self) -> Option<Reopener> {
        self.reopener.clone()
    }

    /// Waits until all records are written, live for `records.drain_s` at most.
    fn finish(&self, _: Instant) -> Result<(), Failure> {
        let ended = Instant::now();
        let finished = self.thread.finish();
        if let Some((broadcaster, _)) = &self.readers {
            broadcaster.finish(READ_WITHIN);
        }
        match &self.topic {
            Some(topic) => {
                let left = self.drain_within.saturating_sub(ended.elapsed());
                let (before, after) = (topic.counts(), topic.finish(left));
                finished.and_then(|()| delivered(before, after))
            }
            None => finished,
        }
    }
}

/// Whether all that waited when the run ended has reached a broker.
fn delivered(before: TopicCounts, after: TopicCounts) -> Result<(), Failure> {
    match after.lost() - before.lost() {
        0 => Ok(()),
        lost => Err(Failure::io(format!(
            "kafka.brokers: {lost} records are lost: no broker took them before the end"
        ))),
    }
}

fn report(counts: &RecordCounts, readers: broadcast::Counts, topic: Option<TopicCounts>) -> Report {
    let (written, dropped, failed) = (counts.written(), counts.dropped(), counts.failed());
    let (lost, sent) = (("records_dropped", dropped + failed), topic.unwrap_or_default());
    let of_topic = topic.map(|it| [("kafka_sent", it.sent), ("kafka_lost", it.lost())]);
    let [of_topic_sent, of_topic_waiting] = topic::metrics(sent);
    Report {
        metrics: vec![
            Family::counter(
                "fenxi_records_total",
                "records",
                &["sink"],
                "Records written.",
                [count(&["json"], written)],
            ),
            Family::counter(
                "fenxi_records_dropped_total",
                "records",
                &["sink", "reason"],
                "Records not written: queue_full, the writer or its reader is too slow; \
                 write_failed, as on a full disk.",
                [count(&["json", "queue_full"], dropped), count(&["json", "write_failed"], failed)],
            ),
            Family::gauge(
                "fenxi_record_readers",
                "readers",
                &[],
                "Readers of records.socket.",
                [count(&[], readers.readers)],
            ),
            Family::counter(
                "fenxi_record_readers_refused_total",
                "readers",
                &[],
                "Readers that records.socket refused: 16 read already.",
                [count(&[], readers.refused)],
            ),
            Family::counter(
                "fenxi_record_lines_total",
                "lines",
                &["outcome"],
                "Lines for readers of records.socket, summed: sent; lost, a reader was too slow or \
                 left.",
                [count(&["sent"], readers.sent), count(&["lost"], readers.lost)],
            ),
            of_topic_sent,
            of_topic_waiting,
        ],
        losses: vec![
            Lost::new(
                "records are dropped because their queue is full; see records.queue",
                dropped,
            ),
            topic::losses(sent),
        ],
        status: vec![lost, ("kafka_lost", sent.lost())],
        summary: [lost].into_iter().chain(of_topic.into_iter().flatten()).collect(),
        summary_text: topic
            .map(|topic| format!("kafka     {} records sent, {} lost", topic.sent, topic.lost())),
        ..Report::default()
    }
}
