//! A live run: chooses the parts of its workers and starts them.
//!
//! ```text
//! control (tokio): signals, service manager, control plane
//! flow worker:     rings ─ process ─ out again (inline) ─ settle ──┬─ records thread
//!                            │ ring   ▲ label words                └─ marks thread (mark)
//! analytics worker:          └─ rounds┘
//! ```
//!
//! The flow workers and the control thread start first: where fenxi forwards, it does so before a
//! device is open and warm, and signals, health and `fenxi ctl` are served. Until a helper has
//! opened the first model, series are shed. A device that cannot be used still ends the run, before
//! it reports ready.
//!
//! The end has a bound for each step, 5 s together: see `docs/operations.md`.
//!
//! `fenxi check` goes through the same steps without starting anything (`commands/check.rs`):
//! a new step of the start belongs there, too.

mod kept;
pub mod kernel_labels;
pub mod pair;
pub mod ports;
mod privileges;
mod sandbox;
mod start;
mod sums;

use std::path::Path;

use config::{Config, Loaded, Sources};
use dataplane::inline::{self, Wants};
use dataplane::label_map::{LabelMap, check_labels};
use dataplane::pipelines::{FlowOptions, PacketSide};
use dataplane::placement::Cores;
use dataplane::tasks::OpenTask;
use flowmgr::Effect;
use tracing::{debug, info, warn};

use crate::cli::RunArgs;
use crate::control::Sockets;
use crate::exit::Failure;
use crate::memory::Need;
use crate::names;
use crate::outcome::{RunOutcome, Table};
use crate::proc::Machine;
use crate::rules::{Rules, Traffic};
use crate::servers;
use crate::services;
use crate::sinks::{self, Interfaces, RecentFlows, SharedHosts, Sinks, broadcast};
use crate::supervise;
use crate::weights;
use learn::{Key, SharedHeld};
use start::{Opened, Started};

#[derive(Clone, Copy)]
pub struct RunPlan<'a> {
    /// The sources of the configuration, for reloads.
    pub sources: &'a Sources,
    /// The configuration as read, for reloads.
    pub loaded: &'a Loaded,
    /// The checked configuration for live traffic.
    pub config: &'a Config,
    pub args: &'a RunArgs,
}

impl RunPlan<'_> {
    /// Where flow records go; `None`: nowhere.
    fn records(&self) -> Option<&Path> {
        let configured = self.config.records.path.as_deref();
        self.args.output.flows.as_deref().or(configured)
    }
}

/// Runs until a signal, `fenxi ctl drain`, or until no interface is left.
///
/// # Errors
/// The run cannot start. Later failures are in [`RunOutcome::failure`], with the counters up to
/// that point.
pub fn run(plan: &RunPlan<'_>) -> Result<RunOutcome, Failure> {
    let mut tasks = OpenTask::open_all(plan.config, None)?;
    let wants = match plan.args.record {
        Some(_) => Wants::Rings,
        None => Wants::Quick,
    };
    let config = &inline::choose(plan.config, &mut tasks, wants)?;
    let plan = &RunPlan { config, ..*plan };
    let cores = Cores::from_config(config);
    cores.check()?;
    let bundle = &tasks[0].bundle;
    let sinks_act = sinks::places(config).next().is_some();
    let map = check_labels(config, bundle, sinks_act)?;
    let rules = Rules::load(config, &OpenTask::all_labels(&tasks), Traffic::Live)?;
    log_start(config, &tasks);
    log_gap(&map);
    if let Some(warning) = Need::new(config, &tasks).warning(&Machine::here()) {
        warn!("{warning}");
    }
    let options = FlowOptions {
        effect: Effect::Arrival,
        record_series: plan.args.output.recorded_series(config),
    };
    let mut packets = PacketSide::build(config, &tasks, options)?;
    packets.open_inline(&tasks, &cores)?;
    let table = Table::new(config, config.behaviour.in_use(), &tasks, &packets.flow_managers);
    let mut outcome = RunOutcome::nothing(config, cores.clone(), &tasks, table);
    let opened = open(plan, &tasks, &mut packets, rules)?;
    let sinks = opened.sinks.clone();
    let runtime = supervise::runtime()?;
    let Started {
        supervisor,
        recorder,
        host,
        state,
        // Ours until the run has ended.
        pair: _pair,
    } = opened.start(plan, &runtime, &cores, packets, tasks, options)?;
    let run = supervisor.run.clone();
    let ended = runtime.block_on(supervisor.serve())?;
    outcome.wall = run.started.elapsed();
    outcome.swaps = state.get().swaps();
    if let Some(recorder) = &recorder {
        recorder.finish();
    }
    sums::add(&mut outcome, config, ended, &sinks, &host);
    Ok(outcome)
}

/// Opens what needs privileges, and then drops them.
fn open(
    plan: &RunPlan<'_>,
    tasks: &[OpenTask],
    packets: &mut PacketSide,
    rules: Rules,
) -> Result<Opened, Failure> {
    let config = plan.config;
    let pair = pair::hold(&config.io)?;
    let wanted = ports::wanted(config, tasks, plan.args.output.recorded_series(config));
    // After the claim on the pair: the process before has ended.
    let kept = kept::Kept::take(&config.io);
    let workers = packets.flow_managers.len();
    let mut ports = ports::open(&config.io, &wanted, workers, kept)?;
    let mirrors = ports::open_mirror(config, workers)?;
    let sockets = Sockets::bind(&config.control)?;
    let record_socket = broadcast::bind("records.socket", config.records.socket.as_deref())?;
    let learn_socket = broadcast::bind("learn.socket", config.learn.socket.as_deref())?;
    let weight_sockets = weights::bind(config)?;
    let by_server = weights::actions(config);
    let held = SharedHeld::default();
    let key = config.learn.key.as_deref().map(Key::read).transpose().map_err(Failure::config)?;
    let is_recorded = plan.args.record.is_some();
    let (servers, memories) =
        servers::recall(config, tasks, &mut packets.flow_managers, is_recorded)?;
    let labels = OpenTask::all_labels(tasks);
    let (services, observed) = services::open(config, &labels, &mut packets.flow_managers)?;
    let host_names = names::open(config)?;
    // No thread runs yet, and everything that needs more privileges is open.
    privileges::drop_unneeded(plan, tasks)?;
    let hosts = SharedHosts::from_config(config, tasks);
    let labels_in_kernel = ports::label_in_kernel(&mut ports);
    let recent = RecentFlows::new(Interfaces::new(config, labels_in_kernel));
    let first = wanted.first.as_ref();
    let sinks = Sinks::start(&sinks::Start {
        config,
        names: &packets.names,
        labels: &labels,
        hosts: hosts.as_ref(),
        host_names: &host_names,
        records: plan.records(),
        record_socket: record_socket.as_ref(),
        learn_socket: learn_socket.as_ref(),
        weight_sockets: &weight_sockets,
        by_server: by_server.as_ref(),
        held: &held,
        servers: &memories,
        services: &observed,
        record_series: plan.args.output.series,
        recent: Some(&recent),
        marks_by_kernel: first.and_then(|it| it.written.clone()),
        replay: None,
    })?;
    let kernel = first.and_then(|it| it.labels.clone());
    let held = config.learn.is_on().then_some((held, key));
    let memories = (servers, services);
    let names = host_names.names;
    Ok(Opened {
        pair,
        ports,
        kernel,
        mirrors,
        sockets,
        sinks,
        memories,
        by_server,
        recent,
        names,
        rules,
        held,
    })
}

fn log_start(config: &Config, tasks: &[OpenTask]) {
    let devices = tasks.iter().map(|task| task.config.tasks[0].shown_devices());
    let mut devices: Vec<String> = devices.collect();
    devices.dedup();
    let models = tasks.iter().map(|task| &task.bundle);
    let models = models.map(|bundle| format!("model {} {}", bundle.name(), bundle.version()));
    info!(
        "fenxi {} is starting: {} on {}, {}, devices {}",
        crate::version::VERSION,
        config.io.mode.name(),
        config.io.interfaces.join(", "),
        models.collect::<Vec<_>>().join(", "),
        devices.join(", ")
    );
    debug!("layout {} x{}", config.pipeline.layout, config.pipeline.instances);
}

/// The labels for which nothing is done. The built-in table leaves some out on purpose, a table of
/// the user's perhaps not.
fn log_gap(map: &LabelMap) {
    match map.gap() {
        Some(gap) if map.is_users() => warn!("{gap}"),
        Some(gap) => debug!("{gap}"),
        None => {}
    }
}
