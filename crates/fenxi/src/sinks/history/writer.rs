//! The thread: takes records, adds them up, writes the sums every now and then.
//!
//! While they cannot be written, sums add up in memory, bounded, until they can. A replay ends
//! there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, TryRecvError};
use flowmgr::record::Record;
use tracing::{info, warn};

use super::ledger::{Fate, Key, Ledger, Services};
use crate::exit::Failure;
use crate::history::store::{self, Error, Limits, Row, Store};
use crate::names::Names;
use crate::report::OTHER;
use crate::sinks::queue::{Drain, Queued, RecordCounts};

/// How often the thread looks into an empty queue, which holds far more than comes in that time.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A full ledger is written before its time, but not more often than this.
const WRITE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Counts {
    pub records: Arc<RecordCounts>,
    /// Records that count for their label only.
    pub other: AtomicU64,
    pub writes: AtomicU64,
    pub failed_writes: AtomicU64,
    pub folded: AtomicU64,
    pub removed: AtomicU64,
    pub bytes: AtomicU64,
}

pub struct Writer {
    pub path: PathBuf,
    pub every: Duration,
    pub limits: Limits,
    /// `None`: it could not be opened so far.
    pub store: Option<Store>,
    pub ledger: Ledger,
    /// Other services, after a reload.
    pub services: Receiver<Services>,
    pub classes: Arc<[String]>,
    /// What hosts are called.
    pub names: Names,
    pub counts: Arc<Counts>,
    /// `None`: a replay.
    pub drain: Option<Arc<Drain>>,
    /// Records in the ledger.
    pub held: u64,
    /// The latest hour of a record.
    pub latest: i64,
    /// Why the last write failed.
    pub trouble: Option<String>,
}

impl Writer {
    pub fn run(mut self, records: &Receiver<Queued>) -> Result<(), Failure> {
        self.verify()?;
        let mut written = Instant::now();
        loop {
            match records.try_recv() {
                Ok(queued) => self.take(&queued.record),
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.counts.records.hold(self.held);
                    sleep(LOOK_EVERY);
                }
            }
            if self.drain.as_ref().is_some_and(|drain| drain.is_over()) {
                self.counts.records.fail(records.try_iter().count() as u64);
                break;
            }
            let is_due = match self.drain {
                // A replay's packets may be of a year.
                None => self.ledger.is_full(),
                Some(_) if self.ledger.is_full() => written.elapsed() >= WRITE_EVERY,
                Some(_) => written.elapsed() >= self.every,
            };
            if is_due {
                self.write();
                written = Instant::now();
            }
            if self.drain.is_none() && self.trouble.is_some() {
                break;
            }
        }
        self.write();
        match self.trouble {
            None => Ok(()),
            Some(why) => {
                self.counts.records.fail(self.held);
                let path = self.path.display();
                Err(Failure::io(format!("{path}: {} records are lost: {why}", self.held)))
            }
        }
    }

    fn take(&mut self, record: &Record) {
        let Record::Flow(flow) = record else { return };
        if let Some(services) = self.services.try_iter().last() {
            self.ledger.take_services(services);
        }
        self.latest = self.latest.max(super::ledger::hour(flow.last_us));
        match self.ledger.add(flow) {
            Fate::Summed => self.held += 1,
            Fate::Other => {
                self.held += 1;
                self.counts.other.fetch_add(1, Ordering::Relaxed);
            }
            Fate::Lost => self.counts.records.fail(1),
        }
    }

    /// Writes what there is. Whatever happens, it is in the file or still held.
    fn write(&mut self) {
        let mut result = self.try_write();
        if self.drain.is_some() && result.as_ref().is_err_and(Error::is_damage) {
            self.start_anew();
            result = self.try_write();
        }
        let path = self.path.display();
        match result {
            Ok(()) => {
                self.counts.writes.fetch_add(1, Ordering::Relaxed);
                self.counts.records.write(std::mem::take(&mut self.held), 0);
                if self.trouble.take().is_some() {
                    info!("history.path: {path} is written again");
                }
            }
            Err(error) => {
                self.counts.failed_writes.fetch_add(1, Ordering::Relaxed);
                if self.trouble.replace(error.to_string()).is_none() {
                    warn!("history.path: {path} cannot be written: {error}; sums wait in memory");
                }
            }
        }
    }

    fn try_write(&mut self) -> Result<(), Error> {
        if !self.store.as_ref().is_some_and(Store::is_there) {
            self.store = None;
        }
        let store = match &mut self.store {
            Some(store) => store,
            None => self.store.insert(Store::open(&self.path)?),
        };
        let (classes, names) = (&self.classes, &self.names);
        let row = |(key, volume): (&Key, &_)| {
            let label = key.class.and_then(|class| classes.get(usize::from(class)));
            let (host, service, name) = match &key.of {
                None => (OTHER.to_owned(), OTHER.to_owned(), None),
                Some((host, service)) => (host.to_string(), service.to_string(), names.name(*host)),
            };
            Row {
                hour: key.hour,
                label: label.cloned().unwrap_or_default(),
                host,
                service,
                name: name.map_or(String::new(), |name| name.to_string()),
                volume: *volume,
            }
        };
        let rows: Vec<Row> = self.ledger.rows.iter().map(row).collect();
        // A replay lives in the time of its packets.
        let now = match self.drain {
            Some(_) => now_hour(),
            None => self.latest,
        };
        let written = store.write(&rows, self.limits, now)?;
        self.ledger.rows.clear();
        let counts = &self.counts;
        counts.folded.fetch_add(written.folded, Ordering::Relaxed);
        counts.removed.fetch_add(written.removed, Ordering::Relaxed);
        counts.bytes.store(written.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A file that was damaged while nobody wrote it would spoil reports, or the next write.
    fn verify(&mut self) -> Result<(), Failure> {
        let is_damaged = match self.store.as_ref().map(Store::verify) {
            Some(Ok(is_whole)) => !is_whole,
            Some(Err(error)) => error.is_damage(),
            None => false,
        };
        match (is_damaged, &self.drain) {
            (true, None) => return Err(damaged(&self.path)),
            (true, Some(_)) => self.start_anew(),
            (false, _) => {}
        }
        Ok(())
    }

    fn start_anew(&mut self) {
        self.store = None;
        if let Err(error) = set_aside(&self.path) {
            let path = self.path.display();
            warn!("history.path: {path} is damaged, and cannot be moved: {error}");
        }
    }
}

/// What a replay says, which moves no file.
pub fn damaged(path: &Path) -> Failure {
    let path = path.display();
    Failure::data(format!("history.path: {path} is damaged; move it away to begin anew"))
}

/// Moves a damaged file aside, and says so.
pub fn set_aside(path: &Path) -> io::Result<()> {
    let aside = store::set_aside(path)?;
    let (path, aside) = (path.display(), aside.display());
    warn!("history.path: {path} is damaged; it is {aside} now, and the history begins anew");
    Ok(())
}

fn now_hour() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs() / 3600).unwrap_or(i64::MAX)
}
