//! Excludes buckets that cannot match the key by two 32-bit words per bucket, each a Bloom filter
//! of one field of its filters.
//!
//! The index finds a bucket by one field; most buckets do not match the rest of the key, and
//! reading their filters would miss the cache. The words are stored beside the first block's
//! number, which is read anyway.

use crate::{Address, Filter, Key, Ports};

/// A field that a word is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Source(u8),
    Destination(u8),
    SourcePort,
    DestinationPort,
    Protocol,
}

/// The fields of an iSet's two words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard(Probe, Probe);

/// The words of a bucket or of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Words(u32, u32);

/// Maximum sub-prefixes that a filter sets bits for, as a power of two.
const SUB_PREFIXES: u8 = 3;

/// Prefix lengths to try, in sixteenths of an address.
const LENGTHS: [u8; 4] = [4, 8, 12, 16];

impl Probe {
    fn all<A: Address>() -> Vec<Probe> {
        let lengths = LENGTHS.map(|sixteenths| sixteenths * (A::BITS / 16));
        let addresses =
            lengths.into_iter().flat_map(|bits| [Probe::Source(bits), Probe::Destination(bits)]);
        addresses.chain([Probe::SourcePort, Probe::DestinationPort, Probe::Protocol]).collect()
    }

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
            Probe::Source(bits) => prefix(filter.source, filter.source_length, bits),
            Probe::Destination(bits) => prefix(filter.destination, filter.destination_length, bits),
            Probe::SourcePort => ports(filter.source_ports),
            Probe::DestinationPort => ports(filter.destination_ports),
            Probe::Protocol => filter.protocol.map_or(u32::MAX, |protocol| bit(protocol.into())),
        }
    }

    /// The bits of keys, up to the length of `bits`.
    #[inline(always)]
    fn of_keys<A: Address>(self, keys: &[Key<A>], bits: &mut [u32]) {
        let each = bits.iter_mut().zip(keys);
        // Branch once for all keys.
        match self {
            Probe::Source(length) => {
                let mask = A::mask(length);
                each.for_each(|(word, key)| *word = bit((key.source & mask).fold()));
            }
            Probe::Destination(length) => {
                let mask = A::mask(length);
                each.for_each(|(word, key)| *word = bit((key.destination & mask).fold()));
            }
            Probe::SourcePort => each.for_each(|(word, key)| *word = bit(key.source_port.into())),
            Probe::DestinationPort => {
                each.for_each(|(word, key)| *word = bit(key.destination_port.into()))
            }
            Probe::Protocol => each.for_each(|(word, key)| *word = bit(key.protocol.into())),
        }
    }

    #[inline(always)]
    fn of_key<A: Address>(self, key: &Key<A>) -> u32 {
        let mut bits = [0];
        self.of_keys(std::slice::from_ref(key), &mut bits);
        bits[0]
    }
}

/// One of 32 bits, by Fibonacci hashing.
#[inline(always)]
fn bit(value: u64) -> u32 {
    1 << (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59)
}

impl Guard {
    /// The two probes that exclude most of these keys from the buckets that the index finds for
    /// them.
    pub fn choose<A: Address>(found: &[(Key<A>, Vec<Filter<A>>)]) -> Guard {
        let probes = Probe::all::<A>();
        let passes = |probe: &Probe| -> Vec<bool> {
            let word = |filters: &[Filter<A>]| {
                filters.iter().fold(0, |word, filter| word | probe.of_filter(filter))
            };
            found.iter().map(|(key, filters)| word(filters) & probe.of_key(key) != 0).collect()
        };
        let passes: Vec<Vec<bool>> = probes.iter().map(passes).collect();
        let both = |one: usize, other: usize| {
            let pairs = passes[one].iter().zip(&passes[other]);
            pairs.filter(|(one, other)| **one && **other).count()
        };
        let pairs = (0..probes.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
        let least = pairs.min_by_key(|&(one, other)| both(one, other));
        let (one, other) = least.unwrap_or((0, 1));
        Guard(probes[one], probes[other])
    }

    pub fn of_filters<A: Address>(&self, filters: &[Filter<A>]) -> Words {
        filters.iter().fold(Words::default(), |words, filter| {
            Words(words.0 | self.0.of_filter(filter), words.1 | self.1.of_filter(filter))
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
    pub const NONE: Words = Words(0, 0);

    /// Whether a bucket with these words may match a key with those.
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
            let looks = Probe::all::<u32>();
            let guard =
                Guard(looks[seed as usize % looks.len()], looks[(seed / 7) as usize % looks.len()]);
            for at in 0..50 {
                let key = random_key(seed ^ at << 32, &filters);
                for filter in filters.iter().filter(|filter| filter.has(&key)) {
                    assert!(
                        guard.of_filters(&[*filter]).let_pass(guard.of_keys::<_, 1>(&[key])[0])
                    );
                }
            }
        }
    }
}
