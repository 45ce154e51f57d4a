//! Rules as they were read: tables of conditions and actions, each kept once, and the filters of both families.

use std::path::PathBuf;

use crate::rule::{Condition, Rule, RuleAction};
use crate::{Filter, RULES_MAX, Rank, RuleNumber};

/// A set of rules. A rule's number is its place in [`RuleSet::rules`].
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// The rules, in the order in which they were written.
    pub rules: Vec<Rule>,
    /// Filters of IPv4, of all rules.
    pub v4: Vec<Filter<u32>>,
    /// Filters of IPv6, of all rules.
    pub v6: Vec<Filter<u128>>,
    /// Distinct conditions; the first asks for nothing.
    pub conditions: Vec<Condition>,
    /// Distinct actions.
    pub actions: Vec<RuleAction>,
    /// Files that the rules were read from.
    pub files: Vec<PathBuf>,
}

/// There is no room for another rule.
#[derive(Debug, thiserror::Error)]
#[error("more than {RULES_MAX} rules; use prefixes that cover several of them")]
pub struct TooManyRules;

impl RuleSet {
    /// Adds a rule of this priority, behind those of the same priority, whose filters are added later with its number and
    /// rank.
    ///
    /// # Errors
    /// There are too many.
    pub fn push(
        &mut self,
        priority: u32,
        condition: Condition,
        action: RuleAction,
        origin: (u16, u32),
    ) -> Result<(RuleNumber, Rank), TooManyRules> {
        if self.rules.len() >= RULES_MAX {
            return Err(TooManyRules);
        }
        let number = self.rules.len() as RuleNumber;
        let rank = Rank::new(priority, number);
        let rule = Rule {
            rank,
            condition: number_of(&mut self.conditions, condition),
            action: number_of(&mut self.actions, action),
            file: origin.0,
            line: origin.1,
        };
        self.rules.push(rule);
        Ok((number, rank))
    }

    /// File and line of a rule.
    pub fn place_of(&self, rule: &Rule) -> String {
        let file = self.files.get(usize::from(rule.file));
        file.map_or_else(String::new, |file| {
            format!("{}:{}", file.display(), rule.line)
        })
    }

    /// The condition of a rule.
    pub fn condition(&self, rule: RuleNumber) -> &Condition {
        &self.conditions[self.rules[rule as usize].condition as usize]
    }

    /// The action of a rule.
    pub fn action(&self, rule: RuleNumber) -> &RuleAction {
        &self.actions[self.rules[rule as usize].action as usize]
    }
}

/// The number of `item`, which is added where it is new. The last ones are looked at first: rules of a kind stand together.
fn number_of<T: PartialEq>(all: &mut Vec<T>, item: T) -> u32 {
    let found = all.iter().rposition(|known| *known == item);
    let number = found.unwrap_or_else(|| {
        all.push(item);
        all.len() - 1
    });
    number as u32
}
