//! Throughput of the whole analytics manager, compared with a bare loop over the same device.
//!
//! *Manager*: the ring is filled, which is not timed; then rounds run until the last series has
//! its label: ring, batching, gathering from the slots, device, label words, counters. The cache
//! is off. *Bare loop*: the same rows, from one array in memory, are copied into an equal device's
//! input, batch after batch of the same size. Both take turns, a ring's contents each, so that a
//! disturbance of the machine affects both. The bar applies to the batch size that is the
//! manager's best.

use std::hint::black_box;
use std::time::Instant;

use accel::{Bundle, Device};
use analytics::Manager;
use flowmgr::Pages;

use super::golden::golden_series;
use super::{CARRY_OVER, SLOTS, bundles, cpu, manager};
use crate::bench::report::{Figure, Report};
use crate::bench::rounds::{Rates, interleave};
use crate::cli::BenchArgs;
use fenxi::exit::Failure;
use fenxi::machine::Machine;
use fenxi_benches::series::Feed;

/// Largest batch sizes that are measured; each divides the ring, so that all batches are full.
const CAPS: [usize; 5] = [64, 128, 256, 512, 1024];
/// Measurements at each size: manager, bare loop, and their ratio.
const POINTS: usize = 3;
const RATE: &str = "M class/s";

/// A manager and a bare device, with batches of one size.
struct Contest {
    cap: usize,
    feed: Feed,
    manager: Manager,
    /// The clock of the rounds.
    started: Instant,
    bare: Box<dyn Device>,
    /// What the feed sends, as rows of the model's input.
    rows: Vec<f32>,
    row_len: usize,
    /// Rates of the last turn: manager, bare loop.
    last: (f64, f64),
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let bundles = bundles(args)?;
    let mut figures = Vec::new();
    for bundle in &bundles {
        figures.extend(contest(bundle, args.seconds / bundles.len() as f64)?);
    }
    Ok(Report {
        bench: "analytics",
        title: "Throughput on one core: the whole analytics manager, compared with a bare loop \
            over the device",
        x: "batch",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

/// All batch sizes with one model.
fn contest(bundle: &Bundle, seconds: f64) -> Result<Vec<Figure>, Failure> {
    let mut contests = Vec::new();
    for cap in CAPS {
        contests.push(Contest::new(bundle, cap)?);
    }
    let rates = interleave(seconds, POINTS * CAPS.len(), |point| {
        let contest = &mut contests[point / POINTS];
        if point % POINTS == 0 {
            contest.last = (contest.turn_of_manager(), contest.turn_of_bare_loop());
        }
        let (manager, bare) = contest.last;
        [manager, bare, manager / bare][point % POINTS]
    });
    if let Some(contest) = contests.iter().find(|contest| !contest.all_labelled()) {
        let error = format!("series without a label at batches of {}", contest.cap);
        return Err(Failure::software(error));
    }
    Ok(figures(bundle.name(), &rates))
}

impl Contest {
    fn new(bundle: &Bundle, cap: usize) -> Result<Contest, Failure> {
        let (feed, inlet) = Feed::new(golden_series(bundle), SLOTS);
        let inputs = bundle.golden().inputs.iter().cycle();
        let accelerators = vec![cpu(bundle, cap)?.into()];
        Ok(Contest {
            cap,
            feed,
            manager: manager(CARRY_OVER, bundle.k(), Vec::new(), inlet, accelerators)?,
            started: Instant::now(),
            bare: cpu(bundle, cap)?,
            rows: inputs.take(SLOTS).flatten().copied().collect(),
            row_len: bundle.shape().row_len(),
            last: (0.0, 0.0),
        })
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// A full ring through the manager; series per second.
    fn turn_of_manager(&mut self) -> f64 {
        let count = self.feed.fill(self.now_ns());
        let goal = self.manager.tasks()[0].counters().series + count as u64;
        let start = Instant::now();
        while self.manager.tasks()[0].counters().series < goal
            || self.manager.tasks()[0].counters().undecided() > 0
        {
            self.manager.round(self.now_ns());
        }
        count as f64 / start.elapsed().as_secs_f64()
    }

    /// As many rows through the bare device; series per second.
    fn turn_of_bare_loop(&mut self) -> f64 {
        let start = Instant::now();
        for batch in self.rows.chunks_exact(self.cap * self.row_len) {
            self.bare.input(self.cap).copy_from_slice(batch);
            // A device that fails is found out by the manager's counters.
            let submitted = self.bare.submit(self.cap);
            black_box((submitted.is_ok(), self.bare.poll().is_some()));
        }
        SLOTS as f64 / start.elapsed().as_secs_f64()
    }

    fn all_labelled(&self) -> bool {
        let counters = self.manager.tasks()[0].counters();
        counters.inferred == counters.series && counters.post_mortem == 0 && self.feed.shed == 0
    }
}

fn figures(model: &str, rates: &[Rates]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (rates, cap) in rates.chunks_exact(POINTS).zip(CAPS) {
        let [manager, bare, share] = rates else {
            continue;
        };
        let at = |figure: Figure| figure.at(cap as f64);
        figures.push(at(Figure::millions(format!("{model}: manager"), RATE, manager)));
        figures.push(at(Figure::millions(format!("{model}: bare loop"), RATE, bare)));
        figures.push(at(share_of(format!("{model}: share"), share)));
    }
    let median = |&(_, rates): &(usize, &[Rates])| rates[0].median();
    let by_cap = CAPS.into_iter().zip(rates.chunks_exact(POINTS));
    if let Some((cap, best)) = by_cap.max_by(|a, b| median(a).total_cmp(&median(b))) {
        figures.push(Figure::one(format!("{model}: best batch"), "rows", cap as f64));
        let line = format!("{model}: share of the bare loop at the best batch");
        figures.push(share_of(line, &best[2]).at_least(0.95));
    }
    figures
}

fn share_of(line: String, shares: &Rates) -> Figure {
    Figure { best: shares.best(), ..Figure::one(line, "share", shares.median()) }
}
