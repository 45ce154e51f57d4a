//! The worker threads of a run, replay or live: how they are started and watched.

use std::sync::Arc;
use std::thread::JoinHandle;

use analytics::{Counters, Manager};
use dataplane::analytics_worker::{self, AnalyticsWorker};
use dataplane::clock::Clock;
use dataplane::counters::{AnalyticsSnapshot, FlowSnapshot};
use dataplane::egress::Egress;
use dataplane::flow_worker::{FlowOutcome, FlowWorker, Hooks, Limits, Parts};
use dataplane::inline::FlowManager;
use dataplane::look::{Looker, looks};
use dataplane::placement::{Cores, Thread, spawn};
use dataplane::rules::{RulesInForce, RulesUpdate};
use dataplane::run::Run;
use dataplane::server_actions::ServerActions;
use dataplane::servers::Portion;
use dataplane::settings::{SettingsPort, SettingsSender, settings};
use dataplane::sink::Sink;
use dataplane::snapshot::Publisher;
use dataplane::swap::Ports;
use flowmgr::{Effect, ServicesChange};
use packetio::Rx;
use recording::Recorder;
use tokio::sync::mpsc;

use crate::control::collector::Watched;
use crate::exit::Failure;

/// What belongs to one flow worker alone.
pub struct WorkerIo {
    pub ports: Vec<Box<dyn Rx>>,
    /// Where its packets go; `None`: nowhere, as in modes tap and mark.
    pub egress: Option<Box<dyn Egress>>,
    /// Whether flows belong to the port where they were first seen.
    pub flows_belong_to_ports: bool,
    pub clock: Clock,
    pub sinks: Vec<Box<dyn Sink>>,
    /// Copies its memory of servers, where that is kept.
    pub servers: Option<Publisher<Portion>>,
    /// Brings it other services.
    pub services: Option<SettingsPort<ServicesChange>>,
}

/// What all workers of a run have in common.
pub struct WorkerStart<'a> {
    pub cores: &'a Cores,
    /// The state that all threads of the run share.
    pub run: &'a Arc<Run>,
    pub recorder: Option<&'a Recorder>,
    /// Whether the control plane reads their counters.
    pub is_watched: bool,
    /// The rules in force from the first packet on.
    pub rules: Option<&'a RulesInForce>,
    /// What other programs do with flows to servers.
    pub by_server: Option<&'a Arc<ServerActions>>,
}

/// A flow manager's own tasks, with which it answers series at once.
fn answering(manager: &FlowManager) -> Option<&Manager> {
    manager.parts().as_ref().map(|inline| &inline.manager)
}

pub struct FlowThreads {
    /// What each worker returns when it stops; closed once all have stopped.
    pub outcomes: mpsc::Receiver<FlowOutcome>,
    pub watched: Vec<Watched<FlowSnapshot>>,
    /// The workers that answer series themselves.
    pub answering: Vec<Watched<AnalyticsSnapshot>>,
    pub lookers: Vec<Looker>,
    /// Channels that carry new settings, one per worker.
    pub settings: Vec<SettingsSender>,
}

impl WorkerStart<'_> {
    /// Starts a flow worker for each manager. Labels take effect as the managers were told. `swaps`
    /// has the channels of model swaps.
    pub fn flow_workers(
        &self,
        managers: Vec<(Thread, FlowManager)>,
        io: impl IntoIterator<Item = WorkerIo>,
        (effect, limits): (Effect, Limits),
        swaps: &mut Ports,
    ) -> Result<FlowThreads, Failure> {
        let (ended, outcomes) = mpsc::channel(managers.len());
        let mut threads = FlowThreads {
            outcomes,
            watched: Vec::new(),
            answering: Vec::new(),
            lookers: Vec::new(),
            settings: Vec::new(),
        };
        for (number, ((thread, manager), io)) in managers.into_iter().zip(io).enumerate() {
            let core = self.cores.of_thread(&thread);
            let mut hooks = Hooks {
                recorder: self.recorder.map(|recorder| recorder.flow_worker(number)),
                servers: io.servers,
                services: io.services,
                by_server: self.by_server.cloned(),
                ..Hooks::default()
            };
            hooks.inline.swaps = swaps.take(&thread);
            if let Some(answering) = answering(&manager).filter(|_| self.is_watched) {
                let empty = || AnalyticsSnapshot::from_manager(answering);
                let (telemetry, watched) = Watched::new(thread.clone(), core, empty);
                hooks.inline.telemetry = Some(telemetry);
                threads.answering.push(watched);
            }
            if self.is_watched {
                let empty = || FlowSnapshot::new(manager.counters(), io.ports.len());
                let (telemetry, watched) = Watched::new(thread.clone(), core, empty);
                hooks.telemetry = Some(telemetry);
                threads.watched.push(watched);
                let (looker, port) = looks();
                hooks.look = Some(port);
                threads.lookers.push(looker);
            }
            let (sender, port) = settings();
            hooks.settings = Some(port);
            threads.settings.push(sender);
            let rules = self.rules.cloned();
            let rules = rules.map(|rules| {
                RulesUpdate::new(rules, manager.max_flows(), self.by_server.is_some())
            });
            let worker = FlowWorker::new(Parts {
                number,
                rules: rules.transpose()?,
                manager,
                effect,
                ports: io.ports,
                flows_belong_to_ports: io.flows_belong_to_ports,
                egress: io.egress,
                sinks: io.sinks,
                clock: io.clock,
                hooks,
                run: self.run.clone(),
                limits,
            });
            let ended = ended.clone();
            spawn(&thread, core, move || {
                // The receiver lives as long as the program.
                let _ = ended.blocking_send(worker.run());
            })?;
        }
        Ok(threads)
    }
}

/// The analytics threads, which return the final counters of each task, and access to their
/// counters while they run.
pub type AnalyticsThreads = (Vec<JoinHandle<Vec<Counters>>>, Vec<Watched<AnalyticsSnapshot>>);

impl WorkerStart<'_> {
    /// Starts an analytics worker for each manager. `swaps` has the channels of model swaps.
    /// `gathers`: a replay at full speed, which waits for larger batches instead of labelling at
    /// once.
    pub fn analytics_workers(
        &self,
        managers: Vec<(Thread, Manager)>,
        swaps: &mut Ports,
        gathers: bool,
    ) -> Result<AnalyticsThreads, Failure> {
        let (mut threads, mut watched) = (Vec::new(), Vec::new());
        for (number, (thread, manager)) in managers.into_iter().enumerate() {
            let core = self.cores.of_thread(&thread);
            let mut hooks = analytics_worker::Hooks {
                swaps: swaps.take(&thread),
                telemetry: None,
                recorder: match self.recorder {
                    Some(recorder) => recorder.analytics_worker(number),
                    None => Box::default(),
                },
            };
            if self.is_watched {
                let empty = || AnalyticsSnapshot::from_manager(&manager);
                let (telemetry, watcher) = Watched::new(thread.clone(), core, empty);
                hooks.telemetry = Some(telemetry);
                watched.push(watcher);
            }
            let worker = AnalyticsWorker { manager, gathers, run: self.run.clone(), hooks };
            threads.push(spawn(&thread, core, move || worker.run())?);
        }
        Ok((threads, watched))
    }
}
