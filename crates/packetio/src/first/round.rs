//! Rounds over the table of flows: each reads what changed since the round before, in portions.

use std::time::{Duration, Instant};

use super::describe::{Clocks, now_ticks};
use super::layout::{Counts, Key};
use super::table::Table;

/// Between two rounds, and between two portions of a round.
const EVERY: Duration = Duration::from_secs(1);
pub const PORTION_EVERY: Duration = Duration::from_millis(1);
/// Entries of a portion: some ten microseconds' worth.
const PORTION: usize = 4096;
/// Counts of a portion, at most.
pub const COUNTS: usize = 1024;
/// Ticks by which the kernel's coarse clock may be behind, of the time of its timer interrupt.
const COARSE: u32 = 20;

/// A round, of one worker.
pub struct Round {
    worker: u32,
    /// The next entry; 0 where no round is under way.
    at: usize,
    next: Instant,
    /// When the last round began, and this one, in ticks.
    before: u32,
    began: u32,
    /// The run is about to end: the round goes on without pauses.
    is_last: bool,
    /// The portion that was read: where it ends, and what changed.
    end: usize,
    found: Vec<(Key, Counts)>,
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

    /// Whether the run is about to end and there is more to read.
    pub fn is_reading(&self, now: Instant) -> bool {
        self.is_last && (self.is_under_way() || self.is_due(now))
    }

    /// All that is not known yet is wanted at once.
    pub fn be_last(&mut self) {
        if self.at != 0 {
            // It begins again, from what was known before it.
            (self.at, self.began) = (0, self.before);
        }
        (self.is_last, self.next) = (true, Instant::now());
    }

    /// Reads the next portion; it is read again unless it is taken.
    pub fn read(&mut self, table: &Table, clocks: Clocks) {
        // What changed while the last round was under way may not be known.
        let known = if self.at == 0 {
            self.began
        } else {
            self.before
        };
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

    /// What was found in the portion that was read.
    pub fn take(&mut self, table: &Table, now: Instant, clocks: Clocks) -> &[(Key, Counts)] {
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
