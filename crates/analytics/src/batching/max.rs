//! Policy `max`: the largest batches, whatever the delay.
//!
//! The most efficient use of the device, and the greatest delay: at low load a series waits until others have filled its batch,
//! however long that takes. Goals and timeouts play no part. A full ring fires all the same, because nothing could come in to
//! make the batch larger.

use super::{Decision, Situation, Trigger};

/// Asked while fewer wait than the largest size holds.
pub(super) fn decide(now: &Situation<'_>) -> Decision {
    match now.ring_full {
        true => now.fire_all(Trigger::RingFull),
        false => Decision::Wait,
    }
}
