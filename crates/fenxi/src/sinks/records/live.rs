//! A live run's records: whatever becomes of the file, the run goes on.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use tracing::{debug, info, warn};

use super::WRITE_WITHIN;
use super::lines::Lines;
use super::output::Output;
use super::stream::Stream;
use super::topic::Topic;
use crate::exit::Failure;
use crate::sinks::Answer;
use crate::sinks::queue::{Drain, Queued, RecordCounts, receive};

/// Bytes of lines kept while they cannot be written.
const KEPT_MAX: usize = 1024 * 1024;

/// Between two tries.
const RETRY_EVERY: Duration = Duration::from_secs(1);

pub struct Live {
    pub output: Option<Output>,
    pub stream: Option<Stream>,
    pub topic: Option<Arc<Topic>>,
    pub lines: Lines,
    pub counts: Arc<RecordCounts>,
    pub drain: Arc<Drain>,
    pub trouble: Option<Trouble>,
}

/// Writing has failed and has not succeeded since.
pub struct Trouble {
    error: io::Error,
    retry: Instant,
    failed_before: u64,
}

impl Live {
    /// Writes until there will be no more records, and then what is left; or until the time for
    /// that is over, and then what it holds.
    pub fn run(
        mut self,
        records: &Receiver<Queued>,
        commands: &Receiver<Answer>,
    ) -> Result<(), Failure> {
        loop {
            match receive(records, WRITE_WITHIN) {
                Ok(queued) => self.take(&queued),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
            if let Ok(answer) = commands.try_recv() {
                let reopened = self.reopen();
                for answer in commands.try_iter() {
                    answer(reopened.clone());
                }
                answer(reopened);
            }
            if self.drain.is_over() {
                self.counts.fail(records.try_iter().count() as u64);
                return self.end();
            }
            let is_due = match &self.trouble {
                Some(trouble) => Instant::now() >= trouble.retry,
                None => self.lines.is_due(),
            };
            if is_due {
                self.write();
            }
            if let Some(stream) = &mut self.stream {
                stream.publish_due();
            }
        }
    }

    fn take(&mut self, queued: &Queued) {
        let has_readers = self.stream.as_ref().is_some_and(Stream::has_readers);
        if self.output.is_none() && self.topic.is_none() && !has_readers {
            self.lines.leave_out(&queued.record);
            return;
        }
        let (bytes, count) = (self.lines.bytes.len(), self.lines.count);
        if self.lines.push(queued).is_err() {
            self.counts.fail(1);
            return;
        }
        let text = &self.lines.bytes[bytes..];
        let (length, lines) = (text.len(), self.lines.count - count);
        if let Some(stream) = self.stream.as_mut().filter(|_| has_readers) {
            stream.push(text, lines);
        }
        if let Some(topic) = &self.topic {
            // A topic keeps the order of messages with one key only.
            let key = queued.record.flow().map(|flow| flow.flow_id.to_string()).unwrap_or_default();
            let messages = text.split(|byte| *byte == b'\n');
            for message in messages.filter(|message| !message.is_empty()) {
                topic.send(key.as_bytes(), message, 1);
            }
        }
        let is_full = bytes >= KEPT_MAX;
        if self.output.is_none() || is_full {
            self.lines.take_back(length, lines);
        }
        if is_full {
            self.counts.fail(lines);
        }
        self.counts.hold(self.lines.count);
    }

    fn write(&mut self) {
        let Some(output) = &mut self.output else {
            return;
        };
        let result = output.write(&mut self.lines);
        self.counts.write(self.lines.take_written(), self.lines.count);
        let name = &output.name;
        match (result, self.trouble.take()) {
            (Ok(()), None) => {}
            (Ok(()), Some(trouble)) => {
                let dropped = self.counts.failed() - trouble.failed_before;
                info!("{name}: writing records again; {dropped} were dropped meanwhile");
            }
            (Err(error), trouble) => {
                let failed_before = match trouble {
                    Some(trouble) => trouble.failed_before,
                    None => {
                        warn!("{name}: cannot write records: {error}; retrying every second");
                        self.counts.failed()
                    }
                };
                self.trouble =
                    Some(Trouble { error, retry: Instant::now() + RETRY_EVERY, failed_before });
            }
        }
    }

    /// What was taken so far belongs to the old file; what cannot be written to it goes to the new
    /// one.
    fn reopen(&mut self) -> Result<(), String> {
        self.write();
        let Some(output) = &mut self.output else {
            return Ok(());
        };
        let name = output.name.clone();
        match output.reopen() {
            Ok(()) => {
                info!("{name}: reopened");
                // Another file may be on another disk.
                if let Some(trouble) = &mut self.trouble {
                    trouble.retry = Instant::now();
                }
                Ok(())
            }
            Err(error) => {
                warn!("{name}: cannot be reopened: {error}; records continue in the old file");
                Err(format!("{name}: cannot be reopened: {error}"))
            }
        }
    }

    fn end(mut self) -> Result<(), Failure> {
        self.write();
        if let Some(stream) = &mut self.stream {
            stream.publish();
        }
        let name = self.output.as_ref().map_or("records", |output| &output.name);
        debug!("{name}: {} records written", self.counts.written());
        let Some(trouble) = self.trouble else {
            return Ok(());
        };
        let lost = self.lines.count;
        self.counts.fail(lost);
        self.counts.hold(0);
        warn!("{name}: {lost} records are lost");
        Err(Failure::writing(name, &trouble.error))
    }
}
