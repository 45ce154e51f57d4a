//! Swaps the model and the settings in two phases. A task first takes the new ones without using
//! them, and uses them from the commit on, so that several managers change together or not at all.
//! After the commit each device is replaced as soon as it is between two batches.
//!
//! ```text
//! prepare ─► commit ─► each device, when its batch has come back ─► all replaced ─► take_retired
//!     │         │                 (a hung one at once)               (counted)  (drop elsewhere)
//!     │         └─ settings hold, answers in the cache are stale from here on
//!     └─► abort: another task has refused
//! ```
//!
//! Invariants: a batch runs on the device that it was gathered for. A label carries its model's
//! generation, even if its class came from the cache. Once the commit has begun, no answer of an
//! old model is found in the cache or entered; for that the cache counts swaps, because generations
//! wrap.
//!
//! A swap lasts as long as the longest batch under way; it never ends if a device without a
//! deadline never answers.
//!
//! Dropping a session takes milliseconds, so no accelerator is dropped in here, neither an old one
//! nor a refused one.
//!
//! Source: active and standby snapshot, LiteFlow §3.4.

use super::{Settings, Task};
use crate::device_slot::Model;
use crate::dispatch::Dispatch;
use crate::{Accelerator, ConfigError, Counters};
use cring::MODELS_MAX;
use std::time::Duration;
use thiserror::Error;

/// What a task is to change to.
#[derive(Debug, Default)]
pub struct Standby {
    /// Another model; `None`: the devices stay.
    pub model: Option<NewModel>,
    /// Other settings; `None`: they stay.
    pub settings: Option<Settings>,
}

/// Accelerators with another model, checked and warm.
#[derive(Debug)]
pub struct NewModel {
    /// One for each device, in the task's order, all with the same model.
    pub accelerators: Vec<Accelerator>,
    /// The number that labels will carry, below [`MODELS_MAX`]: how often the model has been
    /// swapped, wrapping.
    pub generation: u16,
}

/// What is no longer in use.
#[derive(Debug)]
pub struct Retired {
    /// One for each device, if the model was replaced. One that is not idle had hung.
    pub accelerators: Vec<Accelerator>,
    /// The previous settings.
    pub settings: Option<Settings>,
}

/// Why the model is not swapped. The current one stays in use.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SwapError {
    /// A swap has not ended, or its old accelerators have not been taken.
    #[error("the model is being swapped already: take what that one retires, and try again")]
    UnderWay,
    /// The device slots would not all change.
    #[error("{found} accelerators stand by for {expected} devices: give one for each")]
    Count {
        /// How many stand by.
        found: usize,
        /// How many are in use.
        expected: usize,
    },
    /// Labels cannot carry the number.
    #[error("model generation {generation} does not fit a label: it lies below {MODELS_MAX}")]
    Generation {
        /// As given.
        generation: u16,
    },
    /// An accelerator does not fit the task.
    #[error(transparent)]
    Accelerator(#[from] ConfigError),
}

/// What [`Task::prepare`] gives back when it refuses, so that the caller can drop it elsewhere.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Refused {
    /// As it was given.
    pub standby: Box<Standby>,
    /// Why.
    pub error: SwapError,
}

/// A swap that has not ended, or whose old accelerators have not been taken.
pub(super) struct Swap {
    /// What each device slot will change to; `None` once it has changed.
    incoming: Vec<Option<Accelerator>>,
    generation: u16,
    retired: Retired,
    /// The first round that knew of it.
    began_ns: Option<u64>,
}

/// What a task is to change to, and is changing to.
#[derive(Default)]
pub(super) struct Swaps {
    /// Accepted, and not in use before [`Task::commit`].
    standby: Option<Standby>,
    swap: Option<Swap>,
    /// How often the model has been swapped, or is being.
    count: u32,
}

impl Task {
    /// Takes what the task is to change to, and changes nothing yet. The caller has checked that
    /// the model has the same K and that its classes mean what they meant.
    ///
    /// # Errors
    /// When a swap is under way, or the accelerators do not fit; they come back.
    pub fn prepare(&mut self, mut standby: Standby) -> Result<(), Refused> {
        if let Err(error) = self.check_offer(&mut standby) {
            let standby = Box::new(standby);
            return Err(Refused { standby, error });
        }
        self.swaps.standby = Some(standby);
        Ok(())
    }

    /// Gives back what was prepared.
    pub fn abort(&mut self) -> Option<Standby> {
        self.swaps.standby.take()
    }

    /// Applies the prepared settings, and replaces each device by its counterpart as soon as it is
    /// between two batches. Allocates, unlike a round.
    pub fn commit(&mut self) {
        let Some(Standby { model, mut settings }) = self.swaps.standby.take() else {
            return;
        };
        if model.is_some() {
            self.swaps.count += 1;
            if let Some(cache) = &mut self.cache.cache {
                cache.begin(self.swaps.count);
            }
        }
        if let Some(settings) = &mut settings {
            self.configure(settings);
        }
        let (accelerators, generation) =
            model.map_or((Vec::new(), 0), |it| (it.accelerators, it.generation));
        self.swaps.swap = Some(Swap {
            retired: Retired { accelerators: Vec::with_capacity(accelerators.len()), settings },
            incoming: accelerators.into_iter().map(Some).collect(),
            generation,
            began_ns: None,
        });
    }

    /// What is no longer in use, once, when all devices have been replaced. Drop it where that may
    /// take time.
    pub fn take_retired(&mut self) -> Option<Retired> {
        let swap = self.swaps.swap.take_if(|swap| swap.is_over())?;
        Some(swap.retired)
    }

    fn check_offer(&mut self, standby: &mut Standby) -> Result<(), SwapError> {
        if self.swaps.swap.is_some() || self.swaps.standby.is_some() {
            return Err(SwapError::UnderWay);
        }
        let settings = standby.settings.as_ref();
        let policy = settings.map_or(self.terms.policy, Settings::policy);
        let Some(model) = &mut standby.model else {
            return Ok(());
        };
        let (found, expected) = (model.accelerators.len(), self.dispatch.device_slots.len());
        if found != expected {
            return Err(SwapError::Count { found, expected });
        }
        let generation = model.generation;
        if usize::from(generation) >= MODELS_MAX {
            return Err(SwapError::Generation { generation });
        }
        for accelerator in &mut model.accelerators {
            let rows = &self.rows;
            accelerator.check(rows.k, rows.features.len(), rows.context.len(), policy)?;
        }
        Ok(())
    }
}

impl Swaps {
    /// How often the model has been swapped, or is being.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Replaces the devices that are between two batches. Returns how many of the replacements
    /// change a controller's plan.
    pub fn replace_devices(
        &mut self,
        dispatch: &mut Dispatch,
        counters: &mut Counters,
        now_ns: u64,
    ) -> u64 {
        let Some(swap) = self.swap.as_mut().filter(|swap| !swap.is_over()) else {
            return 0;
        };
        let mut changes = 0;
        let began_ns = *swap.began_ns.get_or_insert(now_ns);
        for (i, device_slot) in dispatch.device_slots.iter_mut().enumerate() {
            if !device_slot.can_be_replaced() {
                continue;
            }
            let Some(accelerator) = swap.incoming[i].take() else {
                continue;
            };
            let device = &mut counters.devices[i];
            device.replaced_by(&accelerator, device_slot.is_up());
            let model = Model { generation: swap.generation, swap: self.count };
            changes += u64::from(!device_slot.plans_as(&accelerator));
            let retired = device_slot.replace(accelerator, model, now_ns);
            swap.retired.accelerators.push(retired);
        }
        if swap.is_over() {
            counters.swaps += 1;
            counters.last_swap = Duration::from_nanos(now_ns.saturating_sub(began_ns));
            dispatch.reserve();
        }
        changes
    }
}

impl Swap {
    fn is_over(&self) -> bool {
        self.incoming.iter().all(Option::is_none)
    }
}
