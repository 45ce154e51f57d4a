//! A bucket's filters as vectors, eight of which are compared with a key at a time.

use crate::classifier::best::Hit;
use crate::memory::Array;
use crate::{Address, Filter, Key, Ports, Rank, RuleNumber};

/// Filters per block.
pub const LANES: usize = 8;

/// The boxes of eight filters, by rank. Lanes without a filter have no ports.
#[derive(Clone, Copy, Debug)]
pub struct Boxes<A> {
    /// Prefixes of the source.
    pub source: [A; LANES],
    /// Prefixes of the destination.
    pub destination: [A; LANES],
    /// First port in the lower half, last in the upper.
    pub source_ports: [u32; LANES],
    /// As `source_ports`.
    pub destination_ports: [u32; LANES],
    /// From the lowest byte: address bits that the source's prefix leaves open, same for the
    /// destination, protocol, interface.
    pub rest: [u32; LANES],
}

/// Eight filters; for IPv4 four cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Block<A> {
    boxes: Boxes<A>,
    ranks: [Rank; LANES],
    /// With the bit [`CONDITIONAL`].
    rules: [RuleNumber; LANES],
}

const _: () = assert!(size_of::<Block<u32>>() == 4 * 64);

/// Bit of a rule's number: the rule has a condition.
const CONDITIONAL: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct Filling<A>(Vec<Block<A>>);

#[derive(Debug)]
pub(crate) struct Blocks<A>(Array<Block<A>>);

/// An empty range of ports.
const NO_PORTS: u32 = 1;

fn word_of(ports: Ports) -> u32 {
    u32::from(ports.first) | u32::from(ports.last) << 16
}

impl<A: Address> Boxes<A> {
    /// Which boxes contain the key, a bit per box.
    #[inline(always)]
    pub fn matches(&self, key: &Key<A>) -> u8 {
        let mut lanes = 0;
        for lane in 0..LANES {
            lanes |= u8::from(self.has(lane, key)) << lane;
        }
        lanes
    }

    #[inline(always)]
    fn has(&self, lane: usize, key: &Key<A>) -> bool {
        let [source_open, destination_open, protocol, in_port] = self.rest[lane].to_le_bytes();
        let within = |ports: u32, port: u16| (ports as u16..=(ports >> 16) as u16).contains(&port);
        A::agree(key.source, self.source[lane], source_open)
            && A::agree(key.destination, self.destination[lane], destination_open)
            && within(self.source_ports[lane], key.source_port)
            && within(self.destination_ports[lane], key.destination_port)
            && (protocol == 0 || protocol == key.protocol)
            && (in_port == 0 || in_port == key.in_port)
    }
}

impl<A: Address> Block<A> {
    fn empty() -> Block<A> {
        Block {
            boxes: Boxes {
                source: [A::default(); LANES],
                destination: [A::default(); LANES],
                source_ports: [NO_PORTS; LANES],
                destination_ports: [NO_PORTS; LANES],
                rest: [0; LANES],
            },
            ranks: [Rank::LAST; LANES],
            rules: [0; LANES],
        }
    }

    fn set(&mut self, lane: usize, filter: &Filter<A>) {
        self.boxes.source[lane] = filter.source;
        self.boxes.destination[lane] = filter.destination;
        self.boxes.source_ports[lane] = word_of(filter.source_ports);
        self.boxes.destination_ports[lane] = word_of(filter.destination_ports);
        self.boxes.rest[lane] = u32::from_le_bytes([
            A::BITS - filter.source_length,
            A::BITS - filter.destination_length,
            filter.protocol.unwrap_or(0),
            filter.in_port,
        ]);
        self.ranks[lane] = filter.rank;
        let conditional = if filter.is_conditional { CONDITIONAL } else { 0 };
        self.rules[lane] = filter.rule | conditional;
    }
}

impl<A: Address> Filling<A> {
    /// Adds the filters of a bucket, by rank.
    pub fn push(&mut self, filters: &[Filter<A>]) {
        for filters in filters.chunks(LANES) {
            let mut block = Block::empty();
            for (lane, filter) in filters.iter().enumerate() {
                block.set(lane, filter);
            }
            self.0.push(block);
        }
    }
}

impl<A: Address> Blocks<A> {
    pub fn new(mut blocks: Filling<A>, others: Filling<A>) -> Blocks<A> {
        blocks.0.extend(others.0);
        Blocks(Array::new(blocks.0.into_iter()))
    }

    /// Whether a filter fits into a block, where protocol 0 means any.
    pub fn takes(filter: &Filter<A>) -> bool {
        filter.protocol != Some(0)
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&self.0[..])
    }

    #[inline(always)]
    pub fn prefetch(&self, block: u32) {
        crate::prefetch::prefetch_whole(&self.0, block as usize);
    }

    #[inline(always)]
    pub fn boxes(&self, block: u32) -> &Boxes<A> {
        &self.0[block as usize].boxes
    }

    /// The filter in a lane as a hit for the key at `place`.
    #[inline(always)]
    pub fn get(&self, block: u32, lane: usize, place: usize) -> (Rank, Hit) {
        let block = &self.0[block as usize];
        let rule = block.rules[lane % LANES];
        let hit = Hit { place, rule: rule & !CONDITIONAL, is_conditional: rule & CONDITIONAL != 0 };
        (block.ranks[lane % LANES], hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::tests::{random_filters, random_key};
    use proptest::prelude::*;

    fn agrees<A: Address>(seed: u64) {
        let mut filters = random_filters::<A>(seed, LANES - (seed % 3) as usize);
        filters.retain(Blocks::takes);
        if filters.is_empty() {
            return;
        }
        let mut blocks = Filling::default();
        blocks.push(&filters);
        let blocks = Blocks::new(blocks, Filling::default());
        for at in 0..200 {
            let key = random_key(seed ^ at << 32, &filters);
            let lanes = blocks.boxes(0).matches(&key);
            for lane in 0..LANES {
                let has = filters.get(lane).is_some_and(|filter| filter.has(&key));
                assert_eq!(lanes >> lane & 1 != 0, has, "{:?} {key:?}", filters.get(lane));
            }
        }
    }

    proptest! {
        #[test]
        fn lanes_agree_with_filters(seed in any::<u64>()) {
            agrees::<u32>(seed);
            agrees::<u128>(seed);
        }
    }
}
