//! The control thread of a live run: the first model, reloads, the service manager.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use accel::onnx;
use crossbeam_channel::{Sender, TrySendError};
use dataplane::run::Run;
use dataplane::swap::helpers::RunGuard;
use tokio::signal::unix::Signal;
use tokio::sync::oneshot;
use tracing::info;

use super::analytics::{
    AnalyticsOutcome, AnalyticsParts, AnalyticsSide, Managers, ModelOpening, wait_until,
};
use super::notify::Notifier;
use super::policy;
use super::reload::{Command, CommandKind};
use crate::control::{Call, Plane};
use crate::exit::Failure;
use crate::log;
use crate::protocol::{Body, Code, Reply, Request};
use crate::sinks::Sinks;

/// Interval between two status messages to the service manager.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// Time that a shutdown gives the reload thread to end, before it asks the flow workers to stop.
const RELOADS_WITHIN: Duration = Duration::from_millis(250);

/// Time that flow workers have to stop, in addition to the kernel's hand-over of the last frames
/// and `records.drain_s`. They wait half a second for the last frames and one second for the last
/// labels.
const WORKERS_WITHIN: Duration = Duration::from_millis(1600);

/// Time limit for one inference once the shutdown has begun.
const LAST_RUN_MAX: Duration = Duration::from_millis(250);

pub struct Live {
    parts: LiveParts,
    notifier: Notifier,
    /// The analytics workers, once they run.
    analytics: Option<AnalyticsSide>,
    /// Progress of the flow workers, for the watchdog.
    watchdog: Watchdog,
    /// Whether a signal has asked for a reload that the reload thread has not accepted yet.
    is_to_reload: bool,
    /// When the last status message was sent to the service manager.
    status_at: Instant,
    /// Deadline for flow workers to stop; `None` before the shutdown.
    workers_until: Option<Instant>,
}

/// What a live run begins with.
pub struct LiveParts {
    /// A short description of the run, for the service manager.
    pub what: String,
    /// SIGHUP.
    pub hangups: Signal,
    /// The first model, while it is being opened.
    pub opening: Option<ModelOpening>,
    /// What follows once it is open.
    pub analytics_parts: Option<AnalyticsParts>,
    /// Dropping it ends all waiting for helpers.
    pub run_guard: Option<RunGuard>,
    /// The sinks, whose files `fenxi ctl reopen` reopens.
    pub sinks: Arc<Sinks>,
    pub policy: policy::Running,
    /// How long flow workers may wait during a shutdown: for the kernel's last frames, and for room
    /// in the record queue.
    pub last_within: Duration,
}

impl Live {
    /// A live run whose flow workers have started.
    pub fn new(parts: LiveParts, run: &Run) -> Live {
        Live {
            parts,
            notifier: Notifier::from_environment(),
            analytics: None,
            watchdog: Watchdog::new(run),
            is_to_reload: false,
            status_at: Instant::now(),
            workers_until: None,
        }
    }

    /// Waits for the first model. Now and later a SIGHUP reloads.
    pub async fn opened(&mut self) -> Result<Managers, Failure> {
        loop {
            let LiveParts { opening, hangups, .. } = &mut self.parts;
            let opened = async {
                match opening {
                    Some(opening) => opening.opened().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                opened = opened => return opened,
                _ = hangups.recv() => self.reload(),
            }
        }
    }

    pub async fn start(
        &mut self,
        opened: Result<Managers, Failure>,
        plane: &Plane,
    ) -> Result<(), Failure> {
        self.parts.opening = None;
        let managers = opened?;
        let twice = || Failure::software("the analytics workers were started twice");
        let parts = self.parts.analytics_parts.take().ok_or_else(twice)?;
        let state = parts.reloader.helpers.state().clone();
        let (analytics, watched) = parts.start(managers)?;
        self.analytics = Some(analytics);
        plane.add_analytics(watched).await;
        state.update(|state| state.opening = None);
        let what = &self.parts.what;
        self.notifier.say(&format!("READY=1\nSTATUS={what}"));
        info!("ready: {what}");
        Ok(())
    }

    /// Asks for a reload because of a signal, without a reply. If another command is queued, the
    /// next tick tries again.
    fn reload(&mut self) {
        let Some(commands) = self.commands() else {
            self.is_to_reload = true;
            return;
        };
        let kind = CommandKind::Reload { confirm_within: None };
        let (answer, _) = oneshot::channel();
        self.is_to_reload = commands.try_send(Command { kind, answer }).is_err();
    }

    /// Runs every 100 ms; returns true if flow workers missed their deadline for stopping.
    pub async fn tick(&mut self, run: &Run, plane: &Plane, is_interrupted: bool) -> bool {
        // Before READY=1 the service manager expects no watchdog messages.
        if self.parts.opening.is_none() {
            self.watchdog.poll(&self.notifier, run);
        }
        if self.is_to_reload {
            self.reload();
        }
        log::tick();
        onnx::stop_late_runs(self.workers_until.map(|_| LAST_RUN_MAX));
        if self.analytics.is_some() && !is_interrupted && self.status_at.elapsed() >= STATUS_EVERY {
            self.status_at = Instant::now();
            let (what, overview) = (&self.parts.what, plane.status_line().await);
            self.notifier.say(&format!("STATUS={what}: {overview}"));
        }
        self.workers_until.is_some_and(|until| Instant::now() >= until)
    }

    /// Answers requests that only a live run supports.
    pub fn answer(&self, call: Call) {
        let Call { request, answer } = call;
        let kind = match request {
            Request::PolicyChange { .. }
            | Request::PolicyLoad { .. }
            | Request::PolicyUndo {}
            | Request::PolicyProfile { .. }
            | Request::PolicyClosed { .. }
            | Request::PolicyShow { .. } => return self.parts.policy.ask(Call { request, answer }),
            Request::Log { level } => return say(answer, set_level(&level)),
            Request::Reopen {} => return self.reopen(answer),
            Request::ModelLoad { dir, task } => CommandKind::LoadModel { task, dir },
            Request::ModelOffer { dir, task } => CommandKind::Offer { task, dir },
            Request::ModelTruth { flows, task } => CommandKind::Truth { task, flows },
            Request::ModelBack { task } => CommandKind::Back { task },
            Request::Confirm {} => CommandKind::Confirm,
            Request::Reload { confirm_within_s } => CommandKind::Reload {
                confirm_within: confirm_within_s.map(|s| Duration::from_secs(s.into())),
            },
            _ => {
                let why = "not supported by a live run";
                return say(answer, Reply::refused(Code::NotHere, why));
            }
        };
        self.pass_on(Command { kind, answer });
    }

    /// Begins the shutdown: gives up everything that may hang while packets still pass.
    pub async fn end(&mut self, plane: &Plane, run: &Run) {
        let what = &self.parts.what;
        self.notifier.say(&format!("STOPPING=1\nSTATUS={what}: shutting down"));
        self.leave_helpers().await;
        if self.analytics.is_none() || plane.has_stalled_analytics().await {
            // No more labels will come, so flow workers need not wait for them.
            run.analytics_died.store(true, Ordering::Release);
        }
        self.workers_until = Some(Instant::now() + self.parts.last_within + WORKERS_WITHIN);
    }

    /// Waits for the analytics workers, once the flow workers have ended.
    pub async fn finish(mut self, plane: &Plane) -> AnalyticsOutcome {
        self.leave_helpers().await;
        match self.analytics {
            Some(analytics) => analytics.end(plane).await,
            None => AnalyticsOutcome::nothing(),
        }
    }

    /// Stops waiting for helpers, and gives the reload thread a moment to notice.
    async fn leave_helpers(&mut self) {
        if self.parts.opening.take().is_some() {
            dataplane::leave_threads_behind();
        }
        self.parts.run_guard = None;
        let analytics = self.analytics.as_ref();
        let have_ended = || analytics.is_none_or(|it| it.reloads.has_ended());
        wait_until(RELOADS_WITHIN, have_ended).await;
    }

    /// The queue of the reload thread; `None` until the first model is open.
    fn commands(&self) -> Option<&Sender<Command>> {
        self.analytics.as_ref().map(|it| &it.reloads.commands)
    }

    /// Passes a slow command on to the reload thread, which also replies.
    fn pass_on(&self, command: Command) {
        let Some(commands) = self.commands() else {
            let why = "starting: the first model is still being opened; try again later";
            return say(command.answer, Reply::refused(Code::Busy, why));
        };
        if let Err(TrySendError::Full(command) | TrySendError::Disconnected(command)) =
            commands.try_send(command)
        {
            let why = "another reload or model swap is in progress; try again later";
            say(command.answer, Reply::refused(Code::Busy, why));
        }
    }

    fn reopen(&self, answer: oneshot::Sender<Reply>) {
        self.parts.sinks.reopen(Box::new(move |opened| {
            let reply = match opened {
                Ok(()) => Reply::ok(Body::Done("the file was reopened".to_owned())),
                Err(why) => Reply::refused(Code::NotHere, why),
            };
            say(answer, reply);
        }));
    }
}

/// Sends a reply; the client may have disconnected.
fn say(answer: oneshot::Sender<Reply>, reply: Reply) {
    let _ = answer.send(reply);
}

fn set_level(level: &str) -> Reply {
    match log::set_level(level) {
        Ok(()) => {
            info!("log level set to {level}");
            Reply::ok(Body::Done(format!("log level set to {level}")))
        }
        Err(error) => Reply::refused(Code::Malformed, error.to_string()),
    }
}

/// Sends the watchdog message, but only if each flow worker has finished a round since the last
/// one.
pub struct Watchdog {
    /// Rounds of each flow worker at the last message.
    rounds: Vec<u64>,
    said_at: Instant,
}

impl Watchdog {
    pub fn new(run: &Run) -> Watchdog {
        Watchdog { rounds: run.rounds().map(|_| 0).collect(), said_at: Instant::now() }
    }

    fn poll(&mut self, notifier: &Notifier, run: &Run) {
        let Some(limit) = notifier.watchdog else { return };
        let now: Vec<u64> = run.rounds().collect();
        let mut pairs = now.iter().zip(&self.rounds);
        let all_move = pairs.all(|(now, before)| now != before);
        if all_move && self.said_at.elapsed() >= limit / 4 {
            notifier.say("WATCHDOG=1");
            (self.rounds, self.said_at) = (now, Instant::now());
        }
    }
}
