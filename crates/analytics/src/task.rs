//! One task of an analytics manager: the walk of its series, in three steps.
//!
//! 1. [`collect`](Task::collect): batches that a device has finished become labels, and fill the cache.
//! 2. [`look`](Task::look): each series that has come down a ring since the last round is looked up in the cache,
//!    once. A hit is labelled on the spot, a miss waits. A series of a task that is asked only where the labels of other
//!    tasks say so first waits for those ([`after`]).
//! 3. [`fire`](Task::fire): as long as a device is free and the policy wants a batch, the oldest that wait are
//!    [gathered](Task::gather) from their ring slots straight into the device's input, and submitted.
//!
//! The order matters twice: results are entered in the cache before the next look, and what was just seen can be in the
//! batch that is fired next.
//!
//! Rings are taken in turn. Each round begins with another ring and looks at a bounded number of its series,
//! as many as the largest batch holds. Among all that was seen the oldest goes first, whatever its ring; so a flow manager
//! that floods its ring delays another one's series by no more than what it has waiting there.
//!
//! A device that fails loses the series of that batch to another one, and is left alone until a probe goes well: see
//! [`collect`] and [`device_slot`](crate::device_slot). While no device is up, series are shed at once.

pub(crate) mod after;
mod collect;
mod gather;
mod look;
mod measure;
mod planned;
mod settings;
mod swap;

use crate::batching::{Decision, Fire, Plan, Situation};
use crate::cache::Cache;
use crate::controller::Goal;
use crate::device_slot::DeviceSlot;
use crate::dispatch::Dispatch;
use crate::lanes::Lanes;
use crate::ring_input::Queue;
use crate::{
    Accelerator, After, Config, ConfigError, Counters, DeviceHealth, DeviceProfile, Policy,
    RingInput, Trigger,
};
use cring::{Context, Feature};
use measure::Measure;
pub use settings::Settings;
use std::time::{Duration, Instant};
use swap::Swap;
pub use swap::{NewModel, Refused, Retired, Standby, SwapError};

/// A round looks at this many series of a ring input even where batches are smaller, because the cache may answer most.
const LOOK_MAX_LEAST: usize = 64;

/// How long to rest at most while series wait for the labels of others. Those may be on a ring that was looked at before they
/// were there, so nothing else says that there is something to do.
const PARKED_POLL: Duration = Duration::from_micros(100);

/// After so long without news a producer that may wait for a label is taken to do so. Much longer than one that does not takes
/// to read on.
const STALL: Duration = Duration::from_millis(5);

/// What the cache's costs are measured by, in ns.
type CostClock = Box<dyn Fn() -> u64 + Send>;

/// Takes the series of one task from its inputs, classifies them on its devices, and labels their flows.
pub struct Task {
    k: usize,
    /// One channel of a device's input each, in this order.
    features: Vec<Feature>,
    /// One number of a device's context each, in this order.
    context: Vec<Context>,
    policy: Policy,
    /// The row that failed devices are probed with, and the context behind it.
    probe: Vec<f32>,
    queues: Vec<Queue>,
    /// What the labels of other tasks must say before this one is asked.
    after: After,
    /// Series whose other labels are there by now; empty between two looks.
    ready: Vec<after::Ready>,
    /// Labels of any task of the manager that were decided by now, and by the last look at series that wait for some.
    decided_elsewhere: u64,
    reconsidered_at: u64,
    dispatch: Dispatch,
    cache: Option<Cache>,
    cost_clock: CostClock,
    /// What policies with a goal keep to, as of this control period.
    plan: Plan,
    /// What the controller wants to know of this period.
    measure: Measure,
    /// Number of the label word of its first depth.
    word: u8,
    priority: u8,
    devices_left: usize,
    unreachable: Option<Duration>,
    /// How often its policy has changed, or the sizes of its devices or what their batches take by their profiles.
    changes: u64,
    counters: Counters,
    /// When the timer was started that the policies measure the timeout by.
    timer_ns: u64,
    /// The ring input with which this round began.
    turn: usize,
    /// How many series of one ring input are looked at in one round, at most.
    look_max: usize,
    draining: bool,
    /// In a replay whose producers may wait for labels: when something new was last seen. `None` where they wait for nothing.
    news_ns: Option<u64>,
    /// How long batches since the last round are expected to take that ran on the manager's thread.
    work_ns: u64,
    /// Accepted, and not in use before [`Task::commit`].
    standby: Option<Standby>,
    swap: Option<Swap>,
    /// How often the model has been swapped, or is being.
    swaps: u32,
}

impl Task {
    /// A task for these flow managers and devices. Everything a round needs is allocated here.
    ///
    /// # Errors
    /// When the configuration is impossible in itself, or an accelerator does not fit it.
    pub fn new(
        config: Config,
        inputs: Vec<RingInput>,
        mut accelerators: Vec<Accelerator>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        if inputs.is_empty() {
            return Err(ConfigError::NoInputs);
        }
        if accelerators.is_empty() {
            return Err(ConfigError::NoDevices);
        }
        for accelerator in &mut accelerators {
            accelerator.check(
                config.k,
                config.features.len(),
                config.context.len(),
                config.policy,
            )?;
        }
        let row_len = config.row_len();
        let mut probe = config.probe;
        probe.resize(row_len + config.context.len(), 0.0);
        let counters = Counters::new(&accelerators);
        let dispatch = Dispatch::new(accelerators);
        let began = Instant::now();
        Ok(Self {
            k: config.k,
            policy: config.policy,
            probe,
            ready: after::room_for(&config.after, &inputs),
            decided_elsewhere: 0,
            reconsidered_at: 0,
            queues: inputs
                .into_iter()
                .map(|input| Queue::new(input, !config.after.is_nothing()))
                .collect(),
            after: config.after,
            cache: Cache::new(&config.cache, &config.features, &config.context),
            cost_clock: Box::new(move || began.elapsed().as_nanos() as u64),
            plan: Plan::AT_ONCE,
            measure: Measure::new(goal(config.policy)),
            word: config.word,
            priority: config.priority,
            devices_left: 0,
            unreachable: None,
            changes: 0,
            counters,
            timer_ns: 0,
            turn: 0,
            look_max: dispatch.largest().max(LOOK_MAX_LEAST),
            dispatch,
            draining: false,
            news_ns: None,
            work_ns: 0,
            standby: None,
            swap: None,
            swaps: 0,
            features: config.features,
            context: config.context,
        })
    }

    /// Measures by this clock, in ns, what the cache costs. Without a call it is the machine's. One that stands still
    /// keeps the cache from ever turning itself off, for when what it does must not depend on the time.
    pub fn set_cost_clock(&mut self, clock: impl Fn() -> u64 + Send + 'static) {
        self.cost_clock = Box::new(clock);
    }

    /// The first part of a round, alone where others than a [`crate::Manager`] say who fires next: whether a batch came back, and
    /// whether series were seen.
    pub fn take_in(&mut self, now_ns: u64) -> (bool, bool) {
        let collected = self.collect(now_ns);
        self.swap_devices(now_ns);
        (collected, self.look(now_ns))
    }

    /// How long nothing will be due but to look at what has come down the rings, so that the caller knows how long it may
    /// rest: zero while something is on its way through a device.
    #[must_use]
    pub fn time_until_due(&self, now_ns: u64) -> Duration {
        if !self.dispatch.is_empty() {
            return Duration::ZERO;
        }
        let parked = match self.queues.iter().any(Queue::has_parked) {
            true => PARKED_POLL,
            false => Duration::MAX,
        };
        let Some(seen_ns) = self.queues.iter().filter_map(Queue::oldest_seen_ns).min() else {
            return parked;
        };
        let since = |then_ns| Duration::from_nanos(now_ns.saturating_sub(then_ns));
        let due = self
            .policy
            .time_until_due(since(self.timer_ns), since(seen_ns))
            .min(self.policy.max_poll_interval());
        // If they go on to come as they have, the largest batch is full after twice this time.
        let (waiting, largest) = (self.waiting(), self.dispatch.largest());
        let missing = largest.saturating_sub(waiting) as f64;
        due.min(since(seen_ns).mul_f64(missing / (2 * waiting) as f64))
            .min(parked)
    }

    /// From now on fires at once whatever is there: the producers have ended, or soon will.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The producers may wait for a label before they send more ([`Manager::gather`](crate::Manager::gather)).
    pub(crate) fn expect_stalls(&mut self) {
        self.news_ns = Some(0);
    }

    /// Whether producers that may wait for a label have sent nothing for some time.
    fn is_stalled(&self, now_ns: u64) -> bool {
        let stall_ns = STALL.as_nanos() as u64;
        self.news_ns
            .is_some_and(|news_ns| now_ns.saturating_sub(news_ns) >= stall_ns)
    }

    /// Whether all is over: at the last round each ring input's producer was gone and its ring empty, and nothing is on its
    /// way through a device.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.queues.iter().all(Queue::is_done) && self.dispatch.is_empty()
    }

    /// What has been counted so far. Clone it to keep a snapshot.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How the devices are, in the order in which they were given.
    pub fn health(&self) -> impl Iterator<Item = DeviceHealth<'_>> {
        let device_slots = self.dispatch.device_slots.iter();
        device_slots
            .zip(&self.counters.devices)
            .map(|(device_slot, counters)| DeviceHealth {
                requested: &counters.requested,
                state: device_slot.state(),
                since_ns: device_slot.since_ns(),
                last_error: counters.last_error.as_deref(),
            })
    }

    /// The profiles of the devices that have one, as they are now, in the order in which the devices were given.
    pub fn profiles(&self) -> impl Iterator<Item = Option<DeviceProfile>> {
        let device_slots = self.dispatch.device_slots.iter();
        device_slots.map(DeviceSlot::live_profile)
    }

    /// Series on their way through a device: of those undecided, the ones that do not wait for a batch.
    #[must_use]
    pub fn on_devices(&self) -> u64 {
        let rows = self
            .dispatch
            .device_slots
            .iter()
            .flat_map(|device_slot| device_slot.rows.iter());
        rows.filter(|(row, _)| row.audit.is_none()).count() as u64
    }

    /// Fires batches for as long as a device is free and the policy wants it to have one. Returns whether anything was
    /// fired, or shed because no device is up.
    pub(crate) fn fire(&mut self, now_ns: u64, lanes: &mut Lanes) -> bool {
        let mut fired = false;
        while let Some((device_slot, fire)) = self
            .next_retry(lanes)
            .or_else(|| self.next_batch(now_ns, lanes))
        {
            let lane = self.dispatch.device_slots[device_slot].lane();
            lanes.take(lane);
            self.dispatch.turn_after(device_slot);
            if fire.trigger == Trigger::Retry {
                self.gather_again(device_slot, &fire);
            } else {
                self.gather(device_slot, &fire, now_ns);
                if !fire.more {
                    self.timer_ns = now_ns;
                }
            }
            self.counters.fired(device_slot, &fire);
            self.measure.fired(fire.take);
            let work_ns = self.dispatch.device_slots[device_slot].work_ns(fire.size);
            self.work_ns = self.work_ns.saturating_add(work_ns);
            match lanes.comes_last(lane) {
                true => self.dispatch.device_slots[device_slot].submit_later(fire.size),
                false => self.submit(device_slot, fire.size, now_ns),
            }
            fired = true;
        }
        if self.dispatch.up() == 0 {
            fired |= self.shed();
        }
        fired
    }

    /// Submits batches that work on the manager's thread, after all that do not.
    pub(crate) fn submit_filled(&mut self, now_ns: u64) {
        for i in 0..self.dispatch.device_slots.len() {
            if let Some(size) = self.dispatch.device_slots[i].take_filled() {
                self.submit(i, size, now_ns);
            }
        }
    }

    fn submit(&mut self, device_slot: usize, size: usize, now_ns: u64) {
        if let Err(failure) = self.dispatch.device_slots[device_slot].submit(size, now_ns) {
            self.on_device_failure(device_slot, true, &failure);
        }
    }

    /// A batch of those whose first device has failed, if there are any and a device is free.
    fn next_retry(&self, lanes: &Lanes) -> Option<(usize, Fire)> {
        let retries = self.dispatch.retries.len();
        if retries == 0 {
            return None;
        }
        let (i, device_slot) = self.dispatch.free(lanes).next()?;
        let take = retries.min(device_slot.sizes().largest());
        let fire = Fire {
            take,
            size: device_slot.sizes().fitting(take)?,
            trigger: Trigger::Retry,
            more: false,
        };
        Some((i, fire))
    }

    /// Asks the policy about each free device in turn, until it wants a batch.
    fn next_batch(&mut self, now_ns: u64, lanes: &Lanes) -> Option<(usize, Fire)> {
        if !self.dispatch.retries.is_empty() {
            return None;
        }
        let oldest_ns = self.queues.iter().filter_map(Queue::oldest_seen_ns).min()?;
        let emitted_ns = self.queues.iter().filter_map(Queue::oldest_emitted_ns);
        let emitted_ns = emitted_ns.min()?;
        let since = |then_ns| Duration::from_nanos(now_ns.saturating_sub(then_ns));
        let waiting = self.waiting();
        let ring_full = self.queues.iter().any(Queue::is_full);
        let mut expired = false;
        for (i, device_slot) in self.dispatch.free(lanes) {
            match self.policy.decide(&Situation {
                waiting,
                oldest_waited: since(oldest_ns),
                oldest_age: since(emitted_ns),
                timer: since(self.timer_ns),
                sizes: device_slot.sizes(),
                profile: device_slot.profile(),
                plan: self.plan,
                ring_full,
                stalled: self.is_stalled(now_ns),
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

    /// Numbers in one row of a device's input.
    fn row_len(&self) -> usize {
        self.k * self.features.len()
    }

    /// Series that wait, in all rings.
    fn waiting(&self) -> usize {
        self.queues.iter().map(Queue::waiting).sum()
    }
}

/// What a policy is to keep to, where it has a goal.
fn goal(policy: Policy) -> Option<Goal> {
    let (latency, delta) = policy.goal()?;
    Some(Goal { latency, delta })
}

#[cfg(test)]
mod tests;
