//! The thread that writes marks, behind a bounded queue.
//!
//! Whoever learns of a label hands the flow over and goes on: a full queue drops the update and
//! counts it. The thread takes what waits, up to a batch, and writes it in at most two sends: every
//! tuple as the flow has it, then those that no connection has the other way round. These two are
//! all there is to try. Conntrack keeps each connection by two tuples, that of its first packet as it
//! came in and that of an answer as it will come in, and looks both up at once. A packet seen on
//! any interface, before or after NAT, has one of these or the reverse of one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::classes::ClassMarks;
use super::counts::Counts;
use super::message::Tuple;
use super::socket::{BATCH, Outcome, Request, Socket};

/// Why marks cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The capability is missing.
    #[error(
        "marking connections needs CAP_NET_ADMIN; give it by `setcap cap_net_admin,cap_net_raw+ep` on the program or \
         AmbientCapabilities=CAP_NET_ADMIN in the unit"
    )]
    Capability,
    /// The kernel has no ctnetlink.
    #[error(
        "this kernel takes no connection marks over netlink ({0}); load the module nf_conntrack_netlink"
    )]
    Kernel(io::Error),
    /// No thread.
    #[error("no thread to write marks: {0}")]
    Thread(io::Error),
}

/// A label on its way to the kernel.
struct Update {
    tuple: Tuple,
    mark: u32,
    asked: Instant,
}

/// Writes marks while it lives. Shared by reference; when it is dropped, what waits is still
/// written.
pub struct Writer {
    marks: ClassMarks,
    /// `None` only while dropping, which ends the thread.
    queue: Option<Sender<Update>>,
    thread: Option<JoinHandle<()>>,
    asked: AtomicU64,
    dropped: AtomicU64,
    counts: Arc<Mutex<Counts>>,
}

impl Writer {
    /// Opens the socket in the network namespace of the calling thread, makes sure that the kernel
    /// takes marks from us, and starts the thread. `queue_length` updates may wait for it.
    ///
    /// # Errors
    /// The capability, the kernel's part or a thread is not to be had.
    pub fn start(marks: ClassMarks, queue_length: usize) -> Result<Writer, StartError> {
        let socket = open(marks.mask())?;
        let (sender, receiver) = bounded(queue_length);
        let counts = Arc::new(Mutex::new(Counts::none()));
        let shared = Arc::clone(&counts);
        let thread = std::thread::Builder::new()
            .name("marks".to_owned())
            .spawn(move || write_all(&receiver, socket, &shared))
            .map_err(StartError::Thread)?;
        Ok(Writer {
            marks,
            queue: Some(sender),
            thread: Some(thread),
            asked: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            counts,
        })
    }

    /// Asks for the mark of `class` on the connection that packets of `tuple` belong to, and returns
    /// at once. A class without a mark leaves the connection as it is.
    pub fn set(&self, tuple: Tuple, class: u16) {
        let (Some(mark), Some(queue)) = (self.marks.of(class), &self.queue) else {
            return;
        };
        // Before its fate, so that whoever reads the fates first finds no more of them than were asked for.
        self.asked.fetch_add(1, Ordering::Relaxed);
        let asked = Instant::now();
        if queue.try_send(Update { tuple, mark, asked }).is_err() {
            self.dropped.fetch_add(1, Ordering::Release);
        }
    }

    /// What became of the updates so far. Those asked for a class with a mark are written, not
    /// found, failed, dropped or waiting.
    pub fn counts(&self) -> Counts {
        let mut counts = lock(&self.counts).clone();
        counts.dropped = self.dropped.load(Ordering::Acquire);
        counts.asked = self.asked.load(Ordering::Relaxed);
        counts
    }

    /// Updates that have met no fate yet.
    pub fn waiting(&self) -> usize {
        usize::try_from(self.counts().waiting()).unwrap_or(0)
    }

    /// The most that can be: in the queue, and in the thread's hands.
    pub fn room(&self) -> usize {
        let queue = self.queue.as_ref().and_then(Sender::capacity);
        queue.unwrap_or(0) + BATCH
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// Whether the kernel takes marks from us, in the network namespace of the calling thread.
///
/// # Errors
/// The capability or the kernel's part is not to be had.
pub fn probe(mask: u32) -> Result<(), StartError> {
    open(mask).map(drop)
}

/// A socket by which marks can be written.
fn open(mask: u32) -> Result<Socket, StartError> {
    let mut socket = Socket::open(mask).map_err(StartError::Kernel)?;
    try_out(&mut socket)?;
    Ok(socket)
}

/// Asks for a change to a connection that cannot be: "not found" says that all others are possible.
fn try_out(socket: &mut Socket) -> Result<(), StartError> {
    let nowhere = (std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    let tuple = Tuple {
        protocol: 17,
        source: nowhere,
        destination: nowhere,
    };
    let mut outcomes = Vec::new();
    socket.update(&[(tuple, 0)], &mut outcomes);
    match outcomes[..] {
        [Outcome::NotFound | Outcome::Written] => Ok(()),
        [Outcome::Refused(errno)] => {
            let error = io::Error::from_raw_os_error(errno);
            Err(match error.kind() {
                io::ErrorKind::PermissionDenied => StartError::Capability,
                _ => StartError::Kernel(error),
            })
        }
        _ => Err(StartError::Kernel(io::Error::other("no answer"))),
    }
}

fn write_all(queue: &Receiver<Update>, socket: Socket, counts: &Mutex<Counts>) {
    let mut rounds = Rounds {
        socket,
        requests: Vec::with_capacity(BATCH),
        outcomes: Vec::with_capacity(BATCH),
    };
    let mut batch = Vec::with_capacity(BATCH);
    while let Ok(first) = queue.recv() {
        batch.push(first);
        batch.extend(queue.try_iter().take(BATCH - 1));
        rounds.write(&mut batch, counts);
    }
}

/// The sends of a batch, and their buffers.
struct Rounds {
    socket: Socket,
    requests: Vec<Request>,
    outcomes: Vec<Outcome>,
}

impl Rounds {
    /// Writes a batch and leaves it empty.
    fn write(&mut self, batch: &mut Vec<Update>, counts: &Mutex<Counts>) {
        for is_last in [false, true] {
            if batch.is_empty() {
                return;
            }
            self.requests.clear();
            self.requests
                .extend(batch.iter().map(|update| (update.tuple, update.mark)));
            self.socket.update(&self.requests, &mut self.outcomes);
            let now = Instant::now();
            let mut counts = lock(counts);
            let mut outcomes = self.outcomes.iter();
            batch.retain_mut(|update| {
                let outcome = outcomes.next().copied().unwrap_or(Outcome::Unanswered);
                if outcome == Outcome::NotFound && !is_last {
                    update.tuple = update.tuple.reversed();
                    return true;
                }
                counts.add(outcome, now.duration_since(update.asked));
                false
            });
        }
    }
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    // Counts are whole between any two statements, so a panic elsewhere spoils nothing.
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
