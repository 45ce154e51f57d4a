//! The policy as the data path uses it: which rule is a flow's, found by its tuple and by what is known of it, and what that
//! rule asks for in terms of the model in use.

use crate::classifier::{Classifier, Description, Hit};
use crate::prefetch::prefetch;
use crate::rule::{Condition, Over, Rule, RuleAction, Task};
use crate::{Dscp, Key, Label, Mark, RuleNumber, RuleSet, Tuple};

/// What is known of a flow when its rule is looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Class of its label; `None` while it has none.
    pub class: Option<u16>,
    /// Number of its behaviour, see [`crate::rule::BEHAVIOURS`].
    pub behaviour: u8,
    /// Bytes in both directions so far.
    pub bytes: u64,
    /// Packets in both directions so far.
    pub packets: u64,
    /// Time since its first packet, µs.
    pub age_us: u64,
    /// Some hash of the flow that stays the same, by which a share of the flows is chosen.
    pub sample: u16,
}

/// A question to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Tuple of the flow's first packet.
    pub tuple: Tuple,
    /// What is known of the flow.
    pub facts: Facts,
}

/// What a rule asks for, with names replaced by the numbers of the model, tasks and sinks in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Code point of the flow's packets.
    pub dscp: Option<Dscp>,
    /// Mark of the flow's connection.
    pub mark: Option<Mark>,
    /// No task is asked.
    pub asks_nothing: bool,
    /// The only task that is asked.
    pub task: Option<u8>,
    /// Class of the label that the rule gives.
    pub class: Option<u16>,
    /// Number of the sink that gets a copy of the packets.
    pub mirror: Option<u8>,
    /// The packets are dropped.
    pub drop: bool,
}

/// The names that rules may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    /// Labels of the first task, by class.
    pub labels: &'a [Label],
    /// Tasks, by number.
    pub tasks: &'a [String],
    /// Sinks of copies, by number.
    pub mirrors: &'a [String],
}

/// A rule names something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: there is no {kind} \"{name}\"; there are {known}")]
pub struct UnknownName {
    /// File and line of the rule.
    pub place: String,
    /// `label or taxonomy`, `task`, `mirror`.
    pub kind: &'static str,
    /// As the rule has it.
    pub name: String,
    /// Those that there are.
    pub known: String,
}

/// Why there is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A rule names what is not there.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// There are too many filters.
    #[error(transparent)]
    Full(#[from] crate::classifier::TableFull),
}

/// A condition with its labels as classes.
#[derive(Clone, Debug)]
struct Checked {
    /// Bits by class; `None`: whatever the label.
    classes: Option<Box<[u64]>>,
    /// Bits by number; 0: whatever the behaviour.
    behaviours: u8,
    over: Over,
}

/// Numbers of a rule's parts.
#[derive(Clone, Copy, Debug)]
struct Row {
    condition: u32,
    outcome: u32,
    /// Which one to be written it was.
    order: u32,
}

/// Rules that can be looked up. Who looks up never sees it change: [`crate::Store`] makes another version, and gives that out.
#[derive(Clone, Debug)]
pub struct Policy {
    v4: Classifier<u32>,
    v6: Classifier<u128>,
    rows: Vec<Row>,
    conditions: Vec<Checked>,
    /// With the share of the flows, of 65,536, for which the rule counts.
    outcomes: Vec<(Outcome, u32)>,
    has_labels: bool,
    has_bounds: bool,
    has_behaviours: bool,
    /// Rules that were deleted and are still found, a bit for each.
    gone: Vec<u64>,
    has_gone: bool,
}

/// Keys that are looked up at a time.
const BATCH: usize = 32;

impl Policy {
    /// Of these rules.
    ///
    /// # Errors
    /// A rule names what is not there, or there are too many.
    pub fn new(rules: &RuleSet, names: &Names<'_>) -> Result<Policy, PolicyError> {
        let (v4, v6) = (Classifier::new(&rules.v4)?, Classifier::new(&rules.v6)?);
        Policy::with(v4, v6, rules, names)
    }

    /// The same with classifiers that were built before.
    pub(crate) fn with(
        v4: Classifier<u32>,
        v6: Classifier<u128>,
        rules: &RuleSet,
        names: &Names<'_>,
    ) -> Result<Policy, PolicyError> {
        let mut policy = Policy {
            v4,
            v6,
            rows: Vec::with_capacity(rules.rules.len()),
            conditions: Vec::with_capacity(rules.conditions.len()),
            outcomes: Vec::with_capacity(rules.actions.len()),
            has_labels: false,
            has_bounds: false,
            has_behaviours: false,
            gone: Vec::new(),
            has_gone: false,
        };
        policy.add_rows(rules, names)?;
        Ok(policy)
    }

    /// Brings the tables up to those of `rules`, which only grow.
    fn add_rows(&mut self, rules: &RuleSet, names: &Names<'_>) -> Result<(), UnknownName> {
        let place_of = |is_it: &dyn Fn(&Rule) -> bool| {
            let rule = rules.rules.iter().find(|rule| is_it(rule));
            rule.map_or_else(String::new, |rule| rules.place_of(rule))
        };
        for (number, condition) in rules
            .conditions
            .iter()
            .enumerate()
            .skip(self.conditions.len())
        {
            let place = || place_of(&|rule| rule.condition as usize == number);
            let checked = check(condition, names, place)?;
            self.has_labels |= checked.classes.is_some();
            self.has_bounds |= checked.over != Over::default();
            self.has_behaviours |= checked.behaviours != 0;
            self.conditions.push(checked);
        }
        for (number, action) in rules.actions.iter().enumerate().skip(self.outcomes.len()) {
            let place = || place_of(&|rule| rule.action as usize == number);
            self.outcomes.push(outcome(action, names, place)?);
        }
        let new = rules.rules.iter().skip(self.rows.len());
        self.rows.extend(new.map(|rule| Row {
            condition: rule.condition,
            outcome: rule.action,
            order: rule.rank.order(),
        }));
        Ok(())
    }

    /// Adds a rule of `rules`, or brings one back that was deleted.
    pub(crate) fn add(
        &mut self,
        rules: &RuleSet,
        rule: RuleNumber,
        names: &Names<'_>,
    ) -> Result<(), PolicyError> {
        self.add_rows(rules, names)?;
        for filter in rules.v4_of(rule) {
            self.v4.insert(filter)?;
        }
        for filter in rules.v6_of(rule) {
            self.v6.insert(filter)?;
        }
        if let Some(word) = self.gone.get_mut(rule as usize / 64) {
            *word &= !(1 << (rule % 64));
        }
        Ok(())
    }

    /// The rule is found no longer.
    pub(crate) fn delete(&mut self, rule: RuleNumber) {
        let word = rule as usize / 64;
        if self.gone.len() <= word {
            self.gone.resize(word + 1, 0);
        }
        self.gone[word] |= 1 << (rule % 64);
        self.has_gone = true;
    }

    /// Whether all rules name only what is there.
    ///
    /// # Errors
    /// What one names, and what there is instead.
    pub fn check_all(rules: &RuleSet, names: &Names<'_>) -> Result<(), PolicyError> {
        let (v4, v6) = (Classifier::untrained(&[])?, Classifier::untrained(&[])?);
        Policy::with(v4, v6, rules, names).map(drop)
    }

    /// Whether a rule names only what is there.
    pub(crate) fn check(
        rules: &RuleSet,
        rule: &Rule,
        names: &Names<'_>,
    ) -> Result<(), PolicyError> {
        let place = || rules.place_of(rule);
        check(&rules.conditions[rule.condition as usize], names, place)?;
        outcome(&rules.actions[rule.action as usize], names, place)?;
        Ok(())
    }

    /// Whether both have the same trained index, so that they differ in changes only.
    pub(crate) fn shares_index(&self, other: &Policy) -> bool {
        self.v4.shares_index(&other.v4) && self.v6.shares_index(&other.v6)
    }

    /// How rules of IPv4 are found, and those of IPv6.
    pub fn describe(&self) -> [Description; 2] {
        [self.v4.describe(), self.v6.describe()]
    }

    /// Whether a rule asks for a label, so that flows look again when theirs is decided.
    pub fn has_labels(&self) -> bool {
        self.has_labels
    }

    /// Whether a rule asks for what a flow has done, so that flows look again as they go on.
    pub fn has_bounds(&self) -> bool {
        self.has_bounds
    }

    /// Whether a rule asks for a behaviour, so that flows look again when theirs changes.
    pub fn has_behaviours(&self) -> bool {
        self.has_behaviours
    }

    /// What a rule asks for.
    pub fn outcome(&self, rule: RuleNumber) -> &Outcome {
        &self.outcomes[self.rows[rule as usize].outcome as usize].0
    }

    /// Which rule to be written this one was, by which people know it: its number may be another's later. `None`: no rule has
    /// the number.
    pub fn order(&self, rule: RuleNumber) -> Option<u32> {
        self.rows.get(rule as usize).map(|row| row.order)
    }

    /// The rule of each flow: that of the least rank whose filter has the tuple and whose condition holds. `decisions` is
    /// cleared first, and gets one for each of `asks`.
    pub fn decide(&self, asks: &[Ask], decisions: &mut Vec<Option<RuleNumber>>) {
        decisions.clear();
        decisions.resize(asks.len(), None);
        for (asks, decisions) in asks.chunks(BATCH).zip(decisions.chunks_mut(BATCH)) {
            let v4 = |ask: &Ask| match ask.tuple {
                Tuple::V4(key) => Some(key),
                Tuple::V6(_) => None,
            };
            let v6 = |ask: &Ask| match ask.tuple {
                Tuple::V6(key) => Some(key),
                Tuple::V4(_) => None,
            };
            self.decide_family(&self.v4, asks, v4, decisions);
            self.decide_family(&self.v6, asks, v6, decisions);
        }
    }

    /// The asks of one family among a batch.
    fn decide_family<A: crate::Address>(
        &self,
        classifier: &Classifier<A>,
        asks: &[Ask],
        key_of: impl Fn(&Ask) -> Option<Key<A>>,
        decisions: &mut [Option<RuleNumber>],
    ) {
        let mut keys = [Key::default(); BATCH];
        let mut places = [0_u8; BATCH];
        let mut count = 0;
        for (place, ask) in asks.iter().enumerate() {
            if let Some(key) = key_of(ask) {
                (keys[count], places[count]) = (key, place as u8);
                count += 1;
            }
        }
        let mut found = [None; BATCH];
        let counts = |hit: Hit| {
            // What the rule asks for is needed soon.
            prefetch(&self.rows, hit.rule as usize);
            if self.has_gone && self.is_gone(hit.rule) {
                return false;
            }
            let ask = &asks[usize::from(places[hit.place])];
            !hit.is_conditional || self.holds(hit.rule, &ask.facts)
        };
        classifier.find(&keys[..count], counts, &mut found[..count]);
        for (&place, found) in places[..count].iter().zip(found) {
            decisions[usize::from(place)] = found;
        }
    }

    /// Whether a rule was deleted.
    #[inline]
    fn is_gone(&self, rule: RuleNumber) -> bool {
        let is_gone = |word: &u64| word >> (rule % 64) & 1 != 0;
        self.gone.get(rule as usize / 64).is_some_and(is_gone)
    }

    /// Whether a rule's condition holds.
    fn holds(&self, rule: RuleNumber, facts: &Facts) -> bool {
        let row = self.rows[rule as usize];
        let Checked {
            classes,
            behaviours,
            over,
        } = &self.conditions[row.condition as usize];
        let (_, sample) = self.outcomes[row.outcome as usize];
        let has_class = |classes: &[u64]| {
            facts.class.is_some_and(|class| {
                let word = classes.get(usize::from(class) / 64);
                word.is_some_and(|word| word >> (class % 64) & 1 != 0)
            })
        };
        let is_over = |bound: Option<u64>, value: u64| bound.is_none_or(|bound| value > bound);
        // bytes · 8 / age > bound, without a division.
        let is_faster = |bound: u64| {
            let bits = u128::from(facts.bytes) * 8 * 1_000_000;
            bits > u128::from(bound) * u128::from(facts.age_us.max(1))
        };
        classes.as_deref().is_none_or(has_class)
            && (*behaviours == 0 || behaviours >> facts.behaviour & 1 != 0)
            && is_over(over.bytes, facts.bytes)
            && is_over(over.packets, facts.packets)
            && is_over(over.age_ms, facts.age_us / 1000)
            && over.bits_per_s.is_none_or(is_faster)
            && u32::from(facts.sample) < sample
    }
}

fn check(
    condition: &Condition,
    names: &Names<'_>,
    place: impl Fn() -> String,
) -> Result<Checked, UnknownName> {
    if condition.labels.is_empty() {
        return Ok(Checked {
            classes: None,
            behaviours: condition.behaviours,
            over: condition.over,
        });
    }
    let mut classes = vec![0_u64; names.labels.len().div_ceil(64)];
    for name in &condition.labels {
        let mut is_known = false;
        for (class, label) in names.labels.iter().enumerate() {
            if label.name == *name || label.taxonomy == *name {
                classes[class / 64] |= 1 << (class % 64);
                is_known = true;
            }
        }
        if !is_known {
            return Err(UnknownName {
                place: place(),
                kind: "label or taxonomy",
                name: name.clone(),
                known: crate::listed(names.labels),
            });
        }
    }
    Ok(Checked {
        classes: Some(classes.into()),
        behaviours: condition.behaviours,
        over: condition.over,
    })
}

fn outcome(
    action: &RuleAction,
    names: &Names<'_>,
    place: impl Fn() -> String,
) -> Result<(Outcome, u32), UnknownName> {
    let number = |kind, name: &str, known: &[String]| {
        let found = known.iter().position(|it| it == name);
        found.ok_or_else(|| UnknownName {
            place: place(),
            kind,
            name: name.to_owned(),
            known: match known {
                [] => "none".to_owned(),
                known => known.join(", "),
            },
        })
    };
    let task = match &action.task {
        Task::Named(name) => Some(number("task", name, names.tasks)? as u8),
        Task::AsConfigured | Task::None => None,
    };
    let mirror = action.mirror.as_deref();
    let mirror = mirror
        .map(|name| number("mirror", name, names.mirrors))
        .transpose()?;
    let class = action.label.as_deref().map(|name| {
        let found = names.labels.iter().position(|label| label.name == name);
        found.ok_or_else(|| UnknownName {
            place: place(),
            kind: "label",
            name: name.to_owned(),
            known: crate::listed(names.labels),
        })
    });
    let outcome = Outcome {
        dscp: action.dscp,
        mark: action.mark,
        asks_nothing: action.task == Task::None || action.label.is_some(),
        task,
        class: class.transpose()?.map(|class| class as u16),
        mirror: mirror.map(|mirror| mirror as u8),
        drop: action.drop,
    };
    Ok((outcome, action.sample.unwrap_or(1 << 16)))
}
