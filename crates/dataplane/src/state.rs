//! What may change during a run: the model, and the configuration as far as it is live. Whoever changes it notes it here,
//! for metrics and `fenxi ctl`; the data path never looks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use accel::Bundle;

use crate::config::Config;

/// A model, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// What it is called.
    pub name: String,
    /// Which of its name.
    pub version: String,
    /// Of the file.
    pub sha256: String,
    /// The number that labels carry.
    pub generation: u16,
}

impl Model {
    /// The model of a bundle.
    pub fn of(bundle: &Bundle, generation: u16) -> Model {
        Model {
            name: bundle.name().to_owned(),
            version: bundle.version().to_owned(),
            sha256: bundle.sha256().to_owned(),
            generation,
        }
    }
}

/// What came of reloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reloads {
    /// The new configuration was taken over.
    pub applied: u64,
    /// It was not, and the old one goes on.
    pub refused: u64,
    /// It was taken over, was not confirmed in time, and the old one was put back.
    pub reverted: u64,
}

/// What came of exchanges of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swaps {
    /// All analytics managers have changed over.
    pub done: u64,
    /// The old model went on.
    pub refused: u64,
    /// A reload brought a model, was not confirmed in time, and the one before was put back.
    pub reverted: u64,
    /// Why one was refused, the last time.
    pub last_refusal: Option<String>,
}

/// Work under way.
#[derive(Debug, Clone)]
pub struct Opening {
    /// In words, as in `opening model m on cpu`.
    pub what: String,
    /// When it began.
    pub since: Instant,
}

/// A helper's thread that was late and that nobody waits for any more. It keeps its memory until it ends.
#[derive(Debug, Clone)]
pub struct Abandoned {
    /// Which one.
    pub id: u64,
    /// What it was to do.
    pub what: String,
    /// When it began.
    pub since: Instant,
}

/// How it all stands.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Of all devices, but for the moment of an exchange.
    pub model: Model,
    /// Prefixes that all caches of one pipeline remember; 0: there are none.
    pub cache_entries: u64,
    /// What came of exchanges of the model.
    pub swaps: Swaps,
    /// What came of reloads.
    pub reloads: Reloads,
    /// When a configuration was last read without a fault, at the start or by a reload.
    pub configured: SystemTime,
    /// When a reload is undone that nobody has confirmed.
    pub undone_at: Option<Instant>,
    /// The first model, while it is being opened; without it nothing is labelled.
    pub opening: Option<Opening>,
    /// Helpers that were late and still run.
    pub abandoned: Vec<Abandoned>,
}

impl Standing {
    /// Time left until a reload is undone; `None`: none waits to be confirmed.
    pub fn unconfirmed(&self) -> Option<Duration> {
        let until = self.undone_at?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}

/// Where it is noted.
#[derive(Debug)]
pub struct InUse(Mutex<Standing>);

impl InUse {
    /// At the start of a run.
    pub fn new(bundle: &Bundle, config: &Config) -> InUse {
        InUse(Mutex::new(Standing {
            model: Model::of(bundle, 0),
            cache_entries: cache_entries(config),
            swaps: Swaps::default(),
            reloads: Reloads::default(),
            configured: SystemTime::now(),
            undone_at: None,
            opening: None,
            abandoned: Vec::new(),
        }))
    }

    /// How it stands now.
    pub fn standing(&self) -> Standing {
        self.lock().clone()
    }

    /// Notes a change.
    pub fn note(&self, change: impl FnOnce(&mut Standing)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        // It is whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prefixes that all caches of one pipeline remember, as a configuration has it.
pub fn cache_entries(config: &Config) -> u64 {
    let caches = config.pipeline.layout.analytics_managers as u64;
    config.cache.as_ref().map_or(0, |cache| cache.entries) as u64 * caches
}
