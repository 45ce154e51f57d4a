//! The hash table of a subtable: masked keys to rules.
//!
//! A slot is a word: half of the key's hash, and the number of an entry, so that a search that fails reads a single line most
//! times, and no entry. At most half of the slots are in use.

use policy::{Address, Rank, RuleNumber};

/// A key with the bits beyond a mask cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked<A> {
    pub source: A,
    pub destination: A,
    /// Ports, protocol and interface.
    pub rest: u64,
}

impl<A: Address> Masked<A> {
    /// A multiplication to 128 bits whose halves are folded, as wyhash does it.
    #[inline]
    pub fn hash(&self) -> u64 {
        let addresses = self.source.fold().rotate_left(32) ^ self.destination.fold();
        let (a, b) = (
            addresses ^ 0xa076_1d64_78bd_642f,
            self.rest ^ 0xe703_7ed1_a0b4_28db,
        );
        let product = u128::from(a) * u128::from(b);
        (product >> 64) as u64 ^ product as u64
    }
}

/// What a key leads to.
#[derive(Clone, Copy, Debug)]
pub struct Entry<A> {
    key: Masked<A>,
    pub rank: Rank,
    pub rule: RuleNumber,
}

/// Keys and their rules.
#[derive(Clone, Debug, Default)]
pub struct Table<A> {
    /// Half of a hash above, the number of an entry below; [`EMPTY`] without.
    slots: Vec<u64>,
    entries: Vec<Entry<A>>,
}

const EMPTY: u64 = u64::MAX;
const SLOTS_MIN: usize = 4;

impl<A: Address> Table<A> {
    /// The entry of a key with this hash.
    #[inline]
    pub fn find(&self, key: &Masked<A>, hash: u64) -> Option<&Entry<A>> {
        let last = self.slots.len() - 1;
        let mut place = hash as usize & last;
        loop {
            let slot = self.slots[place & last];
            if slot == EMPTY {
                return None;
            }
            if slot >> 32 == hash >> 32 {
                let entry = &self.entries[slot as u32 as usize];
                if entry.key == *key {
                    return Some(entry);
                }
            }
            place += 1;
        }
    }

    /// Adds a key. Of two rules with one key the lesser rank stays.
    pub fn insert(&mut self, key: Masked<A>, rank: Rank, rule: RuleNumber) {
        if 2 * self.entries.len() >= self.slots.len() {
            self.grow();
        }
        let hash = key.hash();
        let last = self.slots.len() - 1;
        let mut place = hash as usize & last;
        while self.slots[place] != EMPTY {
            let slot = self.slots[place];
            let entry = &mut self.entries[slot as u32 as usize];
            if entry.key == key {
                if rank < entry.rank {
                    (entry.rank, entry.rule) = (rank, rule);
                }
                return;
            }
            place = (place + 1) & last;
        }
        self.slots[place] = word(hash, self.entries.len());
        self.entries.push(Entry { key, rank, rule });
    }

    fn grow(&mut self) {
        let slots = (2 * self.slots.len()).max(SLOTS_MIN);
        self.slots = vec![EMPTY; slots];
        for (number, entry) in self.entries.iter().enumerate() {
            let hash = entry.key.hash();
            let mut place = hash as usize & (slots - 1);
            while self.slots[place] != EMPTY {
                place = (place + 1) & (slots - 1);
            }
            self.slots[place] = word(hash, number);
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>() + self.entries.capacity() * size_of::<Entry<A>>()
    }
}

fn word(hash: u64, entry: usize) -> u64 {
    hash >> 32 << 32 | entry as u64
}
