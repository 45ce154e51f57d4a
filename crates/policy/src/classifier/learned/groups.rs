//! The starts and headers of an iSet's buckets, as a search reads them.
//!
//! A look-up waits for memory twice: for the group of its bucket and for the filters. So the data
//! on eight buckets is adjacent and prefetched together.

use super::guard::Words;
use super::model::Window;
use super::point::Point;
use crate::Rank;
use crate::memory::Array;
use crate::prefetch::prefetch_whole;

/// Buckets per group, whose starts are compared at once.
pub(super) const GROUP: usize = 8;
/// Maximum window, in buckets, that is compared without halving.
pub(super) const COMPARED: u32 = 2 * GROUP as u32;

/// Read before a block of filters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// See [`super::guard::Guard`].
    pub words: Words,
    /// Least rank of the block's filters.
    pub best: Rank,
}

impl Header {
    pub const NONE: Header = Header { words: Words::NONE, best: Rank::LAST };
}

/// The blocks after a bucket's first: index of their first among all such blocks (24 bits), and
/// number (8 bits).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct More(u32);

impl More {
    pub fn new(from: usize, count: usize) -> More {
        debug_assert!(from < 1 << 24 && count < 1 << 8);
        More((from as u32) << 8 | count as u32)
    }

    #[inline(always)]
    pub fn blocks(self) -> std::ops::Range<u32> {
        let from = self.0 >> 8;
        from..from + (self.0 & 0xff)
    }
}

/// Eight buckets; for IPv4 four cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Group<P> {
    /// Starts of the buckets; [`Point::MAX`] after the last one.
    starts: [P; GROUP],
    headers: [Header; GROUP],
    more: [More; GROUP],
}

const _: () = assert!(size_of::<Group<u64>>() == 4 * 64);

impl<P: Point> Group<P> {
    /// How many buckets start at or before the point.
    #[inline(always)]
    fn begun(&self, point: P) -> u32 {
        self.starts.iter().map(|&start| u32::from(start <= point)).sum()
    }
}

/// The buckets of an iSet.
#[derive(Debug)]
pub(super) struct Groups<P> {
    /// One more than needed, so that a search may read the next group.
    groups: Array<Group<P>>,
    buckets: u32,
}

impl<P: Point> Groups<P> {
    /// From buckets in order: start, header of the first block, and further blocks.
    pub fn new(buckets: impl ExactSizeIterator<Item = (P, Header, More)>) -> Groups<P> {
        let count = buckets.len();
        let empty = Group {
            starts: [P::MAX; GROUP],
            headers: [Header::NONE; GROUP],
            more: [More::default(); GROUP],
        };
        let mut groups = vec![empty; count.div_ceil(GROUP) + 1];
        for (bucket, (start, header, more)) in buckets.enumerate() {
            let (group, place) = (&mut groups[bucket / GROUP], bucket % GROUP);
            (group.starts[place], group.headers[place], group.more[place]) = (start, header, more);
        }
        Groups { groups: Array::new(groups.into_iter()), buckets: count as u32 }
    }

    pub fn buckets(&self) -> usize {
        self.buckets as usize
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&self.groups[..])
    }

    /// Truncates the window at the last bucket; prefetches for the next step.
    #[inline(always)]
    pub fn confined(&self, window: Window) -> Window {
        let window = Window { count: window.count.min(self.buckets - window.start), ..window };
        self.prefetch(window);
        window
    }

    /// A step of the binary search for the last bucket that starts at or before the point.
    #[inline(always)]
    pub fn halved(&self, window: Window, point: P) -> Window {
        let half = window.count / 2;
        let middle = (window.start + half) as usize;
        let begins = self.groups[middle / GROUP].starts[middle % GROUP] <= point;
        Window { start: window.start + if begins { half } else { 0 }, count: window.count - half }
    }

    #[inline(always)]
    pub fn prefetch(&self, window: Window) {
        let middle = (window.start + window.count / 2) as usize;
        prefetch_whole(&self.groups, middle / GROUP);
    }

    /// The last bucket that starts at or before the point, in a window of up to [`COMPARED`]
    /// buckets; an arbitrary one if there is none.
    #[inline(always)]
    pub fn last_begun(&self, point: P, window: Window) -> u32 {
        // Buckets before the window start before the point and those after it later, so compare
        // whole groups.
        let first = window.start as usize / GROUP;
        let begun_in = |group: usize| self.groups.get(group).map_or(0, |it| it.begun(point));
        let mut begun = begun_in(first) + begun_in(first + 1);
        if begun == COMPARED {
            begun += begun_in(first + 2);
        }
        let last = (first * GROUP) as u32 + begun.saturating_sub(1);
        // Only the greatest point gets beyond the last bucket.
        last.min(self.buckets - 1)
    }

    /// Header of a bucket's first block, and the further blocks.
    #[inline(always)]
    pub fn get(&self, bucket: u32) -> (Header, More) {
        let (group, place) = (&self.groups[bucket as usize / GROUP], bucket as usize % GROUP);
        (group.headers[place], group.more[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_finds_the_last_bucket_that_begins() {
        for count in [1_u64, 7, 8, 9, 16, 17, 100] {
            let starts = (0..count).map(|bucket| 10 + 10 * bucket);
            let all: Vec<_> =
                starts.map(|start| (start, Header::NONE, More::new(start as usize, 3))).collect();
            let groups = Groups::new(all.into_iter());
            for point in (10..10 * count + 15).chain([u64::MAX]) {
                let bucket = (point / 10 - 1).min(count - 1) as u32;
                for before in 0..20 {
                    for after in [0, 3, 30] {
                        let start = bucket.saturating_sub(before);
                        let window = Window { start, count: bucket + 1 - start + after };
                        let mut window = groups.confined(window);
                        while window.count > COMPARED {
                            window = groups.halved(window, point);
                        }
                        assert_eq!(groups.last_begun(point, window), bucket, "{count} {point}");
                    }
                }
                let from = 10 + 10 * bucket;
                assert_eq!(groups.get(bucket).1.blocks(), from..from + 3);
            }
        }
    }
}
