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
//! The devices that are replaced stay with the task until the next swap ([`super::kept`]): flows
//! that began with their model go on with it. The next swap retires them, or brings them back. A
//! model may first come as a canary ([`super::canary`]), and is then promoted or withdrawn.
//!
//! Invariants: a batch runs on the device that it was gathered for. A label carries its model's
//! generation, even if its class came from the cache. Once the commit has begun, no answer of an
//! old model is found in the cache or entered; for that the cache counts swaps, because generations
//! wrap.
//!
//! A swap lasts as long as the longest batch under way, and until what waits for the devices to be
//! retired is answered; it never ends if a device without a deadline never answers. Where a device
//! that is to come back hangs, those in use stay.
//!
//! Dropping a session takes milliseconds, so no accelerator is dropped in here, neither an old one
//! nor a refused one.
//!
//! Source: active and standby snapshot, LiteFlow §3.4.

use super::kept::Kept;
use super::{Settings, Task};
use crate::device_slot::{DeviceSlot, Model};
use crate::dispatch::Dispatch;
use crate::{Accelerator, ConfigError};
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
    /// One for each device, in the task's order, all with the same model. None where a canary is
    /// promoted or withdrawn, or where the devices that the last swap has replaced come back.
    pub accelerators: Vec<Accelerator>,
    /// The number that labels will carry, below [`MODELS_MAX`]: how many models have come before,
    /// wrapping.
    pub generation: u16,
    /// In which part.
    pub coming: Coming,
}

/// How a model comes, or goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coming {
    /// It replaces the one in use.
    #[default]
    Replaces,
    /// It answers a share of new flows, beside the one in use.
    Canary,
    /// The canary replaces the one in use.
    Promoted,
    /// The canary goes, once it has answered what it has taken.
    Withdrawn,
}

/// What is no longer in use.
#[derive(Debug)]
pub struct Retired {
    /// The devices of the last swap but one, if the model was replaced. One that is not idle had
    /// hung.
    pub accelerators: Vec<Accelerator>,
    /// The previous settings.
    pub settings: Option<Settings>,
    /// Whether the devices that were replaced can come back: none of them hangs.
    pub can_come_back: bool,
    /// Devices were to come back, and one hangs: the model in use has stayed.
    pub has_stayed: bool,
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
    /// Only one canary can be there, and nothing replaces the model in use beside it.
    #[error("{0}")]
    Canary(&'static str),
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
    retired: Retired,
    /// The model before the one that is replaced, or a canary that is withdrawn, until it has
    /// answered what it has to.
    pub leaving: Option<Kept>,
    /// Its devices come in.
    comes_back: bool,
    /// Another model comes into use.
    replaces: bool,
    /// The canary does, and has not yet.
    promotes: bool,
    /// The first round that knew of it.
    began_ns: Option<u64>,
}

/// What a task is to change to, and is changing to.
#[derive(Default)]
pub(super) struct Swaps {
    /// Accepted, and not in use before [`Task::commit`].
    standby: Option<Standby>,
    pub swap: Option<Swap>,
    /// The one in use, or coming into use.
    pub model: Model,
    /// The one before, after the first swap.
    pub before: Option<Kept>,
    pub canary: Option<Kept>,
    /// How many models have come, as canaries or into use.
    pub come: u32,
}

/// Which of a task's models a device holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    InUse,
    Before,
    Leaving,
    Canary,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::InUse, Role::Leaving, Role::Before, Role::Canary];
    /// Those beside the one in use.
    pub const KEPT: [Role; 3] = [Role::Leaving, Role::Before, Role::Canary];
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
        if let Some(settings) = &mut settings {
            self.configure(settings);
        }
        let mut swap = Swap {
            retired: Retired {
                accelerators: Vec::new(),
                settings,
                can_come_back: false,
                has_stayed: false,
            },
            incoming: Vec::new(),
            leaving: None,
            comes_back: false,
            replaces: false,
            promotes: false,
            began_ns: None,
        };
        if let Some(NewModel { accelerators, generation, coming }) = model {
            let come = self.swaps.come + 1;
            match coming {
                Coming::Canary => {
                    self.begin_canary(accelerators, Model { generation, swap: come });
                }
                Coming::Withdrawn => swap.leaving = self.swaps.canary.take(),
                Coming::Promoted => {
                    swap.promotes = true;
                    let model = self.swaps.canary.as_ref().map(|canary| canary.model);
                    self.replace(&mut swap, model.unwrap_or(self.swaps.model));
                }
                Coming::Replaces => {
                    self.swaps.come = come;
                    swap.comes_back = accelerators.is_empty();
                    swap.incoming = accelerators.into_iter().map(Some).collect();
                    self.replace(&mut swap, Model { generation, swap: come });
                }
            }
        }
        self.swaps.swap = Some(swap);
    }

    /// From now on this model answers new flows.
    fn replace(&mut self, swap: &mut Swap, model: Model) {
        let before = Kept::new(std::mem::replace(&mut self.swaps.model, model));
        swap.leaving = self.swaps.before.replace(before);
        swap.replaces = true;
        if let Some(cache) = &mut self.cache.cache {
            cache.begin(model.swap);
        }
    }

    /// What is no longer in use, once, when all devices have been replaced. Drop it where that may
    /// take time.
    pub fn take_retired(&mut self) -> Option<Retired> {
        let swap = self.swaps.swap.take_if(|swap| swap.is_over())?;
        let can_come_back = self.swaps.before.as_ref().is_some_and(Kept::can_come_back);
        Some(Retired { can_come_back, ..swap.retired })
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
        match (model.coming, &self.swaps.canary) {
            (Coming::Replaces | Coming::Canary, Some(_)) => {
                return Err(SwapError::Canary("a canary answers some flows: withdraw it first"));
            }
            (Coming::Promoted | Coming::Withdrawn, None) => {
                return Err(SwapError::Canary("there is no canary"));
            }
            (Coming::Promoted, Some(canary)) if canary.failure.is_some() => {
                return Err(SwapError::Canary("a device of the canary has failed"));
            }
            (Coming::Promoted | Coming::Withdrawn, Some(_)) => return Ok(()),
            _ => {}
        }
        let (found, expected) = (model.accelerators.len(), self.dispatch.device_slots.len());
        let kept = self.swaps.before.as_ref().filter(|kept| kept.can_come_back());
        let comes_back = found == 0 && kept.is_some() && model.coming == Coming::Replaces;
        if found != expected && !comes_back {
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

impl Task {
    /// Goes on with a swap: replaces the devices that are between two batches.
    pub(super) fn exchange(&mut self, now_ns: u64) {
        if self.swaps.swap.as_ref().is_some_and(Swap::is_in_vain) {
            self.stay();
        }
        let Task { swaps, dispatch, rings, labelling, .. } = self;
        let Swaps { swap: Some(swap), before, canary, model, .. } = swaps else {
            return;
        };
        if swap.is_over() {
            return;
        }
        swap.let_go();
        let Some(before) = before.as_mut().filter(|_| swap.replaces) else {
            return;
        };
        let counters = &mut labelling.counters;
        let began_ns = *swap.began_ns.get_or_insert_with(|| {
            before.take_over(dispatch, rings, now_ns, &mut counters.phases);
            now_ns
        });
        if std::mem::take(&mut swap.promotes)
            && let Some(canary) = canary.take()
        {
            self.changes += u64::from(before.give_way(dispatch, canary, &mut counters.devices));
        }
        for (i, device_slot) in dispatch.device_slots.iter_mut().enumerate() {
            if !device_slot.can_be_replaced() {
                continue;
            }
            let Some(accelerator) = swap.incoming.get_mut(i).and_then(Option::take) else {
                continue;
            };
            let device = &mut counters.devices[i];
            device.replaced_by(&accelerator, device_slot.is_up());
            self.changes += u64::from(!device_slot.plans_as(&accelerator));
            before.add(i, device_slot.replace(accelerator, *model, now_ns));
        }
        if swap.is_over() {
            counters.swaps += 1;
            counters.last_swap = Duration::from_nanos(now_ns.saturating_sub(began_ns));
            dispatch.reserve();
            rings.set_largest_batch(dispatch.largest());
        }
    }

    /// The devices in use stay, and answer what waited for them at the commit. Allocates.
    fn stay(&mut self) {
        let Swaps { swap: Some(swap), before, model, .. } = &mut self.swaps else {
            return;
        };
        swap.give_up();
        if let Some(in_use) = before.take() {
            *model = in_use.model;
            self.dispatch.retries.extend(in_use.dispatch.retries);
            // The new model has answered nothing, so all that it finds is by the one in use.
            if let Some(cache) = &mut self.cache.cache {
                cache.begin(model.swap);
            }
        }
    }

    /// The devices of one model.
    pub(super) fn dispatch_of(&mut self, role: Role) -> Option<&mut Dispatch> {
        self.swaps.dispatch_of(role, &mut self.dispatch)
    }
}

impl Swaps {
    /// The devices of one model, where `in_use` are those in use.
    pub fn dispatch_of<'a>(
        &'a mut self,
        role: Role,
        in_use: &'a mut Dispatch,
    ) -> Option<&'a mut Dispatch> {
        match role {
            Role::InUse => Some(in_use),
            _ => self.kept_as(role).map(|kept| &mut kept.dispatch),
        }
    }

    /// A model beside the one in use.
    pub fn kept_as(&mut self, role: Role) -> Option<&mut Kept> {
        match role {
            Role::InUse => None,
            Role::Before => self.before.as_mut(),
            Role::Leaving => self.swap.as_mut().and_then(|swap| swap.leaving.as_mut()),
            Role::Canary => self.canary.as_mut(),
        }
    }

    /// The place in the task of a model's device.
    pub fn number(&mut self, role: Role, i: usize) -> usize {
        let kept = self.kept_as(role);
        kept.and_then(|kept| kept.numbers.get(i).copied()).unwrap_or(i)
    }

    /// The devices beside those in use.
    pub fn kept(&self) -> impl Iterator<Item = &Dispatch> {
        let leaving = self.swap.as_ref().and_then(|swap| swap.leaving.as_ref());
        self.before.iter().chain(leaving).chain(&self.canary).map(|kept| &kept.dispatch)
    }

    /// Whether devices that are to come back answer what they took before. Until they come, nothing
    /// new is fired: of two depths of a flow that wait, only one might fit into the last batch of
    /// the devices in use.
    pub fn await_devices(&self) -> bool {
        let back = self.swap.as_ref().filter(|swap| swap.comes_back);
        back.and_then(|swap| swap.leaving.as_ref()).is_some_and(Kept::can_come_back)
    }

    /// Whether more of the devices before are to come.
    pub fn is_exchanging(&self) -> bool {
        self.swap.as_ref().is_some_and(|swap| !swap.is_over())
    }
}

impl Swap {
    /// Lets go of the model that leaves, when it has nothing left to answer.
    fn let_go(&mut self) {
        let comes_back = self.comes_back;
        let is_done =
            |kept: &mut Kept| kept.dispatch.is_empty() && (!comes_back || kept.can_come_back());
        let Some(kept) = self.leaving.take_if(is_done) else {
            return;
        };
        let slots = kept.dispatch.device_slots.into_iter();
        let accelerators = slots.map(DeviceSlot::into_accelerator);
        match comes_back {
            true => self.incoming = accelerators.map(Some).collect(),
            false => self.retired.accelerators = accelerators.collect(),
        }
    }

    /// Whether a device that was to come back has missed its deadline, and the others have
    /// answered.
    fn is_in_vain(&self) -> bool {
        let leaving = self.leaving.as_ref().filter(|_| self.comes_back);
        leaving.is_some_and(|kept| kept.dispatch.is_empty() && !kept.can_come_back())
    }

    /// Nothing comes back, and nothing is replaced.
    fn give_up(&mut self) {
        (self.comes_back, self.replaces) = (false, false);
        self.retired.has_stayed = true;
        self.let_go();
    }

    fn is_over(&self) -> bool {
        !self.promotes && self.leaving.is_none() && self.incoming.iter().all(Option::is_none)
    }
}
