//! The best rules found so far for a batch of keys.

use crate::{Rank, RuleNumber};

/// Maximum keys per look-up.
pub const BATCH: usize = 32;

/// A filter contains a key; the caller decides whether its rule applies.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// Index of the key.
    pub place: usize,
    /// The filter's rule.
    pub rule: RuleNumber,
    /// The rule has a condition.
    pub is_conditional: bool,
}

/// The least rank so far and its rule, by key.
#[derive(Debug)]
pub(super) struct Best {
    ranks: [Rank; BATCH],
    rules: [RuleNumber; BATCH],
}

impl Best {
    pub fn new() -> Best {
        Best { ranks: [Rank::LAST; BATCH], rules: [0; BATCH] }
    }

    /// The least rank found for a key; [`Rank::LAST`] if none.
    #[inline]
    pub fn rank(&self, place: usize) -> Rank {
        self.ranks[place % BATCH]
    }

    /// Sets a rule of a lesser rank than the one before.
    #[inline]
    pub fn set(&mut self, place: usize, rank: Rank, rule: RuleNumber) {
        debug_assert!(rank < self.rank(place));
        self.ranks[place % BATCH] = rank;
        self.rules[place % BATCH] = rule;
    }

    /// The rule found for a key.
    #[inline]
    pub fn rule(&self, place: usize) -> Option<RuleNumber> {
        (self.rank(place) != Rank::LAST).then_some(self.rules[place % BATCH])
    }
}
