//! How an analytics worker wakes a flow worker that sleeps while somebody wants its labels at once.
//!
//! A flow worker sleeps until one of its ports has packets, which may be milliseconds. Its bell is a descriptor more that ends
//! the sleep. After a round that gave labels, the analytics worker reads a flag of each flow worker, and makes a system call
//! only if that one sleeps: so labels that come often wake it once for each batch, and none waits for packets.
//!
//! A worker that wants to sleep raises its flag, looks for labels once more, and then sleeps. So a label that comes meanwhile is
//! found by that last look, or the analytics worker sees the flag.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// The bell of one flow worker.
#[derive(Default)]
pub struct Bell {
    is_asleep: AtomicBool,
    /// Made with the first sleep; `None`: the system has none to give, and the worker sleeps without.
    event: OnceLock<Option<OwnedFd>>,
}

impl Bell {
    /// The flow worker is about to sleep; it has to look for labels once more before it does. The descriptor ends the sleep once
    /// it can be read; `None`: nothing will.
    pub fn prepare(&self) -> Option<BorrowedFd<'_>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = self.event.get_or_init(|| eventfd(0, flags).ok());
        self.is_asleep.store(true, Ordering::Relaxed);
        // Orders the flag before the last look; pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        event.as_ref().map(AsFd::as_fd)
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
    // Orders the publication before the look at the flags; see `Bell::prepare`.
    fence(Ordering::SeqCst);
    for bell in bells {
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
                    let event = bell.prepare().unwrap();
                    let now = given.load(Ordering::Acquire);
                    if now > seen.load(Ordering::Relaxed) {
                        seen.store(now, Ordering::Release);
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
            given.store(round, Ordering::Release);
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
        let event = bell.prepare().unwrap();
        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
        let now = Duration::ZERO.try_into().unwrap();
        assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0);
        bell.wake();
        ring([&bell]);
        let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0);
    }
}
