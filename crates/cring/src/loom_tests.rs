//! Small models of the two meeting points, which loom runs in every order that the memory model
//! allows.
//!
//! Rings have two or four slots and indices that begin just below the maximum, so each model passes
//! the wrap and most fill the ring. Loom also watches each access to a slot: reading one that is
//! being written fails the model, whatever value was read, and so does memory that is left over.

use crate::ring::ring_from;
use crate::sync::UnsafeCell;
use crate::{Consumer, Label, LabelWord, PostMortem, Producer, Source};
use loom::sync::Arc;
use loom::thread;

fn push(producer: &mut Producer<u32>, value: u32) -> bool {
    producer.push(|slot| *slot = value)
}

/// Reads and releases all that waits, in order from `*next` on; returns how much it was.
fn take(consumer: &mut Consumer<u32>, next: &mut u32) -> usize {
    let waiting = consumer.waiting();
    for i in 0..waiting {
        assert_eq!(*consumer.get(i), *next);
        *next += 1;
    }
    consumer.release(waiting);
    waiting
}

/// Takes until the ring is closed and empty; returns how many slots came.
fn take_all(consumer: &mut Consumer<u32>) -> u32 {
    let mut next = 0;
    loop {
        let closed = consumer.is_closed();
        let taken = take(consumer, &mut next);
        if closed && taken == 0 {
            return next;
        }
        thread::yield_now();
    }
}

#[test]
fn slots_pass_a_full_ring_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_from::<u32>(2, usize::MAX);
        let sender = thread::spawn(move || {
            for value in 0..3 {
                while !push(&mut producer, value) {
                    thread::yield_now();
                }
                producer.publish();
            }
        });
        assert_eq!(take_all(&mut consumer), 3);
        sender.join().unwrap();
    });
}

#[test]
fn a_producer_that_waits_need_not_publish() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_from::<u32>(2, usize::MAX);
        let sender = thread::spawn(move || {
            for value in 0..3 {
                while !push(&mut producer, value) {
                    thread::yield_now();
                }
            }
        });
        assert_eq!(take_all(&mut consumer), 3);
        sender.join().unwrap();
    });
}

#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_from::<u32>(4, usize::MAX - 1);
        let sender = thread::spawn(move || {
            for batch in [0..2, 2..4] {
                for value in batch {
                    assert!(push(&mut producer, value));
                }
                producer.publish();
            }
        });
        let mut next = 0;
        for _ in 0..2 {
            assert_eq!(take(&mut consumer, &mut next) % 2, 0);
        }
        sender.join().unwrap();
        take(&mut consumer, &mut next);
        assert_eq!(next, 4);
    });
}

#[test]
fn slots_released_one_by_one_are_written_again() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_from::<u32>(2, usize::MAX);
        assert!(push(&mut producer, 0));
        assert!(push(&mut producer, 1));
        producer.publish();
        let receiver = thread::spawn(move || {
            assert_eq!(consumer.waiting(), 2);
            let oldest = *consumer.get(0);
            consumer.release(1);
            (oldest, *consumer.get(0))
        });
        let free = producer.free();
        assert!(free <= 1, "the second slot was not released");
        let pushed = push(&mut producer, 2);
        assert!(pushed || free == 0);
        assert_eq!(receiver.join().unwrap(), (0, 1));
        assert!(pushed || push(&mut producer, 2), "one slot is free by now");
    });
}

#[test]
fn a_closed_ring_holds_all_that_was_pushed() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_from::<u32>(4, usize::MAX - 1);
        let sender = thread::spawn(move || {
            assert!(push(&mut producer, 0));
            producer.publish();
            assert!(push(&mut producer, 1));
            assert!(push(&mut producer, 2));
        });
        if consumer.is_closed() {
            assert_eq!(consumer.waiting(), 3);
        }
        assert_eq!(take_all(&mut consumer), 3);
        sender.join().unwrap();
    });
}

#[test]
fn an_abandoned_ring_stops_the_producer_that_waits() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_from::<u32>(2, usize::MAX);
        let receiver = thread::spawn(move || take(&mut consumer, &mut 0));
        let mut pushed = 0;
        while !producer.is_abandoned() {
            if push(&mut producer, pushed) {
                pushed += 1;
            } else {
                thread::yield_now();
            }
        }
        assert!(receiver.join().unwrap() <= pushed as usize);
    });
}

/// The generation before the first.
const LAST: u32 = crate::GENERATIONS_MAX - 1;

fn class(class: u16) -> Label {
    Label::Class { class, confidence: 1, source: Source::Model, model: 0 }
}

/// A word whose flow has asked, and a thread that decides it.
fn decided_beside() -> (Arc<LabelWord>, thread::JoinHandle<Result<(), PostMortem>>) {
    let word = Arc::new(LabelWord::new());
    word.begin(LAST);
    word.pend(LAST);
    let decider = {
        let word = Arc::clone(&word);
        thread::spawn(move || word.decide(LAST, class(1)))
    };
    (word, decider)
}

#[test]
fn the_next_owner_never_sees_the_last_owners_label() {
    loom::model(|| {
        let (word, decider) = decided_beside();
        let seen = word.label(LAST).unwrap();
        assert!(seen == Label::Pending || seen == class(1));
        let next = word.retire();
        assert_eq!(word.read(), (0, Label::None));
        word.begin(next);
        assert_eq!(word.read(), (0, Label::None));
        word.pend(next);
        assert_eq!(word.read(), (0, Label::Pending));
        let fate = decider.join().unwrap();
        assert!(matches!(fate, Ok(()) | Err(PostMortem::OtherGeneration)), "{fate:?}");
        assert!(fate.is_ok() || seen == Label::Pending);
        assert_eq!(word.read(), (0, Label::Pending));
    });
}

#[test]
fn a_flow_that_nobody_asked_about_lets_no_label_through() {
    loom::model(|| {
        let (word, decider) = decided_beside();
        let unasked = word.retire();
        word.begin(unasked);
        let next = word.retire();
        assert_eq!(word.read(), (1, Label::None));
        word.begin(next);
        word.pend(next);
        let fate = decider.join().unwrap();
        assert!(matches!(fate, Ok(()) | Err(PostMortem::OtherGeneration)), "{fate:?}");
        assert_eq!(word.read(), (1, Label::Pending));
    });
}

#[test]
fn a_label_asked_for_through_the_ring_always_arrives() {
    loom::model(|| {
        let word = Arc::new(LabelWord::new());
        let (mut producer, mut consumer) = ring_from::<u32>(2, usize::MAX);
        let decider = {
            let word = Arc::clone(&word);
            thread::spawn(move || {
                while consumer.waiting() == 0 {
                    thread::yield_now();
                }
                word.decide(*consumer.get(0), class(3))
            })
        };
        word.begin(5);
        word.pend(5);
        assert!(push(&mut producer, 5));
        producer.publish();
        assert_eq!(decider.join().unwrap(), Ok(()));
        assert_eq!(word.read(), (5, class(3)));
    });
}

#[test]
fn of_two_decisions_one_is_kept() {
    loom::model(|| {
        let word = Arc::new(LabelWord::new());
        word.begin(5);
        word.pend(5);
        let decider = {
            let word = Arc::clone(&word);
            thread::spawn(move || word.decide(5, class(1)))
        };
        let ours = word.decide(5, Label::Unlabelled);
        let theirs = decider.join().unwrap();
        match (ours, theirs) {
            (Ok(()), Err(PostMortem::NotPending)) => {
                assert_eq!(word.read(), (5, Label::Unlabelled))
            }
            (Err(PostMortem::NotPending), Ok(())) => assert_eq!(word.read(), (5, class(1))),
            fates => panic!("{fates:?}"),
        }
    });
}

#[test]
fn who_sees_a_label_sees_what_the_decider_did_before() {
    loom::model(|| {
        let shared = Arc::new((LabelWord::new(), UnsafeCell::new(0)));
        shared.0.begin(5);
        shared.0.pend(5);
        let decider = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // Loom itself refuses an access to the cell that nothing orders, so no value needs
                // to be looked at.
                shared.1.with_mut(|_| ());
                shared.0.decide(5, class(1))
            })
        };
        if shared.0.label(5) == Some(class(1)) {
            shared.1.with(|_| ());
        }
        assert_eq!(decider.join().unwrap(), Ok(()));
    });
}
