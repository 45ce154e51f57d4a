//! A replay: chooses the parts of its workers and starts them.
//!
//! ```text
//! control (tokio): signals, progress; with --control the control plane
//! reader:          captures ─ RSS hash ─ batches, where there are several flow workers
//! flow worker:     captures or batches ─ process ─ writer ─ settle ──┐
//!                                            │ ring   ▲ label words  ├─ records thread
//! analytics worker:                          └─ rounds┘              │
//! ```

mod outputs;
mod source;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::Config;
use dataplane::bundle::local_context;
use dataplane::clock::{Clock, Pace};
use dataplane::egress::{Egress, TaggedWriter};
use dataplane::flow_worker::Limits;
use dataplane::inline::{self, Wants};
use dataplane::pipelines::{FlowOptions, Pipelines};
use dataplane::placement::Cores;
use dataplane::rules::RulesInForce;
use dataplane::run::Run;
use dataplane::state::{SharedState, Swaps};
use dataplane::swap::{self, PeriodicSwapper, Ports};
use dataplane::tasks::{OpenTask, TaskNames};
use flowmgr::{Effect, SeriesShare};

use crate::cli::{ReplayArgs, Speed};
use crate::control::collector::Collector;
use crate::control::explain;
use crate::control::flow_tables::FlowTables;
use crate::control::{Facts, HostStats, Plane, Sockets};
use crate::exit::Failure;
use crate::names::{self, Names};
use crate::outcome::{RunOutcome, Table};
use crate::rules::{Rules, Traffic};
use crate::servers::Memories;
use crate::services::Replayed;
use crate::signals::Signals;
use crate::sinks::{self, Interfaces, RecentFlows, SharedHosts, Sinks, broadcast};
use crate::supervise::{self, Progress, Supervisor};
use crate::workers::{WorkerIo, WorkerStart};
use learn::SharedHeld;
use source::Source;

/// Runs a replay to its end.
///
/// # Errors
/// The replay cannot start. Later failures are in [`RunOutcome::failure`], with the counters up to
/// that point.
pub fn run(config: &Config, args: &ReplayArgs) -> Result<RunOutcome, Failure> {
    outputs::check(args, config)?;
    check_write(config, args)?;
    let mut tasks = OpenTask::open_all(config, args.model.as_deref())?;
    let config = &inline::choose(config, &mut tasks, Wants::Same)?;
    let cores = Cores::from_config(config);
    cores.check()?;
    let workers = config.pipeline.instances * config.pipeline.layout.flow_managers;
    check_servers(&tasks, workers)?;
    let (run, events) = Run::new(workers, 0);
    let run = Arc::new(run);
    let source = Source::open(args, run.clone())?;
    let options = FlowOptions {
        effect: effect(args),
        record_series: match args.explain {
            Some(_) => SeriesShare::ALL,
            None => args.output.recorded_series(config),
        },
    };
    let mut pipelines = Pipelines::for_replay(config, &tasks, &cores, options)?;
    let by_packets = options.effect != Effect::Arrival;
    let managers = &mut pipelines.flow_managers;
    let services = Replayed::open(config, &tasks, by_packets, managers)?;
    let names = pipelines.names.clone();
    let rules = Rules::load(config, &OpenTask::all_labels(&tasks), Traffic::Replay)?;
    let mut egress = open_tagged(args, &pipelines, rules.at_start())?;
    let recent = match &args.explain {
        Some(query) => RecentFlows::only(explain::wanted(query)),
        None => RecentFlows::new(Interfaces::default()),
    };
    let sinks = open_sinks(config, args, &run, &tasks, &names, &recent)?;
    let state = Arc::new(SharedState::new(&tasks));
    if rules.at_start().is_some() {
        state.update(|state| state.rules = rules.state());
    }
    let sockets = args.control.then(|| Sockets::bind(&config.control));
    let sockets = sockets.transpose()?;
    // The summary does not show behaviours, and they take a tenth of a replay's CPU time.
    let shows = !sinks.is_empty() || rules.at_start().is_some() || sockets.is_some();
    let behaviours = config.behaviour.in_use().filter(|_| shows);
    if behaviours.is_none() {
        let managers = pipelines.flow_managers.iter_mut();
        managers.for_each(|(_, manager)| manager.forgo_behaviours());
    }

    let table = Table::new(config, behaviours, &tasks, &pipelines.flow_managers);
    let ports = vec!["capture".to_owned()];
    let facts = Facts::new(config, state.clone(), &names, ports, None);
    let runtime = supervise::runtime()?;
    let inside = runtime.enter();
    let signals = Signals::new()?;
    let progress = Progress::new(source.read.clone(), source.size);
    let (inputs, reader) = source.spread(workers, pace(args))?;
    let (swapper, mut ports) = start_swapper(config, args, &cores, &tasks[0], &state)?;
    let start = WorkerStart {
        cores: &cores,
        run: &run,
        recorder: None,
        is_watched: sockets.is_some(),
        rules: rules.at_start(),
        by_server: None,
    };
    let gathers = args.speed == Speed::Max;
    let (analytics, analytics_watched) =
        start.analytics_workers(pipelines.analytics, &mut ports, gathers)?;
    let io = inputs.into_iter().map(|port| WorkerIo {
        ports: vec![port],
        // With `--write` there is only one worker.
        egress: egress.take(),
        flows_belong_to_ports: false,
        clock: Clock::Packets,
        sinks: sinks.worker_halves(),
        servers: None,
        services: None,
    });
    let io: Vec<WorkerIo> = io.collect();
    let limits = limits(config, args, &rules);
    let how = (options.effect, limits);
    let flow = start.flow_workers(pipelines.flow_managers, io, how, &mut ports)?;
    let host = Arc::new(HostStats::new(&[]));
    let series = flow.answering.into_iter().chain(analytics_watched).collect();
    let collector = Collector::new(flow.watched, series, host, sinks.clone());
    let no_names = Names::default();
    let tables = FlowTables::new(flow.lookers, recent.clone(), no_names, &config.host_networks);
    let serving = sockets.map(|sockets| Plane::start(sockets, facts, collector, tables));
    let supervisor = Supervisor {
        run: run.clone(),
        outcomes: flow.outcomes,
        workers,
        events,
        signals,
        serving: serving.transpose()?,
        sinks: sinks.clone(),
        live: None,
        progress: Some(progress),
        holds: args.hold,
    };
    drop(inside);
    let ended = runtime.block_on(supervisor.serve())?;
    let mut outcome = RunOutcome::nothing(config, cores, &tasks, table);
    outcome.recent = Some(recent);
    outcome.wall = ended.at.duration_since(run.started);
    outcome.interrupted = ended.is_interrupted;
    outcome.tasks = join_analytics(analytics)?;
    outcome.swaps = swapper.map_or_else(|| Ok(Swaps::default()), PeriodicSwapper::finish)?;
    outcome.add_workers(ended.workers);
    let read = reader.map_or(Ok(()), source::Reader::join);
    let failures = [read, sinks.finish(ended.at)];
    outcome.sinks = sinks.reports();
    outcome.services = services.rows();
    outcome.add_failures(failures.into_iter().filter_map(Result::err));
    Ok(outcome)
}

/// Each flow manager has a memory of servers of its own, so what models are told would depend on
/// the layout.
fn check_servers(tasks: &[OpenTask], workers: usize) -> Result<(), Failure> {
    let local = tasks.iter().find_map(|task| local_context(&task.bundle));
    match local {
        Some(number) if workers > 1 => Err(Failure::config(format!(
            "pipeline.layout: a replay has one flow manager where a model reads {}, because each \
             manager remembers only servers of its own flows; set pipeline.layout = \"1:1:1\" and \
             pipeline.instances = 1",
            number.name()
        ))),
        _ => Ok(()),
    }
}

/// Refuses `--write` with several flow workers: the order of their packets would not be
/// reproducible.
fn check_write(config: &Config, args: &ReplayArgs) -> Result<(), Failure> {
    let pipeline = &config.pipeline;
    let workers = pipeline.instances * pipeline.layout.flow_managers;
    if args.write.is_some() && workers > 1 {
        return Err(Failure::usage(format!(
            "--write must keep the order of the packets, which {workers} flow managers cannot do; \
            set a pipeline.layout with one, such as 1:{}:{}, and pipeline.instances = 1",
            pipeline.layout.analytics_managers, pipeline.layout.devices
        )));
    }
    Ok(())
}

fn limits(config: &Config, args: &ReplayArgs, rules: &Rules) -> Limits {
    // `--write` looks up rules that need a label at the end of the burst, when a flow may know more
    // than at the packet; so a burst has one packet.
    let asks_for_labels = rules.in_force.policy.label_tasks() != 0;
    let burst = if args.write.is_some() && asks_for_labels { 1 } else { config.io.burst };
    Limits {
        // A ring has room for a burst whose packets each complete a series of each depth.
        burst: burst.min(config.ring.slots / cring::TASKS_MAX),
        handover: Duration::ZERO,
        give_up_after: Duration::MAX,
    }
}

fn pace(args: &ReplayArgs) -> Option<Pace> {
    match args.speed {
        Speed::Max => None,
        Speed::Times(factor) => Some(Pace::new(factor)),
    }
}

/// Labels take effect by packet time at full speed, otherwise when they arrive.
fn effect(args: &ReplayArgs) -> Effect {
    match args.speed {
        Speed::Max => Effect::PacketTime { delay_us: i64::from(args.label_delay_ms) * 1000 },
        Speed::Times(_) => Effect::Arrival,
    }
}

/// The writer of `--write`.
fn open_tagged(
    args: &ReplayArgs,
    pipelines: &Pipelines,
    rules: Option<&RulesInForce>,
) -> Result<Option<Box<dyn Egress>>, Failure> {
    let (Some(output), Some((_, manager))) = (&args.write, pipelines.flow_managers.first()) else {
        return Ok(None);
    };
    let writer = TaggedWriter::create(output, manager, rules)?;
    Ok(Some(Box::new(writer)))
}

fn open_sinks(
    config: &Config,
    args: &ReplayArgs,
    run: &Arc<Run>,
    tasks: &[OpenTask],
    names: &Arc<[TaskNames]>,
    recent: &RecentFlows,
) -> Result<Arc<Sinks>, Failure> {
    let hosts = SharedHosts::from_config(config, tasks);
    let learn_socket = broadcast::bind("learn.socket", config.learn.socket.as_deref())?;
    Sinks::start(&sinks::Start {
        config,
        names,
        labels: &OpenTask::all_labels(tasks),
        hosts: hosts.as_ref(),
        host_names: &names::Opened::default(),
        records: args.output.flows.as_deref(),
        record_socket: None,
        learn_socket: learn_socket.as_ref(),
        weight_sockets: &[],
        by_server: None,
        held: &SharedHeld::default(),
        servers: &Memories::default(),
        services: &Mutex::default(),
        record_series: args.output.series,
        recent: (args.control || args.explain.is_some()).then_some(recent),
        marks_by_kernel: None,
        replay: Some(sinks::ReplayStart {
            waits: args.speed == Speed::Max,
            // Packets are still written if writing records has failed.
            stopped: args.write.is_none().then(|| run.clone()),
        }),
    })
}

/// Starts the thread of `--swap-model`; returns it with the analytics workers' channels.
fn start_swapper(
    config: &Config,
    args: &ReplayArgs,
    cores: &Cores,
    task: &OpenTask,
    state: &Arc<SharedState>,
) -> Result<(Option<PeriodicSwapper>, Ports), Failure> {
    let Some(other) = &args.swap_model else { return Ok((None, Ports::default())) };
    let swap = swap::SwapPlan {
        bundle: other.clone(),
        every: Duration::from_millis(u64::from(args.swap_every)),
    };
    let (swapper, ports) = PeriodicSwapper::start(swap, config, cores, task, state.clone())?;
    Ok((Some(swapper), ports))
}

fn join_analytics(
    threads: Vec<std::thread::JoinHandle<Vec<analytics::Counters>>>,
) -> Result<Vec<analytics::Counters>, Failure> {
    let mut sums: Vec<analytics::Counters> = Vec::new();
    for thread in threads {
        let died = |_| Failure::software("an analytics thread died");
        let tasks = thread.join().map_err(died)?;
        sums.resize_with(tasks.len(), analytics::Counters::none);
        let both = sums.iter_mut().zip(&tasks);
        both.for_each(|(sum, task)| sum.merge(task));
    }
    Ok(sums)
}
