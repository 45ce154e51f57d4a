//! Finds the rule of a tuple.
//!
//! | module | finds by | best for |
//! |---|---|---|
//! | [`Linear`] | linear search | a few filters; the reference |
//! | [`TupleMerge`] | hash tables by prefix length | some hundreds; frequent changes |
//! | [`Learned`] | models of ranges, and TupleMerge for the rest | thousands and more |

mod best;
mod learned;
mod linear;
mod tuple_merge;
mod vectors;

pub use best::{BATCH, Hit};
pub use learned::{Boxes, IsetFigures, Learned, Point};
pub use linear::Linear;
pub use tuple_merge::{TableFull, TupleMerge};
pub use vectors::Vectors;

use std::sync::Arc;

use crate::{Address, Filter, Key, RuleNumber};
use best::Best;
use learned::Find;
use vectors::with_vectors;

/// Minimum filters to train a model; with fewer, hash tables alone are faster
/// (`fenxi-lab bench policy`).
const LEARNED_FROM: usize = 1024;

/// Filters of one family, for look-ups. Clones share the trained part.
#[derive(Clone, Debug)]
pub struct Classifier<A: Address> {
    learned: Arc<Learned<A>>,
    remainder: TupleMerge<A>,
}

/// How filters are found, and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Filters found by models, by iSet.
    pub isets: Vec<IsetFigures>,
    /// Filters in hash tables.
    pub remainder: usize,
    /// Hash tables.
    pub tables: usize,
    /// Memory of both, bytes.
    pub bytes: usize,
}

impl Description {
    /// Filters found by models.
    pub fn learned(&self) -> usize {
        self.isets.iter().map(|iset| iset.filters).sum()
    }
}

impl<A: Address> Classifier<A> {
    /// A classifier for these filters, in any order. Trains a model if there are enough.
    ///
    /// # Errors
    /// There are too many filters.
    pub fn new(filters: &[Filter<A>]) -> Result<Classifier<A>, TableFull> {
        if filters.len() < LEARNED_FROM {
            return Classifier::untrained(filters);
        }
        let (learned, rest) = Learned::train(filters);
        let rest: Vec<Filter<A>> = rest.iter().map(|&at| filters[at as usize]).collect();
        Ok(Classifier { learned: Arc::new(learned), remainder: TupleMerge::new(&rest)? })
    }

    /// A classifier of hash tables alone.
    ///
    /// # Errors
    /// There are too many filters.
    pub fn untrained(filters: &[Filter<A>]) -> Result<Classifier<A>, TableFull> {
        let (learned, _) = Learned::train(&[]);
        Ok(Classifier { learned: Arc::new(learned), remainder: TupleMerge::new(filters)? })
    }

    /// Adds a filter to the hash tables.
    ///
    /// # Errors
    /// There are too many filters.
    pub fn insert(&mut self, filter: &Filter<A>) -> Result<(), TableFull> {
        self.remainder.insert(filter)
    }

    /// For each of `keys`, the rule of least rank with a filter that contains the key, among the
    /// hits that `counts` accepts. `found` must be as long as `keys`.
    pub fn find(
        &self,
        keys: &[Key<A>],
        mut counts: impl FnMut(Hit) -> bool,
        found: &mut [Option<RuleNumber>],
    ) {
        for (batch, (keys, found)) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)).enumerate() {
            let mut best = Best::new();
            let mut counts = |hit: Hit| counts(Hit { place: batch * BATCH + hit.place, ..hit });
            if !self.learned.is_empty() {
                with_vectors(Find {
                    learned: &*self.learned,
                    keys,
                    counts: &mut counts,
                    best: &mut best,
                });
            }
            self.remainder.find_into(keys, &mut counts, &mut best);
            for (place, found) in found.iter_mut().enumerate() {
                *found = best.rule(place);
            }
        }
    }

    /// Whether both share the trained part.
    pub(crate) fn shares_index(&self, other: &Classifier<A>) -> bool {
        Arc::ptr_eq(&self.learned, &other.learned)
    }

    /// How filters are found.
    pub fn describe(&self) -> Description {
        Description {
            isets: self.learned.isets(),
            remainder: self.remainder.len(),
            tables: self.remainder.tables(),
            bytes: self.learned.bytes() + self.remainder.bytes(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
