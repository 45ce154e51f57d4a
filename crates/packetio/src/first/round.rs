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
    found: Vec<(Key, KernelCounts)>,
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
        let to = (self.at + PORTION).min(table.len());
        self.found.clear();
        self.end = self.at;
        while self.end < to && self.found.len() < COUNTS {
            if let Some(found) = table.read(self.worker, self.end, clocks.ticks, since)
                && found.1.packets != [0; 2]
            {
                self.found.push(found);
            }
            self.end += 1;
        }
    }

    /// Returns the portion that was read and advances.
    pub fn take(&mut self, table: &Table, now: Instant, clocks: Clocks) -> &[(Key, KernelCounts)] {
        if self.at == 0 {
            (self.before, self.began) = (self.began, clocks.ticks);
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
