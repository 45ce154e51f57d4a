//! Marks on their way to the kernel: what the writer of connections writes for each class.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netfilter::connections::{self, Wording};
use netfilter::conntrack::Change;
use netfilter::counts::Counts;
use netfilter::writer::StartError;
use policy::Mark;

use super::classes::ClassMarks;

const WORDING: Wording = Wording { doing: "marking connections", what: "connection marks" };

/// Changes nothing.
const NOTHING: Change = Change::Mark { bits: 0, mask: 0 };

/// Writes marks while it lives. Shared by reference; when it is dropped, what waits is still
/// written.
pub struct Writer {
    writer: Arc<netfilter::writer::Writer>,
    /// Whether marks that are there give way.
    overwrites: Arc<AtomicBool>,
}

impl Writer {
    /// Opens the socket in the network namespace of the calling thread, makes sure that the kernel
    /// takes marks from us, and starts the thread. `queue_length` updates may wait for it.
    ///
    /// # Errors
    /// The capability, the kernel's part or a thread is not to be had.
    pub fn start(marks: ClassMarks, queue_length: usize) -> Result<Writer, StartError> {
        let socket = connections::open(NOTHING, WORDING)?;
        let overwrites = Arc::new(AtomicBool::new(marks.overwrites()));
        let write = connections::writer(socket, overwrites.clone(), |word| {
            Mark::of_word(word).map_or(NOTHING, |Mark { bits, mask }| Change::Mark { bits, mask })
        });
        let writer = netfilter::writer::Writer::start("marks", marks.words(), queue_length, write)?;
        Ok(Writer { writer: Arc::new(writer), overwrites })
    }

    /// The writer of words, for flow workers. A class without a mark leaves its connections as they
    /// are, and so does a mark that is there, unless [`ClassMarks::overwrites`].
    pub fn shared(&self) -> &Arc<netfilter::writer::Writer> {
        &self.writer
    }

    /// From now on labels get these marks; they are of the same classes. Those that wait keep
    /// theirs, and connections that have one keep it.
    pub fn change(&self, marks: &ClassMarks) {
        self.writer.change(marks.words());
        self.overwrites.store(marks.overwrites(), Ordering::Relaxed);
    }

    /// What became of the updates so far. Those asked for a class with a mark are written, kept,
    /// not found, failed, dropped or waiting.
    pub fn counts(&self) -> Counts {
        self.writer.counts()
    }
}

/// Whether the kernel takes marks from us, in the network namespace of the calling thread.
///
/// # Errors
/// The capability or the kernel's part is not to be had.
pub fn probe() -> Result<(), StartError> {
    connections::open(NOTHING, WORDING).map(drop)
}
