//! Policies `slo` and `on-off`: batches as large as a latency goal allows.
//!
//! The controller of the manager's tasks decides their size once per control period
//! ([`crate::controller`]). It gives each task a [`SloPlan`]: the *trigger*, how many series a
//! batch waits for, and the *budget*, within what time of its emission a series is to have its
//! label. The plan is followed in two ways:
//!
//! * As many wait as the trigger says: they go, which is Batchy's fractional buffer (Appendix C).
//!   When many have gathered behind a busy device or a held-up thread, the batch is larger: as many
//!   as still fit the oldest's budget, and at least enough that T₀ is a small part of its time.
//!   Sending them trigger by trigger would only prolong the backlog.
//! * *Age*, which the paper does not have: the oldest is fired, whatever the trigger says, while
//!   its time on the device still fits into the budget. At low rates this alone decides, as long as
//!   there is a buffer. Where it is short-circuited, the trigger is 1, and what is there goes at
//!   once.

use super::{Decision, Fire, Situation, Trigger};
use accel::Profile;
use std::time::Duration;

/// T₀ is a small part of a batch's time once the rows take this many times as long.
const T0_SMALL: f64 = 8.0;

/// What [`Policy::Slo`](super::Policy::Slo) keeps to in this control period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SloPlan {
    /// b: how many to wait for.
    pub trigger: usize,
    /// Within what time of its emission a series is to have its label.
    pub budget: Duration,
}

impl SloPlan {
    /// Whatever is there goes at once.
    pub const AT_ONCE: Self = Self { trigger: 1, budget: Duration::ZERO };
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
            Some(size) => {
                Decision::Fire(Fire { take: size, size, trigger: Trigger::Slo, more: false })
            }
            None => now.fire_all(Trigger::Slo),
        };
    }
    // With such a budget age never fires, and a producer may wait for one of these labels before it
    // sends more.
    let is_stalled = now.stalled && now.plan.budget == Duration::MAX;
    if is_stalled || left <= profile.latency(now.size_up()) {
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

#[cfg(test)]
mod tests;
