//! Small models of a block, a sample and a slot's next owner, which loom runs in every order that
//! the memory model allows. A word tells which publication wrote it, so a torn copy shows.

use crate::publication::{BUFFERS, Publication};
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

#[test]
fn samples_of_a_slots_next_owner_are_not_taken_for_the_last_ones() {
    use crate::reservoirs::{begin, read};
    loom::model(|| {
        let region = Arc::new(words(8 + SAMPLE_WORDS));
        begin(&region, 1);
        sample::write(&region[8..], Sample { number: 1, time_ns: 1, value: 1 });
        let writer = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                begin(&region, 2);
                sample::write(&region[8..], Sample { number: 2, time_ns: 2, value: 2 });
            })
        };
        let mut seen = Vec::new();
        if read(&region, 1, 8..8 + SAMPLE_WORDS, |sample| seen.push(sample.value)) {
            assert_eq!(seen, [1]);
        }
        seen.clear();
        if read(&region, 2, 8..8 + SAMPLE_WORDS, |sample| seen.push(sample.value)) {
            assert!(seen.is_empty() || seen == [2]);
        }
        writer.join().unwrap();
    });
}
