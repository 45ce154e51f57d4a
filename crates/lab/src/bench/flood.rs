//! Adversarial traffic, compared with ordinary traffic of as many flows.
//!
//! *One flow*: every packet waits for the entry that the packet before it wrote. *SYN flood*: the
//! table is full, and every packet begins a flow, which evicts a half-open one. *Collisions*: with
//! the paper's hash anybody can choose 5-tuples that fall into one bucket; with the keyed hash the
//! same tuples spread over the buckets; an attacker who knows the key can again choose tuples for
//! one bucket.

use flowmgr::hash::HashKind;
use flowmgr::hash_by;
use flowmgr::verdict::Verdict;

use super::frames::{Frames, Tuple};
use super::report::{Figure, MPPS, Report};
use super::rig::{BURST, GAP_NS, Rig, Table};
use super::rounds::interleave;
use crate::cli::BenchArgs;
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi::machine::Machine;

/// Flows that collide.
const COLLIDING: u32 = 1 << 12;
/// Packets of a pass.
const PACKETS: usize = 1 << 16;
/// Flows in a bucket.
const SLOTS: usize = 8;

/// One kind of traffic, ready to be processed.
struct Traffic {
    name: &'static str,
    rig: Rig,
    frames: Frames,
}

impl Traffic {
    /// `flows` labelled flows, and packets drawn from them with equal chances.
    fn known(
        name: &'static str,
        table: Table,
        flows: u32,
        tuple_of: impl Fn(u32) -> Tuple,
    ) -> Result<Traffic, Failure> {
        let mut rig = Rig::new(table)?;
        rig.preload(flows as usize, |i| tuple_of(i as u32));
        let mut rng = Rng::new(1);
        let frames = Frames::new(PACKETS, |_| tuple_of(rng.below(flows)));
        Ok(Traffic { name, rig, frames })
    }
}

pub fn run(args: &BenchArgs) -> Result<Report, Failure> {
    let entries = args.entries.unwrap_or(1 << 19);
    let flows = args.flows.first().copied().unwrap_or(COLLIDING);
    let mut all = traffic(Table::with_entries(entries), flows)?;
    let rates = interleave(args.seconds, all.len(), |point| {
        let Traffic { rig, frames, .. } = &mut all[point];
        rig.pass(frames, BURST, GAP_NS)
    });
    let mut figures: Vec<Figure> = all
        .iter()
        .zip(&rates)
        .map(|(traffic, rates)| Figure::millions(traffic.name, MPPS, rates))
        .collect();

    let turned_away =
        |name, what: usize| Figure::one(name, "share", all[what].rig.share_of(Verdict::TableFull));
    let evicted = all[SYN_FLOOD].rig.manager.counters().evictions.half_open;
    let chain = |traffic: &Traffic| traffic.rig.manager.flows_alive().div_ceil(SLOTS) as f64;
    let ratio = |what: usize, to: usize| rates[what].median() / rates[to].median();
    let best_ratio = |what: usize, to: usize| rates[what].best() / rates[to].best();
    let against = |name, what, to| Figure {
        best: best_ratio(what, to),
        ..Figure::one(name, "ratio", ratio(what, to))
    };
    figures.extend([
        turned_away("SYN flood, packets turned away", SYN_FLOOD),
        Figure::one("SYN flood, flows evicted", "flows", evicted as f64),
        turned_away("fenxi hash, packets turned away", FENXI),
        turned_away("known key, packets turned away", KNOWN_KEY),
        Figure::one("fenxi hash, chain", "buckets", chain(&all[FENXI])),
        Figure::one("known key, chain", "buckets", chain(&all[KNOWN_KEY])),
        against("SYN flood, of ordinary", SYN_FLOOD, ORDINARY).at_least(0.25),
        against("fenxi hash, of ordinary", FENXI, ORDINARY),
        against("keyed hash, of ordinary", KEYED, ORDINARY),
        against("known key, of ordinary", KNOWN_KEY, ORDINARY).at_least(0.25),
    ]);
    Ok(Report {
        bench: "flood",
        title: "Adversarial traffic, one core",
        x: "",
        machine: Machine::here(all[ORDINARY].rig.pages()),
        figures,
        skipped: Vec::new(),
    })
}

const ORDINARY: usize = 0;
const SYN_FLOOD: usize = 3;
const FENXI: usize = 4;
const KEYED: usize = 5;
const KNOWN_KEY: usize = 6;

fn traffic(table: Table, flows: u32) -> Result<[Traffic; 7], Failure> {
    let entries = table.entries as u32;
    let mut syn_flood = Traffic::known("SYN flood, table full", table, entries, Tuple::from_flow)?;
    // Twice as many as the table holds, so that a tuple's flow has been evicted when the tuple
    // comes again.
    syn_flood.frames = Frames::new(2 * table.entries, |i| Tuple::tcp(i as u32));
    let fenxi = Table { hash: HashKind::Fenxi, ..table };
    let chosen = of_one_bucket(table, flows);
    Ok([
        Traffic::known("ordinary", table, flows, Tuple::from_flow)?,
        Traffic::known("one flow", table, 1, Tuple::from_flow)?,
        Traffic::known("ordinary, table full", table, entries, Tuple::from_flow)?,
        syn_flood,
        Traffic::known("collisions, fenxi hash", fenxi, flows, colliding)?,
        Traffic::known("collisions, keyed hash", table, flows, colliding)?,
        Traffic::known("collisions, known key", table, flows, |i| chosen[i as usize])?,
    ])
}

/// Tuples with equal FENXI hashes, which depend only on `source ^ destination` and on the ports.
fn colliding(flow: u32) -> Tuple {
    let tuple = Tuple::from_flow(flow);
    Tuple { destination: tuple.source ^ 0x5555_5555, source_port: 40_000, ..tuple }
}

/// Tuples that fall into one bucket of `table`, found by trial with its key.
fn of_one_bucket(table: Table, flows: u32) -> Vec<Tuple> {
    let hash = hash_by(table.hash);
    let mask = table.buckets as u64 - 1;
    let tried = (0u64..).map(|number| Tuple {
        source_port: 1024 + (number >> 24) as u16,
        ..Tuple::from_flow(number as u32)
    });
    tried.filter(|tuple| hash(&tuple.key()) & mask == 0).take(flows as usize).collect()
}
