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
mod prefetch;
mod tuple_merge;
mod vectors;

pub use best::BATCH;
pub use learned::{Boxes, IsetFigures, Learned, Point};
pub use linear::Linear;
pub use tuple_merge::{TableFull, TupleMerge};
pub use vectors::Vectors;

use crate::{Address, Filter, Key, RuleNumber};
use best::Best;
use learned::Find;
use vectors::with_vectors;

/// From so many filters on a model is trained: with fewer, hash tables alone are faster (`fenxi-lab bench policy`).
const LEARNED_FROM: usize = 512;

/// Filters of one family that can be looked up.
#[derive(Debug)]
pub struct Classifier<A: Address> {
    learned: Learned<A>,
    remainder: TupleMerge<A>,
}

impl<A: Address> Classifier<A> {
    /// Of these filters, in any order.
    ///
    /// # Errors
    /// There are too many.
    pub fn new(filters: &[Filter<A>]) -> Result<Classifier<A>, TableFull> {
        let trained = match filters.len() {
            0..LEARNED_FROM => &[],
            _ => filters,
        };
        let (learned, rest) = Learned::train(trained);
        let remainder = match trained {
            [] => TupleMerge::new(filters)?,
            _ => {
                let rest: Vec<Filter<A>> = rest.iter().map(|&at| filters[at as usize]).collect();
                TupleMerge::new(&rest)?
            }
        };
        Ok(Classifier { learned, remainder })
    }

    /// For each of `keys`, the rule of the least rank of which a filter has the key; of rules with a condition only those that
    /// `accepts`, which gets the place of the key and the rule's number. `found` has as many places as there are keys.
    pub fn find(
        &self,
        keys: &[Key<A>],
        mut accepts: impl FnMut(usize, RuleNumber) -> bool,
        found: &mut [Option<RuleNumber>],
    ) {
        for (batch, (keys, found)) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)).enumerate() {
            let mut best = Best::new();
            let mut accepts = |place: usize, rule| accepts(batch * BATCH + place, rule);
            if !self.learned.is_empty() {
                with_vectors(Find {
                    learned: &self.learned,
                    keys,
                    may_be_gone: false,
                    accepts: &mut accepts,
                    best: &mut best,
                });
            }
            self.remainder.find_into(keys, &mut accepts, &mut best);
            for (place, found) in found.iter_mut().enumerate() {
                *found = best.rule(place);
            }
        }
    }

    /// XX
    pub fn learned_only(filters: &[Filter<A>]) -> Classifier<A> {
        Classifier {
            learned: Learned::train(filters).0,
            remainder: TupleMerge::new(&[]).ok().unwrap_or_default(),
        }
    }
    /// XX
    pub fn tuple_merge_only(filters: &[Filter<A>]) -> Classifier<A> {
        Classifier {
            learned: Learned::train(&[]).0,
            remainder: TupleMerge::new(filters).ok().unwrap_or_default(),
        }
    }

    /// The trained part.
    pub fn learned(&self) -> &Learned<A> {
        &self.learned
    }

    /// The part that no model covers.
    pub fn remainder(&self) -> &TupleMerge<A> {
        &self.remainder
    }
}

#[cfg(test)]
mod tests;
