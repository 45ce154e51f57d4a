//! The packet path with rules: packets per second against the same path without, and, as a separate
//! bench, while rules are added.
//!
//! The packets come from [`mix`](crate::bench::mix). Each flow finds the rules of a tuple that lies
//! in one of them, so that look-ups find what they would find in the set's network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use dataplane::placement;
use dataplane::rules::{RulesInForce, RulesUpdate};
use policy::{Filter, Version};

use super::trace;
use super::updates::Changer;
use crate::bench::mix::{PACKETS_PER_S, RINGS, Ring, prepare, share, table, templates};
use crate::bench::report::{Figure, MPPS, Report};
use crate::bench::rig::{BURST, Rig};
use crate::bench::rounds::Rates;
use crate::bench::templates::Templates;
use crate::bench::threads::{joined, pin, thread_s};
use crate::cli::BenchArgs;
use crate::generate::rules::{Asked, generate};
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Rules of the sets, unless `--sizes` says otherwise.
const RULES: [u32; 2] = [500, 500_000];
/// Entries of the table, unless `--entries` says otherwise.
const ENTRIES: usize = 1 << 21;
/// Rules that are added at once.
const ADDED: usize = 10_000;
/// Tuples of flows.
const TUPLES: usize = 1 << 18;
/// Packets that are drawn at a time.
const PIECE: f64 = (1 << 19) as f64;
/// Packets in memory while rules are added.
const HELD: f64 = 6e6;
/// A window, and when in the turn rules are added.
const WINDOW: Duration = Duration::from_millis(10);
const ADDED_AT: Duration = Duration::from_millis(200);
/// A rate below this share of that without changes counts as a drop.
const DROPPED: f64 = 0.95;

/// Rules against none.
pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    report(args, "policy-walk", "rules", against_none)
}

/// While rules are added.
pub fn run_adding(args: &BenchArgs) -> Result<Report, Failure> {
    report(args, "policy-adding", "ms", while_added)
}

/// What is measured of a set: its pool, how many of its rules are in force at first, packets,
/// entries, seconds.
type Measured = fn(&[Filter<u32>], u32, &Templates, usize, f64) -> Result<Vec<Figure>, Failure>;

fn report(
    args: &BenchArgs,
    bench: &'static str,
    x: &'static str,
    measured: Measured,
) -> Result<Report, Failure> {
    let templates = templates(args.capture.as_deref())?;
    let seed = args.seeds.first().map_or("acl1", String::as_str);
    let entries = args.entries.unwrap_or(ENTRIES);
    let sizes = if args.sizes.is_empty() { &RULES[..] } else { &args.sizes };
    let mut figures = Vec::new();
    for &rules in sizes {
        let pool = generate(&Asked { seed, rules: rules as usize + ADDED, random: 1 })?;
        let seconds = args.seconds / sizes.len() as f64;
        figures.extend(measured(&pool, rules, &templates, entries, seconds)?);
    }
    Ok(Report {
        bench,
        title: "The whole packet path in memory with rules, one core",
        x,
        machine: Machine::here(flowmgr::Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

fn update(version: &Version, entries: usize) -> Result<RulesUpdate, Failure> {
    let rules = RulesInForce::of(version.policy.clone(), version.numbering);
    RulesUpdate::new(rules, entries, false).map_err(|error| Failure::software(error.to_string()))
}

/// `most` packets, or fewer for a smaller table (to try things out), but at least `least`.
fn piece_of(most: f64, least: f64, entries: usize) -> f64 {
    (most * entries as f64 / ENTRIES as f64).clamp(least, most)
}

/// Two rigs, one with rules and one without, take the same packets in turn.
fn against_none(
    pool: &[Filter<u32>],
    rules: u32,
    templates: &Templates,
    entries: usize,
    seconds: f64,
) -> Result<Vec<Figure>, Failure> {
    let changer = Changer::new(pool, rules as usize)?;
    let mut rigs = [Rig::new(table(entries))?, Rig::new(table(entries))?];
    let tuples = trace::uniform(&changer.store.rules().v4, TUPLES);
    rigs[1].begin_rules(update(changer.store.version(), entries)?, tuples);
    let mut senders = prepare(&mut rigs[0], templates, share(entries));
    drop(prepare(&mut rigs[1], templates, share(entries)));
    let mut ring = Ring::default();
    let mut rates = vec![[Rates::default(), Rates::default(), Rates::default()]; RINGS.len()];
    let (start, mut round) = (Instant::now(), 0);
    let warm_up = 2;
    let mut before = [0; 2];
    let mut packets = 0;
    while round < warm_up + 5 * RINGS.len() || start.elapsed().as_secs_f64() < seconds {
        if round == warm_up {
            before = rigs[1].rule_lookups();
            packets = 0;
        }
        let point = round % RINGS.len();
        let piece = piece_of(PIECE, PIECE / 16.0, entries);
        let drawn = senders.window(templates, piece / (PACKETS_PER_S * share(entries)));
        let mut elapsed_s = [0.0; 2];
        for (number, received) in drawn.chunks(RINGS[point]).enumerate() {
            // Neither is always the first.
            for turn in 0..2 {
                let rig = (number + turn) % 2;
                ring.fill(templates, received);
                let start_s = thread_s();
                ring.walk(&mut rigs[rig], BURST);
                elapsed_s[rig] += thread_s() - start_s;
            }
        }
        packets += drawn.len();
        if round >= warm_up {
            let [none_s, rules_s] = elapsed_s;
            let [none, with, ratio] = &mut rates[point];
            none.add(drawn.len() as f64 / none_s);
            with.add(drawn.len() as f64 / rules_s);
            ratio.add(none_s / rules_s);
        }
        round += 1;
    }
    let looked_up = rigs[1].rule_lookups();
    let lookups = (looked_up[0] - before[0]) as f64;
    let mut figures = Vec::new();
    for ([none, with, ratio], kind) in rates.iter().zip(["mix", "mix, headers out of cache"]) {
        figures.extend([
            Figure::millions(format!("{kind}, no rules"), MPPS, none),
            Figure::millions(format!("{kind}, rules"), MPPS, with),
            Figure {
                best: ratio.best(),
                ..Figure::one(format!("{kind}, rules against none"), "x", ratio.median())
            }
            .at_least(0.97),
        ]);
    }
    let unmatched = (looked_up[1] - before[1]) as f64 / lookups.max(1.0);
    figures.extend([
        Figure::one("look-ups of 1,000 packets", "", lookups / packets as f64 * 1e3),
        Figure::one("look-ups without a rule", "share", unmatched),
    ]);
    Ok(figures.into_iter().map(|it| it.at(f64::from(rules))).collect())
}

/// What a turn with or without an addition found.
struct Windows {
    /// Greatest drop of a window below the median before, as a share.
    drop: f64,
    /// How long windows were below [`DROPPED`] of it, ms, in all.
    below_ms: f64,
    /// From the beginning of the addition to its use, ms.
    in_use_ms: f64,
    /// Rates against the median before, by the number of [`WINDOW`] since the turn began.
    rates: BTreeMap<u128, f64>,
}

/// Packet rates in windows of 10 ms while rules are added, and in turns without.
fn while_added(
    pool: &[Filter<u32>],
    rules: u32,
    templates: &Templates,
    entries: usize,
    seconds: f64,
) -> Result<Vec<Figure>, Failure> {
    let mut changer = Changer::new(pool, rules as usize)?;
    let mut rig = Rig::new(table(entries))?;
    let tuples = trace::uniform(&changer.store.rules().v4, TUPLES);
    rig.begin_rules(update(changer.store.version(), entries)?, tuples);
    let mut senders = prepare(&mut rig, templates, share(entries));
    let mut rings: Vec<Ring> = Vec::new();
    let mut all = [Vec::new(), Vec::new()];
    let start = Instant::now();
    let mut turn = 0;
    // The first turn warms up, and does not count.
    while turn < 7 || start.elapsed().as_secs_f64() < seconds {
        // Rules are added in the middle of the walk, however small the table.
        let held = piece_of(HELD, HELD / 3.0, entries);
        let drawn = senders.window(templates, held / (PACKETS_PER_S * share(entries)));
        let pieces = drawn.chunks(RINGS[0]);
        rings.resize_with(pieces.len(), Ring::default);
        for (ring, received) in rings.iter_mut().zip(pieces) {
            ring.fill(templates, received);
        }
        let is_changed = turn % 2 == 0;
        let windows = one_turn(&mut changer, &mut rig, &mut rings, entries, is_changed)?;
        if turn > 0 {
            all[usize::from(is_changed)].push(windows);
        }
        turn += 1;
    }
    let [quiet, changed] = all;
    let figure = |name: &str, unit, turns: &[Windows], of: fn(&Windows) -> f64| {
        Figure::smaller(named(rules, name), unit, turns.iter().map(of).collect())
    };
    let mut figures = vec![
        figure("no changes: greatest drop", "share", &quiet, |it| it.drop),
        figure("10,000 added: greatest drop", "share", &changed, |it| it.drop).at_most(0.13),
        figure("no changes: below 95 %", "ms", &quiet, |it| it.below_ms),
        figure("10,000 added: below 95 %", "ms", &changed, |it| it.below_ms).at_most(150.0),
        figure("10,000 added: until in use", "ms", &changed, |it| it.in_use_ms),
    ];
    figures.extend(by_time(&named(rules, "no changes: rate"), &quiet));
    figures.extend(by_time(&named(rules, "10,000 added: rate"), &changed));
    Ok(figures)
}

fn named(rules: u32, what: &str) -> String {
    format!("{rules} rules, {what}")
}

/// The median rate of turns at each time since their addition, as far as most of them went.
fn by_time(line: &str, turns: &[Windows]) -> Vec<Figure> {
    let windows: BTreeSet<u128> = turns.iter().flat_map(|it| it.rates.keys().copied()).collect();
    let figures = windows.into_iter().filter_map(|window| {
        let mut rates = Rates::default();
        turns.iter().filter_map(|it| it.rates.get(&window)).for_each(|rate| rates.add(*rate));
        let at_ms = (window * WINDOW.as_millis()) as f64 - ADDED_AT.as_millis() as f64;
        let is_common = 2 * rates.len() > turns.len();
        is_common.then(|| Figure::one(line, "share", rates.median()).at(at_ms))
    });
    figures.collect()
}

/// Walks the packets while another thread adds rules, or adds none.
fn one_turn(
    changer: &mut Changer<'_>,
    rig: &mut Rig,
    rings: &mut [Ring],
    entries: usize,
    is_changed: bool,
) -> Result<Windows, Failure> {
    let (give, newer) = channel();
    let (back, returned) = channel();
    let begun = Instant::now();
    let other = 1.min(placement::usable().len().max(1) - 1);
    thread::scope(|scope| {
        let changing = scope.spawn(move || {
            pin(other);
            if is_changed { added(changer, entries, &give, &returned) } else { Ok(()) }
        });
        let walking = scope.spawn(move || {
            pin(0);
            windows(rig, rings, &newer, &back, begun)
        });
        let windows = joined(walking);
        joined(changing)?;
        Ok(windows)
    })
}

/// Adds rules, and later deletes others, so that the set stays as large.
fn added(
    changer: &mut Changer<'_>,
    entries: usize,
    give: &Sender<(RulesUpdate, Instant)>,
    returned: &Receiver<RulesUpdate>,
) -> Result<(), Failure> {
    let failed = |error: policy::StoreError| Failure::software(error.to_string());
    thread::sleep(ADDED_AT);
    let begun = Instant::now();
    let version = changer.change(ADDED, 0).map_err(failed)?;
    // The walk may be over.
    let _ = give.send((update(&version, entries)?, begun));
    let _ = returned.recv();
    // The training that a live run begins now, and its rules in force.
    if let Some(training) = changer.store.training(Instant::now()) {
        let trained = training.run().map_err(policy::PolicyError::from);
        let adopted = trained.and_then(|it| changer.store.adopt(it, Instant::now()).cloned());
        let version = adopted.map_err(|error| failed(error.into()))?;
        let _ = give.send((update(&version, entries)?, Instant::now()));
        let _ = returned.recv();
    }
    // After the walk: the rules as they were.
    while returned.recv().is_ok() {}
    changer.change(0, ADDED).map_err(failed)?;
    Ok(())
}

/// Rates in windows; compared with those before rules are added.
fn windows(
    rig: &mut Rig,
    rings: &mut [Ring],
    newer: &Receiver<(RulesUpdate, Instant)>,
    back: &Sender<RulesUpdate>,
    begun: Instant,
) -> Windows {
    let (mut rates, mut in_use_ms) = (Vec::new(), 0.0);
    let (mut from, mut packets) = (Instant::now(), 0);
    for ring in rings {
        if let Ok((mut update, committed)) = newer.try_recv() {
            rig.change_rules(&mut update);
            if in_use_ms == 0.0 {
                in_use_ms = committed.elapsed().as_secs_f64() * 1e3;
            }
            // Nobody takes it where the other thread has failed.
            let _ = back.send(update);
        }
        ring.walk(rig, BURST);
        packets += ring.len();
        let elapsed = from.elapsed();
        if elapsed >= WINDOW {
            rates.push((begun.elapsed(), packets as f64 / elapsed.as_secs_f64(), elapsed));
            (from, packets) = (Instant::now(), 0);
        }
    }
    let mut quiet = Rates::default();
    let before = rates.iter().filter(|(at, ..)| *at < ADDED_AT);
    before.for_each(|(_, rate, _)| quiet.add(*rate));
    let after = || rates.iter().filter(|(at, ..)| *at >= ADDED_AT);
    let least = after().map(|(_, rate, _)| *rate).fold(f64::MAX, f64::min);
    let below = after().filter(|(_, rate, _)| *rate < DROPPED * quiet.median());
    let number = |at: &Duration| at.as_nanos() / WINDOW.as_nanos();
    Windows {
        rates: rates.iter().map(|(at, rate, _)| (number(at), rate / quiet.median())).collect(),
        drop: 1.0 - least / quiet.median(),
        below_ms: below.map(|(.., elapsed)| elapsed.as_secs_f64() * 1e3).sum(),
        in_use_ms,
    }
}
