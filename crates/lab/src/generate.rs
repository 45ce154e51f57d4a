//! Traffic made from captures: a synthetic mix of copies of their flows, or the captures
//! themselves at another rate; or made from a table of volumes.
//!
//! ```text
//! captures ─ catalogue ─ mix ──┐
//! captures ────────────────────┼─ retime (--pps) ─ file, memory or interface
//! table of volumes ────────────┘
//! ```
//!
//! One thread does it all, so the same seed and captures give the same bytes.

mod args;
mod catalogue;
pub mod command;
mod control;
mod ends;
mod frame;
mod frames;
mod mix;
pub mod rules;
mod sink;
pub mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use packetio::{CaptureReader, Frame, OpenError, Received, Rx, TxCounts};

use catalogue::Catalogue;
use control::Shared;
use dataplane::bundle::find_shipped;
use fenxi::exit::Failure;
use mix::Mix;
use sink::Sink;
use volumes::Volumes;

pub use args::{GenerateArgs, GenerateWhat};
pub use catalogue::Payload;
pub use ends::COPIES_MAX;
pub use mix::Until;

/// The shipped capture, used if the command line names none.
const DEMO: &str = "demo/office.pcap";
/// Flows of a table of volumes, unless `--flows` says otherwise.
const VOLUMES: u64 = 10_000;
/// Frames made at a time.
const BURST: usize = 256;

/// The results of one generator run.
#[derive(Debug, Default)]
pub struct Generated {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Time from the first packet to the last by their timestamps, s.
    pub packet_time_s: f64,
    /// How long it took to generate.
    pub wall: Duration,
    /// The flows, if a mix was generated.
    pub flows: Option<Flows>,
    /// What became of the packets, if they were sent from an interface.
    pub interface: Option<TxCounts>,
    /// A signal ended it.
    pub interrupted: bool,
    /// Why it ended early.
    pub failure: Option<Failure>,
}

/// Flows of a mix.
#[derive(Debug)]
pub struct Flows {
    /// Copies begun.
    pub begun: u64,
    /// Flows of the captures, which were copied.
    pub originals: u64,
    /// Their packets.
    pub original_packets: u64,
}

/// Generates to the end, or until a signal.
///
/// # Errors
/// Anything that fails before the first packet. Later failures are in [`Generated::failure`].
pub fn run(args: &GenerateArgs) -> Result<Generated, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = Traffic::open(args, &stop)?;
    let sink = match (&args.to, &args.interface) {
        (Some(path), _) => Sink::file(path)?,
        (None, Some(interface)) => Sink::interface(interface)?,
        (None, None) => return Err(Failure::usage("--to or --interface is needed")),
    };
    let retime = Retime::to(args.pps);
    let (outcome, interrupted) =
        control::run(stop, move |shared| generate(traffic, retime, sink, shared))?;
    Ok(Generated { interrupted, ..outcome })
}

fn generate(
    mut traffic: Traffic,
    mut retime: Retime,
    mut sink: Sink,
    shared: &Shared,
) -> Generated {
    let start = Instant::now();
    let mut outcome = Generated::default();
    let pumped = pump(&mut traffic, &mut retime, &mut sink, shared, &mut outcome);
    let finished = sink.finish();
    outcome.wall = start.elapsed();
    outcome.packet_time_s = retime.span_us() as f64 / 1e6;
    outcome.flows = traffic.flows();
    match finished {
        Ok(counts) => outcome.interface = counts,
        Err(failure) => outcome.failure = Some(failure),
    }
    // The first failure is the cause.
    outcome.failure = pumped.err().or(outcome.failure);
    outcome
}

/// Moves all frames from traffic to sink.
fn pump(
    traffic: &mut Traffic,
    retime: &mut Retime,
    sink: &mut Sink,
    shared: &Shared,
    outcome: &mut Generated,
) -> Result<(), Failure> {
    let mut frames = Vec::with_capacity(BURST);
    loop {
        let share = traffic.share();
        let mut burst = match traffic.receive(shared)? {
            Received::Burst(burst) => burst,
            Received::Nothing => continue,
            Received::End => match !shared.is_stopped() && traffic.advance() {
                true => continue,
                false => return Ok(()),
            },
        };
        let (data, received) = burst.parts();
        frames.clear();
        frames.extend(received.iter().map(|frame| retime.frame(frame)));
        let taken = &frames[..sink.take(data, &frames, shared)?];
        outcome.packets += taken.len() as u64;
        outcome.bytes += taken.iter().map(|frame| u64::from(frame.wire)).sum::<u64>();
        shared.report(outcome.packets, share);
    }
}

/// Where frames come from.
enum Traffic {
    Mix(Box<Mix>),
    Volumes(Box<Volumes>),
    /// The captures that are left, the next one last, and the number of all captures.
    Captures(Vec<CaptureReader>, usize),
}

impl Traffic {
    fn open(args: &GenerateArgs, stop: &Arc<AtomicBool>) -> Result<Traffic, Failure> {
        if let Some(table) = &args.volumes {
            let flows = volumes::volumes(table, args.flows.unwrap_or(VOLUMES))?;
            let volumes = Volumes::new(flows, args.flows_per_s, args.seed);
            return Ok(Traffic::Volumes(Box::new(volumes)));
        }
        let captures = match args.captures.is_empty() {
            true => vec![demo()?],
            false => args.captures.clone(),
        };
        if args.replay {
            let readers = captures.iter().rev().map(|path| {
                let reader = open(path)?.stopped_by(stop.clone());
                reader.map_err(|error| {
                    Failure::unavailable(format!("no thread for the input: {error}"))
                })
            });
            let readers = readers.collect::<Result<Vec<_>, Failure>>()?;
            return Ok(Traffic::Captures(readers, captures.len()));
        }
        let catalogue = Catalogue::read(&captures, args.payload)?;
        let mix = Mix::new(catalogue, args.flows_per_s, args.until(), args.seed);
        Ok(Traffic::Mix(Box::new(mix)))
    }

    /// The next frames, or the end of the mix or of one capture. A stop is the end, too.
    fn receive(&mut self, shared: &Shared) -> Result<Received<'_>, Failure> {
        if shared.is_stopped() {
            return Ok(Received::End);
        }
        let port: &mut dyn Rx = match self {
            Traffic::Mix(mix) => &mut **mix,
            Traffic::Volumes(volumes) => &mut **volumes,
            Traffic::Captures(readers, _) => match readers.last_mut() {
                Some(reader) => reader,
                None => return Ok(Received::End),
            },
        };
        match port.receive(BURST) {
            // The stop cut the capture short; it is not damaged.
            Err(_) if shared.is_stopped() => Ok(Received::End),
            received => Ok(received?),
        }
    }

    /// Moves on to the next capture; false if there is none.
    fn advance(&mut self) -> bool {
        match self {
            Traffic::Mix(_) | Traffic::Volumes(_) => false,
            Traffic::Captures(readers, _) => {
                readers.pop();
                !readers.is_empty()
            }
        }
    }

    /// The share of the work that is done, 0 to 1, as far as it is known.
    fn share(&self) -> f64 {
        match self {
            Traffic::Mix(mix) => mix.share(),
            Traffic::Volumes(volumes) => volumes.share(),
            Traffic::Captures(readers, captures) => {
                let left = readers.iter().map(|reader| match reader.size() {
                    Some(size) => 1.0 - reader.position() as f64 / size.max(1) as f64,
                    None => 1.0,
                });
                1.0 - left.sum::<f64>() / *captures as f64
            }
        }
    }

    fn flows(&self) -> Option<Flows> {
        match self {
            Traffic::Mix(mix) => Some(mix.flows()),
            Traffic::Volumes(_) | Traffic::Captures(..) => None,
        }
    }
}

fn demo() -> Result<PathBuf, Failure> {
    find_shipped(DEMO).map_err(|looked_at| {
        Failure::no_input(format!(
            "the shipped capture is not installed; looked at {looked_at}; name a capture"
        ))
    })
}

fn open(path: &Path) -> Result<CaptureReader, Failure> {
    CaptureReader::open(path).map_err(|error: OpenError| Failure::no_input(error.to_string()))
}

/// Gives packets new times: a fixed number per second, from the time of the first packet.
struct Retime {
    /// Packets per second; `None` keeps the packets' own times.
    pps: Option<u32>,
    start_us: Option<i64>,
    last_us: i64,
    packets: u64,
}

impl Retime {
    fn to(pps: Option<u32>) -> Retime {
        Retime { pps, start_us: None, last_us: 0, packets: 0 }
    }

    fn frame(&mut self, frame: &Frame) -> Frame {
        let start_us = *self.start_us.get_or_insert(frame.time_us);
        let mut frame = *frame;
        if let Some(pps) = self.pps {
            let after_ns = u128::from(self.packets) * 1_000_000_000 / u128::from(pps);
            frame.time_us = start_us.saturating_add((after_ns / 1000) as i64);
            frame.time_sub_ns = (after_ns % 1000) as u16;
        }
        self.packets += 1;
        self.last_us = self.last_us.max(frame.time_us);
        frame
    }

    /// From the first packet to the latest.
    fn span_us(&self) -> i64 {
        let start_us = self.start_us.unwrap_or(self.last_us);
        self.last_us.saturating_sub(start_us)
    }
}
