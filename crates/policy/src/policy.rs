//! The compiled policy of the data path: finds a flow's rule by tuple and facts, and the rule's
//! decision in terms of the model in use.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::classifier::{Classifier, Description, Hit};
use crate::prefetch::prefetch;
use crate::rule::{Condition, Over, Rule, RuleAction, Task};
use crate::{Dscp, Gates, Key, Label, Mark, RuleNumber, RuleSet, Tuple};

/// Labels that a flow may have: one of each task.
pub const LABELS_MAX: usize = 8;

/// What is known of a flow at its look-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Classes of its labels by task; `None`: no label yet.
    pub classes: [Option<u16>; LABELS_MAX],
    /// Index in [`crate::rule::BEHAVIOURS`].
    pub behaviour: u8,
    /// Bytes in both directions so far.
    pub bytes: u64,
    /// Packets in both directions so far.
    pub packets: u64,
    /// Time since its first packet, µs.
    pub age_us: u64,
    /// A constant hash of the flow, which selects a share of the flows.
    pub sample: u16,
    /// VLAN of its first packet, by the outermost tag; 0 without one.
    pub vlan: u16,
    /// Code point of its first packet, as it came.
    pub dscp: u8,
}

/// A look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Tuple of the flow's first packet.
    pub tuple: Tuple,
    /// What is known of the flow.
    pub facts: Facts,
}

/// A rule's action, with names replaced by numbers of classes, tasks and sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Code point of the flow's packets.
    pub dscp: Option<Dscp>,
    /// Mark of the flow's connection.
    pub mark: Option<Mark>,
    /// No task classifies the flow.
    pub asks_nothing: bool,
    /// The only task that classifies the flow.
    pub task: Option<u8>,
    /// Class of the first task's label that the rule assigns.
    pub class: Option<u16>,
    /// Number of the sink for copies of the packets.
    pub mirror: Option<u8>,
    /// The packets are dropped.
    pub drop: bool,
}

/// The names that rules may use.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Labels by task and class.
    pub labels: Vec<Arc<[Label]>>,
    /// Tasks, by number.
    pub tasks: Vec<String>,
    /// Sinks of copies, by number.
    pub mirrors: Vec<String>,
}

/// A rule names something that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: there is no {kind} \"{name}\"; there are {known}")]
pub struct UnknownName {
    /// File and line of the rule.
    pub place: String,
    /// `label or taxonomy`, `task`, `mirror`.
    pub kind: &'static str,
    /// The name in the rule.
    pub name: String,
    /// The existing names.
    pub known: String,
}

/// Why a policy cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum PolicyError {
    #[error(transparent)]
    Name(#[from] UnknownName),
    #[error(transparent)]
    Full(#[from] crate::classifier::TableFull),
}

/// A condition with classes instead of labels.
#[derive(Clone, Debug)]
struct ClassCondition {
    /// Bits by task and class; empty: any label or none.
    classes: Box<[Box<[u64]>]>,
    /// Bits by number; 0: any behaviour.
    behaviours: u8,
    over: Over,
    /// Empty: any.
    vlans: Box<[RangeInclusive<u16>]>,
    /// Bits by code point; 0: any.
    dscps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    condition: u32,
    decision: u32,
    /// Its position in the order of adding.
    order: u32,
}

/// Rules for look-ups. Immutable while in use: [`crate::Store`] makes and publishes new versions.
#[derive(Clone, Debug)]
pub struct Policy {
    v4: Classifier<u32>,
    v6: Classifier<u128>,
    rows: Vec<Row>,
    conditions: Vec<ClassCondition>,
    /// With the rule's share of the flows, of 65,536.
    decisions: Vec<(Decision, u32)>,
    label_tasks: u8,
    has_bounds: bool,
    has_behaviours: bool,
    /// Bits of deleted rules, which the index still finds.
    gone: Vec<u64>,
    has_gone: bool,
    /// Changes that its [`crate::Store`] has applied to it.
    pub(crate) changes: u64,
}

/// Keys per look-up.
const BATCH: usize = 32;

impl Policy {
    /// Compiles rules.
    ///
    /// # Errors
    /// A rule names something that does not exist, or there are too many rules.
    pub fn new(rules: &RuleSet, names: &Names) -> Result<Policy, PolicyError> {
        let (v4, v6) = (Classifier::new(&rules.v4)?, Classifier::new(&rules.v6)?);
        Policy::with(v4, v6, rules, names)
    }

    /// As [`Self::new`], with prepared classifiers.
    pub(crate) fn with(
        v4: Classifier<u32>,
        v6: Classifier<u128>,
        rules: &RuleSet,
        names: &Names,
    ) -> Result<Policy, PolicyError> {
        let mut policy = Policy {
            v4,
            v6,
            rows: Vec::with_capacity(rules.rules.len()),
            conditions: Vec::with_capacity(rules.conditions.len()),
            decisions: Vec::with_capacity(rules.actions.len()),
            label_tasks: 0,
            has_bounds: false,
            has_behaviours: false,
            gone: Vec::new(),
            has_gone: false,
            changes: 0,
        };
        policy.add_rows(rules, names)?;
        Ok(policy)
    }

    /// Extends the tables to the size of `rules`', which only grow.
    fn add_rows(&mut self, rules: &RuleSet, names: &Names) -> Result<(), UnknownName> {
        let place_of = |is_it: &dyn Fn(&Rule) -> bool| {
            let rule = rules.rules.iter().find(|rule| is_it(rule));
            rule.map_or_else(String::new, |rule| rules.place_of(rule))
        };
        for (number, condition) in rules.conditions.iter().enumerate().skip(self.conditions.len()) {
            let place = || place_of(&|rule| rule.condition as usize == number);
            let checked = check_condition(condition, names, place)?;
            let tasks = checked.classes.iter().enumerate();
            let named = tasks.filter(|(_, classes)| classes.iter().any(|&word| word != 0));
            named.for_each(|(task, _)| self.label_tasks |= 1 << task);
            self.has_bounds |= checked.over != Over::default();
            self.has_behaviours |= checked.behaviours != 0;
            self.conditions.push(checked);
        }
        for (number, action) in rules.actions.iter().enumerate().skip(self.decisions.len()) {
            let place = || place_of(&|rule| rule.action as usize == number);
            self.decisions.push(decision(action, names, place)?);
        }
        let new = rules.rules.iter().skip(self.rows.len());
        self.rows.extend(new.map(|rule| Row {
            condition: rule.condition,
            decision: rule.action,
            order: rule.rank.order(),
        }));
        Ok(())
    }

    /// Adds a rule of `rules`, or restores a deleted one.
    pub(crate) fn add(
        &mut self,
        rules: &RuleSet,
        rule: RuleNumber,
        names: &Names,
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

    pub(crate) fn delete(&mut self, rule: RuleNumber) {
        let word = rule as usize / 64;
        if self.gone.len() <= word {
            self.gone.resize(word + 1, 0);
        }
        self.gone[word] |= 1 << (rule % 64);
        self.has_gone = true;
    }

    /// Checks the names in all rules.
    ///
    /// # Errors
    /// A rule names something that does not exist.
    pub fn check_all(rules: &RuleSet, names: &Names) -> Result<(), PolicyError> {
        let (v4, v6) = (Classifier::untrained(&[])?, Classifier::untrained(&[])?);
        Policy::with(v4, v6, rules, names).map(drop)
    }

    pub(crate) fn check(rules: &RuleSet, rule: &Rule, names: &Names) -> Result<(), PolicyError> {
        let place = || rules.place_of(rule);
        check_condition(&rules.conditions[rule.condition as usize], names, place)?;
        decision(&rules.actions[rule.action as usize], names, place)?;
        Ok(())
    }

    /// Whether both share the trained index, so that they differ in changes only.
    pub(crate) fn shares_index(&self, other: &Policy) -> bool {
        self.v4.shares_index(&other.v4) && self.v6.shares_index(&other.v6)
    }

    /// Whether both, of one store and numbering, have the same rules, so that they differ at most
    /// in the index.
    pub fn has_rules_of(&self, other: &Policy) -> bool {
        self.changes == other.changes
    }

    /// How rules are found, for IPv4 and IPv6.
    pub fn describe(&self) -> [Description; 2] {
        [self.v4.describe(), self.v6.describe()]
    }

    /// Tasks whose labels some rule names, so a new label may change a flow's rule: bit n for task
    /// n.
    pub fn label_tasks(&self) -> u8 {
        self.label_tasks
    }

    /// Whether any rule has bounds, so a flow's rule may change as it goes on.
    pub fn has_bounds(&self) -> bool {
        self.has_bounds
    }

    /// Whether any rule has behaviours, so a new behaviour may change a flow's rule.
    pub fn has_behaviours(&self) -> bool {
        self.has_behaviours
    }

    /// The decision of a rule.
    pub fn decision(&self, rule: RuleNumber) -> &Decision {
        &self.decisions[self.rows[rule as usize].decision as usize].0
    }

    /// The rule's position in the order of adding, which identifies it for users: numbers are
    /// reused. `None`: no rule has the number.
    pub fn order(&self, rule: RuleNumber) -> Option<u32> {
        self.rows.get(rule as usize).map(|row| row.order)
    }

    /// Finds the rule of each flow: the one of least rank whose filter contains the tuple and whose
    /// condition holds. Replaces `decisions` by one entry per element of `asks`.
    pub fn decide(&self, asks: &[Ask], gates: &Gates, decisions: &mut Vec<Option<RuleNumber>>) {
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
            self.decide_family(&self.v4, asks, v4, gates, decisions);
            self.decide_family(&self.v6, asks, v6, gates, decisions);
        }
    }

    /// Decides a batch's elements of one family.
    fn decide_family<A: crate::Address>(
        &self,
        classifier: &Classifier<A>,
        asks: &[Ask],
        key_of: impl Fn(&Ask) -> Option<Key<A>>,
        gates: &Gates,
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
            // The caller needs the rule's decision soon.
            prefetch(&self.rows, hit.rule as usize);
            if self.has_gone && self.is_gone(hit.rule) {
                return false;
            }
            let ask = &asks[usize::from(places[hit.place])];
            !hit.is_conditional || self.holds(hit.rule, ask, gates)
        };
        classifier.find(&keys[..count], counts, &mut found[..count]);
        for (&place, found) in places[..count].iter().zip(found) {
            decisions[usize::from(place)] = found;
        }
    }

    #[inline]
    fn is_gone(&self, rule: RuleNumber) -> bool {
        let is_gone = |word: &u64| word >> (rule % 64) & 1 != 0;
        self.gone.get(rule as usize / 64).is_some_and(is_gone)
    }

    fn holds(&self, rule: RuleNumber, Ask { tuple, facts }: &Ask, gates: &Gates) -> bool {
        let row = self.rows[rule as usize];
        if !gates.has(row.condition, tuple) {
            return false;
        }
        let ClassCondition { classes, behaviours, over, vlans, dscps } =
            &self.conditions[row.condition as usize];
        let (_, sample) = self.decisions[row.decision as usize];
        let has_class = |classes: &[u64], class: u16| {
            let word = classes.get(usize::from(class) / 64);
            word.is_some_and(|word| word >> (class % 64) & 1 != 0)
        };
        let mut labels = classes.iter().zip(facts.classes);
        let is_over = |bound: Option<u64>, value: u64| bound.is_none_or(|bound| value > bound);
        // bytes · 8 / age > bound, without a division.
        let is_faster = |bound: u64| {
            let bits = u128::from(facts.bytes) * 8 * 1_000_000;
            bits > u128::from(bound) * u128::from(facts.age_us.max(1))
        };
        (classes.is_empty()
            || labels.any(|(classes, class)| class.is_some_and(|it| has_class(classes, it))))
            && (*behaviours == 0 || behaviours >> facts.behaviour & 1 != 0)
            && (vlans.is_empty() || vlans.iter().any(|vlans| vlans.contains(&facts.vlan)))
            && (*dscps == 0 || dscps >> (facts.dscp & 63) & 1 != 0)
            && is_over(over.bytes, facts.bytes)
            && is_over(over.packets, facts.packets)
            && is_over(over.age_ms, facts.age_us / 1000)
            && over.bits_per_s.is_none_or(is_faster)
            && u32::from(facts.sample) < sample
    }
}

fn check_condition(
    condition: &Condition,
    names: &Names,
    place: impl Fn() -> String,
) -> Result<ClassCondition, UnknownName> {
    let Condition { ref labels, ref vlans, behaviours, over, dscps, .. } = *condition;
    let vlans: Box<[_]> = vlans.clone().into();
    if labels.is_empty() {
        return Ok(ClassCondition { classes: Box::default(), behaviours, over, vlans, dscps });
    }
    let of_task = |labels: &Arc<[Label]>| vec![0_u64; labels.len().div_ceil(64)].into();
    let mut classes: Box<[Box<[u64]>]> = names.labels.iter().map(of_task).collect();
    for name in labels {
        let found = names.resolve(name, Label::is_called);
        let (task, name) = found.ok_or_else(|| UnknownName {
            place: place(),
            kind: "label or taxonomy",
            name: name.clone(),
            known: names.instead_of(name),
        })?;
        names.check_band(name, &place)?;
        for (class, label) in names.labels[task].iter().enumerate() {
            if label.is_called(name) {
                classes[task][class / 64] |= 1 << (class % 64);
            }
        }
    }
    Ok(ClassCondition { classes, behaviours, over, vlans, dscps })
}

impl Names {
    /// The task of a label, and the label without it: a name stands for the first task that knows
    /// it, and with a task's name before it (`task.label`) for that task's. `is_it` says whether a
    /// label is meant by the rest.
    pub(crate) fn resolve<'n>(
        &self,
        name: &'n str,
        is_it: impl Fn(&Label, &str) -> bool,
    ) -> Option<(usize, &'n str)> {
        let knows = |task: usize, name: &str| {
            let labels = self.labels.get(task);
            labels.is_some_and(|labels| labels.iter().any(|label| is_it(label, name)))
        };
        let plain = (0..self.labels.len()).find(|&task| knows(task, name));
        plain.map(|task| (task, name)).or_else(|| {
            let mut tasks = self.tasks.iter().enumerate();
            tasks.find_map(|(number, task)| {
                let label = name.strip_prefix(task.as_str())?.strip_prefix('.')?;
                knows(number, label).then_some((number, label))
            })
        })
    }

    /// A band by its target must be one task's.
    fn check_band(&self, name: &str, place: impl Fn() -> String) -> Result<(), UnknownName> {
        let has_it = |labels: &Arc<[Label]>| {
            labels.iter().any(|label| label.band().is_some_and(|band| band == name))
        };
        let tasks = self.labels.iter().zip(&self.tasks).filter(|(labels, _)| has_it(labels));
        let tasks: Vec<&str> = tasks.map(|(_, task)| task.as_str()).collect();
        let (Some((_, band)), 2..) = (name.split_once('.'), tasks.len()) else { return Ok(()) };
        let each = tasks.iter().map(|task| format!("app = \"{task}.{band}\""));
        Err(UnknownName {
            place: place(),
            kind: "single band",
            name: name.to_owned(),
            known: each.collect::<Vec<_>>().join(", "),
        })
    }

    /// The label of a name, which is no taxonomy's, and the number of its task.
    pub fn label(&self, name: &str) -> Option<(usize, &Label)> {
        let (task, name) = self.resolve(name, |label, name| label.name == name)?;
        let label = self.labels[task].iter().find(|label| label.name == name);
        label.map(|label| (task, label))
    }

    /// All labels as text, and the nearest one to a name that is none: `TLS (web), DNS; of task
    /// device: cam (camera); did you mean TLS?`
    pub(crate) fn instead_of(&self, name: &str) -> String {
        let mut known = String::new();
        let mut called = Vec::new();
        for (number, labels) in self.labels.iter().enumerate() {
            let task = self.tasks.get(number);
            if let (Some(task), 1..) = (task, number) {
                known += &format!("; of task {task}: ");
            }
            known += &crate::listed(labels);
            called.extend(labels.iter().filter_map(Label::band));
            for name in labels.iter().flat_map(|label| [&label.name, &label.taxonomy]) {
                called.push(name.clone());
                called.extend(task.map(|task| format!("{task}.{name}")));
            }
        }
        known + &crate::suggest(name, called.iter().map(String::as_str))
    }
}

fn decision(
    action: &RuleAction,
    names: &Names,
    place: impl Fn() -> String,
) -> Result<(Decision, u32), UnknownName> {
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
        Task::Named(name) => Some(number("task", name, &names.tasks)? as u8),
        Task::AsConfigured | Task::None => None,
    };
    let mirror = action.mirror.as_deref();
    let mirror = mirror.map(|name| number("mirror", name, &names.mirrors)).transpose()?;
    let class = action.label.as_deref().map(|name| {
        let labels = names.labels.first().map_or(&[][..], |labels| labels);
        let found = labels.iter().position(|label| label.name == name);
        found.ok_or_else(|| UnknownName {
            place: place(),
            kind: "label",
            name: name.to_owned(),
            known: crate::listed(labels),
        })
    });
    let decision = Decision {
        dscp: action.dscp,
        mark: action.mark,
        asks_nothing: action.task == Task::None || action.label.is_some(),
        task,
        class: class.transpose()?.map(|class| class as u16),
        mirror: mirror.map(|mirror| mirror as u8),
        drop: action.drop,
    };
    Ok((decision, action.sample.unwrap_or(1 << 16)))
}
