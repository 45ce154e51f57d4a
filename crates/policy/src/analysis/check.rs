//! Rules that never win, and rules that overlap with another action.

use super::sweep::Sweep;
use super::{equal, have_one_action};
use crate::{Address, Filter, RuleNumber, RuleSet};

/// Why a rule never wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Rules that come first have the same boxes, condition and action.
    Duplicate,
    /// Rules that come first have the same boxes and condition, and another action.
    Contradiction,
    /// Each of its boxes lies in one of a rule that comes first.
    Shadowed,
    /// It has no box: its set of addresses is empty.
    Empty,
}

impl Cause {
    /// The cause of several boxes: one that is merely covered makes the rule so.
    fn and(self, other: Cause) -> Cause {
        match (self, other) {
            (Cause::Duplicate, Cause::Duplicate) => Cause::Duplicate,
            (Cause::Shadowed | Cause::Empty, _) | (_, Cause::Shadowed | Cause::Empty) => {
                Cause::Shadowed
            }
            _ => Cause::Contradiction,
        }
    }
}

/// A rule that never wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The rule.
    pub rule: RuleNumber,
    /// The rule that comes first, for its first box.
    pub by: Option<RuleNumber>,
    /// Why.
    pub cause: Cause,
}

/// What was found. Lists hold the first ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rules that never win.
    pub unreachable: Vec<Unreachable>,
    /// Of those, how many are duplicates.
    pub duplicates: usize,
    /// How many contradict a rule that comes first.
    pub contradictions: usize,
    /// How many are covered otherwise.
    pub shadowed: usize,
    /// How many have no box.
    pub empty: usize,
    /// Filters that never win, of rules of which others do.
    pub idle_filters: usize,
    /// Filters that were not compared with all that come first, because that would have taken too long.
    pub not_compared: usize,
    /// Pairs of rules that partly overlap and have different actions, the one that wins first.
    pub crossing: Vec<(RuleNumber, RuleNumber)>,
    /// Pairs of filters that partly overlap, of rules with different actions.
    pub crossings: u64,
    /// Pairs of filters of which the first lies in the second, of rules with different actions: exceptions from a wider rule.
    pub exceptions: u64,
    /// Filters that were not looked at for overlaps, because that would have taken too long.
    pub not_overlapped: usize,
}

/// Boxes of a rule that were looked at, and those that never win.
#[derive(Clone, Copy, Default)]
struct Boxes {
    all: u32,
    idle: u32,
    by: RuleNumber,
    cause: Option<Cause>,
}

/// Looks for rules that never win, and for overlaps. `listed` of each are named. A rule is found to be covered where each of
/// its boxes lies in *one* box that comes first; several that together cover it are not looked for.
pub fn check(rules: &RuleSet, listed: usize) -> Report {
    let mut report = Report::default();
    let mut boxes = vec![Boxes::default(); rules.rules.len()];
    family(rules, &rules.v4, listed, &mut boxes, &mut report);
    family(rules, &rules.v6, listed, &mut boxes, &mut report);
    for (rule, boxes) in boxes.into_iter().enumerate() {
        if boxes.idle < boxes.all {
            report.idle_filters += boxes.idle as usize;
            continue;
        }
        let cause = boxes.cause.unwrap_or(Cause::Empty);
        *match cause {
            Cause::Duplicate => &mut report.duplicates,
            Cause::Contradiction => &mut report.contradictions,
            Cause::Shadowed => &mut report.shadowed,
            Cause::Empty => &mut report.empty,
        } += 1;
        if report.unreachable.len() < listed {
            report.unreachable.push(Unreachable {
                rule: rule as RuleNumber,
                by: boxes.cause.map(|_| boxes.by),
                cause,
            });
        }
    }
    report
}

fn family<A: Address>(
    rules: &RuleSet,
    filters: &[Filter<A>],
    listed: usize,
    boxes: &mut [Boxes],
    report: &mut Report,
) {
    let mut covers = equal::covers(rules, filters);
    let sweep = Sweep::new(filters);
    report.not_compared += sweep.cover(rules, &mut covers);
    for (filter, cover) in filters.iter().zip(&covers) {
        let boxes = &mut boxes[filter.rule as usize];
        boxes.all += 1;
        if let Some((by, cause)) = *cover {
            if boxes.idle == 0 {
                boxes.by = by;
            }
            boxes.idle += 1;
            boxes.cause = Some(boxes.cause.map_or(cause, |known| known.and(cause)));
        }
    }
    // With one action there is no other.
    if rules.actions.len() < 2 {
        return;
    }
    let overlapping = |one: &Filter<A>, two: &Filter<A>| {
        let (first, second) = if one.rank < two.rank {
            (one, two)
        } else {
            (two, one)
        };
        if first.rule == second.rule
            || have_one_action(rules, first.rule, second.rule)
            || !first.overlaps(second)
        {
            return;
        }
        if second.covers(first) || first.covers(second) {
            report.exceptions += 1;
            return;
        }
        report.crossings += 1;
        let pair = (first.rule, second.rule);
        if report.crossing.len() < listed && !report.crossing.contains(&pair) {
            report.crossing.push(pair);
        }
    };
    let left = sweep.overlaps(&covers, overlapping);
    report.not_overlapped += left;
}
