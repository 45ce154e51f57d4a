//! The best rule that was found for each key of a batch so far.

use crate::{Rank, RuleNumber};

/// Keys that are looked up at a time, at most.
pub const BATCH: usize = 32;

/// A filter has a key: who looks up says whether its rule counts.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// Place of the key among those that are looked up.
    pub place: usize,
    /// The filter's rule.
    pub rule: RuleNumber,
    /// The rule has a condition.
    pub is_conditional: bool,
}

/// By place of the key: the least rank so far and its rule.
#[derive(Debug)]
pub(super) struct Best {
    ranks: [Rank; BATCH],
    rules: [RuleNumber; BATCH],
}

impl Best {
    pub fn new() -> Best {
        Best {
            ranks: [Rank::LAST; BATCH],
            rules: [0; BATCH],
        }
    }

    /// The least rank found for a key; [`Rank::LAST`] where there is none yet.
    #[inline]
    pub fn rank(&self, place: usize) -> Rank {
        self.ranks[place % BATCH]
    }

    /// Notes a rule, which has to be of a lesser rank than the one before.
    #[inline]
    pub fn set(&mut self, place: usize, rank: Rank, rule: RuleNumber) {
        debug_assert!(rank < self.rank(place));
        self.ranks[place % BATCH] = rank;
        self.rules[place % BATCH] = rule;
    }

    /// The rule that was found for a key.
    #[inline]
    pub fn rule(&self, place: usize) -> Option<RuleNumber> {
        (self.rank(place) != Rank::LAST).then_some(self.rules[place % BATCH])
    }
}
