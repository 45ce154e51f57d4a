//! The log of a live run: what a person should know of it, in the order in which it happened.
//!
//! ```text
//! event! ─► levels (by target) ─► repeats ─► journal, or lines on stderr
//! ```
//!
//! Everything off the data path logs by the macros of `tracing`; the data path counts, and tells the control thread what
//! people should know. A message says all by itself: who reads the journal sees no fields. At info and above it names
//! interfaces, devices and files, never an address or a port of the traffic or of ours.

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

/// What of the log can be reached while it is in use.
struct Running {
    levels: reload::Handle<Targets, Registry>,
    repeats: Repeats,
}

/// There once [`start`] was called.
static RUNNING: OnceLock<Running> = OnceLock::new();

/// From now on events go where the configuration says; before, and where this is never called, they go nowhere.
///
/// # Errors
/// 69: the journal is asked for and not there. 70: the log was started before.
pub fn start(config: &Log) -> Result<(), Failure> {
    let levels =
        levels::parse(&config.level).map_err(|error| Failure::config(error.to_string()))?;
    let (levels, handle) = reload::Layer::new(levels);
    let repeats = Repeats::default();
    let log = Registry::default()
        .with(levels)
        .with(Limit(repeats.clone()))
        .with(output::open(config.to)?);
    let running = Running {
        levels: handle,
        repeats,
    };
    let twice = || Failure::software("the log was started twice");
    RUNNING.set(running).map_err(|_| twice())?;
    tracing::subscriber::set_global_default(log).map_err(|_| twice())
}

/// Checks whether the log could be started: the journal, where it is asked for, must be there.
///
/// # Errors
/// As [`start`].
pub fn look(config: &Log) -> Result<(), Failure> {
    output::open::<Registry>(config.to).map(drop)
}

/// From now on logs at these levels; on an error as before. Without a running log it only checks.
///
/// # Errors
/// No levels.
pub fn set_level(text: &str) -> Result<(), LevelError> {
    let levels = levels::parse(text)?;
    if let Some(running) = RUNNING.get() {
        // It fails where the log is gone, and it never goes.
        let _ = running.levels.reload(levels);
    }
    Ok(())
}

/// Says how often lines were repeated whose period is over; to be called now and then.
pub fn tick() {
    say_repeats(|repeats| repeats.take_over(Instant::now()));
}

/// At the end of the run: the same for all lines, whatever their period.
pub fn finish() {
    say_repeats(Repeats::take_all);
}

fn say_repeats(take: impl FnOnce(&Repeats) -> Vec<repeats::Repeated>) {
    let Some(running) = RUNNING.get() else {
        return;
    };
    // The lock is free again by now: what is said goes through the same layers.
    for repeated in take(&running.repeats) {
        repeated.say();
    }
}
