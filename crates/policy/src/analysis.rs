//! Analyses a set of rules.
//!
//! | function | answers |
//! |---|---|
//! | [`check()`] | which rules never win, and which overlap with another action |
//! | [`explain()`] | which rule applies to a flow, and which ones lost |
//! | [`stats()`] | how many rules there are of each kind |

mod check;
mod equal;
mod explain;
mod stats;
mod sweep;
#[cfg(test)]
mod tests;

pub use check::{Cause, Report, Unreachable, check};
pub use explain::{Explanation, Lack, Match, Verdict, explain};
pub use stats::{PortClass, Stats, stats};

use crate::{RuleNumber, RuleSet};

/// Whether a rule takes every flow of its box that satisfies the condition of `other`.
fn takes_all_of(rules: &RuleSet, rule: RuleNumber, other: RuleNumber) -> bool {
    let condition = |rule: RuleNumber| rules.rules[rule as usize].condition;
    let has_same = || condition(rule) == condition(other);
    rules.action(rule).sample.is_none() && (rules.condition(rule).is_none() || has_same())
}

fn have_one_action(rules: &RuleSet, one: RuleNumber, two: RuleNumber) -> bool {
    rules.rules[one as usize].action == rules.rules[two as usize].action
}
