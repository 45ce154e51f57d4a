//! Terms that contradict each other, so that a task could never run.

use std::collections::BTreeSet;

use policy::Ports;

use super::{Choice, Term};

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
    /// The values of a term on the subject.
    macro_rules! of {
        ($Subject:ident) => {
            |term| match term {
                Term::$Subject(values) => Some(values.clone()),
                _ => None,
            }
        };
    }
    sample(terms)
        .or_else(|| narrowed(terms, of!(Protocol), common))
        .or_else(|| narrowed(terms, of!(Port), |a, b| overlaps(&a, &b)))
        .or_else(|| narrowed(terms, of!(InPort), common))
        .or_else(|| narrowed(terms, of!(Direction), common))
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

fn overlaps(a: &[Ports], b: &[Ports]) -> Vec<Ports> {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    let both = pairs.map(|(a, b)| Ports { first: a.first.max(b.first), last: a.last.min(b.last) });
    let mut both: Vec<Ports> = both.filter(|both| both.first <= both.last).collect();
    // Long lists that repeat themselves would otherwise grow with each term.
    both.sort_unstable();
    both.dedup();
    both
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

/// Bounds of the confidence of one task that leave no step of its label word, such as `> 0.5` and
/// `< 0.500001`.
fn confidence(terms: &[Needed<'_>], of: usize) -> Option<Vec<usize>> {
    let (mut least, mut most) = ((0, None), (u16::MAX, None));
    for (at, needed) in terms.iter().enumerate() {
        let steps = match needed.term {
            Term::Confidence { task, comparison, bound } if *task == of => comparison.steps(*bound),
            _ => continue,
        };
        if *steps.start() > least.0 {
            least = (*steps.start(), Some(at));
        }
        if *steps.end() < most.0 {
            most = (*steps.end(), Some(at));
        }
    }
    let positions: BTreeSet<usize> = [least.1, most.1].into_iter().flatten().collect();
    (least.0 > most.0).then(|| positions.into_iter().collect())
}
