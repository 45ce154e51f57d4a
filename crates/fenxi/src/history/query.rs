//! Reads the history, while a run writes it or not.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params_from_iter};

use super::store::{BY_HAND, Error, beside, check};
use super::time;
use crate::access::may_read;
use crate::exit::Failure;
use crate::report::{By, Query, Report, ReportRow, Sort, Volume};
use crate::rules::LocalClock;

/// How long a reader waits for a program that has the file locked.
const BUSY: Duration = Duration::from_secs(2);
/// Instructions of SQLite between two looks at the time.
const LOOK_EVERY: i32 = 10_000;

const SUMS: &str = "sum(flows), sum(packets_up), sum(packets_down), sum(bytes_up), sum(bytes_down)";

/// Answers a query in local time, where `within` is given only if that takes no longer.
///
/// # Errors
/// A time is none, there is no history, or it cannot be read, or not in time.
pub fn report(path: &Path, query: &Query, within: Option<Duration>) -> Result<Report, Failure> {
    let now = Timestamp::now().to_zoned(LocalClock::of_machine().zone());
    report_at(path, query, &now, within)
}

fn report_at(
    path: &Path,
    query: &Query,
    now: &Zoned,
    within: Option<Duration>,
) -> Result<Report, Failure> {
    let parse = |what: &str, text: &str| {
        let time = time::parse(text, now);
        time.map_err(|why| Failure::usage(format!("{what}: {why}")))
    };
    let (since, until) = (parse("since", &query.since)?, parse("until", &query.until)?);
    let hours = (time::hour(&since), time::hour_end(&until));
    if hours.0 >= hours.1 {
        let (since, until) = (&query.since, &query.until);
        return Err(Failure::usage(format!("until: \"{until}\" is not after since \"{since}\"")));
    }
    may_read(path).map_err(|error| {
        let line = format!("{}: cannot be read: {error}", path.display());
        match error.kind() {
            ErrorKind::NotFound => Failure::no_input(format!("{line}; `fenxi run` makes it")),
            ErrorKind::PermissionDenied => Failure::not_allowed(format!(
                "{line}; run as root, or as the user or in the group of the service"
            )),
            _ => Failure::no_input(line),
        }
    })?;
    let read = read(path, query, hours, now.time_zone(), within);
    read.map_err(|error| {
        let path = path.display();
        match &error {
            Error::Sqlite(it)
                if it.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) =>
            {
                Failure::unavailable(format!(
                    "{path}: the report takes too long; ask for less time, or run `fenxi report`"
                ))
            }
            _ => Failure::no_input(format!("{path}: {error}")),
        }
    })
}

fn read(
    path: &Path,
    query: &Query,
    (since, until): (i64, i64),
    zone: &TimeZone,
    within: Option<Duration>,
) -> Result<Report, Error> {
    let _reading = BY_HAND.read().unwrap_or_else(PoisonError::into_inner);
    let mut db = open(path)?;
    db.busy_timeout(BUSY)?;
    if let Some(within) = within {
        let began = Instant::now();
        db.progress_handler(LOOK_EVERY, Some(move || began.elapsed() >= within))?;
    }
    db.pragma_update(None, "temp_store", "MEMORY")?;
    check(&db)?;
    // All answers are of one moment.
    let db = db.unchecked_transaction()?;
    let (from, mut values) = traffic(query, since, until);
    let column = query.by.name();
    let (groups, total) = {
        let sql = format!("SELECT count(DISTINCT {column}), {SUMS} {from}");
        let read = |row: &Row<'_>| Ok((number(row, 0)?, volume(row, 1)?));
        db.query_row(&sql, params_from_iter(&values), read)?
    };
    // A host may have had several names. With max(), SQLite takes other columns from its row.
    let (name, latest) = match query.by {
        By::Host => ("name", ", max(CASE name WHEN '' THEN -1 ELSE hour END)"),
        _ => ("NULL", ""),
    };
    let order = match query.sort {
        Sort::Bytes => "sum(bytes_up) + sum(bytes_down) DESC",
        Sort::Up => "sum(bytes_up) DESC",
        Sort::Down => "sum(bytes_down) DESC",
        Sort::Packets => "sum(packets_up) + sum(packets_down) DESC",
        Sort::Flows => "sum(flows) DESC",
        Sort::Name => column,
    };
    let sql = format!(
        "SELECT {column}, {name}, {SUMS}{latest} {from} GROUP BY {column} ORDER BY {order}, \
         {column} LIMIT ?"
    );
    values.push(Value::Integer(query.top as i64));
    let mut rows = db.prepare(&sql)?;
    let row = |row: &Row<'_>| {
        let key = match query.by {
            By::Hour => Some(time::shown(row.get(0)?, zone)),
            _ => Some(row.get::<_, String>(0)?).filter(|key| !key.is_empty()),
        };
        let name = row.get::<_, Option<String>>(1)?.filter(|name| !name.is_empty());
        Ok(ReportRow { key, name, volume: volume(row, 2)? })
    };
    let rows = rows.query_map(params_from_iter(&values), row)?;
    let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let begins: Option<i64> = db.query_row("SELECT min(hour) FROM sums", [], |row| row.get(0))?;
    Ok(Report {
        since: time::shown(since, zone),
        until: time::shown(until, zone),
        by: query.by,
        sort: query.sort,
        begins: begins.map(|hour| time::shown(hour, zone)),
        more: groups.saturating_sub(rows.len() as u64),
        rows,
        total,
    })
}

/// Opens the file to read it. Where nobody has it open to write, it stands alone: then nothing is
/// made next to it, and the right to write there is not needed.
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if beside(path, "-wal").exists() {
        return Connection::open_with_flags(path, flags);
    }
    flags |= OpenFlags::SQLITE_OPEN_URI;
    let path = path.as_os_str().as_encoded_bytes();
    let plain = |byte: &u8| match byte {
        b'%' | b'?' | b'#' => format!("%{byte:02X}").into_bytes(),
        byte => vec![*byte],
    };
    let mut address = b"file:".to_vec();
    address.extend(path.iter().flat_map(plain));
    address.extend(b"?immutable=1");
    Connection::open_with_flags(OsStr::from_bytes(&address), flags)
}

/// Which rows of the table are meant, and the values of the question marks in it.
fn traffic(query: &Query, since: i64, until: i64) -> (String, Vec<Value>) {
    let mut sql = "FROM sums WHERE hour >= ? AND hour < ?".to_owned();
    let mut values = vec![Value::Integer(since), Value::Integer(until)];
    for (by, value) in &query.filters {
        values.push(Value::Text(value.clone()));
        match by {
            By::Host => {
                values.extend([(); 2].map(|()| Value::Text(value.clone())));
                // The first label of a name with dots is enough.
                sql += " AND (host = ? COLLATE NOCASE OR name = ? COLLATE NOCASE OR \
                        substr(name, 1, instr(name, '.') - 1) = ? COLLATE NOCASE)";
            }
            by => {
                sql += &format!(" AND {} = ? COLLATE NOCASE", by.name());
            }
        }
    }
    (sql, values)
}

fn volume(row: &Row<'_>, first: usize) -> rusqlite::Result<Volume> {
    Ok(Volume {
        flows: number(row, first)?,
        packets_up: number(row, first + 1)?,
        packets_down: number(row, first + 2)?,
        bytes_up: number(row, first + 3)?,
        bytes_down: number(row, first + 4)?,
    })
}

/// A sum; of nothing, SQLite gives none.
fn number(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, Option<i64>>(at)?.unwrap_or_default().max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::super::store::{Limits, Row, Store};
    use super::*;

    const LIMITS: Limits = Limits { bytes: 1 << 26, hours: 9600 };
    /// 2026-11-27, 19 h 12 min 30 s, in a zone whose days begin two hours before UTC's.
    const NOW: &str = "2026-11-27T19:12:30+02:00[+02:00]";
    /// The first hour of 2026-11-26 there.
    const YESTERDAY: i64 = 498_790;

    fn row(hour: i64, label: &str, host: &str, name: &str, bytes_up: u64) -> Row {
        let volume = Volume { flows: 1, packets_up: 2, packets_down: 3, bytes_up, bytes_down: 1 };
        let [label, host, name] = [label, host, name].map(str::to_owned);
        Row { hour, label, host, service: "443/tcp".to_owned(), name, volume }
    }

    /// A history of two days, and the answer to a query.
    fn asked(query: &Query) -> Result<Report, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let rows = [
            row(YESTERDAY - 1, "TLS", "10.0.0.9", "", 1 << 40),
            row(YESTERDAY, "TLS", "10.0.0.1", "old", 100),
            row(YESTERDAY + 1, "TLS", "10.0.0.1", "tv.lan", 200),
            row(YESTERDAY + 2, "TLS", "10.0.0.1", "", 50),
            row(YESTERDAY + 24, "DNS", "10.0.0.2", "", 10),
            row(YESTERDAY + 43, "", "10.0.0.3", "", 5),
            row(YESTERDAY + 44, "TLS", "10.0.0.9", "", 1 << 40),
        ];
        Store::open(&path).unwrap().write(&rows, LIMITS, YESTERDAY).unwrap();
        report_at(&path, query, &NOW.parse().unwrap(), None)
    }

    /// Rows as `KEY NAME BYTES`.
    fn rows(query: &Query) -> Vec<String> {
        let rows = asked(query).unwrap().rows.into_iter();
        let row = |row: ReportRow| {
            let name = row.name.clone().unwrap_or_default();
            format!("{} {name} {}", row.key.clone().unwrap_or_default(), row.volume.bytes())
        };
        rows.map(row).collect()
    }

    #[test]
    fn yesterday_begins_at_midnight_here_and_the_hour_that_runs_counts() {
        let query = Query::new(By::Label);
        let report = asked(&query).unwrap();
        assert_eq!(
            (&*report.since, &*report.until),
            ("2026-11-26 00:00 +02:00", "2026-11-27 20:00 +02:00")
        );
        assert_eq!(report.begins.as_deref(), Some("2026-11-25 23:00 +02:00"));
        assert_eq!(rows(&query), ["TLS  353", "DNS  11", "  6"]);
        assert_eq!((report.total.bytes(), report.total.flows, report.more), (370, 5, 0));
        let only = Query { until: "today".to_owned(), ..query.clone() };
        assert_eq!(rows(&only), ["TLS  353"]);
        let one = Query { top: 1, ..query };
        let report = asked(&one).unwrap();
        assert_eq!((report.rows.len(), report.more, report.total.bytes()), (1, 2, 370));
    }

    #[test]
    fn rows_are_what_is_asked_for_in_the_order_that_is_asked_for() {
        let hosts = Query::new(By::Host);
        assert_eq!(rows(&hosts), ["10.0.0.1 tv.lan 353", "10.0.0.2  11", "10.0.0.3  6"]);
        let names = Query { sort: Sort::Flows, ..hosts.clone() };
        assert_eq!(rows(&names)[0], "10.0.0.1 tv.lan 353");
        let hours = rows(&Query::new(By::Hour));
        assert_eq!(hours[0], "2026-11-26 00:00 +02:00  101");
        assert_eq!(hours.len(), 5);
        let only =
            |by, value: &str| Query { filters: vec![(by, value.to_owned())], ..hosts.clone() };
        assert_eq!(rows(&only(By::Label, "dns")), ["10.0.0.2  11"]);
        for name in ["TV", "tv.lan"] {
            assert_eq!(rows(&only(By::Host, name)), ["10.0.0.1 tv.lan 201"], "{name}");
        }
        assert!(rows(&only(By::Host, "t")).is_empty());
        assert_eq!(rows(&only(By::Service, "443/tcp")).len(), 3);
        assert!(rows(&only(By::Service, "' OR 1 --")).is_empty());
    }

    #[test]
    fn what_cannot_be_answered_is_one_line() {
        let query = |since: &str, until: &str| Query {
            since: since.to_owned(),
            until: until.to_owned(),
            ..Query::new(By::Label)
        };
        for (since, until, why) in [
            ("soon", "now", "since: \"soon\" is no time; write now, today"),
            ("today", "yesterday", "until: \"yesterday\" is not after since \"today\""),
        ] {
            let failure = asked(&query(since, until)).unwrap_err();
            assert!(failure.to_string().starts_with(why), "{failure}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none");
        let missing = report(&path, &Query::new(By::Label), None).unwrap_err().to_string();
        assert!(missing.contains("cannot be read: No such file"), "{missing}");
        assert!(!path.exists());
        std::fs::write(&path, "something else").unwrap();
        let other = report(&path, &Query::new(By::Label), None).unwrap_err().to_string();
        assert!(other.contains("not a database"), "{other}");
    }

    #[test]
    fn a_report_that_takes_too_long_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let mut store = Store::open(&path).unwrap();
        let rows: Vec<Row> =
            (0..900).map(|host| row(YESTERDAY, "TLS", &host.to_string(), "", 1)).collect();
        store.write(&rows, LIMITS, YESTERDAY).unwrap();
        let now = NOW.parse().unwrap();
        let ask = |within| report_at(&path, &Query::new(By::Host), &now, within);
        let why = ask(Some(Duration::ZERO)).unwrap_err().to_string();
        assert!(why.contains("takes too long"), "{why}");
        assert_eq!(ask(Some(Duration::from_secs(600))).unwrap().total.flows, 900);
    }

    /// `/proc/locks` has a line for each lock that a process holds.
    #[test]
    fn a_report_leaves_the_writer_its_locks() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let mut store = Store::open(&path).unwrap();
        store.write(&[row(YESTERDAY, "TLS", "10.0.0.1", "", 1)], LIMITS, YESTERDAY).unwrap();
        let inode = format!(":{} ", std::fs::metadata(&path).unwrap().ino());
        let locks = || {
            let all = std::fs::read_to_string("/proc/locks").unwrap();
            all.lines().filter(|line| line.contains(&inode)).count()
        };
        let before = locks();
        report(&path, &Query::new(By::Label), None).unwrap();
        assert_eq!(locks(), before);
        drop(store);
        assert!(before > 0 && locks() == 0, "{before}");
    }
}
