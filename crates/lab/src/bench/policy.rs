//! Finding the rules of keys: fenxi's learned classifier beside TupleMerge, on sets in the manner
//! of ClassBench, in one run.
//!
//! Every classifier gets the same keys in batches, and all are first compared with linear search.
//! Times of sets of one size are averaged geometrically.

mod measure;
mod trace;
pub mod updates;
pub mod walk;

use flowmgr::Pages;

use super::report::{Figure, Report};
use crate::cli::BenchArgs;
use crate::generate::rules::{Asked, SEEDS, generate};
use fenxi::exit::{Failure, remark};
use fenxi::machine::Machine;
use measure::{NAMES, OURS, Outcome, TUPLE_MERGE, measured};

/// Rules of a set, unless `--sizes` says otherwise.
const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 500_000];
/// Names of the traces.
const TRACES: [&str; 2] = ["uniform", "Zipf(1.1)"];
/// Keys of a trace.
const KEYS: usize = 1 << 18;
/// The exponent with which 3 % of 500,000 flows have 86 % of the packets; of 1,000 flows, 3 % have
/// 62 %.
const ZIPF: f64 = 1.1;

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let sizes = if args.sizes.is_empty() { &SIZES[..] } else { &args.sizes };
    let mut seeds: Vec<&str> = args.seeds.iter().map(String::as_str).collect();
    if seeds.is_empty() {
        seeds = SEEDS.to_vec();
    }
    let seconds = args.seconds / (sizes.len() * seeds.len()) as f64;
    let mut figures = Vec::new();
    for &size in sizes {
        let mut sets = Vec::new();
        for &seed in &seeds {
            let filters = generate(&Asked { seed, rules: size as usize, random: 1 })?;
            let traces = [trace::uniform(&filters, KEYS), trace::zipf(&filters, ZIPF, KEYS)];
            let outcomes = measured(&filters, &traces, seconds)?;
            remark(&line(seed, size, &outcomes))?;
            sets.push(outcomes);
        }
        figures.extend(of_size(&sets, size));
    }
    Ok(Report {
        bench: "policy",
        title: "Finding the rules of keys, one core, batches of 32; geometric means of sets",
        x: "rules",
        machine: Machine::here(Pages::Plain),
        figures,
        skipped: Vec::new(),
    })
}

/// A set, as progress.
fn line(seed: &str, size: u32, outcomes: &[Outcome]) -> String {
    let mut line = format!("{seed} {size}:");
    for (outcome, peer) in outcomes.iter().zip(NAMES) {
        let times = outcome.speeds.iter().zip(TRACES);
        let times = times.map(|(speed, name)| format!("{:.0} {name}", speed.ns()));
        let times: Vec<String> = times.collect();
        line += &format!("  {peer} ns {} built {:.2} s;", times.join(", "), outcome.built_s);
    }
    line.trim_end_matches(';').to_owned() + "\n"
}

fn geometric(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .fold((0.0, 0.0), |(sum, count), value: f64| (sum + value.max(1e-9).ln(), count + 1.0));
    (sum / f64::max(count, 1.0)).exp()
}

fn of_size(sets: &[Vec<Outcome>], size: u32) -> impl Iterator<Item = Figure> {
    let speeds = TRACES.into_iter().enumerate();
    let speeds = speeds.flat_map(|(trace, name)| of_trace(sets, size, trace, name));
    let figures: Vec<Figure> = speeds.chain(of_building(sets, size)).collect();
    figures.into_iter().map(move |figure| figure.at(f64::from(size)))
}

/// Sizes that bars are for.
const LARGE: u32 = 500_000;
const MIDDLE: u32 = 100_000;
const SMALL: u32 = 1_000;

/// How fast the classifiers of sets of one size are on a trace.
fn of_trace(sets: &[Vec<Outcome>], size: u32, trace: usize, name: &str) -> Vec<Figure> {
    let ns = |set: &[Outcome], peer: usize| set[peer].speeds[trace].ns();
    let mut figures: Vec<Figure> = NAMES
        .iter()
        .enumerate()
        .map(|(peer, label)| {
            let mean = geometric(sets.iter().map(|set| ns(set, peer)));
            let figure = Figure::one(format!("{label}, {name}"), "ns", mean);
            match peer == OURS && size == LARGE {
                true => figure.at_most(100.0),
                false => figure,
            }
        })
        .collect();
    let ours = |set: &[Outcome]| ns(set, OURS);
    let ratios = sets.iter().map(|set| ns(set, TUPLE_MERGE) / ours(set));
    let line = format!("speed-up over TupleMerge, {name}");
    let speed_up = Figure::one(line, "x", geometric(ratios));
    figures.push(match size {
        LARGE => speed_up.at_least(2.0),
        SMALL => speed_up.at_least(1.0),
        _ => speed_up,
    });
    let batch = |quantile| {
        let of = |set: &Vec<Outcome>| {
            set[OURS].speeds[trace].batch_ns.value_at_quantile(quantile) as f64
        };
        geometric(sets.iter().map(of))
    };
    let (p50, p99) = (batch(0.5), batch(0.99));
    figures.push(Figure::one(format!("{}, batch p50, {name}", NAMES[OURS]), "ns", p50));
    figures.push(Figure::one(format!("{}, batch p99, {name}", NAMES[OURS]), "ns", p99));
    figures.push(
        Figure::one(format!("{}, batch p99 / p50, {name}", NAMES[OURS]), "x", p99 / p50)
            .at_most(3.0),
    );
    figures
}

/// What it takes to build the classifiers of sets of one size, the worst of them.
fn of_building(sets: &[Vec<Outcome>], size: u32) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (peer, label) in NAMES.iter().enumerate() {
        let worst =
            |of: fn(&Outcome) -> f64| sets.iter().map(|set| of(&set[peer])).fold(0.0, f64::max);
        let built_s = worst(|outcome| outcome.built_s);
        let built = Figure::one(format!("{label}, longest to build"), "s", built_s);
        figures.push(match (peer == OURS, size) {
            (true, LARGE) => built.at_most(1.0),
            (true, MIDDLE) => built.at_most(0.5),
            _ => built,
        });
        let bytes = worst(|outcome| outcome.bytes_per_rule);
        let bytes = Figure::one(format!("{label}, most memory"), "B/rule", bytes);
        figures.push(match peer == OURS {
            true => bytes.at_most(64.0),
            false => bytes,
        });
    }
    figures
}
