//! Rules as shown to users.

use policy::RuleNumber;
use rulefiles::write;

use super::changes::number_of;
use super::{Refused, Rules};
use crate::protocol::{PolicyShown, RULES_MAX, RuleRow};

impl Rules {
    /// The rule of a number or name, or the first rules.
    pub fn shown(&self, rule: Option<&str>, limit: usize) -> Result<PolicyShown, Refused> {
        let rows = match rule {
            Some(rule) => vec![self.row(self.find(rule)?)],
            None => {
                let numbers = 0..self.store.rules().rules.len() as RuleNumber;
                let live = numbers.filter(|rule| self.store.is_live(*rule));
                live.take(limit.min(RULES_MAX)).map(|rule| self.row(rule)).collect()
            }
        };
        Ok(PolicyShown {
            rules: self.store.len() as u64,
            is_pending: self.store.has_pending(),
            changes: self.changes,
            rows,
        })
    }

    fn row(&self, rule: RuleNumber) -> RuleRow {
        let set = self.store.rules();
        RuleRow {
            number: number_of(set, rule),
            name: set.name(rule).map(str::to_owned),
            place: set.place_of(&set.rules[rule as usize]),
            rule: write::one(set, rule, None),
            flows: None,
            packets: None,
            bytes: None,
        }
    }
}
