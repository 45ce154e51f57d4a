//! Measuring the classifiers of one set, in interleaved rounds on one core.

use std::hint::black_box;
use std::time::Instant;

use hdrhistogram::Histogram;
use policy::classifier::{Classifier, Linear, TableFull};
use policy::{Address, Filter, Key};

use crate::bench::threads::thread_s;
use fenxi::exit::Failure;

/// Our classifier among those that are compared.
pub const OURS: usize = 0;
/// TupleMerge (Daly et al., ToN 2019), where the learned classifier keeps what its models do not
/// cover. The fastest of three tuple space searches as in Open vSwitch took 14 to 18 times as long
/// as ours at 500,000 rules (23 November 2026), and is no longer compared.
pub const TUPLE_MERGE: usize = 1;
/// Names of both, in the order of [`built`].
pub const NAMES: [&str; 2] = ["learned", "TupleMerge"];

/// A classifier of a set.
struct Peer<A: Address> {
    finder: Classifier<A>,
    built_s: f64,
}

/// Keys that are looked up at a time.
const BATCH: usize = 32;
/// Rounds that count, at least.
const ROUNDS_MIN: usize = 5;
/// How long a round of one classifier and one trace takes, about.
const ROUND_S: f64 = 0.01;
/// Keys that are compared with linear search.
const SAMPLE: usize = 200;
/// Longest batch that is told from longer ones, ns.
const BATCH_NS_MAX: u64 = 100_000_000;

/// A classifier of a set on a trace.
pub struct Speed {
    /// Mean of each round, ns a key.
    rounds: Vec<f64>,
    /// Batches of all rounds.
    pub batch_ns: Histogram<u64>,
    /// Where the next round begins.
    next: usize,
    /// Batches of a round.
    batches: usize,
}

impl Speed {
    /// The median of the rounds.
    pub fn ns(&self) -> f64 {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(f64::total_cmp);
        rounds.get(rounds.len() / 2).copied().unwrap_or_default()
    }
}

/// A classifier of a set.
pub struct Outcome {
    pub built_s: f64,
    pub bytes_per_rule: f64,
    /// By trace.
    pub speeds: Vec<Speed>,
}

/// Measures all classifiers of a set on all traces for `seconds`.
///
/// # Errors
/// A classifier does not find what linear search finds.
pub fn measured<A: Address>(
    filters: &[Filter<A>],
    traces: &[Vec<Key<A>>],
    seconds: f64,
) -> Result<Vec<Outcome>, Failure> {
    let peers = built(filters)?;
    agree(filters, &peers, traces)?;
    let mut outcomes: Vec<Outcome> = peers
        .iter()
        .map(|peer| Outcome {
            built_s: peer.built_s,
            bytes_per_rule: peer.finder.describe().bytes as f64 / filters.len() as f64,
            speeds: traces.iter().map(|keys| first(&peer.finder, keys)).collect(),
        })
        .collect();
    let start = Instant::now();
    let mut round = 0;
    while round < ROUNDS_MIN || start.elapsed().as_secs_f64() < seconds {
        for (peer, outcome) in peers.iter().zip(&mut outcomes) {
            for (speed, keys) in outcome.speeds.iter_mut().zip(traces) {
                speed.round(&peer.finder, keys);
            }
        }
        round += 1;
    }
    Ok(outcomes)
}

/// Both classifiers of a set.
fn built<A: Address>(filters: &[Filter<A>]) -> Result<Vec<Peer<A>>, Failure> {
    type Build<A> = fn(&[Filter<A>]) -> Result<Classifier<A>, TableFull>;
    let timed = |build: Build<A>| -> Result<Peer<A>, Failure> {
        let start = Instant::now();
        let finder = build(filters).map_err(|error| Failure::data(error.to_string()))?;
        Ok(Peer { finder, built_s: start.elapsed().as_secs_f64() })
    };
    Ok(vec![timed(Classifier::new)?, timed(Classifier::untrained)?])
}

/// Warms up, and finds out how many batches a round has.
fn first<A: Address>(finder: &Classifier<A>, keys: &[Key<A>]) -> Speed {
    let batches = keys.len() / BATCH;
    let (start, mut done) = (Instant::now(), 0);
    let mut found = [None; BATCH];
    while done < batches && start.elapsed().as_secs_f64() < ROUND_S {
        finder.find(&keys[done * BATCH..][..BATCH], |_| true, &mut found);
        black_box(&found);
        done += 1;
    }
    let highest = Histogram::new_with_max(BATCH_NS_MAX, 3);
    Speed {
        rounds: Vec::new(),
        batch_ns: highest.unwrap_or_else(|error| unreachable!("{error}")),
        next: 0,
        batches: done.clamp(1, batches),
    }
}

impl Speed {
    /// One round: the mean of some batches, then the times of others, each.
    fn round<A: Address>(&mut self, finder: &Classifier<A>, keys: &[Key<A>]) {
        let all = keys.len() / BATCH;
        let mut found = [None; BATCH];
        let mut next = || {
            let batch = &keys[self.next * BATCH..][..BATCH];
            self.next = (self.next + 1) % all;
            finder.find(batch, |_| true, &mut found);
            black_box(&found);
        };
        let start_s = thread_s();
        (0..self.batches).for_each(|_| next());
        let elapsed_s = thread_s() - start_s;
        self.rounds.push(elapsed_s * 1e9 / (self.batches * BATCH) as f64);
        let mut before = Instant::now();
        for _ in 0..self.batches.div_ceil(2) {
            next();
            let now = Instant::now();
            self.batch_ns.saturating_record((now - before).as_nanos() as u64);
            before = now;
        }
    }
}

/// Compares all classifiers with linear search on a sample.
fn agree<A: Address>(
    filters: &[Filter<A>],
    peers: &[Peer<A>],
    traces: &[Vec<Key<A>>],
) -> Result<(), Failure> {
    let linear = Linear::new(filters);
    for keys in traces {
        let step = (keys.len() / SAMPLE).max(1);
        let sample: Vec<Key<A>> = keys.iter().step_by(step).copied().collect();
        let expected: Vec<_> = sample.iter().map(|key| linear.find(key, |_| true)).collect();
        for (peer, name) in peers.iter().zip(NAMES) {
            let mut found = vec![None; sample.len()];
            for (keys, found) in sample.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
                peer.finder.find(keys, |_| true, found);
            }
            if let Some(place) = (0..found.len()).find(|&place| found[place] != expected[place]) {
                return Err(Failure::software(format!(
                    "{name} finds rule {:?} for {:?}, linear search {:?}",
                    found[place], sample[place], expected[place]
                )));
            }
        }
    }
    Ok(())
}
