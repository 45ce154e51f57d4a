//! The file of records as the control thread has it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use config::{Config, Keyed, Section};
use dataplane::sink::Sink;

use super::broadcast;
use super::kafka::Kafka;
use super::lines::Lines;
use super::sink::{Places, RecordSink};
use super::stream::Readers;
use super::topic::{self, Counts, Topic};
use super::{Names, output};
use crate::access::is_dash;
use crate::exit::Failure;
use crate::metric::{Family, Kind, Metric, count};
use crate::sinks::queue::{RecordCounts, RecordSender};
use crate::sinks::reopen::Reopener;
use crate::sinks::{Connects, Lost, Report, Rights, SharedHosts, SinkControl, SinkKind, Start};
use crate::unix_socket;

/// The file of records, where a run has a path for it.
pub struct Records;

impl SinkKind for Records {
    fn sections(&self) -> &'static [&'static Section] {
        &[Kafka::SECTION]
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        if !start.has_lines() {
            if start.record_series && start.replay.is_none() {
                return Err(Failure::usage(
                    "--series includes the series in records, but no records are written; add \
                     --flows FILE or set records.path",
                ));
            }
            if start.config.records.series > 0.0 && start.replay.is_none() {
                return Err(Failure::config(
                    "records.series includes series in records, but no records are written; set \
                     records.path or add --flows FILE",
                ));
            }
            return Ok(None);
        }
        let hosts = start.hosts.map(SharedHosts::task);
        let names = Names::new(start.names, &start.config.tasks, hosts);
        let lines = Lines::new(names, start.hosts.cloned());
        let config = &start.config.records;
        let (mut readers, mut kafka_topic) = (None, None);
        let (sink, sender) = match (&start.replay, start.records) {
            (Some(replay), Some(path)) => RecordSink::start(path, config.queue, lines, replay)?,
            (_, path) => {
                let socket = start.record_socket;
                let started = socket.map(|socket| Readers::start(socket, config)).transpose()?;
                let (served, stream) = started.unzip();
                readers = served;
                let kafka: Kafka = start.config.section();
                if !kafka.brokers.is_empty() {
                    kafka_topic = Some(Arc::new(Topic::start(&kafka)?));
                }
                let to = Places { path, stream, topic: kafka_topic.clone() };
                RecordSink::start_live(to, config, lines)?
            }
        };
        Ok(Some(Box::new(RecordControl {
            counts: sink.counts(),
            reopener: sink.reopener(),
            readers,
            topic: kafka_topic,
            drain_within: config.drain_within,
            parts: Mutex::new(Some((sink, sender))),
        })))
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
            Topic::start(&kafka)?;
        }
        if let Some(path) = records.socket.as_deref().filter(|path| !is_exempt(path)) {
            unix_socket::probe("records.socket", path)?;
        }
        match records.path.as_deref() {
            Some(path) if !is_exempt(path) => {
                output::look(path).map_err(|error| Failure::creating(path, &error))
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
    counts: Arc<RecordCounts>,
    /// Live only.
    reopener: Option<Reopener>,
    /// Live, with a socket.
    readers: Option<Readers>,
    /// Live, with brokers of Kafka.
    topic: Option<Arc<Topic>>,
    /// How long the end of the run may take.
    drain_within: Duration,
    /// `None` once the end has begun.
    parts: Mutex<Option<(RecordSink, RecordSender)>>,
}

impl RecordControl {
    fn parts(&self) -> std::sync::MutexGuard<'_, Option<(RecordSink, RecordSender)>> {
        // Taken out as a whole, so a panic elsewhere spoils nothing.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SinkControl for RecordControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        let parts = self.parts();
        let (_, sender) = parts.as_ref()?;
        Some(Box::new(sender.another()))
    }

    fn report(&self) -> Report {
        let readers = self.readers.as_ref().map(Readers::counts);
        let topic = self.topic.as_ref().map(|topic| topic.counts());
        report(&self.counts, readers.unwrap_or_default(), topic)
    }

    fn reopener(&self) -> Option<Reopener> {
        self.reopener.clone()
    }

    /// Waits until all records are written, live for `records.drain_s` at most.
    fn finish(&self, _: Instant) -> Result<(), Failure> {
        let Some((sink, sender)) = self.parts().take() else {
            return Ok(());
        };
        drop(sender);
        let ended = Instant::now();
        let finished = sink.finish();
        if let Some(readers) = &self.readers {
            readers.finish();
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
fn delivered(before: Counts, after: Counts) -> Result<(), Failure> {
    match after.lost() - before.lost() {
        0 => Ok(()),
        lost => Err(Failure::io(format!(
            "kafka.brokers: {lost} records are lost: no broker took them before the end"
        ))),
    }
}

fn report(counts: &RecordCounts, readers: broadcast::Counts, topic: Option<Counts>) -> Report {
    let sums = topic.map(|topic| vec![("kafka_sent", topic.sent), ("kafka_lost", topic.lost())]);
    let mut report = report_lines(counts, readers);
    let sent = topic.unwrap_or_default();
    report.metrics.extend(topic::metrics(sent));
    report.losses.push(topic::losses(sent));
    report.status.push(("kafka_lost", sent.lost()));
    report.summary.extend(sums.into_iter().flatten());
    report.summary_text =
        topic.map(|topic| format!("kafka     {} records sent, {} lost", topic.sent, topic.lost()));
    report
}

fn report_lines(counts: &RecordCounts, readers: broadcast::Counts) -> Report {
    let (written, dropped, failed) = (counts.written(), counts.dropped(), counts.failed());
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
                 write_failed, for example because the disk is full.",
                [count(&["json", "queue_full"], dropped), count(&["json", "write_failed"], failed)],
            ),
            Family {
                metric: Metric::new(
                    Kind::Gauge,
                    "fenxi_record_readers",
                    "readers",
                    &[],
                    "Programs that read records from records.socket.",
                ),
                samples: vec![count(&[], readers.readers)],
            },
            Family::counter(
                "fenxi_record_readers_refused_total",
                "readers",
                &[],
                "Programs that were turned away from records.socket, because 16 read already.",
                [count(&[], readers.refused)],
            ),
            Family::counter(
                "fenxi_record_lines_total",
                "lines",
                &["outcome"],
                "Lines for readers of records.socket, summed over readers: sent; lost, because the \
                 reader was too slow or went away.",
                [count(&["sent"], readers.sent), count(&["lost"], readers.lost)],
            ),
        ],
        losses: vec![Lost {
            what: "records are dropped because their queue is full; see records.queue",
            count: dropped,
            why: String::new(),
        }],
        status: vec![("records_dropped", dropped + failed)],
        summary: vec![("records_dropped", dropped + failed)],
        ..Report::default()
    }
}
