//! Finding the rule of a tuple.
//!
//! | module | finds by | best for |
//! |---|---|---|
//! | [`Linear`] | one after the other | a few filters; the definition of what is right |
//! | [`TupleMerge`] | hash tables by prefix length | some hundreds; changes at any time |
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

/// From so many filters on a model is trained: with fewer, hash tables alone are faster (`fenxi-lab bench policy`).
const LEARNED_FROM: usize = 1024;

/// Filters of one family that can be looked up. A copy shares the trained part.
#[derive(Clone, Debug)]
pub struct Classifier<A: Address> {
    learned: Arc<Learned<A>>,
    remainder: TupleMerge<A>,
}

/// How filters are found, and what that takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Filters that models find, by iSet.
    pub isets: Vec<IsetFigures>,
    /// Filters in hash tables.
    pub remainder: usize,
    /// Hash tables.
    pub tables: usize,
    /// Memory of both, bytes.
    pub bytes: usize,
}

impl Description {
    /// Filters that models find.
    pub fn learned(&self) -> usize {
        self.isets.iter().map(|iset| iset.filters).sum()
    }
}

impl<A: Address> Classifier<A> {
    /// Of these filters, in any order. Trains a model where there are enough.
    ///
    /// # Errors
    /// There are too many.
    pub fn new(filters: &[Filter<A>]) -> Result<Classifier<A>, TableFull> {
        if filters.len() < LEARNED_FROM {
            return Classifier::untrained(filters);
        }
        let (learned, rest) = Learned::train(filters);
        let rest: Vec<Filter<A>> = rest.iter().map(|&at| filters[at as usize]).collect();
        Ok(Classifier {
            learned: Arc::new(learned),
            remainder: TupleMerge::new(&rest)?,
        })
    }

    /// The same in hash tables alone.
    ///
    /// # Errors
    /// There are too many.
    pub fn untrained(filters: &[Filter<A>]) -> Result<Classifier<A>, TableFull> {
        let (learned, _) = Learned::train(&[]);
        Ok(Classifier {
            learned: Arc::new(learned),
            remainder: TupleMerge::new(filters)?,
        })
    }

    /// Adds a filter to the hash tables.
    ///
    /// # Errors
    /// There are too many.
    pub fn insert(&mut self, filter: &Filter<A>) -> Result<(), TableFull> {
        self.remainder.insert(filter)
    }

    /// For each of `keys`, the rule of the least rank of which a filter has the key, among those that `counts`. `found` has as many
    /// places as there are keys.
    pub fn find(
        &self,
        keys: &[Key<A>],
        mut counts: impl FnMut(Hit) -> bool,
        found: &mut [Option<RuleNumber>],
    ) {
        for (batch, (keys, found)) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)).enumerate() {
            let mut best = Best::new();
            let mut counts = |hit: Hit| {
                counts(Hit {
                    place: batch * BATCH + hit.place,
                    ..hit
                })
            };
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

    /// Whether both have the same trained part.
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
