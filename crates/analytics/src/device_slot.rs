//! One device with the batch it is working on, and whether it is fit to be given another.
//!
//! ```text
//!            failed                      back-off over
//!      Up ──────────────► Down ─────────────────────────► Probing
//!       ▲ │                ▲ ▲                             │ │ │
//!       │ │ past deadline  │ └────────── failed ───────────┘ │ │
//!       │ └──────► Hung ───┘ answered at last                │ │
//!       │            ▲                past deadline          │ │
//!       │            └───────────────────────────────────────┘ │
//!       └──────────────────────── sane answer ─────────────────┘
//! ```
//!
//! A device is up until it fails. Then it is left alone for a *back-off* and probed: one batch of
//! its smallest size, all rows the configured probe. A sane answer brings it back. The back-off
//! begins at 10 ms, doubles with each failure up to 10 s, and is reset by a good batch of series,
//! not by a good probe: otherwise a device that passes the probe and fails on traffic would be
//! tried every 10 ms without end.
//!
//! A device in flight for longer than its deadline is *hung*. Its series are taken back, and its
//! late answer is discarded; until that comes the device cannot even be probed. A device that works
//! inside `submit` cannot be found hung: its answer is there at the next look. If that is late but
//! good, it is used, but the device still goes down, so that it does not slow the others that share
//! its thread.

mod condition;
mod forecast;

use crate::failure::{Failure, check_answers};
use crate::rows::Rows;
use crate::{Accelerator, DeviceState};
use accel::{Classification, Profile, Sizes};
use condition::Condition;
use cring::{Context, Series};
pub use forecast::DeviceProfile;
use forecast::Forecast;
use std::mem;
use std::time::Duration;

/// Which model a device slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    /// The number that labels carry; it wraps.
    pub generation: u16,
    /// How many swaps there had been when it came; does not wrap.
    pub swap: u32,
}

/// A batch, or a probe, on its way.
#[derive(Clone, Copy)]
struct Flight {
    submitted_ns: u64,
    size: usize,
}

/// A device, its condition, and the batch it is working on.
pub(crate) struct DeviceSlot {
    pub accelerator: Accelerator,
    /// The device as requested, for messages.
    name: String,
    model: Model,
    /// The series of the batch in flight, without padding; empty while there is none, and in a
    /// probe.
    pub rows: Rows,
    /// What batches take; `None` without a profile.
    forecast: Option<Forecast>,
    flight: Option<Flight>,
    /// Rows of a batch that was filled, and is submitted at the end of the round.
    filled: Option<usize>,
    condition: Condition,
}

/// What a look at a device found.
pub(crate) enum Polled<'a> {
    /// No batch has come back, or one that nobody waits for any more.
    Nothing,
    /// Results of a batch of series: one for each row, and some for the padding.
    Results {
        answers: &'a [Classification],
        rows: &'a mut Rows,
        model: Model,
        device_ns: u64,
        /// They came after the deadline, and the device is down.
        late: Option<Failure>,
    },
    /// The batch has failed, and its rows are still there; or a probe has.
    Failed(Failure),
    /// A probe went well.
    Recovered,
}

impl DeviceSlot {
    pub fn new(accelerator: Accelerator, model: Model) -> Self {
        Self {
            rows: Rows::with_capacity(accelerator.device.sizes().largest()),
            name: accelerator.device.requested().to_owned(),
            forecast: accelerator.profile.map(Forecast::new),
            accelerator,
            model,
            flight: None,
            filled: None,
            condition: Condition::up(0),
        }
    }

    /// The model that it holds.
    pub fn model(&self) -> Model {
        self.model
    }

    /// Takes it apart.
    pub fn into_accelerator(self) -> Accelerator {
        self.accelerator
    }

    pub fn state(&self) -> DeviceState {
        self.condition.state
    }

    /// Since when it is up, or not up.
    pub fn since_ns(&self) -> u64 {
        self.condition.since_ns
    }

    pub fn is_up(&self) -> bool {
        self.condition.state.is_up()
    }

    /// Whether it can be given a batch of series now.
    pub fn is_free(&self) -> bool {
        self.is_up() && self.flight.is_none() && self.filled.is_none()
    }

    /// See [`Accelerator::executor`].
    pub fn executor(&self) -> u8 {
        self.accelerator.executor
    }

    /// Whether others on the executor wait for a batch or a probe on its way. Nobody waits for a
    /// hung device: its answer may never come, and then tasks that share the executor would neither
    /// label nor shed. They try their own sessions, and find out for themselves whether those hang
    /// as well.
    pub fn holds_executor(&self) -> bool {
        self.flight.is_some() && self.condition.state != DeviceState::Hung
    }

    pub fn sizes(&self) -> &Sizes {
        self.accelerator.device.sizes()
    }

    /// What a batch is expected to take, where the device has a profile.
    pub fn profile(&self) -> Option<Profile> {
        self.forecast.as_ref().map(Forecast::expected)
    }

    /// How long a batch of this size is expected to keep the manager's thread: 0 where the device
    /// has another thread, `u64::MAX` where nobody has measured it.
    pub fn work_ns(&self, size: usize) -> u64 {
        match (self.executor(), self.profile()) {
            (0, Some(profile)) => profile.latency(size).as_nanos() as u64,
            (0, None) => u64::MAX,
            _ => 0,
        }
    }

    /// The profile with which it started and how it has changed since, if it has one.
    pub fn live_profile(&self) -> Option<DeviceProfile> {
        self.forecast.as_ref().map(Forecast::profile)
    }

    /// The input of the next batch, and the rows that go with it. The device slot must be free.
    pub fn fill(&mut self, size: usize) -> (&mut [f32], &mut Rows) {
        (self.accelerator.device.input(size), &mut self.rows)
    }

    /// Writes each row's context into the second input of the next batch.
    pub fn fill_context(&mut self, size: usize, context: &[Context]) {
        if context.is_empty() {
            return;
        }
        let input = self.accelerator.device.context(size);
        input.fill(0.0);
        let rows = input.chunks_exact_mut(context.len());
        for (numbers, (_, series)) in rows.zip(self.rows.iter()) {
            write_context(numbers, context, series);
        }
    }

    /// The same for a batch of one series, which stays with the caller.
    pub fn fill_context_of(&mut self, series: &Series, context: &[Context]) {
        if !context.is_empty() {
            write_context(self.accelerator.device.context(1), context, series);
        }
    }

    /// Keeps what was filled until [`DeviceSlot::take_filled`], to be submitted then.
    pub fn submit_later(&mut self, size: usize) {
        self.filled = Some(size);
    }

    /// How many rows there are to be submitted now.
    pub fn take_filled(&mut self) -> Option<usize> {
        self.filled.take()
    }

    /// Submits what was filled.
    pub fn submit(&mut self, size: usize, now_ns: u64) -> Result<(), Failure> {
        if let Err(error) = self.accelerator.device.submit(size) {
            self.condition.fail(now_ns);
            return Err(error.into());
        }
        self.flight = Some(Flight { submitted_ns: now_ns, size });
        Ok(())
    }

    /// Sends a probe, if it is time for one: a row of series, and one of context.
    pub fn probe(
        &mut self,
        (series, context): (&[f32], &[f32]),
        now_ns: u64,
    ) -> Option<Result<(), Failure>> {
        if self.flight.is_some() || !self.condition.is_probe_due(now_ns) {
            return None;
        }
        let size = self.sizes().fitting(1).unwrap_or(1);
        let device = &mut self.accelerator.device;
        for values in device.input(size).chunks_exact_mut(series.len()) {
            values.copy_from_slice(series);
        }
        for values in device.context(size).chunks_exact_mut(context.len().max(1)) {
            values.copy_from_slice(context);
        }
        self.condition.probing();
        Some(self.submit(size, now_ns))
    }

    /// Checks whether what is in flight has come back, or is overdue.
    pub fn poll(&mut self, now_ns: u64) -> Polled<'_> {
        let Some(Flight { submitted_ns, size }) = self.flight else {
            return Polled::Nothing;
        };
        let device_ns = now_ns.saturating_sub(submitted_ns);
        let exceeds = |deadline: &Duration| u128::from(device_ns) > deadline.as_nanos();
        let missed = self.accelerator.deadline.filter(exceeds);
        let Some(result) = self.accelerator.device.poll() else {
            return match missed {
                Some(deadline) if self.condition.state != DeviceState::Hung => {
                    self.condition.hang(now_ns);
                    Polled::Failed(Failure::deadline(&self.name, deadline))
                }
                _ => Polled::Nothing,
            };
        };
        self.flight = None;
        if self.condition.state == DeviceState::Hung {
            self.condition.wake();
            return Polled::Nothing;
        }
        let late = missed.map(|deadline| Failure::deadline(&self.name, deadline));
        let checked = result
            .map_err(Failure::from)
            .and_then(|answers| check_answers(answers, size, &self.name));
        match (self.condition.state, checked, late) {
            (_, Err(failure), _) | (DeviceState::Probing, Ok(_), Some(failure)) => {
                self.condition.fail(now_ns);
                Polled::Failed(failure)
            }
            (DeviceState::Probing, Ok(_), None) => {
                self.condition.recover(now_ns);
                Polled::Recovered
            }
            (_, Ok(answers), late) => {
                match late {
                    Some(_) => self.condition.fail(now_ns),
                    None => self.condition.succeed(),
                }
                if let Some(forecast) = &mut self.forecast {
                    forecast.observe(size, Duration::from_nanos(device_ns), now_ns);
                }
                Polled::Results {
                    answers,
                    rows: &mut self.rows,
                    model: self.model,
                    device_ns,
                    late,
                }
            }
        }
    }

    /// Whether it is between two batches, or hung, so that its batch is lost anyway.
    pub fn can_be_replaced(&self) -> bool {
        self.flight.is_none() || self.condition.state == DeviceState::Hung
    }

    /// Whether plans made with this device hold for another one: it has the same sizes and the same
    /// profile.
    pub fn plans_as(&self, other: &Accelerator) -> bool {
        let own = &self.accelerator;
        own.device.sizes() == other.device.sizes() && own.profile == other.profile
    }

    /// Uses the new device from now on; returns the old one in a slot of its own, in the condition
    /// that it is in.
    pub fn replace(&mut self, new: Accelerator, model: Model, now_ns: u64) -> DeviceSlot {
        let (before, was) = (self.model, self.condition.state);
        self.rows.reserve(new.device.sizes().largest());
        new.device.requested().clone_into(&mut self.name);
        self.model = model;
        self.forecast = new.profile.map(|profile| match &self.forecast {
            Some(before) => before.replaced_by(profile),
            None => Forecast::new(profile),
        });
        self.flight = None;
        let since_ns = if self.is_up() { self.since_ns() } else { now_ns };
        self.condition = Condition::up(since_ns);
        let mut old = DeviceSlot::new(mem::replace(&mut self.accelerator, new), before);
        match was {
            DeviceState::Up => {}
            DeviceState::Hung => old.condition.hang(now_ns),
            DeviceState::Down | DeviceState::Probing => old.condition.fail(now_ns),
        }
        old
    }
}

fn write_context(numbers: &mut [f32], context: &[Context], series: &Series) {
    for (number, wanted) in numbers.iter_mut().zip(context) {
        *number = wanted.value(series);
    }
}
