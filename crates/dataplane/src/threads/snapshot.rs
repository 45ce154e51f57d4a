//! How the counters of a thread of the data path come to the control thread.
//!
//! A buffer goes to and fro. The control thread sends it; the thread finds it between two bursts or
//! two rounds, copies its counters into it and sends it back. So a snapshot is consistent in
//! itself, nothing is copied that nobody wants, and the data path neither allocates nor waits:
//! while nobody asks, [`Publisher::publish`] is two loads. Both ways are bounded channels without a
//! lock on them, on which only the control thread ever waits, and that by looking now and then.
//!
//! ```text
//! control thread:  ask ──────────────► ··· answer ─► latest
//!                    buffer  ▼            ▲ buffer
//! data path:       burst, burst, publish ─┘ burst … finish ─► last
//! ```
//!
//! For its end a thread keeps a second buffer, so that its last counters arrive whether or not
//! somebody asks.

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

/// An answer; whether it is the last.
type Answer<T> = (Box<T>, bool);

/// The data path's end.
pub struct Publisher<T> {
    asked: Receiver<Box<T>>,
    answers: Sender<Answer<T>>,
    last: Box<T>,
}

/// The control thread's end.
pub struct Subscriber<T> {
    asks: Sender<Box<T>>,
    answers: Receiver<Answer<T>>,
    /// Here while nobody is asked.
    free: Option<Box<T>>,
}

/// What came of looking for an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Looked<T> {
    /// Nothing yet.
    Nothing,
    /// A snapshot, for [`Subscriber::give_back`] once it is no longer in use.
    Answer(Box<T>),
    /// The thread has ended, and this is how it stood.
    Last(Box<T>),
    /// It has ended without a word.
    Died,
}

/// Both ends, with all memory that they will need: three times what `empty` makes.
pub fn snapshots<T>(empty: impl Fn() -> T) -> (Publisher<T>, Subscriber<T>) {
    let (asks, asked) = bounded(1);
    let (answers, answered) = bounded(2); // the one that goes to and fro, and the last
    let publisher = Publisher { asked, answers, last: Box::new(empty()) };
    let subscriber = Subscriber { asks, answers: answered, free: Some(Box::new(empty())) };
    (publisher, subscriber)
}

impl<T> Publisher<T> {
    /// Between two bursts or rounds: fills the buffer if there is one.
    pub fn publish(&self, fill: impl FnOnce(&mut T)) {
        // Looking is cheaper than trying to receive, which orders memory even where there is
        // nothing.
        if self.asked.is_empty() {
            return;
        }
        if let Ok(mut buffer) = self.asked.try_recv() {
            fill(&mut buffer);
            // There is room for it, and nobody to tell if the other side has gone.
            let _ = self.answers.try_send((buffer, false));
        }
    }

    /// At the thread's end: how it stands for good.
    pub fn finish(mut self, fill: impl FnOnce(&mut T)) {
        fill(&mut self.last);
        let _ = self.answers.try_send((self.last, true));
    }
}

impl<T> Subscriber<T> {
    /// Asks for a snapshot. False where an earlier question is open.
    pub fn ask(&mut self) -> bool {
        match self.free.take() {
            Some(buffer) => {
                // There is room for the only buffer; if the thread has ended, `poll` says so.
                let _ = self.asks.try_send(buffer);
                true
            }
            None => false,
        }
    }

    /// Whether there is an answer. Never waits.
    pub fn poll(&mut self) -> Looked<T> {
        match self.answers.try_recv() {
            Ok((snapshot, false)) => Looked::Answer(snapshot),
            Ok((snapshot, true)) => Looked::Last(snapshot),
            Err(TryRecvError::Empty) => Looked::Nothing,
            Err(TryRecvError::Disconnected) => Looked::Died,
        }
    }

    /// Takes back a buffer for the next question.
    pub fn give_back(&mut self, buffer: Box<T>) {
        self.free = Some(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_goes_to_and_fro() {
        let (publisher, mut subscriber) = snapshots(|| 0);
        publisher.publish(|_| panic!("nobody asked"));
        for round in 1..4 {
            assert!(subscriber.ask());
            assert!(!subscriber.ask(), "one question at a time");
            assert_eq!(subscriber.poll(), Looked::Nothing);
            publisher.publish(|buffer| *buffer = round);
            publisher.publish(|_| panic!("answered already"));
            let Looked::Answer(snapshot) = subscriber.poll() else {
                panic!("no answer");
            };
            assert_eq!(*snapshot, round);
            subscriber.give_back(snapshot);
        }
    }

    #[test]
    fn the_last_word_comes_behind_all_others_and_unasked() {
        let (publisher, mut subscriber) = snapshots(|| 0);
        assert!(subscriber.ask());
        publisher.publish(|buffer| *buffer = 1);
        publisher.finish(|buffer| *buffer = 2);
        assert_eq!(subscriber.poll(), Looked::Answer(Box::new(1)));
        assert_eq!(subscriber.poll(), Looked::Last(Box::new(2)));
        assert_eq!(subscriber.poll(), Looked::Died);
    }

    #[test]
    fn a_thread_that_panics_has_died() {
        let (publisher, mut subscriber) = snapshots(|| 0);
        assert!(subscriber.ask());
        drop(publisher);
        assert_eq!(subscriber.poll(), Looked::Died);
    }

    /// Whatever the threads' timing, a snapshot is one moment of the publisher: both halves are
    /// alike.
    #[test]
    fn snapshots_are_consistent_between_threads() {
        let (publisher, mut subscriber) = snapshots(|| (0_u64, 0_u64));
        let thread = std::thread::spawn(move || {
            let mut counters = (0, 0);
            for _ in 0..200_000 {
                counters.0 += 1;
                counters.1 += 1;
                publisher.publish(|buffer| *buffer = counters);
            }
            publisher.finish(|buffer| *buffer = counters);
        });
        let mut before = 0;
        loop {
            subscriber.ask();
            match subscriber.poll() {
                Looked::Answer(snapshot) => {
                    assert_eq!(snapshot.0, snapshot.1);
                    assert!(snapshot.0 >= before);
                    before = snapshot.0;
                    subscriber.give_back(snapshot);
                }
                Looked::Last(snapshot) => break assert_eq!(*snapshot, (200_000, 200_000)),
                Looked::Nothing => std::thread::yield_now(),
                Looked::Died => panic!("without a word"),
            }
        }
        thread.join().unwrap();
    }
}
