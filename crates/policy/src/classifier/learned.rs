//! NuevoMatch, trained as in NuevoMatchUP: iSets whose buckets a small model finds (Rashelbach et
//! al., SIGCOMM 2020 and NSDI 2022).
//!
//! ```text
//! key ─ model ─ window of buckets ─ search ─ bucket ─ compare its filters ─┬─ least rank
//!       (the same for each iSet)                                           │
//! key ─ remainder: TupleMerge ─────────────────────────────────────────────┘
//! ```
//!
//! The index is a hint with a proven bound: each filter of the bucket is compared with all of
//! the key. The index is immutable, so added filters stay in the remainder until the next
//! training.
//!
//! It differs from the papers where that measured better: nets are fitted, not trained by descent
//! (`fit`); an iSet may be ordered by the first bits of both addresses; a bucket closes at 8
//! filters, one vector comparison; gates, guards and least ranks avoid memory accesses in vain.

pub(super) mod block;
mod fit;
mod gate;
mod groups;
mod guard;
mod iset;
mod model;
mod net;
mod point;
mod trained;

use super::best::{BATCH, Best, Hit};
use super::vectors::{Vectors, WithVectors};
use crate::{Address, Filter, Key};
pub(crate) use block::Blocks;
pub use block::Boxes;
#[cfg(test)]
pub(crate) use block::Filling;
use iset::{Field, Partition, partition};
pub use point::Point;
use trained::{Iset, Search};

/// Minimum filters of an iSet; for fewer the remainder is faster.
const ISET_MIN: usize = 1024;
/// Share of the remaining filters that an iSet must cover (§7.1: 45 %, there of all filters).
const COVERAGE_MIN: f64 = 0.45;
/// Share that a single field must cover for joint fields not to be tried.
const COVERAGE_GOOD: f64 = 0.85;
/// Maximum iSets.
const ISETS_MAX: usize = 4;
/// Up to this many keys are looked up in all iSets at a time.
const FEW: usize = 4;

/// Filters found by models, in up to four iSets.
#[derive(Debug)]
pub struct Learned<A: Address> {
    isets: Vec<Iset<A>>,
}

/// Figures of one iSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsetFigures {
    /// Its order: `source`, `destination`, `source/16, destination`, ...
    pub field: String,
    /// Filters in it.
    pub filters: usize,
    /// Buckets that its model finds.
    pub buckets: usize,
    /// Nets of the model.
    pub nets: usize,
    /// Maximum buckets that a search reads.
    pub longest_search: u32,
}

impl<A: Address> Learned<A> {
    /// Trains on these filters. Also returns the numbers of filters it does not cover.
    pub fn train(filters: &[Filter<A>]) -> (Learned<A>, Vec<u32>) {
        let numbers = 0..filters.len() as u32;
        let takes = |number: &u32| Blocks::takes(&filters[*number as usize]);
        let (mut left, others): (Vec<u32>, Vec<u32>) = numbers.partition(takes);
        let mut isets = Vec::new();
        while isets.len() < ISETS_MAX {
            let Some(found) = best_partition(filters, &left) else { break };
            isets.push(Iset::train(filters, &found));
            left = found.rest;
        }
        left.extend(others);
        (Learned { isets }, left)
    }

    /// Covered filters.
    pub fn len(&self) -> usize {
        self.isets.iter().map(Iset::len).sum()
    }

    /// Whether it covers no filter.
    pub fn is_empty(&self) -> bool {
        self.isets.is_empty()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.isets.iter().map(Iset::bytes).sum()
    }

    /// Figures of each iSet.
    pub fn isets(&self) -> Vec<IsetFigures> {
        self.isets.iter().map(Iset::figures).collect()
    }

    /// For each of up to [`BATCH`] keys, finds the filter of least rank that contains the key and
    /// whose rule `counts`, if it is better than the one in `best`.
    #[inline(always)]
    pub(super) fn find_into<V: Vectors>(
        &self,
        keys: &[Key<A>],
        counts: impl FnMut(Hit) -> bool,
        best: &mut Best,
    ) {
        match keys.len() {
            0..=FEW => self.find_by::<V, FEW, ISETS_MAX>(keys, counts, best),
            _ => self.find_by::<V, BATCH, 1>(keys, counts, best),
        }
    }

    /// As [`Self::find_into`], for up to `KEYS` keys through `ISETS` iSets at a time: step by step
    /// for all of them, so that memory accesses overlap. With many keys one iSet suffices for that,
    /// and its results shorten the next one.
    #[inline(always)]
    fn find_by<V: Vectors, const KEYS: usize, const ISETS: usize>(
        &self,
        keys: &[Key<A>],
        mut counts: impl FnMut(Hit) -> bool,
        best: &mut Best,
    ) {
        for isets in self.isets.chunks(ISETS) {
            let mut searches = [Search::<A, KEYS>::new(); ISETS];
            for (iset, search) in isets.iter().zip(&mut searches) {
                iset.begin::<V, KEYS>(keys, search);
            }
            for (iset, search) in isets.iter().zip(&mut searches) {
                iset.find_buckets(search);
            }
            for (iset, search) in isets.iter().zip(&mut searches) {
                iset.find_blocks(search, best);
            }
            for (iset, search) in isets.iter().zip(&mut searches) {
                iset.compare::<V, KEYS>(search, &mut counts, best);
            }
        }
    }
}

/// The partition that covers most, if enough for an iSet. Joint fields are tried if single ones
/// leave much, and ports if addresses do not suffice.
fn best_partition<A: Address>(filters: &[Filter<A>], left: &[u32]) -> Option<Partition<A::Point>> {
    let least = ISET_MIN.max((left.len() as f64 * COVERAGE_MIN) as usize);
    let much = (left.len() as f64 * COVERAGE_GOOD) as usize;
    if left.len() < least {
        return None;
    }
    let joint: Vec<Field> = Field::joint::<A>().collect();
    let (addresses, ports) = Field::SINGLE.split_at(2);
    let mut best: Option<Partition<A::Point>> = None;
    for (fields, enough) in [(addresses, much), (&joint[..], least), (ports, least)] {
        for &field in fields {
            let found = partition(filters, left, field);
            let before = best.as_ref().map_or(0, |best| best.members.len());
            if found.members.len() > before {
                best = Some(found);
            }
        }
        if best.as_ref().is_some_and(|best| best.members.len() >= enough) {
            return best;
        }
    }
    None
}

/// A look-up through a trained index, compiled for each set of vector instructions.
pub(super) struct Find<'a, A: Address, F> {
    pub learned: &'a Learned<A>,
    pub keys: &'a [Key<A>],
    pub counts: F,
    pub best: &'a mut Best,
}

impl<A: Address, F: FnMut(Hit) -> bool> WithVectors for Find<'_, A, F> {
    #[inline(always)]
    fn call<V: Vectors>(self) {
        self.learned.find_into::<V>(self.keys, self.counts, self.best);
    }
}
