//! Relaxed iSets (Scaling Open vSwitch with a Computational Cache, §5.1): filters in buckets that
//! do not overlap in one field.
//!
//! A filter is a range in each field. A bucket has up to [`BUCKET_MAX`] filters, which may overlap
//! each other; buckets do not overlap. So a key lies in at most one bucket, which a model finds.
//! Other filters go to the next iSet or the remainder.

use super::point::Point;
use crate::{Address, Filter, Key};

/// Maximum filters per bucket (l in §5.1).
pub(super) const BUCKET_MAX: usize = 40;
/// From this size on a bucket takes only filters that overlap it: a look-up compares this many at
/// once.
const BUCKET_FULL: usize = 8;

/// The order of an iSet.
///
/// The papers order by one field of the tuple. If many rules share few addresses, one address does
/// not distinguish them: in sets from the seed acl2 a single field covers at most 26 % of the
/// rules. So the first bits of one address may precede the other: filters that fix these bits are
/// ranges in that order, too (a learned index inside a tuple space, as in TupleRadar).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// The first bits of the destination, then the source; with 0 bits the source alone.
    Source {
        bits: u8,
    },
    /// The first bits of the source, then the destination; with 0 bits the destination alone.
    Destination {
        bits: u8,
    },
    SourcePort,
    DestinationPort,
}

impl Field {
    /// Single addresses and ports, as in the papers.
    pub const SINGLE: [Field; 4] = [
        Field::Source { bits: 0 },
        Field::Destination { bits: 0 },
        Field::SourcePort,
        Field::DestinationPort,
    ];

    /// Each address after the first bits of the other.
    pub fn joint<A: Address>() -> impl Iterator<Item = Field> {
        A::JOINT_BITS.iter().flat_map(|&bits| [Field::Source { bits }, Field::Destination { bits }])
    }

    /// The points of keys, up to the length of `points`.
    #[inline(always)]
    pub fn of_keys<A: Address>(self, keys: &[Key<A>], points: &mut [A::Point]) {
        let each = points.iter_mut().zip(keys);
        // Branch once for all keys.
        match self {
            Field::Source { bits } => {
                let mask = A::mask(bits);
                each.for_each(|(point, key)| {
                    *point = A::joint_point(key.destination & mask, bits, key.source)
                });
            }
            Field::Destination { bits } => {
                let mask = A::mask(bits);
                each.for_each(|(point, key)| {
                    *point = A::joint_point(key.source & mask, bits, key.destination)
                });
            }
            Field::SourcePort => {
                each.for_each(|(point, key)| *point = A::Point::of_port(key.source_port))
            }
            Field::DestinationPort => {
                each.for_each(|(point, key)| *point = A::Point::of_port(key.destination_port));
            }
        }
    }

    /// The first and last point of a filter; `None` if it is not a range in this order.
    pub fn of_filter<A: Address>(self, filter: &Filter<A>) -> Option<(A::Point, A::Point)> {
        let Filter { source, destination, source_length, destination_length, .. } = *filter;
        let joint = |(outer, outer_length): (A, u8), bits, (inner, length): (A, u8)| {
            let range = || {
                let outer = outer.prefix(bits);
                (
                    A::joint_point(outer, bits, inner),
                    A::joint_point(outer, bits, inner.last(length)),
                )
            };
            (outer_length >= bits).then(range)
        };
        let ports =
            |ports: crate::Ports| (A::Point::of_port(ports.first), A::Point::of_port(ports.last));
        let (source, destination) = ((source, source_length), (destination, destination_length));
        match self {
            Field::Source { bits } => joint(destination, bits, source),
            Field::Destination { bits } => joint(source, bits, destination),
            Field::SourcePort => Some(ports(filter.source_ports)),
            Field::DestinationPort => Some(ports(filter.destination_ports)),
        }
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Field::Source { bits: 0 } => f.write_str("source"),
            Field::Destination { bits: 0 } => f.write_str("destination"),
            Field::Source { bits } => write!(f, "destination/{bits}, source"),
            Field::Destination { bits } => write!(f, "source/{bits}, destination"),
            Field::SourcePort => f.write_str("source port"),
            Field::DestinationPort => f.write_str("destination port"),
        }
    }
}

/// A bucket: its range, and its filters' range in [`Partition::members`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket<P> {
    pub first: P,
    pub last: P,
    pub from: u32,
    pub to: u32,
}

/// The filters of one iSet, and the others, by the caller's numbers.
#[derive(Debug)]
pub(super) struct Partition<P> {
    pub field: Field,
    /// In the order of the field.
    pub buckets: Vec<Bucket<P>>,
    pub members: Vec<u32>,
    pub rest: Vec<u32>,
}

/// The largest iSet in this field that a greedy algorithm finds among the filters with these
/// numbers.
///
/// In the order of the ranges' ends, a filter joins the open bucket if it overlaps it or the bucket
/// is not full. It is left over if it overlaps a closed bucket, or too many filters overlap in one
/// place. Wide ranges end late, so they are left over instead of keeping narrow ones out, as in
/// interval scheduling.
pub(super) fn partition<A: Address>(
    filters: &[Filter<A>],
    numbers: &[u32],
    field: Field,
) -> Partition<A::Point> {
    let mut rest = Vec::new();
    let mut ranges = Vec::with_capacity(numbers.len());
    for &number in numbers {
        match field.of_filter(&filters[number as usize]) {
            Some((first, last)) => ranges.push((last, first, number)),
            None => rest.push(number),
        }
    }
    // Among ranges with the same end, narrow ones first.
    ranges.sort_unstable_by(|one, other| (one.0, other.1, one.2).cmp(&(other.0, one.1, other.2)));
    let mut found =
        Partition { field, buckets: Vec::new(), members: Vec::with_capacity(numbers.len()), rest };
    let mut closed_last = None;
    let mut open: Option<Bucket<A::Point>> = None;
    for (last, first, number) in ranges {
        if closed_last.is_some_and(|closed| first <= closed) {
            found.rest.push(number);
            continue;
        }
        let place = found.members.len() as u32;
        match &mut open {
            Some(bucket) => {
                let count = (bucket.to - bucket.from) as usize;
                let overlaps = first <= bucket.last;
                if count < BUCKET_FULL || overlaps && count < BUCKET_MAX {
                    bucket.first = bucket.first.min(first);
                    bucket.last = last;
                    bucket.to += 1;
                } else if overlaps {
                    found.rest.push(number);
                    continue;
                } else {
                    closed_last = Some(bucket.last);
                    found.buckets.push(*bucket);
                    *bucket = Bucket { first, last, from: place, to: place + 1 };
                }
            }
            None => open = Some(Bucket { first, last, from: place, to: place + 1 }),
        }
        found.members.push(number);
    }
    found.buckets.extend(open);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::tests::random_filters;

    #[test]
    fn buckets_are_in_order_do_not_overlap_and_lose_no_filter() {
        for seed in 0..50 {
            let filters = random_filters::<u32>(seed, 500);
            let numbers: Vec<u32> = (0..500).collect();
            for field in Field::SINGLE.into_iter().chain(Field::joint::<u32>()) {
                let found = partition(&filters, &numbers, field);
                let mut all = [&found.members[..], &found.rest[..]].concat();
                all.sort_unstable();
                assert_eq!(all, numbers);
                let mut at = 0;
                for bucket in &found.buckets {
                    assert_eq!(bucket.from, at);
                    assert!((1..=BUCKET_MAX as u32).contains(&(bucket.to - bucket.from)));
                    at = bucket.to;
                    let members = &found.members[bucket.from as usize..bucket.to as usize];
                    let ranges =
                        members.iter().map(|&it| field.of_filter(&filters[it as usize]).unwrap());
                    let (firsts, lasts): (Vec<_>, Vec<_>) = ranges.unzip();
                    assert_eq!(firsts.iter().min(), Some(&bucket.first));
                    assert_eq!(lasts.iter().max(), Some(&bucket.last));
                }
                assert_eq!(at as usize, found.members.len());
                let in_order = |pair: &[Bucket<u64>]| pair[0].last < pair[1].first;
                assert!(found.buckets.windows(2).all(in_order));
            }
        }
    }
}
