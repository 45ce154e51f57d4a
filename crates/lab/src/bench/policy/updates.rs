//! Rules added and deleted while flows are looked up: how many a second, how soon they count, and
//! what look-ups cost meanwhile.
//!
//! Three threads, as in a live run: one looks keys up and takes the newest version at each batch,
//! one changes the rules, one trains. The first has a core of its own. The rules of a set are
//! drawn from a larger one, whose others are those that are added, each at its place among all;
//! those that are deleted go back to them.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use dataplane::placement;
use flowmgr::Pages;
use hdrhistogram::Histogram;
use policy::classifier::TableFull;
use policy::rule::{Condition, RuleAction};
use policy::{
    Ask, Dscp, Facts, Filter, Names, Rank, RuleNumber, RuleSet, Store, StoreError, Trained,
    Training, Tuple, Update, Version,
};

use super::trace;
use crate::bench::report::{Figure, Report};
use crate::bench::threads::{joined, pin};
use crate::cli::BenchArgs;
use crate::generate::rules::{Asked, generate};
use crate::rng::Rng;
use fenxi::exit::{Failure, remark};
use fenxi::machine::Machine;

/// Rules of the set, unless `--sizes` says otherwise.
const RULES: u32 = 500_000;
/// Changes of a batch, half of them additions.
const SIZES: [usize; 4] = [1, 100, 1_000, 10_000];
/// Changes a second that are to be sustained.
const BAR_PER_S: f64 = 60_000.0;
/// Share of the rules that models must find meanwhile.
const BAR_COVERAGE: f64 = 0.9;
/// Keys that are looked up at a time, and in all.
const BATCH: usize = 32;
const KEYS: usize = 1 << 18;
/// How long the changing thread waits for the version before to come back; afterwards it copies
/// the rules.
const PATIENCE: Duration = Duration::from_millis(2);
/// For how long of it the thread does not give up its core.
const SOON: Duration = Duration::from_micros(100);
/// Longest time until a change is in use, ns.
const LONGEST_NS: u64 = 10_000_000_000;

/// Part of a turn before the first change.
const QUIET: f64 = 0.25;

/// What is measured.
struct Turn {
    /// Changes a second; `None`: as fast as the thread can.
    pace: Option<f64>,
    /// Changes of a batch.
    batch: usize,
}

/// What a turn found.
struct Outcome {
    changed: Changed,
    in_use_ns: Histogram<u64>,
    /// Without changes, and with them.
    lookup_ns: [f64; 2],
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let rules = args.sizes.first().copied().unwrap_or(RULES);
    let seeds = match args.seeds.is_empty() {
        true => vec!["acl1".to_owned()],
        false => args.seeds.clone(),
    };
    // A small set lacks rules to add for the larger batches.
    let sizes = SIZES.into_iter().filter(|batch| batch / 2 <= rules as usize / 5);
    let of_pace = |pace| sizes.clone().map(move |batch| Turn { pace, batch });
    let turns: Vec<Turn> = of_pace(Some(BAR_PER_S)).chain(of_pace(None)).collect();
    let seconds = args.seconds / (seeds.len() * turns.len()) as f64;
    remark(placement())?;
    let mut figures = Vec::new();
    for seed in &seeds {
        let pool =
            generate(&Asked { seed, rules: rules as usize + rules as usize / 5, random: 1 })?;
        for turn in &turns {
            let outcome = measured(&pool, rules as usize, turn, seconds)?;
            figures.extend(told(seed, turn, &outcome));
        }
    }
    Ok(Report {
        bench: "policy-updates",
        title: "Rules added and deleted while flows are looked up",
        x: "rules a batch",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

/// Which thread ran where.
fn placement() -> &'static str {
    match placement::usable().len() {
        1 => "1 core for all threads: look-ups are slower than with a core of their own\n",
        2 => "2 cores: look-ups on the first; changes and trainings share the second\n",
        _ => "3 cores: look-ups on the first, changes on the second, trainings on the third\n",
    }
}

fn told(seed: &str, turn: &Turn, outcome: &Outcome) -> Vec<Figure> {
    let name = |what: &str| match turn.pace {
        Some(pace) => format!("{seed}, {:.0} k/s: {what}", pace / 1e3),
        None => format!("{seed}, unbounded: {what}"),
    };
    let [quiet_ns, lookup_ns] = outcome.lookup_ns;
    let Changed { changes, elapsed_s, coverage, trainings, copies } = outcome.changed;
    let mut changes = Figure::one(name("changes"), "k/s", changes as f64 / elapsed_s / 1e3);
    let mut coverage = Figure::one(name("least coverage"), "share", coverage);
    if let Some(pace) = turn.pace {
        // The pacing itself may be late by a batch.
        changes = changes.at_least((pace / 1e3 * 0.99).floor());
        coverage = coverage.at_least(BAR_COVERAGE);
    }
    let in_use = |what: &str, quantile: f64| {
        let ns = outcome.in_use_ns.value_at_quantile(quantile) as f64;
        Figure::one(name(&format!("batch begun to use, {what}")), "ms", ns / 1e6)
    };
    let figures = [
        changes,
        coverage,
        Figure::one(name("trainings"), "", f64::from(trainings)),
        Figure::one(name("batches that copied the rules"), "", f64::from(copies)),
        in_use("p50", 0.5),
        in_use("p99", 0.99),
        in_use("largest", 1.0),
        Figure::one(name("look-up"), "ns", lookup_ns),
        Figure::one(name("look-up, against without changes"), "x", lookup_ns / quiet_ns),
    ];
    let x = turn.batch as f64;
    figures.into_iter().map(|figure| figure.at(x)).collect()
}

/// One turn, with a store of its own.
fn measured(
    pool: &[Filter<u32>],
    rules: usize,
    turn: &Turn,
    seconds: f64,
) -> Result<Outcome, Failure> {
    let mut changer = Changer::new(pool, rules)?;
    let ask = |key| Ask { tuple: Tuple::V4(key), facts: Facts::default() };
    let asks: Vec<Ask> =
        trace::uniform(&changer.store.rules().v4, KEYS).into_iter().map(ask).collect();
    let cores = placement::usable().len().max(1);
    let phase = AtomicU8::new(0);
    let (give, take) = channel();
    let (back, returned) = channel();
    let (train, trainings) = channel();
    let (trained, finished) = channel();
    let (first, phases) = (changer.store.version().clone(), &phase);
    let (changed, lookup_ns, in_use_ns) = thread::scope(|scope| {
        let looking = scope.spawn(move || look_up(&asks, first, &take, &back, phases));
        scope.spawn(move || {
            pin(2.min(cores - 1));
            for training in trainings {
                let training: Training = training;
                if trained.send(training.run()).is_err() {
                    return;
                }
            }
        });
        let ways = Ways { give, returned, train, finished };
        let changing = scope.spawn(move || {
            pin(1.min(cores - 1));
            thread::sleep(Duration::from_secs_f64(seconds * QUIET));
            phases.store(CHANGING, Ordering::Relaxed);
            let changed = changer.run(turn, seconds * (1.0 - QUIET), ways);
            phases.store(OVER, Ordering::Relaxed);
            changed
        });
        let changed = joined(changing);
        let (lookup_ns, in_use_ns) = joined(looking);
        (changed, lookup_ns, in_use_ns)
    });
    let changed = changed.map_err(|error| Failure::software(error.to_string()))?;
    Ok(Outcome { changed, in_use_ns, lookup_ns })
}

/// A version, and when its batch began; `None` behind a training.
type Made = (Version, Option<Instant>);

/// Phases of a turn: no changes (0), changes, the end.
const CHANGING: u8 = 1;
const OVER: u8 = 2;

/// Looks keys up until the end; ns a key by phase, and the times from the beginning of a batch to
/// its use.
fn look_up(
    asks: &[Ask],
    mut version: Version,
    newer: &Receiver<Made>,
    back: &Sender<Version>,
    phase: &AtomicU8,
) -> ([f64; 2], Histogram<u64>) {
    pin(0);
    let mut in_use_ns =
        Histogram::new_with_max(LONGEST_NS, 3).unwrap_or_else(|error| unreachable!("{error}"));
    let (mut decisions, gates) = (Vec::with_capacity(BATCH), policy::Gates::default());
    let mut lookup_ns = [0.0; 2];
    let (mut now_in, mut begun, mut looked_up) = (0, Instant::now(), 0);
    for asks in asks.chunks(BATCH).cycle() {
        while let Ok((next, committed)) = newer.try_recv() {
            if let Some(committed) = committed {
                in_use_ns.saturating_record(committed.elapsed().as_nanos() as u64);
            }
            // Nobody takes it where the changes are over.
            let _ = back.send(std::mem::replace(&mut version, next));
        }
        version.policy.decide(asks, &gates, &mut decisions);
        black_box(&decisions);
        looked_up += asks.len();
        let phase = phase.load(Ordering::Relaxed);
        if phase != now_in {
            lookup_ns[usize::from(now_in)] = begun.elapsed().as_nanos() as f64 / looked_up as f64;
            (now_in, begun, looked_up) = (phase, Instant::now(), 0);
        }
        if phase == OVER {
            break;
        }
    }
    (lookup_ns, in_use_ns)
}

/// How the changing thread reaches the others.
struct Ways {
    give: Sender<Made>,
    returned: Receiver<Version>,
    train: Sender<Training>,
    finished: Receiver<Result<Trained, TableFull>>,
}

/// What the changing thread did.
#[derive(Clone, Copy, Default)]
struct Changed {
    changes: usize,
    elapsed_s: f64,
    coverage: f64,
    trainings: u32,
    copies: u32,
}

/// The store, and which rules can be added and deleted.
pub struct Changer<'a> {
    pub store: Store,
    pool: &'a [Filter<u32>],
    /// Rules that are there: their numbers, and their places in the pool.
    live: Vec<(RuleNumber, u32)>,
    /// Places of the others.
    absent: Vec<u32>,
    rng: Rng,
}

impl<'a> Changer<'a> {
    /// Starts with `rules` rules of the pool.
    pub fn new(pool: &'a [Filter<u32>], rules: usize) -> Result<Changer<'a>, Failure> {
        let mut rng = Rng::new(2);
        let mut places: Vec<u32> = (0..pool.len() as u32).collect();
        rng.shuffle(&mut places);
        let absent = places.split_off(rules);
        let mut set = RuleSet::default();
        let live = places.into_iter().map(|place| Ok((add(&mut set, pool, place)?, place)));
        let live = live.collect::<Result<_, policy::TooManyRules>>();
        let live = live.map_err(|error| Failure::software(error.to_string()))?;
        let store = Store::new(set, Names::default(), Update::Instant);
        let store = store.map_err(|error| Failure::software(error.to_string()))?;
        Ok(Changer { store, pool, live, absent, rng })
    }

    /// Makes changes for `seconds`.
    fn run(&mut self, turn: &Turn, seconds: f64, ways: Ways) -> Result<Changed, StoreError> {
        let rules = self.live.len();
        let mut changed = Changed { coverage: self.coverage(), ..Changed::default() };
        let start = Instant::now();
        let mut outstanding = 0;
        while start.elapsed().as_secs_f64() < seconds {
            let due = turn.pace.map_or(f64::MAX, |pace| pace * start.elapsed().as_secs_f64());
            if (changed.changes as f64) < due {
                if !self.take_back(&ways.returned, &mut outstanding) {
                    changed.copies += 1;
                }
                // Half of a batch adds, half deletes; a batch of one does so in turn.
                let additions = match turn.batch {
                    1 => usize::from(self.live.len() <= rules),
                    batch => batch / 2,
                };
                let begun = Instant::now();
                let version = self.change(additions, turn.batch - additions)?;
                changed.changes += turn.batch;
                outstanding += 1;
                // The other end goes after this one.
                let _ = ways.give.send((version, Some(begun)));
            } else {
                thread::sleep(Duration::from_micros(100));
            }
            self.train(&ways, &mut changed, &mut outstanding)?;
        }
        changed.elapsed_s = start.elapsed().as_secs_f64();
        changed.coverage = changed.coverage.min(self.coverage());
        Ok(changed)
    }

    /// Waits for the version before, so that the next batch need not copy the rules. Whether it
    /// came in time.
    fn take_back(&mut self, returned: &Receiver<Version>, outstanding: &mut usize) -> bool {
        let from = Instant::now();
        let mut is_of_use = false;
        while *outstanding > 0 && from.elapsed() < PATIENCE {
            match returned.try_recv() {
                Ok(version) => {
                    *outstanding -= 1;
                    is_of_use |= self.store.give_back(version);
                }
                // It comes with the next batch of look-ups, while a training that gets the core
                // keeps it for milliseconds.
                Err(TryRecvError::Empty) if from.elapsed() < SOON => std::hint::spin_loop(),
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        is_of_use
    }

    /// A batch of additions and deletions, drawn at random.
    pub fn change(&mut self, additions: usize, deletions: usize) -> Result<Version, StoreError> {
        let mut batch = self.store.batch();
        let mut added = Vec::with_capacity(additions);
        for _ in 0..additions {
            let place = self.rng.below(self.absent.len() as u32) as usize;
            let place = self.absent.swap_remove(place);
            let number = batch.add(|rules| add(rules, self.pool, place));
            let number = number.map_err(|_| policy::PolicyError::from(TableFull))?;
            added.push((number, place));
        }
        for _ in 0..deletions {
            let place = self.rng.below(self.live.len() as u32) as usize;
            let (number, place) = self.live.swap_remove(place);
            batch.delete(number)?;
            self.absent.push(place);
        }
        self.live.extend(added);
        batch.commit()
    }

    /// The least that models may find of the rules that are there: all but those in hash tables,
    /// some of which may be deleted.
    fn coverage(&self) -> f64 {
        let [v4, _] = self.store.version().policy.describe();
        1.0 - v4.remainder as f64 / self.live.len() as f64
    }

    /// Begins a training where one is due, and takes one that is over.
    fn train(
        &mut self,
        ways: &Ways,
        changed: &mut Changed,
        outstanding: &mut usize,
    ) -> Result<(), StoreError> {
        if let Some(training) = self.store.training(Instant::now()) {
            // The training thread goes after this one.
            let _ = ways.train.send(training);
        }
        if let Ok(trained) = ways.finished.try_recv() {
            let trained = trained.map_err(policy::PolicyError::from)?;
            // The hash tables only grow between trainings.
            changed.coverage = changed.coverage.min(self.coverage());
            let version = self.store.adopt(trained, Instant::now())?.clone();
            let _ = ways.give.send((version, None));
            *outstanding += 1;
            changed.trainings += 1;
        }
        Ok(())
    }
}

/// Adds the rule at a place of the pool, with its rank among all of the pool.
fn add(
    set: &mut RuleSet,
    pool: &[Filter<u32>],
    place: u32,
) -> Result<RuleNumber, policy::TooManyRules> {
    let action = RuleAction { dscp: Dscp::new(place as u8 & Dscp::MAX), ..RuleAction::default() };
    let priority = pool.len() as u32 - place;
    let (number, rank): (RuleNumber, Rank) =
        set.push(priority, Condition::default(), action, (0, 0))?;
    set.v4.push(Filter { rule: number, rank, ..pool[place as usize] });
    Ok(number)
}
