//! One flow manager's ring, seen from the analytics side, and what waits in it.
//!
//! Series wait where they lie: a ring slot is released only when its series has gone into a batch
//! or was answered by the cache. A ring gives slots back in order, so one that is done stays
//! occupied while an older one waits:
//!
//! ```text
//!     oldest unreleased            front of the unseen
//!      │                            │
//!   ───┼────┬────┬────┬────┬────┬───┼────┬────┬───
//!      │wait│done│wait│done│done│…  │ unseen  │
//! ```
//!
//! Only the seen slots that wait are remembered, by their number in the order of the ring (the
//! first slot ever is number 0); all between are done. So all slots before the oldest that waits,
//! or before the unseen if none waits, can be released, and no flag per slot is needed.

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
    /// Set if the flow has its label from the cache, and the series waits only for an audit.
    audit: Option<Audit>,
}

/// A ring input with its state.
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
    /// Series that wait for the labels of other tasks first, by their number.
    parked: VecDeque<Seen>,
}

/// A series that was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its slot's number.
    pub number: u64,
    /// When it was seen, on the clock of the rounds.
    pub seen_ns: u64,
}

impl Queue {
    /// `parks` says whether series may have to wait for labels of other tasks.
    pub fn new(ring_input: RingInput, parks: bool) -> Self {
        let slots = ring_input.series.capacity();
        Self {
            ring_input,
            released: 0,
            seen: 0,
            end: 0,
            closed: false,
            waiting: VecDeque::with_capacity(slots),
            parked: VecDeque::with_capacity(if parks { slots } else { 0 }),
        }
    }

    /// Looks at the ring; returns how many slots are unseen.
    pub fn unseen(&mut self) -> usize {
        // In this order; otherwise a slot pushed just before the end could be missed.
        self.closed = self.ring_input.series.is_closed();
        self.end = self.released + self.ring_input.series.waiting() as u64;
        (self.end - self.seen) as usize
    }

    /// Looks at the ring; returns when the oldest unseen series was emitted.
    pub fn oldest_unseen_ns(&mut self) -> Option<u64> {
        (self.unseen() > 0).then(|| self.slot(self.seen).emitted_ns)
    }

    /// Takes `count` unseen slots, which must be there, the oldest first. The caller then calls
    /// [`Queue::keep`] or [`Queue::park`] for each, or nothing if it is done with.
    pub fn take_unseen(
        &mut self,
        count: usize,
        seen_ns: u64,
    ) -> impl Iterator<Item = Seen> + use<> {
        let first = self.seen;
        self.seen += count as u64;
        (first..self.seen).map(move |number| Seen { number, seen_ns })
    }

    /// The series waits for a batch.
    pub fn keep(&mut self, seen: Seen, audit: Option<Audit>) {
        let Seen { number, seen_ns } = seen;
        let waiting = Waiting { number, seen_ns, audit };
        // A parked series belongs among others; all others come in order.
        match self.waiting.back() {
            Some(back) if back.number > number => {
                let at = self.waiting.partition_point(|it| it.number < number);
                self.waiting.insert(at, waiting);
            }
            _ => self.waiting.push_back(waiting),
        }
    }

    /// The series waits for labels of other tasks.
    pub fn park(&mut self, seen: Seen) {
        self.parked.push_back(seen);
    }

    /// Whether series wait for labels of other tasks.
    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Looks at each of them again; `is_over` tells whether it waits no more.
    pub fn reconsider(&mut self, mut is_over: impl FnMut(&Queue, Seen) -> bool) {
        for _ in 0..self.parked.len() {
            let Some(seen) = self.parked.pop_front() else {
                return;
            };
            if !is_over(self, seen) {
                // Once around, so that the series that stay are in order again.
                self.parked.push_back(seen);
            }
        }
    }

    /// When the series that has waited longest was seen.
    pub fn oldest_seen_ns(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.seen_ns)
    }

    /// How many series wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether more than three quarters of the ring's slots are seen and cannot be released before
    /// a batch goes. A flow manager needs the rest to walk on without shedding, or, in a replay,
    /// without waiting for the timeout.
    pub fn is_full(&self) -> bool {
        (self.seen - self.released) as usize * 4 > self.ring_input.series.capacity() * 3
    }

    /// When the series that has waited longest was emitted.
    pub fn oldest_emitted_ns(&self) -> Option<u64> {
        let waiting = self.waiting.front()?;
        Some(self.slot(waiting.number).emitted_ns)
    }

    /// Takes out the series that has waited longest: whether it is an audit, and its slot, which
    /// stays until [`Queue::release`].
    pub fn take(&mut self) -> Option<(Option<Audit>, &Slot)> {
        let Waiting { number, audit, .. } = self.waiting.pop_front()?;
        Some((audit, self.slot(number)))
    }

    /// The ring's slots.
    pub fn slots(&self) -> usize {
        self.ring_input.series.capacity()
    }

    /// Makes room to let any number of series wait for something else than a batch.
    pub fn make_room_to_park(&mut self) {
        self.parked.reserve(self.slots().saturating_sub(self.parked.len()));
    }

    /// The slot of this number, which is not released.
    pub fn slot(&self, number: u64) -> &Slot {
        self.ring_input.series.get((number - self.released) as usize)
    }

    /// Gives back the slots that are done and have none waiting before them.
    pub fn release(&mut self) {
        let done = self.waiting.front().map_or(self.seen, |w| w.number);
        let done = self.parked.front().map_or(done, |parked| done.min(parked.number));
        if done > self.released {
            self.ring_input.series.release((done - self.released) as usize);
            self.released = done;
        }
    }

    /// The label words of the flows.
    pub fn labels(&self) -> &dyn Labels {
        self.ring_input.labels.as_ref()
    }

    /// Tells the flow that it gets no label for this task.
    pub fn give_none(&self, slot: &Slot) {
        // If the flow is gone, nobody is left to tell.
        let _ = self.decide(slot.series.task, slot.flow, Label::Unlabelled);
    }

    /// Offers a label to the flow that asked, for one of its tasks.
    pub fn decide(&self, task: u8, flow: FlowRef, label: Label) -> Result<(), PostMortem> {
        let word = self.ring_input.labels.word(task, flow.index);
        word.decide(flow.generation, label)
    }

    /// Whether nothing waits here and nothing will ever come, as of the last look.
    pub fn is_done(&self) -> bool {
        self.closed && self.seen == self.end && self.waiting.is_empty() && self.parked.is_empty()
    }
}

#[cfg(test)]
impl Queue {
    /// How many of the waiting series wait for a label, not for an audit.
    pub fn waiting_for_label(&self) -> usize {
        self.waiting.iter().filter(|w| w.audit.is_none()).count()
    }
}
