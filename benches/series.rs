//! The producer's end of a ring, used as a flow manager uses it: it marks a flow's label word as
//! pending and pushes the flow's series.
//!
//! Each series is of a flow of its own. Label words are reused in turn. There are several times as
//! many as series can be on their way, so the flow that used a word before has its label.

use std::sync::Arc;

use analytics::RingInput;
use cring::{FlowRef, Label, LabelWord, Producer, Series, Slot};

/// Label words per slot of the ring.
pub const WORDS_PER_SLOT: usize = 4;

/// Series for one ring.
pub struct Feed {
    ring: Producer<Slot>,
    words: Arc<Vec<LabelWord>>,
    samples: Vec<Series>,
    /// Series offered so far.
    offered: usize,
    /// Series that found the ring full.
    pub shed: u64,
}

impl Feed {
    /// A feed that repeats these series through a ring of `slots`, and the ring's other end.
    pub fn new(samples: Vec<Series>, slots: usize) -> (Feed, RingInput) {
        let (ring, series) = cring::ring(slots);
        // A power of two, so that a mask finds the next word.
        let words = (WORDS_PER_SLOT * slots).next_power_of_two();
        let words = (0..words).map(|_| LabelWord::new());
        let words: Arc<Vec<LabelWord>> = Arc::new(words.collect());
        let inlet = RingInput { series, labels: words.clone() };
        let feed = Feed { ring, words, samples, offered: 0, shed: 0 };
        (feed, inlet)
    }

    /// Pushes the next of the series as [`Feed::push_with`].
    pub fn push(&mut self, emitted_ns: u64) {
        let sample = self.samples[self.offered % self.samples.len()];
        self.push_with(emitted_ns, |series| *series = sample);
    }

    /// Pushes a series that `fill` writes, which the manager sees after [`Feed::publish`]. A full
    /// ring sheds it.
    #[inline]
    pub fn push_with(&mut self, emitted_ns: u64, fill: impl FnOnce(&mut Series)) {
        let index = self.offered & (self.words.len() - 1);
        self.offered += 1;
        let word = &self.words[index];
        let generation = word.retire();
        word.pend(generation);
        let flow = FlowRef { index: index as u32, generation };
        let pushed = self.ring.push(|slot| {
            slot.flow = flow;
            slot.emitted_ns = emitted_ns;
            fill(&mut slot.series);
        });
        if !pushed {
            self.shed += 1;
            // It cannot be post-mortem, because the ring does not have the series.
            let _ = word.decide(generation, Label::Unlabelled);
        }
    }

    /// Hands what was pushed to the manager.
    pub fn publish(&mut self) {
        self.ring.publish();
    }

    /// Fills the ring and returns the number of series that took.
    pub fn fill(&mut self, emitted_ns: u64) -> usize {
        let free = self.ring.free();
        for _ in 0..free {
            self.push(emitted_ns);
        }
        self.publish();
        free
    }
}
