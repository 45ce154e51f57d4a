//! The control thread of a run, replay or live: signals, the control plane, events of the data
//! path, shutdown. It uses tokio and is not on the data path.
//!
//! [`Live`] is the part of a live run: the first model, reloads, the service manager. [`Progress`]
//! is the progress bar of a replay.

pub mod analytics;
pub mod live;
pub mod notify;
pub mod policy;
mod progress;
pub mod reload;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use dataplane::flow_worker::FlowOutcome;
use dataplane::run::{Event, Run};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tracing::{info, warn};

use self::analytics::{AnalyticsOutcome, Managers};
use crate::control::{Call, Serving};
use crate::exit::Failure;
use crate::protocol::{Body, Code, Reply, Request};
use crate::signals::Signals;
use crate::sinks::Sinks;

pub use live::{Live, LiveParts};
pub use progress::Progress;

/// Interval at which the control thread polls the data path.
const TICK: Duration = Duration::from_millis(100);

/// Descriptors of the runtime: epoll and its copy, the waker, the pair of sockets for signals, and
/// a copy of the receiving one. tokio panics if none is left for the pair.
const RUNTIME_DESCRIPTORS: usize = 6;

pub struct Supervisor {
    /// The state that all threads of the run share.
    pub run: Arc<Run>,
    /// What each flow worker returns when it stops; closed once all have stopped.
    pub outcomes: mpsc::Receiver<FlowOutcome>,
    pub workers: usize,
    /// Warnings and messages from the data path, for the log.
    pub events: Receiver<Event>,
    pub signals: Signals,
    pub serving: Option<Serving>,
    pub sinks: Arc<Sinks>,
    pub live: Option<Live>,
    /// Replay only.
    pub progress: Option<Progress>,
    /// Keep serving after a replay until asked to stop (`--hold`).
    pub holds: bool,
}

pub struct Ended {
    /// The flow workers, in no particular order.
    pub workers: Vec<FlowOutcome>,
    /// Live only: the analytics workers.
    pub analytics: AnalyticsOutcome,
    /// Whether a signal or `fenxi ctl drain` ended the run.
    pub is_interrupted: bool,
    /// Time at which the last flow worker had stopped or, live, the last label was given.
    pub at: Instant,
}

pub fn runtime() -> Result<Runtime, Failure> {
    let spare = spare_descriptors(RUNTIME_DESCRIPTORS);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let built = spare.and_then(|()| builder.enable_all().build());
    built.map_err(|error| Failure::unavailable(format!("cannot start the control thread: {error}")))
}

/// Checks that this number of descriptors can be opened.
fn spare_descriptors(count: usize) -> io::Result<()> {
    let stderr = io::stderr();
    let opened = (0..count).map(|_| stderr.as_fd().try_clone_to_owned());
    opened.collect::<io::Result<Vec<_>>>().map(drop)
}

impl Supervisor {
    /// Serves until all flow workers, and then the analytics workers, have stopped. The first
    /// SIGINT or SIGTERM, or `fenxi ctl drain`, asks them to stop. Must be called inside the
    /// runtime.
    ///
    /// # Errors
    /// The first model cannot be opened, or a flow worker died.
    pub async fn serve(mut self) -> Result<Ended, Failure> {
        let mut tick = tokio::time::interval(TICK);
        let (mut workers, mut failure) = (Vec::new(), None);
        let (mut is_interrupted, mut all_ended_at) = (false, None);
        loop {
            let is_asked_to_end = tokio::select! {
                outcome = self.outcomes.recv(), if all_ended_at.is_none() => {
                    match outcome {
                        Some(outcome) => workers.push(outcome),
                        None => {
                            all_ended_at = Some(Instant::now());
                            self.progress.iter().for_each(Progress::finish);
                            if !self.holds || is_interrupted {
                                break;
                            }
                        }
                    }
                    false
                }
                opened = opened(&mut self.live) => {
                    if let (Some(live), Some(serving)) = (&mut self.live, &self.serving) {
                        failure = live.start(opened, &serving.plane).await.err();
                    }
                    failure.is_some()
                }
                () = self.signals.next() => {
                    info!("shutting down: received a signal");
                    true
                }
                Some(call) = next_call(&mut self.serving) => self.answer(call),
                _ = tick.tick() => {
                    if self.tick(is_interrupted).await {
                        break;
                    }
                    false
                }
            };
            if is_asked_to_end && all_ended_at.is_some() {
                break;
            }
            if is_asked_to_end && !is_interrupted {
                is_interrupted = true;
                self.end().await;
            }
        }
        self.finish(workers, failure, is_interrupted, all_ended_at).await
    }

    async fn end(&mut self) {
        if let Some(Serving { plane, .. }) = &self.serving {
            plane.drain();
        }
        if let (Some(live), Some(Serving { plane, .. })) = (&mut self.live, &self.serving) {
            live.end(plane, &self.run).await;
        }
        self.run.stop();
    }

    /// Runs every 100 ms; returns true if flow workers missed their deadline for stopping.
    async fn tick(&mut self, is_interrupted: bool) -> bool {
        self.log_events();
        self.sinks.tick();
        if let Some(progress) = &self.progress {
            progress.show(&self.run);
        }
        match (&mut self.live, &self.serving) {
            (Some(live), Some(serving)) => {
                live.tick(&self.run, &serving.plane, is_interrupted).await
            }
            _ => {
                accel::onnx::stop_late_runs(None);
                false
            }
        }
    }

    /// Logs events of the data path, whose threads do not log themselves.
    fn log_events(&self) {
        for event in self.events.try_iter() {
            match event {
                Event::Warning(line) => warn!("{line}"),
                Event::Info(line) => info!("{line}"),
            }
        }
    }

    /// Answers a call; returns true if it asks the run to stop.
    fn answer(&mut self, call: Call) -> bool {
        if let Some(reply) = self.sinks.answer(&call.request) {
            call.reply(reply);
            return false;
        }
        let drains = call.request == Request::Drain {};
        let done = match &self.live {
            Some(_) if drains => {
                info!("shutting down: requested by fenxi ctl");
                "the run is shutting down"
            }
            Some(live) => {
                live.answer(call);
                return false;
            }
            None if drains => "the replay is shutting down",
            None => {
                call.reply(Reply::refused(Code::NotHere, "not supported during a replay"));
                return false;
            }
        };
        call.reply(Reply::ok(Body::Done(done.to_owned())));
        true
    }

    async fn finish(
        mut self,
        mut workers: Vec<FlowOutcome>,
        failure: Option<Failure>,
        is_interrupted: bool,
        all_ended_at: Option<Instant>,
    ) -> Result<Ended, Failure> {
        self.log_events();
        let lost = self.run.events_lost();
        if lost > 0 {
            warn!(
                "{lost} events of the data path were not logged because there were too many at once"
            );
        }
        let analytics = match (self.live.take(), &self.serving) {
            (Some(live), Some(serving)) => live.finish(&serving.plane).await,
            _ => AnalyticsOutcome::nothing(),
        };
        let at = match self.progress {
            Some(_) => all_ended_at.unwrap_or_else(Instant::now),
            None => Instant::now(),
        };
        if let Some(serving) = &self.serving {
            serving.plane.finish().await;
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        // A worker may have stopped during the last tick.
        while let Ok(outcome) = self.outcomes.try_recv() {
            workers.push(outcome);
        }
        if workers.len() < self.workers {
            // A worker that died has closed its end of the channel; a stuck one still has it.
            if !self.outcomes.is_closed() {
                dataplane::leave_threads_behind();
                return Err(Failure::software("a flow worker did not stop"));
            }
            return Err(Failure::software("a flow worker died"));
        }
        Ok(Ended { workers, analytics, is_interrupted, at })
    }
}

async fn opened(live: &mut Option<Live>) -> Result<Managers, Failure> {
    match live {
        Some(live) => live.opened().await,
        None => std::future::pending().await,
    }
}

async fn next_call(serving: &mut Option<Serving>) -> Option<Call> {
    match serving {
        Some(serving) => serving.calls.recv().await,
        None => std::future::pending().await,
    }
}
