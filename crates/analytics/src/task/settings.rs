//! The part of a task's configuration that may change between two rounds.

use super::{Measure, Task, goal};
use crate::cache::Cache;
use crate::{Config, ConfigError, Policy};
use std::fmt;
use std::mem;

/// Checked settings, with all memory that they need. Everything else is fixed by the rings and the
/// model.
pub struct Settings {
    policy: Policy,
    priority: u8,
    cache: CacheChange,
}

/// What happens to the cache.
enum CacheChange {
    /// It stays, with all entries; only its audit's share may change.
    Audit(f64),
    /// It is replaced by an empty one, or by none.
    Replace(Box<Option<Cache>>),
}

impl Settings {
    /// Policy, priority and cache of `new`, for a task that works by `old`. The cache is rebuilt if
    /// its prefix or its size has changed.
    ///
    /// # Errors
    /// When the new configuration is impossible in itself.
    pub fn change(old: &Config, new: &Config) -> Result<Self, ConfigError> {
        new.check()?;
        let is_same =
            (old.cache.prefix, old.cache.entries) == (new.cache.prefix, new.cache.entries);
        Ok(Self {
            policy: new.policy,
            priority: new.priority,
            cache: match is_same {
                true => CacheChange::Audit(new.cache.audit),
                false => CacheChange::Replace(Box::new(Cache::new(
                    &new.cache,
                    &new.features,
                    &new.context,
                ))),
            },
        })
    }

    pub(super) fn policy(&self) -> Policy {
        self.policy
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Task {
    /// Applies these settings from now on. What they replace is left in their place, to be dropped
    /// elsewhere.
    pub(super) fn configure(&mut self, settings: &mut Settings) {
        let terms = &mut self.terms;
        if settings.policy != terms.policy {
            self.labelling.measure = Measure::new(goal(settings.policy));
            self.changes += 1;
            mem::swap(&mut terms.policy, &mut settings.policy);
        }
        if settings.priority != terms.priority {
            self.changes += 1;
            mem::swap(&mut terms.priority, &mut settings.priority);
        }
        let cache = &mut self.cache.cache;
        match &mut settings.cache {
            CacheChange::Audit(share) => {
                if let Some(cache) = cache {
                    cache.set_audit(*share);
                }
            }
            CacheChange::Replace(new) => {
                mem::swap(cache, new.as_mut());
                if let Some(cache) = cache {
                    cache.begin(self.swaps.model.swap);
                }
            }
        }
    }
}
