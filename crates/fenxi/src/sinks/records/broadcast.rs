//! Lines to any number of readers of a Unix socket. Each has a bounded backlog of its own: one
//! that stalls loses lines, and nobody waits for it.
//!
//! A [`Broadcaster`] owns the thread that accepts readers and writes to them.
//! [`Broadcaster::publish`] never blocks on a reader. What readers send is not read.
//!
//! Readers share the memory of what they have not read yet. A reader that has lost lines is told
//! how many by a line of its own, at the place where they are missing.

mod reader;
mod thread;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use reader::{Chunk, Reader};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Readers at a time; more are turned away.
    pub readers: usize,
    /// Bytes that a reader may be behind.
    pub backlog: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub readers: u64,
    /// Readers that were turned away, because there were enough.
    pub refused: u64,
    /// Lines written, summed over readers.
    pub sent: u64,
    /// Lines that a reader was too slow for, or left unread, summed over readers.
    pub lost: u64,
}

/// Gives lines to readers while it lives.
pub struct Broadcaster {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread shares with those who publish.
struct Shared {
    limits: Limits,
    /// The line that tells a reader how many are missing.
    lost_line: fn(u64) -> String,
    readers: Mutex<Vec<Reader>>,
    wake: OwnedFd,
    is_ending: AtomicBool,
    refused: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Broadcaster {
    /// Starts to accept readers on `listener`. `lost_line` makes the line that says how many lines
    /// are missing.
    pub fn start(
        listener: UnixListener,
        limits: Limits,
        lost_line: fn(u64) -> String,
    ) -> io::Result<Broadcaster> {
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            limits,
            lost_line,
            readers: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_ending: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let working = shared.clone();
        let thread = std::thread::Builder::new()
            .name("readers".to_owned())
            .spawn(move || thread::serve(&working, &listener))?;
        Ok(Broadcaster { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether anybody reads. If nobody does, there is no need to make lines.
    pub fn has_readers(&self) -> bool {
        !self.shared.readers().is_empty()
    }

    /// Gives `text`, `lines` whole lines, to all readers.
    pub fn publish(&self, text: &[u8], lines: u64) {
        let mut readers = self.shared.readers();
        if readers.is_empty() || text.is_empty() {
            return;
        }
        let chunk = Arc::new(Chunk::new(text.to_vec(), lines));
        let mut is_idle = false;
        for reader in readers.iter_mut() {
            is_idle |= reader.is_idle();
            if !reader.push(&chunk, self.shared.limits.backlog, self.shared.lost_line) {
                self.shared.lost.fetch_add(lines, Ordering::Relaxed);
            }
        }
        drop(readers);
        if is_idle {
            self.shared.wake();
        }
    }

    pub fn counts(&self) -> Counts {
        let readers = self.shared.readers().len() as u64;
        Counts {
            readers,
            refused: self.shared.refused.load(Ordering::Relaxed),
            sent: self.shared.sent.load(Ordering::Relaxed),
            lost: self.shared.lost.load(Ordering::Relaxed),
        }
    }

    /// Takes no more readers, and waits until those there have read all, but no longer than
    /// `within`. What they have not read by then is lost and counted.
    pub fn finish(&self, within: Duration) -> Counts {
        let until = Instant::now() + within;
        while Instant::now() < until && !self.shared.readers().iter().all(Reader::is_idle) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end();
        self.counts()
    }

    fn end(&self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has been reported by its hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Broadcaster {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn readers(&self) -> MutexGuard<'_, Vec<Reader>> {
        // Readers are whole between any two calls, so a panic elsewhere spoils nothing.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only if the counter of wake-ups is full; then the thread is awake.
        let _ = rustix::io::write(self.wake.as_fd(), &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests;
