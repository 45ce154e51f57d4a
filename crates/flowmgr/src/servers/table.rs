//! A bounded table of cells, found by a keyed hash of what they are of. No address is kept.
//!
//! A set is four cache lines: one with the hashes of its eight cells, three with the cells; a look-
//! up touches two. Which cell makes room is decided within the set, by *worth*: the log2 of the
//! bytes that the cell's flows had, less one for each hour since it was last used. So a server of
//! many or large flows stays for hours, one of small flows for minutes once others want its place.
//!
//! A newcomer takes the cell of least worth, but no cell worth [`BUSY`] or more unless its own flow
//! was larger. So a flood of servers of which nothing is known only replaces cells of its own kind.

use std::io;

use super::ServerCounters;
use crate::hash::{fold, split_mix};
use crate::key::Key;
use crate::memory::{Array, Zeroed};

/// Later flows push out older ones: the weight of a cell, in flows, at most.
const FLOWS_MAX: u8 = 32;
pub(super) const WAYS: usize = 8;
/// Bytes of a cell with its hash.
pub const CELL_BYTES: usize = size_of::<Set>() / WAYS;
/// The worth that protects a cell, log2 bytes: 1 MiB in the last hour, or 1 GiB ten hours ago.
const BUSY: f32 = 20.0;
/// The worth of a cell no flow of which has ended, log2 bytes: what an unknown flow weighs.
const UNKNOWN: f32 = 12.0;
/// Where no flow has begun yet.
const NEVER: i64 = i64::MIN;

/// Fading means of the flows that ended, and when the last one began.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Cell {
    /// µs; `i64::MIN` before the first.
    pub begun_us: i64,
    /// Bytes, log2 of the bytes, log2 of the duration in µs.
    pub means: [f32; 3],
    /// Up to `FLOWS_MAX`.
    pub flows: u8,
    /// Minute of flow time when it was last used, wrapping.
    pub minute: u16,
}

/// Cells that share a place.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Set {
    /// 0: no cell.
    hashes: [u64; WAYS],
    cells: [Cell; WAYS],
}

const _: () = assert!(size_of::<Set>() == 256 && CELL_BYTES == 32);

#[expect(unsafe_code, reason = "a promise about a type of numbers")]
mod zeroed {
    // SAFETY: integers and floats only.
    unsafe impl super::Zeroed for super::Set {}
}

impl Cell {
    pub(super) const NEW: Cell = Cell { begun_us: NEVER, means: [0.0; 3], flows: 0, minute: 0 };

    pub(super) fn flows(&self) -> f64 {
        f64::from(self.flows)
    }

    pub(super) fn means(&self) -> [f64; 3] {
        self.means.map(f64::from)
    }

    /// Counts a flow that has ended.
    pub(super) fn add(&mut self, numbers: [f64; 3]) {
        self.flows = (self.flows + 1).min(FLOWS_MAX);
        let flows = self.flows();
        for (mean, x) in self.means.iter_mut().zip(numbers) {
            let before = f64::from(*mean);
            *mean = (before + (x - before) / flows) as f32;
        }
    }

    /// Notes that a flow begins; µs since the one before, if there was one.
    pub(super) fn begin(&mut self, now_us: i64) -> Option<i64> {
        let before = std::mem::replace(&mut self.begun_us, now_us);
        (before != NEVER).then(|| now_us.saturating_sub(before))
    }

    /// Whether its numbers can come from flows.
    pub fn is_possible(&self) -> bool {
        let most = [super::NUMBER_MAX as f32, 53.0, 53.0];
        self.flows <= FLOWS_MAX
            && self.means.iter().zip(most).all(|(mean, most)| (0.0..=most).contains(mean))
    }

    /// What it is worth in this minute, log2 bytes.
    pub fn worth(&self, minute: u16) -> f32 {
        let bytes = match self.flows {
            0 => UNKNOWN,
            flows => super::log2((f32::from(flows) * self.means[0]) as i64) as f32,
        };
        bytes - f32::from(self.age(minute)) / 60.0
    }

    /// Minutes since it was last used; 0 if time has stepped back.
    pub fn age(&self, minute: u16) -> u16 {
        minute.wrapping_sub(self.minute).cast_signed().max(0).cast_unsigned()
    }
}

/// The hashes of a flow's cells, the widest first.
pub(super) type Hashes = [u64; 3];

/// Cells by their hashes.
pub(super) struct Table {
    secret: [u64; 4],
    sets: Array<Set>,
    pub counters: ServerCounters,
}

impl Table {
    /// With room for `cells`, rounded up to a power of two; at least a set.
    pub fn new(cells: usize, seed: u64) -> io::Result<Table> {
        // The flow table has the same seed, and another key.
        let mut state = !seed;
        let secret = std::array::from_fn(|_| split_mix(&mut state));
        let sets = cells.div_ceil(WAYS).next_power_of_two();
        // Flows come here at random: nearly each of the first would wait for a page.
        let mut sets = Array::new(sets)?;
        sets.populate();
        Ok(Table { secret, sets, counters: ServerCounters::default() })
    }

    /// The flow's cells: protocol and port; with the /24 or /48; with the address.
    pub fn hashes(&self, key: &Key, from_low: bool) -> Hashes {
        let (address, port, is_v6) = key.destination(from_low);
        let network = match is_v6 {
            true => [address[0] & !0xffff, 0],
            false => [address[0] & !0xff, 0],
        };
        let kind = u64::from(port) | u64::from(key.kind) << 16;
        let [a, b, c, d] = self.secret;
        let hash = |level: u64, [high, low]: [u64; 2]| {
            let hash = fold(fold(high ^ a, low ^ b) ^ c, (kind | level << 32) ^ d);
            // 0 is no cell.
            hash.max(1)
        };
        // The protocol is a part of the widest cell's key, the family is not.
        let widest = fold(c, (u64::from(port) | u64::from(key.protocol()) << 16) ^ d).max(1);
        [widest, hash(3, network), hash(4, address)]
    }

    /// The key of the hashes.
    pub fn secret(&self) -> [u64; 4] {
        self.secret
    }

    /// Copies the cells of the sets from this one on, `most` sets at most. The set to go on from.
    pub fn read(&self, from: usize, most: usize, cells: &mut Vec<(u64, Cell)>) -> Option<usize> {
        let sets = self.sets.get(from..).unwrap_or_default();
        for set in sets.iter().take(most) {
            let all = set.hashes.iter().copied().zip(set.cells);
            cells.extend(all.filter(|(hash, cell)| *hash != 0 && cell.flows > 0));
        }
        (sets.len() > most).then(|| from + most)
    }

    /// Fills an empty table with cells of one that had this secret, as far as there is room.
    pub fn take(&mut self, secret: [u64; 4], cells: impl Iterator<Item = (u64, Cell)>) {
        self.secret = secret;
        for (hash, cell) in cells {
            let place = self.place(hash);
            let set = &mut self.sets[place];
            if let Some(way) = set.hashes.iter().position(|&it| it == 0) {
                (set.hashes[way], set.cells[way]) = (hash, cell);
                self.counters.cells += 1;
            }
        }
    }

    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.sets.len() - 1)
    }

    pub fn find(&self, hash: u64) -> Option<&Cell> {
        let set = &self.sets[self.place(hash)];
        let way = set.hashes.iter().position(|&it| it == hash)?;
        Some(&set.cells[way])
    }

    /// The cell of this hash; a new one where there is none. `bytes`, if they are known, are the
    /// flow's that wants it. None where all others are worth more.
    #[inline]
    pub fn find_or_add(&mut self, hash: u64, minute: u16, bytes: Option<i64>) -> Option<&mut Cell> {
        let place = self.place(hash);
        let set = &mut self.sets[place];
        let way = match set.hashes.iter().position(|&it| it == hash) {
            Some(way) => way,
            None => set.add(hash, minute, bytes, &mut self.counters)?,
        };
        let cell = &mut set.cells[way];
        cell.minute = minute;
        Some(cell)
    }
}

impl Set {
    /// A new cell's way.
    #[inline(never)]
    fn add(
        &mut self,
        hash: u64,
        minute: u16,
        bytes: Option<i64>,
        counters: &mut ServerCounters,
    ) -> Option<usize> {
        let way = self.way_for(minute, bytes)?;
        match self.hashes[way] {
            0 => counters.cells += 1,
            _ => counters.evicted += 1,
        }
        (self.hashes[way], self.cells[way]) = (hash, Cell::NEW);
        Some(way)
    }

    /// The way that a newcomer may take.
    fn way_for(&self, minute: u16, bytes: Option<i64>) -> Option<usize> {
        if let Some(way) = self.hashes.iter().position(|&it| it == 0) {
            return Some(way);
        }
        let (mut least, mut way) = (f32::INFINITY, 0);
        for (at, cell) in self.cells.iter().enumerate() {
            let worth = cell.worth(minute);
            (least, way) = if worth < least { (worth, at) } else { (least, way) };
        }
        let own = bytes.map_or(0.0, |bytes| super::log2(bytes) as f32);
        (least < own.max(BUSY)).then_some(way)
    }
}
