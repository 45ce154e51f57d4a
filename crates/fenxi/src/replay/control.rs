//! The control thread of a replay: signals, progress and, where `--control` asks for it, the control plane; on tokio, off
//! the data path.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::mpsc;

use super::lane::{LaneOutcome, Shared};
use super::plane::{Driven, Prepared};
use crate::control::Call;
use crate::exit::Failure;
use crate::signals::Signals;

/// Between two looks at the progress.
const TICK: Duration = Duration::from_millis(100);

/// What the progress bar shows.
pub struct Progress {
    /// Bytes of the captures read.
    pub read: Arc<AtomicU64>,
    /// All bytes, where that is known.
    pub size: Option<u64>,
    /// Packets, and the stop flag.
    pub shared: Arc<Shared>,
}

/// A flow manager's thread that is yet to be started.
pub struct LaneThread {
    /// As the system shows it.
    pub name: String,
    /// What it does.
    pub run: Box<dyn FnOnce() -> LaneOutcome + Send>,
}

/// What the lanes left behind.
pub struct Ended {
    /// By their numbers.
    pub lanes: BTreeMap<usize, LaneOutcome>,
    /// Somebody asked the replay to come to its end.
    pub interrupted: bool,
    /// When the last lane had ended.
    pub at: Instant,
}

/// Runs each lane on its own thread until all have ended, and longer where the control plane holds. The first SIGINT or
/// SIGTERM, or `fenxi ctl drain`, asks them to stop.
///
/// # Errors
/// No thread, no runtime, or a thread died.
pub fn run(
    progress: Progress,
    lanes: Vec<LaneThread>,
    prepared: Option<Prepared>,
) -> Result<Ended, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unavailable(format!("no control thread: {error}")))?;
    let expected = lanes.len();
    let (sender, receiver) = mpsc::channel(expected);
    let ended = runtime.block_on(async {
        let signals = Signals::new()?;
        let mut plane = prepared.map(Prepared::start).transpose()?;
        for (number, LaneThread { name, run }) in lanes.into_iter().enumerate() {
            let sender = sender.clone();
            std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || {
                    // The other side only goes away with the whole program.
                    let _ = sender.blocking_send((number, run()));
                })
                .map_err(|error| Failure::unavailable(format!("no thread {name}: {error}")))?;
        }
        drop(sender);
        let ended = watch(progress, signals, &mut plane, receiver).await;
        if let Some(plane) = plane {
            plane.finish().await;
        }
        Ok::<_, Failure>(ended)
    })?;
    if ended.lanes.len() < expected {
        return Err(Failure::software("a flow-manager thread died"));
    }
    Ok(ended)
}

/// Until no lane is left and nothing holds.
async fn watch(
    progress: Progress,
    mut signals: Signals,
    plane: &mut Option<Driven>,
    mut lanes: mpsc::Receiver<(usize, LaneOutcome)>,
) -> Ended {
    let bar = bar(progress.size);
    let mut tick = tokio::time::interval(TICK);
    let mut ended = Ended {
        lanes: BTreeMap::new(),
        interrupted: false,
        at: Instant::now(),
    };
    let mut is_holding = false;
    loop {
        let is_asked_to_end = tokio::select! {
            outcome = lanes.recv(), if !is_holding => {
                match outcome {
                    Some((number, outcome)) => {
                        ended.lanes.insert(number, outcome);
                    }
                    None => {
                        ended.at = Instant::now();
                        bar.finish_and_clear();
                        is_holding = plane.as_ref().is_some_and(|plane| plane.holds);
                        if !is_holding || ended.interrupted {
                            return ended;
                        }
                    }
                }
                false
            }
            () = signals.next() => true,
            Some(call) = next_call(plane) => plane.as_mut().is_some_and(|plane| plane.answer(call)),
            _ = tick.tick() => {
                accel::onnx::stop_late_runs(None);
                bar.set_position(progress.read.load(Ordering::Relaxed));
                let packets = progress.shared.packets.load(Ordering::Relaxed);
                bar.set_message(format!("{packets} packets"));
                plane.iter_mut().for_each(Driven::tick);
                false
            }
        };
        if is_asked_to_end && is_holding {
            return ended;
        }
        if is_asked_to_end {
            ended.interrupted = true;
            plane.iter().for_each(Driven::drain);
            progress.shared.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// The next call of the control plane; never one where there is none.
async fn next_call(plane: &mut Option<Driven>) -> Option<Call> {
    match plane {
        Some(plane) => plane.call().await,
        None => std::future::pending().await,
    }
}

/// A bar on a terminal, nothing elsewhere.
fn bar(size: Option<u64>) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let form = match size {
        Some(_) => "{bar:30} {bytes}/{total_bytes}  {msg}  {binary_bytes_per_sec}  {eta} left",
        None => "{spinner} {bytes}  {msg}  {binary_bytes_per_sec}",
    };
    let bar = ProgressBar::with_draw_target(size, target);
    match ProgressStyle::with_template(form) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
