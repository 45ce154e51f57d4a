//! The memory of servers: what flows to a server weighed and how long they took, learned from flows
//! that ended, told to models when a flow begins.
//!
//! The server of a flow is the destination of its first packet. A flow that began mid-stream has
//! none: its first destination may be the client; nor has one of ICMP. A flow counts once, at its
//! end, in four cells: one of all flows, of its protocol and port, of these and the /24 or /48 of
//! the address, of these and the address. A cell's means are drawn towards the wider cell's, the
//! more the fewer flows it has seen. `models/train/fenxi_train/servers.py` computes the same.
//!
//! Ends are counted in the walk, at the moment when a flow leaves the table, and not with its
//! record: by packet time records wait for labels, and a replay would depend on the devices.

use std::io;

use cring::{LOCAL, NOTHING_KNOWN, counters};

use crate::MINUTE_US;
use crate::config::Config;
use crate::entry::{Counts, Entries};
use crate::hash::HashKind;
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};
use table::{Hashes, Table};

mod table;

pub use table::{CELL_BYTES, Cell};

/// Weight of the wider cell's means, in flows.
const PRIOR_FLOWS: f64 = 2.0;
/// Means before the first flow: bytes, log2 bytes, log2 µs.
const NOTHING: [f64; 3] = [5000.0, 12.0, 16.0];
/// Longer gaps saturate, and a server's first flow has this one.
const LONGEST_GAP_US: i64 = 3_600_000_000;
/// Durations and volumes beyond saturate, so that their logarithms are exact.
const NUMBER_MAX: u64 = (1 << 52) - 1;

counters! {
    /// Sums of the memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ServerCounters {
        /// Cells in use.
        pub cells: u64,
        /// Cells that made room for others.
        pub evicted: u64,
        /// Flows that began to a server of which no flow had ended.
        pub unknown: u64,
    }
}

/// Cells of the memory outside a flow manager.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerCells {
    /// The key of the hashes.
    pub secret: [u64; 4],
    /// The cell of all flows.
    pub all: Cell,
    /// Other cells to which flows have ended, by their hashes.
    pub cells: Vec<(u64, Cell)>,
}

impl ServerCells {
    /// Empty, with room for this many sets.
    pub fn with_sets(sets: usize) -> ServerCells {
        let cells = Vec::with_capacity(sets * table::WAYS);
        ServerCells { secret: [0; 4], all: Cell::NEW, cells }
    }
}

/// What is kept of a flow.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// What was known of its server when it began.
    known: [f32; LOCAL],
    /// The flow has no server.
    has_none: u32,
    /// Bytes of its reports so far.
    reported: u64,
}

/// Bytes that a flow takes.
pub(crate) const FLOW_BYTES: usize = size_of::<Kept>();
const _: () = assert!(FLOW_BYTES == 32);

#[expect(unsafe_code, reason = "a promise about a type of numbers")]
mod zeroed {
    // SAFETY: integers and floats only.
    unsafe impl super::Zeroed for super::Kept {}
}

/// The part of a flow that knows its server.
pub(crate) struct Servers {
    memory: Memory,
    kept: Array<Kept>,
}

impl Servers {
    /// `None` where the configuration has none.
    pub fn new(config: &Config, entries: usize) -> io::Result<Option<Servers>> {
        let seed = match config.hash {
            HashKind::Keyed { seed } => seed,
            HashKind::Fenxi => 0,
        };
        let of = |cells| {
            let (memory, kept) = (Memory::new(cells, seed)?, Array::new(entries)?);
            Ok(Servers { memory, kept })
        };
        config.servers.map(of).transpose()
    }

    /// What was known of the flow's server when it began.
    #[inline]
    pub fn known(&self, index: u32) -> &[f32; LOCAL] {
        &self.kept[index as usize].known
    }

    /// The flow leaves the table.
    pub fn leave(&mut self, entries: &Entries, index: u32) {
        let kept = &self.kept[index as usize];
        if kept.has_none != 0 {
            return;
        }
        let hot = entries.hot(index);
        let volume = kept.reported.saturating_add(entries.bytes_total(index));
        let lasted_us = hot.last_us().saturating_sub(entries.cold(index).first_us).max(0);
        let hashes = self.memory.table.hashes(&hot.key(), hot.is_low_forward());
        self.memory.end(hashes, volume, lasted_us as u64, hot.last_us());
    }

    pub fn counters(&self) -> ServerCounters {
        self.memory.table.counters
    }

    /// As [`crate::Manager::read_servers`].
    pub fn read(&self, from: usize, most: usize, into: &mut ServerCells) -> Option<usize> {
        let Memory { all, table } = &self.memory;
        into.secret = table.secret();
        into.all = *all;
        table.read(from, most, &mut into.cells)
    }

    /// As [`crate::Manager::recall_servers`].
    pub fn recall(&mut self, known: &ServerCells) {
        self.memory.all = known.all;
        self.memory.table.take(known.secret, known.cells.iter().copied());
    }
}

impl Part for Servers {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        let has_none = first.midstream || first.headers.key.is_icmp();
        let known = match has_none {
            true => NOTHING_KNOWN,
            false => {
                let (key, from_low) = (&first.headers.key, first.headers.from_low);
                self.memory.begin(self.memory.table.hashes(key, from_low), first.time_us)
            }
        };
        self.kept[index as usize] = Kept { known, has_none: has_none.into(), reported: 0 };
    }

    fn report(&mut self, index: u32, counts: &Counts) {
        let kept = &mut self.kept[index as usize];
        kept.reported = kept.reported.saturating_add(counts.bytes_total());
    }
}

/// The cells.
struct Memory {
    all: Cell,
    table: Table,
}

impl Memory {
    fn new(cells: usize, seed: u64) -> io::Result<Memory> {
        Ok(Memory { all: Cell::NEW, table: Table::new(cells, seed)? })
    }

    /// What is known of a server to which a flow begins now; notes that it has begun.
    fn begin(&mut self, hashes: Hashes, now_us: i64) -> [f32; LOCAL] {
        let mut means = NOTHING;
        let mut shrink = |cell: &Cell| {
            let (flows, of_cell) = (cell.flows(), cell.means());
            let total = flows + PRIOR_FLOWS;
            for (mean, of_cell) in means.iter_mut().zip(of_cell) {
                *mean = (flows * of_cell + PRIOR_FLOWS * *mean) / total;
            }
        };
        shrink(&self.all);
        let [wider @ .., address] = hashes;
        for hash in wider {
            // A cell that there is not changes nothing, nor does a new one.
            self.table.find(hash).into_iter().for_each(&mut shrink);
        }
        let (mut flows, mut gap_us) = (0.0, None);
        if let Some(cell) = self.table.find_or_add(address, minute(now_us), None) {
            shrink(cell);
            (flows, gap_us) = (cell.flows(), cell.begin(now_us));
        }
        self.table.counters.unknown += u64::from(flows == 0.0);
        let [volume, log_volume, duration] = means;
        let gap = log2(gap_us.map_or(LONGEST_GAP_US, |it| it.clamp(0, LONGEST_GAP_US)));
        [log2(volume as i64), log_volume, duration, flows, gap].map(|it| it as f32)
    }

    /// Counts a flow that has ended.
    fn end(&mut self, hashes: Hashes, volume: u64, lasted_us: u64, now_us: i64) {
        let [volume, lasted_us] = [volume, lasted_us].map(|it| it.min(NUMBER_MAX) as i64);
        let numbers = [volume as f64, log2(volume), log2(lasted_us)];
        self.all.add(numbers);
        let minute = minute(now_us);
        for hash in hashes {
            if let Some(cell) = self.table.find_or_add(hash, minute, Some(volume)) {
                cell.add(numbers);
            }
        }
    }
}

/// The minute of a time, as cells have it.
pub fn minute(now_us: i64) -> u16 {
    // Unsigned, because that divides in three instructions; no clock stands before 1970.
    (now_us.cast_unsigned() / MINUTE_US.cast_unsigned()) as u16
}

/// log2(x + 1) with straight lines between the powers of two: the same on all machines. `x` is not
/// negative.
fn log2(x: i64) -> f64 {
    const FRACTION: u32 = f64::MANTISSA_DIGITS - 1;
    const ONE: u64 = 1.0_f64.to_bits();
    // What the bits of y = 2^whole · (1 + fraction) say.
    let bits = (x.saturating_add(1) as f64).to_bits();
    let whole = (bits >> FRACTION) as i64 - (ONE >> FRACTION) as i64;
    whole as f64 + (f64::from_bits(bits & ((1 << FRACTION) - 1) | ONE) - 1.0)
}

#[cfg(test)]
mod tests;
