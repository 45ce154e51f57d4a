//! Rules in a flow worker: questions of the flow manager go to the policy, answers go back, and
//! sinks are told.
//!
//! The flow manager knows flows and no rule, the policy knows rules and no flow. Between them
//! stands [`FlowRules`], one for each flow worker, called once per burst. Others come as a
//! [`RulesUpdate`] by the way of settings, between two bursts; the old ones go back and are dropped
//! there, so that freeing a large policy holds up no packet.

use std::cmp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cring::Counter as _;
use cring::counters;
use flowmgr::record::{FlowName, FlowRecord};
use flowmgr::wire::{ICMP, ICMPV6};
use flowmgr::{
    Action, Counts, FlowLook, MINUTE_US, RuleAnswer, RuleMemory, RuleQuestion, RulesChange,
};
use policy::{Ask, Decision, Dscp, Facts, Gates, Mark, Policy, RuleNumber, Tuple};

use crate::Error;
use crate::threads::server_actions::ServerActions;

/// Rules that flow workers can use.
#[derive(Clone)]
pub struct RulesInForce {
    /// What is looked up.
    pub policy: Arc<Policy>,
    /// Rules that have counters of their own, in the order of their numbers; at most
    /// [`COUNTED_MAX`]. As long as the numbering is the same, some may follow and none goes.
    pub counted: Arc<[RuleNumber]>,
    /// Version of the numbering: while it is the same, a number stands for the same rule.
    pub numbering: u64,
    /// Names of rules, for those who write about them.
    pub names: Arc<RuleNames>,
    /// For each rule, the tasks that are not asked about its flows.
    pub unasked: Arc<Unasked>,
    /// [`RulesChange::named`].
    pub named: Arc<[(RuleNumber, u64)]>,
    /// Rules that count for no flow now.
    pub gates: Arc<Gates>,
    /// By packet time: says the gates at a time.
    pub calendar: Option<Arc<Calendar>>,
}

/// The gates at a time, µs since the epoch; they change at full minutes only.
pub type Calendar = dyn Fn(i64) -> Gates + Send + Sync;

/// Tasks that are asked by the name of a flow's rule, and so not about all flows. Sets of tasks
/// have bit n for task n.
#[derive(Debug, Default)]
pub struct Unasked {
    /// Tasks that are not asked about flows of other rules, and of none.
    pub otherwise: u8,
    /// By rule, rising: tasks that are not asked about its flows.
    pub by_rule: Vec<(RuleNumber, u8)>,
}

impl Unasked {
    fn behind_rule(&self, rule: Option<RuleNumber>) -> u8 {
        let Some(rule) = rule else {
            return self.otherwise;
        };
        let place = self.by_rule.binary_search_by_key(&rule, |(rule, _)| *rule);
        place.map_or(self.otherwise, |place| self.by_rule[place].1)
    }
}

impl RulesInForce {
    /// These rules alone, which count at all times.
    pub fn of(policy: Arc<Policy>, numbering: u64) -> RulesInForce {
        RulesInForce {
            policy,
            counted: Arc::default(),
            numbering,
            names: Arc::default(),
            unasked: Arc::default(),
            named: Arc::default(),
            gates: Arc::default(),
            calendar: None,
        }
    }

    /// A rule as people know it; `None`: no rule has this number any more.
    pub fn known(&self, rule: RuleNumber) -> Option<KnownRule> {
        Some(KnownRule { order: self.policy.order(rule)?, names: self.names.clone() })
    }
}

/// Names of rules, by the order in which the rules were written. As long as the numbering is the
/// same, some may follow and none goes, so that a record that waits to be written finds its name.
/// No flow worker ever looks into it.
#[derive(Debug, Default)]
pub struct RuleNames(RwLock<Vec<(u32, Arc<str>)>>);

impl RuleNames {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Adds names of rules that were written behind all others that have one.
    pub fn extend<'a>(&self, names: impl Iterator<Item = (u32, &'a str)>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.extend(names.map(|(order, name)| (order, name.into())));
    }

    /// The name of the rule that was the `order`th to be written, if it has one.
    pub fn get(&self, order: u32) -> Option<Arc<str>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = all.binary_search_by_key(&order, |(order, _)| *order);
        found.ok().map(|place| all[place].1.clone())
    }
}

/// A rule as people know it, whatever its number is by now.
#[derive(Clone, Debug)]
pub struct KnownRule {
    /// Which rule to be written it was, from 0.
    pub order: u32,
    names: Arc<RuleNames>,
}

impl KnownRule {
    /// Its name, if it has one.
    pub fn name(&self) -> Option<Arc<str>> {
        self.names.get(self.order)
    }
}

/// A number that no rules have had yet, for [`RulesInForce::numbering`].
pub fn numbering() -> u64 {
    static NUMBERINGS: AtomicU64 = AtomicU64::new(1);
    NUMBERINGS.fetch_add(1, Ordering::Relaxed)
}

const _: () = assert!(policy::LABELS_MAX == cring::TASKS_MAX);

/// Rules that have counters of their own, at most.
pub const COUNTED_MAX: usize = 1024;

/// Answers a flow manager's questions about rules, on the thread of its flow worker.
pub trait FlowRules: Send {
    /// An answer to each question. `ruled` is called for flows whose rule or label is new. Where
    /// rules leave something open, `by_server` says what becomes of flows that begin.
    fn answer(
        &mut self,
        questions: &[RuleQuestion],
        by_server: Option<&ServerActions>,
        ruled: &mut dyn FnMut(&Ruled),
    ) -> &[RuleAnswer];

    /// Counts a record of a flow.
    fn count(&mut self, record: &FlowRecord);

    /// What was counted.
    fn counts(&self) -> &RuleCounts;

    /// Continues the counts of the rules before.
    fn follow(&mut self, before: &dyn FlowRules);

    /// The rules in force.
    fn in_force(&self) -> &RulesInForce;
}

/// Other rules for a flow worker.
pub struct RulesUpdate {
    rules: Box<dyn FlowRules>,
    memory: Option<RuleMemory>,
}

impl RulesUpdate {
    /// These rules, for the worker of a table of `max_flows` flows. `keeps`: servers may have
    /// actions.
    ///
    /// # Errors
    /// There is no memory for what the table keeps of the rules of flows.
    pub fn new(rules: RulesInForce, max_flows: usize, keeps: bool) -> Result<RulesUpdate, Error> {
        let memory = match keeps {
            true => RuleMemory::keeping(max_flows),
            false => RuleMemory::new(max_flows),
        };
        let memory = memory.map_err(|error| {
            Error::unavailable(format!(
                "no memory for the rules of {max_flows} flows: {error}; lower flow.max_flows"
            ))
        })?;
        Ok(RulesUpdate { memory: Some(memory), ..RulesUpdate::again(rules) })
    }

    /// These rules, for a worker that has had others.
    pub fn again(rules: RulesInForce) -> RulesUpdate {
        RulesUpdate { rules: Box::new(PolicyRules::new(rules)), memory: None }
    }

    /// The first rules of a worker, with the change for its flow manager.
    pub fn begin(self) -> (Box<dyn FlowRules>, RulesChange) {
        let change = change(&*self.rules, true, self.memory);
        (self.rules, change)
    }

    /// Replaces the rules of a worker, which are left here. Returns the change for its flow
    /// manager; `None`: only the index is another, so that no flow looks its rule up again.
    pub fn replace(&mut self, rules: &mut Box<dyn FlowRules>) -> Option<RulesChange> {
        let (new, old) = (self.rules.in_force(), rules.in_force());
        let is_renumbered = new.numbering != old.numbering;
        let is_same =
            !is_renumbered && new.policy.has_rules_of(&old.policy) && new.gates == old.gates;
        self.rules.follow(&**rules);
        std::mem::swap(&mut self.rules, rules);
        (!is_same).then(|| change(&**rules, is_renumbered, None))
    }
}

fn change(rules: &dyn FlowRules, is_renumbered: bool, memory: Option<RuleMemory>) -> RulesChange {
    let RulesInForce { policy, named, .. } = rules.in_force();
    RulesChange {
        named: named.clone(),
        has_bounds: policy.has_bounds(),
        has_behaviours: policy.has_behaviours(),
        has_hours: rules.in_force().calendar.is_some(),
        label_tasks: policy.label_tasks(),
        is_renumbered,
        memory,
    }
}

counters! {
    /// What a rule has counted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RuleVolume {
        /// Flows for which it was found, each as often as it became the flow's rule.
        pub flows: u64,
        /// Packets of flows that had it last, once a record has them.
        pub packets: u64,
        /// Their bytes at the IP layer.
        pub bytes: u64,
    }
}

impl RuleVolume {
    fn add(&mut self, counts: &Counts) {
        self.packets += counts.packets.iter().sum::<u64>();
        self.bytes += counts.bytes.iter().sum::<u64>();
    }
}

counters! {
    /// What a flow worker counts of rules.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RuleCounts {
        /// Flows that were looked up, each as often as it was.
        pub lookups: u64,
        /// Lookups that found no rule.
        pub unmatched: u64,
        /// All rules without counters of their own, then each rule in [`RulesInForce::counted`].
        pub by_rule: Vec<RuleVolume>,
    }
}

impl RuleCounts {
    /// Zeros, for `counted` rules that have counters of their own.
    fn new(counted: usize) -> RuleCounts {
        RuleCounts { by_rule: vec![RuleVolume::default(); counted + 1], ..RuleCounts::default() }
    }
}

/// What rules have counted at one moment: by records, and of the flows in a table what no record
/// has yet.
#[derive(Clone, Debug, Default)]
pub struct RuleTotals {
    /// [`RulesInForce::numbering`] of the rules; 0: there are none.
    pub numbering: u64,
    /// As [`RuleCounts::by_rule`].
    pub by_rule: Vec<RuleVolume>,
}

impl RuleTotals {
    /// With room for all rules that have counters of their own.
    pub fn with_capacity() -> RuleTotals {
        RuleTotals { numbering: 0, by_rule: Vec::with_capacity(COUNTED_MAX + 1) }
    }

    /// Adds flows of a table, whose rules have their numbers. `is_first`: they are the first ones
    /// of it, and what records have counted so far is to be added.
    pub fn add(&mut self, rules: &dyn FlowRules, is_first: bool, flows: &[FlowLook]) {
        let RulesInForce { numbering, counted, .. } = rules.in_force();
        if is_first {
            self.numbering = *numbering;
            self.by_rule.copy_from(&rules.counts().by_rule);
        }
        // Meanwhile others came into force, whose numbers mean something else.
        if self.numbering != *numbering {
            return;
        }
        for flow in flows {
            // A rule that came meanwhile has no place yet.
            if let Some(rule) = flow.rule
                && let Some(volume) = self.by_rule.get_mut(slot(counted, rule))
            {
                volume.add(&flow.counts);
            }
        }
    }

    /// Adds what another table has counted. If the tables have different rules, the newer rules
    /// stay.
    pub fn merge(&mut self, other: &RuleTotals) {
        match self.numbering.cmp(&other.numbering) {
            cmp::Ordering::Less => {
                self.numbering = other.numbering;
                self.by_rule.clone_from(&other.by_rule);
            }
            cmp::Ordering::Equal => self.by_rule.merge(&other.by_rule),
            cmp::Ordering::Greater => (),
        }
    }

    /// What was counted once stays, though the flows that go on have got another rule, or a look
    /// missed one that ended.
    pub fn keep(&mut self, before: &RuleTotals) {
        if self.numbering == before.numbering {
            for (now, before) in self.by_rule.iter_mut().zip(&before.by_rule) {
                now.packets = now.packets.max(before.packets);
                now.bytes = now.bytes.max(before.bytes);
            }
        }
    }
}

/// The rule of a flow was found, or another one than before; or the flow's label was decided,
/// whatever its rule.
#[derive(Clone, Copy, Debug)]
pub struct Ruled {
    /// The flow. Its times are of flow time.
    pub flow: FlowName,
    /// Class of its label of the first task, if it has one.
    pub class: Option<u16>,
    /// The class of the label that its port gave it before, where an answer contradicts that.
    pub contradicts: Option<u16>,
    /// Mark that the rule asks for; `None`: as the label says.
    pub mark: Option<Mark>,
}

/// The gates for packets of a time, in a replay. Two minutes' are kept, because captures that are
/// read together may differ a little in time.
pub(crate) struct ByMinute {
    /// The minute asked for last, and the one before.
    minutes: [(Option<i64>, Arc<Gates>); 2],
}

impl ByMinute {
    pub fn new(rules: &RulesInForce) -> ByMinute {
        ByMinute { minutes: [(); 2].map(|()| (None, rules.gates.clone())) }
    }

    /// The gates at a time. Without a calendar they stay.
    pub fn at(&mut self, time_us: i64, calendar: Option<&Calendar>) -> &Gates {
        let minute = time_us.div_euclid(MINUTE_US);
        if let Some(calendar) = calendar
            && self.minutes[0].0 != Some(minute)
        {
            self.minutes.swap(0, 1);
            if self.minutes[0].0 != Some(minute) {
                self.minutes[0] = (Some(minute), Arc::new(calendar(time_us)));
            }
        }
        &self.minutes[0].1
    }
}

/// Rules of a policy.
struct PolicyRules {
    rules: RulesInForce,
    gates: ByMinute,
    counts: RuleCounts,
    asks: Vec<Ask>,
    decisions: Vec<Option<RuleNumber>>,
    answers: Vec<RuleAnswer>,
}

impl PolicyRules {
    fn new(rules: RulesInForce) -> PolicyRules {
        PolicyRules {
            counts: RuleCounts::new(rules.counted.len()),
            gates: ByMinute::new(&rules),
            rules,
            asks: Vec::with_capacity(flowmgr::BURST_MAX),
            decisions: Vec::with_capacity(flowmgr::BURST_MAX),
            answers: Vec::with_capacity(flowmgr::BURST_MAX),
        }
    }
}

impl FlowRules for PolicyRules {
    fn answer(
        &mut self,
        questions: &[RuleQuestion],
        by_server: Option<&ServerActions>,
        ruled: &mut dyn FnMut(&Ruled),
    ) -> &[RuleAnswer] {
        let PolicyRules { rules, gates, counts, asks, decisions, answers } = self;
        // What is new of a flow may change nothing: then its rule stays.
        let policy = &rules.policy;
        let asks_for_news = policy.label_tasks() != 0
            || policy.has_bounds()
            || policy.has_behaviours()
            || rules.calendar.is_some();
        let stays = |question: &RuleQuestion| question.is_by_same_rules && !asks_for_news;
        asks.clear();
        asks.extend(questions.iter().filter(|it| !stays(it)).map(ask));
        // By packet time questions come one by one, or several of the same time.
        let time_us = questions.last().map_or(0, |it| it.first_us + it.age_us as i64);
        let gates = gates.at(time_us, rules.calendar.as_deref());
        rules.policy.decide(asks, gates, decisions);
        counts.lookups += asks.len() as u64;
        let mut decided = decisions.iter();
        answers.clear();
        for question in questions {
            let rule = match stays(question) {
                true => question.before,
                false => {
                    let rule = decided.next().copied().flatten();
                    counts.unmatched += u64::from(rule.is_none());
                    rule
                }
            };
            let mut outcome = match rule {
                Some(rule) => *rules.policy.decision(rule),
                None => Decision::default(),
            };
            if matches!(question.protocol, ICMP | ICMPV6) {
                outcome.class = None; // it gets no label
            }
            if rule != question.before
                && let Some(rule) = rule
            {
                let slot = slot(&rules.counted, rule);
                counts.by_rule[slot].flows += 1;
            }
            let mut answer = answer(rule, &outcome, rules.unasked.behind_rule(rule));
            let mut mark = outcome.mark;
            if let Some(servers) = by_server {
                let word = match question.begins {
                    true => servers.word_of(question.destination),
                    false => question.kept,
                };
                mark = servers.add(word, &outcome, &mut answer);
            }
            let is_acted_on = question.begins && answer.kept != 0;
            if rule != question.before || question.is_label_new || is_acted_on {
                ruled(&Ruled {
                    flow: name(question),
                    class: class(question, &answer),
                    contradicts: question.contradicts,
                    mark,
                });
            }
            answers.push(answer);
        }
        answers
    }

    fn count(&mut self, record: &FlowRecord) {
        if let Some(rule) = record.rule {
            self.counts.by_rule[slot(&self.rules.counted, rule)].add(&record.counts);
        }
    }

    fn counts(&self) -> &RuleCounts {
        &self.counts
    }

    fn follow(&mut self, before: &dyn FlowRules) {
        let (counts, old) = (&mut self.counts, before.counts());
        (counts.lookups, counts.unmatched) = (old.lookups, old.unmatched);
        if self.rules.numbering == before.in_force().numbering {
            // Rules that are counted from now on stand behind the others.
            let both = counts.by_rule.iter_mut().zip(&old.by_rule);
            both.for_each(|(new, old)| *new = *old);
        }
    }

    fn in_force(&self) -> &RulesInForce {
        &self.rules
    }
}

/// Where a rule is counted.
fn slot(counted: &[RuleNumber], rule: RuleNumber) -> usize {
    counted.binary_search(&rule).map_or(0, |place| place + 1)
}

/// The question as the policy takes it.
pub(crate) fn ask(question: &RuleQuestion) -> Ask {
    let RuleQuestion { protocol, source, destination, in_port, .. } = *question;
    // A flow's ends are of one family.
    let tuple = Tuple::new(protocol, source, destination, in_port);
    Ask {
        tuple: tuple.unwrap_or(Tuple::V4(policy::Key::default())),
        facts: Facts {
            classes: question.classes,
            behaviour: question.behaviour as u8,
            bytes: question.bytes,
            packets: question.packets,
            age_us: question.age_us,
            sample: question.sample,
            vlan: question.vlan,
            dscp: question.dscp,
        },
    }
}

/// What a rule asks for, as the flow manager takes it. About a flow that is dropped no model is
/// asked.
fn answer(rule: Option<RuleNumber>, outcome: &Decision, unasked: u8) -> RuleAnswer {
    let by_rule = match outcome.task {
        _ if outcome.asks_nothing || outcome.drop => u8::MAX,
        Some(only) => !(1 << only),
        None => 0,
    };
    RuleAnswer {
        rule,
        action: action(outcome),
        unasked: by_rule | unasked,
        class: outcome.class,
        kept: 0,
    }
}

/// The class of a flow's label of the first task with this answer.
fn class(question: &RuleQuestion, answer: &RuleAnswer) -> Option<u16> {
    match question.is_by_port {
        true if answer.class.is_none() && answer.unasked & 1 == 0 => question.classes[0],
        true => answer.class,
        false => question.classes[0].or(answer.class),
    }
}

/// What a rule does to packets.
pub(crate) fn action(outcome: &Decision) -> Action {
    Action {
        dscp: outcome.dscp.map(Dscp::code_point),
        drop: outcome.drop,
        mirror: outcome.mirror.is_some(),
    }
}

fn name(question: &RuleQuestion) -> FlowName {
    FlowName {
        flow_id: question.flow_id,
        protocol: question.protocol,
        source: question.source,
        destination: question.destination,
        first_us: question.first_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(numbering: u64, packets: &[u64]) -> RuleTotals {
        let volume = |packets: &u64| RuleVolume { packets: *packets, ..RuleVolume::default() };
        RuleTotals { numbering, by_rule: packets.iter().map(volume).collect() }
    }

    fn packets(totals: &RuleTotals) -> Vec<u64> {
        totals.by_rule.iter().map(|rule| rule.packets).collect()
    }

    #[test]
    fn tables_of_the_same_rules_are_added_and_older_rules_are_left_out() {
        let mut sum = RuleTotals::default();
        for table in [totals(7, &[1, 2]), totals(7, &[10, 20, 30]), totals(6, &[100])] {
            sum.merge(&table);
        }
        assert_eq!((sum.numbering, packets(&sum)), (7, vec![11, 22, 30]));
        sum.merge(&totals(8, &[5]));
        assert_eq!((sum.numbering, packets(&sum)), (8, vec![5]));
    }

    #[test]
    fn a_count_never_goes_down_while_the_rules_are_the_same() {
        let mut now = totals(7, &[3, 50, 1]);
        now.keep(&totals(7, &[9, 40]));
        assert_eq!(packets(&now), [9, 50, 1]);
        now.keep(&totals(6, &[100, 100, 100]));
        assert_eq!(packets(&now), [9, 50, 1]);
    }

    #[test]
    fn the_gates_of_two_minutes_in_turn_are_worked_out_once() {
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        let calendar = move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Gates::default()
        };
        let mut gates = ByMinute { minutes: Default::default() };
        for (minute, expected) in [(7, 1), (8, 2), (7, 2), (8, 2), (8, 2), (9, 3), (8, 3), (7, 4)] {
            gates.at(minute * MINUTE_US, Some(&calendar));
            assert_eq!(asked.load(Ordering::Relaxed), expected, "{minute}");
        }
    }

    #[test]
    fn rules_and_flows_number_behaviours_alike() {
        let names = flowmgr::Behaviour::ALL.map(flowmgr::Behaviour::name);
        assert_eq!(names, policy::rule::BEHAVIOURS);
    }
}
