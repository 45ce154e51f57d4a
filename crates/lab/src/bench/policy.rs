//! Finding the rules of keys: fenxi's learned classifier beside TupleMerge, on sets in the manner
//! of ClassBench, in one run.
//!
//! Every classifier gets the same keys in batches, and all are first compared with linear search.
//! Times of sets of one size are averaged geometrically; `--write` gives sets and traces to
//! programs elsewhere that take part in a comparison.

mod measure;
mod sets;
mod trace;
pub mod updates;
pub mod walk;

use std::path::Path;

use flowmgr::Pages;
use policy::{Filter, Key};

use super::mix::{FLOWS_PER_S, PACKETS_PER_S};
use super::report::{Figure, Report};
use super::senders::Senders;
use super::templates::Templates;
use crate::cli::BenchArgs;
use crate::generate::rules::{file, v6};
use fenxi::exit::{Failure, remark};
use fenxi::machine::Machine;
use measure::{NAMES, OURS, Outcome, TUPLE_MERGE, measured};
use sets::Set;
use trace::Locality;

/// Keys of a trace.
const KEYS: usize = 1 << 18;
/// The exponent with which 3 % of 500,000 flows have 86 % of the packets; of 1,000 flows, 3 % have
/// 62 %.
const ZIPF: f64 = 1.1;

/// What a set's classifiers did.
struct Measured {
    size: u32,
    outcomes: Vec<Outcome>,
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let sets = sets::asked(args)?;
    let mix = args.capture.as_deref().map(mix_of).transpose()?;
    let mut names = vec!["uniform", "Zipf(1.1)"];
    names.extend(mix.as_ref().map(|_| "mix"));
    let seconds = args.seconds / sets.len() as f64;
    let mut all = Vec::new();
    for set in &sets {
        let filters = set.filters()?;
        let traces = traces(&filters, mix.as_deref());
        if let Some(dir) = &args.write {
            write(dir, set, &filters, &names, &traces)?;
        }
        let outcomes = match args.ipv6 {
            false => measured(&filters, &traces, seconds)?,
            true => {
                let filters: Vec<_> = filters.iter().map(v6::filter).collect();
                let keys = |keys: &Vec<Key<u32>>| keys.iter().map(v6::key).collect();
                let traces: Vec<_> = traces.iter().map(keys).collect();
                measured(&filters, &traces, seconds)?
            }
        };
        remark(&line(set, &names, &outcomes))?;
        all.push(Measured { size: set.size, outcomes });
    }
    let skipped = mix.is_none().then(|| "mix: needs --capture FILE".to_owned());
    Ok(Report {
        bench: "policy",
        title: "Finding the rules of keys, one core, batches of 32; geometric means of sets",
        x: "rules",
        machine: Machine::here(Pages::Plain),
        figures: figures(&all, &names),
        skipped: skipped.into_iter().collect(),
    })
}

/// The flows of real traffic, packet by packet.
fn mix_of(capture: &Path) -> Result<Vec<u32>, Failure> {
    let mut templates = Templates::read(capture)?;
    templates.lengthen(PACKETS_PER_S / FLOWS_PER_S);
    let mut senders = Senders::new(&templates, FLOWS_PER_S, 0.0, &mut Vec::new());
    let packets = senders.window(&templates, 1.2 * KEYS as f64 / PACKETS_PER_S);
    Ok(packets.iter().map(|(_, packet)| packet.copy).take(KEYS).collect())
}

fn traces(filters: &[Filter<u32>], mix: Option<&[u32]>) -> Vec<Vec<Key<u32>>> {
    let mut traces = vec![
        trace::keys(filters, Locality::Uniform, KEYS, 1),
        trace::keys(filters, Locality::Zipf(ZIPF), KEYS, 2),
    ];
    traces.extend(mix.map(|flows| trace::of_flows(filters, flows.iter().copied())));
    traces
}

/// Gives a set and its traces to other programs.
fn write(
    dir: &Path,
    set: &Set,
    filters: &[Filter<u32>],
    names: &[&str],
    traces: &[Vec<Key<u32>>],
) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).map_err(|error| Failure::creating(dir, &error))?;
    let name = format!("{}_{}", set.name, set.size);
    file::write(&dir.join(&name), filters)?;
    for (kind, keys) in names.iter().zip(traces) {
        let kind = kind.split('(').next().unwrap_or(kind).to_lowercase();
        trace::write(&dir.join(format!("{name}.{kind}")), keys)?;
    }
    Ok(())
}

/// A set, as progress.
fn line(set: &Set, names: &[&str], outcomes: &[Outcome]) -> String {
    let mut line = format!("{} {}:", set.name, set.size);
    for (outcome, peer) in outcomes.iter().zip(NAMES) {
        let times = outcome.speeds.iter().zip(names);
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

fn figures(all: &[Measured], names: &[&str]) -> Vec<Figure> {
    let mut sizes: Vec<u32> = all.iter().map(|it| it.size).collect();
    sizes.dedup();
    let of_size = |&size: &u32| {
        let sets: Vec<&[Outcome]> =
            all.iter().filter(|it| it.size == size).map(|it| &*it.outcomes).collect();
        let speeds = (0..names.len()).flat_map(|trace| of_trace(&sets, size, trace, names[trace]));
        let figures: Vec<Figure> = speeds.chain(of_building(&sets, size)).collect();
        figures.into_iter().map(move |figure| figure.at(f64::from(size)))
    };
    sizes.iter().flat_map(of_size).collect()
}

/// Sizes that bars are for.
const LARGE: u32 = 500_000;
const MIDDLE: u32 = 100_000;
const SMALL: u32 = 1_000;

/// How fast the classifiers of sets of one size are on a trace.
fn of_trace(sets: &[&[Outcome]], size: u32, trace: usize, name: &str) -> Vec<Figure> {
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
        let of =
            |set: &&[Outcome]| set[OURS].speeds[trace].batch_ns.value_at_quantile(quantile) as f64;
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
fn of_building(sets: &[&[Outcome]], size: u32) -> Vec<Figure> {
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
