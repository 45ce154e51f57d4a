//! A writer at full rate, and readers in other processes that are stopped and killed at random: no
//! copy is torn. `HAMMER_WORDS` says how many words to read (default 10⁷).

#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::env;
use std::io::{BufRead, BufReader, Write, stdout};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use observe::{Access, Egress, Field, Kind, Reader, Service, Slot, Writer};
use rustix::process::{Pid, Signal, kill_process};

const EGRESSES: u8 = 8;
const COUNTERS: u64 = 16;
const READERS: usize = 3;

fn fields() -> Vec<Field> {
    let counters = (0..COUNTERS).map(|n| Field::new(&format!("n{n}"), "flows", Kind::Counter));
    let sampled = [("w", Kind::Window), ("r", Kind::Reservoir), ("w", Kind::Histogram)];
    counters.chain(sampled.map(|(name, kind)| Field::new(name, "ns", kind))).collect()
}

/// What a word must be with the round that the same copy tells.
fn mixed(round: u64, word: u64) -> u64 {
    (round + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes until `is_over`; returns rounds. Every counter tells the round by itself.
fn write(mut writer: Writer, is_over: &AtomicBool) -> u64 {
    let values: Vec<_> = (0..COUNTERS).map(|n| writer.value(&format!("n{n}")).unwrap()).collect();
    let [window, reservoir] = ["w", "r"].map(|name| writer.measure(name).unwrap());
    let egress = |last: u8| Egress::server(IpAddr::from([10, 0, 0, last]), 80);
    let mut slots: Vec<Slot> =
        (0..EGRESSES).map(|last| writer.insert(&egress(last)).unwrap()).collect();
    let mut begun = [0u64; EGRESSES as usize];
    let mut round = 0u64;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        if round.is_multiple_of(1000) {
            let changed = (round / 1000 % u64::from(EGRESSES)) as usize;
            writer.remove(slots[changed]);
            slots[changed] = writer.insert(&egress(changed as u8)).unwrap();
            begun[changed] = 0;
        }
        for (slot, last) in slots.iter().zip(&mut begun) {
            for (word, value) in (0..).zip(&values) {
                let before = if *last == 0 { 0 } else { mixed(*last, word) };
                writer.add(*slot, *value, mixed(round, word).wrapping_sub(before));
            }
            *last = round;
            writer.sample(*slot, window, round, mixed(round, slot.incarnation.into()));
            writer.sample(*slot, reservoir, round, mixed(round, slot.incarnation.into()));
        }
        writer.publish(round);
    }
    round
}

/// Words read, copies that were torn, and copies given up.
#[derive(Default)]
struct Found {
    words: u64,
    torn: u64,
    given_up: u64,
}

fn check(reader: &Reader, found: &mut Found) {
    let field = |name: &str, kind| reader.field(name, kind).unwrap();
    let counters: Vec<&Field> =
        (0..COUNTERS).map(|n| field(&format!("n{n}"), Kind::Counter)).collect();
    let sampled = [field("w", Kind::Window), field("r", Kind::Reservoir)];
    let histogram = field("w", Kind::Histogram);
    let mut snapshot = reader.snapshot();
    for _ in 0..200 {
        if reader.read(&mut snapshot).is_err() {
            found.given_up += 1;
            continue;
        }
        for row in snapshot.egresses() {
            for (word, field) in (0..).zip(&counters) {
                let is_whole = row.value(field) == Some(mixed(snapshot.time_ns(), word));
                found.torn += u64::from(!is_whole);
                found.words += 1;
            }
        }
    }
    for row in snapshot.egresses() {
        for samples in sampled.map(|field| reader.samples(row.slot(), field)) {
            let Ok(samples) = samples else {
                found.given_up += 1;
                continue;
            };
            found.words += 3 * samples.len() as u64;
            let incarnation = row.slot().incarnation.into();
            let is_torn = |it: &&observe::Sample| it.value != mixed(it.time_ns, incarnation);
            found.torn += samples.iter().filter(is_torn).count() as u64;
        }
        match reader.histograms(row.slot()) {
            Ok(histograms) => {
                // Rounds and values are told by no word here; samples come one a round.
                let (_, buckets) = histograms.histogram(histogram).unwrap();
                let is_torn = buckets.iter().sum::<u64>() > histograms.time_ns();
                found.torn += u64::from(is_torn);
                found.words += buckets.len() as u64;
            }
            Err(_) => found.given_up += 1,
        }
    }
}

/// A reader's process: reads until it is killed, and says what it found.
#[test]
fn reader_of_the_hammer() {
    let Ok(path) = env::var("HAMMER_FILE") else { return };
    let reader = Reader::open(Path::new(&path)).unwrap();
    while !reader.is_ended() {
        let mut found = Found::default();
        check(&reader, &mut found);
        println!("\nhammer {} {} {}", found.words, found.torn, found.given_up);
        stdout().flush().unwrap();
    }
}

fn start_reader(path: &Path) -> Child {
    let mut reader = Command::new(env::current_exe().unwrap());
    reader.args(["--exact", "reader_of_the_hammer", "--nocapture"]).env("HAMMER_FILE", path);
    reader.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Keeps one reader running and hurts it. Adds up what it says.
fn hurt(path: &Path, seed: u64, wanted: u64, totals: &[AtomicU64; 4]) {
    let mut random = seed;
    while totals[0].load(Ordering::Relaxed) < wanted {
        let mut child = start_reader(path);
        let said = child.stdout.take().unwrap();
        let listener = thread::spawn({
            move || {
                let mut sums = [0u64; 3];
                for line in BufReader::new(said).lines().map_while(Result::ok) {
                    let Some(numbers) = line.strip_prefix("hammer ") else { continue };
                    let numbers = numbers.split(' ').map(|it| it.parse::<u64>());
                    // The last line of a reader that was killed may be cut.
                    if let Ok(numbers) = numbers.collect::<Result<Vec<_>, _>>() {
                        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
                    }
                }
                sums
            }
        });
        let pid = Pid::from_child(&child);
        let mut wait = |most_ms: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            thread::sleep(Duration::from_millis((random >> 33) % most_ms));
        };
        for _ in 0..20 {
            wait(60);
            kill_process(pid, Signal::STOP).unwrap();
            wait(10);
            kill_process(pid, Signal::CONT).unwrap();
        }
        wait(50);
        child.kill().unwrap();
        child.wait().unwrap();
        let sums = listener.join().unwrap();
        totals.iter().zip(sums).for_each(|(total, sum)| {
            total.fetch_add(sum, Ordering::Relaxed);
        });
        totals[3].fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn no_copy_is_torn_beside_readers_that_are_stopped_and_killed() {
    let wanted = env::var("HAMMER_WORDS").map_or(10_000_000, |words| words.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hammered");
    let fields = fields();
    let service = Service {
        name: "hammered",
        egresses: EGRESSES.into(),
        fields: &fields,
        epoch_ns: 1,
        writer: (0, 1),
        seed: 1,
    };
    let access = Access { owner: None, group: None, mode: 0o600 };
    let writer = Writer::in_file(&service, &path, access).unwrap();
    let is_over = AtomicBool::new(false);
    let totals = [const { AtomicU64::new(0) }; 4];
    let rounds = thread::scope(|scope| {
        let writing = scope.spawn(|| write(writer, &is_over));
        let readers = (0..READERS as u64).map(|seed| {
            let (path, totals) = (&path, &totals);
            scope.spawn(move || hurt(path, seed, wanted, totals))
        });
        readers.collect::<Vec<_>>().into_iter().for_each(|reader| reader.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
        writing.join().unwrap()
    });
    let [words, torn, given_up, killed] = totals.map(AtomicU64::into_inner);
    println!(
        "{words} words read beside {rounds} publications, {killed} readers killed: {torn} torn, \
         {given_up} copies given up"
    );
    assert_eq!(torn, 0);
    assert!(words >= wanted && rounds > 1000);
}
