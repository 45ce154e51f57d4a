//! The same to any number of readers of a Unix socket: lines of records, frames of samples. Each
//! reader has a bounded backlog of its own: one that stalls loses whole chunks, and nobody waits
//! for it.
//!
//! A [`Broadcaster`] owns the thread that accepts readers and writes to them.
//! [`Broadcaster::publish`] never blocks on a reader.
//!
//! Readers share the memory of what they have not read yet. Before each chunk a reader may be told
//! how many items it has lost, at the place where they are missing.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::exit::Failure;
use crate::unix_socket::UnixSocket;

/// Mode of such sockets: the group of the service may connect.
const SOCKET_MODE: u32 = 0o660;

/// How long the end of a run waits for readers that have not read all.
pub const READ_WITHIN: Duration = Duration::from_millis(250);

/// Pause when no connection can be taken, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens at the path that `key` of the configuration names, if it names one.
pub fn bind(key: &str, path: Option<&Path>) -> Result<Option<Arc<UnixSocket>>, Failure> {
    let socket = path.map(|path| UnixSocket::bind(key, path, SOCKET_MODE)).transpose()?;
    Ok(socket.map(Arc::new))
}

/// Starts to serve such a socket, whose file is there as long as both are kept.
pub fn serve(
    key: &str,
    socket: &Arc<UnixSocket>,
    protocol: Protocol,
) -> Result<(Arc<Broadcaster>, Arc<UnixSocket>), Failure> {
    let listener = socket.listener.try_clone();
    let started = listener.and_then(|listener| Broadcaster::start(listener, protocol));
    match started {
        Ok(broadcaster) => Ok((Arc::new(broadcaster), socket.clone())),
        Err(error) => Err(Failure::unavailable(format!("{key}: cannot serve it: {error}"))),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub readers: u64,
    /// Readers that were turned away, because there were enough.
    pub refused: u64,
    /// Programs that may not read.
    pub strangers: u64,
    pub sent: u64,
    /// Items that a reader was too slow for, or left unread, summed over readers.
    pub lost: u64,
}

/// What is particular about a socket.
#[derive(Clone, Copy)]
pub struct Protocol {
    /// Name of the thread.
    pub thread: &'static str,
    pub readers_max: usize,
    /// Bytes that a reader may be behind.
    pub backlog: usize,
    /// Whether the program at the other end may read.
    pub admits: fn(&UnixStream) -> bool,
    /// A reader that sends something is let go; otherwise what it sends is not read.
    pub is_one_way: bool,
    /// What precedes a chunk, for a reader that has lost this number of items before it.
    pub before: fn(u64, &[u8]) -> Vec<u8>,
}

/// Gives chunks to readers while it lives.
pub struct Broadcaster {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread shares with those who publish.
struct Shared {
    protocol: Protocol,
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
    /// Starts to accept readers on `listener`, a bounded number at a time.
    pub fn start(listener: UnixListener, protocol: Protocol) -> io::Result<Broadcaster> {
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            protocol,
            state: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_ending: AtomicBool::new(false),
        });
        let working = shared.clone();
        let thread = std::thread::Builder::new()
            .name(protocol.thread.to_owned())
            .spawn(move || working.serve(&listener))?;
        Ok(Broadcaster { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether anybody reads. If nobody does, there is no need to make chunks.
    pub fn has_readers(&self) -> bool {
        !self.shared.state().readers.is_empty()
    }

    /// Gives a chunk of `items` items to all readers.
    pub fn publish(&self, text: &[u8], items: u64) {
        let mut state = self.shared.state();
        if state.readers.is_empty() || text.is_empty() {
            return;
        }
        let chunk = Arc::new(Chunk { text: text.to_vec(), items });
        let State { readers, counts } = &mut *state;
        let mut is_idle = false;
        for reader in readers {
            is_idle |= reader.is_idle();
            if !reader.push(&chunk, &self.shared.protocol) {
                counts.lost += items;
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
            let events = if *is_idle { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(socket.as_fd(), events | self.protocol.heard())
        }));
        // A signal that interrupts it is no reason to stop.
        let _ = poll(&mut polled, None);
    }

    /// Takes all readers that wait; those beyond the bound are turned away.
    fn accept(&self, listener: &UnixListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    let may_read = (self.protocol.admits)(&stream);
                    let mut state = self.state();
                    if !may_read {
                        state.counts.strangers += 1;
                    } else if state.readers.len() < self.protocol.readers_max {
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
            let is_there = written.is_ok() && !is_gone(reader, self.protocol.heard());
            counts.lost += if is_there { 0 } else { reader.unread() };
            is_there
        });
    }
}

impl Protocol {
    /// What is to be noticed of a reader. That it is gone is reported in any case.
    fn heard(&self) -> PollFlags {
        if self.is_one_way { PollFlags::IN } else { PollFlags::empty() }
    }
}

/// Whether the other end is closed, rather than only done with sending, or something else was
/// `heard` of it.
fn is_gone(reader: &Reader, heard: PollFlags) -> bool {
    let mut polled = [PollFd::new(reader, heard)];
    let found = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    found.is_ok_and(|found| found > 0)
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | heard)
}

struct Chunk {
    text: Vec<u8>,
    items: u64,
}

struct Reader {
    stream: UnixStream,
    backlog: VecDeque<Arc<Chunk>>,
    bytes: usize,
    /// Bytes of the first chunk that are written.
    written: usize,
    /// Items lost since the reader was last told.
    lost: u64,
}

impl Reader {
    fn new(stream: UnixStream) -> Reader {
        Reader { stream, backlog: VecDeque::new(), bytes: 0, written: 0, lost: 0 }
    }

    fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Items in the backlog, including a chunk that is partly written.
    fn unread(&self) -> u64 {
        self.backlog.iter().map(|chunk| chunk.items).sum()
    }

    /// Appends a chunk if there is room within the bound; returns whether there was.
    fn push(&mut self, chunk: &Arc<Chunk>, protocol: &Protocol) -> bool {
        // A reader that has read all takes a chunk of any size.
        if !self.is_idle() && self.bytes + chunk.text.len() > protocol.backlog {
            self.lost += chunk.items;
            return false;
        }
        let text = (protocol.before)(std::mem::take(&mut self.lost), &chunk.text);
        if !text.is_empty() {
            self.bytes += text.len();
            self.backlog.push_back(Arc::new(Chunk { text, items: 0 }));
        }
        self.bytes += chunk.text.len();
        self.backlog.push_back(chunk.clone());
        true
    }

    /// Writes what the socket takes now. Returns items of the chunks that are written as a whole.
    fn write(&mut self) -> io::Result<u64> {
        let mut items = 0;
        while let Some(chunk) = self.backlog.front() {
            let rest = &chunk.text[self.written..];
            match send(&self.stream, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => self.written += sent,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error.into()),
            }
            if self.written == chunk.text.len() {
                items += chunk.items;
                self.bytes -= chunk.text.len();
                self.written = 0;
                self.backlog.pop_front();
            }
        }
        Ok(items)
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
