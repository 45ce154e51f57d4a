//! The near end of a ring, as a flow manager uses it: pends the flow's label word, and pushes its series.
//!
//! Each series is of a flow of its own. Label words are used in turn; when one comes round again the flow that had it
//! has ended, so there are several times as many as series can be on their way.

use std::sync::Arc;

use accel::Bundle;
use analytics::RingInput;
use cring::{Features, FlowRef, K_MAX, Label, LabelWord, Producer, Series, Slot};

/// Label words per slot of the ring.
const WORDS_PER_SLOT: usize = 4;

/// Series for one ring.
pub struct Feed {
    ring: Producer<Slot>,
    words: Arc<Vec<LabelWord>>,
    samples: Vec<Series>,
    /// Series offered so far.
    offered: usize,
    /// Those that found the ring full.
    pub shed: u64,
}

impl Feed {
    /// A feed of these series, again and again, through a ring of `slots`; and the ring's far end.
    pub fn new(samples: Vec<Series>, slots: usize) -> (Feed, RingInput) {
        let (ring, series) = cring::ring(slots);
        let words = (0..WORDS_PER_SLOT * slots).map(|_| LabelWord::new());
        let words: Arc<Vec<LabelWord>> = Arc::new(words.collect());
        let inlet = RingInput {
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

    /// One more series; the manager sees it after [`Feed::publish`]. A full ring sheds it. Returns its flow's word, for
    /// [`Feed::is_pending`].
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
            slot.series.copy_from(sample);
        });
        if !pushed {
            self.shed += 1;
            // Cannot be post-mortem: nobody else knows of the pending word.
            let _ = word.decide(generation, Label::Unlabelled);
        }
        index
    }

    /// Whether the flow of this word waits for its label.
    pub fn is_pending(&self, word: usize) -> bool {
        self.words[word].read().1 == Label::Pending
    }

    pub fn publish(&mut self) {
        self.ring.publish();
    }

    /// Fills the ring, and says with how many series.
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
    let k = row.len().min(K_MAX);
    let mut series = Series::new(flowmgr::wire::UDP, k, Features::LENGTHS);
    for (i, &length) in row.iter().take(k).enumerate() {
        series.set_signed(i, length as i32);
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
                let word = inlet.labels.word(0, index);
                assert_eq!(word.decide(generation, Label::Unlabelled), Ok(()));
            }
            inlet.series.release(waiting);
            assert_eq!(feed.fill(0), 2);
        }
        assert_eq!(feed.shed, 1);
    }
}
