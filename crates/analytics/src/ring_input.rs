//! One flow manager's ring, seen from the analytics side, and what waits in it.
//!
//! Series wait where they lie: a ring slot is released only when its series has gone into a batch or was answered by
//! the cache. A ring gives slots back in order, so one that is done stays occupied while an older one waits:
//!
//! ```text
//!     oldest unreleased            front of the unseen
//!      │                            │
//!   ───┼────┬────┬────┬────┬────┬───┼────┬────┬───
//!      │wait│done│wait│done│done│…  │ unseen  │
//! ```
//!
//! Of the seen slots only those that wait are remembered, by their number in the order of the ring (the first slot ever
//! is number 0). All between is done. So the slots before the oldest that waits, or before the unseen where none waits,
//! can be released, and there is no flag per slot to keep.

use crate::cache::Audit;
use cring::{Consumer, FlowRef, Label, Labels, PostMortem, Slot};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where series come from, and where their labels go: one flow manager.
pub struct RingInput {
    /// The ring.
    pub series: Consumer<Slot>,
    /// The label words of the flow manager's table.
    pub labels: Arc<dyn Labels>,
}

/// A series that waits for a batch.
struct Waiting {
    /// Its slot's number.
    number: u64,
    /// When it was first seen, on the clock of the rounds.
    seen_ns: u64,
    /// Given where its flow has a label from the cache, and it waits for an audit only.
    audit: Option<Audit>,
}

/// An ring input with its state.
pub(crate) struct Queue {
    ring_input: RingInput,
    /// Number of the ring's oldest slot.
    released: u64,
    /// Number of the first slot not yet seen.
    seen: u64,
    /// Number of the slot behind the newest that was there at the last look.
    end: u64,
    /// The producer was gone at the last look, so nothing comes after the end.
    closed: bool,
    waiting: VecDeque<Waiting>,
}

impl Queue {
    pub fn new(ring_input: RingInput) -> Self {
        let slots = ring_input.series.capacity();
        Self {
            ring_input,
            released: 0,
            seen: 0,
            end: 0,
            closed: false,
            waiting: VecDeque::with_capacity(slots),
        }
    }

    /// Looks at the ring: how many slots are unseen.
    pub fn unseen(&mut self) -> usize {
        // In this order, or a slot pushed just before the end could be missed.
        self.closed = self.ring_input.series.is_closed();
        self.end = self.released + self.ring_input.series.waiting() as u64;
        (self.end - self.seen) as usize
    }

    /// The oldest unseen slot. There must be one.
    pub fn next(&self) -> &Slot {
        self.ring_input
            .series
            .get((self.seen - self.released) as usize)
    }

    /// The oldest unseen slot is done with.
    pub fn pass(&mut self) {
        self.seen += 1;
    }

    /// The oldest unseen slot waits for a batch.
    pub fn keep(&mut self, seen_ns: u64, audit: Option<Audit>) {
        self.waiting.push_back(Waiting {
            number: self.seen,
            seen_ns,
            audit,
        });
        self.seen += 1;
    }

    /// When the series was seen that has waited longest.
    pub fn oldest_seen_ns(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.seen_ns)
    }

    /// How many series wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether more than three quarters of the ring's slots are seen and not to be released
    /// before a batch goes. The rest is what a flow manager needs to walk on without shedding,
    /// or, in a replay, without waiting for the timeout.
    pub fn is_full(&self) -> bool {
        (self.seen - self.released) as usize * 4 > self.ring_input.series.capacity() * 3
    }

    /// When the series was emitted that has waited longest.
    pub fn oldest_emitted_ns(&self) -> Option<u64> {
        let waiting = self.waiting.front()?;
        Some(self.slot(waiting.number).emitted_ns)
    }

    /// Takes the series that has waited longest out of the line: whether it is an audit, and its slot, which stays
    /// until [`Queue::release`].
    pub fn take(&mut self) -> Option<(Option<Audit>, &Slot)> {
        let Waiting { number, audit, .. } = self.waiting.pop_front()?;
        Some((audit, self.slot(number)))
    }

    fn slot(&self, number: u64) -> &Slot {
        self.ring_input
            .series
            .get((number - self.released) as usize)
    }

    /// Gives the slots back that are done and have none waiting before them.
    pub fn release(&mut self) {
        let done = self.waiting.front().map_or(self.seen, |w| w.number);
        if done > self.released {
            self.ring_input
                .series
                .release((done - self.released) as usize);
            self.released = done;
        }
    }

    /// Offers a label to the flow that asked, for one of its tasks.
    pub fn decide(&self, task: u8, flow: FlowRef, label: Label) -> Result<(), PostMortem> {
        let word = self.ring_input.labels.word(task, flow.index);
        word.decide(flow.generation, label)
    }

    /// Whether nothing waits here and nothing will ever come, as of the last look.
    pub fn is_done(&self) -> bool {
        self.closed && self.seen == self.end && self.waiting.is_empty()
    }
}

#[cfg(test)]
impl Queue {
    /// How many of those that wait do so for a label, not for an audit.
    pub fn waiting_for_label(&self) -> usize {
        self.waiting.iter().filter(|w| w.audit.is_none()).count()
    }
}
