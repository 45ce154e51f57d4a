//! When a batch is fired, and how large.
//!
//! A [`Policy`] is a pure function of a [`Situation`]: it is asked only while a device is idle,
//! knows neither rings nor clocks, and answers with a [`Decision`]. Four rules hold whatever the
//! policy:
//!
//! * Nothing waits: nothing fires.
//! * As many series wait as the largest size holds: that size fires at once ([`Trigger::Full`]),
//!   and the policy is asked again about the rest. The paper leaves this case open.
//! * The producers have ended: what is there fires at once ([`Trigger::Drain`]), because nothing
//!   will come to fill it.
//! * A device that takes any size needs no padding; its cap is then its largest size.
//!
//! The policies `slo` and `on-off` are the only ones with a memory. It is kept apart from the
//! policy, in the [controller](crate::controller), and reaches a decision as the situation's
//! [`SloPlan`].
//!
//! In the terms of the paper (FENXI §5.1), r is [`Situation::waiting`], 𝓑 is [`Situation::sizes`],
//! and the timeout T has expired when [`Situation::timer`] has reached it. T runs from the moment
//! when something began to wait, and again from each batch that left series behind. A device that
//! is busy when T expires is given its batch as soon as it is free.

mod carry_over;
mod max;
mod none;
pub(crate) mod slo;
mod timeout;

use accel::{Profile, Sizes};
pub use slo::SloPlan;
use std::time::Duration;

/// Decides when waiting series become a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Fire whatever waits as soon as a device is free.
    None,
    /// Fire the largest size only, as long as more may come.
    Max,
    /// Algorithm 1: fire all that waits when the timeout expires, padded to the next size.
    Timeout {
        /// T, since something waits.
        timeout: Duration,
    },
    /// Algorithm 2: at the timeout pad only a little, else fire the next smaller size and leave the
    /// newest behind.
    CarryOver {
        /// T, since something waits or was left behind.
        timeout: Duration,
        /// Φ, the largest share of padding in a batch, 0 to 0.5.
        phi: f64,
        /// How long the oldest may wait before it is fired with any padding. At least the timeout.
        max_wait: Duration,
    },
    /// Batchy: the largest batches that keep the 99th percentile of the time to label below a goal.
    Slo {
        /// D, from a series' emission to its label.
        latency_goal: Duration,
        /// δ, the share of D that is kept in reserve, 0 to 0.9; Batchy's is 0.05.
        delta: f64,
    },
    /// Batchy's on-off controller: whatever waits, or the largest size only, to keep the same goal.
    OnOff {
        /// As above.
        latency_goal: Duration,
        /// As above.
        delta: f64,
    },
}

/// All that a policy knows.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// r: series that wait, in all rings.
    pub waiting: usize,
    /// How long the oldest of them has waited.
    pub oldest_waited: Duration,
    /// Time since its emission.
    pub oldest_age: Duration,
    /// Time since the timer was started.
    pub timer: Duration,
    /// 𝓑: the sizes of the idle device.
    pub sizes: &'a Sizes,
    /// What its batches take, if known.
    pub profile: Option<Profile>,
    /// For [`Policy::Slo`] and [`Policy::OnOff`] only.
    pub plan: SloPlan,
    /// A ring is nearly full: soon series will be shed behind it, or a replay waits for room.
    pub ring_full: bool,
    /// The producers may wait for a label before they send more. This is a reason to fire only
    /// where nothing else bounds the wait: with [`Policy::Max`] and with a plan without a budget.
    pub stalled: bool,
    /// The producers have ended.
    pub draining: bool,
}

/// What a policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Ask again in the next round.
    Wait,
    /// The timeout has expired without a batch: start the timer again.
    WaitAnotherTimeout,
    /// Fire.
    Fire(Fire),
}

/// A batch to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fire {
    /// How many series to take, the oldest first.
    pub take: usize,
    /// The batch size, in rows: what is beyond `take` is padding.
    pub size: usize,
    /// Why.
    pub trigger: Trigger,
    /// Whether to ask about the series left behind at once, not at the next timeout.
    pub more: bool,
}

/// Why a batch was fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// The largest size was there.
    Full,
    /// The timeout expired, and the padding was allowed.
    Timeout,
    /// The timeout expired, and the batch was scaled back to a smaller size.
    CarryOver,
    /// The oldest had waited as long as it may.
    MaxWait,
    /// A ring was full of series that wait, or that are behind one that waits.
    RingFull,
    /// The device was idle, and the policy waits for nothing else.
    Idle,
    /// The producers have ended.
    Drain,
    /// As many waited as the latency goal allows.
    Slo,
    /// The series' first device had failed.
    Retry,
}

impl Trigger {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 9] = [
        Self::Full,
        Self::Timeout,
        Self::CarryOver,
        Self::MaxWait,
        Self::RingFull,
        Self::Idle,
        Self::Drain,
        Self::Slo,
        Self::Retry,
    ];

    /// The name under which it is counted.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Timeout => "timeout",
            Self::CarryOver => "carry_over",
            Self::MaxWait => "max_wait",
            Self::RingFull => "ring_full",
            Self::Idle => "idle",
            Self::Drain => "drain",
            Self::Slo => "slo",
            Self::Retry => "retry",
        }
    }
}

/// The longest max_poll_interval under a short timeout.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The longest under any timeout: other users of the thread wait up to this long.
const POLL_INTERVAL_LONG: Duration = Duration::from_millis(20);

impl Policy {
    /// Whether an idle device gets a batch now, and which.
    #[must_use]
    pub fn decide(&self, now: &Situation<'_>) -> Decision {
        let largest = now.sizes.largest();
        if now.waiting == 0 {
            return Decision::Wait;
        }
        if now.waiting >= largest {
            return Decision::Fire(Fire {
                take: largest,
                size: largest,
                trigger: Trigger::Full,
                more: false,
            });
        }
        if now.draining {
            return now.fire_all(Trigger::Drain);
        }
        match *self {
            Self::None => none::decide(now),
            Self::Max => max::decide(now),
            Self::Timeout { timeout } => timeout::decide(now, timeout),
            Self::CarryOver { timeout, phi, max_wait } => {
                carry_over::decide(now, timeout, phi, max_wait)
            }
            Self::Slo { .. } | Self::OnOff { .. } => slo::decide(now),
        }
    }
}

impl Policy {
    /// The goal that it plans for, if any: D and δ.
    #[must_use]
    pub const fn goal(&self) -> Option<(Duration, f64)> {
        match *self {
            Self::Slo { latency_goal, delta } | Self::OnOff { latency_goal, delta } => {
                Some((latency_goal, delta))
            }
            _ => None,
        }
    }

    /// How long it will want no batch, unless the largest size or a ring is filled.
    #[must_use]
    pub fn time_until_due(&self, timer: Duration, oldest_waited: Duration) -> Duration {
        match *self {
            Self::None | Self::Slo { .. } | Self::OnOff { .. } => Duration::ZERO,
            Self::Max => Duration::MAX,
            Self::Timeout { timeout } => timeout.saturating_sub(timer),
            Self::CarryOver { timeout, max_wait, .. } => {
                let until_timeout = timeout.saturating_sub(timer);
                until_timeout.min(max_wait.saturating_sub(oldest_waited))
            }
        }
    }

    /// How long a series may wait before it is fired, as far as that is known without the devices.
    /// It decides which task goes first.
    #[must_use]
    pub fn patience(&self) -> Duration {
        match *self {
            Self::None | Self::Slo { .. } | Self::OnOff { .. } => Duration::ZERO,
            Self::Timeout { timeout } | Self::CarryOver { timeout, .. } => timeout,
            Self::Max => Duration::MAX,
        }
    }

    /// The longest interval between looks at what comes, for the cache or for a batch that is full
    /// early.
    #[must_use]
    pub fn max_poll_interval(&self) -> Duration {
        match *self {
            Self::None | Self::Slo { .. } | Self::OnOff { .. } => Duration::ZERO,
            Self::Max => POLL_INTERVAL_LONG,
            Self::Timeout { timeout } | Self::CarryOver { timeout, .. } => {
                (timeout / 4).clamp(POLL_INTERVAL, POLL_INTERVAL_LONG)
            }
        }
    }
}

impl Situation<'_> {
    /// Fires everything that waits, padded to the smallest size that holds it. Fewer wait than the
    /// largest size holds.
    fn fire_all(&self, trigger: Trigger) -> Decision {
        Decision::Fire(Fire { take: self.waiting, size: self.size_up(), trigger, more: false })
    }

    /// min {b ∈ 𝓑 : b ≥ r}. [`Policy::decide`] ensures that there is one.
    fn size_up(&self) -> usize {
        let size = self.sizes.fitting(self.waiting);
        size.unwrap_or(self.sizes.largest())
    }

    /// max {b ∈ 𝓑 : b ≤ r}, if there is one.
    fn size_down(&self) -> Option<usize> {
        self.largest_within(self.waiting)
    }

    /// max {b ∈ 𝓑 : b ≤ r, b ≤ most}, if there is one.
    fn largest_within(&self, most: usize) -> Option<usize> {
        let most = most.min(self.waiting);
        match self.sizes {
            Sizes::Any { cap } => Some(most.min(*cap)),
            Sizes::Fixed(sizes) => {
                let above = sizes.partition_point(|b| *b <= most);
                sizes[..above].last().copied()
            }
        }
    }
}

#[cfg(test)]
mod tests;
