//! The table alone: look-up and update of flows by key, through the same code as the walk. For
//! comparison with other tables; the program does not use it.

use std::io;

use crate::config::BURST_MAX;
use crate::entry::Entries;
use crate::hash::{HashKind, Hasher};
use crate::key::Key;
use crate::memory::Pages;
use crate::table::Table;

/// A flow table without packets.
pub struct BareTable {
    hasher: Hasher,
    table: Table,
    entries: Entries,
    /// Hash and guessed slot of each key of a burst.
    staged: [(u64, Option<u8>); BURST_MAX],
}

impl BareTable {
    /// A table of `buckets`, a power of two, for `max_flows`, with the keyed hash.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(max_flows: usize, buckets: usize, seed: u64) -> io::Result<BareTable> {
        Ok(BareTable {
            hasher: Hasher::new(HashKind::Keyed { seed }),
            table: Table::new(buckets, max_flows)?,
            entries: Entries::new(max_flows, 1, None)?,
            staged: [(0, None); BURST_MAX],
        })
    }

    /// Begins a new flow; false if the table, or the chain of its bucket, is full.
    pub fn insert(&mut self, key: &Key) -> bool {
        let hash = self.hasher.hash(key, None);
        let Some((_, index)) = self.table.insert(hash, 0) else {
            return false;
        };
        self.entries.hot_mut(index).begin(key, true);
        true
    }

    /// Looks up a burst of up to [`BURST_MAX`] keys, and for each flow found notes
    /// the access at second `stamp` and counts a packet of `length` bytes. Returns
    /// how many were found.
    pub fn look_up(&mut self, keys: &[Key], stamp: u16, length: u32) -> usize {
        let staged = &mut self.staged[..keys.len()];
        for (staged, key) in staged.iter_mut().zip(keys) {
            let hash = self.hasher.hash(key, None);
            self.table.prefetch(hash);
            *staged = (hash, None);
        }
        for (hash, guess) in staged.iter_mut() {
            if let Some((slot, index)) = self.table.guess(*hash) {
                *guess = Some(slot);
                self.entries.prefetch(index);
            }
        }
        let found = |(at, key)| usize::from(self.update(key, at, stamp, length));
        keys.iter().enumerate().map(found).sum()
    }

    #[inline]
    fn update(&mut self, key: &Key, at: usize, stamp: u16, length: u32) -> bool {
        let (hash, guess) = self.staged[at];
        let entries = &self.entries;
        let is_it = |index| entries.hot(index).is_of(key);
        let Some(place) = self.table.find_from(hash, guess, is_it) else {
            return false;
        };
        let index = self.table.touch(place, stamp);
        self.entries.count(index, 0, length);
        true
    }

    /// The pages under the table.
    pub fn pages(&self) -> Pages {
        self.table.pages().min(self.entries.pages())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::UDP;

    #[test]
    fn finds_what_was_inserted_and_nothing_else() {
        let end = |host: u32, port| (std::net::Ipv4Addr::from_bits(host).into(), port);
        let key = |host| Key::from_ends(UDP, end(host, 1000), end(0x0a00_0001, 53));
        let mut table = BareTable::new(1000, 64, 7).unwrap();
        for host in 0..1000 {
            assert!(table.insert(&key(host)));
        }
        assert!(!table.insert(&key(1000)));
        let keys: Vec<Key> = (900..1100).map(key).collect();
        assert_eq!(table.look_up(&keys, 1, 60), 100);
    }
}
