//! A trained iSet: finds the filters that contain keys.
//!
//! ```text
//! begin         keys that pass the gate ─ model ─ windows of buckets
//! find_buckets  window ─ bucket that may contain the key
//! find_blocks   bucket ─ its blocks that may contain the key
//! compare       block ─ filter of least rank
//! ```
//!
//! Each step prefetches the memory that the next one reads.

use super::block::{Blocks, Filling, LANES};
use super::gate::Gate;
use super::groups::{COMPARED, GROUP, Groups, Header, More};
use super::guard::Guard;
use super::iset::{self, Field, Partition};
use super::model::{Model, Window};
use super::{FEW, IsetFigures};
use crate::classifier::best::{Best, Hit};
use crate::classifier::vectors::Vectors;
use crate::{Address, Filter, Key, Rank};

/// Sampled keys by which a guard's probes are chosen.
const SAMPLED_KEYS: usize = 512;
/// Maximum blocks per bucket.
const BUCKET_BLOCKS: usize = iset::BUCKET_MAX.div_ceil(LANES);

#[derive(Debug)]
pub(super) struct Iset<A: Address> {
    field: Field,
    gate: Gate,
    model: Model<A::Point>,
    groups: Groups<A::Point>,
    /// Headers of the blocks after their bucket's first.
    more_headers: Vec<Header>,
    guard: Guard,
    /// The first block of each bucket, then the other blocks.
    blocks: Blocks<A>,
    filters: usize,
}

/// State of up to `KEYS` keys in an iSet.
#[derive(Clone, Copy)]
pub(super) struct Search<A: Address, const KEYS: usize> {
    /// Keys that passed the gate, with their places in the batch.
    keys: [Key<A>; KEYS],
    places: [u8; KEYS],
    count: usize,
    points: [A::Point; KEYS],
    /// The windows; then the buckets.
    windows: [Window; KEYS],
    /// Blocks that may contain a key, each with the key's number.
    blocks: [[(u8, u32); BUCKET_BLOCKS]; KEYS],
    blocks_count: usize,
}

impl<A: Address, const KEYS: usize> Search<A, KEYS> {
    #[inline(always)]
    pub fn new() -> Search<A, KEYS> {
        Search {
            keys: [Key::default(); KEYS],
            places: [0; KEYS],
            count: 0,
            points: [A::Point::default(); KEYS],
            windows: [Window { start: 0, count: 0 }; KEYS],
            blocks: [[(0, 0); BUCKET_BLOCKS]; KEYS],
            blocks_count: 0,
        }
    }
}

impl<A: Address> Iset<A> {
    pub fn train(filters: &[Filter<A>], found: &Partition<A::Point>) -> Iset<A> {
        let filters_of = |bucket: usize, into: &mut Vec<Filter<A>>| {
            let iset::Bucket { from, to, .. } = found.buckets[bucket];
            let numbers = &found.members[from as usize..to as usize];
            into.extend(numbers.iter().map(|&number| filters[number as usize]));
        };
        let guard = Guard::choose(&found_by_sample(filters, found, filters_of));
        let count = found.buckets.len();
        let (mut blocks, mut more_blocks) = (Filling::default(), Filling::default());
        let mut more_headers = Vec::new();
        let mut buckets = Vec::with_capacity(count);
        let mut members = Vec::with_capacity(iset::BUCKET_MAX);
        for (number, bucket) in found.buckets.iter().enumerate() {
            members.clear();
            filters_of(number, &mut members);
            // Group similar filters, so that a key skips most blocks of a bucket.
            members.sort_unstable_by_key(|it| {
                (it.source, it.destination, it.destination_ports, it.rank)
            });
            let in_first = members.len().min(LANES);
            let (first, more) = members.split_at_mut(in_first);
            let header = push_block(first, &guard, &mut blocks);
            let more_from = more_headers.len();
            for more in more.chunks_mut(LANES) {
                more_headers.push(push_block(more, &guard, &mut more_blocks));
            }
            let more = More::new(more_from, more_headers.len() - more_from);
            buckets.push((bucket.first, header, more));
        }
        let all = found.members.iter().map(|&number| filters[number as usize]);
        Iset {
            field: found.field,
            gate: Gate::new(all),
            model: Model::train(&found.buckets, found.members.len()),
            groups: Groups::new(buckets.into_iter()),
            more_headers,
            guard,
            blocks: Blocks::new(blocks, more_blocks),
            filters: found.members.len(),
        }
    }

    /// Finds the keys that may be in this iSet, and their windows.
    #[inline(always)]
    pub fn begin<V: Vectors, const KEYS: usize>(
        &self,
        keys: &[Key<A>],
        search: &mut Search<A, KEYS>,
    ) {
        let count = self.gate.pass(keys, &mut search.keys, &mut search.places);
        search.count = count.min(KEYS);
        let points = &mut search.points[..search.count];
        let windows = &mut search.windows[..search.count];
        self.field.of_keys(&search.keys, points);
        self.model.windows::<V>(points, windows);
        for window in windows {
            *window = self.groups.confined(*window);
            // With few keys memory is idle: the block that is most likely comes with its header.
            if KEYS <= FEW && window.count <= GROUP as u32 {
                self.blocks.prefetch(window.start + window.count / 2);
            }
        }
    }

    #[inline(always)]
    pub fn find_buckets<const KEYS: usize>(&self, search: &mut Search<A, KEYS>) {
        let points = &search.points[..search.count];
        let windows = &mut search.windows[..search.count];
        let mut long = [0_u8; KEYS];
        let mut count = 0;
        for (number, window) in (0..).zip(&*windows) {
            if window.count > COMPARED {
                long[count % KEYS] = number;
                count += 1;
            }
        }
        // Halve long windows, all in step.
        while count > 0 {
            let halved = count;
            count = 0;
            for place in 0..halved {
                let number = long[place % KEYS];
                let window = &mut windows[usize::from(number)];
                *window = self.groups.halved(*window, points[usize::from(number)]);
                if window.count > COMPARED {
                    long[count % KEYS] = number;
                    count += 1;
                } else {
                    self.groups.prefetch(*window);
                }
            }
        }
        for (point, window) in points.iter().zip(windows) {
            let bucket = self.groups.last_begun(*point, *window);
            *window = Window { start: bucket, count: 1 };
            self.groups.prefetch(*window);
        }
    }

    /// Finds the blocks of the buckets that may contain the keys.
    #[inline(always)]
    pub fn find_blocks<const KEYS: usize>(&self, search: &mut Search<A, KEYS>, best: &Best) {
        let wanted = self.guard.of_keys::<A, KEYS>(&search.keys[..search.count]);
        let found = search.blocks.as_flattened_mut();
        let mut count = 0;
        let each = search.windows.iter().zip(wanted).zip(search.places);
        for (key, ((window, wanted), place)) in (0..search.count as u8).zip(each) {
            let mut take = |header: &Header, block: u32| {
                let may_have =
                    header.words.let_pass(wanted) && header.best < best.rank(place.into());
                if may_have && count < found.len() {
                    self.blocks.prefetch(block);
                    found[count] = (key, block);
                    count += 1;
                }
            };
            let (header, more) = self.groups.get(window.start);
            take(&header, window.start);
            let more = more.blocks();
            let headers = self.more_headers.get(more.start as usize..);
            let first_more = self.groups.buckets() as u32;
            for (header, block) in headers.unwrap_or(&[]).iter().zip(more) {
                take(header, first_more + block);
            }
        }
        search.blocks_count = count;
    }

    #[inline(always)]
    pub fn compare<V: Vectors, const KEYS: usize>(
        &self,
        search: &Search<A, KEYS>,
        mut counts: impl FnMut(Hit) -> bool,
        best: &mut Best,
    ) {
        for &(key, block) in &search.blocks.as_flattened()[..search.blocks_count] {
            let place = usize::from(search.places[usize::from(key)]);
            let key = &search.keys[usize::from(key)];
            self.compare_block::<V>(block, key, place, &mut counts, best);
        }
    }

    #[inline(always)]
    fn compare_block<V: Vectors>(
        &self,
        block: u32,
        key: &Key<A>,
        place: usize,
        mut counts: impl FnMut(Hit) -> bool,
        best: &mut Best,
    ) {
        let mut lanes = A::matches::<V>(self.blocks.boxes(block), key);
        while lanes != 0 {
            let (rank, hit) = self.blocks.get(block, lanes.trailing_zeros() as usize, place);
            if rank >= best.rank(place) {
                return;
            }
            if counts(hit) {
                best.set(place, rank, hit.rule);
                return;
            }
            lanes &= lanes - 1;
        }
    }

    pub fn len(&self) -> usize {
        self.filters
    }

    pub fn bytes(&self) -> usize {
        self.groups.bytes()
            + size_of_val(&self.more_headers[..])
            + self.blocks.bytes()
            + self.model.bytes()
            + self.gate.bytes()
    }

    pub fn figures(&self) -> IsetFigures {
        IsetFigures {
            field: self.field.to_string(),
            filters: self.filters,
            buckets: self.groups.buckets(),
            nets: self.model.nets(),
            longest_search: self.model.longest_search(),
        }
    }
}

/// Adds a block of these filters; returns its header.
fn push_block<A: Address>(
    filters: &mut [Filter<A>],
    guard: &Guard,
    blocks: &mut Filling<A>,
) -> Header {
    filters.sort_unstable_by_key(|filter| filter.rank);
    blocks.push(filters);
    Header {
        words: guard.of_filters(filters),
        best: filters.first().map_or(Rank::LAST, |filter| filter.rank),
    }
}

/// Keys of some filters, each with the filters of the bucket that the index finds for it.
fn found_by_sample<A: Address>(
    filters: &[Filter<A>],
    found: &Partition<A::Point>,
    mut filters_of: impl FnMut(usize, &mut Vec<Filter<A>>),
) -> Vec<(Key<A>, Vec<Filter<A>>)> {
    let step = filters.len().div_ceil(SAMPLED_KEYS).max(1);
    let keys = filters.iter().step_by(step).zip(1..).map(|(filter, number)| filter.key(number));
    let sample = keys.map(|key| {
        let mut points = [A::Point::default()];
        found.field.of_keys(&[key], &mut points);
        let [point] = points;
        let behind = found.buckets.partition_point(|bucket| bucket.first <= point);
        let mut inside = Vec::new();
        filters_of(behind.saturating_sub(1), &mut inside);
        (key, inside)
    });
    sample.collect()
}
