//! Which executors are taken: devices of one executor work one after another
//! ([`crate::Accelerator::executor`]).

/// The executors of one manager in one round.
pub(crate) struct Executors {
    /// Bit n: executor n is taken.
    taken: u64,
    /// Several tasks share the executors.
    is_shared: bool,
}

impl Executors {
    /// For a manager with one task: its devices know themselves whether they are free.
    pub fn none_shared() -> Self {
        Self { taken: 0, is_shared: false }
    }

    /// For a manager with several tasks; none is taken yet.
    pub fn all_free() -> Self {
        Self { taken: 0, is_shared: true }
    }

    /// A batch is on this executor. Executors beyond the 64th share the last.
    pub fn take(&mut self, executor: u8) {
        self.taken |= bit(executor);
    }

    /// Whether a batch of this executor is submitted after all others: it keeps the manager's
    /// thread, and batches submitted after it would begin later than the round says.
    pub fn comes_last(&self, executor: u8) -> bool {
        self.is_shared && executor == 0
    }

    pub fn is_free(&self, executor: u8) -> bool {
        !self.is_shared || self.taken & bit(executor) == 0
    }
}

/// An executor as one of a set of executors.
pub(crate) fn bit(executor: u8) -> u64 {
    1 << executor.min(63)
}
