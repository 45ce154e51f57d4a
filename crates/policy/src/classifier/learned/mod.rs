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
mod gate;
mod guard;
mod iset;
mod model;
mod net;
mod point;

use super::best::{BATCH, Best};
use super::prefetch::prefetch;
use super::vectors::{Vectors, WithVectors};
use crate::{Address, Filter, Key, Rank, RuleNumber};
pub(crate) use block::Blocks;
pub use block::{Boxes, LANES};
use gate::Gate;
use guard::{Guard, Words};
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
    gate: Gate,
    model: Model<A::Point>,
    /// By bucket: where it begins; and [`SEARCHED`] times the greatest value, so that a search may read beyond the last.
    starts: Vec<A::Point>,
    /// By bucket: its first block; and one more for the end of the last.
    first_blocks: Vec<u32>,
    /// By block.
    headers: Vec<Header>,
    guard: Guard,
    blocks: Blocks<A>,
    filters: usize,
}

/// What is looked at before a block is.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// See [`Guard`].
    words: Words,
    /// The least rank of the block's filters.
    best: Rank,
}

/// Keys by which it is chosen what a guard looks at.
const SAMPLED_KEYS: usize = 512;

/// Buckets that a search compares at once.
const SEARCHED: usize = 8;

/// Filters that models find, in up to four iSets.
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
        for iset in &self.isets {
            let (mut passed, mut places) = ([Key::default(); BATCH], [0_u8; BATCH]);
            let (keys, places) = match iset.gate.is_open() {
                true => (keys, &PLACES[..keys.len()]),
                false => {
                    let count = iset.gate.pass(keys, &mut passed, &mut places);
                    (&passed[..count], &places[..count])
                }
            };
            let mut found = Found::new();
            iset.search::<V>(keys, places, best, &mut found);
            for &(at, block) in &found.blocks[..found.count] {
                let (key, place) = (&keys[usize::from(at)], usize::from(places[usize::from(at)]));
                let wanted = |found: &block::Found| {
                    !(found.is_conditional || may_be_gone) || accepts(place, found.rule)
                };
                iset.compare::<V>(block, key, place, wanted, best);
            }
        }
    }
}

/// The places of all keys of a batch.
const PLACES: [u8; BATCH] = {
    let mut places = [0; BATCH];
    let mut place = 0;
    while place < BATCH {
        places[place] = place as u8;
        place += 1;
    }
    places
};

/// Blocks that may have a key, each with the place of the key.
#[derive(Clone, Copy)]
struct Found {
    blocks: [(u8, u32); BATCH * BUCKET_BLOCKS],
    count: usize,
}

/// Blocks of a bucket, at most.
const BUCKET_BLOCKS: usize = iset::BUCKET_MAX.div_ceil(LANES);

impl Found {
    fn new() -> Found {
        Found {
            blocks: [(0, 0); BATCH * BUCKET_BLOCKS],
            count: 0,
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

/// Keys of some of the filters, each with the filters of the bucket that it is in or behind.
fn found_by_sample<A: Address>(
    filters: &[Filter<A>],
    found: &Partition<A::Point>,
    mut filters_of: impl FnMut(usize, &mut Vec<Filter<A>>),
) -> Vec<(Key<A>, Vec<Filter<A>>)> {
    let step = filters.len().div_ceil(SAMPLED_KEYS).max(1);
    let keys = filters
        .iter()
        .step_by(step)
        .zip(1..)
        .map(|(filter, number)| filter.key(number));
    let sample = keys.map(|key| {
        let mut points = [A::Point::default()];
        found.field.of_keys(&[key], &mut points);
        let [point] = points;
        let behind = found
            .buckets
            .partition_point(|bucket| bucket.first <= point);
        let mut inside = Vec::new();
        filters_of(behind.saturating_sub(1), &mut inside);
        (key, inside)
    });
    sample.collect()
}

impl<A: Address> Iset<A> {
    fn train(filters: &[Filter<A>], found: &Partition<A::Point>) -> Iset<A> {
        let model = Model::train(&found.buckets, found.members.len());
        let mut starts: Vec<A::Point> = found.buckets.iter().map(|bucket| bucket.first).collect();
        starts.extend([A::Point::MAX; SEARCHED]);
        let filters_of = |bucket: usize, into: &mut Vec<Filter<A>>| {
            let iset::Bucket { from, to, .. } = found.buckets[bucket];
            let numbers = &found.members[from as usize..to as usize];
            into.extend(numbers.iter().map(|&number| filters[number as usize]));
        };
        let guard = Guard::choose(&found_by_sample(filters, found, filters_of));
        let blocks_of = |bucket: &iset::Bucket<_>| (bucket.to - bucket.from).div_ceil(LANES as u32);
        let count = found.buckets.iter().map(|it| blocks_of(it) as usize).sum();
        let mut blocks = Blocks::with_capacity(count);
        let mut headers = Vec::with_capacity(count);
        let mut first_blocks = Vec::with_capacity(found.buckets.len() + 1);
        let mut members = Vec::with_capacity(iset::BUCKET_MAX);
        for bucket in 0..found.buckets.len() {
            first_blocks.push(blocks.len() as u32);
            members.clear();
            filters_of(bucket, &mut members);
            // Filters that are alike stand together, so that a key passes over most blocks of a bucket.
            members.sort_unstable_by_key(|it| {
                (it.source, it.destination, it.destination_ports, it.rank)
            });
            for members in members.chunks_mut(LANES) {
                members.sort_unstable_by_key(|filter| filter.rank);
                headers.push(Header {
                    words: guard.of_filters(members),
                    best: members.first().map_or(Rank::LAST, |filter| filter.rank),
                });
                blocks.push(members);
            }
        }
        first_blocks.push(blocks.len() as u32);
        let all = found.members.iter().map(|&number| filters[number as usize]);
        Iset {
            field: found.field,
            gate: Gate::new(all),
            model,
            starts,
            first_blocks,
            headers,
            guard,
            blocks,
            filters: found.members.len(),
        }
    }

    /// For each key, whose places are those of the batch, those blocks of the bucket that its point lies in which may have the key.
    #[inline(always)]
    fn search<V: Vectors>(&self, keys: &[Key<A>], places: &[u8], best: &Best, found: &mut Found) {
        let keys = &keys[..keys.len().min(BATCH)];
        let mut points = [A::Point::default(); BATCH];
        let points = &mut points[..keys.len()];
        self.field.of_keys(keys, points);
        let mut windows = [Window { start: 0, count: 0 }; BATCH];
        let windows = &mut windows[..keys.len()];
        self.model.windows::<V>(points, windows);
        let last = self.first_blocks.len() as u32 - 2;
        let mut longest = 0;
        for window in &mut *windows {
            window.count = window.count.min(last + 1 - window.start);
            prefetch(&self.starts, (window.start + window.count / 2) as usize);
            longest = longest.max(window.count);
        }
        // Long windows are halved, those of all keys in step, so that the trips to memory overlap.
        while longest as usize > 2 * SEARCHED {
            for (point, window) in points.iter().zip(&mut *windows) {
                window.halve(&self.starts, *point);
            }
            longest -= longest / 2;
        }
        for (point, window) in points.iter().zip(&mut *windows) {
            window.start = self.last_begun(*point, *window).min(last);
            prefetch(&self.first_blocks, window.start as usize);
        }
        // From here on a window is that of the bucket's blocks.
        for window in &mut *windows {
            let bucket = window.start as usize;
            let (from, to) = (self.first_blocks[bucket], self.first_blocks[bucket + 1]);
            *window = Window {
                start: from,
                count: to - from,
            };
            prefetch(&self.headers, from as usize);
        }
        let wanted = self.guard.of_keys(keys);
        for (at, ((window, wanted), &place)) in windows.iter().zip(wanted).zip(places).enumerate() {
            let headers = self.headers.get(window.start as usize..).unwrap_or(&[]);
            for (header, block) in headers
                .iter()
                .zip(window.start..window.start + window.count)
            {
                let may_have =
                    header.words.let_pass(wanted) && header.best < best.rank(place.into());
                if may_have && found.count < found.blocks.len() {
                    self.blocks.prefetch(block);
                    found.blocks[found.count] = (at as u8, block);
                    found.count += 1;
                }
            }
        }
    }

    /// The last bucket of a window that begins at or before the point; the first where none does.
    #[inline(always)]
    fn last_begun(&self, point: A::Point, window: Window) -> u32 {
        // Buckets behind the window begin behind the point, so comparing some of them changes nothing. A window of none that is
        // left over from halving has one; more than two comparisons are not needed then.
        let starts = self.starts.get(window.start as usize..).unwrap_or(&[]);
        let begun_in = |starts: &[A::Point; SEARCHED]| {
            starts
                .iter()
                .map(|&first| u32::from(first <= point))
                .sum::<u32>()
        };
        let (chunks, _) = starts.as_chunks::<SEARCHED>();
        let mut begun = chunks.first().map_or(0, begun_in);
        if begun == SEARCHED as u32 {
            begun += chunks.get(1).map_or(0, begun_in);
        }
        window.start + begun.saturating_sub(1)
    }

    /// Holds a block's filters against a key.
    #[inline(always)]
    fn compare<V: Vectors>(
        &self,
        block: u32,
        key: &Key<A>,
        place: usize,
        mut wanted: impl FnMut(&block::Found) -> bool,
        best: &mut Best,
    ) {
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

    fn bytes(&self) -> usize {
        size_of_val(&self.starts[..])
            + size_of_val(&self.first_blocks[..])
            + size_of_val(&self.headers[..])
            + self.blocks.bytes()
            + self.model.bytes()
            + self.gate.bytes()
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
