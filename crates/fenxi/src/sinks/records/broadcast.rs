//! Lines to any number of readers of `records.socket`. Each has a bounded backlog of its own: one
//! that stalls loses lines, and nobody waits for it.
//!
//! A [`Broadcaster`] owns the thread that accepts readers and writes to them.
//! [`Broadcaster::publish`] never blocks on a reader. What readers send is not read.
//!
//! Readers share the memory of what they have not read yet. A reader that has lost lines is told
//! how many by a line of its own, at the place where they are missing.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::{SCHEMA_VERSION, WRITE_AT, WRITE_WITHIN};

/// Mode of the socket: records say who talked to whom, and the group of the service may read them,
/// as it may the file.
pub const SOCKET_MODE: u32 = 0o660;

pub const READERS: usize = 16;

/// How long the end of a run waits for readers that have not read all.
pub const READ_WITHIN: Duration = Duration::from_millis(250);

/// Pause when no connection can be taken, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub readers: u64,
    /// Readers that were turned away, because there were enough.
    pub refused: u64,
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
    readers_max: usize,
    backlog: usize,
    state: Mutex<State>,
    wake: OwnedFd,
    is_ending: AtomicBool,
}

#[derive(Default)]
struct State {
    readers: Vec<Reader>,
    counts: Counts,
}

impl Broadcaster {
    /// Starts to accept readers on `listener`, a bounded number at a time; each may be `backlog`
    /// bytes behind.
    pub fn start(
        listener: UnixListener,
        readers_max: usize,
        backlog: usize,
    ) -> io::Result<Broadcaster> {
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            readers_max,
            backlog,
            state: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_ending: AtomicBool::new(false),
        });
        let working = shared.clone();
        let thread = std::thread::Builder::new()
            .name("readers".to_owned())
            .spawn(move || working.serve(&listener))?;
        Ok(Broadcaster { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Gives `text`, `lines` whole lines, to all readers.
    pub fn publish(&self, text: &[u8], lines: u64) {
        let mut state = self.shared.state();
        if state.readers.is_empty() || text.is_empty() {
            return;
        }
        let chunk = Arc::new(Chunk { text: text.to_vec(), lines });
        let State { readers, counts } = &mut *state;
        let mut is_idle = false;
        for reader in readers {
            is_idle |= reader.is_idle();
            if !reader.push(&chunk, self.shared.backlog) {
                counts.lost += lines;
            }
        }
        drop(state);
        if is_idle {
            self.shared.wake();
        }
    }

    pub fn counts(&self) -> Counts {
        let state = self.shared.state();
        Counts { readers: state.readers.len() as u64, ..state.counts }
    }

    /// Takes no more readers, and waits until those there have read all, but no longer than
    /// `within`. What they have not read by then is lost and counted.
    pub fn finish(&self, within: Duration) -> Counts {
        let until = Instant::now() + within;
        while Instant::now() < until && !self.shared.state().readers.iter().all(Reader::is_idle) {
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
    fn state(&self) -> MutexGuard<'_, State> {
        // Readers are whole between any two calls, so a panic elsewhere spoils nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only if the counter of wake-ups is full; then the thread is awake.
        let _ = rustix::io::write(self.wake.as_fd(), &1_u64.to_ne_bytes());
    }

    fn serve(&self, listener: &UnixListener) {
        while !self.is_ending.load(Ordering::Acquire) {
            self.wait(listener);
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
            self.accept(listener);
            self.write();
        }
        let State { readers, counts } = &mut *self.state();
        counts.lost += readers.drain(..).map(|it| it.unread()).sum::<u64>();
    }

    /// Sleeps until something is to be done. The sockets are polled by copies, since readers are
    /// shared while this sleeps.
    fn wait(&self, listener: &UnixListener) {
        let copy =
            |reader: &Reader| Some((reader.as_fd().try_clone_to_owned().ok()?, reader.is_idle()));
        let readers: Vec<(OwnedFd, bool)> = self.state().readers.iter().filter_map(copy).collect();
        let mut polled = vec![
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        polled.extend(readers.iter().map(|(socket, is_idle)| {
            // That the reader is gone is reported in any case.
            let events = if *is_idle { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(socket.as_fd(), events)
        }));
        // A signal that interrupts it is no reason to stop.
        let _ = poll(&mut polled, None);
    }

    /// Takes all readers that wait; those beyond the bound are turned away.
    fn accept(&self, listener: &UnixListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    let mut state = self.state();
                    if state.readers.len() < self.readers_max {
                        state.readers.push(Reader::new(stream));
                    } else {
                        state.counts.refused += 1;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Writes to all readers what they take, and lets go of those that are gone.
    fn write(&self) {
        let State { readers, counts } = &mut *self.state();
        readers.retain_mut(|reader| {
            let written = reader.write();
            counts.sent += *written.as_ref().unwrap_or(&0);
            let is_there = written.is_ok() && !is_gone(reader);
            counts.lost += if is_there { 0 } else { reader.unread() };
            is_there
        });
    }
}

/// Whether the other end is closed, rather than only done with sending.
fn is_gone(reader: &Reader) -> bool {
    let mut polled = [PollFd::new(reader, PollFlags::empty())];
    let found = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    found.is_ok_and(|found| found > 0)
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Lines on their way to the readers, for the thread that writes records.
pub struct Stream {
    broadcaster: Arc<Broadcaster>,
    text: Vec<u8>,
    lines: u64,
    since: Option<Instant>,
}

impl Stream {
    pub fn new(broadcaster: Arc<Broadcaster>) -> Stream {
        Stream { broadcaster, text: Vec::with_capacity(2 * WRITE_AT), lines: 0, since: None }
    }

    /// Whether anybody reads. If nobody does, there is no need to make lines.
    pub fn has_readers(&self) -> bool {
        !self.broadcaster.shared.state().readers.is_empty()
    }

    /// Takes `text`, `lines` whole lines.
    pub fn push(&mut self, text: &[u8], lines: u64) {
        self.text.extend(text);
        self.lines += lines;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Gives the readers what there is, if it is much or old.
    pub fn publish_due(&mut self) {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= WRITE_WITHIN);
        if is_old || self.text.len() >= WRITE_AT {
            self.publish();
        }
    }

    pub fn publish(&mut self) {
        self.broadcaster.publish(&self.text, self.lines);
        self.text.clear();
        (self.lines, self.since) = (0, None);
    }
}

struct Chunk {
    text: Vec<u8>,
    lines: u64,
}

struct Reader {
    stream: UnixStream,
    backlog: VecDeque<Arc<Chunk>>,
    bytes: usize,
    /// Bytes of the first chunk that are written.
    written: usize,
    /// Lines lost since the reader was last told.
    lost: u64,
}

impl Reader {
    fn new(stream: UnixStream) -> Reader {
        Reader { stream, backlog: VecDeque::new(), bytes: 0, written: 0, lost: 0 }
    }

    fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Lines in the backlog, with one that is partly written.
    fn unread(&self) -> u64 {
        self.backlog.iter().map(|chunk| chunk.lines).sum()
    }

    /// Appends a chunk if there is room within the bound; returns whether there was. A line before
    /// it reports earlier losses.
    fn push(&mut self, chunk: &Arc<Chunk>, most: usize) -> bool {
        // A reader that has read all takes a chunk of any size.
        if !self.is_idle() && self.bytes + chunk.text.len() > most {
            self.lost += chunk.lines;
            return false;
        }
        if self.lost > 0 {
            let text = lost_line(std::mem::take(&mut self.lost)).into_bytes();
            self.bytes += text.len();
            self.backlog.push_back(Arc::new(Chunk { text, lines: 0 }));
        }
        self.bytes += chunk.text.len();
        self.backlog.push_back(chunk.clone());
        true
    }

    /// Writes what the socket takes now. Returns lines of the chunks that are written as a whole.
    fn write(&mut self) -> io::Result<u64> {
        let mut lines = 0;
        while let Some(chunk) = self.backlog.front() {
            let rest = &chunk.text[self.written..];
            match send(&self.stream, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => self.written += sent,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error.into()),
            }
            if self.written == chunk.text.len() {
                lines += chunk.lines;
                self.bytes -= chunk.text.len();
                self.written = 0;
                self.backlog.pop_front();
            }
        }
        Ok(lines)
    }
}

fn lost_line(records: u64) -> String {
    format!("{{\"type\":\"lost\",\"schema_version\":{SCHEMA_VERSION},\"records\":{records}}}\n")
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
