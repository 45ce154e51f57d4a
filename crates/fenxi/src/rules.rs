//! The rules of a run: read from `policy.rules`, resolved by the model, tasks and interfaces in
//! use, and changed during the run.
//!
//! A start, `fenxi check`, a reload, a replay and `fenxi ctl policy` all read rules here, so they
//! refuse the same rules with the same words.

mod changes;
mod clock;
mod moment;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use config::Config;
use dataplane::Error;
use dataplane::rules::{COUNTED_MAX, RuleNames, RulesInForce, numbering};
use dataplane::state::RulesState;
use policy::{Label, Moment, PolicyError, RuleNumber, RuleSet, Store, StoreError, Version};
use rulefiles::write;
use tracing::info;

use crate::names::Names;
use crate::protocol::{PolicyShown, RULES_MAX, RuleRow};
use crate::weights;

use changes::number_of;
pub use changes::{Refused, number_by_order};
pub use clock::LocalClock;
use moment::closed;
pub use moment::outside;
pub use terms::{Terms, Traffic};

/// Number of rules from which the log shows progress.
const MANY: usize = 10_000;

pub struct Rules {
    pub store: Store,
    /// What rules may name, and which actions the run supports.
    pub terms: Terms,
    /// As flow workers use them.
    pub in_force: RulesInForce,
    /// The store's numbering, for which `in_force` has a number that is unique in the process.
    numbering: u64,
    by_name: HashMap<Box<str>, RuleNumber>,
    /// Profiles that are on.
    profiles: BTreeSet<String>,
    /// Whom names of hosts stand for.
    hosts: Names,
    /// Names of hosts that rules have, and those that stand for nobody now.
    host_names: BTreeSet<String>,
    unknown_hosts: BTreeSet<String>,
    /// What the gates are by.
    moment: Moment,
    /// The version of the names that the moment was last compared with; `None`: of other rules.
    resolved: Option<u64>,
    /// Whether flow workers ask from the first packet on: the configuration names a file, or
    /// programs may act on flows.
    is_on: bool,
    /// Batches of changes since the file was read, less undone ones.
    pub changes: usize,
    pub id: u64,
}

impl Rules {
    /// The rules of a configuration, none if it names no file; `labels` are by task.
    pub fn load(
        config: &Config,
        labels: &[Arc<[Label]>],
        traffic: Traffic,
    ) -> Result<Rules, Error> {
        let terms = Terms::new(config, labels, traffic);
        match &config.policy.rules {
            Some(path) => Rules::read(path, "policy.rules: ", terms, &AtomicBool::new(false)),
            None => {
                let acts = traffic == Traffic::Live && weights::acts(config);
                Rules::new(RuleSet::default(), terms, acts)
            }
        }
    }

    /// The rules of a file; `key` precedes the error if it cannot be opened. Ends with an error
    /// soon after `stop` is set.
    pub fn read(path: &Path, key: &str, terms: Terms, stop: &AtomicBool) -> Result<Rules, Error> {
        let began = Instant::now();
        let set = terms.read(path, key, stop)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Data(format!("{}: given up", path.display())));
        }
        let (count, file) = (set.rules.len(), path.display());
        if count >= MANY {
            let seconds = began.elapsed().as_secs_f64();
            info!("{count} rules of {file} read in {seconds:.1} s; building their index");
        }
        let rules = Rules::new(set, terms, true)?;
        if count >= MANY {
            let seconds = began.elapsed().as_secs_f64();
            info!("{count} rules of {file} are ready after {seconds:.1} s");
        }
        Ok(rules)
    }

    fn new(set: RuleSet, terms: Terms, is_on: bool) -> Result<Rules, Error> {
        let store = Store::new(set, terms.names.clone(), terms.update);
        let store = store.map_err(|error| Error::Data(error.to_string()))?;
        let mut rules = Rules {
            in_force: RulesInForce::of(store.version().policy.clone(), numbering()),
            numbering: store.version().numbering,
            store,
            profiles: terms.profiles.clone(),
            hosts: Names::default(),
            host_names: BTreeSet::new(),
            unknown_hosts: BTreeSet::new(),
            moment: Moment::default(),
            resolved: None,
            terms,
            by_name: HashMap::new(),
            is_on,
            changes: 0,
            id: numbering(),
        };
        rules.note_names();
        rules.index_names();
        rules.index_hosts();
        rules.moment = rules.now();
        rules.set_gates();
        rules.in_force.calendar = rules.calendar();
        Ok(rules)
    }

    /// The rules for flow workers from the first packet on; without rules, looking up costs
    /// nothing.
    pub fn at_start(&self) -> Option<&RulesInForce> {
        self.is_on.then_some(&self.in_force)
    }

    pub fn len(&self) -> u64 {
        self.store.len() as u64
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The most similar name of a rule, if any is near.
    pub fn nearest(&self, name: &str) -> Option<&str> {
        config::nearest(name, self.by_name.keys().map(|known| &**known))
    }

    /// A line on rules without effect in the mode of the run.
    pub fn idle(&self) -> Option<String> {
        self.terms.idle(self.store.rules())
    }

    pub fn state(&self) -> RulesState {
        let set = self.store.rules();
        let name = |number: &RuleNumber| set.name(*number).unwrap_or_default().to_owned();
        let [v4, v6] = self.in_force.policy.describe();
        RulesState {
            rules: Some(self.store.len() as u64),
            numbering: self.in_force.numbering,
            counted: self.in_force.counted.iter().map(name).collect(),
            learned: (v4.learned() + v6.learned()) as u64,
            remainder: (v4.remainder + v6.remainder) as u64,
            is_pending: self.store.has_pending(),
        }
    }

    /// Prepares the rules for flow workers that have had others in between.
    pub fn renumber(&mut self) {
        self.in_force.numbering = numbering();
    }

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
            profiles: self.profile_rows(),
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
            closed: closed(set.condition(rule), &self.moment),
            flows: None,
            packets: None,
            bytes: None,
        }
    }

    /// The version that flow workers use, to be compared and given back.
    pub fn version(&self) -> Version {
        self.store.version().clone()
    }

    /// Replaces `old` by the store's version; returns whether they differ.
    pub fn advance(&mut self, old: &Version) -> bool {
        let version = self.store.version();
        if Arc::ptr_eq(&version.policy, &old.policy) {
            return false;
        }
        self.in_force.policy = version.policy.clone();
        if version.numbering != self.numbering {
            self.numbering = version.numbering;
            self.in_force.numbering = numbering();
            self.in_force.names = Arc::default();
        }
        self.note_names();
        self.index_hosts();
        self.resolved = None;
        self.moment = self.now();
        self.set_gates();
        true
    }

    pub fn undo(&mut self) -> Result<(), StoreError> {
        self.store.undo()?;
        self.changes = self.changes.saturating_sub(1);
        self.index_names();
        Ok(())
    }

    /// Drops deleted rules once they are the majority; returns whether there is a new version.
    ///
    /// # Errors
    /// There is no room; cannot happen, because more rules had room before.
    pub fn compact(&mut self) -> Result<bool, PolicyError> {
        let is_new = self.store.compact()?;
        if is_new {
            self.index_names();
        }
        Ok(is_new)
    }

    /// Adds new names for records, and gives the first named rules counters of their own.
    fn note_names(&mut self) {
        let set = self.store.rules();
        let names: &RuleNames = &self.in_force.names;
        let new = set.names.iter().skip(names.count());
        names.extend(new.map(|(rule, name)| (set.rules[*rule as usize].rank.order(), &**name)));
        let named = set.names.iter().map(|(rule, name)| (*rule, &**name));
        self.in_force.unasked = Arc::new(self.terms.unasked(named));
        let named = set.names.iter().map(|(rule, name)| (*rule, flowmgr::name_hash(name)));
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        self.in_force.named = named.into();
        let numbers = set.names.iter().map(|(number, _)| *number);
        self.in_force.counted = numbers.take(COUNTED_MAX).collect();
    }

    fn index_names(&mut self) {
        let store = &self.store;
        let names = store.rules().names.iter();
        let live = names.filter(|(rule, _)| store.is_live(*rule));
        self.by_name = live.map(|(rule, name)| (name.clone(), *rule)).collect();
    }
}
