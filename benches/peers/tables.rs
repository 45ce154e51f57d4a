//! The tables: ours, and `hashbrown` with two hashes, each as a program would use it.

use std::hash::{BuildHasher, Hash};

use flowmgr::{BURST_MAX, Key, LookUp};
use hashbrown::{HashMap, HashTable};

use crate::traffic::Traffic;

/// Bytes counted per look-up, and the second it is said to happen in.
const LENGTH: u32 = 64;
const SECOND: u16 = 1;

/// A flow table that is full of flows.
pub trait FlowTable {
    /// For each key finds its flow, notes the second and counts a packet and its
    /// bytes; returns how many were found. Tables that can take keys in bursts.
    fn look_up(&mut self, keys: &[Key], burst: usize) -> usize;
}

impl FlowTable for LookUp {
    fn look_up(&mut self, keys: &[Key], burst: usize) -> usize {
        keys.chunks(burst).map(|keys| LookUp::look_up(self, keys, SECOND, LENGTH)).sum()
    }
}

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
        keys.iter()
            .filter_map(|key| self.get_mut(key).map(Flow::count))
            .count()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct WKey([u64; 5]);
impl Hash for WKey {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        for w in self.0 { h.write_u64(w); }
    }
}
#[derive(Clone, Copy, PartialEq, Eq)]
struct W2Key([u64; 5]);
impl Hash for W2Key {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        h.write_u64(self.0[0]); h.write_u64(self.0[2]);h.write_u64(self.0[4]);
        if self.0[4] >> 33 & 1 == 1 { h.write_u64(self.0[1]); h.write_u64(self.0[3]); }
    }
}
fn words(k: &Key) -> [u64; 5] {
    let ((a, p), (b, q)) = k.ends(true);
    let f = |a| match a { std::net::IpAddr::V4(a) => u64::from(a.to_bits()), _ => 0 };
    [f(a), 0, f(b), 0, u64::from(p) << 16 | u64::from(q) | u64::from(k.protocol()) << 32 & 1 << 32]
}
struct Wide<S, K> { map: HashMap<K, Flow, S>, keys: Vec<K>, mk: fn(&Key) -> K }
impl<S: BuildHasher, K: Hash + Eq> FlowTable for Wide<S, K> {
    fn look_up(&mut self, keys: &[Key], _burst: usize) -> usize {
        if self.keys.is_empty() { self.keys = keys.iter().map(self.mk).collect(); }
        self.keys.iter()
            .filter_map(|key| self.map.get_mut(key).map(Flow::count))
            .count()
    }
}

/// `hashbrown` below its map: the hashes of a burst are computed first, and the
/// look-ups that follow depend on each other in nothing.
struct Hashed<S> {
    table: HashTable<(Key, Flow)>,
    hasher: S,
}

impl<S: BuildHasher> FlowTable for Hashed<S> {
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

/// The table of a name, holding all flows of the traffic.
pub fn filled(
    name: &str,
    entries: usize,
    traffic: &Traffic,
) -> Result<Box<dyn FlowTable>, Box<dyn std::error::Error>> {
    let keys = (0..traffic.flows).map(|flow| traffic.key(flow));
    let cap = if std::env::var("TIGHT").is_ok() { traffic.flows as usize } else { entries };
    Ok(match name {
        "ours" => {
            let mut table = LookUp::new(entries, entries / 4, traffic.seed)?;
            for key in keys {
                assert!(table.insert(&key), "there is room");
            }
            Box::new(table)
        }
        "ahash" => Box::new(map(ahash::RandomState::new(), cap, keys)),
        "foldhash" => Box::new(map(foldhash::fast::RandomState::default(), cap, keys)),
        "ahash-w" => Box::new(wide(ahash::RandomState::new(), cap, keys, |k| WKey(words(k)))),
        "foldhash-w" => Box::new(wide(foldhash::fast::RandomState::default(), cap, keys, |k| WKey(words(k)))),
        "ahash-w2" => Box::new(wide(ahash::RandomState::new(), cap, keys, |k| W2Key(words(k)))),
        "foldhash-w2" => Box::new(wide(foldhash::fast::RandomState::default(), cap, keys, |k| W2Key(words(k)))),
        "ahash-hashed" => Box::new(hashed(ahash::RandomState::new(), cap, keys)),
        "foldhash-hashed" => {
            Box::new(hashed(foldhash::fast::RandomState::default(), cap, keys))
        }
        _ => return Err(format!("no table {name}").into()),
    })
}

fn wide<S: BuildHasher, K: Hash + Eq>(hasher: S, entries: usize, keys: impl Iterator<Item = Key>, mk: fn(&Key) -> K) -> Wide<S, K> {
    let mut map = HashMap::with_capacity_and_hasher(entries, hasher);
    map.extend(keys.map(|key| (mk(&key), Flow::default())));
    Wide { map, keys: vec![], mk }
}

fn map<S: BuildHasher>(
    hasher: S,
    entries: usize,
    keys: impl Iterator<Item = Key>,
) -> HashMap<Key, Flow, S> {
    let mut map = HashMap::with_capacity_and_hasher(entries, hasher);
    map.extend(keys.map(|key| (key, Flow::default())));
    map
}

fn hashed<S: BuildHasher>(
    hasher: S,
    entries: usize,
    keys: impl Iterator<Item = Key>,
) -> Hashed<S> {
    let mut table = HashTable::with_capacity(entries);
    for key in keys {
        let flow = (key, Flow::default());
        table.insert_unique(hasher.hash_one(key), flow, |(key, _)| hasher.hash_one(key));
    }
    Hashed { table, hasher }
}
