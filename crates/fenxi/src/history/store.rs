//! The file: an SQLite database in WAL mode, so that it survives a process that is killed, and can
//! be read meanwhile.
//!
//! The table is stored by its key, so an hour's rows lie together: a report reads only the hours it
//! is about, and the oldest hours free whole pages.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

use crate::report::{OTHER, Volume};

/// "fxhi" in the file's header says whose it is.
const APPLICATION_ID: i32 = 0x6678_6869;
const VERSION: i32 = 1;
/// When an hour has more than twice these rows, only the busiest of them stay.
const HOUR_ROWS: i64 = 500;
/// How long a writer waits for another program that has the file locked.
const BUSY: Duration = Duration::from_secs(2);

/// With what each file of SQLite begins.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Hours that time may move on at once, as far as removing is concerned.
const DAY: i64 = 24;

/// Held to write while the file is open by hand, to read while a report has it open: when a process
/// closes a file, it loses all its POSIX locks on that file, and SQLite has some.
pub static BY_HAND: RwLock<()> = RwLock::new(());

/// Temporary tables stay in memory, since the sandbox lets nothing write elsewhere.
const SETTINGS: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    PRAGMA wal_autocheckpoint = 256;
    PRAGMA journal_size_limit = 1048576;
    PRAGMA temp_store = MEMORY;";

/// `label` is empty for flows without one, `name` for hosts without one.
const SCHEMA: &str = "
    CREATE TABLE sums (
        hour INTEGER NOT NULL, label TEXT NOT NULL, host TEXT NOT NULL, service TEXT NOT NULL,
        name TEXT NOT NULL, flows INTEGER NOT NULL,
        packets_up INTEGER NOT NULL, packets_down INTEGER NOT NULL,
        bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
        PRIMARY KEY (hour, label, host, service)
    ) STRICT, WITHOUT ROWID;";

/// The one row is a [`Clock`].
const CLOCK: &str = "
    CREATE TABLE IF NOT EXISTS clock (
        newest INTEGER NOT NULL, ahead INTEGER NOT NULL, hours INTEGER NOT NULL
    ) STRICT;";

const ADDED: &str = "
    ON CONFLICT DO UPDATE SET
        name = CASE excluded.name WHEN '' THEN name ELSE excluded.name END,
        flows = flows + excluded.flows,
        packets_up = packets_up + excluded.packets_up,
        packets_down = packets_down + excluded.packets_down,
        bytes_up = bytes_up + excluded.bytes_up,
        bytes_down = bytes_down + excluded.bytes_down";

/// Rows of an hour behind the busiest ones.
const QUIET: &str = "
    SELECT * FROM sums WHERE hour = ?1 AND host <> ?2
    ORDER BY bytes_up + bytes_down DESC, label, host, service LIMIT -1 OFFSET ?3";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it is not a history of fenxi; name another file")]
    Foreign,
    #[error("a newer fenxi wrote it; name another file, or move it away")]
    Newer,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{}", words(.0))]
    Sqlite(#[from] rusqlite::Error),
}

/// SQLite says "database", and what people have is a disk.
fn words(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "No space left on device".to_owned(),
        _ => error.to_string(),
    }
}

impl Error {
    /// The file is not what was written.
    pub fn is_damage(&self) -> bool {
        let Error::Sqlite(error) = self else { return false };
        let code = error.sqlite_error_code();
        matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }

    /// It is somebody else's, and stays as it is.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Error::Foreign | Error::Newer)
    }
}

/// A row as it is written.
pub struct Row {
    pub hour: i64,
    pub label: String,
    pub host: String,
    pub service: String,
    pub name: String,
    pub volume: Volume,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: u64,
    pub hours: i64,
}

/// What a write has changed besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows that are no longer told apart.
    pub folded: u64,
    /// Rows of hours that went.
    pub removed: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

pub struct Store {
    db: Connection,
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Store {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> Result<Store, Error> {
        make(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut db = Connection::open_with_flags(path, flags)?;
        db.busy_timeout(BUSY)?;
        let is_new = table_count(&db)? == 0;
        if !is_new {
            check(&db)?;
        }
        if is_new {
            // Must be the first; each time it is set, the file is written.
            db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        db.execute_batch(SETTINGS)?;
        if is_new {
            let begun = db.transaction()?;
            begun.execute_batch(SCHEMA)?;
            begun.pragma_update(None, "application_id", APPLICATION_ID)?;
            begun.pragma_update(None, "user_version", VERSION)?;
            begun.commit()?;
        }
        db.execute_batch(CLOCK)?;
        Ok(Store { db, path: path.to_owned(), file: identity(path)? })
    }

    /// Whether the whole file can be read as it was written.
    pub fn verify(&self) -> Result<bool, Error> {
        let verdict = self.db.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        Ok(verdict? == "ok")
    }

    /// Whether the file is still the one at its path, which may have been removed or replaced.
    pub fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|file| file == self.file)
    }

    /// Adds rows and keeps to the limits, all or nothing. `now` is an hour; it counts as a day
    /// ahead of the [`Clock`] at most.
    pub fn write(&mut self, rows: &[Row], limits: Limits, now: i64) -> Result<Written, Error> {
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut hours: Vec<i64> = rows.iter().map(|row| row.hour).collect();
        hours.sort_unstable();
        hours.dedup();
        let newest = Clock::advance(&change, &hours)?;
        add(&change, rows)?;
        let mut written = Written::default();
        for hour in hours {
            written.folded += fold(&change, hour)?;
        }
        let now = newest.map_or(now, |newest| now.min(newest + DAY));
        let oldest = now.saturating_sub(limits.hours);
        written.removed = change.execute("DELETE FROM sums WHERE hour < ?1", [oldest])? as u64;
        loop {
            let bytes = used_bytes(&change)?;
            let removed = match bytes > limits.bytes {
                true => change
                    .execute("DELETE FROM sums WHERE hour = (SELECT min(hour) FROM sums)", [])?,
                false => 0,
            };
            written.removed += removed as u64;
            if removed == 0 {
                written.bytes = bytes;
                break;
            }
        }
        // Gives free pages back; each step frees one.
        let mut freeing = change.prepare("PRAGMA incremental_vacuum")?;
        let mut steps = freeing.query([])?;
        while steps.next()?.is_some() {}
        drop(steps);
        drop(freeing);
        change.commit()?;
        Ok(written)
    }
}

/// The newest hour that is believed. A wrong clock, or a damaged packet of a replay, must not make
/// all that there is too old: hours more than a day ahead count once a day of them has come.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Clock {
    newest: i64,
    /// The latest of the hours ahead, and how many of them follow each other within a day.
    ahead: i64,
    hours: i64,
}

impl Clock {
    /// The newest hour, with these besides, in ascending order; `None`: there is none.
    fn advance(change: &Transaction<'_>, hours: &[i64]) -> rusqlite::Result<Option<i64>> {
        let known = change
            .query_row("SELECT newest, ahead, hours FROM clock", [], |row| {
                Ok(Clock { newest: row.get(0)?, ahead: row.get(1)?, hours: row.get(2)? })
            })
            .optional()?;
        let first = match known {
            Some(clock) => Some(clock.newest),
            None => change
                .query_row("SELECT max(hour) FROM sums", [], |row| row.get(0))
                .map(|newest: Option<i64>| newest.or(hours.first().copied()))?,
        };
        let Some(newest) = first else { return Ok(None) };
        let mut clock = known.unwrap_or(Clock { newest, ahead: newest, hours: 0 });
        hours.iter().for_each(|hour| clock.take(*hour));
        if known != Some(clock) {
            change.execute("DELETE FROM clock", [])?;
            let values = [clock.newest, clock.ahead, clock.hours];
            change.execute("INSERT INTO clock VALUES (?1, ?2, ?3)", values)?;
        }
        Ok(Some(clock.newest))
    }

    fn take(&mut self, hour: i64) {
        if hour <= self.newest + DAY {
            self.newest = self.newest.max(hour);
        } else if self.hours == 0 || !(self.ahead..=self.ahead + DAY).contains(&hour) {
            (self.ahead, self.hours) = (hour, 1);
        } else if hour > self.ahead {
            (self.ahead, self.hours) = (hour, self.hours + 1);
        }
        if self.hours >= DAY {
            (self.newest, self.hours) = (self.newest.max(self.ahead), 0);
        }
    }
}

/// Makes the file where there is none. One that SQLite did not make stays as it is.
fn make(path: &Path) -> Result<(), Error> {
    let _by_hand = BY_HAND.write().unwrap_or_else(PoisonError::into_inner);
    // The group of the service may read.
    match OpenOptions::new().append(true).create_new(true).mode(0o640).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return Ok(made.map(drop)?),
    }
    // A pipe would have no end.
    if !fs::metadata(path)?.is_file() {
        return Err(Error::Foreign);
    }
    let mut begin = Vec::new();
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    match begin.is_empty() || begin == MAGIC {
        true => Ok(()),
        false => Err(Error::Foreign),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|it| (it.dev(), it.ino()))
}

fn table_count(db: &Connection) -> rusqlite::Result<i64> {
    db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
}

/// Whether the file is a history of this version.
pub fn check(db: &Connection) -> Result<(), Error> {
    let number = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    match (number("application_id")?, number("user_version")?) {
        (APPLICATION_ID, VERSION) => Ok(()),
        (APPLICATION_ID, _) => Err(Error::Newer),
        _ => Err(Error::Foreign),
    }
}

fn add(change: &Transaction<'_>, rows: &[Row]) -> rusqlite::Result<()> {
    let sql = format!("INSERT INTO sums VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) {ADDED}");
    let mut add = change.prepare(&sql)?;
    for row in rows {
        let it = &row.volume;
        let counts = [it.flows, it.packets_up, it.packets_down, it.bytes_up, it.bytes_down];
        let [flows, packets_up, packets_down, bytes_up, bytes_down] =
            counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        add.execute(params![
            row.hour,
            row.label,
            row.host,
            row.service,
            row.name,
            flows,
            packets_up,
            packets_down,
            bytes_up,
            bytes_down,
        ])?;
    }
    Ok(())
}

/// Where an hour has too many rows, adds the least busy of each label up; how many went.
fn fold(change: &Transaction<'_>, hour: i64) -> rusqlite::Result<u64> {
    let count = "SELECT count(*) FROM sums WHERE hour = ?1";
    let rows: i64 = change.query_row(count, [hour], |row| row.get(0))?;
    if rows <= 2 * HOUR_ROWS {
        return Ok(0);
    }
    let sum = format!(
        "INSERT INTO sums SELECT hour, label, ?2, ?2, '', sum(flows), sum(packets_up),
         sum(packets_down), sum(bytes_up), sum(bytes_down) FROM ({QUIET}) WHERE true
         GROUP BY label {ADDED}"
    );
    change.execute(&sum, params![hour, OTHER, HOUR_ROWS])?;
    let remove = format!(
        "DELETE FROM sums WHERE (hour, label, host, service) IN
         (SELECT hour, label, host, service FROM ({QUIET}))"
    );
    Ok(change.execute(&remove, params![hour, OTHER, HOUR_ROWS])? as u64)
}

fn used_bytes(db: &Connection) -> rusqlite::Result<u64> {
    let number = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = number("page_count")? - number("freelist_count")?;
    Ok((pages * number("page_size")?).max(0) as u64)
}

/// A file next to this one, with a longer name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Moves a damaged file aside, over the one before it, and removes what SQLite has left next to it.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for suffix in ["-wal", "-shm"] {
        match fs::remove_file(beside(path, suffix)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let aside = beside(path, ".damaged");
    fs::rename(path, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests;
