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
mod lane;
mod notify;
mod ports;
mod reload;
mod settings;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use accel::Bundle;
use analytics::Counters;
use flowmgr::Effect;
use tokio::sync::mpsc;
use tracing::info;

use crate::cli::RunArgs;
use crate::config::checked::IoMode;
use crate::config::{Config, Loaded, Sources};
use crate::control::beside::{Beside, NicDrops};
use crate::control::collector::{AnalyticsSnapshot, Collector, FlowSnapshot, Watched};
use crate::control::flows::{FlowSample, FlowTap, flow_sample};
use crate::control::in_use::{InUse, Swaps};
use crate::control::sums::PortSums;
use crate::control::{Facts, LabelNames, Sockets};
use crate::exit::Failure;
use crate::mark;
use crate::pipeline::bell::Bell;
use crate::pipeline::exchange::Exchange;
use crate::pipeline::threads::{Cores, Thread, pin};
use crate::pipeline::worker::{self, Run};
use crate::pipeline::{self, FlowOptions, PacketSide, SeriesSide};
use crate::records::{RecordSender, RecordSink};
use crate::replay::{LaneEnd, LiveSums, Outcome, Table};
use lane::{Lane, LaneOutcome, Shared};
use notify::Notifier;
use ports::{LanePorts, News};
use reload::Reloader;
use settings::{SettingsSender, settings};

/// How long the end of a run waits for marks that are still to be written.
const MARKS_WITHIN: Duration = Duration::from_secs(1);

/// The kernel looks at blocks that are not full once per timeout, older ones in ticks of up to 10 ms.
const BLOCK_SLACK: Duration = Duration::from_millis(10);

/// How long it waits for records that are still to be written, where nobody takes them.
const RECORDS_WITHIN: std::time::Duration = std::time::Duration::from_secs(2);

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

/// The running packets' side.
struct Lanes {
    outcomes: mpsc::Receiver<LaneOutcome>,
    watched: Vec<Watched<FlowSnapshot>>,
    sample: FlowSample,
    news: mpsc::UnboundedReceiver<News>,
    settings: Vec<SettingsSender>,
    shared: Arc<Shared>,
}

/// The running series' side.
struct Labelling {
    threads: Vec<JoinHandle<Counters>>,
    watched: Vec<Watched<AnalyticsSnapshot>>,
    exchange: Exchange,
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
    let ports = ports::open(&config.io, packets.flow_managers.len())?;
    let marks = open_marks(config, &packets.classes)?;
    let sockets = Sockets::bind(&config.control)?;
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
    let mut ended = control::run(&runtime, control, lanes.outcomes)?;
    let wall = lanes.shared.run.started.elapsed();

    let (series, swaps) = finish(labelling.threads, reloads)?;
    let recorded = sink.map_or(Ok(()), |sink| sink.finish_within(RECORDS_WITHIN));
    let mut outcome = Outcome {
        flows: flowmgr::Counters::default(),
        series,
        layout: config.pipeline.layout,
        instances: config.pipeline.instances,
        cores,
        swaps,
        classes,
        table,
        bytes: 0,
        packets_by_lane: Vec::new(),
        records_dropped: counts.failed(),
        live: None,
        wall,
        interrupted: false,
        failure: recorded.err(),
    };
    if let Some(marks) = &marks {
        flush(marks);
    }
    let mut sums = PortSums::default();
    ended.sort_by_key(|lane| lane.number);
    for lane in ended {
        outcome.flows.merge(&lane.counters);
        outcome.records_dropped += lane.records_dropped;
        let ports = PortSums::sum(&lane.ports);
        outcome.packets_by_lane.push(ports.received);
        sums.merge(&ports);
        outcome.failure = [outcome.failure.take(), lane.failure]
            .into_iter()
            .flatten()
            .reduce(Failure::and);
    }
    outcome.bytes = sums.bytes;
    let dropped = beside.dropped();
    let dropped = dropped.iter().map(NicDrops::total).sum();
    outcome.live = Some(live_sums(config.io.mode, &sums, dropped, marks.as_deref()));
    Ok(outcome)
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

/// Waits a moment until the last marks are written.
fn flush(marks: &mark::Writer) {
    let began = std::time::Instant::now();
    while marks.waiting() > 0 && began.elapsed() < MARKS_WITHIN {
        std::thread::sleep(worker::REST);
    }
}

fn live_sums(
    mode: IoMode,
    sums: &PortSums,
    nic_dropped: u64,
    marks: Option<&mark::Writer>,
) -> LiveSums {
    let marks = marks.map_or_else(mark::Counts::none, mark::Writer::counts);
    LiveSums {
        mode: mode.name(),
        offered: sums.offered,
        received: sums.received,
        merged: sums.merged,
        kernel_dropped: sums.dropped,
        unread: sums.waiting,
        nic_dropped,
        sent: sums.sent,
        unsent: sums.unsent(),
        marks_asked: marks.asked,
        marks_written: marks.written,
        marks_not_found: marks.not_found,
        marks_failed: marks.failed(),
        marks_dropped: marks.dropped,
    }
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

/// The record thread, where `--flows` or the configuration asks for records. It fails alone: the traffic goes on.
fn open_records(
    plan: &Plan<'_>,
    classes: &Arc<[String]>,
) -> Result<(Option<RecordSink>, RecordSender), Failure> {
    let (records, output) = (&plan.config.records, &plan.args.output);
    let Some(path) = output.flows.as_deref().or(records.path.as_deref()) else {
        return match output.series {
            true => Err(Failure::usage(
                "--series puts series into records, and there are none; add --flows FILE or set records.path",
            )),
            false => Ok((None, RecordSender::nobody())),
        };
    };
    let (sink, sender) =
        RecordSink::start_live(path, records.rotate, classes.clone(), records.queue)?;
    Ok((Some(sink), sender))
}

/// What the lanes start with.
struct Starting<'a> {
    config: &'a Config,
    cores: &'a Cores,
    classes: Arc<[String]>,
}

impl Starting<'_> {
    fn lanes(
        &self,
        managers: Vec<(Thread, flowmgr::Manager)>,
        ports: Vec<LanePorts>,
        marks: Option<Arc<mark::Writer>>,
        records: RecordSender,
    ) -> Result<Lanes, Failure> {
        let (news, told) = mpsc::unbounded_channel();
        let (ended, outcomes) = mpsc::channel(managers.len());
        let interfaces = self.config.io.interfaces.iter();
        let layout = &self.config.pipeline.layout;
        let shared = Arc::new(Shared {
            run: Arc::new(Run {
                bell: Bell::new(layout.analytics_managers * self.config.pipeline.instances),
                ..Run::new(managers.len())
            }),
            // The analytics side makes room once a ring is three quarters full.
            burst: self.config.io.burst.min(self.config.ring.slots / 4),
            block_timeout: BLOCK_SLACK
                + 2 * Duration::from_millis(self.config.io.block_timeout_ms.into()),
            merged: lane::Merged {
                is_known: interfaces.map(|_| AtomicBool::new(false)).collect(),
                is_known_unsplit: AtomicBool::new(false),
            },
            give_up_after: self.config.io.give_up_after,
            stop: AtomicBool::new(false),
            rounds: managers.iter().map(|_| AtomicU64::new(0)).collect(),
            news,
        });
        let (tap, sample) = flow_sample(self.classes.clone());
        let (mut watched, mut senders) = (Vec::new(), Vec::new());
        for (number, ((thread, manager), ports)) in managers.into_iter().zip(ports).enumerate() {
            let core = self.cores.of_thread(&thread);
            let (end, watch) = watch(&thread, core, &manager, ports.receivers.len(), &tap);
            watched.push(watch);
            let (records, shared) = (records.another(), shared.clone());
            let (sender, port) = settings();
            senders.push(sender);
            let marks = marks.clone();
            let lane = Lane::new(number, ports, manager, marks, records, end, port, shared);
            let ended = ended.clone();
            spawn(&thread, move || {
                pin(core);
                // The other side only goes away with the whole program.
                let _ = ended.blocking_send(lane.run());
            })?;
        }
        Ok(Lanes {
            outcomes,
            watched,
            sample,
            news: told,
            settings: senders,
            shared,
        })
    }
}

fn watch(
    thread: &Thread,
    core: Option<usize>,
    manager: &flowmgr::Manager,
    ports: usize,
    tap: &FlowTap,
) -> (LaneEnd, Watched<FlowSnapshot>) {
    let empty = || FlowSnapshot::of(manager.counters(), ports);
    let (publisher, watched) = Watched::new(thread.clone(), core, empty);
    let tap = tap.clone();
    (LaneEnd { publisher, tap }, watched)
}

fn spawn<T: Send + 'static>(
    thread: &Thread,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    std::thread::Builder::new()
        .name(thread.to_string())
        .spawn(work)
        .map_err(|error| Failure::unavailable(format!("no thread {thread}: {error}")))
}

impl Lanes {
    /// The series' side could not be started: ends the packets' side, too.
    fn give_up(mut self, failure: Failure) -> Failure {
        self.shared
            .run
            .analytics_died
            .store(true, Ordering::Release);
        self.shared.stop.store(true, Ordering::Relaxed);
        while self.outcomes.blocking_recv().is_some() {}
        failure
    }
}

impl Labelling {
    /// Opens the devices and starts the threads.
    fn start(
        config: &Config,
        cores: &Cores,
        bundle: &Bundle,
        in_use: &Arc<InUse>,
        series: SeriesSide,
        run: &Arc<Run>,
    ) -> Result<Labelling, Failure> {
        let managers = series.managers(config, bundle, cores)?;
        let (exchange, ports) = Exchange::new(cores, bundle, in_use.clone(), &managers);
        let (mut threads, mut watched) = (Vec::new(), Vec::new());
        for ((thread, manager), port) in managers.into_iter().zip(ports) {
            let core = cores.of_thread(&thread);
            let empty = || AnalyticsSnapshot::of(&manager);
            let (publisher, watch) = Watched::new(thread.clone(), core, empty);
            watched.push(watch);
            let ends = worker::Ends {
                port: Some(port),
                publisher: Some(publisher),
            };
            let run = run.clone();
            threads.push(spawn(&thread, move || {
                pin(core);
                worker::work(manager, false, run, ends)
            })?);
        }
        Ok(Labelling {
            threads,
            watched,
            exchange,
        })
    }
}

/// Waits for the series' side, once the flow managers have ended.
fn finish(
    threads: Vec<JoinHandle<Counters>>,
    reloads: reload::Running,
) -> Result<(Counters, Swaps), Failure> {
    let died = || Failure::software("an analytics thread died");
    let mut sum: Option<Counters> = None;
    for thread in threads {
        let counters = thread.join().map_err(|_| died())?;
        match &mut sum {
            Some(sum) => sum.merge(&counters),
            None => sum = Some(counters),
        }
    }
    Ok((sum.ok_or_else(died)?, reloads.finish()?))
}

fn facts(plan: &Plan<'_>, in_use: &Arc<InUse>, classes: &Arc<[String]>) -> Facts {
    let config = plan.config;
    let rings = config.pipeline.layout.rings().len();
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        in_use: in_use.clone(),
        labels: LabelNames::new(classes),
        ports: config.io.interfaces.clone(),
        table_entries: config.flow.max_flows as u64,
        ring_slots: (rings * config.ring.slots) as u64,
        records: Arc::default(),
        started: std::time::Instant::now(),
    }
}
