//! The thread that exports: records from the queue, messages to the collector.
//!
//! While there is no session, a live run leaves records in the queue, where they wait for the
//! collector; once it is full, flow workers drop the newest and count them. So memory is bounded,
//! and the flow workers never wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use flowmgr::record::Record;
use ipfix::{Encoder, Message};
use tracing::{info, warn};

use super::connection::Connection;
use super::flows::Flows;
use super::{Destination, IpfixKeys};
use crate::exit::Failure;
use crate::sinks::Answer;
use crate::sinks::queue::{Drain, Queued, RecordCounts, receive};

/// A message is sent at latest so long after its first record.
const SEND_WITHIN: Duration = Duration::from_millis(250);
/// Bytes of a message: fits an Ethernet frame with IPv6 and UDP headers, and a VLAN tag or a
/// tunnel.
const MESSAGE_MAX: usize = 1400;
/// Between two tries to reach a collector: the first, and the longest after doubling.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often a thread without a session looks whether the run ends.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub struct ExportCounts {
    pub records: Arc<RecordCounts>,
    pub messages: AtomicU64,
    pub sessions: AtomicU64,
    pub is_connected: AtomicBool,
}

pub struct Exporter {
    pub to: Destination,
    template_every: Duration,
    flows: Flows,
    encoder: Encoder,
    counts: Arc<ExportCounts>,
    /// The session, where there is one.
    connection: Option<Connection>,
    /// When the session's templates were last sent; `None`: not yet.
    templates_at: Option<Instant>,
    trouble: Option<Trouble>,
    /// Time of the latest packet in a record, which is the time of export of a replay; `None`:
    /// live.
    packet_s: Option<u32>,
    /// When the message that is being made was begun.
    since: Option<Instant>,
}

/// There is no session, and why.
struct Trouble {
    error: io::Error,
    retry_at: Instant,
    wait: Duration,
    failed_before: u64,
    dropped_before: u64,
}

impl Exporter {
    pub fn new(
        to: Destination,
        config: &IpfixKeys,
        flows: Flows,
        is_measured: bool,
        is_replay: bool,
        counts: Arc<ExportCounts>,
    ) -> Exporter {
        Exporter {
            to,
            template_every: config.template_every,
            flows,
            encoder: Encoder::new(config.domain, MESSAGE_MAX, is_measured),
            counts,
            connection: None,
            templates_at: None,
            trouble: None,
            packet_s: is_replay.then_some(0),
            since: None,
        }
    }

    /// Begins a session: templates first.
    pub fn connect(&mut self) -> io::Result<()> {
        self.encoder.restart();
        self.since = None;
        let connection = Connection::open(&self.to, self.packet_s.is_some())?;
        (self.connection, self.templates_at) = (Some(connection), None);
        // A replay does not know yet what time it is.
        if self.packet_s.is_none() {
            let begun = self.send_templates();
            let confirm = |connection: &Connection| connection.confirm();
            let begun = begun.and_then(|()| self.connection.as_ref().map_or(Ok(()), confirm));
            begun.inspect_err(|_| self.connection = None)?;
        }
        self.counts.sessions.fetch_add(1, Ordering::Relaxed);
        self.counts.is_connected.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A replay's records, until there are no more or one cannot be sent.
    pub fn replay(&mut self, records: &Receiver<Queued>) -> io::Result<()> {
        for queued in records {
            self.take(&queued.record)?;
        }
        // There may have been no record.
        self.send_first_templates()?;
        self.flush()
    }

    fn send_first_templates(&mut self) -> io::Result<()> {
        match self.connection.is_some() && self.templates_at.is_none() {
            true => self.send_templates(),
            false => Ok(()),
        }
    }

    /// Exports until there are no more records, or until the time that the end of the run gives is
    /// over.
    pub fn run(
        mut self,
        records: &Receiver<Queued>,
        commands: &Receiver<Answer>,
        drain: &Drain,
    ) -> Result<(), Failure> {
        loop {
            if let Ok(answer) = commands.try_recv() {
                answer(self.reopen());
            }
            if drain.is_over() {
                self.counts.records.fail(records.try_iter().count() as u64);
                return self.end();
            }
            if self.connection.is_none() {
                if has_ended(records, &self.counts.records) {
                    return self.end();
                }
                self.reconnect();
                continue;
            }
            let done = match receive(records, SEND_WITHIN) {
                Ok(queued) => self.take(&queued.record),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    let done = self.flush();
                    self.notice(done);
                    return self.end();
                }
            };
            let done = done.and_then(|()| self.send_what_is_due());
            self.notice(done);
        }
    }

    /// Takes a record up; sends the message that it completes.
    fn take(&mut self, record: &Record) -> io::Result<()> {
        let Record::Flow(record) = record else {
            return Ok(());
        };
        if let Some(time_s) = &mut self.packet_s {
            *time_s = (*time_s).max(seconds(record.last_us));
            self.send_first_templates()?;
        }
        let time_s = self.time_s();
        let flow = self.flows.flow(record);
        let full = self.encoder.flow(&flow, time_s);
        self.counts.records.hold(self.encoder.flows());
        self.since.get_or_insert_with(Instant::now);
        full.map_or(Ok(()), |message| {
            self.since = Some(Instant::now());
            self.send(&message)
        })
    }

    /// Sends the message that is being made, and templates, if it is time.
    fn send_what_is_due(&mut self) -> io::Result<()> {
        if self.since.is_some_and(|since| since.elapsed() >= SEND_WITHIN) {
            self.flush()?;
        }
        // Only over UDP a collector may miss templates that were sent once.
        let is_udp = matches!(self.connection, Some(Connection::Udp(_)));
        let is_old = |at: Instant| at.elapsed() >= self.template_every;
        match is_udp && self.templates_at.is_none_or(is_old) {
            true => self.send_templates(),
            false => Ok(()),
        }
    }

    fn send_templates(&mut self) -> io::Result<()> {
        let (at_s, mut messages) = (self.time_s(), Vec::new());
        self.encoder.templates(&self.flows.applications, at_s, &mut messages);
        self.since = None;
        self.templates_at = Some(Instant::now());
        messages.iter().try_for_each(|message| self.send(message))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.since = None;
        let message = self.encoder.flush(self.time_s());
        message.map_or(Ok(()), |message| self.send(&message))
    }

    fn send(&mut self, message: &Message) -> io::Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        let sent = connection.send(&message.bytes);
        let held = self.encoder.flows();
        match &sent {
            Ok(()) => {
                self.counts.messages.fetch_add(1, Ordering::Relaxed);
                self.counts.records.write(message.flows, held);
            }
            Err(_) => self.counts.records.fail(message.flows),
        }
        sent
    }

    /// A session that broke is over; what it had not sent is lost with it.
    fn notice(&mut self, done: io::Result<()>) {
        let Err(error) = done else { return };
        let records = &self.counts.records;
        warn!(
            "{}: cannot send records: {error}; trying again, at latest every {} s; up to \
             ipfix.queue records wait meanwhile",
            self.to,
            RETRY_MAX.as_secs()
        );
        self.trouble = Some(Trouble {
            error,
            retry_at: Instant::now() + RETRY_FIRST,
            wait: RETRY_FIRST,
            failed_before: records.failed(),
            dropped_before: records.dropped(),
        });
        self.close();
    }

    fn close(&mut self) {
        self.connection = None;
        self.counts.is_connected.store(false, Ordering::Relaxed);
        self.counts.records.fail(self.encoder.flows());
        self.counts.records.hold(0);
        self.encoder.restart();
    }

    /// Tries to begin a session, if it is time for that; waits a moment otherwise.
    fn reconnect(&mut self) {
        let is_due = |trouble: &Trouble| Instant::now() >= trouble.retry_at;
        if !self.trouble.as_ref().is_none_or(is_due) {
            std::thread::sleep(LOOK_EVERY);
            return;
        }
        match (self.connect(), self.trouble.take()) {
            (Ok(()), None) => {}
            (Ok(()), Some(trouble)) => {
                let records = &self.counts.records;
                let lost = records.failed() - trouble.failed_before + records.dropped()
                    - trouble.dropped_before;
                info!("{}: sending records again; {lost} were lost meanwhile", self.to);
            }
            (Err(error), Some(trouble)) => {
                let wait = (trouble.wait * 2).min(RETRY_MAX);
                self.trouble =
                    Some(Trouble { error, retry_at: Instant::now() + wait, wait, ..trouble });
            }
            (Err(error), None) => self.notice(Err(error)),
        }
    }

    /// What was taken so far belongs to the old file.
    fn reopen(&mut self) -> Result<(), String> {
        if !matches!(self.to, Destination::File(_)) {
            return Ok(());
        }
        let done = self.flush();
        self.notice(done);
        self.close();
        let opened = self.connect();
        let refusal = opened.as_ref().err();
        let refusal = refusal.map(|error| format!("{}: cannot be reopened: {error}", self.to));
        self.notice(opened);
        refusal.map_or(Ok(()), Err)
    }

    fn end(mut self) -> Result<(), Failure> {
        let Some(trouble) = self.trouble.take() else {
            return Ok(());
        };
        let lost = self.counts.records.failed() - trouble.failed_before;
        match lost {
            0 => Ok(()),
            _ => {
                Err(Failure::io(format!("{}: {lost} records are lost: {}", self.to, trouble.error)))
            }
        }
    }

    /// The time of export, seconds since the epoch.
    fn time_s(&self) -> u32 {
        self.packet_s.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.map_or(0, |now| now.as_secs() as u32)
        })
    }
}

/// Whether the queue is empty and stays so.
fn has_ended(records: &Receiver<Queued>, counts: &RecordCounts) -> bool {
    if !records.is_empty() {
        return false;
    }
    match records.try_recv() {
        Err(TryRecvError::Disconnected) => true,
        Err(TryRecvError::Empty) => false,
        // It came just now, and cannot be put back.
        Ok(_) => {
            counts.fail(1);
            false
        }
    }
}

fn seconds(time_us: i64) -> u32 {
    u32::try_from(time_us.max(0) / 1_000_000).unwrap_or(u32::MAX)
}
