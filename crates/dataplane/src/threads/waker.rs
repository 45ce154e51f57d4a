//! How a flow worker wakes an analytics worker that sleeps because no series comes.
//!
//! Otherwise the analytics worker would have to poll every fraction of a millisecond, which costs
//! some percent of a core where timers are slow (virtual machines). Instead, after each burst that
//! emitted series, the flow worker reads a flag of each analytics worker, and makes a system call
//! only if that worker sleeps.
//!
//! A worker that wants to sleep raises its flag, looks at its rings once more, and then parks. So a
//! series that comes meanwhile is seen by that last look, or the flow worker sees the flag.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::Thread;
use std::time::Duration;

/// Wakes a fixed number of threads, each of which holds a [`Waiter`].
pub struct Waker {
    waiters: Box<[Waiter]>,
    taken: AtomicUsize,
}

/// The state of one thread that may park.
#[derive(Default)]
pub struct Waiter {
    is_parked: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Waker {
    /// A waker for `threads` threads; 0 if nobody will call [`Waker::wake`].
    pub fn new(threads: usize) -> Waker {
        Waker {
            waiters: (0..threads).map(|_| Waiter::default()).collect(),
            taken: AtomicUsize::new(0),
        }
    }

    /// The waiter of the calling thread; `None` if nobody would wake it.
    pub fn waiter(&self) -> Option<&Waiter> {
        let waiter = self.waiters.get(self.taken.fetch_add(1, Ordering::Relaxed))?;
        waiter.thread.get_or_init(std::thread::current);
        Some(waiter)
    }

    /// Wakes the threads that are parked. Call it once new series are published.
    pub fn wake(&self) {
        // Orders the publication before the look at the flags; see `Waiter::prepare`.
        fence(Ordering::SeqCst);
        for waiter in &self.waiters {
            if waiter.is_parked.load(Ordering::Relaxed)
                && waiter.is_parked.swap(false, Ordering::Relaxed)
                && let Some(thread) = waiter.thread.get()
            {
                thread.unpark();
            }
        }
    }
}

impl Waiter {
    /// The thread is about to park; it has to look at its rings once more before it does.
    pub fn prepare(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
        // Orders the flag before the last look; pairs with the fence in `Waker::wake`.
        fence(Ordering::SeqCst);
    }

    /// Parks until [`Waker::wake`], for `most` at the longest. If a wake-up has come since
    /// [`Waiter::prepare`], maybe for another thread, it only prepares again.
    pub fn park(&self, most: Duration) {
        match self.is_parked.load(Ordering::Relaxed) {
            true => std::thread::park_timeout(most),
            false => self.prepare(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_is_published_is_seen_without_waiting_for_the_time() {
        const ROUNDS: usize = 2000;
        let waker = Arc::new(Waker::new(1));
        let [published, seen] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let sleeper = {
            let (waker, published, seen) = (waker.clone(), published.clone(), seen.clone());
            std::thread::spawn(move || {
                let waiter = waker.waiter().unwrap();
                assert!(waker.waiter().is_none());
                let mut is_prepared = false;
                while seen.load(Ordering::Relaxed) < ROUNDS {
                    let now = published.load(Ordering::Acquire);
                    if now > seen.load(Ordering::Relaxed) {
                        seen.store(now, Ordering::Release);
                        is_prepared = false;
                    } else if is_prepared {
                        waiter.park(Duration::from_secs(60));
                    } else {
                        waiter.prepare();
                        is_prepared = true;
                    }
                }
            })
        };
        let began = Instant::now();
        for round in 1..=ROUNDS {
            published.store(round, Ordering::Release);
            waker.wake();
            while seen.load(Ordering::Acquire) < round {
                assert!(began.elapsed() < Duration::from_secs(50), "asleep at {round}");
                std::thread::yield_now();
            }
        }
        sleeper.join().unwrap();
    }
}
