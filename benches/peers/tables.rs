//! The tables: ours, and `hashbrown` with two hashes, used in two ways.
//!
//! `ahash` and `foldhash` are what a program writes: a map, and `get_mut` for each
//! key. In `ahash-bursts` and `foldhash-bursts` it goes below the map, computes the
//! hashes of a burst first and then looks up, which is the best that was found:
//! `hashbrown` has no call that takes several keys, or that prefetches.

use std::error::Error;
use std::hash::BuildHasher;

use flowmgr::{BURST_MAX, BareTable, Key};
use hashbrown::{HashMap, HashTable};

use crate::traffic::Traffic;

/// Bytes counted at a look-up, and the second in which it happens.
const LENGTH: u32 = 64;
const SECOND: u16 = 1;

/// A table with all flows of the traffic in it.
pub trait FlowTable {
    /// Finds the flow of each key, notes the second and counts a packet and its
    /// bytes; `burst` keys at a time, up to [`BURST_MAX`], where the table can. Returns
    /// how many were found.
    fn look_up(&mut self, keys: &[Key], burst: usize) -> usize;
}

impl FlowTable for BareTable {
    fn look_up(&mut self, keys: &[Key], burst: usize) -> usize {
        let bursts = keys.chunks(burst);
        bursts.map(|keys| BareTable::look_up(self, keys, SECOND, LENGTH)).sum()
    }
}

/// What `hashbrown` keeps of a flow: the fields that ours updates.
#[derive(Default)]
struct Flow {
    bytes: u64,
    packets: u32,
    stamp: u16,
}

impl Flow {
    #[inline]
    fn count(&mut self) {
        self.stamp = SECOND;
        self.packets += 1;
        self.bytes += u64::from(LENGTH);
    }
}

impl<S: BuildHasher> FlowTable for HashMap<Key, Flow, S> {
    fn look_up(&mut self, keys: &[Key], _burst: usize) -> usize {
        let found = |key| self.get_mut(key).map(Flow::count);
        keys.iter().filter_map(found).count()
    }
}

struct Bursts<S> {
    table: HashTable<(Key, Flow)>,
    hasher: S,
}

impl<S: BuildHasher> FlowTable for Bursts<S> {
    fn look_up(&mut self, keys: &[Key], burst: usize) -> usize {
        let mut hashes = [0; BURST_MAX];
        let mut found = 0;
        for keys in keys.chunks(burst) {
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = self.hasher.hash_one(key);
            }
            for (&hash, key) in hashes.iter().zip(keys) {
                if let Some((_, flow)) = self.table.find_mut(hash, |(one, _)| one == key) {
                    flow.count();
                    found += 1;
                }
            }
        }
        found
    }
}

/// The table of a name. `entries` is the size of ours; `hashbrown` is asked for room
/// for the flows and takes the next power of two of slots, so half full is its choice.
pub fn filled(
    name: &str,
    entries: usize,
    traffic: &Traffic,
) -> Result<Box<dyn FlowTable>, Box<dyn Error>> {
    Ok(match name {
        "ours" => Box::new(ours(entries, traffic)?),
        "ahash" => Box::new(map(ahash::RandomState::new(), traffic)),
        "foldhash" => Box::new(map(foldhash::fast::RandomState::default(), traffic)),
        "ahash-bursts" => Box::new(bursts(ahash::RandomState::new(), traffic)),
        "foldhash-bursts" => Box::new(bursts(foldhash::fast::RandomState::default(), traffic)),
        _ => return Err(format!("no table {name}").into()),
    })
}

fn ours(entries: usize, traffic: &Traffic) -> Result<BareTable, Box<dyn Error>> {
    let mut table = BareTable::new(entries, entries / 4, traffic.seed)?;
    match traffic.keys().all(|key| table.insert(&key)) {
        true => Ok(table),
        false => Err("more flows than entries".into()),
    }
}

fn map<S: BuildHasher>(hasher: S, traffic: &Traffic) -> HashMap<Key, Flow, S> {
    let mut map = HashMap::with_capacity_and_hasher(traffic.flows as usize, hasher);
    map.extend(traffic.keys().map(|key| (key, Flow::default())));
    map
}

fn bursts<S: BuildHasher>(hasher: S, traffic: &Traffic) -> Bursts<S> {
    let mut table = HashTable::with_capacity(traffic.flows as usize);
    for key in traffic.keys() {
        let flow = (key, Flow::default());
        table.insert_unique(hasher.hash_one(key), flow, |(key, _)| hasher.hash_one(key));
    }
    Bursts { table, hasher }
}
