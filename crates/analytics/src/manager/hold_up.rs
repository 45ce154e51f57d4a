//! Whether the thread was held up: something else had its core, so that series waited without a
//! cause in this program.
//!
//! If that lasts longer than a goal, labels that are late because of it say nothing of the plan:
//! smaller batches would not have been earlier, and the device would have more to do from then on.
//! The controller does not see them, but [`crate::SloCounters::violations`] counts them. For
//! shorter hold-ups smaller batches make room.

/// Delays shorter than this are ignored.
const SHORT_NS: u64 = 500_000;
/// A device that takes this many times the expected time may just be slow. Expectations follow it
/// within some batches.
const SLOWER: u64 = 2;

/// What the thread had to do since the round before.
#[derive(Default)]
pub(super) struct HoldUp {
    last_ns: u64,
    /// Expected time of that round's batches on this thread.
    work_ns: u64,
}

impl HoldUp {
    /// How long the thread was held up before this round, if it was: the time that the last round's
    /// work does not explain. If there was no work, the thread may have slept, but not for longer
    /// than tasks say.
    pub fn before(&self, now_ns: u64, rests_until_ns: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let passed_ns = now_ns.saturating_sub(self.last_ns);
        let explained_ns = self.work_ns.saturating_mul(SLOWER).saturating_add(SHORT_NS);
        if passed_ns <= explained_ns {
            return None;
        }
        let length_ns = match self.work_ns {
            0 => passed_ns.min(now_ns.saturating_sub(rests_until_ns()?)),
            work_ns => passed_ns - work_ns,
        };
        (length_ns > SHORT_NS).then_some(length_ns)
    }

    /// Ends a round whose batches were expected to take `work_ns` on this thread.
    pub fn round_over(&mut self, now_ns: u64, work_ns: u64) {
        (self.last_ns, self.work_ns) = (now_ns, work_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_work_explains_is_no_hold_up() {
        let mut hold_up = HoldUp::default();
        hold_up.round_over(1_000_000_000, 300_000);
        assert_eq!(hold_up.before(1_001_000_000, || None), None);
        assert_eq!(hold_up.before(1_001_200_000, || None), Some(900_000));
        // A device that nobody has measured explains everything.
        hold_up.round_over(1_000_000_000, u64::MAX);
        assert_eq!(hold_up.before(9_000_000_000, || None), None);
    }

    #[test]
    fn a_thread_that_rests_is_held_up_once_there_is_something_to_do() {
        let mut hold_up = HoldUp::default();
        hold_up.round_over(1_000_000_000, 0);
        assert_eq!(hold_up.before(1_900_000_000, || None), None);
        assert_eq!(hold_up.before(1_900_000_000, || Some(1_899_900_000)), None);
        let held_up = hold_up.before(1_900_000_000, || Some(1_897_000_000));
        assert_eq!(held_up, Some(3_000_000));
        // There was work all the time.
        let left = hold_up.before(1_002_000_000, || Some(900_000_000));
        assert_eq!(left, Some(2_000_000));
    }
}
