//! The thread that writes records, behind a bounded queue.
//!
//! The packet path hands over records and never formats or writes one. In a
//! replay a full queue waits; in a paced one, as live, the newest record is
//! dropped and counted.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use flowmgr::record::Record;

use super::write_line;
use crate::cli::is_dash;
use crate::exit::Failure;

/// A quiet moment after which what was written is flushed, for those who follow
/// the file.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// The packet path's end of the queue.
pub struct RecordSender {
    /// `None`: nobody asked for records.
    queue: Option<Sender<Record>>,
    waits: bool,
    dropped: u64,
}

impl RecordSender {
    /// A sender whose records nobody wants.
    pub fn nobody() -> RecordSender {
        RecordSender {
            queue: None,
            waits: true,
            dropped: 0,
        }
    }

    /// A sender to the same queue, for another thread.
    pub fn another(&self) -> RecordSender {
        RecordSender {
            queue: self.queue.clone(),
            waits: self.waits,
            dropped: 0,
        }
    }

    /// Whether anybody asked for records.
    pub fn is_wanted(&self) -> bool {
        self.queue.is_some()
    }

    /// Hands a record over.
    pub fn send(&mut self, record: Record) {
        let Some(queue) = &self.queue else {
            return;
        };
        // The thread reads to the end even after an error, so a send can only
        // fail for want of room.
        if self.waits {
            let _ = queue.send(record);
        } else if let Err(TrySendError::Full(_)) = queue.try_send(record) {
            self.dropped += 1;
        }
    }

    /// Records that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The writing thread.
pub struct RecordSink {
    thread: JoinHandle<Result<(), Failure>>,
}

impl RecordSink {
    /// Creates `output` (`-`: standard output) and starts the thread. `waits` says
    /// what a full queue does; `stop` is raised when writing breaks off, if the rest of the replay
    /// is of no use then.
    ///
    /// # Errors
    /// The output cannot be created.
    pub fn start(
        output: &Path,
        classes: Arc<[String]>,
        queue_length: usize,
        waits: bool,
        stop: Option<Arc<AtomicBool>>,
    ) -> Result<(RecordSink, RecordSender), Failure> {
        let (name, out): (String, Box<dyn Write + Send>) = if is_dash(output) {
            ("stdout".to_owned(), Box::new(io::stdout()))
        } else {
            let file = File::create(output).map_err(|error| Failure::creating(output, &error))?;
            (output.display().to_string(), Box::new(file))
        };
        let (sender, receiver) = bounded(queue_length);
        let thread = std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || {
                let written = write_all(&receiver, &classes, BufWriter::new(out));
                written.map_err(|error| {
                    if let Some(stop) = &stop {
                        stop.store(true, Ordering::Relaxed);
                    }
                    receiver.iter().for_each(drop);
                    Failure::writing(&name, &error)
                })
            })
            .map_err(|error| Failure::unavailable(format!("no thread for records: {error}")))?;
        let sender = RecordSender {
            queue: Some(sender),
            waits,
            dropped: 0,
        };
        Ok((RecordSink { thread }, sender))
    }

    /// Waits until everything is written. All senders must be gone.
    ///
    /// # Errors
    /// Writing broke off.
    pub fn finish(self) -> Result<(), Failure> {
        let died = |_| Failure::software("the record writer died");
        self.thread.join().map_err(died)?
    }
}

fn write_all(
    records: &Receiver<Record>,
    classes: &[String],
    mut out: BufWriter<Box<dyn Write + Send>>,
) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let record = match records.recv_timeout(FLUSH_AFTER) {
            Ok(record) => record,
            Err(RecvTimeoutError::Timeout) => {
                out.flush()?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return out.flush(),
        };
        line.clear();
        write_line(&record, classes, &mut line)?;
        out.write_all(&line)?;
    }
}
