//! Small models of a block, a sample and a slot's next owner, which loom runs in every order that
//! the memory model allows. A word tells which publication wrote it, so a torn copy shows.

use crate::publication::{BUFFERS, Publication};
use crate::reservoirs::{RESERVOIRS_HEADER, begin, read};
use crate::sample::{self, SAMPLE_WORDS, Sample};
use crate::sync::AtomicU64;
use loom::sync::Arc;
use loom::thread;

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

struct Block {
    count: AtomicU64,
    buffers: Vec<AtomicU64>,
}

impl Block {
    fn new(words_per_buffer: usize) -> Arc<Self> {
        Arc::new(Self { count: AtomicU64::new(0), buffers: words(BUFFERS * words_per_buffer) })
    }

    fn publication(&self) -> Publication<'_> {
        Publication { count: &self.count, buffers: &self.buffers }
    }

    fn read(&self) -> Option<Vec<u64>> {
        self.publication().read_once(|words| {
            let mut copied = vec![0; words.len()];
            crate::publication::copy(words, &mut copied);
            copied
        })
    }
}

#[test]
fn a_copy_is_of_one_publication() {
    loom::model(|| {
        let block = Block::new(2);
        let writer = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                for number in 1..=4 {
                    block.publication().publish(&[number, 10 * number]);
                }
            })
        };
        if let Some(copied) = block.read() {
            assert_eq!(copied[1], 10 * copied[0]);
        }
        writer.join().unwrap();
        assert_eq!(block.read(), Some(vec![4, 40]));
    });
}

#[test]
fn later_copies_are_not_older() {
    loom::model(|| {
        let block = Block::new(1);
        let writer = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                for number in 1..=3 {
                    block.publication().publish(&[number]);
                }
            })
        };
        let first = block.read();
        let second = block.read();
        assert!(second.is_none() || first <= second, "{first:?} {second:?}");
        writer.join().unwrap();
    });
}

#[test]
fn a_sample_is_whole_or_left_out() {
    loom::model(|| {
        let slot = Arc::new(words(SAMPLE_WORDS));
        let writer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                for number in 1..=2 {
                    sample::write(&slot, Sample { number, time_ns: number, value: 10 * number });
                }
            })
        };
        if let Some(seen) = sample::read(&slot) {
            assert_eq!((seen.time_ns, seen.value), (seen.number, 10 * seen.number));
        }
        writer.join().unwrap();
        assert_eq!(sample::read(&slot).map(|it| it.number), Some(2));
    });
}

/// One thread gives a slot to its second egress; the other reads samples of this incarnation.
fn read_beside_a_change(incarnation: u64, check: fn(&[u64]) -> bool) {
    loom::model(move || {
        let region = Arc::new(words(RESERVOIRS_HEADER + SAMPLE_WORDS));
        let sample = |number| Sample { number, time_ns: number, value: number };
        begin(&region, 1);
        sample::write(&region[RESERVOIRS_HEADER..], sample(1));
        let writer = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                begin(&region, 2);
                sample::write(&region[RESERVOIRS_HEADER..], sample(2));
            })
        };
        let mut seen = Vec::new();
        let reservoir = RESERVOIRS_HEADER..RESERVOIRS_HEADER + SAMPLE_WORDS;
        if read(&region, incarnation, reservoir, |sample| seen.push(sample.value)) {
            assert!(check(&seen), "{seen:?}");
        }
        writer.join().unwrap();
    });
}

#[test]
fn the_last_egress_of_a_slot_has_no_samples_of_the_next() {
    read_beside_a_change(1, |seen| seen == [1]);
}

#[test]
fn the_next_egress_of_a_slot_has_no_samples_of_the_last() {
    read_beside_a_change(2, |seen| seen.is_empty() || seen == [2]);
}
