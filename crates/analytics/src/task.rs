//! One task of an analytics manager: the walk of its series, in three steps.
//!
//! 1. [`collect`](Task::collect): batches that a device has finished become labels, and fill the
//!    cache.
//! 2. [`poll`](rings::Rings::poll): each series that has come down a ring since the last round is
//!    looked up in the cache, once. A hit is labelled on the spot, a miss waits. A series of a task
//!    that is asked only where the labels of other tasks say so waits for those first ([`after`]).
//! 3. [`fire`](Task::fire): as long as a device is free and the policy wants a batch, the oldest
//!    that wait are [gathered](row_layout) from their ring slots straight into the device's input,
//!    and submitted.
//!
//! The order matters twice: results enter the cache before the next look, and what was just seen
//! can be in the batch that is fired next.
//!
//! Rings are taken in turn. Each round begins with another ring and looks at no more of its series
//! than the largest batch holds. Among all series seen, the oldest goes first, whatever its ring;
//! so a flow manager that floods its ring delays another ring's series only by what was seen of its
//! own.
//!
//! A device that fails loses the series of that batch to another one, and gets no batch until a
//! probe succeeds: see [`collect`] and [`device_slot`](crate::device_slot). While no device is up,
//! series are shed at once.

pub(crate) mod after;
mod at_once;
mod canary;
mod collect;
mod kept;
pub(crate) mod labelling;
mod measure;
mod planned;
mod rings;
pub mod row_layout;
mod settings;
mod swap;
mod whose;

use crate::batching::{Decision, Fire, Situation, SloPlan};
use crate::cache::Cache;
use crate::controller::Goal;
use crate::device_slot::{DeviceSlot, Model};
use crate::dispatch::Dispatch;
use crate::executors::Executors;
use crate::{
    Accelerator, Config, ConfigError, Counters, DeviceHealth, DeviceProfile, Policy, RingInput,
    Trigger,
};
use at_once::Times;
pub use canary::CANARY_ONE_IN;
use labelling::Labelling;
use measure::Measure;
use rings::{Rings, TimedCache};
use row_layout::RowLayout;
pub use settings::Settings;
use std::time::{Duration, Instant};
pub use swap::{Coming, NewModel, Refused, Retired, Standby, SwapError};
use swap::{Role, Swaps};
use whose::Models;

/// The longest sleep while series wait for other tasks' labels. Those may come from a ring that was
/// looked at before, so nothing else tells that there is work.
const PARKED_POLL: Duration = Duration::from_micros(100);

/// Takes the series of one task from its inputs, classifies them on its devices, and labels their
/// flows.
pub struct Task {
    terms: Terms,
    rows: RowLayout,
    rings: Rings,
    cache: TimedCache,
    dispatch: Dispatch,
    labelling: Labelling,
    swaps: Swaps,
    /// What policies with a goal keep to in this control period.
    plan: SloPlan,
    /// What answers at once take.
    times: Times,
    /// When the timer started by which policies measure the timeout.
    timer_ns: u64,
    draining: bool,
    /// Models beside the one in use went first in the last round.
    kept_first: bool,
    /// Expected time of this round's batches on the manager's thread.
    work_ns: u64,
    /// How often its policy or priority, or its devices' sizes or profiles, have changed.
    changes: u64,
}

/// The part of a task's configuration that its manager uses.
pub(crate) struct Terms {
    /// When batches fire.
    pub policy: Policy,
    /// Where devices cannot keep up, tasks with the greatest go first.
    pub priority: u8,
    /// Number of the label word of the first depth.
    pub word: u8,
}

impl Task {
    /// A task for these flow managers and devices. Everything a round needs is allocated here.
    /// Without flow managers it only answers at once ([`Task::answer`]), or, without devices as
    /// well, holds the place of a task that another manager serves.
    ///
    /// # Errors
    /// When the configuration is impossible in itself, or an accelerator does not fit it.
    pub fn new(
        config: Config,
        inputs: Vec<RingInput>,
        mut accelerators: Vec<Accelerator>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        if !inputs.is_empty() && accelerators.is_empty() {
            let why = "an analytics manager needs at least one device".to_owned();
            return Err(ConfigError(why));
        }
        for accelerator in &mut accelerators {
            accelerator.check(
                config.k,
                config.features.len(),
                config.context.len(),
                config.policy,
            )?;
        }
        let began = Instant::now();
        let labelling = Labelling::new(&accelerators, Measure::new(goal(config.policy)));
        let dispatch = Dispatch::new(accelerators, Model::default());
        let mut rings = Rings::new(inputs, config.after.clone());
        rings.set_largest_batch(dispatch.largest());
        Ok(Self {
            terms: Terms { policy: config.policy, priority: config.priority, word: config.word },
            rows: RowLayout::new(&config),
            rings,
            cache: TimedCache {
                cache: Cache::new(&config.cache, &config.features, &config.context),
                clock: Box::new(move || began.elapsed().as_nanos() as u64),
            },
            dispatch,
            labelling,
            swaps: Swaps::default(),
            plan: SloPlan::AT_ONCE,
            times: Times::default(),
            timer_ns: 0,
            draining: false,
            kept_first: false,
            work_ns: 0,
            changes: 0,
        })
    }

    /// Sets the clock, in ns, that measures the cache's costs. With a clock that stands still the
    /// cache never turns itself off, so that it does not depend on time.
    pub fn set_cost_clock(&mut self, clock: impl Fn() -> u64 + Send + 'static) {
        self.cache.clock = Box::new(clock);
    }

    /// The first part of a round. Returns whether a batch came back, and whether series were seen.
    /// `decided` counts the labels of all tasks of the manager.
    pub(crate) fn take_in(&mut self, now_ns: u64, decided: u64) -> (bool, bool) {
        let collected = self.collect(now_ns);
        self.exchange(now_ns);
        let mut models =
            Models { word: self.terms.word, in_use: &self.dispatch, swaps: &mut self.swaps };
        let nothing_waited = self.rings.waiting() == 0;
        let (cache, labelling) = (&mut self.cache, &mut self.labelling);
        let seen = self.rings.poll(now_ns, decided, &mut models, cache, labelling);
        if nothing_waited && self.rings.waiting() > 0 {
            self.timer_ns = now_ns;
        }
        (collected, seen)
    }

    /// Time until the next batch is due; the caller may sleep that long. Zero while a batch is on
    /// its way through a device.
    #[must_use]
    pub fn time_until_due(&self, now_ns: u64) -> Duration {
        if self.is_under_way() {
            return Duration::ZERO;
        }
        let parked = match self.rings.has_parked() {
            true => PARKED_POLL,
            false => Duration::MAX,
        };
        let Some(seen_ns) = self.rings.oldest_seen_ns() else {
            return parked;
        };
        let since = |then_ns| Duration::from_nanos(now_ns.saturating_sub(then_ns));
        let policy = self.terms.policy;
        let due = policy
            .time_until_due(since(self.timer_ns), since(seen_ns))
            .min(policy.max_poll_interval());
        // At the present rate of arrival the largest batch is full after twice this time.
        let (waiting, largest) = (self.rings.waiting(), self.dispatch.largest());
        let missing = largest.saturating_sub(waiting) as f64;
        due.min(since(seen_ns).mul_f64(missing / (2 * waiting) as f64)).min(parked)
    }

    /// From now on fires at once whatever is there: the producers have ended, or soon will.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The producers may wait for a label before they send more
    /// ([`Manager::gather`](crate::Manager::gather)).
    pub(crate) fn expect_stalls(&mut self) {
        self.rings.expect_stalls();
    }

    /// Whether all producers had closed at the last round and no series or batch is left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rings.is_done() && !self.is_under_way()
    }

    /// What has been counted so far. Clone it to keep a snapshot.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.labelling.counters
    }

    /// How the devices are, in the order in which they were given.
    pub fn health(&self) -> impl Iterator<Item = DeviceHealth<'_>> {
        let device_slots = self.dispatch.device_slots.iter();
        device_slots.zip(&self.labelling.counters.devices).map(|(device_slot, counters)| {
            DeviceHealth {
                requested: &counters.requested,
                state: device_slot.state(),
                since_ns: device_slot.since_ns(),
                last_error: counters.last_error.as_deref(),
            }
        })
    }

    /// The profiles of the devices that have one, as they are now, in the order in which the
    /// devices were given.
    pub fn profiles(&self) -> impl Iterator<Item = Option<DeviceProfile>> {
        self.dispatch.profiles()
    }

    /// Series on their way through a device: undecided, and no longer waiting for a batch.
    #[must_use]
    pub fn on_devices(&self) -> u64 {
        self.dispatches().map(Dispatch::rows).sum()
    }

    /// Whether series are on their way through a device, or wait for another.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.dispatches().all(Dispatch::is_empty)
    }

    /// The devices of all models, those in use first.
    pub(crate) fn dispatches(&self) -> impl Iterator<Item = &Dispatch> {
        std::iter::once(&self.dispatch).chain(self.swaps.kept())
    }

    /// Fires batches for as long as a device is free and the policy wants it to have one. Returns
    /// whether anything was fired, or shed because no device is up.
    pub(crate) fn fire(&mut self, now_ns: u64, executors: &mut Executors) -> bool {
        // Each model goes first in turn, because they may share an executor.
        self.kept_first ^= true;
        let mut fired = self.kept_first && self.fire_kept(now_ns, executors);
        while let Some((device_slot, fire)) =
            self.dispatch.next_retry(executors).or_else(|| self.next_batch(now_ns, executors))
        {
            if fire.trigger == Trigger::Retry {
                self.rows.gather_again(&mut self.dispatch, device_slot, &fire);
            } else {
                let slot = &mut self.dispatch.device_slots[device_slot];
                let phases = &mut self.labelling.counters.phases;
                self.rows.gather(slot, &mut self.rings, &fire, now_ns, phases);
                if !fire.more {
                    self.timer_ns = now_ns;
                }
            }
            self.send((Role::InUse, device_slot), &fire, now_ns, executors);
            fired = true;
        }
        fired |= self.fire_kept(now_ns, executors);
        if self.dispatch.up() == 0 {
            fired |= self.shed();
        }
        fired | self.shed_kept()
    }

    /// Fires what is for the models beside the one in use.
    fn fire_kept(&mut self, now_ns: u64, executors: &mut Executors) -> bool {
        let mut fired = false;
        for role in Role::KEPT {
            while let Some(dispatch) = self.swaps.dispatch_of(role, &mut self.dispatch)
                && let Some((device_slot, fire)) = dispatch.next_retry(executors)
            {
                self.rows.gather_again(dispatch, device_slot, &fire);
                self.send((role, device_slot), &fire, now_ns, executors);
                fired = true;
            }
        }
        fired
    }

    /// Submits what was gathered, or leaves it to [`Task::submit_filled`].
    fn send(
        &mut self,
        (role, i): (Role, usize),
        fire: &Fire,
        now_ns: u64,
        executors: &mut Executors,
    ) {
        let number = self.swaps.number(role, i);
        let Some(dispatch) = self.swaps.dispatch_of(role, &mut self.dispatch) else {
            return;
        };
        dispatch.turn_after(i);
        let device_slot = &mut dispatch.device_slots[i];
        let executor = device_slot.executor();
        executors.take(executor);
        self.labelling.counters.fired(number, fire, 1);
        self.labelling.measure.fired(fire.take);
        self.work_ns = self.work_ns.saturating_add(device_slot.work_ns(fire.size));
        match executors.comes_last(executor) {
            true => device_slot.submit_later(fire.size),
            false => self.submit(role, i, fire.size, now_ns),
        }
    }

    /// Submits batches that run on the manager's thread, after all others.
    pub(crate) fn submit_filled(&mut self, now_ns: u64) {
        for role in Role::ALL {
            for i in 0..self.devices(role) {
                if let Some(size) = self.device_slot(role, i).and_then(DeviceSlot::take_filled) {
                    self.submit(role, i, size, now_ns);
                }
            }
        }
    }

    fn submit(&mut self, role: Role, i: usize, size: usize, now_ns: u64) {
        let submitted = self.device_slot(role, i).map(|slot| slot.submit(size, now_ns));
        if let Some(Err(failure)) = submitted {
            self.on_device_failure((role, i), true, &failure);
        }
    }

    /// How many devices a model has.
    fn devices(&mut self, role: Role) -> usize {
        self.dispatch_of(role).map_or(0, |dispatch| dispatch.device_slots.len())
    }

    fn device_slot(&mut self, role: Role, i: usize) -> Option<&mut DeviceSlot> {
        self.dispatch_of(role)?.device_slots.get_mut(i)
    }

    /// Asks the policy about each free device in turn, until it wants a batch.
    fn next_batch(&mut self, now_ns: u64, executors: &Executors) -> Option<(usize, Fire)> {
        if !self.dispatch.retries.is_empty() || self.swaps.await_devices() {
            return None;
        }
        let oldest_ns = self.rings.oldest_seen_ns()?;
        let emitted_ns = self.rings.oldest_emitted_ns()?;
        let since = |then_ns| Duration::from_nanos(now_ns.saturating_sub(then_ns));
        let waiting = self.rings.waiting();
        let ring_full = self.rings.is_crowded();
        let mut expired = false;
        for (i, device_slot) in self.dispatch.free(executors) {
            match self.terms.policy.decide(&Situation {
                waiting,
                oldest_waited: since(oldest_ns),
                oldest_age: since(emitted_ns),
                timer: since(self.timer_ns),
                sizes: device_slot.sizes(),
                profile: device_slot.profile(),
                plan: self.plan,
                ring_full,
                stalled: self.rings.is_stalled(now_ns),
                draining: self.draining,
            }) {
                Decision::Wait => {}
                Decision::WaitAnotherTimeout => expired = true,
                Decision::Fire(fire) => return Some((i, fire)),
            }
        }
        if expired {
            self.timer_ns = now_ns;
        }
        None
    }
}

/// The goal of a policy that has one.
fn goal(policy: Policy) -> Option<Goal> {
    let (latency, delta) = policy.goal()?;
    Some(Goal { latency, delta })
}

#[cfg(test)]
mod tests;
