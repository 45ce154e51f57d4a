//! Rounds over the flow table: each reads, in portions, what changed since the round before.

use std::time::{Duration, Instant};

use super::describe::{Clocks, now_ticks};
use super::layout::{KernelCounts, Key};
use super::table::Table;

/// Interval between rounds, and between the portions of a round.
const EVERY: Duration = Duration::from_secs(1);
pub const PORTION_EVERY: Duration = Duration::from_millis(1);
/// Entries per portion, read in some ten microseconds.
const PORTION: usize = 4096;
/// Maximum counts per portion.
pub const COUNTS: usize = 1024;
/// Ticks of silence after which elements of a flow that the kernel labels are taken from its table:
/// no record is on its way.
const SILENCE: u32 = 512;
/// Ticks by which the kernel's coarse clock may lag: a timer interrupt's interval.
const COARSE: u32 = 20;

/// A worker's round.
pub struct Round {
    worker: u32,
    /// The next entry; 0 if no round is in progress.
    at: usize,
    next: Instant,
    /// Start of the last round and of this one, in ticks.
    before: u32,
    began: u32,
    /// The worker shuts down: the round continues without pauses.
    is_last: bool,
    /// End of the portion that was read, and what changed in it.
    end: usize,
    found: Vec<Found>,
}

/// An entry with something new.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub number: usize,
    pub key: Key,
    pub counts: KernelCounts,
    /// It has elements that are in no record.
    pub has_elements: bool,
}

impl Round {
    pub fn new(worker: u32, now: Instant) -> Round {
        Round {
            worker,
            at: 0,
            next: now + EVERY,
            before: 0,
            began: now_ticks(),
            is_last: false,
            end: 0,
            found: Vec::with_capacity(COUNTS),
        }
    }

    pub fn is_under_way(&self) -> bool {
        self.at != 0
    }

    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Whether the worker shuts down and there is more to read.
    pub fn is_reading(&self, now: Instant) -> bool {
        self.is_last && (self.is_under_way() || self.is_due(now))
    }

    /// Starts a last round at once.
    pub fn be_last(&mut self) {
        if self.at != 0 {
            // Restart with what was known before this round.
            (self.at, self.began) = (0, self.before);
        }
        (self.is_last, self.next) = (true, Instant::now());
    }

    /// Reads the next portion; it is read again unless [`Self::take`] follows.
    pub fn read(&mut self, table: &Table, clocks: Clocks) {
        // Changes during the last round may have been missed.
        let known = if self.at == 0 { self.began } else { self.before };
        let since = clocks.ticks.wrapping_sub(known).wrapping_add(COARSE);
        // Elements that came just before the last round wait for this one.
        let longer = since.wrapping_add(2 * SILENCE);
        let to = (self.at + PORTION).min(table.len());
        self.found.clear();
        self.end = self.at;
        while self.end < to && self.found.len() < COUNTS {
            let number = self.end;
            self.end += 1;
            let Some((key, counts)) = table.read(self.worker, number, clocks.ticks, longer) else {
                continue;
            };
            let has_elements = table.has_unreported(self.worker, number, counts.version);
            let silent = clocks.ticks.wrapping_sub(counts.last);
            let is_new = match has_elements {
                // Counts follow the elements, with which user space begins the flow.
                true => self.is_last || is_older(silent, SILENCE),
                false => counts.packets != [0; 2] && !is_older(silent, since),
            };
            if is_new {
                self.found.push(Found { number, key, counts, has_elements });
            }
        }
    }

    /// Returns the portion that was read and advances, up to the entry that is one too many with
    /// elements.
    pub fn take(
        &mut self,
        table: &Table,
        now: Instant,
        clocks: Clocks,
        with_elements: usize,
    ) -> &[Found] {
        if self.at == 0 {
            (self.before, self.began) = (self.began, clocks.ticks);
        }
        let mut left = with_elements;
        let too_many = self.found.iter().position(|found| {
            let is_too_many = found.has_elements && left == 0;
            left -= usize::from(found.has_elements && !is_too_many);
            is_too_many
        });
        if let Some(at) = too_many {
            self.end = self.found[at].number;
            self.found.truncate(at);
        }
        (self.at, self.next) = match self.is_last {
            true => (self.end, now),
            false => (self.end, now + PORTION_EVERY),
        };
        if self.at == table.len() {
            (self.at, self.next) = (0, now + EVERY);
        }
        &self.found
    }
}

/// Whether a silence is longer than this. The kernel's clock may be ahead of this thread's.
fn is_older(silent: u32, ticks: u32) -> bool {
    silent > ticks && silent < u32::MAX / 2
}
