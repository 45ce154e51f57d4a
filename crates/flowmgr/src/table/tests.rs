//! The table against `HashMap`, under hashes that collide much.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// What the oracle knows of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    stamp: u16,
    is_closed: bool,
    is_half_open: bool,
    is_lasting: bool,
}

impl Seen {
    fn begun(stamp: u16) -> Seen {
        Seen { stamp, is_closed: false, is_half_open: true, is_lasting: false }
    }
}

/// A table whose entries hold a number as key, as a flow manager would use it.
struct Keyed {
    table: Table,
    keys: Vec<u64>,
    hash: fn(u64) -> u64,
}

impl Keyed {
    fn new(buckets: usize, entries: usize, hash: fn(u64) -> u64) -> Keyed {
        Keyed { table: Table::new(buckets, entries).unwrap(), keys: vec![u64::MAX; entries], hash }
    }

    fn find(&self, key: u64) -> Option<Place> {
        self.table.find((self.hash)(key), |index| self.keys[index as usize] == key)
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

    /// The key and state of every flow that iteration finds.
    fn contents(&self) -> HashMap<u64, Seen> {
        let mut contents = HashMap::new();
        let mut heads = 0..self.table.buckets();
        while let Some(head) = self.table.in_use_from(heads.start, heads.end) {
            heads.start = head + 1;
            let mut place = self.table.first_in(head);
            assert!(place.is_some(), "bucket {head} is marked as in use");
            while let Some(at) = place {
                let occupant = self.table.occupant(at);
                let key = self.keys[occupant.index as usize];
                let seen = Seen {
                    stamp: occupant.stamp,
                    is_closed: occupant.is_closed,
                    is_half_open: occupant.is_half_open,
                    is_lasting: occupant.is_lasting,
                };
                let twice = contents.insert(key, seen);
                assert!(twice.is_none(), "key {key} stands twice");
                place = self.table.next_after(at);
            }
        }
        contents
    }

    fn key_at(&self, place: Place) -> u64 {
        self.keys[self.table.occupant(place).index as usize]
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
    Establish(u64, bool),
    LastNoLonger(u64),
    SpareOnceMore(u64),
    EvictHalfOpen,
    EvictSettled(u64),
    EvictInChain(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = 0u64..48;
    prop_oneof![
        4 => (key.clone(), any::<u16>()).prop_map(|(key, stamp)| Operation::Insert(key, stamp)),
        3 => key.clone().prop_map(Operation::Remove),
        1 => (key.clone(), any::<u16>()).prop_map(|(key, stamp)| Operation::Touch(key, stamp)),
        1 => key.clone().prop_map(Operation::Close),
        3 => (key.clone(), any::<bool>()).prop_map(|(key, lasts)| Operation::Establish(key, lasts)),
        1 => key.clone().prop_map(Operation::LastNoLonger),
        1 => key.clone().prop_map(Operation::SpareOnceMore),
        1 => Just(Operation::EvictHalfOpen),
        1 => key.clone().prop_map(Operation::EvictSettled),
        1 => key.prop_map(Operation::EvictInChain),
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
        let mut oracle: HashMap<u64, Seen> = HashMap::new();
        let head = |key| hash(key) as u32 & 7;
        for (second, operation) in (0..).zip(operations) {
            match operation {
                Operation::Insert(key, stamp) => {
                    if table.find(key).is_none() {
                        let inserted = table.insert(key, stamp);
                        let chained = oracle.keys().filter(|&&other| head(other) == head(key));
                        let chained = chained.count();
                        let has_room = oracle.len() < entries && chained < CHAIN_SLOTS;
                        prop_assert_eq!(inserted, has_room);
                        if inserted {
                            oracle.insert(key, Seen::begun(stamp));
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
                        oracle.get_mut(&key).unwrap().stamp = stamp;
                    }
                }
                Operation::Close(key) => {
                    if let Some(place) = table.find(key) {
                        table.table.close(place);
                        oracle.get_mut(&key).unwrap().is_closed = true;
                    }
                }
                Operation::Establish(key, is_lasting) => {
                    if let Some(place) = table.find(key) {
                        table.table.establish(place, is_lasting);
                        let seen = oracle.get_mut(&key).unwrap();
                        (seen.is_half_open, seen.is_lasting) = (false, is_lasting);
                    }
                }
                Operation::LastNoLonger(key) => {
                    if let Some(place) = table.find(key) {
                        table.table.last_no_longer(place);
                        oracle.get_mut(&key).unwrap().is_lasting = false;
                    }
                }
                Operation::SpareOnceMore(key) => {
                    if let Some(place) = table.find(key)
                        && table.table.occupant(place).is_half_open
                    {
                        let stamp = oracle[&key].stamp;
                        let touched = table.table.touch_if(place, stamp, |_| true);
                        prop_assert!(touched.is_some_and(|(_, is_half_open)| is_half_open));
                    }
                }
                Operation::EvictHalfOpen => {
                    let victim = table.table.half_open_victim();
                    prop_assert_eq!(victim.is_some(), oracle.values().any(|it| it.is_half_open));
                    if let Some(victim) = victim {
                        let seen = oracle.remove(&table.key_at(victim)).unwrap();
                        prop_assert!(seen.is_half_open);
                        table.remove(victim);
                    }
                }
                Operation::EvictSettled(least) => {
                    // A second of its own, so a whole round is left.
                    let may_go = |it: Occupant| u64::from(it.stamp) >= least << 10;
                    let victim = table.table.settled_victim(second, may_go);
                    let mut settled = oracle.values().filter(|it| !it.is_half_open);
                    let is_there = settled.any(|it| u64::from(it.stamp) >= least << 10);
                    prop_assert_eq!(victim.is_some(), is_there);
                    if let Some(victim) = victim {
                        let seen = oracle.remove(&table.key_at(victim)).unwrap();
                        prop_assert!(!seen.is_half_open && u64::from(seen.stamp) >= least << 10);
                        table.remove(victim);
                    }
                }
                Operation::EvictInChain(key) => {
                    let may_go = |it: Occupant| it.is_half_open || it.is_closed;
                    let victim = table.table.victim_in_chain(hash(key), second, may_go);
                    let chained = || {
                        let all = oracle.iter();
                        let in_chain = all.filter(|&(&other, _)| head(other) == head(key));
                        in_chain.map(|(_, seen)| seen)
                    };
                    let silence = |seen: &Seen| second.wrapping_sub(seen.stamp);
                    let longest = chained().filter(|it| it.is_half_open).map(silence).max();
                    let has_victim = longest.is_some() || chained().any(|it| it.is_closed);
                    prop_assert_eq!(victim.is_some(), has_victim);
                    if let Some(victim) = victim {
                        let seen = oracle.remove(&table.key_at(victim)).unwrap();
                        prop_assert_eq!(seen.is_half_open.then(|| silence(&seen)), longest);
                        table.remove(victim);
                    }
                }
            }
            prop_assert_eq!(table.table.entries_free(), entries - oracle.len());
            prop_assert_eq!(&table.contents(), &oracle);
            let half_open = oracle.values().filter(|it| it.is_half_open).count();
            prop_assert_eq!(table.table.half_open(), half_open);
            table.assert_chains_are_dense();
            for key in 0..48 {
                prop_assert_eq!(table.find(key).is_some(), oracle.contains_key(&key));
            }
        }
    }

    /// Slots removed while a chain is walked: every slot is seen once.
    #[test]
    fn a_walk_that_removes_sees_every_slot_once(
        doomed in prop::collection::vec(any::<bool>(), 0..CHAIN_SLOTS),
    ) {
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
    let taken: Vec<u32> = (100..103).map(|key| table.table.insert(key, 0).unwrap().1).collect();
    assert_eq!(taken, [0, 2, 3]);
    assert!(table.table.insert(103, 0).is_none());
}

/// Half-open flows that are pushed out by others have been there for nearly as long as any; else an
/// honest SYN among forged ones would often go before its answer comes.
#[test]
fn the_hand_takes_no_flow_before_it_has_been_there_for_long() {
    const FLOWS: usize = 4096;
    let mut table = Keyed::new(FLOWS / 4, FLOWS, |key| {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(29)
    });
    let mut key = 0;
    while table.table.entries_free() > 0 {
        assert!(table.insert(key, 0));
        key += 1;
    }
    let mut youngest = u64::MAX;
    for begun in 0..20 * FLOWS as u64 {
        let victim = table.table.half_open_victim().unwrap();
        let age = key - table.key_at(victim);
        if begun > 3 * FLOWS as u64 {
            youngest = youngest.min(age);
        }
        table.remove(victim);
        assert!(table.insert(key, 0));
        key += 1;
    }
    assert!(youngest as usize > FLOWS * 6 / 10, "{youngest}");
}

/// One flow among many that are in use is found, wherever it lies, and so are the next ones.
#[test]
fn a_single_half_open_flow_is_found_among_many() {
    let mut table = Keyed::new(1 << 14, 1 << 16, |key| {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(29)
    });
    let mut inserted = Vec::new();
    for key in 0..1 << 16 {
        if table.insert(key, 0) {
            inserted.push(key);
        }
    }
    for &key in &inserted {
        let place = table.find(key).unwrap();
        table.table.establish(place, true);
    }
    assert!(table.table.half_open_victim().is_none());
    assert!(table.table.settled_victim(1, |_| false).is_none());
    for key in 1 << 16..(1 << 16) + 1000 {
        let gone = inserted[key as usize % 5000 * 7];
        if let Some(place) = table.find(gone) {
            table.remove(place);
        }
        assert!(table.insert(key, 0));
        let victim = table.table.half_open_victim().unwrap();
        assert_eq!(table.key_at(victim), key);
        table.remove(victim);
    }
}

/// Where no flow may go, a second costs one round over the buckets, however often it is asked.
#[test]
fn asking_in_vain_is_cheap_until_the_next_second() {
    let mut table = Keyed::new(256, 64, identity);
    for key in 0..64 {
        assert!(table.insert(key, 0));
        let place = table.find(key).unwrap();
        table.table.establish(place, false);
    }
    for second in 1..4 {
        let asked = std::cell::Cell::new(0);
        for _ in 0..100 {
            let in_vain = table.table.settled_victim(second, |_| {
                asked.set(asked.get() + 1);
                false
            });
            assert!(in_vain.is_none());
        }
        assert_eq!(asked.get(), 64);
    }
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
    let bits = |word, heads| table.table.in_use_in(word, &heads);
    assert_eq!((Table::words_of(&(1..64)), Table::words_of(&(63..65))), (0..1, 0..2));
    assert_eq!((bits(0, 0..256), bits(0, 1..63), bits(0, 1..64)), (1 | 1 << 63, 0, 1 << 63));
    assert_eq!((bits(2, 65..130), bits(2, 65..131), bits(3, 131..256)), (0, 1 << 2, 1 << 63));
}

/// The slots that the sweep looks at are those whose flows are silent for long enough.
#[test]
fn silent_slots_are_told_by_whether_their_flows_are_closed() {
    let mut table = Keyed::new(8, 100, |key| key & 1);
    for (key, second) in [(0, 65_530), (2, 4), (4, 65_530), (6, 4)] {
        assert!(table.insert(key, second));
    }
    for key in [4, 6] {
        let place = table.find(key).unwrap();
        table.table.close(place);
    }
    // 16 and 6 seconds ago, over the wrap of the clock.
    let silent = |least_s| table.table.silent_in(0, 10, least_s);
    assert_eq!(silent((10, 10)), Some(0b0101));
    assert_eq!(silent((10, 5)), Some(0b1101));
    assert_eq!(silent((u16::MAX, 5)), Some(0b1100));
    assert_eq!(silent((16, u16::MAX)), Some(0));
    (8..20).step_by(2).for_each(|key| assert!(table.insert(key, 4)));
    assert_eq!(table.table.silent_in(0, 10, (10, 10)), None, "it has a chain");
}

#[test]
fn a_chain_is_bounded_and_other_buckets_go_on() {
    let mut table = Keyed::new(8, 100, |key| key & 1);
    let even = (0..100).step_by(2).filter(|&key| table.insert(key, 0)).count();
    assert_eq!(even, CHAIN_SLOTS);
    assert_eq!(table.table.entries_free(), 100 - CHAIN_SLOTS);
    assert!(table.insert(1, 0));
    let place = table.find(0).unwrap();
    table.remove(place);
    assert!(table.insert(98, 0), "what ends makes room");
}

#[test]
fn a_group_is_due_after_a_packet_and_when_its_time_has_come() {
    let mut keyed = Keyed::new(256, 16, |key| key);
    // In the groups 1 and 3 of four; the clock is about to wrap.
    let now = u16::MAX - 1;
    keyed.table.make_all_due(now);
    assert!(keyed.insert(70, now) && keyed.insert(200, now));
    for head in (0..256).step_by(64) {
        assert_eq!(keyed.table.due_in(head..256, now), Some(head..head + 64));
        keyed.table.put_off(head, now.wrapping_add(10));
    }
    assert_eq!(keyed.table.due_in(0..256, now.wrapping_add(9)), None);
    let place = keyed.find(70).unwrap();
    keyed.table.touch_if(place, now.wrapping_add(3), |_| true);
    let later = now.wrapping_add(4);
    assert_eq!(keyed.table.due_in(0..256, later), Some(64..128));
    // A part of a group.
    assert_eq!(keyed.table.due_in(100..110, later), Some(100..110));
    assert_eq!(keyed.table.due_in(128..256, later), None);
    assert_eq!(keyed.table.due_in(130..256, now.wrapping_add(10)), Some(130..192));
    keyed.table.put_off(64, now.wrapping_add(10));
    keyed.table.make_due(keyed.find(200).unwrap());
    assert_eq!(keyed.table.due_in(0..256, later), Some(192..256));
}
