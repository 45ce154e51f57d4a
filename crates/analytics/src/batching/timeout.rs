//! Policy `timeout`, FENXI's Algorithm 1: at T, all that waits, in the smallest size that holds it.

use super::{Decision, Situation, Trigger};
use std::time::Duration;

pub(super) fn decide(now: &Situation<'_>, timeout: Duration) -> Decision {
    if now.timer >= timeout {
        now.fire_all(Trigger::Timeout)
    } else if now.ring_full {
        // Nothing more can come in, so waiting for it would only stall or shed.
        now.fire_all(Trigger::RingFull)
    } else {
        Decision::Wait
    }
}
