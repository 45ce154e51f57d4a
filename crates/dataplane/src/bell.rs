//! How an analytics worker wakes a flow worker that sleeps while somebody wants its labels at once.
//!
//! A flow worker sleeps until one of its ports has packets, which may be milliseconds. Its bell is a descriptor more that ends
//! the sleep. After a round that gave labels, the analytics worker reads a flag of each flow worker, and makes a system call
//! only if that one sleeps: so labels that come often wake it once for each batch, and none waits for packets.
//!
//! A worker that wants to sleep raises its flag, looks for labels once more if the bell was rung since it last looked at all of
//! them, and then sleeps. So a label that comes meanwhile is found by that last look, or the analytics worker sees the flag.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// What a flow worker has to do before it sleeps, and what ends the sleep.
pub struct Prepared<'a> {
    /// Ends the sleep once it can be read; `None`: nothing will.
    pub event: Option<BorrowedFd<'a>>,
    /// Labels were given since the worker last looked at all: it has to look, and sleeps only if it finds none.
    pub must_look: bool,
}

/// The bell of one flow worker.
#[derive(Default)]
pub struct Bell {
    is_asleep: AtomicBool,
    /// How often it was rung.
    rings: AtomicU64,
    /// How often it had been rung when the flow worker last looked at all labels.
    looked: AtomicU64,
    /// Made with the first sleep; `None`: the system has none to give, and the worker sleeps without.
    event: OnceLock<Option<OwnedFd>>,
}

impl Bell {
    /// The flow worker is about to sleep.
    pub fn prepare(&self) -> Prepared<'_> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = self.event.get_or_init(|| eventfd(0, flags).ok());
        self.is_asleep.store(true, Ordering::Relaxed);
        // Orders the flag before the look at the rings; pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        // Acquires the labels that were given before.
        let rings = self.rings.load(Ordering::Acquire);
        let looked = self.looked.load(Ordering::Relaxed);
        self.looked.store(rings, Ordering::Relaxed);
        Prepared {
            event: event.as_ref().map(AsFd::as_fd),
            must_look: rings != looked,
        }
    }

    /// The flow worker is awake.
    pub fn wake(&self) {
        // Whoever has taken the flag down has written to the descriptor, or is about to: that ends a later sleep early.
        if !self.is_asleep.swap(false, Ordering::Relaxed)
            && let Some(Some(event)) = self.event.get()
        {
            let _: io::Result<usize> =
                rustix::io::read(event, &mut [0; 8]).map_err(io::Error::from);
        }
    }
}

/// Wakes the flow workers that sleep. Call it once labels are published.
pub fn ring<'a>(bells: impl IntoIterator<Item = &'a Bell>) {
    for bell in bells {
        bell.rings.fetch_add(1, Ordering::Release);
        // Orders the labels and the ring before the look at the flag; see `Bell::prepare`.
        fence(Ordering::SeqCst);
        if bell.is_asleep.load(Ordering::Relaxed)
            && bell.is_asleep.swap(false, Ordering::Relaxed)
            && let Some(Some(event)) = bell.event.get()
        {
            // It can only fail where nobody has read for 2^64 rings.
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
        let bell = Arc::new(Bell::default());
        let [given, seen] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let sleeper = {
            let (bell, given, seen) = (bell.clone(), given.clone(), seen.clone());
            std::thread::spawn(move || {
                while seen.load(Ordering::Relaxed) < ROUNDS {
                    let Prepared { event, must_look } = bell.prepare();
                    let event = event.unwrap();
                    // Relaxed: what the bell orders is enough.
                    if must_look {
                        seen.store(given.load(Ordering::Relaxed), Ordering::Release);
                    } else {
                        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
                        let most = Duration::from_secs(60).try_into().unwrap();
                        poll(&mut polled, Some(&most)).unwrap();
                    }
                    bell.wake();
                }
            })
        };
        let began = Instant::now();
        for round in 1..=ROUNDS {
            given.store(round, Ordering::Relaxed);
            ring([&*bell]);
            while seen.load(Ordering::Acquire) < round {
                assert!(
                    began.elapsed() < Duration::from_secs(50),
                    "asleep at {round}"
                );
                std::thread::yield_now();
            }
        }
        sleeper.join().unwrap();
    }

    #[test]
    fn nobody_rings_for_a_worker_that_is_awake() {
        let bell = Bell::default();
        ring([&bell]);
        let Prepared { event, must_look } = bell.prepare();
        assert!(must_look, "for the labels of the first ring");
        let event = event.unwrap();
        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
        let now = Duration::ZERO.try_into().unwrap();
        assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0);
        bell.wake();
        assert!(!bell.prepare().must_look, "there were no more");
        bell.wake();
        ring([&bell]);
        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0);
    }
}
