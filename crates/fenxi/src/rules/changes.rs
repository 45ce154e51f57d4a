//! Batches of changes as text, a line each: `add RULE`, or `delete` with a number or a name. A
//! batch is made as a whole or not at all.

use std::collections::HashMap;

use dataplane::swap::Refusal;
use policy::{Batch, PolicyError, RuleNumber, RuleSet, StoreError};
use rulefiles::ReadError;

use super::{Rules, Terms};
use crate::protocol::{Code, PolicyChanged};

/// Origin of rules that were added to a run.
const ORIGIN: &str = "fenxi ctl";

/// A change that is refused: the code of the reply, and why, in one line.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: Code,
    pub why: String,
}

impl Refused {
    /// A line is wrong.
    pub fn invalid(why: impl Into<String>) -> Refused {
        Refused { code: Code::Invalid, why: why.into() }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        match error {
            StoreError::Policy(error) => error.into(),
            StoreError::NoSuchRule(_) | StoreError::NothingToUndo => {
                Refused { code: Code::NotFound, why: error.to_string() }
            }
        }
    }
}

impl From<PolicyError> for Refused {
    fn from(error: PolicyError) -> Refused {
        Refused::invalid(match error {
            // Without its place, which the caller adds.
            PolicyError::Name(policy::UnknownName { kind, name, known, .. }) => {
                format!("there is no {kind} \"{name}\"; there are {known}")
            }
            PolicyError::Full(error) => error.to_string(),
        })
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        let why = match refusal {
            Refusal::Because(error) => error.to_string(),
            Refusal::RunEnded => "the run is shutting down".to_owned(),
        };
        Refused { code: Code::Busy, why }
    }
}

impl Rules {
    /// Makes a batch of changes.
    ///
    /// # Errors
    /// A line is wrong, or a rule is not there; then nothing changes. The error names the line if
    /// there are several.
    pub fn change(&mut self, text: &str) -> Result<PolicyChanged, Refused> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let is_change = |(_, line): &(usize, &str)| !line.is_empty() && !line.starts_with('#');
        let has_several = text.lines().nth(1).is_some();
        let Rules { store, terms, by_name, .. } = self;
        let mut changed = PolicyChanged::default();
        let mut names = Names { before: by_name, changed: HashMap::new() };
        let mut batch = store.batch();
        for (number, line) in lines.filter(is_change) {
            let made = one(&mut batch, &mut names, terms, line);
            let made = made.map_err(|refused| match has_several {
                true => Refused { why: format!("line {number}: {}", refused.why), ..refused },
                false => refused,
            })?;
            match made {
                Some(rule) => {
                    changed.first.get_or_insert(number_of(batch.rules(), rule));
                    changed.added += 1;
                }
                None => changed.deleted += 1,
            }
        }
        if changed.added + changed.deleted == 0 {
            let why = "there is no change; write lines such as `add source = \"10.0.0.0/8\", drop \
                = true` and `delete 3`";
            return Err(Refused::invalid(why));
        }
        let names = names.changed;
        batch.commit()?;
        for (name, rule) in names {
            match rule {
                Some(rule) => by_name.insert(name, rule),
                None => by_name.remove(&name),
            };
        }
        self.changes += 1;
        changed.rules = self.store.len() as u64;
        changed.is_pending = self.store.has_pending();
        Ok(changed)
    }

    /// The rule of a number or name.
    pub(super) fn find(&self, text: &str) -> Result<RuleNumber, Refused> {
        let named = |name: &str| self.by_name.get(name).copied();
        let is_live = |rule| self.store.is_live(rule);
        find(self.store.rules(), text, is_live, named)
    }
}

/// The number of a rule as shown to users: its rank by order of writing, from 1. Unlike its index
/// in the set it never changes.
pub(super) fn number_of(set: &RuleSet, rule: RuleNumber) -> u64 {
    number_by_order(set.rules[rule as usize].rank.order())
}

/// The number of the rule that was written as the `order`th, from 0.
pub fn number_by_order(order: u32) -> u64 {
    u64::from(order) + 1
}

/// Rules by name, before the batch and changed by it.
struct Names<'a> {
    before: &'a HashMap<Box<str>, RuleNumber>,
    /// `None` if the name is free again.
    changed: HashMap<Box<str>, Option<RuleNumber>>,
}

impl Names<'_> {
    fn get(&self, name: &str) -> Option<RuleNumber> {
        let before = || self.before.get(name).copied();
        self.changed.get(name).copied().unwrap_or_else(before)
    }
}

/// Makes one change; returns the rule if it was added.
fn one(
    batch: &mut Batch<'_>,
    names: &mut Names<'_>,
    terms: &Terms,
    line: &str,
) -> Result<Option<RuleNumber>, Refused> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match word {
        "add" => add(batch, names, terms, rest.trim()).map(Some),
        "delete" => {
            let named = |name: &str| names.get(name);
            let rule = find(batch.rules(), rest.trim(), |rule| batch.has(rule), named)?;
            batch.delete(rule)?;
            if let Some(name) = batch.rules().name(rule) {
                names.changed.insert(name.into(), None);
            }
            Ok(None)
        }
        _ => Err(Refused::invalid(format!(
            "\"{word}\" is no change; write `add RULE`, or `delete` with the number or name of a \
            rule"
        ))),
    }
}

fn add(
    batch: &mut Batch<'_>,
    names: &mut Names<'_>,
    terms: &Terms,
    text: &str,
) -> Result<RuleNumber, Refused> {
    let mut named = None;
    let rule = batch.add(|rules| -> Result<RuleNumber, Refused> {
        let added = rulefiles::parse_one(rules, text, ORIGIN, |_, name| names.get(name));
        let rule = added.map_err(|error| match error {
            ReadError::Wrong { problem, .. } => Refused::invalid(problem.to_string()),
            error => Refused::invalid(error.to_string()),
        })?;
        terms.fit(rules, rule).map_err(Refused::invalid)?;
        named = rules.name(rule).map(Box::from);
        Ok(rule)
    })?;
    batch.check(rule)?;
    if let Some(name) = named {
        names.changed.insert(name, Some(rule));
    }
    Ok(rule)
}

fn find(
    set: &RuleSet,
    text: &str,
    is_there: impl Fn(RuleNumber) -> bool,
    named: impl Fn(&str) -> Option<RuleNumber>,
) -> Result<RuleNumber, Refused> {
    let number = text.parse::<u32>().ok().and_then(|number| number.checked_sub(1));
    let rule = match number {
        Some(order) => set.by_order(order),
        None => named(text),
    };
    rule.filter(|rule| is_there(*rule)).ok_or_else(|| {
        let why = match text {
            "" => {
                "which rule? give its number or name; `fenxi ctl policy show` lists them".to_owned()
            }
            text => format!("there is no rule {text}; `fenxi ctl policy show` lists them"),
        };
        Refused { code: Code::NotFound, why }
    })
}
