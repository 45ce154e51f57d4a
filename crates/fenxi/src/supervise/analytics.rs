//! The analytics side of a live run: it starts once the first model is open, and stops after the
//! flow workers.
//!
//! Opening a model may take long or hang, so a helper does it while the control thread serves and
//! the flow workers forward. Until then, series that find no room in a ring are shed.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use analytics::{Counters, Manager};
use config::Config;
use dataplane::counters::AnalyticsSnapshot;
use dataplane::pipelines::{OpenedManager, SeriesSide};
use dataplane::placement::Thread;
use dataplane::run::Run;
use dataplane::state;
use dataplane::swap::Ports;
use dataplane::swap::helpers::{Helper, Helpers, MORE_TIME};
use dataplane::tasks::OpenTask;
use recording::Recorder;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout_at};

use super::reload::{self, Reloader};
use crate::control::Plane;
use crate::control::collector::Watched;
use crate::exit::Failure;
use crate::workers::WorkerStart;

/// Time that analytics workers have to stop after the flow workers. It is longer than a batch
/// takes; a thread whose device does not answer is left behind.
const THREADS_WITHIN: Duration = Duration::from_millis(750);

/// Interval at which the end of threads is checked.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Analytics managers with their devices open and warm.
pub type Managers = Vec<(Thread, Manager)>;

/// The first model, while it is being opened.
pub struct ModelOpening {
    opened: oneshot::Receiver<Result<Managers, dataplane::Error>>,
    helper: Helper,
    limit: Duration,
    until: Instant,
}

impl ModelOpening {
    /// Starts to open the model on the devices that the configuration names.
    pub fn start(
        helpers: &Helpers,
        config: &Config,
        tasks: &[OpenTask],
        series: SeriesSide,
        recorder: Option<&Recorder>,
    ) -> Result<ModelOpening, Failure> {
        let models: Vec<String> = tasks.iter().map(model_on_devices).collect();
        let what = format!("opening the model {}", models.join(", the model "));
        let since = Instant::now();
        helpers.state().update(|state| {
            let what = what.clone();
            state.opening = Some(state::Pending { what, since });
        });
        let (done, opened) = oneshot::channel();
        let (limit, cores) = (config.model.open_timeout, helpers.cores().clone());
        let tasks = tasks.to_vec();
        let recorder = recorder.cloned();
        let profiles = helpers.state().profiles().clone();
        let helper = helpers.start(&what, move || {
            // If nobody waits any more, the managers are dropped here.
            let opened = series.open(&tasks, &cores, &profiles);
            let managers = opened.and_then(|opened| match recorder {
                Some(recorder) => recorder.managers(opened),
                None => OpenedManager::managers(opened),
            });
            let _ = done.send(managers);
        })?;
        Ok(ModelOpening { opened, helper, limit, until: since + limit })
    }

    /// Waits until the model is open. Safe to cancel and call again.
    pub async fn opened(&mut self) -> Result<Managers, Failure> {
        match timeout_at(self.until.into(), &mut self.opened).await {
            Ok(Ok(opened)) => Ok(opened?),
            Ok(Err(_)) => Err(Failure::software("the thread that opened the model died")),
            Err(_) => Err(self.helper.abandon(self.limit, MORE_TIME).into()),
        }
    }
}

/// Everything needed to start the analytics workers once the model is open.
pub struct AnalyticsParts {
    pub run: Arc<Run>,
    /// The reload thread's state.
    pub reloader: Reloader,
    /// The channels of model swaps.
    pub ports: Ports,
}

/// The running analytics workers and the reload thread.
pub struct AnalyticsSide {
    threads: Vec<JoinHandle<Vec<Counters>>>,
    pub reloads: reload::Running,
}

pub struct AnalyticsOutcome {
    /// Sums over all analytics managers, by task.
    pub counters: Vec<Counters>,
    /// The last counters of some managers are unknown.
    pub is_partial: bool,
    pub failure: Option<Failure>,
}

impl AnalyticsParts {
    /// Starts the threads.
    pub fn start(
        mut self,
        managers: Managers,
    ) -> Result<(AnalyticsSide, Vec<Watched<AnalyticsSnapshot>>), Failure> {
        let start = WorkerStart {
            cores: self.reloader.helpers.cores(),
            run: &self.run,
            recorder: self.reloader.recorder.as_ref(),
            is_watched: true,
            rules: None,
            by_server: None,
        };
        let (threads, watched) = start.analytics_workers(managers, &mut self.ports, false)?;
        let reloads = reload::Running::start(self.reloader)?;
        Ok((AnalyticsSide { threads, reloads }, watched))
    }
}

impl AnalyticsSide {
    /// Waits for the analytics workers. Called after the flow workers have stopped.
    pub async fn end(self, plane: &Plane) -> AnalyticsOutcome {
        wait_until(THREADS_WITHIN, || self.threads.iter().all(JoinHandle::is_finished)).await;
        let mut outcome = AnalyticsOutcome { is_partial: false, ..AnalyticsOutcome::nothing() };
        let mut failures = Vec::new();
        for (thread, last) in self.threads.into_iter().zip(plane.last_counters().await) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if !thread.is_finished() {
                dataplane::leave_threads_behind();
                failures.push(Failure::unavailable(format!(
                    "{name}: its device does not answer; the last series get no labels"
                )));
                outcome.is_partial = true;
                outcome.add(&last);
                continue;
            }
            match thread.join() {
                Ok(counters) => outcome.add(&counters),
                Err(_) => {
                    failures.push(Failure::software(format!("{name}: the thread died")));
                    outcome.is_partial = true;
                    outcome.add(&last);
                }
            }
        }
        outcome.failure = failures.into_iter().reduce(Failure::and);
        outcome
    }
}

impl AnalyticsOutcome {
    fn add(&mut self, counters: &[Counters]) {
        self.counters.resize_with(counters.len(), Counters::none);
        let tasks = self.counters.iter_mut().zip(counters);
        tasks.for_each(|(sum, task)| sum.merge(task));
    }

    /// For a run whose analytics workers never started.
    pub fn nothing() -> AnalyticsOutcome {
        AnalyticsOutcome { counters: Vec::new(), is_partial: true, failure: None }
    }
}

/// A model and its devices, as in `m 1.0 on cpu`.
fn model_on_devices(task: &OpenTask) -> String {
    let devices = task.config.accel.devices.iter();
    let mut devices: Vec<&str> = devices.map(|it| &*it.name).collect();
    devices.dedup();
    let (name, version) = (task.bundle.name(), task.bundle.version());
    format!("{name} {version} on {}", devices.join(", "))
}

/// Waits until `is_so` returns true, or for `limit`.
pub async fn wait_until(limit: Duration, is_so: impl Fn() -> bool) {
    let until = Instant::now() + limit;
    while !is_so() && Instant::now() < until {
        sleep(LOOK_EVERY).await;
    }
}
