//! What keeps a look-up from buckets that cannot have the key: two words of 32 bits per bucket, each a Bloom filter of what the
//! bucket's filters want in one field.
//!
//! The index finds a bucket by one field; most buckets found so have nothing to do with the rest of the key, and their filters
//! lie in memory that nobody has asked for yet. The words lie beside the number of the first block, which is needed anyway.

use crate::{Address, Filter, Key, Ports};

/// What a word looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The first bits of the source.
    Source(u8),
    /// The first bits of the destination.
    Destination(u8),
    /// The source's port.
    SourcePort,
    /// The destination's port.
    DestinationPort,
    /// The protocol.
    Protocol,
}

/// What the two words of an iSet's buckets look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard(Look, Look);

/// The words of a bucket, or the bits of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Words(u32, u32);

/// Sub-prefixes that a filter sets bits for, at most, as a power of two.
const SUB_PREFIXES: u8 = 3;

/// Sixteenths of an address's bits.
const LENGTHS: [u8; 4] = [4, 8, 12, 16];

impl Look {
    fn all<A: Address>() -> Vec<Look> {
        let lengths = LENGTHS.map(|sixteenths| sixteenths * (A::BITS / 16));
        let addresses = lengths
            .into_iter()
            .flat_map(|bits| [Look::Source(bits), Look::Destination(bits)]);
        addresses
            .chain([Look::SourcePort, Look::DestinationPort, Look::Protocol])
            .collect()
    }

    /// The bits that a filter sets.
    fn of_filter<A: Address>(self, filter: &Filter<A>) -> u32 {
        let prefix = |address: A, length: u8, bits: u8| match bits.saturating_sub(length) {
            0 => bit(address.prefix(bits).fold()),
            open @ 1..=SUB_PREFIXES => (0..1_u128 << open).fold(0, |word, sub| {
                let sub = A::of_upper(sub << (u128::BITS as u8 - bits));
                word | bit(address.with_low(sub, length).fold())
            }),
            _ => u32::MAX,
        };
        let ports = |ports: Ports| match ports.first == ports.last {
            true => bit(ports.first.into()),
            false => u32::MAX,
        };
        match self {
            Look::Source(bits) => prefix(filter.source, filter.source_length, bits),
            Look::Destination(bits) => prefix(filter.destination, filter.destination_length, bits),
            Look::SourcePort => ports(filter.source_ports),
            Look::DestinationPort => ports(filter.destination_ports),
            Look::Protocol => filter
                .protocol
                .map_or(u32::MAX, |protocol| bit(protocol.into())),
        }
    }

    /// The bits that keys ask for: as many as there are places for.
    #[inline(always)]
    fn of_keys<A: Address>(self, keys: &[Key<A>], bits: &mut [u32]) {
        let each = bits.iter_mut().zip(keys);
        // The choice is made once for all keys.
        match self {
            Look::Source(length) => {
                let mask = A::mask(length);
                each.for_each(|(word, key)| *word = bit((key.source & mask).fold()));
            }
            Look::Destination(length) => {
                let mask = A::mask(length);
                each.for_each(|(word, key)| *word = bit((key.destination & mask).fold()));
            }
            Look::SourcePort => each.for_each(|(word, key)| *word = bit(key.source_port.into())),
            Look::DestinationPort => {
                each.for_each(|(word, key)| *word = bit(key.destination_port.into()))
            }
            Look::Protocol => each.for_each(|(word, key)| *word = bit(key.protocol.into())),
        }
    }

    #[inline(always)]
    fn of_key<A: Address>(self, key: &Key<A>) -> u32 {
        let mut bits = [0];
        self.of_keys(std::slice::from_ref(key), &mut bits);
        bits[0]
    }
}

/// One of 32 bits (Fibonacci hashing).
#[inline(always)]
fn bit(value: u64) -> u32 {
    1 << (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59)
}

impl Guard {
    /// The two looks that keep most of these keys from the buckets that the index finds for them. What the index looks at itself
    /// says little about them, however rare it is among all filters.
    pub fn choose<A: Address>(found: &[(Key<A>, Vec<Filter<A>>)]) -> Guard {
        let looks = Look::all::<A>();
        let passes = |look: &Look| -> Vec<bool> {
            let word = |filters: &[Filter<A>]| {
                filters
                    .iter()
                    .fold(0, |word, filter| word | look.of_filter(filter))
            };
            found
                .iter()
                .map(|(key, filters)| word(filters) & look.of_key(key) != 0)
                .collect()
        };
        let passes: Vec<Vec<bool>> = looks.iter().map(passes).collect();
        let both = |one: usize, other: usize| {
            let pairs = passes[one].iter().zip(&passes[other]);
            pairs.filter(|(one, other)| **one && **other).count()
        };
        let pairs = (0..looks.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
        let (one, other) = pairs
            .min_by_key(|&(one, other)| both(one, other))
            .unwrap_or((0, 1));
        Guard(looks[one], looks[other])
    }

    /// The words of a bucket with these filters.
    pub fn of_filters<A: Address>(&self, filters: &[Filter<A>]) -> Words {
        filters.iter().fold(Words::default(), |words, filter| {
            Words(
                words.0 | self.0.of_filter(filter),
                words.1 | self.1.of_filter(filter),
            )
        })
    }

    /// The bits of up to `N` keys.
    #[inline(always)]
    pub fn of_keys<A: Address, const N: usize>(&self, keys: &[Key<A>]) -> [Words; N] {
        let (mut one, mut other) = ([0; N], [0; N]);
        self.0.of_keys(keys, &mut one);
        self.1.of_keys(keys, &mut other);
        std::array::from_fn(|place| Words(one[place], other[place]))
    }
}

impl Words {
    /// Those of no filter.
    pub const NONE: Words = Words(0, 0);

    /// Whether a bucket with these words may have a key with those.
    #[inline(always)]
    pub fn let_pass(self, key: Words) -> bool {
        self.0 & key.0 != 0 && self.1 & key.1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::tests::{random_filters, random_key};

    #[test]
    fn a_bucket_that_has_the_key_is_never_passed_over() {
        for seed in 0..300 {
            let filters = random_filters::<u32>(seed, 8);
            let looks = Look::all::<u32>();
            let guard = Guard(
                looks[seed as usize % looks.len()],
                looks[(seed / 7) as usize % looks.len()],
            );
            for at in 0..50 {
                let key = random_key(seed ^ at << 32, &filters);
                for filter in filters.iter().filter(|filter| filter.has(&key)) {
                    assert!(
                        guard
                            .of_filters(&[*filter])
                            .let_pass(guard.of_keys::<_, 1>(&[key])[0])
                    );
                }
            }
        }
    }
}
