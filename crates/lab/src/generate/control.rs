//! The control thread of a generator: signals and a progress bar, while another thread generates.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use fenxi::exit::Failure;

/// How often the progress bar is updated.
const TICK: Duration = Duration::from_millis(100);
/// Steps of the progress bar.
const STEPS: f64 = 1000.0;

/// State shared with the thread that generates.
pub struct Shared {
    packets: AtomicU64,
    steps: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Shared {
    /// Reports how many packets were made, and which share of all the work that is (0 to 1).
    pub fn report(&self, packets: u64, share: f64) {
        self.packets.store(packets, Ordering::Relaxed);
        self.steps.store((share * STEPS) as u64, Ordering::Relaxed);
    }

    /// Whether the generator has to end early.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Runs `work` on a thread of its own. SIGINT and SIGTERM raise `stop`, which asks `work` to end.
/// Returns what `work` returned, and whether it was stopped.
///
/// # Errors
/// No thread, no runtime, or the thread died.
pub fn run<R: Send + 'static>(
    stop: Arc<AtomicBool>,
    work: impl FnOnce(&Shared) -> R + Send + 'static,
) -> Result<(R, bool), Failure> {
    let no_control =
        |error: std::io::Error| Failure::unavailable(format!("no control thread: {error}"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_control)?;
    let shared = Arc::new(Shared { packets: AtomicU64::new(0), steps: AtomicU64::new(0), stop });
    let (sender, receiver) = oneshot::channel();
    runtime.block_on(async {
        let interrupt = signal(SignalKind::interrupt()).map_err(no_control)?;
        let terminate = signal(SignalKind::terminate()).map_err(no_control)?;
        let theirs = shared.clone();
        std::thread::Builder::new()
            .name("generator".to_owned())
            .spawn(move || {
                // The receiver lives as long as the program.
                let _ = sender.send(work(&theirs));
            })
            .map_err(no_control)?;
        watch(&shared, [interrupt, terminate], receiver).await
    })
}

async fn watch<R>(
    shared: &Shared,
    [mut interrupt, mut terminate]: [Signal; 2],
    mut result: oneshot::Receiver<R>,
) -> Result<(R, bool), Failure> {
    let bar = bar();
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            result = &mut result => {
                bar.finish_and_clear();
                let result = result.map_err(|_| Failure::software("the generator's thread died"));
                return Ok((result?, shared.is_stopped()));
            }
            _ = interrupt.recv() => shared.stop.store(true, Ordering::Relaxed),
            _ = terminate.recv() => shared.stop.store(true, Ordering::Relaxed),
            _ = tick.tick() => {
                bar.set_position(shared.steps.load(Ordering::Relaxed));
                bar.set_message(format!("{} packets", shared.packets.load(Ordering::Relaxed)));
            }
        }
    }
}

/// A bar on a terminal, nothing elsewhere.
fn bar() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(STEPS as u64), target);
    match ProgressStyle::with_template("{bar:30} {percent} %  {msg}  {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
