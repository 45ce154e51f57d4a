//! Policy `none`: an idle device gets all that waits.
//!
//! The least delay at low load, and the least efficient use of the device: it is always busy, with
//! small batches or, where sizes are fixed, with padding (FENXI Fig. 8, left). Under high load
//! batches grow by themselves, because series gather while the device works.

use super::{Decision, Situation, Trigger};

pub(super) fn decide(now: &Situation<'_>) -> Decision {
    now.fire_all(Trigger::Idle)
}
