//! A canary: a model that answers a share of new flows beside the one in use, until it is promoted
//! or withdrawn.
//!
//! ```text
//! Canary ─► one new flow in five, at all its depths ─┬─► Promoted:  its devices come into use
//!                                                    └─► Withdrawn: it answers what it has
//! ```
//!
//! It keeps its generation when it is promoted, so its flows go on with it. Flows of one that was
//! withdrawn get no further answer: those that they have decide.
//!
//! A canary works as a [kept](super::kept) model does, without the cache, which holds what the
//! model in use said. A new flow for which it has no room, or no device that is up, goes to the
//! model in use. One whose device fails is not probed, but [withdrawn](Task::canary_failure).

use super::Task;
use super::kept::Kept;
use crate::Accelerator;
use crate::device_slot::Model;
use cring::{FlowRef, Slot};

/// One new flow in this many is for the canary. Enough to see within some hundred flows what its
/// answers are like, and few enough that a bad one harms little.
pub const CANARY_ONE_IN: u64 = 5;

impl Task {
    /// Allocates.
    pub(super) fn begin_canary(&mut self, accelerators: Vec<Accelerator>, model: Model) {
        self.rings.make_room_to_park();
        self.swaps.come = model.swap;
        self.swaps.canary = Some(Kept::canary(accelerators, model));
    }

    /// Why a device of the canary has failed, if one has.
    #[must_use]
    pub fn canary_failure(&self) -> Option<&str> {
        self.swaps.canary.as_ref()?.failure.as_deref()
    }
}

/// Whether a canary takes this series: the first, from label word `word`, of a new flow of its
/// share.
pub(super) fn takes(canary: &Kept, word: u8, slot: &Slot) -> bool {
    slot.series.task == word
        && is_chosen(slot.flow)
        && canary.has_room()
        && canary.dispatch.up() > 0
}

/// Whether a new flow is one of the share. A place in the flow table depends on all flows before,
/// so that nobody can choose it from outside, and is the same when a recording is replayed.
fn is_chosen(flow: FlowRef) -> bool {
    let number = u64::from(flow.generation) << 32 | u64::from(flow.index);
    // 2^64 over the golden ratio: numbers in a row are spread evenly.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    spread < u64::MAX / CANARY_ONE_IN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_new_flow_in_five_is_chosen_in_every_place_and_over_time() {
        let share = |flows: &mut dyn Iterator<Item = (u32, u32)>| {
            let flows = flows.map(|(index, generation)| FlowRef { index, generation });
            flows.filter(|flow| is_chosen(*flow)).count()
        };
        for fixed in [0, 1, 77, u32::MAX / 3] {
            let of_places = share(&mut (0..10_000).map(|it| (it, fixed)));
            let over_time = share(&mut (0..10_000).map(|it| (fixed, it)));
            assert!(of_places.abs_diff(2000) < 20, "{of_places}");
            assert!(over_time.abs_diff(2000) < 20, "{over_time}");
        }
    }
}
