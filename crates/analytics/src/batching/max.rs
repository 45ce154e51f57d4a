//! Policy `max`: the largest batches, whatever the delay.
//!
//! The most efficient use of the device, and the greatest delay: at low load a series waits until
//! others have filled its batch, however long that takes. Goals and timeouts play no part. A full
//! ring fires all the same, because nothing could come in to make the batch larger.
//!
//! The same holds where a replay at full speed has stalled: its flow managers may hold packets back
//! until a waiting series has its label, and so send nothing more. Only there, what is there goes
//! once nothing new has come for some milliseconds ([`Manager::gather`](crate::Manager::gather)).

use super::{Decision, Situation, Trigger};

/// Asked while fewer wait than the largest size holds.
pub(super) fn decide(now: &Situation<'_>) -> Decision {
    if now.stalled {
        now.fire_all(Trigger::MaxWait)
    } else if now.ring_full {
        now.fire_all(Trigger::RingFull)
    } else {
        Decision::Wait
    }
}
