//! The log of a live run.
//!
//! ```text
//! event! ─► levels (by target) ─► repeats ─► journal, or lines on stderr
//! ```
//!
//! Code off the data path logs with the macros of `tracing`. The data path counts, and reports
//! events to the control thread, which logs them. Messages are complete without fields, because the
//! journal does not show these. At info and above they name interfaces, devices and files, never an
//! address or a port.

mod levels;
mod loss;
mod output;
mod repeats;

use std::sync::OnceLock;
use std::time::Instant;

use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;

use crate::exit::Failure;
use config::checked::Log;
use repeats::{Limit, Repeats};

pub use config::levels::LevelError;
pub use loss::Loss;

/// The parts of the log that can change while it is in use.
struct Running {
    levels: reload::Handle<Targets, Registry>,
    repeats: Repeats,
}

/// Set by [`start`].
static RUNNING: OnceLock<Running> = OnceLock::new();

/// Starts to write events where the configuration says. Events before this call are dropped.
///
/// # Errors
/// 69: the journal is asked for and not there. 70: the log was started before.
pub fn start(config: &Log) -> Result<(), Failure> {
    let levels = levels::parse(&config.level);
    let levels = levels.map_err(|error| Failure::config(error.to_string()))?;
    let (levels, handle) = reload::Layer::new(levels);
    let repeats = Repeats::default();
    let log = Registry::default()
        .with(levels)
        .with(Limit(repeats.clone()))
        .with(output::open(config.to)?);
    let running = Running { levels: handle, repeats };
    let twice = || Failure::software("the log was started twice");
    RUNNING.set(running).map_err(|_| twice())?;
    tracing::subscriber::set_global_default(log).map_err(|_| twice())
}

/// Checks whether the log could be started: if the configuration asks for the journal, it must
/// exist.
pub fn probe(config: &Log) -> Result<(), Failure> {
    output::open::<Registry>(config.to).map(drop)
}

/// Sets the levels; an error leaves them as they were. Without a running log it only checks
/// `levels`.
pub fn set_level(text: &str) -> Result<(), LevelError> {
    let levels = levels::parse(text)?;
    if let Some(running) = RUNNING.get() {
        // Fails only if the log is gone, and it lives as long as the process.
        let _ = running.levels.reload(levels);
    }
    Ok(())
}

/// Logs how often lines were repeated whose period is over; must be called regularly.
pub fn tick() {
    log_repeats(Some(Instant::now()));
}

/// Logs the repeats of all lines; for the end of the run.
pub fn finish() {
    log_repeats(None);
}

fn log_repeats(now: Option<Instant>) {
    let Some(running) = RUNNING.get() else { return };
    // The lock is free by now; these lines go through the same layers and take it again.
    for repeated in running.repeats.take(now) {
        repeated.log();
    }
}
