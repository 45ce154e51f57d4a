//! A live run: its threads, and what they leave behind.
//!
//! ```text
//! control (tokio): signals, service manager, control plane
//! flow manager:    rings ─ walk ─ out again (inline) ─ settle ──┬─ records thread
//!                            │ ring   ▲ label words             └─ marks thread (mark)
//! analytics:                 └─ rounds┘
//! ```
//!
//! The packets' side and the control thread start first: where fenxi forwards, it does so before a device is open and warm,
//! and signals, health and `fenxi ctl` are served. Until a helper has opened the first model series are shed. What is wrong
//! with a device still ends the run, before it is said to be ready.
//!
//! The end has a bound for each step, 5 s together: see `docs/operations.md`.
//!
//! `fenxi check` goes through the same steps without starting anything (`commands/check/start.rs`): a new step of the start
//! belongs there, too.

mod clock;
mod control;
mod ending;
mod fence;
mod lane;
mod notify;
pub mod pair;
pub mod ports;
mod reload;
mod series;
mod settings;
mod threads;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use accel::Bundle;
use flowmgr::Effect;
use tracing::info;

use crate::cli::{RunArgs, is_dash};
use crate::config::checked::{Device, HttpPlace, IoMode, Provider};
use crate::config::{Config, Loaded, Sources};
use crate::control::beside::Beside;
use crate::control::collector::Collector;
use crate::control::in_use::InUse;
use crate::control::{Facts, LabelNames, Sockets};
use crate::exit::Failure;
use crate::mark;
use crate::pipeline::exchange::Exchange;
use crate::pipeline::helpers::Helpers;
use crate::pipeline::threads::Cores;
use crate::pipeline::{self, FlowOptions, PacketSide};
use crate::recording::{self, Recorder};
use crate::records::{RecordSender, RecordSink};
use crate::replay::{Outcome, Table};
use ending::Ending;
use notify::Notifier;
use reload::Reloader;
use settings::SettingsSender;
use threads::Starting;

/// What to run.
pub struct Plan<'a> {
    /// Where the configuration comes from, for reloads.
    pub sources: Sources,
    /// What was read, for reloads.
    pub loaded: Loaded,
    /// The checked configuration, as it is for live traffic.
    pub config: &'a Config,
    /// The command line.
    pub args: &'a RunArgs,
    /// Folder of the bundle.
    pub bundle: PathBuf,
}

/// Runs until a signal, `fenxi ctl drain`, or until no interface is left.
///
/// # Errors
/// Whatever keeps it from starting. What goes wrong later stands in [`Outcome::failure`], with the sums up to there.
pub fn run(plan: &Plan<'_>) -> Result<Outcome, Failure> {
    let Plan {
        config,
        args,
        bundle,
        ..
    } = plan;
    let cores = Cores::of(config);
    cores.check()?;
    let bundle = pipeline::open_bundle(config, bundle)?;
    pipeline::check_labels(config, &bundle)?;
    say_start(config, &bundle);
    let options = FlowOptions {
        effect: Effect::Arrival,
        record_series: args.output.series,
    };
    let packets = PacketSide::build(config, &bundle, options)?;
    let _pair = pair::hold(&config.io)?;
    let ports = ports::open(&config.io, packets.flow_managers.len())?;
    let sockets = Sockets::bind(&config.control)?;
    // No thread runs yet, and all that needs more rights is open.
    raise_fence(plan)?;
    let marks = open_marks(config, &packets.classes)?;
    let (sink, records) = open_records(plan, &packets.classes)?;
    let counts = sink.as_ref().map(RecordSink::counts).unwrap_or_default();
    let runtime = control::runtime()?;
    let (signals, hangups) = runtime.block_on(async { control::signals() })?;

    let table = Table::of(config, &bundle, &packets.flow_managers);
    let (classes, series) = (packets.classes.clone(), packets.series);
    let in_use = Arc::new(InUse::new(&bundle, config));
    let facts = Facts {
        records: counts.clone(),
        ..facts(plan, &in_use, &classes)
    };
    let recorder = record(plan, &bundle, &classes, options)?;
    let starting = Starting {
        config,
        cores: &cores,
        classes: classes.clone(),
        recorder: recorder.as_ref(),
    };
    let mut lanes = starting.lanes(packets.flow_managers, ports, marks.clone(), records)?;
    lanes.wait_until_moving();
    let (helpers, run_lasts) = Helpers::new(&cores, in_use.clone());
    let beside = Arc::new(Beside::new(&config.io.interfaces, marks.clone()));
    let control = control::Control {
        sockets,
        facts,
        collector: Collector::new(lanes.watched, Vec::new(), beside.clone()),
        sample: lanes.sample,
        opening: series::Opening::start(&helpers, config, &bundle, series, recorder.as_ref())?,
        series: series::Starting {
            helpers: helpers.clone(),
            bundle,
            run: lanes.shared.run.clone(),
            recorder: recorder.clone(),
            reloader: reloader(
                plan,
                &helpers,
                &classes,
                std::mem::take(&mut lanes.settings),
                marks.clone(),
                sink.as_ref(),
                recorder.clone(),
            ),
        },
        run_lasts,
        records_within: config.records.drain_within,
        records: sink.as_ref().and_then(RecordSink::reopener),
        news: lanes.news,
        signals,
        hangups,
        shared: lanes.shared.clone(),
        marks: marks.clone(),
        what: format!(
            "{} on {}",
            config.io.mode.name(),
            config.io.interfaces.join(", ")
        ),
    };
    let ended = control::run(&runtime, control, lanes.outcomes)?;
    let wall = lanes.shared.run.started.elapsed();

    if let Some(recorder) = &recorder {
        recorder.finish();
    }
    let recorded = sink.map_or(Ok(()), |sink| sink.finish_in_time());
    let ending = Ending {
        series: ended.series,
        swaps: in_use.standing().swaps,
        cores,
        classes,
        table,
        records_failed: counts.failed(),
        marks,
        marks_until: ended.at + ending::MARKS_WITHIN,
        beside,
        wall,
        failure: recorded.err(),
    };
    Ok(ending.outcome(config, ended.lanes))
}

/// Puts the thread for reloads together, once there is an exchange of models.
fn reloader(
    plan: &Plan<'_>,
    helpers: &Helpers,
    classes: &Arc<[String]>,
    lanes: Vec<SettingsSender>,
    marks: Option<Arc<mark::Writer>>,
    sink: Option<&RecordSink>,
    recorder: Option<Recorder>,
) -> Box<dyn FnOnce(Exchange) -> Reloader> {
    let (sources, running) = (plan.sources.clone(), plan.loaded.clone());
    let (helpers, classes) = (helpers.clone(), classes.clone());
    let records = sink.and_then(RecordSink::reopener);
    Box::new(move |exchange| Reloader {
        sources,
        running,
        in_use: helpers.in_use().clone(),
        helpers,
        classes,
        exchange,
        lanes,
        marks,
        records,
        notifier: Notifier::from_environment(),
        undo: None,
        recorder,
    })
}

/// The recording, where `--record` asks for one.
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
    let (task, dscp) = (
        pipeline::series_task(bundle),
        pipeline::dscp_by_class(config, bundle)?,
    );
    let flow = pipeline::flow_config(config, task, options, dscp);
    let header = recording::Header::new(plan, bundle, classes, &flow);
    Recorder::start(&recording::Plan {
        dir,
        max_bytes: u64::from(args.record_max_mib) << 20,
        header: &header,
    })
    .map(Some)
}

/// Gives up the rights that are not needed any more.
fn raise_fence(plan: &Plan<'_>) -> Result<(), Failure> {
    let config = plan.config;
    if !config.sandbox {
        info!("sandbox: off, all rights are kept (process.sandbox = false)");
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
    fence::raise(&fence::Needs {
        mode: config.io.mode,
        has_accelerator: config.accel.devices.iter().any(is_accelerator),
        written: records_path(plan)
            .filter(|path| !is_dash(path))
            .into_iter()
            .chain(recording.as_deref())
            .collect(),
        sockets: sockets.collect(),
        read: read
            .chain([plan.bundle.as_path()])
            .chain(config.accel.library.as_deref())
            .collect(),
    })
}

fn say_start(config: &Config, bundle: &Bundle) {
    let devices = config.accel.devices.iter();
    let devices: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
    info!(
        "fenxi {} starts: {} on {}, model {} {}, layout {} x{}, devices {}",
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

/// The writer of marks, in mode mark.
fn open_marks(config: &Config, classes: &[String]) -> Result<Option<Arc<mark::Writer>>, Failure> {
    if config.io.mode != IoMode::Mark {
        return Ok(None);
    }
    let marks = pipeline::class_marks(config, classes)?;
    let writer = mark::Writer::start(marks, config.mark.queue)?;
    Ok(Some(Arc::new(writer)))
}

/// Where records go.
fn records_path<'a>(plan: &'a Plan<'_>) -> Option<&'a Path> {
    let configured = plan.config.records.path.as_deref();
    plan.args.output.flows.as_deref().or(configured)
}

/// The record thread, where `--flows` or the configuration asks for records. It fails alone: the traffic goes on.
fn open_records(
    plan: &Plan<'_>,
    classes: &Arc<[String]>,
) -> Result<(Option<RecordSink>, RecordSender), Failure> {
    let (records, output) = (&plan.config.records, &plan.args.output);
    let Some(path) = records_path(plan) else {
        return match output.series {
            true => Err(Failure::usage(
                "--series puts series into records, and there are none; add --flows FILE or set records.path",
            )),
            false => Ok((None, RecordSender::nobody())),
        };
    };
    let (sink, sender) = RecordSink::start_live(path, records, classes.clone())?;
    Ok((Some(sink), sender))
}

fn facts(plan: &Plan<'_>, in_use: &Arc<InUse>, classes: &Arc<[String]>) -> Facts {
    let config = plan.config;
    let rings = config.pipeline.layout.rings().len();
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        in_use: in_use.clone(),
        labels: LabelNames::new(classes),
        ports: config.io.interfaces.clone(),
        ports_up_least: Some(
            match (config.control.ready_without_interfaces, config.io.mode) {
                (true, _) => 0,
                // What comes in on one leaves by the other.
                (false, IoMode::Inline) => 2,
                (false, _) => 1,
            },
        ),
        table_entries: config.flow.max_flows as u64,
        ring_slots: (rings * config.ring.slots) as u64,
        records: Arc::default(),
        started: Instant::now(),
    }
}
