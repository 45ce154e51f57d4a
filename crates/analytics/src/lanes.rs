//! Which lanes are taken: devices of one lane work one after another
//! ([`crate::Accelerator::lane`]).

/// The lanes of one manager in one round.
pub(crate) struct Lanes {
    /// Bit n: lane n is taken.
    taken: u64,
    /// Several tasks share the lanes.
    is_shared: bool,
}

impl Lanes {
    /// For a manager with one task: its devices know themselves whether they are free.
    pub fn none_shared() -> Self {
        Self { taken: 0, is_shared: false }
    }

    /// For a manager with several tasks; none is taken yet.
    pub fn all_free() -> Self {
        Self { taken: 0, is_shared: true }
    }

    /// A batch is on this lane. Lanes beyond the 64th share the last.
    pub fn take(&mut self, lane: u8) {
        self.taken |= bit(lane);
    }

    /// Whether a batch of this lane is submitted after all others: it keeps the manager's thread,
    /// and batches submitted after it would begin later than the round says.
    pub fn comes_last(&self, lane: u8) -> bool {
        self.is_shared && lane == 0
    }

    pub fn is_free(&self, lane: u8) -> bool {
        !self.is_shared || self.taken & bit(lane) == 0
    }
}

/// A lane as one of a set of lanes.
pub(crate) fn bit(lane: u8) -> u64 {
    1 << lane.min(63)
}
