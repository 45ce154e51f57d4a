//! Policy `carry-over`, FENXI's Algorithm 2: at T, pad a batch by at most a share Φ; where that is not enough, fire the
//! next smaller size full and carry the newest series over to the next batch.
//!
//! The algorithm does not say what happens when fewer series wait than the smallest size holds and padding them would
//! exceed Φ. Here they wait for the next T, and the oldest never longer than `max_wait` (plus the time until a device is
//! idle): then they are padded all the same. A full ring has the same effect, because nothing could come in to make the
//! batch larger. So padding exceeds Φ under [`Trigger::MaxWait`], [`Trigger::RingFull`] and [`Trigger::Drain`] only, and
//! only in a batch of the smallest size under the first two.

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
