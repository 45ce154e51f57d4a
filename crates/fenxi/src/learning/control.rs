//! The sink of samples: its thread, its socket, and what it counts.
//!
//! A program that tunes models may be slow, hang or be killed: it loses whole frames, which are
//! counted, and nobody waits for it. Without one, samples are only held out.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use config::Config;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use dataplane::sink::Sink;
use flowmgr::record::Record;
use rustix::net::sockopt;

use super::frame;
use super::strata::Strata;
use crate::exit::Failure;
use crate::metric::{Family, count};
use crate::proc;
use crate::sinks::broadcast::{self, Broadcaster, Protocol, READ_WITHIN, serve};
use crate::sinks::queue::{
    Drain, Queued, RecordCounts, RecordSender, RunKind, WritingThread, receive,
};
use crate::sinks::records::{Kafka, Topic, TopicCounts};
use crate::sinks::{Lost, Report, SinkControl, SinkKind, Start};
use crate::unix_socket::{self, UnixSocket};
use learn::{Held, Key, SharedHeld};

/// Samples that may wait for the thread; half a kilobyte each.
const QUEUE: usize = 8192;

const PROTOCOL: Protocol = Protocol {
    thread: "learn-readers",
    readers_max: 4,
    backlog: 4 << 20,
    admits: is_admitted,
    is_one_way: true,
    before: frame::before,
};

/// Whether a program runs as root or as the user of this one: what it makes of samples becomes a
/// model.
fn is_admitted(peer: &UnixStream) -> bool {
    let peer = sockopt::socket_peercred(peer);
    peer.is_ok_and(|peer| unix_socket::is_trusted(peer.uid.as_raw()))
}

/// Samples for a program that tunes models, where the configuration has a socket for it.
pub struct Learning;

impl SinkKind for Learning {
    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let topic = match start.replay {
            Some(_) => None,
            None => topic(start.config)?.map(Arc::new),
        };
        let readers = start.learn_socket.map(|socket| serve("learn.socket", socket, PROTOCOL));
        let readers = readers.transpose()?;
        if topic.is_none() && readers.is_none() {
            return Ok(None);
        }
        let (counts, held) = (Arc::new(RecordCounts::default()), Arc::new(AtomicU64::new(0)));
        let drain = Arc::new(Drain::new(start.config.records.drain_within));
        let run = match &start.replay {
            Some(replay) => RunKind::Replay(replay),
            None => RunKind::Live(drain.clone()),
        };
        let every = start.config.learn.every;
        let feeder = Feeder {
            strata: Strata::new(start.names.clone()),
            readers: readers.as_ref().map(|(broadcaster, _)| broadcaster.clone()),
            topic: topic.clone(),
            router: router(),
            lost: 0,
            held: start.held.clone(),
            held_count: held.clone(),
            every,
            next: Instant::now() + every,
            drain,
        };
        let work = move |samples: &Receiver<Queued>| {
            feeder.run(samples);
            Ok(())
        };
        let thread = WritingThread::start(("learn", "samples"), QUEUE, run, counts, work)?;
        Ok(Some(Box::new(LearnControl { thread, readers, topic, held })))
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        config.learn.key.as_deref().map(Key::read).transpose().map_err(Failure::config)?;
        topic(config)?;
        match config.learn.socket.as_deref() {
            Some(path) if !is_exempt(path) => unix_socket::probe("learn.socket", path),
            _ => Ok(()),
        }
    }

    fn empty_report(&self) -> Report {
        report(broadcast::Counts::default(), TopicCounts::default(), 0, 0)
    }
}

struct LearnControl {
    thread: WritingThread,
    /// With the socket, whose file goes with it.
    readers: Option<(Arc<Broadcaster>, Arc<UnixSocket>)>,
    topic: Option<Arc<Topic>>,
    held: Arc<AtomicU64>,
}

/// The topic of the configuration, where it has one.
fn topic(config: &Config) -> Result<Option<Topic>, Failure> {
    let (kafka, topic) = (config.section::<Kafka>(), config.learn.topic.as_deref());
    match topic {
        Some(_) if kafka.brokers.is_empty() => {
            Err(Failure::config("learn.topic: of no brokers; set kafka.brokers"))
        }
        topic => topic.map(|topic| Topic::start(&kafka, topic)).transpose(),
    }
}

/// What a tuner calls this router.
fn router() -> String {
    proc::Machine::here().text("proc/sys/kernel/hostname").unwrap_or_default()
}

impl SinkControl for LearnControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(SampleSender(self.thread.sender()?)))
    }

    fn report(&self) -> Report {
        let (dropped, held) = (self.thread.counts.dropped(), self.held.load(Ordering::Relaxed));
        let readers = self.readers.as_ref().map(|(broadcaster, _)| broadcaster.counts());
        let topic = self.topic.as_ref().map(|topic| topic.counts());
        report(readers.unwrap_or_default(), topic.unwrap_or_default(), dropped, held)
    }

    fn finish(&self, _: Instant) -> Result<(), Failure> {
        // Samples for which there is no time are lost, and the run has not failed. A panic of the
        // thread has been reported by its hook.
        let _ = self.thread.finish();
        if let Some((broadcaster, _)) = &self.readers {
            broadcaster.finish(READ_WITHIN);
        }
        // What no broker has taken by then, the tuner does without.
        if let Some(topic) = &self.topic {
            topic.finish(READ_WITHIN);
        }
        Ok(())
    }
}

/// The data path's end: hands over samples, for whose room nothing waits when the run ends.
struct SampleSender(RecordSender);

impl Sink for SampleSender {
    fn record(&mut self, record: &Record) {
        if let Record::Sample(_) = record {
            self.0.send(record.clone());
        }
    }
}

/// What the thread works with.
struct Feeder {
    strata: Strata,
    readers: Option<Arc<Broadcaster>>,
    topic: Option<Arc<Topic>>,
    router: String,
    /// Samples for the topic that are lost, and said to be.
    lost: u64,
    held: SharedHeld,
    held_count: Arc<AtomicU64>,
    every: Duration,
    /// When the next frame is due.
    next: Instant,
    drain: Arc<Drain>,
}

impl Feeder {
    /// Gives a frame every interval, until there will be no more samples.
    fn run(mut self, samples: &Receiver<Queued>) {
        loop {
            match receive(samples, self.next.saturating_duration_since(Instant::now())) {
                Ok(queued) => self.take(queued.record),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.publish(),
            }
            if Instant::now() >= self.next {
                self.publish();
                self.next = Instant::now() + self.every;
            }
            if self.drain.is_over() {
                return;
            }
        }
    }

    fn take(&mut self, record: Record) {
        let Record::Sample(sample) = record else { return };
        if Held::takes(sample.flow_id) {
            self.held_count.fetch_add(1, Ordering::Relaxed);
            let tells_itself = self.strata.has_bands(sample.task);
            self.held.with(|held| match tells_itself {
                true => held.push(*sample),
                false => held.wait(*sample),
            });
        } else if self.has_readers() || self.topic.is_some() {
            self.strata.push(*sample);
        }
    }

    fn has_readers(&self) -> bool {
        self.readers.as_ref().is_some_and(|readers| readers.has_readers())
    }

    /// Also without samples, so that readers see that fenxi lives; a topic gets samples only.
    fn publish(&mut self) {
        let has_readers = self.has_readers();
        let samples = self.strata.take();
        let topic = self.topic.as_ref().filter(|_| !samples.is_empty());
        if !has_readers && topic.is_none() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = frame::text(now.as_micros() as i64, &samples);
        if let Some(readers) = &self.readers {
            readers.publish(&text, samples.len() as u64);
        }
        if let Some(topic) = topic {
            let lost = topic.counts().lost();
            let message = frame::message(lost - self.lost, &self.router, &text);
            topic.send(self.router.as_bytes(), &message, samples.len());
            self.lost = lost;
        }
    }
}

fn report(readers: broadcast::Counts, topic: TopicCounts, dropped: u64, held: u64) -> Report {
    Report {
        metrics: vec![
            Family::counter(
                "fenxi_learn_samples_total",
                "samples",
                &["outcome"],
                "Samples: sent; lost, a reader of learn.socket was too slow; dropped, the queue \
                 was full; held out.",
                [
                    count(&["sent"], readers.sent),
                    count(&["lost"], readers.lost),
                    count(&["dropped"], dropped),
                    count(&["held"], held),
                ],
            ),
            Family::counter(
                "fenxi_kafka_samples_total",
                "samples",
                &["outcome"],
                "Samples for Kafka: sent, a broker has confirmed them; failed; dropped, the queue \
                 of learn.topic was full.",
                [
                    count(&["sent"], topic.sent),
                    count(&["failed"], topic.failed),
                    count(&["dropped"], topic.dropped),
                ],
            ),
            Family::gauge(
                "fenxi_learn_readers",
                "readers",
                &[],
                "Readers of learn.socket.",
                [count(&[], readers.readers)],
            ),
            Family::counter(
                "fenxi_learn_readers_refused_total",
                "readers",
                &["reason"],
                "Readers that learn.socket refused: by user; full.",
                [count(&["user"], readers.strangers), count(&["full"], readers.refused)],
            ),
        ],
        losses: vec![
            Lost::new("samples are dropped because their queue is full", dropped),
            Lost::new("a reader of learn.socket is too slow and loses samples", readers.lost),
            Lost::new("samples for Kafka are lost; see the brokers", topic.lost()),
        ],
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::learning::frame::tests::sample;

    /// The queue is full, and its thread does not come to it.
    #[test]
    fn samples_that_are_lost_at_the_end_are_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let socket = broadcast::bind("learn.socket", Some(&dir.path().join("learn.sock")));
        let readers = serve("learn.socket", &socket.unwrap().unwrap(), PROTOCOL).unwrap();
        let (goes_on, waits) = crossbeam_channel::bounded::<()>(0);
        let work = move |samples: &Receiver<Queued>| {
            let _ = waits.recv();
            samples.iter().for_each(drop);
            Ok(())
        };
        let run = RunKind::Live(Arc::new(Drain::new(Duration::ZERO)));
        let name = ("learn", "learn.socket");
        let thread = WritingThread::start(name, 1, run, Arc::default(), work).unwrap();
        let readers = Some(readers);
        let control = LearnControl { thread, readers, topic: None, held: Arc::default() };
        let mut worker = control.worker_half().unwrap();
        worker.drain();
        (0..3).for_each(|_| worker.record(&Record::Sample(Box::new(sample()))));
        drop(worker);
        assert_eq!(control.finish(Instant::now()), Ok(()));
        assert_eq!(control.thread.counts.dropped(), 2);
        drop(goes_on);
    }
}
