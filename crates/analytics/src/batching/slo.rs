//! Policy `slo`, Batchy's control of one module (§3.5 and §4): batches as large as a goal for the delay allows.
//!
//! The device waits until as many series are there as the *trigger* b says. The first of them then has waited b/R at
//! the arrival rate R, and the device takes T₀ + T₁·b; so b is to be the largest with
//!
//! ```text
//!     b/R + T₀ + T₁·b ≤ budget ≤ D(1 − δ)
//! ```
//!
//! It is set once per control period. R is measured; T₀ and T₁ are the device's profile, kept true by what its batches
//! took lately. What the model leaves out, such as arrivals in bursts, a device that is busy, a thread that is held up,
//! is left to two more rules:
//!
//! * *Age*: the oldest is fired, whatever the trigger says, while its time on the device still fits into the budget. At
//!   low rates this alone decides.
//! * *Feedback*: the budget is D(1 − δ) at first and at most. It is halved, and the trigger with it, as soon as a
//!   period is sure to be in *violation*: more than 1 % of its labels took longer than D, which is to say that the 99th
//!   percentile did. It shrinks by a step when more than 1 % took longer than D(1 − δ), and grows by a step otherwise;
//!   a step is 1/32 of D(1 − δ). So a cut makes room for hold-ups of up to D/2 for sixteen periods at least. What holds
//!   the thread up for longer than D violates the goal whatever the batches are. The trigger grows by one step per
//!   period, too: the next size, or an eighth of the way.
//!
//! The model allows no batch at all where series are far apart: then the smallest size is waited for, and age decides.
//!
//! Below one size the trigger does not fall: the smallest with which the devices keep up, (T₀ + T₁·b)·R ≤ 0.9·b per
//! device. With less the queue would grow, and with it every delay.
//!
//! A control period is [`PERIOD`] long, and longer until it has [`LABELS_MIN`] labels, because fewer have no 99th
//! percentile; but [`PERIOD_MAX`] at most. One without a label counts neither way.
//!
//! When many have gathered behind a device that was busy, or a thread that was held up, the next batch is larger than
//! the trigger: as many as still fit the oldest's budget, and at least so many that T₀ is a small part of it. To send
//! them off trigger by trigger would only make the backlog last.

use super::{Decision, Fire, Situation, Trigger};
use accel::{Profile, Sizes};
use std::time::Duration;

/// How long a control period is at least.
const PERIOD: Duration = Duration::from_millis(50);
/// How many labels it has at least.
const LABELS_MIN: u64 = 100;
/// How long it is at most.
const PERIOD_MAX: Duration = Duration::from_secs(1);
/// One label in so many may be late.
const LATE_ONE_IN: u64 = 100;
/// Steps from nothing to the whole budget.
const BUDGET_STEPS: f64 = 32.0;
/// Steps from nothing to the target of a trigger, where every size is possible.
const TRIGGER_STEPS: usize = 8;
/// T₀ is a small part of a batch's time where the rows take so many times as long.
const T0_SMALL: f64 = 8.0;
/// How much of its time a device may be busy.
const BUSY_MAX: f64 = 0.9;

/// What [`Policy::Slo`](super::Policy::Slo) is to keep to, as of this control period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// b: how many to wait for.
    pub trigger: usize,
    /// Within what time of its emission a series is to have its label.
    pub budget: Duration,
}

impl Plan {
    /// Whatever is there goes at once.
    pub const AT_ONCE: Self = Self {
        trigger: 1,
        budget: Duration::ZERO,
    };
}

pub(super) fn decide(now: &Situation<'_>) -> Decision {
    let Some(profile) = now.profile else {
        // Such a device is refused beforehand.
        return now.fire_all(Trigger::Idle);
    };
    let left = now.plan.budget.saturating_sub(now.oldest_age);
    if now.waiting >= now.plan.trigger {
        let most = fitting(profile, left).max(efficient(profile));
        let most = most.max(now.plan.trigger);
        return match now.largest_within(most) {
            Some(size) => Decision::Fire(Fire {
                take: size,
                size,
                trigger: Trigger::Slo,
                more: false,
            }),
            None => now.fire_all(Trigger::Slo),
        };
    }
    if left <= profile.latency(now.size_up()) {
        now.fire_all(Trigger::MaxWait)
    } else if now.ring_full {
        now.fire_all(Trigger::RingFull)
    } else {
        Decision::Wait
    }
}

/// The smallest batch of which T₀ is a small part.
fn efficient(profile: Profile) -> usize {
    (T0_SMALL * profile.t0_us / profile.t1_us).ceil() as usize
}

/// The largest batch that takes no longer.
fn fitting(profile: Profile, time: Duration) -> usize {
    let rows = (time.as_secs_f64() * 1e6 - profile.t0_us) / profile.t1_us;
    // A cast from float saturates, and is 0 for NaN.
    rows as usize
}

/// How a trigger is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjustment {
    /// At once, by half at least.
    Cut,
    /// Down as far as the model says, or up by a step.
    Step,
}

/// Measures the rate of arrivals and how the goal is met, and sets budget and triggers by it.
pub(crate) struct Controller {
    /// D.
    goal_ns: u64,
    /// D(1 − δ).
    aim_ns: u64,
    /// What the model may plan with, up to the aim.
    budget_ns: f64,
    /// R, in series per ns; 0 before the first period has ended.
    rate: f64,
    began_ns: Option<u64>,
    arrived: u64,
    labelled: u64,
    /// Labels of this period above the goal.
    late: u64,
    /// Labels of this period above the aim.
    near: u64,
    /// The budget was halved in this period.
    has_cut: bool,
    pub periods: u64,
    pub violations: u64,
}

impl Controller {
    pub fn new(latency_goal: Duration, delta: f64) -> Self {
        let aim = latency_goal.mul_f64(1.0 - delta);
        Self {
            goal_ns: latency_goal.as_nanos() as u64,
            aim_ns: aim.as_nanos() as u64,
            budget_ns: aim.as_nanos() as f64,
            rate: 0.0,
            began_ns: None,
            arrived: 0,
            labelled: 0,
            late: 0,
            near: 0,
            has_cut: false,
            periods: 0,
            violations: 0,
        }
    }

    /// Series came that want a device.
    pub fn arrived(&mut self, series: usize) {
        self.arrived += series as u64;
    }

    /// A series was labelled so long after its emission.
    pub fn labelled(&mut self, time_ns: u64) {
        self.labelled += 1;
        self.late += u64::from(time_ns > self.goal_ns);
        self.near += u64::from(time_ns > self.aim_ns);
    }

    pub fn budget(&self) -> Duration {
        Duration::from_nanos(self.budget_ns as u64)
    }

    /// Cuts where that is due, and closes the control period when it is over. Tells how triggers are to change.
    pub fn control(&mut self, now_ns: u64) -> Option<Adjustment> {
        let began_ns = *self.began_ns.get_or_insert(now_ns);
        let length_ns = now_ns.saturating_sub(began_ns);
        let expected = (self.rate * PERIOD.as_nanos() as f64) as u64;
        if !self.has_cut && exceed(self.late, self.labelled.max(expected).max(LABELS_MIN)) {
            self.cut();
            return Some(Adjustment::Cut);
        }
        let [period_ns, period_max_ns] = [PERIOD, PERIOD_MAX].map(|p| p.as_nanos() as u64);
        if length_ns < period_ns || (self.labelled < LABELS_MIN && length_ns < period_max_ns) {
            return None;
        }
        let adjustment = self.close(length_ns);
        self.began_ns = Some(now_ns);
        Some(adjustment)
    }

    fn cut(&mut self) {
        self.has_cut = true;
        self.budget_ns /= 2.0;
    }

    /// Takes stock of a period.
    fn close(&mut self, length_ns: u64) -> Adjustment {
        let rate = self.arrived as f64 / length_ns as f64;
        self.rate = if self.rate > 0.0 {
            (self.rate + rate) / 2.0
        } else {
            rate
        };
        let is_violated = exceed(self.late, self.labelled);
        let mut adjustment = Adjustment::Step;
        if is_violated && !self.has_cut {
            self.cut();
            adjustment = Adjustment::Cut;
        } else if !is_violated && self.labelled > 0 {
            let step_ns = self.aim_ns as f64 / BUDGET_STEPS;
            let sign = if exceed(self.near, self.labelled) {
                -1.0
            } else {
                1.0
            };
            self.budget_ns = (self.budget_ns + sign * step_ns).clamp(0.0, self.aim_ns as f64);
        }
        self.periods += u64::from(self.labelled > 0);
        self.violations += u64::from(is_violated);
        (self.arrived, self.labelled, self.late, self.near) = (0, 0, 0, 0);
        self.has_cut = false;
        adjustment
    }

    /// A device's next trigger after `now`, where so many share the work.
    pub fn trigger(
        &self,
        now: usize,
        adjustment: Adjustment,
        profile: Profile,
        sizes: &Sizes,
        devices: usize,
    ) -> usize {
        let least = self.least(profile, sizes, devices);
        let target = self.target(profile, sizes);
        let next = match adjustment {
            Adjustment::Cut => target.min(now / 2),
            Adjustment::Step if target <= now => target,
            Adjustment::Step => step(now, target, sizes),
        };
        next.max(least).max(1)
    }

    /// The largest batch that the model allows.
    fn target(&self, profile: Profile, sizes: &Sizes) -> usize {
        let apart_us = 1.0 / (self.rate * 1e3);
        let rows = (self.budget_ns / 1e3 - profile.t0_us) / (apart_us + profile.t1_us);
        // Where not even the smallest fits, it is padded when the oldest must go.
        size_within(sizes, rows as usize).max(sizes.fitting(1).unwrap_or(1))
    }

    /// The smallest batch with which so many devices keep up with the arrivals.
    fn least(&self, profile: Profile, sizes: &Sizes, devices: usize) -> usize {
        let per_us = self.rate * 1e3;
        let spare = BUSY_MAX * devices as f64 - profile.t1_us * per_us;
        let rows = (profile.t0_us * per_us / spare).ceil();
        if spare <= 0.0 || rows >= sizes.largest() as f64 {
            return sizes.largest();
        }
        sizes.fitting(rows as usize).unwrap_or(sizes.largest())
    }
}

/// Whether more than one in a hundred is among them.
fn exceed(late: u64, labelled: u64) -> bool {
    late * LATE_ONE_IN > labelled
}

/// The largest size of a batch of so many at most; 0 where there is none.
fn size_within(sizes: &Sizes, rows: usize) -> usize {
    match sizes {
        Sizes::Any { cap } => rows.min(*cap),
        Sizes::Fixed(sizes) => {
            let above = sizes.partition_point(|size| *size <= rows);
            sizes[..above].last().copied().unwrap_or(0)
        }
    }
}

/// One step up from `now` towards the target, which is above it.
fn step(now: usize, target: usize, sizes: &Sizes) -> usize {
    match sizes {
        Sizes::Any { .. } => (now + (target / TRIGGER_STEPS).max(1)).min(target),
        Sizes::Fixed(_) => sizes.fitting(now + 1).unwrap_or(target).min(target),
    }
}

#[cfg(test)]
mod tests;
