//! Every classifier against the linear one.

use super::*;
use crate::{Ports, Rank};

/// A generator of numbers, the same for the same seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn address<A: Address>(&mut self) -> A {
        // Few distinct ones at every length, so that prefixes nest.
        let choice = [self.below(2), self.below(4), self.below(16), self.next()];
        let mut bits = 0_u128;
        for (place, value) in choice.into_iter().enumerate() {
            bits |= u128::from(value as u32) << (96 - 32 * place);
        }
        if self.below(2) == 0 {
            // In the upper 32 bits as well, which are all that IPv4 has.
            bits ^= u128::from(self.next() as u32) << 96;
        }
        A::of_upper(bits)
    }

    fn ports(&mut self) -> Ports {
        match self.below(4) {
            0 => Ports::one(self.below(3) as u16 * 400),
            1 => Ports { first: 1024, last: u16::MAX },
            2 => {
                let first = self.below(60_000) as u16;
                Ports { first, last: first + self.below(5000) as u16 }
            }
            _ => Ports::ANY,
        }
    }
}

/// Filters that overlap in all ways.
pub(crate) fn random_filters<A: Address>(seed: u64, count: usize) -> Vec<Filter<A>> {
    let mut random = Random::new(seed);
    let filter = |number: usize| {
        let length = |random: &mut Random| match random.below(4) {
            0 => 0,
            1 => A::BITS,
            _ => random.below(u64::from(A::BITS) + 1) as u8,
        };
        let (source_length, destination_length) = (length(&mut random), length(&mut random));
        Filter {
            source: random.address::<A>().prefix(source_length),
            destination: random.address::<A>().prefix(destination_length),
            source_length,
            destination_length,
            protocol: [None, Some(6), Some(17), Some(0)][random.below(4) as usize],
            in_port: [0, 0, 0, 1][random.below(4) as usize],
            source_ports: random.ports(),
            destination_ports: random.ports(),
            rule: number as u32,
            is_conditional: random.below(4) == 0,
            rank: Rank::new(random.below(8) as u32, number as u32),
        }
    };
    (0..count).map(filter).collect()
}

/// A key within or close to one of the filters.
pub(crate) fn random_key<A: Address>(seed: u64, filters: &[Filter<A>]) -> Key<A> {
    let mut random = Random::new(seed);
    let filter = &filters[random.below(filters.len() as u64) as usize];
    let within = |random: &mut Random, prefix: A, length: u8| match random.below(8) {
        0 => random.address(),
        1 => prefix,
        2 => prefix.last(length),
        _ => prefix.with_low(random.address(), length),
    };
    let port = |random: &mut Random, ports: Ports| match random.below(8) {
        0 => random.next() as u16,
        1 => ports.first,
        2 => ports.last,
        _ => ports.first + (random.next() % (u64::from(ports.last - ports.first) + 1)) as u16,
    };
    Key {
        source: within(&mut random, filter.source, filter.source_length),
        destination: within(&mut random, filter.destination, filter.destination_length),
        source_port: port(&mut random, filter.source_ports),
        destination_port: port(&mut random, filter.destination_ports),
        protocol: filter.protocol.unwrap_or([6, 17, 1, 0][random.below(4) as usize]),
        in_port: random.below(3) as u8,
    }
}

/// Conditions that hold for some keys and rules.
fn holds(place: usize, rule: RuleNumber) -> bool {
    !(place as u32 + rule).is_multiple_of(3)
}

fn counts(hit: Hit) -> bool {
    !hit.is_conditional || holds(hit.place, hit.rule)
}

fn all_agree<A: Address>(seed: u64, count: usize, keys: usize) {
    let filters = random_filters::<A>(seed, count);
    let keys: Vec<Key<A>> =
        (0..keys).map(|at| random_key(seed ^ (at as u64) << 40, &filters)).collect();
    let linear = Linear::new(&filters);
    let expected: Vec<_> = keys
        .iter()
        .enumerate()
        .map(|(place, key)| linear.find(key, |rule| holds(place, rule)))
        .collect();
    let classifier = Classifier::new(&filters).unwrap();
    // Few keys at a time go another way than many.
    for at_a_time in [keys.len(), 1 + seed as usize % 6] {
        let mut found = vec![None; keys.len()];
        let batches = keys.chunks(at_a_time).zip(found.chunks_mut(at_a_time));
        for (batch, (keys, found)) in batches.enumerate() {
            let counts = |hit: Hit| counts(Hit { place: batch * at_a_time + hit.place, ..hit });
            classifier.find(keys, counts, found);
        }
        assert_eq!(found, expected, "seed {seed}, {count} filters");
    }
    // Hash tables alone, filled by rank and in the order of the filters.
    let mut added = TupleMerge::default();
    for filter in &filters {
        added.insert(filter).unwrap();
    }
    for tables in [TupleMerge::new(&filters).unwrap(), added] {
        agrees(&tables, &keys, &expected);
    }
}

/// Whether hash tables find what is expected for each key.
fn agrees<A: Address>(tables: &TupleMerge<A>, keys: &[Key<A>], expected: &[Option<RuleNumber>]) {
    for (batch, (keys, expected)) in keys.chunks(BATCH).zip(expected.chunks(BATCH)).enumerate() {
        let mut best = Best::new();
        tables.find_into(
            keys,
            |hit| counts(Hit { place: batch * BATCH + hit.place, ..hit }),
            &mut best,
        );
        let found: Vec<_> = (0..keys.len()).map(|place| best.rule(place)).collect();
        assert_eq!(found, expected);
    }
}

/// Look-ups of all sets together: 120,000, or what the environment says.
fn lookups() -> usize {
    let asked = std::env::var("FENXI_LOOKUPS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(120_000)
}

#[test]
fn all_classifiers_agree() {
    let mut left = lookups();
    for seed in 0.. {
        for count in [1, 2, 30, 1100, 3000] {
            all_agree::<u32>(seed, count, 300);
            all_agree::<u128>(seed, count, 300);
            left = left.saturating_sub(600);
        }
        if left == 0 {
            break;
        }
    }
}

/// Filters with one box, or with one pair of addresses and many ranges of ports, share one list of
/// a hash table. At sizes at which walking it for each of them would not end.
#[test]
fn filters_that_share_a_list_take_no_time_of_their_square() {
    const COUNT: u32 = 1 << 18;
    let filter = |number: u32, priority: u32, first: u16| Filter::<u32> {
        source: 10 << 24,
        source_length: 8,
        destination: 0,
        destination_length: 0,
        protocol: None,
        in_port: 0,
        source_ports: Ports::ANY,
        destination_ports: Ports { first, last: u16::MAX },
        rule: number,
        is_conditional: false,
        rank: Rank::new(priority, number),
    };
    let mut random = Random::new(1);
    let equal: Vec<_> = (0..COUNT).map(|number| filter(number, 0, 0)).collect();
    let rising: Vec<_> = (0..COUNT).map(|number| filter(number, number, 0)).collect();
    let ranges: Vec<_> = (0..COUNT)
        .map(|number| filter(number, random.below(9) as u32, random.below(60_000) as u16))
        .collect();
    for filters in [&equal, &rising, &ranges] {
        let mut tables = TupleMerge::new(filters).unwrap();
        assert_eq!(tables.len(), COUNT as usize);
        // Those that are added later come last.
        for number in COUNT..2 * COUNT {
            tables.insert(&filter(number, 0, 0)).unwrap();
        }
    }
}
