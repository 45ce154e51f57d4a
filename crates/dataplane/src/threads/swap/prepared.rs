//! What a swap brings into use, and what it replaces.

use std::sync::Arc;

use accel::Bundle;
use analytics::{Accelerator, Coming, Settings};
use config::Config;

use crate::Error;
use crate::opening::pipelines::analytics_config;
use crate::threads::recorder::Change;

/// Why a swap did not take place.
#[derive(Debug)]
pub enum Refusal {
    /// For this reason; the old model and settings stay in use.
    Because(Error),
    /// The run has ended.
    RunEnded,
}

impl From<Error> for Refusal {
    fn from(failure: Error) -> Refusal {
        Refusal::Because(failure)
    }
}

/// The devices and settings that are to come into use; devices are open and warm.
pub struct Prepared {
    /// Another model, or the same on other devices, for each analytics worker; empty if they keep
    /// theirs. A worker's are empty where those come back that the last swap has replaced, or a
    /// canary's come into use.
    pub(super) accelerators: Vec<Vec<Accelerator>>,
    pub(super) coming: Coming,
    pub(super) bundle: Arc<Bundle>,
    pub(super) settings: Vec<Option<Settings>>,
    pub(super) takes_settings: bool,
    /// The configurations from which the settings were made.
    pub(super) change: Option<Arc<Change>>,
    pub(super) cache_entries: u64,
    /// Whether a model that was in use before comes back.
    pub is_return: bool,
}

/// The sessions that a swap has replaced. The analytics workers keep them until the next swap.
#[derive(Clone)]
pub struct Previous {
    /// All of them can work again: one that had hung might give an old answer to a new batch.
    pub(super) is_sound: bool,
    /// The model that has replaced theirs.
    pub(super) generation: u16,
    pub(super) bundle: Arc<Bundle>,
}

impl Previous {
    /// Their model.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The model without its sessions, where these did not come back; `None` if there were none.
    pub fn afresh(&self) -> Option<Previous> {
        self.is_sound.then(|| Previous { is_sound: false, ..self.clone() })
    }
}

impl Prepared {
    /// Adds the change of batching and cache from the old configuration to the new one.
    ///
    /// # Errors
    /// Settings that are impossible in themselves.
    pub fn with_settings(mut self, old: &Config, new: &Config) -> Result<Prepared, Error> {
        let [old, new] = [old, new].map(|config| analytics_config(config, &self.bundle));
        if old != new && self.takes_settings {
            for settings in &mut self.settings {
                let change = Settings::change(&old, &new);
                *settings = Some(change.map_err(|error| Error::config(error.to_string()))?);
            }
            self.change = Some(Arc::new((old, new)));
        }
        Ok(self)
    }

    /// The model is to answer a share of new flows, beside the one in use.
    #[must_use]
    pub fn as_canary(self) -> Prepared {
        Prepared { coming: Coming::Canary, ..self }
    }

    /// The devices of each analytics worker, if they are replaced.
    pub fn accelerators_mut(&mut self) -> &mut [Vec<Accelerator>] {
        &mut self.accelerators
    }

    /// The model.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// Whether devices are replaced, for another model or the same one.
    pub fn has_model(&self) -> bool {
        !self.accelerators.is_empty()
    }

    /// Whether anything changes.
    pub fn is_something(&self) -> bool {
        self.has_model() || self.settings.iter().any(Option::is_some)
    }
}
