//! How a flow manager wakes an analytics thread that sleeps because nothing comes.
//!
//! Without it the thread has to look by itself, every fraction of a millisecond, which costs some percent of a core where
//! timers are slow (virtual machines). With it the flow manager looks, after each burst that emitted series, at a flag of
//! each thread; only where one sleeps does it make a system call.
//!
//! A thread that wants to sleep raises its flag, looks at its rings once more, and sleeps then. So of a series that comes
//! meanwhile either the last look sees it or the flow manager sees the flag.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::Thread;
use std::time::Duration;

/// A seat for each thread that may sleep.
pub struct Bell {
    seats: Box<[Seat]>,
    taken: AtomicUsize,
}

/// Of one thread.
#[derive(Default)]
pub struct Seat {
    sleeps: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    /// For so many threads; none where nobody would ring.
    pub fn new(threads: usize) -> Bell {
        Bell {
            seats: (0..threads).map(|_| Seat::default()).collect(),
            taken: AtomicUsize::new(0),
        }
    }

    /// The calling thread's seat; `None`: nobody would wake it.
    pub fn seat(&self) -> Option<&Seat> {
        let seat = self.seats.get(self.taken.fetch_add(1, Ordering::Relaxed))?;
        seat.thread.get_or_init(std::thread::current);
        Some(seat)
    }

    /// Wakes those who sleep. To be called once new series are published.
    pub fn ring(&self) {
        // Orders the publication before the look at the flags; see `Seat::lie_down`.
        fence(Ordering::SeqCst);
        for seat in &self.seats {
            if seat.sleeps.load(Ordering::Relaxed)
                && seat.sleeps.swap(false, Ordering::Relaxed)
                && let Some(thread) = seat.thread.get()
            {
                thread.unpark();
            }
        }
    }
}

impl Seat {
    /// The thread is about to sleep; it has to look at its rings once more before.
    pub fn lie_down(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        // Orders the flag before the last look; pairs with that in `Bell::ring`.
        fence(Ordering::SeqCst);
    }

    /// Sleeps until somebody rings, at most for `most`. Where somebody has rung since [`Seat::lie_down`], maybe for another
    /// thread, it only lies down again.
    pub fn sleep(&self, most: Duration) {
        match self.sleeps.load(Ordering::Relaxed) {
            true => std::thread::park_timeout(most),
            false => self.lie_down(),
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
        let bell = Arc::new(Bell::new(1));
        let [published, seen] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let sleeper = {
            let (bell, published, seen) = (bell.clone(), published.clone(), seen.clone());
            std::thread::spawn(move || {
                let seat = bell.seat().unwrap();
                assert!(bell.seat().is_none());
                let mut is_down = false;
                while seen.load(Ordering::Relaxed) < ROUNDS {
                    let now = published.load(Ordering::Acquire);
                    if now > seen.load(Ordering::Relaxed) {
                        seen.store(now, Ordering::Release);
                        is_down = false;
                    } else if is_down {
                        seat.sleep(Duration::from_secs(60));
                    } else {
                        seat.lie_down();
                        is_down = true;
                    }
                }
            })
        };
        let began = Instant::now();
        for round in 1..=ROUNDS {
            published.store(round, Ordering::Release);
            bell.ring();
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
}
