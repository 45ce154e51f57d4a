//! Excludes keys that an iSet cannot contain, by two bitmaps of the addresses' first bits.
//!
//! Most sets need several iSets, and the later ones are small: their filters cover few addresses. A
//! look-up in an iSet takes some hundred instructions, a gate a dozen.

use std::ops::RangeInclusive;

use crate::{Address, Filter, Key};

/// Bits of a map: one per 16-bit value.
const BITS: usize = 1 << 16;

/// A map with more bits set excludes too few keys and is left out.
const DENSE: u32 = BITS as u32 / 2;

/// Bits by [`Address::gate`]; `None`: all pass.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    source: Option<Box<[u64]>>,
    destination: Option<Box<[u64]>>,
}

impl Gate {
    pub fn new<A: Address>(filters: impl Iterator<Item = Filter<A>> + Clone) -> Gate {
        Gate {
            source: map(filters.clone().map(|it| it.source.gates(it.source_length))),
            destination: map(filters.map(|it| it.destination.gates(it.destination_length))),
        }
    }

    /// Copies the keys that pass, with their places. Returns their number.
    #[inline(always)]
    pub fn pass<A: Address, const N: usize>(
        &self,
        keys: &[Key<A>],
        passed: &mut [Key<A>; N],
        places: &mut [u8; N],
    ) -> usize {
        let has = |map: &Option<Box<[u64]>>, gate: u16| {
            let word = map.as_ref().map_or(Some(&u64::MAX), |map| map.get(usize::from(gate / 64)));
            word.is_some_and(|word| word >> (gate % 64) & 1 != 0)
        };
        let mut count = 0;
        for (place, key) in keys.iter().enumerate().take(N) {
            (passed[count], places[count]) = (*key, place as u8);
            let passes = has(&self.source, key.source.gate())
                & has(&self.destination, key.destination.gate());
            // Branchless: a branch would be mispredicted half of the time.
            count += usize::from(passes);
        }
        count
    }

    pub fn bytes(&self) -> usize {
        let maps = [&self.source, &self.destination].into_iter().flatten();
        maps.map(|map| size_of_val(&**map)).sum()
    }
}

fn map(gates: impl Iterator<Item = RangeInclusive<u16>>) -> Option<Box<[u64]>> {
    // Counts of ranges that begin minus those that ended: one pass, however wide the ranges.
    let mut begun = vec![0_i32; BITS + 1];
    for range in gates {
        begun[usize::from(*range.start())] += 1;
        begun[usize::from(*range.end()) + 1] -= 1;
    }
    let mut map = vec![0_u64; BITS / 64];
    let mut open = 0;
    for (gate, begun) in begun[..BITS].iter().enumerate() {
        open += begun;
        map[gate / 64] |= u64::from(open > 0) << (gate % 64);
    }
    let set: u32 = map.iter().map(|word| word.count_ones()).sum();
    (set <= DENSE).then(|| map.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::tests::{random_filters, random_key};

    fn lets_all_in<A: Address>(seed: u64) {
        let filters = random_filters::<A>(seed, 3);
        let gate = Gate::new(filters.iter().copied());
        for at in 0..50 {
            let key = random_key(seed ^ at << 32, &filters);
            let is_in = filters.iter().any(|filter| filter.has(&key));
            let passed = gate.pass(&[key], &mut [Key::default(); 4], &mut [0; 4]);
            assert!(passed == 1 || !is_in, "{key:?}");
        }
    }

    #[test]
    fn a_key_of_a_filter_passes() {
        for seed in 0..500 {
            lets_all_in::<u32>(seed);
            lets_all_in::<u128>(seed);
        }
    }
}
