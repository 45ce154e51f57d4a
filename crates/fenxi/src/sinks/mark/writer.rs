//! The thread that writes marks, behind a bounded queue.
//!
//! Whoever learns of a label hands the flow over and goes on: a full queue drops the update and
//! counts it. The thread takes what waits, up to a batch, and writes it in at most two sends: every
//! tuple as the flow has it, then those that no connection has the other way round. These two are
//! all there is to try. Before that it asks for the marks that the connections have, in the same two
//! ways, and leaves those that have one: whoever set it, or fenxi before a restart, knew the
//! connection from its beginning or decides otherwise on purpose. Between the question and the write
//! lies less than a millisecond, in which nobody but a rule could come between. Conntrack keeps each connection by two tuples, that of its first packet as it
//! came in and that of an answer as it will come in, and looks both up at once. A packet seen on
//! any interface, before or after NAT, has one of these or the reverse of one.
//!
//! Which class has which bits may change under way: they stand in one atomic word for each class, so
//! that whoever hands over a flow neither waits for a change nor sees half of one.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use netfilter::conntrack::{Change, Tuple};
use netfilter::socket::{BATCH, Outcome, Request, Socket};
use policy::Mark;

use super::classes::ClassMarks;
use super::counts::Counts;
use super::memory::Memory;

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
    #[error("cannot start the marks thread: {0}")]
    Thread(io::Error),
}

/// A label on its way to the kernel.
struct Update {
    tuple: Tuple,
    change: Change,
    asked: Instant,
    /// A connection has the tuple, and no mark.
    is_found: bool,
}

/// Writes marks while it lives. Shared by reference; when it is dropped, what waits is still
/// written.
pub struct Writer {
    /// By class, as [`Mark::to_word`] has them.
    marks: Box<[AtomicU64]>,
    /// Whether marks that are there give way.
    overwrites: Arc<AtomicBool>,
    /// `None` only while dropping, which ends the thread.
    queue: Option<Sender<Update>>,
    thread: Option<JoinHandle<()>>,
    asked: AtomicU64,
    dropped: AtomicU64,
    counts: Arc<Mutex<Counts>>,
    memory: Arc<Memory>,
}

impl Writer {
    /// Opens the socket in the network namespace of the calling thread, makes sure that the kernel
    /// takes marks from us, and starts the thread. `queue_length` updates may wait for it.
    ///
    /// # Errors
    /// The capability, the kernel's part or a thread is not to be had.
    pub fn start(marks: ClassMarks, queue_length: usize) -> Result<Writer, StartError> {
        let socket = open()?;
        let (sender, receiver) = bounded(queue_length);
        let counts = Arc::new(Mutex::new(Counts::none()));
        let shared = Arc::clone(&counts);
        let memory = Arc::new(Memory::default());
        let remembered = Arc::clone(&memory);
        let overwrites = Arc::new(AtomicBool::new(marks.overwrites()));
        let setting = Arc::clone(&overwrites);
        let thread = std::thread::Builder::new()
            .name("marks".to_owned())
            .spawn(move || write_all(&receiver, socket, &setting, &shared, remembered))
            .map_err(StartError::Thread)?;
        Ok(Writer {
            marks: marks.words().map(AtomicU64::new).collect(),
            overwrites,
            queue: Some(sender),
            thread: Some(thread),
            asked: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            counts,
            memory,
        })
    }

    /// Asks for the mark of `class` on the connection that packets of `tuple` belong to, and returns
    /// at once. A class without a mark leaves the connection as it is, and so does a mark that is there,
    /// unless [`ClassMarks::overwrites`].
    pub fn set(&self, tuple: Tuple, class: u16) {
        let word = self.marks.get(usize::from(class));
        let mark = word.and_then(|word| Mark::of_word(word.load(Ordering::Relaxed)));
        let (Some(mark), Some(queue)) = (mark, &self.queue) else {
            return;
        };
        // Before its fate, so that whoever reads the fates first finds no more of them than were asked for.
        self.asked.fetch_add(1, Ordering::Relaxed);
        let asked = Instant::now();
        let update = Update {
            tuple,
            change: change(mark),
            asked,
            is_found: false,
        };
        if queue.try_send(update).is_err() {
            self.dropped.fetch_add(1, Ordering::Release);
        }
    }

    /// From now on labels get these marks; they are of the same classes. Those that wait keep theirs, and connections that
    /// have one keep it.
    pub fn change(&self, marks: &ClassMarks) {
        for (mark, word) in self.marks.iter().zip(marks.words()) {
            mark.store(word, Ordering::Relaxed);
        }
        self.overwrites.store(marks.overwrites(), Ordering::Relaxed);
    }

    /// The mark of a class; `None`: its connections stay as they are.
    pub fn mark_of(&self, class: u16) -> Option<Mark> {
        let word = self.marks.get(usize::from(class))?;
        Mark::of_word(word.load(Ordering::Relaxed))
    }

    /// What became of the latest marks, flow by flow.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What became of the updates so far. Those asked for a class with a mark are written, kept, not
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
pub fn probe() -> Result<(), StartError> {
    open().map(drop)
}

fn change(Mark { bits, mask }: Mark) -> Change {
    Change::Mark { bits, mask }
}

/// A socket by which marks can be written.
fn open() -> Result<Socket, StartError> {
    let mut socket = Socket::open().map_err(StartError::Kernel)?;
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
    let change = Change::Mark { bits: 0, mask: 0 };
    socket.update(&[(tuple, change)], &mut outcomes);
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

fn write_all(
    queue: &Receiver<Update>,
    socket: Socket,
    overwrites: &AtomicBool,
    counts: &Mutex<Counts>,
    memory: Arc<Memory>,
) {
    let mut rounds = Rounds {
        socket,
        memory,
        asked_for: Vec::with_capacity(BATCH),
        requests: Vec::with_capacity(BATCH),
        outcomes: Vec::with_capacity(BATCH),
    };
    let mut batch = Vec::with_capacity(BATCH);
    while let Ok(first) = queue.recv() {
        batch.push(first);
        batch.extend(queue.try_iter().take(BATCH - 1));
        if !overwrites.load(Ordering::Relaxed) {
            rounds.keep(&mut batch, counts);
        }
        rounds.write(&mut batch, counts);
    }
}

/// The sends of a batch, and their buffers.
struct Rounds {
    socket: Socket,
    memory: Arc<Memory>,
    requests: Vec<Request>,
    outcomes: Vec<Outcome>,
    /// Numbers of the connections of a batch that have no mark yet.
    asked_for: Vec<u32>,
}

impl Rounds {
    /// Takes out of a batch the updates of connections that have a mark, or that an update before it gives one, and those
    /// that fail. What is left has the tuple by which its connection was found.
    fn keep(&mut self, batch: &mut Vec<Update>, counts: &Mutex<Counts>) {
        self.asked_for.clear();
        for is_last in [false, true] {
            self.requests.clear();
            let open = batch.iter().filter(|update| !update.is_found);
            self.requests
                .extend(open.map(|update| (update.tuple, update.change)));
            if self.requests.is_empty() {
                return;
            }
            self.socket.query(&self.requests, &mut self.outcomes);
            let now = Instant::now();
            let mut counts = lock(counts);
            let mut outcomes = self.outcomes.iter();
            let (asked_for, memory) = (&mut self.asked_for, &self.memory);
            batch.retain_mut(|update| {
                if update.is_found {
                    return true;
                }
                match outcomes.next().copied().unwrap_or(Outcome::Unanswered) {
                    Outcome::NotFound if !is_last => {
                        update.tuple = update.tuple.reversed();
                        true
                    }
                    Outcome::Found(connection)
                        if !connection.is_changed_by(&update.change)
                            && !asked_for.contains(&connection.id) =>
                    {
                        asked_for.push(connection.id);
                        update.is_found = true;
                        true
                    }
                    outcome => {
                        counts.add(outcome, now.duration_since(update.asked));
                        memory.note(update.tuple, update.change, outcome);
                        false
                    }
                }
            });
        }
    }

    /// Writes a batch and leaves it empty.
    fn write(&mut self, batch: &mut Vec<Update>, counts: &Mutex<Counts>) {
        for is_last in [false, true] {
            if batch.is_empty() {
                return;
            }
            self.requests.clear();
            self.requests
                .extend(batch.iter().map(|update| (update.tuple, update.change)));
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
                self.memory.note(update.tuple, update.change, outcome);
                false
            });
        }
    }
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    // Counts are whole between any two statements, so a panic elsewhere spoils nothing.
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
