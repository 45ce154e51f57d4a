//! A replay: its threads, and what they leave behind.
//!
//! ```text
//! control (tokio): signals, progress; with --control the control plane
//! reader:          captures ─ RSS hash ─ parcels, where there are several flow managers
//! flow manager:    captures or parcels ─ walk ─ writer ─ settle ──┐
//!                                         │ ring   ▲ label words  ├─ records thread
//! analytics:                              └─ rounds┘              │
//! ```

mod control;
mod input;
mod labelling;
mod lane;
mod outputs;
pub mod pace;
mod plane;
mod source;
mod tagged;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use accel::Bundle;
use flowmgr::Effect;

use crate::cli::{FaultRates, ReplayArgs, Speed};
use crate::config::Config;
use crate::control::in_use::{InUse, Swaps};
use crate::exit::Failure;
use crate::pipeline::layout::Layout;
use crate::pipeline::threads::{Cores, Thread, pin};
use crate::pipeline::{self, FlowOptions, Pipelines};
use crate::records::{RecordSender, RecordSink};
use control::LaneThread;
use input::Input;
use labelling::Labelling;
use lane::{Lane, LaneOutcome, Shared};
use pace::Pace;
use plane::Ends;
pub use plane::LaneEnd;
use source::Source;
use tagged::TaggedWriter;

/// What a replay did.
pub struct Outcome {
    /// Of the packet's walk, over all flow managers.
    pub flows: flowmgr::Counters,
    /// Of the series' walk, over all analytics managers.
    pub series: analytics::Counters,
    /// The parts of each pipeline.
    pub layout: Layout,
    /// Pipelines side by side.
    pub instances: usize,
    /// Who ran where.
    pub cores: Cores,
    /// Exchanges of the model.
    pub swaps: Swaps,
    /// Names of the classes.
    pub classes: Arc<[String]>,
    /// The flow table's memory.
    pub table: Table,
    /// Bytes that the packets had on the wire.
    pub bytes: u64,
    /// Packets that each flow manager took, in their order.
    pub packets_by_lane: Vec<u64>,
    /// Records that found no room in their queue.
    pub records_dropped: u64,
    /// Steps of the clock that stamps packets: of a capture those back, as each flow manager saw them; live each once.
    pub clock_steps: u64,
    /// What else there is to say where the traffic was live.
    pub live: Option<LiveSums>,
    /// From the first byte read to the last flow settled.
    pub wall: Duration,
    /// A signal ended it.
    pub interrupted: bool,
    /// Why it ended before its time.
    pub failure: Option<Failure>,
}

/// What live traffic adds to the sums.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct LiveSums {
    /// As the configuration names it.
    pub mode: &'static str,
    /// Packets that the kernel had for the receive rings: received, dropped there or unread.
    pub offered: u64,
    /// Packets taken from the rings.
    pub received: u64,
    /// Of these, packets that are several merged into one.
    pub merged: u64,
    /// Packets that found a ring full, or were in it when its interface went away.
    pub kernel_dropped: u64,
    /// Packets that were in a ring at the end.
    pub unread: u64,
    /// Packets that the interfaces had dropped before, of all that the machine was to have.
    pub nic_dropped: u64,
    /// Packets sent on.
    pub sent: u64,
    /// Packets to be sent on that were not.
    pub unsent: u64,
    /// Marks that were to be written: all that are in the next five, unless the run ended before.
    pub marks_asked: u64,
    /// Marks written to connections.
    pub marks_written: u64,
    /// Marks not written because the connection had one already.
    pub marks_kept: u64,
    /// Marks for which there was no connection.
    pub marks_not_found: u64,
    /// Marks that the kernel refused.
    pub marks_failed: u64,
    /// Marks that found no room in their queue.
    pub marks_dropped: u64,
}

/// The flow tables' memory, of all flow managers together.
pub struct Table {
    /// Flows they have room for.
    pub max_flows: usize,
    /// Bytes they may take.
    pub bytes: usize,
    /// What they lie on; where they differ, the least.
    pub pages: flowmgr::Pages,
}

impl Table {
    /// Of these managers.
    pub fn of(config: &Config, bundle: &Bundle, managers: &[(Thread, flowmgr::Manager)]) -> Table {
        let flow = &config.flow;
        let bytes = flowmgr::table_bytes(
            flow.max_flows,
            flow.buckets,
            &[pipeline::series_task(bundle)],
        );
        let pages = managers.iter().map(|(_, manager)| manager.pages());
        Table {
            max_flows: flow.max_flows * managers.len(),
            bytes: bytes * managers.len(),
            pages: pages.min().unwrap_or(flowmgr::Pages::Plain),
        }
    }
}

/// What to replay, and how.
pub struct Plan<'a> {
    /// The checked configuration.
    pub config: &'a Config,
    /// The command line.
    pub args: &'a ReplayArgs,
    /// Folder of the bundle.
    pub bundle: PathBuf,
}

/// Runs a replay to its end.
///
/// # Errors
/// Whatever is wrong before the first packet. What goes wrong later stands in
/// [`Outcome::failure`], with the sums up to there.
pub fn run(plan: &Plan<'_>) -> Result<Outcome, Failure> {
    let Plan {
        config,
        args,
        bundle,
    } = plan;
    outputs::check(args)?;
    check_write(config, args)?;
    let cores = Cores::of(config);
    cores.check()?;
    let read = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let source = open_source(args, read.clone(), stop.clone())?;
    let bundle = pipeline::open_bundle(config, bundle)?;
    let options = FlowOptions {
        effect: effect(args),
        record_series: args.output.series,
    };
    let pipelines = Pipelines::for_replay(config, &bundle, &cores, options)?;
    let tagged = open_tagged(args, &pipelines)?;
    let (sink, records) = open_records(plan, &pipelines, &stop)?;
    let in_use = Arc::new(InUse::new(&bundle, config));
    let counts = sink.as_ref().map(RecordSink::counts).unwrap_or_default();
    let (prepared, ends) = plane::prepare(plan, &in_use, &cores, &pipelines, counts)?;
    let Ends { lanes, analytics } = ends;

    let table = Table::of(config, &bundle, &pipelines.flow_managers);
    let shared = Arc::new(Shared::new(pipelines.flow_managers.len(), stop.clone()));
    let (inputs, reader) = input::inputs(source, pipelines.flow_managers.len(), stop)?;
    let managers = pipelines.analytics;
    let labelling = Labelling::start(plan, &cores, &bundle, &in_use, managers, analytics, &shared)?;
    let start = LaneStart {
        pace: pace(args),
        records,
        shared: shared.clone(),
        // The analytics side makes room once a ring is three quarters full.
        burst: config.io.burst.min(config.ring.slots / 4),
    };
    let parts = pipelines.flow_managers.into_iter().zip(inputs).zip(lanes);
    let lanes = start.threads(&cores, parts, tagged);
    let progress = control::Progress {
        read,
        size: source::size_of(&args.files, args.loops),
        shared: shared.clone(),
    };
    let ended = control::run(progress, lanes, prepared)?;
    let (series, swaps) = labelling.finish()?;
    let read = join_reader(reader);
    let recorded = sink.map_or(Ok(()), RecordSink::finish);
    let mut outcome = Outcome {
        flows: flowmgr::Counters::default(),
        series,
        layout: config.pipeline.layout,
        instances: config.pipeline.instances,
        cores,
        swaps,
        classes: pipelines.classes,
        table,
        bytes: 0,
        packets_by_lane: Vec::new(),
        records_dropped: 0,
        clock_steps: 0,
        live: None,
        wall: ended.at.duration_since(shared.run.started),
        interrupted: ended.interrupted,
        failure: None,
    };
    let failures = ended.lanes.into_values().flat_map(|lane| outcome.add(lane));
    let failures: Vec<Failure> = failures.collect();
    let failures = failures.into_iter().chain(read.err()).chain(recorded.err());
    outcome.failure = failures.reduce(Failure::and);
    Ok(outcome)
}

impl Outcome {
    /// Adds a flow manager's sums; what is left is why it failed.
    fn add(&mut self, lane: LaneOutcome) -> Vec<Failure> {
        self.flows.merge(&lane.counters);
        self.packets_by_lane.push(lane.received);
        self.bytes += lane.bytes;
        self.records_dropped += lane.records_dropped;
        self.clock_steps += lane.counters.clock_rebased;
        lane.failures
    }
}

/// Packets of several flow managers would leave in an order that nobody could repeat.
fn check_write(config: &Config, args: &ReplayArgs) -> Result<(), Failure> {
    let pipeline = &config.pipeline;
    let lanes = pipeline.instances * pipeline.layout.flow_managers;
    if args.write.is_some() && lanes > 1 {
        return Err(Failure::usage(format!(
            "--write keeps the order of the packets, which {lanes} flow managers do not; take a pipeline.layout of one, \
             such as 1:{}:{}, and pipeline.instances = 1",
            pipeline.layout.analytics_managers, pipeline.layout.devices
        )));
    }
    Ok(())
}

/// What a flow manager's thread works with alone: the manager, its input, and the end by which it is watched.
type LaneParts = (((Thread, flowmgr::Manager), Input), Option<LaneEnd>);

/// What all flow managers' threads begin with.
struct LaneStart {
    pace: Option<Pace>,
    records: RecordSender,
    shared: Arc<Shared>,
    burst: usize,
}

impl LaneStart {
    /// The threads; the writer goes to the first, which is the only one where there is a writer.
    fn threads(
        self,
        cores: &Cores,
        parts: impl Iterator<Item = LaneParts>,
        mut tagged: Option<TaggedWriter>,
    ) -> Vec<LaneThread> {
        let lanes = parts.map(|(((thread, manager), input), end)| {
            let lane = Lane::new(
                manager,
                self.pace.clone(),
                tagged.take(),
                self.records.another(),
                self.shared.clone(),
                self.burst,
                end,
            );
            let core = cores.of_thread(&thread);
            LaneThread {
                name: thread.to_string(),
                run: Box::new(move || {
                    pin(core);
                    lane.run(input)
                }),
            }
        });
        lanes.collect()
    }
}

fn join_reader(reader: Option<input::Reader>) -> Result<(), Failure> {
    let died = |_| Failure::software("the thread that reads the captures died");
    reader.map_or(Ok(()), |reader| reader.join().map_err(died)?)
}

fn pace(args: &ReplayArgs) -> Option<Pace> {
    match args.speed {
        Speed::Max => None,
        Speed::Times(factor) => Some(Pace::new(factor)),
    }
}

/// The writer, where `--write` asks for packets.
fn open_tagged(args: &ReplayArgs, pipelines: &Pipelines) -> Result<Option<TaggedWriter>, Failure> {
    let (Some(output), Some((_, manager))) = (&args.write, pipelines.flow_managers.first()) else {
        return Ok(None);
    };
    let writer = TaggedWriter::create(output, manager.labels(), manager.actions().clone())?;
    Ok(Some(writer))
}

/// By packet time where the replay goes as fast as it can, else as labels arrive.
fn effect(args: &ReplayArgs) -> Effect {
    match args.speed {
        Speed::Max => Effect::PacketTime {
            delay_us: i64::from(args.label_delay_ms) * 1000,
        },
        Speed::Times(_) => Effect::Arrival,
    }
}

fn open_source(
    args: &ReplayArgs,
    read: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<Source, Failure> {
    let faults: Option<FaultRates> = args.faults;
    Source::open(args.files.clone(), args.loops, faults, read, stop)
}

/// The record thread, where `--flows` asks for records.
fn open_records(
    plan: &Plan<'_>,
    pipelines: &Pipelines,
    stop: &Arc<AtomicBool>,
) -> Result<(Option<RecordSink>, RecordSender), Failure> {
    let Some(output) = plan.args.output.flows.as_deref() else {
        return Ok((None, RecordSender::nobody()));
    };
    let (sink, sender) = RecordSink::start(
        output,
        pipelines.classes.clone(),
        plan.config.records.queue,
        plan.args.speed == Speed::Max,
        // The packets are wanted even when the records are not any more.
        plan.args.write.is_none().then(|| stop.clone()),
    )?;
    Ok((Some(sink), sender))
}
