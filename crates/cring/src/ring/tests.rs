//! The ring on one thread against a plain queue, its ends, and a transfer between two threads.

use super::*;
use crate::{Feature, Features, Series, Slot};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::thread;

/// Starts so close below the maximum that every test passes the wrap.
const NEAR_WRAP: usize = usize::MAX - 2;

fn push(producer: &mut Producer<u64>, value: u64) -> bool {
    producer.push(|slot| *slot = value)
}

#[test]
fn pushed_slots_are_hidden_until_published() {
    let (mut producer, mut consumer) = ring_from(4, NEAR_WRAP);
    assert!(push(&mut producer, 1));
    assert!(push(&mut producer, 2));
    assert_eq!(consumer.waiting(), 0);
    producer.publish();
    assert_eq!(consumer.waiting(), 2);
    assert_eq!((*consumer.get(0), *consumer.get(1)), (1, 2));
}

#[test]
fn released_slots_can_be_pushed_again_and_others_stay() {
    let (mut producer, mut consumer) = ring_from(4, NEAR_WRAP);
    for value in 0..4 {
        assert!(push(&mut producer, value));
    }
    producer.publish();
    assert_eq!(producer.free(), 0);
    assert_eq!(consumer.waiting(), 4);
    consumer.release(3);
    assert_eq!(*consumer.get(0), 3);
    assert_eq!(producer.free(), 3);
}

#[test]
fn a_full_ring_refuses_calls_nothing_and_publishes() {
    let (mut producer, mut consumer) = ring_from(2, NEAR_WRAP);
    assert!(push(&mut producer, 1));
    assert!(push(&mut producer, 2));
    assert!(!producer.push(|_| panic!("the ring is full")));
    assert_eq!(consumer.waiting(), 2);
    consumer.release(1);
    assert!(push(&mut producer, 3));
    assert!(!push(&mut producer, 4));
    assert_eq!(consumer.waiting(), 2);
    assert_eq!((*consumer.get(0), *consumer.get(1)), (2, 3));
}

#[test]
fn a_ring_of_one_slot_works() {
    let (mut producer, mut consumer) = ring_from(1, NEAR_WRAP);
    for value in 0..8 {
        assert!(push(&mut producer, value));
        assert!(!push(&mut producer, 99));
        assert_eq!(consumer.waiting(), 1);
        assert_eq!(*consumer.get(0), value);
        consumer.release(1);
    }
}

#[test]
fn slots_start_as_the_default_on_lines_of_their_own() {
    let (mut producer, _consumer) = ring::<Slot>(2);
    for _ in 0..2 {
        assert!(producer.push(|slot| {
            assert_eq!(*slot, Slot::default());
            assert_eq!(std::ptr::from_ref(slot).addr() % 64, 0);
        }));
    }
}

#[test]
fn a_write_that_panics_pushes_nothing() {
    let (mut producer, mut consumer) = ring_from(2, NEAR_WRAP);
    let write =
        std::panic::AssertUnwindSafe(|| producer.push(|_| panic!("in the middle of a slot")));
    assert!(std::panic::catch_unwind(write).is_err());
    assert!(push(&mut producer, 1));
    producer.publish();
    assert_eq!(consumer.waiting(), 1);
    assert_eq!(*consumer.get(0), 1);
}

#[test]
fn the_last_slots_outlive_the_producer() {
    let (mut producer, mut consumer) = ring_from(4, NEAR_WRAP);
    assert!(push(&mut producer, 1));
    producer.publish();
    assert!(push(&mut producer, 2));
    assert!(!consumer.is_closed());
    drop(producer);
    assert!(consumer.is_closed());
    assert_eq!(consumer.waiting(), 2);
    assert_eq!((*consumer.get(0), *consumer.get(1)), (1, 2));
}

#[test]
fn the_producer_learns_that_the_consumer_is_gone() {
    let (mut producer, consumer) = ring_from(2, NEAR_WRAP);
    assert!(!producer.is_abandoned());
    drop(consumer);
    assert!(producer.is_abandoned());
    assert!(push(&mut producer, 1));
    assert!(push(&mut producer, 2));
    assert!(!push(&mut producer, 3));
}

#[test]
#[should_panic(expected = "slot 1 asked for, 1 waiting")]
fn reading_beyond_what_waits_is_a_bug() {
    let (mut producer, mut consumer) = ring_from(4, NEAR_WRAP);
    assert!(push(&mut producer, 1));
    producer.publish();
    assert_eq!(consumer.waiting(), 1);
    assert!(push(&mut producer, 2));
    producer.publish();
    let _ = consumer.get(1);
}

#[test]
#[should_panic(expected = "2 slots released, 1 waiting")]
fn releasing_beyond_what_waits_is_a_bug() {
    let (mut producer, mut consumer) = ring_from(4, NEAR_WRAP);
    assert!(push(&mut producer, 1));
    producer.publish();
    assert_eq!(consumer.waiting(), 1);
    consumer.release(2);
}

#[test]
#[should_panic(expected = "power of two of slots, not 6")]
fn the_number_of_slots_is_a_power_of_two() {
    let _ = ring::<u64>(6);
}

#[derive(Clone, Debug)]
enum Operation {
    Push(u8),
    Publish,
    Free,
    Look,
    Release(prop::sample::Index),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        4 => (1..6u8).prop_map(Operation::Push),
        2 => Just(Operation::Publish),
        1 => Just(Operation::Free),
        2 => Just(Operation::Look),
        2 => any::<prop::sample::Index>().prop_map(Operation::Release),
    ];
    prop::collection::vec(operation, 0..200)
}

/// What the ring should be: a queue of everything not released, its first part published, the first
/// part of that seen.
#[derive(Default)]
struct Oracle {
    queue: VecDeque<u64>,
    published: usize,
    seen: usize,
    next: u64,
}

impl Oracle {
    fn check(
        &mut self,
        operation: Operation,
        producer: &mut Producer<u64>,
        consumer: &mut Consumer<u64>,
    ) {
        match operation {
            Operation::Push(count) => {
                for _ in 0..count {
                    self.push(producer);
                }
            }
            Operation::Publish => {
                producer.publish();
                self.published = self.queue.len();
            }
            Operation::Free => assert_eq!(producer.free(), producer.capacity() - self.queue.len()),
            Operation::Look => {
                self.seen = self.published;
                assert_eq!(consumer.waiting(), self.seen);
            }
            Operation::Release(count) => {
                let count = count.index(self.seen + 1);
                consumer.release(count);
                self.queue.drain(..count);
                self.published -= count;
                self.seen -= count;
            }
        }
        let slots: Vec<u64> = (0..self.seen).map(|i| *consumer.get(i)).collect();
        assert!(slots.iter().eq(self.queue.iter().take(self.seen)), "{slots:?} {:?}", self.queue);
    }

    fn push(&mut self, producer: &mut Producer<u64>) {
        let room = self.queue.len() < producer.capacity();
        assert_eq!(push(producer, self.next), room);
        if room {
            self.queue.push_back(self.next);
            self.next += 1;
        } else {
            self.published = self.queue.len();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_ring_is_a_bounded_queue(
        log2_slots in 0..5u32,
        before_wrap in 0..40usize,
        operations in operations(),
    ) {
        let start = 0usize.wrapping_sub(before_wrap);
        let (mut producer, mut consumer) = ring_from(1 << log2_slots, start);
        let mut oracle = Oracle::default();
        for operation in operations {
            oracle.check(operation, &mut producer, &mut consumer);
        }
        drop(producer);
        prop_assert!(consumer.is_closed());
        prop_assert_eq!(consumer.waiting(), oracle.queue.len());
    }
}

#[test]
fn two_threads_hand_over_every_slot_whole_and_in_order() {
    let slots = if cfg!(miri) { 300 } else { 200_000 };
    let (mut producer, mut consumer) = ring_from::<Slot>(64, NEAR_WRAP);
    let sender = thread::spawn(move || {
        for number in 0..slots {
            while !producer.push(|slot| *slot = numbered(number)) {
                thread::yield_now();
            }
            if number % 7 == 0 {
                producer.publish();
            }
        }
    });
    let mut expected = 0;
    loop {
        let closed = consumer.is_closed();
        let waiting = consumer.waiting();
        for i in 0..waiting {
            assert_eq!(*consumer.get(i), numbered(expected));
            expected += 1;
        }
        consumer.release(waiting);
        if closed && waiting == 0 {
            break;
        }
        thread::yield_now();
    }
    assert_eq!(expected, slots);
    assert!(sender.join().is_ok());
}

/// A slot whose first and last bytes tell the number, so that a torn one shows.
fn numbered(number: u64) -> Slot {
    let mut slot = Slot { emitted_ns: number, ..Slot::default() };
    slot.flow.index = number as u32;
    slot.series = Series::new(0, crate::K_MAX, Features::ALL);
    for feature in Feature::ALL {
        slot.series.channel_mut(feature).fill(number as u16);
    }
    slot
}
