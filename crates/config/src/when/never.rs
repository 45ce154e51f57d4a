//! Terms that contradict each other, so that a task could never run.

use std::collections::BTreeSet;

use policy::Ports;

use super::{Choice, Comparison, Term};

/// A term that has to hold for a task, its own or one of a task that it needs.
#[derive(Debug, Clone, Copy)]
pub struct Needed<'a> {
    /// Number of the task that has the term.
    pub task: usize,
    /// The term.
    pub term: &'a Term,
}

/// The positions of terms that never hold together, or of one that never holds; `None` where some
/// flow may have them all.
///
/// Labels are only known to the model, where one may be the taxonomy of another. So two lists of
/// labels are left alone.
pub fn contradiction(terms: &[Needed<'_>]) -> Option<Vec<usize>> {
    sample(terms)
        .or_else(|| narrowed(terms, protocols, common))
        .or_else(|| narrowed(terms, ports, |a, b| overlaps(&a, &b)))
        .or_else(|| narrowed(terms, in_ports, common))
        .or_else(|| narrowed(terms, directions, common))
        .or_else(|| rules(terms))
        .or_else(|| of_tasks(terms, labels))
        .or_else(|| of_tasks(terms, confidence))
}

fn sample(terms: &[Needed<'_>]) -> Option<Vec<usize>> {
    let none = |needed: &Needed<'_>| matches!(needed.term, Term::Sample(share) if *share <= 0.0);
    terms.iter().position(none).map(|at| vec![at])
}

/// Goes through the terms of one subject, which `of` finds, and keeps what all of them allow.
/// Returns their positions up to the one that leaves nothing.
fn narrowed<V>(
    terms: &[Needed<'_>],
    of: impl Fn(&Term) -> Option<Vec<V>>,
    both: impl Fn(Vec<V>, Vec<V>) -> Vec<V>,
) -> Option<Vec<usize>> {
    let mut allowed: Option<Vec<V>> = None;
    let mut positions = Vec::new();
    for (at, needed) in terms.iter().enumerate() {
        let Some(values) = of(needed.term) else {
            continue;
        };
        positions.push(at);
        let left = match allowed {
            None => values,
            Some(allowed) => both(allowed, values),
        };
        if left.is_empty() {
            return Some(positions);
        }
        allowed = Some(left);
    }
    None
}

fn common<V: PartialEq>(mut a: Vec<V>, b: Vec<V>) -> Vec<V> {
    a.retain(|value| b.contains(value));
    a
}

fn protocols(term: &Term) -> Option<Vec<super::Protocol>> {
    match term {
        Term::Protocol(protocols) => Some(protocols.clone()),
        _ => None,
    }
}

fn ports(term: &Term) -> Option<Vec<Ports>> {
    match term {
        Term::Port(ports) => Some(ports.clone()),
        _ => None,
    }
}

fn overlaps(a: &[Ports], b: &[Ports]) -> Vec<Ports> {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    let both = pairs.map(|(a, b)| Ports { first: a.first.max(b.first), last: a.last.min(b.last) });
    let mut both: Vec<Ports> = both.filter(|both| both.first <= both.last).collect();
    // Long lists that repeat themselves would otherwise grow with each term.
    both.sort_unstable();
    both.dedup();
    both
}

fn in_ports(term: &Term) -> Option<Vec<String>> {
    match term {
        Term::InPort(names) => Some(names.clone()),
        _ => None,
    }
}

fn directions(term: &Term) -> Option<Vec<super::Direction>> {
    match term {
        Term::Direction(directions) => Some(directions.clone()),
        _ => None,
    }
}

/// The flow has one rule at most.
fn rules(terms: &[Needed<'_>]) -> Option<Vec<usize>> {
    let choice = |at: usize| match terms[at].term {
        Term::Rule(choice) => Some(choice),
        _ => None,
    };
    let one = |term: &Term| match term {
        Term::Rule(choice) if choice.is_one => Some(choice.names.clone()),
        _ => None,
    };
    narrowed(terms, one, common).or_else(|| excluded(terms.len(), choice))
}

/// Each of the other tasks that terms name, with `of` for the terms that name it.
fn of_tasks(
    terms: &[Needed<'_>],
    of: impl Fn(&[Needed<'_>], usize) -> Option<Vec<usize>>,
) -> Option<Vec<usize>> {
    let named = terms.iter().filter_map(|needed| needed.term.task());
    let tasks: BTreeSet<usize> = named.copied().collect();
    tasks.into_iter().find_map(|task| of(terms, task))
}

fn labels(terms: &[Needed<'_>], of: usize) -> Option<Vec<usize>> {
    let choice = |at: usize| match terms[at].term {
        Term::Label { task, labels } if *task == of => Some(labels),
        _ => None,
    };
    excluded(terms.len(), choice)
}

/// Two choices that contradict each other: one takes only names that the other excludes.
fn excluded<'a>(count: usize, choice: impl Fn(usize) -> Option<&'a Choice>) -> Option<Vec<usize>> {
    let choices: Vec<_> = (0..count).filter_map(|at| Some((at, choice(at)?))).collect();
    let (ones, others): (Vec<_>, Vec<_>) = choices.iter().partition(|(_, choice)| choice.is_one);
    ones.iter().find_map(|(one_at, one)| {
        let excludes = |name: &String| others.iter().find(|(_, other)| other.names.contains(name));
        let by: Option<Vec<usize>> =
            one.names.iter().map(|name| excludes(name).map(|(at, _)| *at)).collect();
        let mut positions: BTreeSet<usize> = by?.into_iter().collect();
        positions.insert(*one_at);
        Some(positions.into_iter().collect())
    })
}

/// A bound of a confidence: its value, and whether the value itself is excluded.
type Bound = (f32, bool, Option<usize>);

/// The bounds of the confidence of one task, each with the place of its term.
fn bounds<'a>(
    terms: &'a [Needed<'_>],
    of: usize,
) -> impl Iterator<Item = (usize, &'a Comparison, &'a f32)> {
    let of_term = move |(at, needed): (usize, &'a Needed<'_>)| match needed.term {
        Term::Confidence { task, comparison, bound } if *task == of => {
            Some((at, comparison, bound))
        }
        _ => None,
    };
    terms.iter().enumerate().filter_map(of_term)
}

/// The confidence of one task against all bounds, and against 0 and 1.
fn confidence(terms: &[Needed<'_>], of: usize) -> Option<Vec<usize>> {
    let mut least: Bound = (0.0, false, None);
    let mut most: Bound = (1.0, false, None);
    for (at, comparison, bound) in bounds(terms, of) {
        let is_open = matches!(comparison, Comparison::Below | Comparison::Above);
        let new = (*bound, is_open, Some(at));
        let is_tighter = |old: &Bound| *bound == old.0 && is_open && !old.1;
        match comparison {
            Comparison::AtLeast | Comparison::Above => {
                if *bound > least.0 || is_tighter(&least) {
                    least = new;
                }
            }
            Comparison::Below | Comparison::AtMost => {
                if *bound < most.0 || is_tighter(&most) {
                    most = new;
                }
            }
        }
    }
    let is_empty = least.0 > most.0 || (least.0 == most.0 && (least.1 || most.1));
    is_empty.then(|| positions([least.2, most.2])).or_else(|| between_steps(terms, of))
}

/// Bounds with no step of label words between them, such as `> 0.5 and < 0.500001`.
fn between_steps(terms: &[Needed<'_>], of: usize) -> Option<Vec<usize>> {
    let (mut least, mut most) = ((0, None), (u16::MAX, None));
    for (at, comparison, bound) in bounds(terms, of) {
        let steps = comparison.steps(*bound);
        if *steps.start() > least.0 {
            least = (*steps.start(), Some(at));
        }
        if *steps.end() < most.0 {
            most = (*steps.end(), Some(at));
        }
    }
    (least.0 > most.0).then(|| positions([least.1, most.1]))
}

fn positions(of: [Option<usize>; 2]) -> Vec<usize> {
    let mut positions: Vec<usize> = of.into_iter().flatten().collect();
    positions.sort_unstable();
    positions
}
