//! NuevoMatch with the training of NuevoMatchUP: iSets whose buckets a small model finds (Rashelbach et al., SIGCOMM 2020 and
//! NSDI 2022).
//!
//! ```text
//! key ─ model ─ window of buckets ─ search ─ bucket ─ compare its filters ─┬─ least rank
//!       (the same for each iSet)                                           │
//! key ─ remainder: TupleMerge ─────────────────────────────────────────────┘
//! ```
//!
//! The index is a hint with a proven bound: each filter of the bucket is held against all fields of the key. It does not change
//! after it was built, so what is added later stays with the remainder until the next training.

mod block;
mod fit;
mod iset;
mod model;
mod net;
mod point;

use super::best::{BATCH, Best};
use super::prefetch::prefetch;
use super::vectors::{Vectors, WithVectors};
use crate::{Address, Filter, Key, RuleNumber};
pub(crate) use block::Blocks;
pub use block::{Boxes, LANES};
use iset::{Field, Partition, partition};
use model::{Model, Window};
pub use point::Point;

/// Filters of an iSet, at least: fewer are found sooner by the remainder.
const ISET_MIN: usize = 1024;
/// Part of the filters that are left which an iSet has to cover (§7.1: minimum coverage 45 %; there of all filters).
const COVERAGE_MIN: f64 = 0.45;
/// Part that a single field has to cover for joint ones not to be tried.
const COVERAGE_GOOD: f64 = 0.85;
/// iSets, at most.
const ISETS_MAX: usize = 4;

/// An iSet that was trained.
#[derive(Debug)]
struct Iset<A: Address> {
    field: Field,
    model: Model<A::Point>,
    /// By bucket: where it begins; and [`SEARCHED`] times the greatest value, so that a search may read beyond the last.
    starts: Vec<A::Point>,
    /// By bucket: its first block; and one more for the end of the last.
    first_blocks: Vec<u32>,
    blocks: Blocks<A>,
    filters: usize,
}

/// Buckets that a search compares at once.
const SEARCHED: usize = 8;

/// Filters that models find, in up to [`ISETS_MAX`] iSets.
#[derive(Debug)]
pub struct Learned<A: Address> {
    isets: Vec<Iset<A>>,
}

/// Figures of one iSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsetFigures {
    /// What it is ordered by: `source`, `destination`, `source/16, destination`, ...
    pub field: String,
    /// Filters in it.
    pub filters: usize,
    /// Buckets that its model finds.
    pub buckets: usize,
    /// Nets of the model.
    pub nets: usize,
    /// Buckets that a search looks at, at most.
    pub longest_search: u32,
}

impl<A: Address> Learned<A> {
    /// Trains on these filters; with the numbers of those that it does not cover.
    pub fn train(filters: &[Filter<A>]) -> (Learned<A>, Vec<u32>) {
        let numbers = 0..filters.len() as u32;
        let takes = |number: &u32| Blocks::takes(&filters[*number as usize]);
        let (mut left, others): (Vec<u32>, Vec<u32>) = numbers.partition(takes);
        let mut isets = Vec::new();
        while isets.len() < ISETS_MAX {
            let Some(found) = best_partition(filters, &left) else {
                break;
            };
            isets.push(Iset::train(filters, &found));
            left = found.rest;
        }
        left.extend(others);
        (Learned { isets }, left)
    }

    /// Filters that it covers.
    pub fn len(&self) -> usize {
        self.isets.iter().map(|iset| iset.filters).sum()
    }

    /// Whether it covers none.
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

    /// For each of up to [`BATCH`] keys, the filter of the least rank that has it, where that is below the one in `best`. Of
    /// filters with a condition, and where `may_be_gone` of all, only those that `accepts`.
    #[inline(always)]
    pub(super) fn find_into<V: Vectors>(
        &self,
        keys: &[Key<A>],
        may_be_gone: bool,
        mut accepts: impl FnMut(usize, RuleNumber) -> bool,
        best: &mut Best,
    ) {
        // All iSets are searched before the first filter is compared, so that the trips to memory of all overlap.
        let mut buckets = [[0_u32; BATCH]; ISETS_MAX];
        for (iset, buckets) in self.isets.iter().zip(&mut buckets) {
            iset.search::<V>(keys, buckets);
        }
        for (iset, buckets) in self.isets.iter().zip(&buckets) {
            for (place, (key, &bucket)) in keys.iter().zip(buckets).enumerate() {
                let wanted = |found: &block::Found| {
                    !(found.is_conditional || may_be_gone) || accepts(place, found.rule)
                };
                iset.compare::<V>(bucket, key, place, wanted, best);
            }
        }
    }
}

/// The partition that covers most, if that is enough for an iSet. Joint fields are tried where a single one leaves much, and
/// ports where addresses do not do.
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
        if best
            .as_ref()
            .is_some_and(|best| best.members.len() >= enough)
        {
            return best;
        }
    }
    None
}

impl<A: Address> Iset<A> {
    fn train(filters: &[Filter<A>], found: &Partition<A::Point>) -> Iset<A> {
        let model = Model::train(&found.buckets, found.members.len());
        let mut starts: Vec<A::Point> = found.buckets.iter().map(|bucket| bucket.first).collect();
        starts.extend([A::Point::MAX; SEARCHED]);
        let mut blocks = Blocks::with_capacity(
            found
                .buckets
                .iter()
                .map(|bucket| (bucket.to - bucket.from).div_ceil(LANES as u32) as usize)
                .sum(),
        );
        let mut first_blocks = Vec::with_capacity(found.buckets.len() + 1);
        let mut members = Vec::with_capacity(iset::BUCKET_MAX);
        for bucket in &found.buckets {
            first_blocks.push(blocks.len() as u32);
            let numbers = &found.members[bucket.from as usize..bucket.to as usize];
            members.clear();
            members.extend(numbers.iter().map(|&number| filters[number as usize]));
            members.sort_unstable_by_key(|filter| filter.rank);
            blocks.push(&members);
        }
        first_blocks.push(blocks.len() as u32);
        Iset {
            field: found.field,
            model,
            starts,
            first_blocks,
            blocks,
            filters: found.members.len(),
        }
    }

    /// The bucket of each key, or one that does not have it.
    #[inline(always)]
    fn search<V: Vectors>(&self, keys: &[Key<A>], buckets: &mut [u32; BATCH]) {
        let mut windows = [Window { start: 0, count: 0 }; BATCH];
        let mut points = [A::Point::default(); BATCH];
        for (place, key) in keys.iter().enumerate().take(BATCH) {
            points[place] = self.field.of_key(key);
            windows[place] = self.model.window::<V>(points[place]);
            prefetch(&self.starts, windows[place].start as usize);
        }
        for place in 0..keys.len().min(BATCH) {
            buckets[place] = self.bucket(points[place], windows[place]);
            prefetch(&self.first_blocks, buckets[place] as usize);
        }
        for &bucket in buckets.iter().take(keys.len()) {
            self.blocks.prefetch(self.first_blocks[bucket as usize]);
        }
    }

    /// The last bucket of a window that begins at or before the point; the first where none does.
    #[inline(always)]
    fn bucket(&self, point: A::Point, window: Window) -> u32 {
        let Window { mut start, count } = window;
        let buckets = self.first_blocks.len() as u32 - 1;
        let mut count = count.min(buckets - start);
        while count as usize > 2 * SEARCHED {
            let half = count / 2;
            let begins = self.starts[(start + half) as usize] <= point;
            start += if begins { half } else { 0 };
            count -= half;
        }
        // Buckets behind the window begin behind the point, so comparing some of them changes nothing.
        let mut begun = 0;
        for chunk in 0..(count as usize).div_ceil(SEARCHED) {
            let from = start as usize + chunk * SEARCHED;
            if let Some((starts, _)) = self
                .starts
                .get(from..)
                .and_then(|it| it.split_first_chunk::<SEARCHED>())
            {
                begun += starts
                    .iter()
                    .map(|&first| u32::from(first <= point))
                    .sum::<u32>();
            }
        }
        (start + begun.saturating_sub(1)).min(buckets - 1)
    }

    /// Holds a bucket's filters against a key: the first that has it is that of the least rank.
    #[inline(always)]
    fn compare<V: Vectors>(
        &self,
        bucket: u32,
        key: &Key<A>,
        place: usize,
        mut wanted: impl FnMut(&block::Found) -> bool,
        best: &mut Best,
    ) {
        let (from, to) = (
            self.first_blocks[bucket as usize],
            self.first_blocks[bucket as usize + 1],
        );
        for block in from..to {
            let mut lanes = A::matches::<V>(self.blocks.boxes(block), key);
            while lanes != 0 {
                let found = self.blocks.get(block, lanes.trailing_zeros() as usize);
                if found.rank >= best.rank(place) {
                    return;
                }
                if wanted(&found) {
                    best.set(place, found.rank, found.rule);
                    return;
                }
                lanes &= lanes - 1;
            }
        }
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.starts[..])
            + size_of_val(&self.first_blocks[..])
            + self.blocks.bytes()
            + self.model.bytes()
    }

    fn figures(&self) -> IsetFigures {
        IsetFigures {
            field: self.field.to_string(),
            filters: self.filters,
            buckets: self.first_blocks.len() - 1,
            nets: self.model.nets(),
            longest_search: self.model.longest_search(),
        }
    }
}

/// A look-up through a trained index, compiled for each set of vector instructions.
pub(super) struct Find<'a, A: Address, F> {
    pub learned: &'a Learned<A>,
    pub keys: &'a [Key<A>],
    pub may_be_gone: bool,
    pub accepts: F,
    pub best: &'a mut Best,
}

impl<A: Address, F: FnMut(usize, RuleNumber) -> bool> WithVectors for Find<'_, A, F> {
    #[inline(always)]
    fn call<V: Vectors>(self) {
        self.learned
            .find_into::<V>(self.keys, self.may_be_gone, self.accepts, self.best);
    }
}
