//! The cost of flow expiry per poll. The sweep advances with packet time, so polls are measured
//! with time advancing and with time standing still.
//!
//! A poll is the smallest burst there is: one packet of a labelled flow. The table has as many
//! buckets as entries and is half full, so that the sweep has many buckets to visit. One
//! millisecond between polls is the sweep's own step; polls at shorter intervals do less of it.
//! After a pause a whole round over the table is due; each poll does a bounded part. The last two
//! results show how long that takes, with live flows and with flows that have all ended.

use hdrhistogram::Histogram;

use super::frames::{Frames, Tuple};
use super::report::{Figure, Report};
use super::rig::{Rig, Table};
use super::rounds::interleave;
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

const MS_NS: u64 = 1_000_000;
/// Idle timeout of the flows that end, and how long one round over the table takes.
const IDLE_S: u64 = 5;
/// Polls until silent flows are over: stamps are in whole seconds.
const POLLS_UNTIL_OVER: usize = 1000 * (IDLE_S as usize + 1);
/// Polls that one round over the table takes.
const POLLS: usize = 1000 * IDLE_S as usize;
/// Frames that polls find in turn.
const FRAMES: usize = 1 << 10;
/// Time between the polls of a pause.
const PAUSE_NS: u64 = 60_000 * MS_NS;
const PAUSES: usize = 5;

const CASES: [&str; 5] = [
    "no time between polls",
    "1 ms between polls",
    "1 ms between polls, all flows end",
    "after a pause of 60 s",
    "after a pause of 60 s, all flows end",
];

/// A loaded table, and what it takes to load it again.
struct Loaded {
    rig: Rig,
    frames: Frames,
    flows: usize,
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries.unwrap_or(1 << 22);
    let (mut staying, mut ending) = (
        Loaded::new(entries, Table::with_entries(entries).idle_timeout_s)?,
        Loaded::new(entries, IDLE_S as u16)?,
    );
    staying.load();
    let mut runs = vec![Vec::new(); CASES.len()];
    interleave(args.seconds, CASES.len(), |case| {
        let histogram = match case {
            0 => staying.polls(POLLS, 0),
            1 => staying.polls(POLLS, MS_NS),
            2 => {
                ending.load();
                ending.polls(POLLS_UNTIL_OVER, MS_NS);
                ending.polls(POLLS, MS_NS)
            }
            3 => staying.polls(PAUSES, PAUSE_NS),
            _ => {
                ending.load();
                ending.polls(1, PAUSE_NS)
            }
        };
        runs[case].push(histogram);
        0.0
    });
    Ok(Report {
        bench: "sweep",
        title: "Expiry: time of a poll of one packet, half full table",
        x: "",
        machine: Machine::here(staying.rig.pages()),
        figures: figures(&runs),
        skipped: Vec::new(),
    })
}

impl Loaded {
    fn new(entries: usize, idle_timeout_s: u16) -> Result<Loaded, Failure> {
        let flows = entries / 2;
        let mut rng = Rng::new(1);
        Ok(Loaded {
            rig: Rig::new(Table {
                buckets: entries,
                idle_timeout_s,
                ..Table::with_entries(entries)
            })?,
            frames: Frames::new(FRAMES, |_| Tuple::from_flow(rng.below(flows as u32))),
            flows,
        })
    }

    fn load(&mut self) {
        self.rig.preload(self.flows, |i| Tuple::from_flow(i as u32));
    }

    /// Polls `count` times; returns the durations, ns.
    fn polls(&mut self, count: usize, gap_ns: u64) -> Histogram<u64> {
        let mut histogram = nanoseconds();
        for i in 0..count {
            let took = self.rig.poll(&mut self.frames, i % FRAMES, gap_ns);
            histogram.saturating_record(took.as_nanos() as u64);
        }
        histogram
    }
}

/// Up to a minute, exact to 0.1 %.
#[expect(clippy::expect_used, reason = "constant bounds, met by every run")]
fn nanoseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000 * MS_NS, 3)
        .expect("1 ns to a minute can be counted with 3 digits")
}

fn figures(runs: &[Vec<Histogram<u64>>]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |case: usize, of: &str, quantile| {
        // The first run only warmed up.
        let line = format!("{}: {of}", CASES[case]);
        figures.push(Figure::quantile(line, "µs", 1e3, &runs[case][1..], quantile));
    };
    for case in 0..3 {
        add(case, "median", 0.5);
        add(case, "p99", 0.99);
        add(case, "largest", 1.0);
    }
    add(3, "largest", 1.0);
    add(4, "the poll", 1.0);
    let (still_us, moving_us) = (figures[0].median, figures[3].median);
    let share = (moving_us - still_us).max(0.0) / 1e3;
    figures.push(Figure::one("sweep, share of a core", "share", share));
    figures
}
