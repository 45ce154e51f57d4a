//! A live run: its threads, and what they leave behind.
//!
//! ```text
//! control (tokio): signals, service manager, control plane
//! flow manager:    rings ─ walk ─ out again (inline) ─ settle ──┬─ records thread
//!                            │ ring   ▲ label words             └─ marks thread (mark)
//! analytics:                 └─ rounds┘
//! ```
//!
//! The packets' side starts first: where fenxi forwards, it does so before a device is open and warm, and until then series
//! are shed. What is wrong with a device still ends the run, before it is said to be ready.

mod control;
mod ending;
mod fence;
mod lane;
mod notify;
mod pair;
mod ports;
mod reload;
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
use crate::pipeline::threads::Cores;
use crate::pipeline::{self, FlowOptions, PacketSide};
use crate::records::{RecordSender, RecordSink};
use crate::replay::{Outcome, Table};
use ending::Ending;
use notify::Notifier;
use reload::Reloader;
use threads::{Labelling, Starting};

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

    let table = Table::of(config, &packets.flow_managers);
    let (classes, series) = (packets.classes.clone(), packets.series);
    let in_use = Arc::new(InUse::new(&bundle, config));
    let facts = Facts {
        records: counts.clone(),
        ..facts(plan, &in_use, &classes)
    };
    let starting = Starting {
        config,
        cores: &cores,
        classes: classes.clone(),
    };
    let mut lanes = starting.lanes(packets.flow_managers, ports, marks.clone(), records)?;
    lanes.wait_until_moving();
    let run = &lanes.shared.run;
    let labelling = match Labelling::start(config, &cores, &bundle, &in_use, series, run) {
        Ok(labelling) => labelling,
        Err(failure) => return Err(lanes.give_up(failure)),
    };
    let reloads = reload::Running::start(Reloader {
        sources: plan.sources.clone(),
        running: plan.loaded.clone(),
        cores: cores.clone(),
        classes: classes.clone(),
        exchange: labelling.exchange,
        lanes: std::mem::take(&mut lanes.settings),
        marks: marks.clone(),
        in_use,
        records: sink.as_ref().and_then(RecordSink::reopener),
        notifier: Notifier::from_environment(),
        undo: None,
    })?;
    let beside = Arc::new(Beside::new(&config.io.interfaces, marks.clone()));
    let collector = Collector::new(lanes.watched, labelling.watched, beside.clone());
    let control = control::Control {
        sockets,
        facts,
        collector,
        sample: lanes.sample,
        errands: reloads.errands(),
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

    let (series, swaps) = ending::join(labelling.threads, reloads)?;
    let recorded = sink.map_or(Ok(()), |sink| sink.finish_in_time());
    let ending = Ending {
        series,
        swaps,
        cores,
        classes,
        table,
        records_failed: counts.failed(),
        marks,
        beside,
        wall,
        failure: recorded.err(),
    };
    Ok(ending.outcome(config, ended))
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
    fence::raise(&fence::Needs {
        mode: config.io.mode,
        has_accelerator: config.accel.devices.iter().any(is_accelerator),
        written: records_path(plan)
            .filter(|path| !is_dash(path))
            .into_iter()
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
    let marks = mark::ClassMarks::new(&config.mark, classes)
        .map_err(|error| Failure::config(error.to_string()))?;
    let writer = mark::Writer::start(marks, config.mark.queue).map_err(|error| match error {
        mark::StartError::Capability => Failure::not_allowed(error.to_string()),
        error => Failure::unavailable(error.to_string()),
    })?;
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
