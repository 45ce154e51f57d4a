//! The producer's end of a ring, used as a flow manager uses it: it marks a flow's label word as pending and pushes the
//! flow's series.
//!
//! Each series is of a flow of its own. Label words are reused in turn. There are several times as many as series can be on
//! their way, so the flow that used a word before has its label.

use std::sync::Arc;

use accel::Bundle;
use analytics::Inlet;
use cring::{FlowRef, K_MAX, Label, LabelWord, Producer, Series, Slot};

/// Label words per slot of the ring.
const WORDS_PER_SLOT: usize = 4;

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
    pub fn new(samples: Vec<Series>, slots: usize) -> (Feed, Inlet) {
        let (ring, series) = cring::ring(slots);
        let words = (0..WORDS_PER_SLOT * slots).map(|_| LabelWord::new());
        let words: Arc<Vec<LabelWord>> = Arc::new(words.collect());
        let inlet = Inlet {
            series,
            labels: words.clone(),
        };
        let feed = Feed {
            ring,
            words,
            samples,
            offered: 0,
            shed: 0,
        };
        (feed, inlet)
    }

    /// Pushes one more series, which the manager sees after [`Feed::publish`]. A full ring sheds it. Returns the index of its
    /// flow's word, for [`Feed::is_pending`].
    pub fn push(&mut self, emitted_ns: u64) -> usize {
        let index = self.offered % self.words.len();
        let sample = &self.samples[self.offered % self.samples.len()];
        self.offered += 1;
        let word = &self.words[index];
        let generation = word.retire();
        word.pend(generation);
        let flow = FlowRef {
            index: index as u32,
            generation,
        };
        let pushed = self.ring.push(|slot| {
            slot.flow = flow;
            slot.emitted_ns = emitted_ns;
            slot.series = *sample;
        });
        if !pushed {
            self.shed += 1;
            // It cannot be post-mortem, because the ring does not have the series.
            let _ = word.decide(generation, Label::Unlabelled);
        }
        index
    }

    /// Whether the flow with this word waits for its label.
    pub fn is_pending(&self, word: usize) -> bool {
        self.words[word].read().1 == Label::Pending
    }

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

/// The bundle's golden inputs as series: input that the model was made for.
pub fn golden_series(bundle: &Bundle) -> Vec<Series> {
    let inputs = &bundle.golden().inputs;
    inputs.iter().map(|row| series_of(row)).collect()
}

/// One row of a model's input, signed lengths, as the flow manager would have sent it.
fn series_of(row: &[f32]) -> Series {
    let mut series = Series {
        protocol: flowmgr::wire::UDP,
        k: row.len().min(K_MAX) as u8,
        ..Series::default()
    };
    for (i, &length) in row.iter().take(K_MAX).enumerate() {
        series.lengths[i] = length.abs() as u16;
        series.directions |= u32::from(length < 0.0) << i;
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_from_its_series() {
        let row = [60.0, -1500.0, 0.0, 65_535.0];
        let series = series_of(&row);
        let back: Vec<f32> = series.signed_lengths().map(|it| it as f32).collect();
        assert_eq!(back, row);
    }

    #[test]
    fn a_full_ring_sheds_and_words_come_round() {
        let (mut feed, mut inlet) = Feed::new(vec![series_of(&[1.0])], 2);
        assert_eq!((feed.fill(0), feed.fill(0)), (2, 0));
        feed.push(0);
        assert_eq!((feed.shed, inlet.series.waiting()), (1, 2));
        for _ in 0..2 * WORDS_PER_SLOT {
            let waiting = inlet.series.waiting();
            for i in 0..waiting {
                let FlowRef { index, generation } = inlet.series.get(i).flow;
                let word = inlet.labels.word(index);
                assert_eq!(word.decide(generation, Label::Unlabelled), Ok(()));
            }
            inlet.series.release(waiting);
            assert_eq!(feed.fill(0), 2);
        }
        assert_eq!(feed.shed, 1);
    }
}
