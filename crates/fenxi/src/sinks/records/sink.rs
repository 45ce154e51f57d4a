//! The thread that writes records.
//!
//! A replay ends where writing breaks off. A live run goes on: what cannot be written is kept, up
//! to a bound, and tried again every second; what comes beyond the bound is dropped and counted. A
//! reader that takes nothing holds up this thread, then fills the queue, and is never felt in front
//! of it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::WRITE_WITHIN;
use super::lines::Lines;
use super::live::Live;
use super::output::Output;
use super::stream::Stream;
use super::topic::Topic;
use crate::exit::Failure;
use crate::sinks::ReplayStart;
use crate::sinks::queue::{Drain, Queued, RecordCounts, RecordSender, WritingThread};
use crate::sinks::reopen::Reopener;
use config::checked::Records;

pub struct RecordSink {
    thread: WritingThread,
    counts: Arc<RecordCounts>,
    /// Live only.
    reopener: Option<Reopener>,
}

/// Where the lines of a live run go, at least one of them.
pub struct Places<'a> {
    /// A file; `-`: standard output.
    pub path: Option<&'a Path>,
    /// The readers of `records.socket`.
    pub stream: Option<Stream>,
    /// A topic of Kafka.
    pub topic: Option<Arc<Topic>>,
}

impl RecordSink {
    /// For a replay: creates `output` (`-`: standard output) and starts the thread. `replay` says
    /// what a full queue does, and what is stopped when writing breaks off.
    pub fn start(
        output: &Path,
        queue_length: usize,
        lines: Lines,
        replay: &ReplayStart,
    ) -> Result<(RecordSink, RecordSender), Failure> {
        let mut output =
            Output::create(output).map_err(|error| Failure::creating(output, &error))?;
        let counts = Arc::new(RecordCounts::default());
        let (sender, records) = RecordSender::new(queue_length, Some(replay), None, counts.clone());
        let (run, shared, name) =
            (replay.stopped.clone(), counts.clone(), output.name().to_owned());
        let work = move |records: &Receiver<Queued>| {
            let mut lines = lines;
            let written = write_all(records, &mut output, &mut lines, &shared);
            written.map_err(|error| {
                if let Some(run) = &run {
                    run.stop();
                }
                records.iter().for_each(drop);
                Failure::writing(output.name(), &error)
            })
        };
        let thread = WritingThread::start(("records", &name), records, counts.clone(), None, work)?;
        let sink = RecordSink { thread, counts, reopener: None };
        Ok((sink, sender))
    }

    /// For a live run: opens the file (`-`: standard output) behind what is there and starts the
    /// thread.
    pub fn start_live(
        to: Places<'_>,
        config: &Records,
        lines: Lines,
    ) -> Result<(RecordSink, RecordSender), Failure> {
        let open = |path: &Path| {
            let opened = Output::append(path, config.rotate());
            opened.map_err(|error| Failure::creating(path, &error))
        };
        let output = to.path.map(open).transpose()?;
        let name = match &output {
            Some(output) => output.name(),
            None if to.stream.is_some() => "records.socket",
            None => "kafka.brokers",
        };
        let name = name.to_owned();
        let counts = Arc::new(RecordCounts::default());
        let drain = Arc::new(Drain::new(config.drain_within));
        let (sender, records) =
            RecordSender::new(config.queue, None, Some(drain.clone()), counts.clone());
        let (reopener, commands) = Reopener::new();
        let reopener = output.is_some().then_some(reopener);
        let live = Live::new(output, to.stream, to.topic, lines, counts.clone(), drain.clone());
        let work = move |records: &Receiver<Queued>| live.run(records, &commands);
        let thread =
            WritingThread::start(("records", &name), records, counts.clone(), Some(drain), work)?;
        let sink = RecordSink { thread, counts, reopener };
        Ok((sink, sender))
    }

    pub fn counts(&self) -> Arc<RecordCounts> {
        self.counts.clone()
    }

    /// Takes requests to reopen the file; `None` in a replay.
    pub fn reopener(&self) -> Option<Reopener> {
        self.reopener.clone()
    }

    pub fn finish(self) -> Result<(), Failure> {
        self.thread.finish()
    }
}

/// A replay's records, until there are no more or one cannot be written.
fn write_all(
    records: &Receiver<Queued>,
    output: &mut Output,
    lines: &mut Lines,
    counts: &RecordCounts,
) -> io::Result<()> {
    loop {
        let is_over = match records.recv_timeout(WRITE_WITHIN) {
            Ok(queued) => {
                lines.push(&queued)?;
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if is_over || lines.is_due() {
            let result = output.write(lines);
            counts.write(lines.take_written(), lines.count());
            result?;
        }
        if is_over {
            return Ok(());
        }
    }
}
