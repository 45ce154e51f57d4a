//! The limits of the file, and what a file may be that is found.

use super::*;

const LIMITS: Limits = Limits { bytes: 1 << 20, hours: 400 * 24 };

fn row(hour: i64, label: &str, host: usize, bytes: u64) -> Row {
    Row {
        hour,
        label: label.to_owned(),
        host: format!("10.0.{}.{}", host >> 8, host & 255),
        service: "443/tcp".to_owned(),
        name: String::new(),
        volume: Volume { flows: 1, packets_up: 2, packets_down: 1, bytes_up: bytes, bytes_down: 1 },
    }
}

fn number(store: &Store, sql: &str) -> i64 {
    store.db.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn opened() -> (tempfile::TempDir, PathBuf, Store) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history");
    let store = Store::open(&path).unwrap();
    (dir, path, store)
}

#[test]
fn writes_add_up_also_after_it_was_closed() {
    let (_dir, path, mut store) = opened();
    store.write(&[row(5, "TLS", 1, 10)], LIMITS, 5).unwrap();
    drop(store);
    let mut store = Store::open(&path).unwrap();
    let named = Row { name: "tv".to_owned(), ..row(5, "TLS", 1, 7) };
    store.write(&[named, row(5, "", 1, 3)], LIMITS, 5).unwrap();
    store.write(&[row(5, "TLS", 1, 1)], LIMITS, 5).unwrap();
    assert_eq!(number(&store, "SELECT count(*) FROM sums"), 2);
    let of_tv = "SELECT sum(bytes_up + bytes_down + flows * 1000) FROM sums WHERE name = 'tv'";
    assert_eq!(number(&store, of_tv), 18 + 3 + 3000);
    assert!(store.verify().unwrap());
}

#[test]
fn an_hour_keeps_its_busiest_rows_and_the_sum_of_each_label() {
    let (_dir, _path, mut store) = opened();
    let rows = |hosts: std::ops::Range<usize>, label: &str| -> Vec<Row> {
        hosts.map(|host| row(5, label, host, host as u64)).collect()
    };
    let written = store.write(&rows(0..1000, "TLS"), LIMITS, 5).unwrap();
    assert_eq!(written.folded, 0);
    let written = store.write(&rows(0..1000, "DNS"), LIMITS, 5).unwrap();
    assert_eq!(written.folded, 1500);
    assert_eq!(number(&store, "SELECT count(*) FROM sums"), 502);
    assert_eq!(number(&store, "SELECT count(*) FROM sums WHERE host = 'other'"), 2);
    for label in ["TLS", "DNS"] {
        let sum = format!("SELECT sum(bytes_up) FROM sums WHERE label = '{label}'");
        assert_eq!(number(&store, &sum), 999 * 1000 / 2);
    }
    assert_eq!(number(&store, "SELECT sum(flows) FROM sums"), 2000);
    let least = "SELECT min(bytes_up) FROM sums WHERE host <> 'other'";
    assert_eq!(number(&store, least), 750);
    // What comes later adds to the sums of the rest.
    store.write(&rows(0..1000, "DNS"), LIMITS, 5).unwrap();
    assert_eq!(number(&store, "SELECT sum(flows) FROM sums"), 3000);
    assert!(number(&store, "SELECT count(*) FROM sums") <= 502);
}

#[test]
fn the_oldest_hours_go_by_age_and_by_size() {
    let (_dir, path, mut store) = opened();
    let hour = |hour: i64| -> Vec<Row> { (0..400).map(|host| row(hour, "TLS", host, 9)).collect() };
    for now in 0..120 {
        store.write(&hour(now), LIMITS, now).unwrap();
    }
    let kept = number(&store, "SELECT count(DISTINCT hour) FROM sums");
    assert!((20..120).contains(&kept), "{kept}");
    assert_eq!(number(&store, "SELECT max(hour) - min(hour) + 1 FROM sums"), kept);
    assert_eq!(number(&store, "SELECT max(hour) FROM sums"), 119);
    let of_file = fs::metadata(&path).unwrap().len();
    assert!(of_file <= LIMITS.bytes, "{of_file}");
    let beside = fs::metadata(path.with_file_name("history-wal")).unwrap().len();
    assert!(beside <= 4 << 20, "{beside}");
    // A lower limit makes the file smaller.
    let written = store.write(&[], Limits { bytes: 1 << 18, ..LIMITS }, 119).unwrap();
    assert!(written.removed > 0 && written.bytes <= 1 << 18, "{written:?}");
    store.write(&[], Limits { hours: 2, ..LIMITS }, 119).unwrap();
    assert_eq!(number(&store, "SELECT min(hour) FROM sums"), 117);
    drop(store);
    assert!(fs::metadata(&path).unwrap().len() <= 1 << 18, "once closed, it is one file");
}

#[test]
fn an_hour_far_ahead_is_a_day_ahead_until_a_day_of_them_has_come() {
    let hours = |store: &Store| number(store, "SELECT count(DISTINCT hour) FROM sums");
    let (_dir, path, mut store) = opened();
    let limits = Limits { hours: 48, ..LIMITS };
    let far = 1_192_000;
    // A damaged packet among the first ones.
    let first: Vec<Row> = [100, 101, far].map(|hour| row(hour, "TLS", 1, 9)).into();
    store.write(&first, limits, far).unwrap();
    assert_eq!(hours(&store), 3);
    // The clock is wrong for two hours, again after a restart.
    for hour in [far, far, far + 1] {
        store.write(&[row(hour, "TLS", 1, 9)], limits, hour).unwrap();
        drop(store);
        store = Store::open(&path).unwrap();
    }
    store.write(&[], limits, far + 30).unwrap();
    assert_eq!(hours(&store), 4);
    // It is right again.
    for hour in [120, 140, 149] {
        store.write(&[row(hour, "TLS", 1, 9)], limits, hour).unwrap();
    }
    assert_eq!(number(&store, "SELECT min(hour) FROM sums"), 101);
    // Time has really moved on; until that is believed, it is a day later.
    for hour in 2000..2024 {
        store.write(&[row(hour, "TLS", 1, 9)], limits, hour).unwrap();
        let oldest = if hour < 2023 { 140 } else { 2000 };
        assert_eq!(number(&store, "SELECT min(hour) FROM sums"), oldest, "{hour}");
    }
}

#[test]
fn a_file_that_was_replaced_is_not_the_one_that_is_open() {
    let (dir, path, store) = opened();
    assert!(store.is_there());
    let other = dir.path().join("other");
    drop(Store::open(&other).unwrap());
    fs::rename(&other, &path).unwrap();
    assert!(!store.is_there());
    fs::remove_file(&path).unwrap();
    assert!(!store.is_there());
}

#[test]
fn only_a_history_is_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("foreign");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine (it)").unwrap();
    let before = fs::read(&path).unwrap();
    assert!(matches!(Store::open(&path), Err(Error::Foreign)));
    assert_eq!(fs::read(&path).unwrap(), before);
    for text in ["{}", "{\"flow\": 1, \"label\": \"TLS\"}\n"] {
        fs::write(&path, text).unwrap();
        let refused = Store::open(&path).err().unwrap();
        assert!(refused.is_refusal() && !refused.is_damage(), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), text.as_bytes());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    fs::write(&path, "").unwrap();
    assert!(Store::open(&path).is_ok(), "nothing is lost with an empty file");
    let (_dir, path, store) = opened();
    store.db.pragma_update(None, "user_version", 2).unwrap();
    drop(store);
    assert!(matches!(Store::open(&path), Err(Error::Newer)));
}

#[test]
fn a_damaged_file_is_noticed_and_moved_aside() {
    let (_dir, path, mut store) = opened();
    let rows: Vec<Row> = (0..900).map(|host| row(5, "TLS", host, 9)).collect();
    store.write(&rows, LIMITS, 5).unwrap();
    drop(store);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8192].fill(0x5a);
    fs::write(&path, &bytes).unwrap();
    let store = Store::open(&path).unwrap();
    assert!(!store.verify().is_ok_and(|is_whole| is_whole));
    drop(store);
    assert_eq!(set_aside(&path).unwrap(), path.with_file_name("history.damaged"));
    assert!(Store::open(&path).unwrap().verify().unwrap());
    // The file's header, except what says that it is SQLite's.
    let mut bytes = fs::read(&path).unwrap();
    bytes[MAGIC.len()..100].fill(0x5a);
    fs::write(&path, &bytes).unwrap();
    assert!(Store::open(&path).is_err_and(|error| error.is_damage()));
}
