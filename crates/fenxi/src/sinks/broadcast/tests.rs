//! Readers that read, stall, vanish and send.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn start(readers: usize, backlog: usize) -> (tempfile::TempDir, Broadcaster) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let protocol =
        Protocol { readers_max: readers, ..crate::sinks::records::stream::protocol(backlog) };
    (dir, Broadcaster::start(listener, protocol).unwrap())
}

fn connect(dir: &tempfile::TempDir) -> UnixStream {
    let stream = UnixStream::connect(dir.path().join("s")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn readers(broadcaster: &Broadcaster, count: u64) {
    wait_for("readers", || broadcaster.counts().readers == count);
}

/// What a reader reads to the end.
fn lines(stream: UnixStream) -> Vec<String> {
    let lines = BufReader::new(stream).lines();
    lines.map(Result::unwrap).collect()
}

#[test]
fn all_readers_get_all_lines_from_when_they_came() {
    let (dir, broadcaster) = start(4, 1 << 20);
    broadcaster.publish(b"nobody\n", 1);
    let first = connect(&dir);
    readers(&broadcaster, 1);
    broadcaster.publish(b"one\n", 1);
    let second = connect(&dir);
    readers(&broadcaster, 2);
    broadcaster.publish(b"two\nthree\n", 2);
    let counts = broadcaster.finish(PATIENCE);
    assert_eq!((counts.sent, counts.lost), (5, 0));
    assert_eq!(lines(first), ["one", "two", "three"]);
    assert_eq!(lines(second), ["two", "three"]);
}

#[test]
fn a_reader_that_stalls_loses_lines_and_is_told_and_others_lose_none() {
    let (dir, broadcaster) = start(4, 64 * 1024);
    let (stalled, mut eager) = (connect(&dir), BufReader::new(connect(&dir)));
    readers(&broadcaster, 2);
    let line = format!("{}\n", "x".repeat(999));
    let mut read = String::new();
    // Far beyond the backlog and the buffers of a socket.
    for _ in 0..2000 {
        broadcaster.publish(line.as_bytes(), 1);
        read.clear();
        eager.read_line(&mut read).unwrap();
        assert_eq!(read, line);
    }
    let counts = broadcaster.counts();
    assert!(counts.lost > 0 && counts.readers == 2, "{counts:?}");
    // It reads again, and is told at the place where lines are missing.
    let reading = std::thread::spawn(move || lines(stalled));
    wait_for("room", || {
        broadcaster.publish(b"again\n", 1);
        broadcaster.shared.state().readers.iter().all(|it| it.lost == 0)
    });
    broadcaster.finish(PATIENCE);
    let read = reading.join().unwrap();
    let is_told = |it: &String| it.starts_with("{\"type\":\"lost\",");
    let at = read.iter().position(is_told).unwrap();
    let told: serde_json::Value = serde_json::from_str(&read[at]).unwrap();
    let before = &read[..at];
    assert!(told["records"].as_u64() > Some(0) && before.iter().all(|it| it.len() == 999));
    assert!(read[at + 1..].iter().all(|it| it == "again" || is_told(it)));
}

#[test]
fn a_reader_that_vanishes_makes_room_and_one_too_many_is_turned_away() {
    let (dir, broadcaster) = start(1, 1 << 20);
    let first = connect(&dir);
    readers(&broadcaster, 1);
    assert!(lines(connect(&dir)).is_empty(), "turned away");
    assert_eq!(broadcaster.counts().refused, 1);
    drop(first);
    // Though nothing is published.
    readers(&broadcaster, 0);
    let second = connect(&dir);
    readers(&broadcaster, 1);
    broadcaster.publish(b"here\n", 1);
    broadcaster.finish(PATIENCE);
    assert_eq!(lines(second), ["here"]);
}

#[test]
fn what_a_reader_sends_is_ignored_and_one_that_only_listens_stays() {
    let (dir, broadcaster) = start(2, 1 << 20);
    let mut talking = connect(&dir);
    talking.set_nonblocking(true).unwrap();
    readers(&broadcaster, 1);
    while talking.write(&[b'x'; 4096]).is_ok() {}
    talking.set_nonblocking(false).unwrap();
    let listening = connect(&dir);
    listening.shutdown(std::net::Shutdown::Write).unwrap();
    readers(&broadcaster, 2);
    broadcaster.publish(b"still\n", 1);
    broadcaster.finish(PATIENCE);
    assert_eq!(lines(listening), ["still"]);
    let mut first = String::new();
    BufReader::new(talking).read_line(&mut first).unwrap();
    assert_eq!(first, "still\n");
}

#[test]
fn readers_that_take_nothing_do_not_hold_up_the_end() {
    let (dir, broadcaster) = start(2, 1 << 24);
    let _stalled = connect(&dir);
    readers(&broadcaster, 1);
    broadcaster.publish(&b"x\n".repeat(1 << 20), 1 << 20);
    let counts = broadcaster.finish(Duration::from_millis(10));
    assert_eq!((counts.lost, counts.readers), (1 << 20, 0));
}
