//! The start of a live run: its threads, and what the control thread takes over from them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Config;
use config::checked::IoMode;
use dataplane::pipelines::{FlowOptions, PacketSide, flow_config};
use dataplane::placement::Cores;
use dataplane::run::Run;
use dataplane::server_actions::ServerActions;
use dataplane::state::SharedState;
use dataplane::swap::Swapper;
use dataplane::swap::helpers::Helpers;
use dataplane::tasks::OpenTask;
use packetio::{KernelEditions, KernelLabels};
use recording::Recorder;
use tokio::runtime::Runtime;

use super::ports::{self, Memories, limits, worker_io};
use super::{RunPlan, pair};
use crate::control::collector::Collector;
use crate::control::flow_tables::FlowTables;
use crate::control::{Facts, HostStats, Plane, Sockets};
use crate::exit::Failure;
use crate::names::Names;
use crate::rules::Rules;
use crate::signals::{Signals, hangups};
use crate::sinks::{RecentFlows, Sinks};
use crate::supervise::analytics::{AnalyticsParts, ModelOpening};
use crate::supervise::notify::Notifier;
use crate::supervise::policy::{self, RunningRules, SharedRules, Workers};
use crate::supervise::reload::Reloader;
use crate::supervise::{Live, LiveParts, Supervisor};
use crate::workers::WorkerStart;
use learn::{Key, Offers, SharedHeld};

/// How long the start waits for the first round of the flow workers. A worker that is later only
/// forwards later.
const MOVING_WITHIN: Duration = Duration::from_secs(1);

/// What needs privileges, open. From then on the sandbox holds.
pub struct Opened {
    /// Mode inline: the claim on its two interfaces.
    pub pair: Option<pair::Pair>,
    pub ports: Vec<Vec<packetio::Opened>>,
    /// What the kernel labels flows by, if it does.
    pub kernel: Option<Arc<KernelEditions>>,
    /// The interface for copies, of each flow worker, if there is one.
    pub mirrors: Vec<Box<dyn packetio::Tx>>,
    pub sockets: Sockets,
    pub sinks: Arc<Sinks>,
    /// The flow workers' memories of servers and of services.
    pub memories: Memories,
    /// What other programs do with flows to servers.
    pub by_server: Option<Arc<ServerActions>>,
    /// What records say of recent flows.
    pub recent: RecentFlows,
    pub names: Names,
    /// The rules, which are in force from the first packet on.
    pub rules: Rules,
    /// Held-out samples, where the run gives samples to learn from, and who has to sign offers.
    pub held: Option<(SharedHeld, Option<Key>)>,
}

/// The running flow workers, and what the control thread needs.
pub struct Started {
    pub supervisor: Supervisor,
    pub recorder: Option<Recorder>,
    pub host: Arc<HostStats>,
    /// What the control plane says of the run.
    pub state: Arc<SharedState>,
    /// To be kept until the run has ended.
    pub pair: Option<pair::Pair>,
}

impl Opened {
    /// Starts the flow workers, and a helper that opens the first model.
    pub fn start(
        mut self,
        plan: &RunPlan<'_>,
        runtime: &Runtime,
        cores: &Cores,
        packets: PacketSide,
        tasks: Vec<OpenTask>,
        options: FlowOptions,
    ) -> Result<Started, Failure> {
        let (config, names) = (plan.config, packets.names.clone());
        let mut rules = self.rules;
        rules.know_hosts(self.names.clone());
        let _inside = runtime.enter();
        let (signals, hangups) = (Signals::new()?, hangups()?);
        let state = Arc::new(SharedState::new(&tasks));
        let interfaces = config.io.interfaces.clone();
        let least = ports_up_least(config);
        let labels_in_kernel = ports::label_in_kernel(&mut self.ports);
        let facts = Facts::new(config, state.clone(), &names, interfaces, Some(least));
        let facts = Facts { labels_in_kernel, ..facts };
        let recorder = record(plan, &tasks, options)?;
        let flow_workers = packets.flow_managers.len();
        let woken = config.pipeline.layout.analytics_managers * config.pipeline.instances;
        let (run, events) = Run::new(flow_workers, woken);
        let run = Arc::new(run);
        let io = worker_io(
            self.ports,
            self.mirrors,
            config,
            &run,
            &self.sinks,
            !options.record_series.is_none(),
            self.memories,
        );
        let start = WorkerStart {
            cores,
            run: &run,
            recorder: recorder.as_ref(),
            is_watched: true,
            rules: rules.at_start(),
            by_server: self.by_server.as_ref(),
        };
        let (helpers, run_guard) = Helpers::new(cores, state.clone());
        let (swappers, mut ports) = Swapper::for_tasks(&helpers, &tasks, cores);
        let how = (options.effect, limits(config));
        let threads = start.flow_workers(packets.flow_managers, io, how, &mut ports)?;
        wait_until_moving(&run);
        let series = packets.series;
        let opening = ModelOpening::start(&helpers, config, &tasks, series, recorder.as_ref())?;
        let (settings, sinks) = (threads.settings, self.sinks);
        let have_rules = rules.at_start().is_some();
        let kernel = self.kernel.filter(|_| labels_in_kernel);
        let mut workers = Workers::new(settings, have_rules, config.flow.max_flows);
        let acts = |it: &KernelLabels| it.marks.is_some() || !it.dscp.is_empty();
        workers.kernel_acts = kernel.as_ref().is_some_and(|it| acts(it.first()));
        let run_ended = helpers.run_ended().clone();
        let rules = RunningRules::new(rules, workers, state.clone(), run_ended);
        let rules = SharedRules::new(rules);
        let policy = policy::Running::start(rules.clone(), helpers.clone())?;
        let reloader = Reloader {
            sources: plan.sources.clone(),
            running: plan.loaded.clone(),
            helpers,
            swappers,
            rules,
            sinks: sinks.clone(),
            notifier: Notifier::from_environment(),
            undo: None,
            recorder: recorder.clone(),
            kernel,
            offers: self.held.map(|(held, key)| Offers::new(held, key, state.clone())),
            promoted: tasks.iter().map(|_| None).collect(),
        };
        let live = LiveParts {
            what: what(config),
            hangups,
            opening: Some(opening),
            analytics_parts: Some(AnalyticsParts { run: run.clone(), reloader, ports }),
            run_guard: Some(run_guard),
            sinks: sinks.clone(),
            policy,
            last_within: limits(config).handover + config.records.drain_within,
        };
        let host = Arc::new(HostStats::new(&config.io.interfaces));
        let collector =
            Collector::new(threads.watched, threads.answering, host.clone(), sinks.clone());
        let tables =
            FlowTables::new(threads.lookers, self.recent, self.names, &config.host_networks);
        let serving = Plane::start(self.sockets, facts, collector, tables)?;
        let supervisor = Supervisor {
            live: Some(Live::new(live, &run)),
            run,
            outcomes: threads.outcomes,
            workers: flow_workers,
            events,
            signals,
            serving: Some(serving),
            sinks,
            progress: None,
            holds: false,
        };
        Ok(Started { supervisor, recorder, host, state, pair: self.pair })
    }
}

/// A short description of the run.
fn what(config: &Config) -> String {
    let interfaces = config.io.interfaces.join(", ");
    format!("{} on {interfaces}", config.io.mode.name())
}

/// Waits until each flow worker has finished a round. Only then may a library be loaded: meanwhile
/// glibc holds a lock that a starting thread needs for its first `__cxa_thread_atexit_impl`, so
/// nothing would be forwarded.
fn wait_until_moving(run: &Run) {
    let began = Instant::now();
    while run.rounds().any(|rounds| rounds == 0) && began.elapsed() < MOVING_WITHIN {
        std::thread::sleep(dataplane::run::PAUSE);
    }
}

fn record(
    plan: &RunPlan<'_>,
    tasks: &[OpenTask],
    options: FlowOptions,
) -> Result<Option<Recorder>, Failure> {
    let (config, args) = (plan.config, plan.args);
    let Some(dir) = &args.record else { return Ok(None) };
    let flow = flow_config(config, tasks, options)?;
    let configuration = plan.loaded.effective().to_toml(false);
    let header = recording::Header::new(config, configuration, tasks, flow);
    let recorder = Recorder::start(&recording::RecorderPlan {
        dir,
        max_bytes: u64::from(args.record_max_mib) << 20,
        header: &header,
    })?;
    Ok(Some(recorder))
}

/// How many interfaces must be up for the run to be ready.
fn ports_up_least(config: &Config) -> usize {
    match (config.control.ready_without_interfaces, config.io.mode) {
        (true, _) => 0,
        // Packets that come in on one interface leave by the other.
        (false, IoMode::Inline) => 2,
        (false, _) => 1,
    }
}
