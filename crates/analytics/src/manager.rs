//! The round: the whole walk of the series, in three steps.
//!
//! 1. [`collect`](Manager::collect): batches that a device has finished become labels, and fill the cache.
//! 2. [`look`](Manager::look): each series that has come down a ring since the last round is looked up in the cache, once.
//!    A hit is labelled on the spot, a miss waits.
//! 3. [`fire`](Manager::fire): as long as a device is idle and the policy wants a batch, the oldest that wait are
//!    [gathered](Manager::gather) from their ring slots straight into the device's input, and submitted.
//!
//! The order matters twice: results are entered in the cache before the next look, and what was just seen can be in the
//! batch that is fired next.
//!
//! Rings are taken in turn. Each round begins with another inlet and looks at a bounded number of one inlet's series, as
//! many as the largest batch holds. Among all that was seen the oldest goes first, whatever its inlet; so an inlet that
//! floods its ring delays another one's series by no more than what it has waiting there.
//!
//! A device that fails takes the series of that one batch with it: they are counted as failed, their flows stay without
//! a label, and the device gets its next batch as if nothing had been.

use crate::batching::{Decision, Fire, Situation};
use crate::cache::{Answer, Cache, LookUp};
use crate::dispatch::{Dispatch, Lane, Purpose, Row};
use crate::inlet::Queue;
use crate::{Accelerator, Config, ConfigError, Counters, DeviceHealth, DeviceState, Inlet, Policy};
use accel::Classification;
use cring::{Label, Series, Slot, Source};
use std::time::{Duration, Instant};

mod swap;

use swap::Swap;
pub use swap::{Refused, Standby, SwapError};

/// A round looks at this many series of an inlet even where batches are smaller, because the cache may answer most.
const LOOK_MAX_LEAST: usize = 64;

/// What a round came to, so that the caller knows whether to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// A batch was fired, or one came back.
    Worked,
    /// Series were seen; they wait for a batch, or the cache had their label.
    Seen,
    /// Nothing happened.
    Idle,
}

/// Takes series from its inlets, classifies them on its devices, and labels their flows. Belongs to one thread, which
/// calls [`Manager::round`] again and again.
pub struct Manager {
    k: usize,
    policy: Policy,
    queues: Vec<Queue>,
    dispatch: Dispatch,
    cache: Option<Cache>,
    counters: Counters,
    /// When the timer was started that the policies measure the timeout by.
    timer_ns: u64,
    /// The inlet with which this round began.
    turn: usize,
    /// How many series of one inlet are looked at in one round, at most.
    look_max: usize,
    draining: bool,
    swap: Option<Swap>,
}

impl Manager {
    /// A manager for these flow managers and devices. Everything a round needs is allocated here.
    ///
    /// # Errors
    /// When the configuration is impossible in itself, or a device's sizes or input do not fit it.
    pub fn new(
        config: Config,
        inlets: Vec<Inlet>,
        mut accelerators: Vec<Accelerator>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        if inlets.is_empty() {
            return Err(ConfigError::NoInlets);
        }
        if accelerators.is_empty() {
            return Err(ConfigError::NoDevices);
        }
        for accelerator in &mut accelerators {
            accelerator.check(config.k, config.policy)?;
        }
        let largest = accelerators.iter().map(|a| a.device.sizes().largest());
        let largest = largest.max().unwrap_or(0);
        Ok(Self {
            k: config.k,
            policy: config.policy,
            counters: Counters::new(&accelerators),
            queues: inlets.into_iter().map(Queue::new).collect(),
            dispatch: Dispatch::new(accelerators),
            cache: Cache::new(&config.cache),
            timer_ns: 0,
            turn: 0,
            look_max: largest.max(LOOK_MAX_LEAST),
            draining: false,
            swap: None,
        })
    }

    /// One round, at `now_ns` on the clock that [`cring::Slot::emitted_ns`] is on. Never blocks, though a device without
    /// a thread of its own works in here.
    pub fn round(&mut self, now_ns: u64) -> Round {
        let collected = self.collect(now_ns);
        self.change_over(now_ns);
        let seen = self.look(now_ns);
        let fired = self.fire(now_ns);
        match seen {
            _ if collected || fired => Round::Worked,
            true => Round::Seen,
            false => Round::Idle,
        }
    }

    /// From now on fires at once whatever is there: the producers have ended, or soon will.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether all is over: at the last round each inlet's producer was gone and its ring empty, and nothing is on its way
    /// through a device.
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
        self.counters.devices.iter().map(|device| DeviceHealth {
            requested: &device.requested,
            state: DeviceState::Up,
            since_ns: 0,
            last_error: device.last_error.as_deref(),
        })
    }

    /// Forgets every answer in the prefix cache, and keeps those out that are still on their way: for when the devices
    /// get another model.
    fn clear_cache(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.clear();
        }
        for row in self.dispatch.lanes.iter_mut().flat_map(|l| &mut l.rows) {
            if let Purpose::Label(key) = &mut row.purpose {
                *key = None;
            }
        }
    }

    /// Turns finished batches into labels. Returns whether there were any.
    fn collect(&mut self, now_ns: u64) -> bool {
        let mut collected = false;
        for (i, lane) in self.dispatch.lanes.iter_mut().enumerate() {
            lane.resting = false;
            if lane.rows.is_empty() {
                continue;
            }
            let Some(result) = lane.accelerator.device.poll() else {
                continue;
            };
            collected = true;
            let answers = result.unwrap_or_else(|error| {
                self.counters.devices[i].failed(&error.into());
                &[]
            });
            settle(
                &mut lane.rows,
                answers,
                now_ns,
                &self.queues,
                &mut self.cache,
                &mut self.counters,
            );
        }
        collected
    }

    /// Looks at what is new in the rings, in turn. Returns whether there was anything.
    fn look(&mut self, now_ns: u64) -> bool {
        self.turn = (self.turn + 1) % self.queues.len();
        let nothing_waited = self.waiting() == 0;
        let mut seen = 0;
        for i in in_turn(self.turn, self.queues.len()) {
            seen += self.look_at(i, now_ns);
        }
        if nothing_waited && self.waiting() > 0 {
            self.timer_ns = now_ns;
        }
        seen > 0
    }

    /// Looks at what is new in one ring, up to the bound. Returns how many series that were.
    fn look_at(&mut self, inlet: usize, now_ns: u64) -> usize {
        let queue = &mut self.queues[inlet];
        let new = queue.unseen().min(self.look_max);
        if new == 0 {
            return 0;
        }
        self.counters.series += new as u64;
        let Some(cache) = &mut self.cache else {
            (0..new).for_each(|_| queue.keep(now_ns, None));
            return new;
        };
        let began = Instant::now();
        for _ in 0..new {
            let slot = queue.next();
            let LookUp::Hit { answer, audit } = cache.look_up(&slot.series) else {
                queue.keep(now_ns, None);
                continue;
            };
            let emitted_ns = slot.emitted_ns;
            let taken = queue.decide(slot.flow, answer.label(Source::Cache));
            self.counters.cache.hits += 1;
            self.counters.cached += 1;
            self.counters
                .labelled(taken, now_ns.saturating_sub(emitted_ns));
            if audit {
                queue.keep(now_ns, Some(answer.class));
            } else {
                queue.pass();
            }
        }
        queue.release();
        let spent = &mut self.counters.cache;
        spent.lookups += new as u64;
        spent.lookup_time += began.elapsed();
        new
    }

    /// Fires batches for as long as a device is idle and the policy wants it to have one. Returns whether any was fired.
    fn fire(&mut self, now_ns: u64) -> bool {
        let mut fired = false;
        while let Some((lane, fire)) = self.next_batch(now_ns) {
            self.gather(lane, &fire);
            self.submit(lane, &fire, now_ns);
            self.timer_ns = now_ns;
            fired = true;
        }
        fired
    }

    /// Asks the policy about each idle device in turn, until it wants a batch.
    fn next_batch(&mut self, now_ns: u64) -> Option<(usize, Fire)> {
        let oldest_ns = self.queues.iter().filter_map(Queue::oldest_seen_ns).min()?;
        let waiting = self.waiting();
        let ring_full = self.queues.iter().any(Queue::is_full);
        let mut expired = false;
        for (lane, device) in self.dispatch.idle() {
            match self.policy.decide(&Situation {
                waiting,
                oldest_waited: Duration::from_nanos(now_ns.saturating_sub(oldest_ns)),
                timer: Duration::from_nanos(now_ns.saturating_sub(self.timer_ns)),
                sizes: device.sizes(),
                ring_full,
                draining: self.draining,
            }) {
                Decision::Wait => {}
                Decision::WaitAnotherTimeout => expired = true,
                Decision::Fire(fire) => return Some((lane, fire)),
            }
        }
        if expired {
            self.timer_ns = now_ns;
        }
        None
    }

    /// Copies the oldest series that wait into the device's input, and pads the rest of the batch with zeros.
    fn gather(&mut self, lane: usize, fire: &Fire) {
        self.dispatch.turn_after(lane);
        let Lane {
            accelerator, rows, ..
        } = &mut self.dispatch.lanes[lane];
        let input = accelerator.device.input(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * self.k);
        for lengths in series.chunks_exact_mut(self.k) {
            // A policy takes no more than waits, so this does not end the loop early.
            let Some((inlet, audit, slot)) = take_oldest(&mut self.queues, self.turn) else {
                break;
            };
            write_row(lengths, &slot.series);
            rows.push(Row {
                inlet,
                flow: slot.flow,
                emitted_ns: slot.emitted_ns,
                purpose: match audit {
                    Some(class) => Purpose::Audit(class),
                    None => Purpose::Label(self.cache.as_ref().map(|c| c.key(&slot.series))),
                },
            });
        }
        padding.fill(0.0);
        self.queues.iter_mut().for_each(Queue::release);
    }

    /// Gives the gathered batch to its device.
    fn submit(&mut self, lane: usize, fire: &Fire, now_ns: u64) {
        self.counters.fired(lane, fire);
        let Lane {
            accelerator,
            rows,
            resting,
        } = &mut self.dispatch.lanes[lane];
        if let Err(error) = accelerator.device.submit(fire.size) {
            *resting = true;
            self.counters.devices[lane].failed(&error.into());
            settle(
                rows,
                &[],
                now_ns,
                &self.queues,
                &mut self.cache,
                &mut self.counters,
            );
        }
    }

    /// Series that wait, in all rings.
    fn waiting(&self) -> usize {
        self.queues.iter().map(Queue::waiting).sum()
    }
}

/// Gives every row of a finished batch its fate: what the model said, or for rows without an answer, failure.
fn settle(
    rows: &mut Vec<Row>,
    answers: &[Classification],
    now_ns: u64,
    queues: &[Queue],
    cache: &mut Option<Cache>,
    counters: &mut Counters,
) {
    for (i, row) in rows.drain(..).enumerate() {
        let queue = &queues[row.inlet];
        match (row.purpose, answers.get(i).map(Answer::from)) {
            (Purpose::Label(key), Some(answer)) => {
                let taken = queue.decide(row.flow, answer.label(Source::Model));
                counters.inferred += 1;
                counters.labelled(taken, now_ns.saturating_sub(row.emitted_ns));
                if let (Some(cache), Some(key)) = (cache.as_mut(), key) {
                    cache.insert(key, answer);
                }
            }
            (Purpose::Label(_), None) => {
                // Where the flow is gone there is nobody left to tell.
                let _ = queue.decide(row.flow, Label::Unlabelled);
                counters.failed_no_other_device += 1;
            }
            (Purpose::Audit(class), Some(answer)) => counters.cache.audited(class == answer.class),
            (Purpose::Audit(_), None) => {}
        }
    }
}

/// The series that has waited longest in any ring: its inlet, the class it already has if it is an audit, its slot. Of
/// several seen in the same round the one that comes first in turn.
fn take_oldest(queues: &mut [Queue], turn: usize) -> Option<(usize, Option<u16>, &Slot)> {
    let (_, inlet) = in_turn(turn, queues.len())
        .filter_map(|i| Some((queues[i].oldest_seen_ns()?, i)))
        .min_by_key(|(seen_ns, _)| *seen_ns)?;
    let (audit, slot) = queues[inlet].take()?;
    Some((inlet, audit, slot))
}

/// The numbers below `n`, beginning with `first` and around.
fn in_turn(first: usize, n: usize) -> impl Iterator<Item = usize> {
    (first..n).chain(0..first)
}

/// The model's input for one series: signed lengths, and 0 where the series is shorter than the row.
fn write_row(row: &mut [f32], series: &Series) {
    row.fill(0.0);
    for (value, length) in row.iter_mut().zip(series.signed_lengths()) {
        *value = length as f32;
    }
}

#[cfg(test)]
mod tests;
