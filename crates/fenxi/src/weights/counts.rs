//! What the thread counts, and why static weights apply.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use observe::Refusal;

use crate::metric::{Family, Sample, count, number};
use crate::sinks::{Lost, Report};

/// Why static weights apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No program is connected.
    Gone,
    /// It is, but what it wrote does not count.
    Refused(Refusal),
}

impl Why {
    /// Each with its name in metrics.
    const ALL: [(Why, &str); 10] = [
        (Why::Gone, "gone"),
        (Why::Refused(Refusal::Unwritten), "unwritten"),
        (Why::Refused(Refusal::Dead), "dead"),
        (Why::Refused(Refusal::Late), "late"),
        (Why::Refused(Refusal::NotANumber), "not_a_number"),
        (Why::Refused(Refusal::Infinite), "infinite"),
        (Why::Refused(Refusal::Negative), "negative"),
        (Why::Refused(Refusal::AllZero), "all_zero"),
        (Why::Refused(Refusal::Action), "action"),
        (Why::Refused(Refusal::Busy), "busy"),
    ];
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Gone => f.write_str("the program has gone"),
            Why::Refused(Refusal::Unwritten) => f.write_str("some server has none of the program"),
            Why::Refused(refusal) => refusal.fmt(f),
        }
    }
}

/// What became of an attempt to change the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Program,
    Static,
    Repaired,
    Failed,
}

/// Why a program does not get the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedAway {
    User,
    Taken,
    Failed,
}

/// Counts of a table, written by the thread.
pub struct Counts {
    name: String,
    /// With their weights, the bits of f64.
    servers: Vec<(SocketAddr, AtomicU64)>,
    /// 1 while the program's weights apply.
    is_programs: AtomicU64,
    changes: [AtomicU64; 4],
    refused: [AtomicU64; Why::ALL.len()],
    turned_away: [AtomicU64; 3],
    /// Why the map cannot be written.
    fault: Mutex<Option<String>>,
}

impl Counts {
    pub fn new(name: &str, servers: &[(SocketAddr, f64)]) -> Counts {
        let server = |(server, _): &(SocketAddr, f64)| (*server, AtomicU64::new(0));
        Counts {
            name: name.to_owned(),
            servers: servers.iter().map(server).collect(),
            is_programs: AtomicU64::new(0),
            changes: Default::default(),
            refused: Default::default(),
            turned_away: Default::default(),
            fault: Mutex::default(),
        }
    }

    /// Whether a program's weights apply.
    pub fn set_by_program(&self, is_so: bool) {
        self.is_programs.store(is_so.into(), Ordering::Relaxed);
    }

    /// The map has these weights.
    pub fn set_weights(&self, weights: &[f64]) {
        for ((_, place), weight) in self.servers.iter().zip(weights) {
            place.store(weight.to_bits(), Ordering::Relaxed);
        }
    }

    pub fn add(&self, change: Change) {
        self.changes[change as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn refuse(&self, why: Why) {
        if let Some(at) = Why::ALL.iter().position(|(it, _)| *it == why) {
            self.refused[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn turn_away(&self, reason: TurnedAway) {
        self.turned_away[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn set_fault(&self, fault: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    fn fault(&self) -> Option<String> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        fault.map(|fault| format!("weights.{}: {fault}", self.name))
    }

    /// The weights in the map.
    pub fn weights(&self) -> impl Iterator<Item = (SocketAddr, f64)> {
        let weight = |weight: &AtomicU64| f64::from_bits(weight.load(Ordering::Relaxed));
        self.servers.iter().map(move |(server, bits)| (*server, weight(bits)))
    }

    /// Each server's part of them.
    fn shares(&self) -> Vec<Sample> {
        let total: f64 = self.weights().map(|(_, weight)| weight).sum();
        let share = |weight: f64| if total > 0.0 { weight / total } else { 0.0 };
        let sample = |(server, weight): (SocketAddr, f64)| {
            number(&[&self.name, &server.to_string()], share(weight))
        };
        self.weights().map(sample).collect()
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// A sample of each table for each of these names.
fn by<'a>(
    tables: &'a [Arc<Counts>],
    names: &'a [&'a str],
    of: impl Fn(&Counts, usize) -> u64 + Copy + 'a,
) -> impl Iterator<Item = Sample> + 'a {
    tables.iter().flat_map(move |table| {
        let names = names.iter().enumerate();
        names.map(move |(at, name)| count(&[&table.name, name], of(table, at)))
    })
}

pub fn report(tables: &[Arc<Counts>]) -> Report {
    let reasons = Why::ALL.map(|(_, name)| name);
    Report {
        metrics: vec![
            Family::gauge(
                "fenxi_weights_by_program",
                "",
                &["weights"],
                "1 while weights of a program apply ([weights.NAME]), 0 while static ones do.",
                tables.iter().map(|table| count(&[&table.name], load(&table.is_programs))),
            ),
            Family::gauge(
                "fenxi_weights_share_ratio",
                "ratio",
                &["weights", "server"],
                "Share of new connections, by the weights in the map.",
                tables.iter().flat_map(|table| table.shares()),
            ),
            Family::counter(
                "fenxi_weights_changes_total",
                "changes",
                &["weights", "outcome"],
                "Changes of the map: to weights of a program; to static ones; repaired, others \
                 had changed slots; failed.",
                by(tables, &["program", "static", "repaired", "failed"], |it, at| {
                    load(&it.changes[at])
                }),
            ),
            Family::counter(
                "fenxi_weights_refused_total",
                "refusals",
                &["weights", "reason"],
                "How often static weights took over or the reason changed: gone, the program \
                 ended; dead, it hangs; late; unwritten, for some server; or a wrong \
                 weight or action.",
                by(tables, &reasons, |it, at| load(&it.refused[at])),
            ),
            Family::counter(
                "fenxi_weights_turned_away_total",
                "programs",
                &["weights", "reason"],
                "Programs that got no memory: user, of another user; taken, another has it; \
                 failed.",
                by(tables, &["user", "taken", "failed"], |it, at| load(&it.turned_away[at])),
            ),
        ],
        losses: vec![Lost::new(
            "another program changes slots of a map of [weights.NAME], which fenxi puts right",
            tables.iter().map(|it| load(&it.changes[Change::Repaired as usize])).sum(),
        )],
        fault: tables.iter().find_map(|it| it.fault()).map(|fault| ("weights", fault)),
        ..Report::default()
    }
}
