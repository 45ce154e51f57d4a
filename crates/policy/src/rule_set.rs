//! Rules as read: deduplicated conditions and actions, and the filters of both families.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::path::PathBuf;

use crate::rule::{Condition, Rule, RuleAction};
use crate::{Filter, RULES_MAX, Rank, RuleNumber};

/// A set of rules. A rule's number is its index in [`RuleSet::rules`].
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// The rules, in the order of adding.
    pub rules: Vec<Rule>,
    /// Filters of IPv4, in the order of their rules.
    pub v4: Vec<Filter<u32>>,
    /// Filters of IPv6, in the order of their rules.
    pub v6: Vec<Filter<u128>>,
    /// Distinct conditions; the first holds for all flows.
    pub conditions: Vec<Condition>,
    /// Distinct actions.
    pub actions: Vec<RuleAction>,
    /// Files that the rules were read from.
    pub files: Vec<PathBuf>,
    /// Names of interfaces; an interface's number is its index plus 1.
    pub interfaces: Vec<String>,
    /// Names of the named rules, by number.
    pub names: Vec<(RuleNumber, Box<str>)>,
    /// Rules ever added: the order of the next one.
    next_order: u32,
    condition_numbers: Numbers,
    action_numbers: Numbers,
}

/// Maximum filters of both families in a set.
pub const FILTERS_MAX: usize = 1 << 24;

/// The size of a set, for [`RuleSet::truncate`].
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    rules: usize,
    conditions: usize,
    actions: usize,
    next_order: u32,
}

/// There is no room for another rule.
#[derive(Debug, thiserror::Error)]
#[error("more than {RULES_MAX} rules; use prefixes that cover several of them")]
pub struct TooManyRules;

impl RuleSet {
    /// Adds a rule. The caller adds its filters with the returned number and rank.
    ///
    /// # Errors
    /// There are too many rules.
    pub fn push(
        &mut self,
        priority: u32,
        condition: Condition,
        action: RuleAction,
        origin: (u16, u32),
    ) -> Result<(RuleNumber, Rank), TooManyRules> {
        if self.rules.len() >= RULES_MAX || self.next_order == u32::MAX {
            return Err(TooManyRules);
        }
        if self.conditions.is_empty() {
            let none = Condition::default();
            self.condition_numbers.number(&mut self.conditions, none);
        }
        let number = self.rules.len() as RuleNumber;
        let rank = Rank::new(priority, self.next_order);
        self.next_order += 1;
        let rule = Rule {
            rank,
            condition: self.condition_numbers.number(&mut self.conditions, condition),
            action: self.action_numbers.number(&mut self.actions, action),
            file: origin.0,
            line: origin.1,
        };
        self.rules.push(rule);
        Ok((number, rank))
    }

    /// The current size.
    pub fn extent(&self) -> Extent {
        Extent {
            rules: self.rules.len(),
            conditions: self.conditions.len(),
            actions: self.actions.len(),
            next_order: self.next_order,
        }
    }

    /// Removes what was added since the set had this size.
    pub fn truncate(&mut self, to: Extent) {
        let number = to.rules as RuleNumber;
        self.rules.truncate(to.rules);
        // Filters and names are in the order of the rules.
        self.v4.truncate(self.v4.partition_point(|filter| filter.rule < number));
        self.v6.truncate(self.v6.partition_point(|filter| filter.rule < number));
        self.names.truncate(self.names.partition_point(|(rule, _)| *rule < number));
        self.condition_numbers.truncate(&mut self.conditions, to.conditions);
        self.action_numbers.truncate(&mut self.actions, to.actions);
        self.next_order = to.next_order;
    }

    /// Gives a rule another action.
    pub fn set_action(&mut self, rule: RuleNumber, action: RuleAction) {
        let action = self.action_numbers.number(&mut self.actions, action);
        self.rules[rule as usize].action = action;
    }

    /// The rule with this position in the order of adding, whatever its number now.
    pub fn by_order(&self, order: u32) -> Option<RuleNumber> {
        let found = self.rules.binary_search_by_key(&order, |rule| rule.rank.order());
        found.ok().map(|place| place as RuleNumber)
    }

    /// A rule's filters of IPv4.
    pub fn v4_of(&self, rule: RuleNumber) -> &[Filter<u32>] {
        filters_of(&self.v4, rule)
    }

    /// A rule's filters of IPv6.
    pub fn v6_of(&self, rule: RuleNumber) -> &[Filter<u128>] {
        filters_of(&self.v6, rule)
    }

    /// A copy without the rules that `is_gone`. The others keep their ranks and are renumbered
    /// without gaps.
    #[must_use]
    pub fn compacted(&self, is_gone: impl Fn(RuleNumber) -> bool) -> RuleSet {
        let mut numbers = vec![RuleNumber::MAX; self.rules.len()];
        let mut next = 0;
        for (number, new) in (0..).zip(&mut numbers) {
            if !is_gone(number) {
                *new = next;
                next += 1;
            }
        }
        let new = |rule: RuleNumber| numbers[rule as usize];
        let stays = |rule: RuleNumber| new(rule) != RuleNumber::MAX;
        RuleSet {
            rules: (0..)
                .zip(&self.rules)
                .filter(|(number, _)| stays(*number))
                .map(|(_, rule)| *rule)
                .collect(),
            v4: renumbered(&self.v4, stays, new),
            v6: renumbered(&self.v6, stays, new),
            names: self
                .names
                .iter()
                .filter(|(rule, _)| stays(*rule))
                .map(|(rule, name)| (new(*rule), name.clone()))
                .collect(),
            ..self.clone()
        }
    }

    /// File and line of a rule.
    pub fn place_of(&self, rule: &Rule) -> String {
        self.place(rule.file, rule.line)
    }

    /// File and line as text; line 0 means a source without lines.
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

    /// The name of a rule.
    pub fn name(&self, rule: RuleNumber) -> Option<&str> {
        let found = self.names.binary_search_by_key(&rule, |(number, _)| *number);
        found.ok().map(|place| &*self.names[place].1)
    }

    /// The rule with this name.
    pub fn named(&self, name: &str) -> Option<RuleNumber> {
        let found = self.names.iter().find(|(_, known)| **known == *name);
        found.map(|(number, _)| *number)
    }

    /// Filters of both families.
    pub fn filters(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Bytes of rules, filters, conditions and actions, without classifiers.
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

/// The filters of a rule; filters are in the order of their rules.
fn filters_of<A>(filters: &[Filter<A>], rule: RuleNumber) -> &[Filter<A>] {
    let from = filters.partition_point(|filter| filter.rule < rule);
    let count = filters[from..].partition_point(|filter| filter.rule == rule);
    &filters[from..from + count]
}

fn renumbered<A: Copy>(
    filters: &[Filter<A>],
    stays: impl Fn(RuleNumber) -> bool,
    new: impl Fn(RuleNumber) -> RuleNumber,
) -> Vec<Filter<A>> {
    let left = filters.iter().filter(|filter| stays(filter.rule));
    left.map(|filter| Filter { rule: new(filter.rule), ..*filter }).collect()
}

/// Finds the number of a condition or action by its hash: a mark per subscriber makes 100,000
/// distinct actions.
#[derive(Clone, Debug, Default)]
struct Numbers {
    hasher: RandomState,
    /// Number by hash; if the hash is taken, by the next free word.
    by_hash: HashMap<u64, u32>,
}

impl Numbers {
    /// The number of `item`, which is appended to `all` if it is new.
    fn number<T: Hash + Eq>(&mut self, all: &mut Vec<T>, item: T) -> u32 {
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

    /// Removes the items from number `len` on.
    fn truncate<T: Hash + Eq>(&mut self, all: &mut Vec<T>, len: usize) {
        // Last item first: colliding items are stored behind earlier ones.
        while all.len() > len
            && let Some(item) = all.pop()
        {
            let mut hash = self.hasher.hash_one(&item);
            while let Some(&number) = self.by_hash.get(&hash) {
                if number as usize == all.len() {
                    self.by_hash.remove(&hash);
                    break;
                }
                hash = hash.wrapping_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mark;

    fn marked(bits: u32) -> RuleAction {
        let mask = u32::MAX;
        RuleAction { mark: Some(Mark { bits, mask }), ..RuleAction::default() }
    }

    #[test]
    fn a_condition_and_an_action_are_kept_once() {
        let mut rules = RuleSet::default();
        let labelled = Condition { labels: vec!["DNS".to_owned()], ..Condition::default() };
        for bits in 0..100_000 {
            let condition = match bits % 2 {
                0 => labelled.clone(),
                _ => Condition::default(),
            };
            let (number, rank) = rules.push(7, condition, marked(bits % 50_000), (0, 1)).unwrap();
            assert_eq!((number, rank), (bits, Rank::new(7, bits)));
        }
        assert_eq!((rules.conditions.len(), rules.actions.len()), (2, 50_000));
        assert!(rules.conditions[0].is_none());
        assert_eq!(rules.action(70_000), &marked(20_000));
        assert_eq!(rules.condition(70_000), &labelled);
    }

    #[test]
    fn what_was_added_is_taken_back_with_all_that_only_it_asked_for() {
        let mut rules = RuleSet::default();
        let push = |rules: &mut RuleSet, bits: u32| {
            let condition = Condition { labels: vec![bits.to_string()], ..Condition::default() };
            rules.push(0, condition, marked(bits), (0, 1)).unwrap()
        };
        let first = push(&mut rules, 1);
        let before = rules.extent();
        push(&mut rules, 1);
        let second = push(&mut rules, 2);
        rules.truncate(before);
        assert_eq!((rules.rules.len(), rules.actions.len()), (1, 1));
        assert_eq!(rules.conditions.len(), 2, "the empty one, and one more");
        assert_eq!(push(&mut rules, 2), (1, Rank::new(0, 1)));
        assert_eq!(rules.action(1), &marked(2));
        rules.set_action(1, marked(1));
        assert_eq!(rules.rules[0].action, rules.rules[1].action);
        assert_eq!(rules.by_order(first.1.order()), Some(0));
        assert_eq!(rules.by_order(second.1.order()), None);
    }

    #[test]
    fn names_lead_to_rules_and_back() {
        let mut rules = RuleSet::default();
        for number in 0..4 {
            rules.push(0, Condition::default(), marked(number), (0, 1)).unwrap();
        }
        rules.names = vec![(1, "one".into()), (3, "three".into())];
        assert_eq!(
            (rules.name(1), rules.name(2), rules.name(3)),
            (Some("one"), None, Some("three"))
        );
        assert_eq!((rules.named("three"), rules.named("two")), (Some(3), None));
    }
}
