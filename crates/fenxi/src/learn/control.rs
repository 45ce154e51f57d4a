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
use super::held::{Held, SharedHeld};
use super::strata::Strata;
use crate::exit::Failure;
use crate::metric::{Family, count};
use crate::sinks::broadcast::{self, Broadcaster, Protocol, READ_WITHIN, serve};
use crate::sinks::queue::{
    Drain, Queued, RecordCounts, RecordSender, RunKind, WritingThread, receive,
};
use crate::sinks::{Lost, Report, SinkControl, SinkKind, Start};
use crate::unix_socket::{self, UnixSocket};

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
        let Some(socket) = start.learn_socket else {
            return Ok(None);
        };
        let readers = serve("learn.socket", socket, PROTOCOL)?;
        let (counts, held) = (Arc::new(RecordCounts::default()), Arc::new(AtomicU64::new(0)));
        let drain = Arc::new(Drain::new(start.config.records.drain_within));
        let run = match &start.replay {
            Some(replay) => RunKind::Replay(replay),
            None => RunKind::Live(drain.clone()),
        };
        let every = start.config.learn.every;
        let feeder = Feeder {
            strata: Strata::new(start.names.clone()),
            readers: readers.0.clone(),
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
        let thread = WritingThread::start(("learn", "learn.socket"), QUEUE, run, counts, work)?;
        Ok(Some(Box::new(LearnControl { thread, readers, held })))
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        match config.learn.socket.as_deref() {
            Some(path) if !is_exempt(path) => unix_socket::probe("learn.socket", path),
            _ => Ok(()),
        }
    }

    fn empty_report(&self) -> Report {
        report(broadcast::Counts::default(), 0, 0)
    }
}

struct LearnControl {
    thread: WritingThread,
    /// With the socket, whose file goes with it.
    readers: (Arc<Broadcaster>, Arc<UnixSocket>),
    held: Arc<AtomicU64>,
}

impl SinkControl for LearnControl {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(SampleSender(self.thread.sender()?)))
    }

    fn report(&self) -> Report {
        let (dropped, held) = (self.thread.counts.dropped(), self.held.load(Ordering::Relaxed));
        report(self.readers.0.counts(), dropped, held)
    }

    fn finish(&self, _: Instant) -> Result<(), Failure> {
        // Samples for which there is no time are lost, and the run has not failed. A panic of the
        // thread has been reported by its hook.
        let _ = self.thread.finish();
        self.readers.0.finish(READ_WITHIN);
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
    readers: Arc<Broadcaster>,
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
            self.held.with(|held| held.push(*sample));
        } else if self.readers.has_readers() {
            self.strata.push(*sample);
        }
    }

    /// Also without samples, so that readers see that fenxi lives.
    fn publish(&mut self) {
        let samples = self.strata.take();
        if self.readers.has_readers() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let text = frame::text(now.as_micros() as i64, &samples);
            self.readers.publish(&text, samples.len() as u64);
        }
    }
}

fn report(readers: broadcast::Counts, dropped: u64, held: u64) -> Report {
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
        ],
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::learn::frame::tests::sample;

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
        let control = LearnControl { thread, readers, held: Arc::default() };
        let mut worker = control.worker_half().unwrap();
        worker.drain();
        (0..3).for_each(|_| worker.record(&Record::Sample(Box::new(sample()))));
        drop(worker);
        assert_eq!(control.finish(Instant::now()), Ok(()));
        assert_eq!(control.thread.counts.dropped(), 2);
        drop(goes_on);
    }
}
