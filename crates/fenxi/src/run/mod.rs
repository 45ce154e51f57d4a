//! A live run: chooses the parts of its workers and starts them.
//!
//! ```text
//! control (tokio): signals, service manager, control plane
//! flow worker:     rings ─ process ─ out again (inline) ─ settle ──┬─ records thread
//!                            │ ring   ▲ label words                └─ marks thread (mark)
//! analytics worker:          └─ rounds┘
//! ```
//!
//! The flow workers and the control thread start first: where fenxi forwards, it does so before a device is open and warm,
//! and signals, health and `fenxi ctl` are served. Until a helper has opened the first model, series are shed. A device
//! that cannot be used still ends the run, before it is said to be ready.
//!
//! The end has a bound for each step, 5 s together: see `docs/operations.md`.
//!
//! `fenxi check` goes through the same steps without starting anything (`commands/check/start.rs`): a new step of the start
//! belongs there, too.

pub mod pair;
pub mod ports;
mod sandbox;
mod sums;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use accel::Bundle;
use config::checked::{Device, HttpPlace, IoMode, Provider};
use config::{Config, Loaded, Sources};
use dataplane::bundle::{check_labels, dscp_by_class, open_bundle, series_task};
use dataplane::clock::Clock;
use dataplane::egress::{Egress, Forward};
use dataplane::flow_worker::Limits;
use dataplane::pipelines::{FlowOptions, PacketSide, flow_config};
use dataplane::placement::Cores;
use dataplane::run::Run;
use dataplane::settings::SettingsSender;
use dataplane::state::SharedState;
use dataplane::swap::Swapper;
use dataplane::swap::helpers::Helpers;
use flowmgr::Effect;
use packetio::Tx;
use recording::Recorder;
use tokio::runtime::Runtime;
use tracing::info;

use crate::cli::RunArgs;
use crate::control::collector::Collector;
use crate::control::{Facts, HostStats, LabelNames, Sockets};
use crate::exit::Failure;
use crate::outcome::{Outcome, Table};
use crate::signals::{Signals, hangups};
use crate::sinks::{self, Sinks};
use crate::supervise::analytics::{AnalyticsParts, ModelOpening};
use crate::supervise::notify::Notifier;
use crate::supervise::reload::Reloader;
use crate::supervise::{self, ControlPlane, Live, LiveStart, Supervisor};
use crate::workers::{WorkerIo, WorkerStart};

/// Kernels check blocks that are not full once per timeout; older kernels do so in ticks of up to 10 ms.
const BLOCK_SLACK: Duration = Duration::from_millis(10);

/// How long the start waits for the first round of the flow workers. A worker that is later only forwards later.
const MOVING_WITHIN: Duration = Duration::from_secs(1);

/// What to run.
pub struct Plan<'a> {
    /// The sources of the configuration, for reloads.
    pub sources: Sources,
    /// The configuration as read, for reloads.
    pub loaded: Loaded,
    /// The checked configuration for live traffic.
    pub config: &'a Config,
    /// The command line.
    pub args: &'a RunArgs,
    /// Folder of the bundle.
    pub bundle: PathBuf,
}

/// Runs until a signal, `fenxi ctl drain`, or until no interface is left.
///
/// # Errors
/// The run cannot start. Later failures are in [`Outcome::failure`], with the counters up to that point.
pub fn run(plan: &Plan<'_>) -> Result<Outcome, Failure> {
    let config = plan.config;
    let cores = Cores::of(config);
    cores.check()?;
    let bundle = open_bundle(config, &plan.bundle)?;
    check_labels(config, &bundle)?;
    log_start(config, &bundle);
    let options = FlowOptions {
        effect: Effect::Arrival,
        record_series: plan.args.output.series,
    };
    let packets = PacketSide::build(config, &bundle, options)?;
    let table = Table::of(config, &bundle, &packets.flow_managers);
    let mut outcome = Outcome::nothing(config, cores.clone(), packets.classes.clone(), table);
    let opened = Opened::open(plan, &packets)?;
    let sinks = opened.sinks.clone();
    let runtime = supervise::runtime()?;
    // The pair is ours until the run has ended.
    let (started, _pair) = opened.start(plan, &runtime, &cores, packets, bundle, options)?;
    let Started {
        supervisor,
        recorder,
        host,
        state,
    } = started;
    let run = supervisor.run.clone();
    let ended = runtime.block_on(supervisor.serve())?;
    outcome.wall = run.started.elapsed();
    outcome.swaps = state.get().swaps;
    if let Some(recorder) = &recorder {
        recorder.finish();
    }
    sums::add(&mut outcome, config, ended, &sinks, &host);
    Ok(outcome)
}

/// What needs privileges, open. From then on the sandbox holds.
struct Opened {
    pair: Option<pair::Pair>,
    ports: Vec<Vec<packetio::Opened>>,
    sockets: Sockets,
    sinks: Arc<Sinks>,
}

/// The running flow workers, and what the control thread needs.
struct Started {
    supervisor: Supervisor,
    recorder: Option<Recorder>,
    host: Arc<HostStats>,
    state: Arc<SharedState>,
}

impl Opened {
    fn open(plan: &Plan<'_>, packets: &PacketSide) -> Result<Opened, Failure> {
        let config = plan.config;
        let pair = pair::hold(&config.io)?;
        let ports = ports::open(&config.io, packets.flow_managers.len())?;
        let sockets = Sockets::bind(&config.control)?;
        // No thread runs yet, and everything that needs more privileges is open.
        enter_sandbox(plan)?;
        let sinks = Sinks::start(&sinks::Start {
            config,
            classes: &packets.classes,
            records: records_path(plan),
            record_series: plan.args.output.series,
            is_served: true,
            replay: None,
        })?;
        Ok(Opened {
            pair,
            ports,
            sockets,
            sinks,
        })
    }

    /// Starts the flow workers, and a helper that opens the first model.
    fn start(
        self,
        plan: &Plan<'_>,
        runtime: &Runtime,
        cores: &Cores,
        packets: PacketSide,
        bundle: Bundle,
        options: FlowOptions,
    ) -> Result<(Started, Option<pair::Pair>), Failure> {
        let (config, classes) = (plan.config, packets.classes.clone());
        let (signals, hangups) =
            runtime.block_on(async { Ok::<_, Failure>((Signals::new()?, hangups()?)) })?;
        let state = Arc::new(SharedState::new(&bundle, config));
        let facts = facts(plan, &state, &classes);
        let recorder = record(plan, &bundle, &classes, options)?;
        let workers = packets.flow_managers.len();
        let woken = config.pipeline.layout.analytics_managers * config.pipeline.instances;
        let (run, events) = Run::new(workers, woken);
        let run = Arc::new(run);
        let io = worker_io(self.ports, config, &run, &self.sinks);
        let start = WorkerStart {
            cores,
            run: &run,
            recorder: recorder.as_ref(),
            is_watched: true,
        };
        let threads =
            start.flow_workers(packets.flow_managers, io, options.effect, limits(config))?;
        wait_until_moving(&run);
        let (helpers, run_guard) = Helpers::new(cores, state.clone());
        let live = LiveStart {
            what: what(config),
            hangups,
            opening: ModelOpening::start(
                &helpers,
                config,
                &bundle,
                packets.series,
                recorder.as_ref(),
            )?,
            analytics_parts: AnalyticsParts {
                reloader: reloader(
                    plan,
                    &helpers,
                    &classes,
                    threads.settings,
                    &self.sinks,
                    recorder.clone(),
                ),
                helpers,
                bundle,
                run: run.clone(),
                recorder: recorder.clone(),
            },
            run_guard,
            sinks: self.sinks.clone(),
            last_within: limits(config).handover + config.records.drain_within,
        };
        let host = Arc::new(HostStats::new(&config.io.interfaces));
        let sinks = self.sinks;
        let collector = Collector::new(threads.watched, Vec::new(), host.clone(), sinks.clone());
        let supervisor = Supervisor {
            live: Some(Live::new(live, &run)),
            run,
            outcomes: threads.outcomes,
            workers,
            events,
            signals,
            control: Some(ControlPlane {
                sockets: self.sockets,
                facts,
                collector,
            }),
            serving: None,
            sinks,
            progress: None,
            holds: false,
        };
        let started = Started {
            supervisor,
            recorder,
            host,
            state,
        };
        Ok((started, self.pair))
    }
}

/// A short description of the run.
fn what(config: &Config) -> String {
    let interfaces = config.io.interfaces.join(", ");
    format!("{} on {interfaces}", config.io.mode.name())
}

fn limits(config: &Config) -> Limits {
    Limits {
        burst: config.io.burst.min(config.ring.slots / 4),
        handover: BLOCK_SLACK + 2 * Duration::from_millis(config.io.block_timeout_ms.into()),
        give_up_after: config.io.give_up_after,
    }
}

/// The parts of each flow worker.
fn worker_io(
    ports: Vec<Vec<packetio::Opened>>,
    config: &Config,
    run: &Arc<Run>,
    sinks: &Sinks,
) -> Vec<WorkerIo> {
    let parts = ports.into_iter().enumerate().map(|(number, ports)| {
        let (rx, tx): (Vec<_>, Vec<_>) = ports.into_iter().map(|port| (port.rx, port.tx)).unzip();
        let tx: Vec<Box<dyn Tx>> = tx.into_iter().flatten().collect();
        // Only mode inline sends, and it has exactly two interfaces.
        let egress = <[Box<dyn Tx>; 2]>::try_from(tx).ok();
        let egress = egress.filter(|_| config.io.mode == IoMode::Inline);
        let forward = |ports| Box::new(Forward::new(ports, run.clone(), number)) as Box<dyn Egress>;
        WorkerIo {
            ports: rx,
            egress: egress.map(forward),
            clock: Clock::live(),
            sinks: sinks.worker_halves(),
        }
    });
    parts.collect()
}

/// Waits until each flow worker has finished a round. Only then may a library be loaded: meanwhile glibc holds a lock that
/// a starting thread needs for its first `__cxa_thread_atexit_impl`, so nothing would be forwarded.
fn wait_until_moving(run: &Run) {
    let began = Instant::now();
    while run.rounds().any(|rounds| rounds == 0) && began.elapsed() < MOVING_WITHIN {
        std::thread::sleep(dataplane::run::PAUSE);
    }
}

/// A function that builds the reload thread's state from a swapper.
fn reloader(
    plan: &Plan<'_>,
    helpers: &Helpers,
    classes: &Arc<[String]>,
    workers: Vec<SettingsSender>,
    sinks: &Arc<Sinks>,
    recorder: Option<Recorder>,
) -> Box<dyn FnOnce(Swapper) -> Reloader> {
    let (sources, running) = (plan.sources.clone(), plan.loaded.clone());
    let (helpers, classes, sinks) = (helpers.clone(), classes.clone(), sinks.clone());
    Box::new(move |swapper| Reloader {
        sources,
        running,
        state: helpers.state().clone(),
        helpers,
        classes,
        swapper,
        workers,
        sinks,
        notifier: Notifier::from_environment(),
        undo: None,
        recorder,
    })
}

/// Starts the recording, if `--record` asks for one.
fn record(
    plan: &Plan<'_>,
    bundle: &Bundle,
    classes: &[String],
    options: FlowOptions,
) -> Result<Option<Recorder>, Failure> {
    let (config, args) = (plan.config, plan.args);
    let Some(dir) = &args.record else {
        return Ok(None);
    };
    let flow = flow_config(
        config,
        series_task(bundle),
        options,
        dscp_by_class(config, bundle)?,
    );
    let configuration = plan.loaded.effective().to_toml(false);
    let header = recording::Header::new(config, configuration, bundle, classes, &flow);
    let recorder = Recorder::start(&recording::Plan {
        dir,
        max_bytes: u64::from(args.record_max_mib) << 20,
        header: &header,
    })?;
    Ok(Some(recorder))
}

/// Drops the privileges that are no longer needed.
fn enter_sandbox(plan: &Plan<'_>) -> Result<(), Failure> {
    let config = plan.config;
    if !config.sandbox {
        info!("sandbox: off, all privileges are kept (process.sandbox = false)");
        return Ok(());
    }
    let is_accelerator = |device: &Device| {
        !matches!(
            device.provider,
            Provider::Simulated | Provider::Onnx(accel::onnx::Provider::Cpu)
        )
    };
    let http = match &config.control.http {
        Some(HttpPlace::Unix(path)) => Some(path.as_path()),
        _ => None,
    };
    let sockets = http.into_iter().chain(config.control.socket.as_deref());
    let read = plan.sources.file().into_iter();
    let recording = plan.args.record.as_deref();
    if let Some(dir) = recording {
        recording::make(dir)?;
    }
    let recording = recording.map(|dir| dir.join(recording::HEADER_FILE));
    let sinks = sinks::rights(config, records_path(plan));
    let written = sinks.written.iter().map(PathBuf::as_path);
    sandbox::enter(&sandbox::Needs {
        capabilities: sinks.capabilities,
        has_accelerator: config.accel.devices.iter().any(is_accelerator),
        written: written.chain(recording.as_deref()).collect(),
        sockets: sockets.collect(),
        read: read
            .chain([plan.bundle.as_path()])
            .chain(config.accel.library.as_deref())
            .collect(),
    })
}

fn log_start(config: &Config, bundle: &Bundle) {
    let devices = config.accel.devices.iter();
    let devices: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
    info!(
        "fenxi {} is starting: {} on {}, model {} {}, layout {} x{}, devices {}",
        env!("CARGO_PKG_VERSION"),
        config.io.mode.name(),
        config.io.interfaces.join(", "),
        bundle.name(),
        bundle.version(),
        config.pipeline.layout,
        config.pipeline.instances,
        devices.join(", ")
    );
}

/// Where records go.
fn records_path<'a>(plan: &'a Plan<'_>) -> Option<&'a Path> {
    let configured = plan.config.records.path.as_deref();
    plan.args.output.flows.as_deref().or(configured)
}

fn facts(plan: &Plan<'_>, state: &Arc<SharedState>, classes: &Arc<[String]>) -> Facts {
    let config = plan.config;
    let rings = config.pipeline.layout.rings().len();
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        state: state.clone(),
        labels: LabelNames::new(classes),
        ports: config.io.interfaces.clone(),
        ports_up_least: Some(
            match (config.control.ready_without_interfaces, config.io.mode) {
                (true, _) => 0,
                // Packets that come in on one interface leave by the other.
                (false, IoMode::Inline) => 2,
                (false, _) => 1,
            },
        ),
        table_entries: config.flow.max_flows as u64,
        ring_slots: (rings * config.ring.slots) as u64,
        started: Instant::now(),
    }
}
