//! How an analytics worker wakes a flow worker that sleeps while somebody wants its labels at once.
//!
//! A flow worker sleeps until one of its ports has packets, which may be milliseconds. Its waker
//! adds a descriptor that ends the sleep. After a round that gave labels, the analytics worker
//! reads a flag of each flow worker, and makes a system call only if that one sleeps: so labels
//! that come often wake it once for each batch, and none waits for packets.
//!
//! A worker that wants to sleep raises its flag, looks for labels once more if some were given
//! since it last looked at all of them, and then sleeps. So a label that comes meanwhile is found
//! by that last look, or the analytics worker sees the flag.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// What a flow worker has to do before it sleeps, and what ends the sleep.
pub struct Prepared<'a> {
    /// Ends the sleep once it can be read; `None`: nothing will.
    pub event: Option<BorrowedFd<'a>>,
    /// Labels were given since the worker last looked at all: it has to look, and sleeps only if it
    /// finds none.
    pub must_look: bool,
}

/// Wakes one flow worker.
#[derive(Default)]
pub struct LabelWaker {
    is_asleep: AtomicBool,
    /// How often labels were given.
    given: AtomicU64,
    /// How often they had been given when the flow worker last looked at all of them.
    looked: AtomicU64,
    /// Made with the first sleep; `None`: the system has none to give, and the worker sleeps
    /// without.
    event: OnceLock<Option<OwnedFd>>,
}

impl LabelWaker {
    /// The flow worker is about to sleep.
    pub fn prepare(&self) -> Prepared<'_> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = self.event.get_or_init(|| eventfd(0, flags).ok());
        self.is_asleep.store(true, Ordering::Relaxed);
        // Orders the flag before the look at `given`; pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
        // Acquires the labels that were given before.
        let given = self.given.load(Ordering::Acquire);
        let looked = self.looked.load(Ordering::Relaxed);
        self.looked.store(given, Ordering::Relaxed);
        Prepared { event: event.as_ref().map(AsFd::as_fd), must_look: given != looked }
    }

    /// The flow worker has slept, or found labels instead.
    pub fn done(&self) {
        // The thread that cleared the flag has written to the descriptor or is about to. If it
        // has not yet, its write ends a later sleep early.
        if !self.is_asleep.swap(false, Ordering::Relaxed)
            && let Some(Some(event)) = self.event.get()
        {
            let _: io::Result<usize> =
                rustix::io::read(event, &mut [0; 8]).map_err(io::Error::from);
        }
    }
}

/// Wakes the flow workers that sleep. Call it once labels are published.
pub fn wake<'a>(wakers: impl IntoIterator<Item = &'a LabelWaker>) {
    for waker in wakers {
        waker.given.fetch_add(1, Ordering::Release);
        // Orders the labels before the look at the flag; see `LabelWaker::prepare`.
        fence(Ordering::SeqCst);
        if waker.is_asleep.load(Ordering::Relaxed)
            && waker.is_asleep.swap(false, Ordering::Relaxed)
            && let Some(Some(event)) = waker.event.get()
        {
            // It can only fail where nobody has read for 2^64 wake-ups.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// As in `waker`: a worker that missed a label would sleep for a minute.
    #[test]
    fn a_label_is_seen_without_waiting_for_packets() {
        const ROUNDS: usize = 2000;
        let waker = Arc::new(LabelWaker::default());
        let [given, seen] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let sleeper = {
            let (waker, given, seen) = (waker.clone(), given.clone(), seen.clone());
            std::thread::spawn(move || {
                while seen.load(Ordering::Relaxed) < ROUNDS {
                    let Prepared { event, must_look } = waker.prepare();
                    let event = event.unwrap();
                    // Relaxed: what the waker orders is enough.
                    if must_look {
                        seen.store(given.load(Ordering::Relaxed), Ordering::Release);
                    } else {
                        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
                        let most = Duration::from_secs(60).try_into().unwrap();
                        poll(&mut polled, Some(&most)).unwrap();
                    }
                    waker.done();
                }
            })
        };
        let began = Instant::now();
        for round in 1..=ROUNDS {
            given.store(round, Ordering::Relaxed);
            wake([&*waker]);
            while seen.load(Ordering::Acquire) < round {
                assert!(began.elapsed() < Duration::from_secs(50), "asleep at {round}");
                std::thread::yield_now();
            }
        }
        sleeper.join().unwrap();
    }

    #[test]
    fn a_worker_that_is_awake_is_left_alone() {
        let waker = LabelWaker::default();
        wake([&waker]);
        let Prepared { event, must_look } = waker.prepare();
        assert!(must_look, "labels were given before");
        let event = event.unwrap();
        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
        let now = Duration::ZERO.try_into().unwrap();
        assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0);
        waker.done();
        assert!(!waker.prepare().must_look, "there were no more");
        waker.done();
        wake([&waker]);
        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0);
    }
}
