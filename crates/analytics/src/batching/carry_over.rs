//! Policy `carry-over`, FENXI's Algorithm 2: at T, pad a batch by at most a share Φ; where that is
//! not enough, fire the next smaller size full and carry the newest series over to the next batch.
//!
//! The algorithm does not say what happens when fewer series wait than the smallest size holds and
//! padding them would exceed Φ. Here they wait for the next T, and the oldest never longer than
//! `max_wait` (plus the time until a device is idle): then they are padded all the same. A full
//! ring has the same effect, because nothing could come in to make the batch larger. So padding
//! exceeds Φ under [`Trigger::MaxWait`], [`Trigger::RingFull`] and [`Trigger::Drain`] only, and
//! only in a batch of the smallest size under the first two.
//!
//! Nor does it say how long the series left behind wait: at most until the next T. But where they
//! fill a smaller size, and by the device's profile a batch of it takes less time than T, they go
//! now. Then the timer runs on, and the device gets batch after batch, each full and smaller than
//! the one before, until what is left fills none. That costs one T₀ per batch, and no padding.

use super::{Decision, Fire, Situation, Trigger};
use std::time::Duration;

pub(super) fn decide(
    now: &Situation<'_>,
    timeout: Duration,
    phi: f64,
    max_wait: Duration,
) -> Decision {
    let waited_out = now.oldest_waited >= max_wait;
    let due = if now.timer >= timeout {
        Trigger::Timeout
    } else if waited_out {
        Trigger::MaxWait
    } else if now.ring_full {
        Trigger::RingFull
    } else {
        return Decision::Wait;
    };

    let size = now.size_up();
    let padding = size - now.waiting;
    if padding as f64 / size as f64 <= phi {
        return now.fire_all(due);
    }
    if let Some(smaller) = now.size_down() {
        return Decision::Fire(Fire {
            take: smaller,
            size: smaller,
            trigger: Trigger::CarryOver,
            more: is_another_cheap(now, smaller, timeout),
        });
    }
    if waited_out {
        now.fire_all(Trigger::MaxWait)
    } else if now.ring_full {
        now.fire_all(Trigger::RingFull)
    } else {
        Decision::WaitAnotherTimeout
    }
}

/// Whether the series left behind by a batch of `taken` fill another one that takes less time than
/// they would wait.
fn is_another_cheap(now: &Situation<'_>, taken: usize, timeout: Duration) -> bool {
    let left = Situation { waiting: now.waiting - taken, ..*now };
    let latency = |size| now.profile.map(|profile| profile.latency(size));
    let another = left.size_down().filter(|size| *size > 0);
    another.and_then(latency).is_some_and(|latency| latency < timeout)
}
