//! The control plane of a replay: signals and progress, on one tokio thread, off
//! the data path.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::lane::{LaneOutcome, Shared};
use crate::exit::Failure;

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

/// Runs each lane on its own thread until all have ended; their outcomes come in any order. The first SIGINT or SIGTERM
/// asks them to stop; true if one came.
///
/// # Errors
/// No thread, no runtime, or a thread died.
pub fn run(
    progress: Progress,
    lanes: Vec<LaneThread>,
) -> Result<(Vec<LaneOutcome>, bool), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unavailable(format!("no control thread: {error}")))?;
    let expected = lanes.len();
    let (sender, receiver) = mpsc::channel(expected);
    let (outcomes, interrupted) = runtime.block_on(async {
        let signals = Signals::new()?;
        for LaneThread { name, run } in lanes {
            let sender = sender.clone();
            std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || {
                    // The other side only goes away with the whole program.
                    let _ = sender.blocking_send(run());
                })
                .map_err(|error| Failure::unavailable(format!("no thread {name}: {error}")))?;
        }
        drop(sender);
        Ok::<_, Failure>(watch(progress, signals, receiver).await)
    })?;
    if outcomes.len() < expected {
        return Err(Failure::software("a flow-manager thread died"));
    }
    Ok((outcomes, interrupted))
}

/// Until no lane is left.
async fn watch(
    progress: Progress,
    mut signals: Signals,
    mut lanes: mpsc::Receiver<LaneOutcome>,
) -> (Vec<LaneOutcome>, bool) {
    let bar = bar(progress.size);
    let mut tick = tokio::time::interval(TICK);
    let (mut outcomes, mut interrupted) = (Vec::new(), false);
    loop {
        tokio::select! {
            outcome = lanes.recv() => match outcome {
                Some(outcome) => outcomes.push(outcome),
                None => {
                    bar.finish_and_clear();
                    return (outcomes, interrupted);
                }
            },
            () = signals.next() => {
                interrupted = true;
                progress.shared.stop.store(true, Ordering::Relaxed);
            }
            _ = tick.tick() => {
                bar.set_position(progress.read.load(Ordering::Relaxed));
                let packets = progress.shared.packets.load(Ordering::Relaxed);
                bar.set_message(format!("{packets} packets"));
            }
        }
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

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::unavailable(format!("no signals: {error}")))
        };
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
