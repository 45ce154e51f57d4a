//! The worker threads of a run, replay or live: how they are started and watched, and what the analytics workers leave behind.

use std::sync::Arc;
use std::thread::JoinHandle;

use analytics::{Counters, Manager};
use dataplane::analytics_worker::{self, AnalyticsWorker};
use dataplane::clock::Clock;
use dataplane::counters::{AnalyticsSnapshot, FlowSnapshot};
use dataplane::egress::Egress;
use dataplane::flow_worker::{FlowOutcome, FlowWorker, Hooks, Limits, Parts};
use dataplane::placement::{Cores, Thread, spawn};
use dataplane::run::Run;
use dataplane::settings::{SettingsSender, settings};
use dataplane::sink::Sink;
use dataplane::swap::SwapPort;
use flowmgr::Effect;
use packetio::Rx;
use recording::{Recorder, SeriesRecorder, Walker};
use tokio::sync::mpsc;

use crate::control::collector::Watched;
use crate::exit::Failure;

/// What one flow worker has for itself.
pub struct WorkerIo {
    /// Where its packets come from.
    pub ports: Vec<Box<dyn Rx>>,
    /// Where they go.
    pub egress: Option<Box<dyn Egress>>,
    /// Where its time comes from.
    pub clock: Clock,
    /// Who wants to know of its labels and flows.
    pub sinks: Vec<Box<dyn Sink>>,
}

/// What all flow workers have in common.
pub struct FlowStart<'a> {
    /// On which core each runs.
    pub cores: &'a Cores,
    /// What they share.
    pub run: Arc<Run>,
    /// From when on a label counts.
    pub effect: Effect,
    /// What they do at a time.
    pub limits: Limits,
    /// Where they are recorded.
    pub recorder: Option<&'a Recorder>,
    /// Whether somebody looks at their counters.
    pub is_watched: bool,
}

/// The running flow workers.
pub struct FlowThreads {
    /// What each leaves behind; closed when all have ended.
    pub outcomes: mpsc::Receiver<FlowOutcome>,
    /// Their counters.
    pub watched: Vec<Watched<FlowSnapshot>>,
    /// By which each gets other settings.
    pub settings: Vec<SettingsSender>,
}

impl FlowStart<'_> {
    /// Starts a thread for each manager.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(
        &self,
        managers: Vec<(Thread, flowmgr::Manager)>,
        io: impl IntoIterator<Item = WorkerIo>,
    ) -> Result<FlowThreads, Failure> {
        let (ended, outcomes) = mpsc::channel(managers.len());
        let mut threads = FlowThreads {
            outcomes,
            watched: Vec::new(),
            settings: Vec::new(),
        };
        for (number, ((thread, manager), io)) in managers.into_iter().zip(io).enumerate() {
            let core = self.cores.of_thread(&thread);
            let mut hooks = Hooks::default();
            if self.is_watched {
                let empty = || FlowSnapshot::of(manager.counters(), io.ports.len());
                let (telemetry, watched) = Watched::new(thread.clone(), core, empty);
                hooks.telemetry = Some(telemetry);
                threads.watched.push(watched);
            }
            let (sender, port) = settings();
            hooks.settings = Some(port);
            threads.settings.push(sender);
            let worker = FlowWorker::new(Parts {
                number,
                manager: Walker::new(manager, number, self.recorder),
                effect: self.effect,
                ports: io.ports,
                egress: io.egress,
                sinks: io.sinks,
                clock: io.clock,
                hooks,
                run: self.run.clone(),
                limits: self.limits,
            });
            let ended = ended.clone();
            spawn(&thread, core, move || {
                // The other side goes away with the whole program only.
                let _ = ended.blocking_send(worker.run());
            })?;
        }
        Ok(threads)
    }
}

/// What all analytics workers have in common.
pub struct AnalyticsStart<'a> {
    /// On which core each runs.
    pub cores: &'a Cores,
    /// What they share.
    pub run: &'a Arc<Run>,
    /// A replay at full speed: they let series gather.
    pub gathers: bool,
    /// Where they are recorded.
    pub recorder: Option<&'a Recorder>,
    /// Whether somebody looks at their counters.
    pub is_watched: bool,
}

/// The running analytics workers.
pub struct AnalyticsThreads {
    /// What each has counted at its end.
    pub threads: Vec<JoinHandle<Counters>>,
    /// Their counters meanwhile.
    pub watched: Vec<Watched<AnalyticsSnapshot>>,
}

impl AnalyticsStart<'_> {
    /// Starts a thread for each manager. `swaps` has the ends by which they get other models, or is empty.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(
        &self,
        managers: Vec<(Thread, Manager)>,
        swaps: Vec<SwapPort>,
    ) -> Result<AnalyticsThreads, Failure> {
        let mut started = AnalyticsThreads {
            threads: Vec::new(),
            watched: Vec::new(),
        };
        let swaps = swaps
            .into_iter()
            .map(Some)
            .chain(std::iter::repeat_with(|| None));
        for (number, ((thread, manager), swap)) in managers.into_iter().zip(swaps).enumerate() {
            let core = self.cores.of_thread(&thread);
            let mut hooks = analytics_worker::Hooks {
                swap,
                telemetry: None,
                recorder: self
                    .recorder
                    .map(|recorder| SeriesRecorder::new(recorder, number)),
            };
            if self.is_watched {
                let empty = || AnalyticsSnapshot::of(&manager);
                let (telemetry, watched) = Watched::new(thread.clone(), core, empty);
                hooks.telemetry = Some(telemetry);
                started.watched.push(watched);
            }
            let worker = AnalyticsWorker {
                manager,
                gathers: self.gathers,
                run: self.run.clone(),
                hooks,
            };
            started
                .threads
                .push(spawn(&thread, core, move || worker.run())?);
        }
        Ok(started)
    }
}
