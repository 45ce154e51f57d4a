//! Finds rules that never win, and overlapping rules with different actions.

use super::sweep::Sweep;
use super::{equal, have_one_action};
use crate::{Address, Filter, RuleNumber, RuleSet};

/// Why a rule never wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Earlier rules have the same boxes, condition and action.
    Duplicate,
    /// Earlier rules have the same boxes and condition, and another action.
    Contradiction,
    /// Each of its boxes lies in a box of an earlier rule.
    Shadowed,
    /// It has no box: its address set is empty.
    Empty,
}

impl Cause {
    /// The cause of two boxes together; a box that is only covered makes the rule shadowed.
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
    /// The earlier rule, for its first box.
    pub by: Option<RuleNumber>,
    /// Why.
    pub cause: Cause,
}

/// Findings. Lists are truncated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rules that never win.
    pub unreachable: Vec<Unreachable>,
    /// Unreachable duplicates.
    pub duplicates: usize,
    /// Unreachable rules that contradict an earlier one.
    pub contradictions: usize,
    /// Unreachable rules covered otherwise.
    pub shadowed: usize,
    /// Unreachable rules without a box.
    pub empty: usize,
    /// Filters that never win, of rules with others that do.
    pub idle_filters: usize,
    /// Filters not compared with all earlier ones, to bound the time.
    pub not_compared: usize,
    /// Pairs of partly overlapping rules with different actions, the winner first.
    pub crossing: Vec<(RuleNumber, RuleNumber)>,
    /// Pairs of partly overlapping filters, of rules with different actions.
    pub crossings: u64,
    /// Pairs of filters, one inside the other, of rules with different actions: exceptions from a
    /// wider rule.
    pub exceptions: u64,
    /// Filters not checked for all overlaps, to bound the time.
    pub not_overlapped: usize,
}

/// Number of a rule's boxes, and of those that never win.
#[derive(Clone, Copy, Default)]
struct Boxes {
    all: u32,
    idle: u32,
    by: RuleNumber,
    cause: Option<Cause>,
}

/// Finds rules that never win, and overlaps; lists at most `listed` of each. A rule counts as
/// covered if each of its boxes lies in *one* earlier box; covers by several boxes are not found.
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
    // There are no different actions.
    if rules.actions.len() < 2 {
        return;
    }
    let overlapping = |one: &Filter<A>, two: &Filter<A>| {
        let (first, second) = if one.rank < two.rank { (one, two) } else { (two, one) };
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
    report.not_overlapped += sweep.overlaps(&covers, overlapping);
}
