//! Rules as they were read: tables of conditions and actions, each kept once, and the filters of both families.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
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
    /// Names of interfaces; the number of an interface is its place here plus 1.
    pub interfaces: Vec<String>,
    /// Names of the rules that have one, by number.
    pub names: Vec<(RuleNumber, Box<str>)>,
    condition_numbers: Numbers,
    action_numbers: Numbers,
}

/// Filters of both families in a set, at most.
pub const FILTERS_MAX: usize = 1 << 24;

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
        if self.conditions.is_empty() {
            let none = Condition::default();
            self.condition_numbers.of(&mut self.conditions, none);
        }
        let number = self.rules.len() as RuleNumber;
        let rank = Rank::new(priority, number);
        let rule = Rule {
            rank,
            condition: self.condition_numbers.of(&mut self.conditions, condition),
            action: self.action_numbers.of(&mut self.actions, action),
            file: origin.0,
            line: origin.1,
        };
        self.rules.push(rule);
        Ok((number, rank))
    }

    /// File and line of a rule.
    pub fn place_of(&self, rule: &Rule) -> String {
        self.place(rule.file, rule.line)
    }

    /// File and line as text; line 0 is that of a place without lines.
    pub fn place(&self, file: u16, line: u32) -> String {
        let file = self.files.get(usize::from(file));
        file.map_or_else(String::new, |file| match line {
            0 => file.display().to_string(),
            line => format!("{}:{line}", file.display()),
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

    /// The name of a rule, if it has one.
    pub fn name(&self, rule: RuleNumber) -> Option<&str> {
        let found = self
            .names
            .binary_search_by_key(&rule, |(number, _)| *number);
        found.ok().map(|place| &*self.names[place].1)
    }

    /// The rule of this name.
    pub fn named(&self, name: &str) -> Option<RuleNumber> {
        let found = self.names.iter().find(|(_, known)| **known == *name);
        found.map(|(number, _)| *number)
    }

    /// Filters of both families.
    pub fn filters(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Memory that rules, filters, conditions and actions take, without what finds them, bytes.
    pub fn bytes(&self) -> usize {
        let names = self.names.iter().map(|(_, name)| name.len());
        size_of_val(&*self.rules)
            + size_of_val(&*self.v4)
            + size_of_val(&*self.v6)
            + size_of_val(&*self.conditions)
            + size_of_val(&*self.actions)
            + size_of_val(&*self.names)
            + names.sum::<usize>()
    }
}

/// Finds the number of a condition or an action by its hash: a mark for each subscriber makes 100,000 distinct actions.
#[derive(Clone, Debug, Default)]
struct Numbers {
    hasher: RandomState,
    /// The number of the item with this hash; where two items share one, the second stands at the next free word.
    by_hash: HashMap<u64, u32>,
}

impl Numbers {
    /// The number of `item`, which is added to `all` where it is new.
    fn of<T: Hash + Eq>(&mut self, all: &mut Vec<T>, item: T) -> u32 {
        let mut hash = self.hasher.hash_one(&item);
        loop {
            match self.by_hash.get(&hash) {
                Some(&number) if all.get(number as usize) == Some(&item) => return number,
                Some(_) => hash = hash.wrapping_add(1),
                None => break,
            }
        }
        let number = all.len() as u32;
        all.push(item);
        self.by_hash.insert(hash, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mark;

    fn marked(bits: u32) -> RuleAction {
        let mask = u32::MAX;
        RuleAction {
            mark: Some(Mark { bits, mask }),
            ..RuleAction::default()
        }
    }

    #[test]
    fn a_condition_and_an_action_are_kept_once() {
        let mut rules = RuleSet::default();
        let labelled = Condition {
            labels: vec!["DNS".to_owned()],
            ..Condition::default()
        };
        for bits in 0..100_000 {
            let condition = match bits % 2 {
                0 => labelled.clone(),
                _ => Condition::default(),
            };
            let (number, rank) = rules
                .push(7, condition, marked(bits % 50_000), (0, 1))
                .unwrap();
            assert_eq!((number, rank), (bits, Rank::new(7, bits)));
        }
        assert_eq!((rules.conditions.len(), rules.actions.len()), (2, 50_000));
        assert!(rules.conditions[0].is_none());
        assert_eq!(rules.action(70_000), &marked(20_000));
        assert_eq!(rules.condition(70_000), &labelled);
    }

    #[test]
    fn names_lead_to_rules_and_back() {
        let mut rules = RuleSet::default();
        for number in 0..4 {
            rules
                .push(0, Condition::default(), marked(number), (0, 1))
                .unwrap();
        }
        rules.names = vec![(1, "one".into()), (3, "three".into())];
        assert_eq!(
            (rules.name(1), rules.name(2), rules.name(3)),
            (Some("one"), None, Some("three"))
        );
        assert_eq!((rules.named("three"), rules.named("two")), (Some(3), None));
    }
}
