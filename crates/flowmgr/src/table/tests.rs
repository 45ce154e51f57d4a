//! The table against `HashMap`, under hashes that collide much.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A table whose entries hold a number as key, as a flow manager would use it.
struct Keyed {
    table: Table,
    keys: Vec<u64>,
    hash: fn(u64) -> u64,
}

impl Keyed {
    fn new(buckets: usize, entries: usize, hash: fn(u64) -> u64) -> Keyed {
        Keyed {
            table: Table::new(buckets, entries).unwrap(),
            keys: vec![u64::MAX; entries],
            hash,
        }
    }

    fn find(&self, key: u64) -> Option<Place> {
        self.table
            .find((self.hash)(key), |index| self.keys[index as usize] == key)
    }

    fn insert(&mut self, key: u64, stamp: u16) -> bool {
        let Some((place, index)) = self.table.insert((self.hash)(key), stamp) else {
            return false;
        };
        self.keys[index as usize] = key;
        assert_eq!(self.table.occupant(place).index, index);
        true
    }

    fn remove(&mut self, place: Place) {
        let index = self.table.occupant(place).index;
        self.table.remove(place);
        self.table.free_entry(index);
        self.keys[index as usize] = u64::MAX;
    }

    /// Every (key, stamp, closed) that iteration finds.
    fn contents(&self) -> HashMap<u64, (u16, bool)> {
        let mut contents = HashMap::new();
        let mut heads = 0..self.table.buckets();
        while let Some(head) = self.table.in_use_from(heads.start, heads.end) {
            heads.start = head + 1;
            let mut place = self.table.first_in(head);
            assert!(place.is_some(), "bucket {head} is marked as in use");
            while let Some(at) = place {
                let occupant = self.table.occupant(at);
                let key = self.keys[occupant.index as usize];
                let twice = contents.insert(key, (occupant.stamp, occupant.is_closed));
                assert!(twice.is_none(), "key {key} stands twice");
                place = self.table.next_after(at);
            }
        }
        contents
    }

    /// In each chain all buckets but the last are full.
    fn assert_chains_are_dense(&self) {
        for head in 0..self.table.buckets() {
            let mut at = head;
            while self.table.buckets[at as usize].next != 0 {
                assert_eq!(self.table.buckets[at as usize].occupied, u8::MAX);
                at = self.table.buckets[at as usize].next;
                assert_ne!(self.table.buckets[at as usize].occupied, 0);
            }
        }
    }
}

fn constant(_: u64) -> u64 {
    0
}

/// Two buckets and two tags.
fn poor(key: u64) -> u64 {
    (key & 1) | (key & 2) << 55
}

fn identity(key: u64) -> u64 {
    key | key << 56
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u16),
    Remove(u64),
    Touch(u64, u16),
    Close(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = 0u64..48;
    prop_oneof![
        4 => (key.clone(), any::<u16>()).prop_map(|(key, stamp)| Operation::Insert(key, stamp)),
        3 => key.clone().prop_map(Operation::Remove),
        1 => (key.clone(), any::<u16>()).prop_map(|(key, stamp)| Operation::Touch(key, stamp)),
        1 => key.prop_map(Operation::Close),
    ]
}

proptest! {
    #[test]
    fn does_what_a_hash_map_does(
        operations in prop::collection::vec(operation(), 1..300),
        hash in prop::sample::select(vec![constant as fn(u64) -> u64, poor, identity]),
        entries in prop::sample::select(vec![5usize, 8, 40, 64]),
    ) {
        let mut table = Keyed::new(8, entries, hash);
        let mut oracle: HashMap<u64, (u16, bool)> = HashMap::new();
        for operation in operations {
            match operation {
                Operation::Insert(key, stamp) => {
                    if table.find(key).is_none() {
                        let inserted = table.insert(key, stamp);
                        let head = |key| hash(key) as u32 & 7;
                        let chained = oracle.keys().filter(|&&other| head(other) == head(key)).count();
                        prop_assert_eq!(inserted, oracle.len() < entries && chained < CHAIN_SLOTS);
                        if inserted {
                            oracle.insert(key, (stamp, false));
                        }
                    }
                }
                Operation::Remove(key) => {
                    let place = table.find(key);
                    prop_assert_eq!(place.is_some(), oracle.remove(&key).is_some());
                    if let Some(place) = place {
                        table.remove(place);
                    }
                }
                Operation::Touch(key, stamp) => {
                    if let Some(place) = table.find(key) {
                        table.table.touch(place, stamp);
                        oracle.get_mut(&key).unwrap().0 = stamp;
                    }
                }
                Operation::Close(key) => {
                    if let Some(place) = table.find(key) {
                        table.table.close(place);
                        oracle.get_mut(&key).unwrap().1 = true;
                    }
                }
            }
            prop_assert_eq!(table.table.entries_free(), entries - oracle.len());
            prop_assert_eq!(&table.contents(), &oracle);
            table.assert_chains_are_dense();
            for key in 0..48 {
                prop_assert_eq!(table.find(key).is_some(), oracle.contains_key(&key));
            }
        }
    }

    /// Slots removed while a chain is walked: every slot is seen once.
    #[test]
    fn a_walk_that_removes_sees_every_slot_once(doomed in prop::collection::vec(any::<bool>(), 0..CHAIN_SLOTS)) {
        let mut table = Keyed::new(8, 40, constant);
        for key in 0..doomed.len() as u64 {
            table.insert(key, 0);
        }
        let mut seen = Vec::new();
        let mut place = table.table.first_in(0);
        while let Some(at) = place {
            let key = table.keys[table.table.occupant(at).index as usize];
            seen.push(key);
            if doomed[key as usize] {
                table.remove(at);
                place = table.table.at_or_after(at);
            } else {
                place = table.table.next_after(at);
            }
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..doomed.len() as u64).collect::<Vec<_>>());
        for (key, &is_doomed) in doomed.iter().enumerate() {
            prop_assert_eq!(table.find(key as u64).is_none(), is_doomed);
        }
    }
}

#[test]
fn the_entry_freed_last_is_taken_first_and_none_is_lost() {
    let mut table = Keyed::new(8, 4, identity);
    for key in 0..3 {
        assert!(table.insert(key, 0));
    }
    for key in [2, 0] {
        let place = table.find(key).unwrap();
        table.remove(place);
    }
    let taken: Vec<u32> = (100..103)
        .map(|key| table.table.insert(key, 0).unwrap().1)
        .collect();
    assert_eq!(taken, [0, 2, 3]);
    assert!(table.table.insert(103, 0).is_none());
}

#[test]
fn clearing_empties_chains_too_and_keeps_entries_taken() {
    let mut table = Keyed::new(8, CHAIN_SLOTS, constant);
    let keys = 0..CHAIN_SLOTS as u64;
    assert!(keys.clone().all(|key| table.insert(key, 0)));
    table.table.clear();
    assert!(table.contents().is_empty());
    assert_eq!(table.table.entries_free(), 0);
    (0..CHAIN_SLOTS as u32).for_each(|index| table.table.free_entry(index));
    assert!(keys.clone().all(|key| table.insert(key, 0)));
    assert_eq!(table.contents().len(), CHAIN_SLOTS);
}

#[test]
fn buckets_in_use_are_found_within_the_range_only() {
    let mut table = Keyed::new(256, 16, identity);
    for key in [0, 63, 64, 130, 255] {
        assert!(table.insert(key, 0));
    }
    let found = |from, to| table.table.in_use_from(from, to);
    assert_eq!(found(0, 256), Some(0));
    assert_eq!(found(1, 63), None);
    assert_eq!(found(1, 64), Some(63));
    assert_eq!(found(65, 130), None);
    assert_eq!(found(65, 256), Some(130));
    assert_eq!(found(131, 256), Some(255));
    assert_eq!(found(256, 256), None);
}

#[test]
fn a_chain_is_bounded_and_other_buckets_go_on() {
    let mut table = Keyed::new(8, 100, |key| key & 1);
    let even = (0..100)
        .step_by(2)
        .filter(|&key| table.insert(key, 0))
        .count();
    assert_eq!(even, CHAIN_SLOTS);
    assert_eq!(table.table.entries_free(), 100 - CHAIN_SLOTS);
    assert!(table.insert(1, 0));
    let place = table.find(0).unwrap();
    table.remove(place);
    assert!(table.insert(98, 0), "what ends makes room");
}
