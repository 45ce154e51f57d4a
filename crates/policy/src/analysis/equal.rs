//! Finds filters with equal boxes, duplicates and contradictions, by sorting.

use std::collections::HashMap;

use super::{Cause, have_one_action, takes_all_of};
use crate::{Address, Filter, RuleNumber, RuleSet};

/// By filter: the rule that takes all its flows, and why.
pub type Covers = Vec<Option<(RuleNumber, Cause)>>;

/// Finds filters with a box equal to an earlier rule's.
pub fn covers<A: Address>(rules: &RuleSet, filters: &[Filter<A>]) -> Covers {
    let mut covers = vec![None; filters.len()];
    let key = |place: &u32| {
        let filter = &filters[*place as usize];
        (part(filter), filter.rank)
    };
    let mut order: Vec<u32> = (0..filters.len() as u32).collect();
    order.sort_unstable_by_key(key);
    let is_equal =
        |one: &u32, two: &u32| part(&filters[*one as usize]) == part(&filters[*two as usize]);
    for equal in order.chunk_by(is_equal) {
        if equal.len() > 1 {
            within(rules, filters, equal, &mut covers);
        }
    }
    covers
}

/// The box of a filter as a key.
#[allow(clippy::type_complexity, reason = "the parts of a box, in sorting order")]
fn part<A: Address>(
    filter: &Filter<A>,
) -> ((A, u8, A, u8), (Option<u8>, u8, crate::Ports, crate::Ports)) {
    (
        (filter.source, filter.source_length, filter.destination, filter.destination_length),
        (filter.protocol, filter.in_port, filter.source_ports, filter.destination_ports),
    )
}

/// Handles filters with one box, by rank: each is covered by the first that takes all its flows.
fn within<A: Address>(rules: &RuleSet, filters: &[Filter<A>], equal: &[u32], covers: &mut Covers) {
    let mut unconditional: Option<RuleNumber> = None;
    let mut by_condition: HashMap<u32, RuleNumber> = HashMap::new();
    for &place in equal {
        let rule = filters[place as usize].rule;
        let condition = rules.rules[rule as usize].condition;
        let first = unconditional.or_else(|| by_condition.get(&condition).copied());
        match first {
            Some(first) if first != rule => {
                let cause = match (
                    have_one_action(rules, first, rule),
                    rules.rules[first as usize].condition == condition,
                ) {
                    (true, true) => Cause::Duplicate,
                    (false, true) => Cause::Contradiction,
                    (_, false) => Cause::Shadowed,
                };
                covers[place as usize] = Some((first, cause));
            }
            Some(_) => {}
            None if !takes_all_of(rules, rule, rule) => {}
            None if rules.condition(rule).is_none() => unconditional = Some(rule),
            None => {
                by_condition.insert(condition, rule);
            }
        }
    }
}
