//! A replay: its threads, and what they leave behind.
//!
//! ```text
//! control (tokio): signals, progress
//! flow manager:    captures ─ walk ─ writer ─ settle ──┐
//!                              │ ring   ▲ label words  ├─ records thread
//! analytics:                   └─ rounds┘              │
//! ```

mod control;
mod lane;
mod outputs;
mod pace;
mod source;
mod tagged;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use analytics::Round;
use crossbeam_utils::Backoff;
use flowmgr::Effect;

use crate::cli::{FaultRates, ReplayArgs, Speed};
use crate::config::Config;
use crate::exit::Failure;
use crate::pipeline::{self, Pipeline};
use crate::records::{RecordSender, RecordSink};
use lane::{Lane, Shared};
use pace::Pace;
use source::Source;
use tagged::TaggedWriter;

/// What a replay did.
pub struct Outcome {
    /// Of the packet's walk.
    pub flows: flowmgr::Counters,
    /// Of the series' walk.
    pub series: analytics::Counters,
    /// Names of the classes.
    pub classes: Arc<[String]>,
    /// The flow table's memory.
    pub table: Table,
    /// Bytes that the packets had on the wire.
    pub bytes: u64,
    /// Records that found no room in their queue.
    pub records_dropped: u64,
    /// From the first byte read to the last flow settled.
    pub wall: Duration,
    /// A signal ended it.
    pub interrupted: bool,
    /// Why it ended before its time.
    pub failure: Option<Failure>,
}

/// The flow table's memory.
pub struct Table {
    /// Flows it has room for.
    pub max_flows: usize,
    /// Bytes it may take.
    pub bytes: usize,
    /// What it lies on.
    pub pages: flowmgr::Pages,
}

impl Table {
    fn of(config: &Config, manager: &flowmgr::Manager) -> Table {
        let flow = &config.flow;
        Table {
            max_flows: flow.max_flows,
            bytes: flowmgr::table_bytes(flow.max_flows, flow.buckets, flow.k),
            pages: manager.pages(),
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
    let read = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let source = open_source(args, read.clone(), stop.clone())?;
    let bundle = pipeline::open_bundle(config, bundle)?;
    let pipeline = Pipeline::for_replay(config, &bundle, effect(args), args.series)?;
    let tagged = open_tagged(args, &pipeline)?;
    let (sink, records) = open_records(plan, &pipeline, &stop)?;

    let table = Table::of(config, &pipeline.flow_manager);
    let shared = Arc::new(Shared::new(stop));
    // The analytics side makes room once the ring is three quarters full.
    let burst = config.io.burst.min(config.ring.slots / 4);
    let lane = Lane::new(
        pipeline.flow_manager,
        pace(args),
        tagged,
        records,
        shared.clone(),
        burst,
    );
    let gathers = args.speed == Speed::Max;
    let analytics = spawn_analytics(pipeline.analytics, gathers, shared.clone())?;
    let progress = control::Progress {
        read,
        size: source::size_of(&args.files, args.loops),
        shared: shared.clone(),
    };
    let (lane, interrupted) = control::run(progress, move || lane.run(source))?;
    let wall = shared.started.elapsed();
    let series = analytics
        .join()
        .map_err(|_| Failure::software("the analytics thread died"))?;
    let recorded = sink.map_or(Ok(()), RecordSink::finish);
    let failures = lane.failures.into_iter().chain(recorded.err());
    Ok(Outcome {
        flows: lane.counters,
        series,
        classes: pipeline.classes,
        table,
        bytes: lane.bytes,
        records_dropped: lane.records_dropped,
        wall,
        interrupted,
        failure: failures.reduce(Failure::and),
    })
}

fn pace(args: &ReplayArgs) -> Option<Pace> {
    match args.speed {
        Speed::Max => None,
        Speed::Times(factor) => Some(Pace::new(factor)),
    }
}

/// The writer, where `--write` asks for packets.
fn open_tagged(args: &ReplayArgs, pipeline: &Pipeline) -> Result<Option<TaggedWriter>, Failure> {
    let create = |output| {
        let labels = pipeline.flow_manager.labels();
        TaggedWriter::create(output, labels, pipeline.dscp.clone())
    };
    args.write.as_deref().map(create).transpose()
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
    pipeline: &Pipeline,
    stop: &Arc<AtomicBool>,
) -> Result<(Option<RecordSink>, RecordSender), Failure> {
    let Some(output) = plan.args.flows.as_deref() else {
        return Ok((None, RecordSender::nobody()));
    };
    let (sink, sender) = RecordSink::start(
        output,
        pipeline.classes.clone(),
        plan.config.records.queue,
        plan.args.speed == Speed::Max,
        // The packets are wanted even when the records are not any more.
        plan.args.write.is_none().then(|| stop.clone()),
    )?;
    Ok((Some(sink), sender))
}

/// Rest of an analytics thread that gathers.
const GATHER: Duration = Duration::from_micros(500);

/// The analytics thread: rounds until the ring is closed and all is decided. With
/// `gathers` nobody waits for a single label, and it rests until a batch has come
/// together rather than look at every series as it comes.
fn spawn_analytics(
    mut manager: analytics::Manager,
    gathers: bool,
    shared: Arc<Shared>,
) -> Result<JoinHandle<analytics::Counters>, Failure> {
    /// Raised also when the thread panics, so that nobody waits for it.
    struct Ended(Arc<Shared>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.analytics_ended.store(true, Ordering::Release);
        }
    }
    let rounds = move || {
        let ended = Ended(shared.clone());
        let mut backoff = Backoff::new();
        while !manager.is_done() {
            if shared.input_ended.load(Ordering::Acquire) {
                manager.drain();
            }
            match manager.round(shared.now_ns()) {
                Round::Worked => backoff = Backoff::new(),
                Round::Seen if !gathers => backoff = Backoff::new(),
                _ if gathers => std::thread::sleep(GATHER),
                _ if backoff.is_completed() => std::thread::sleep(lane::REST),
                _ => backoff.snooze(),
            }
        }
        drop(ended);
        manager.counters().clone()
    };
    std::thread::Builder::new()
        .name("analytics".to_owned())
        .spawn(rounds)
        .map_err(|error| Failure::unavailable(format!("no thread for analytics: {error}")))
}
