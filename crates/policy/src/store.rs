//! The control side of a policy: adds and deletes rules during look-ups.
//!
//! Readers hold a version ([`Arc<Policy>`]) and never wait. A batch of changes makes the next
//! version, which is published to all readers. Once all have released the previous version, the
//! store takes it back and brings it up to date for the next batch; so the cost of a batch depends
//! on its changes, not on the number of rules (two copies of the mutable part, as in left-right
//! concurrency). Both share the trained index.
//!
//! Added rules go to the remainder's hash tables, deleted ones are marked. Once there are too many,
//! another thread trains a new index ([`Training`]), which replaces the old one; changes made
//! meanwhile are applied to it again.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::classifier::{Classifier, TableFull};
use crate::{Extent, FILTERS_MAX, Filter, Names, Policy, PolicyError, RuleNumber, RuleSet};

/// Batches that can be undone.
const HISTORY: usize = 16;
/// Minimum interval between trainings, as a multiple of the last one's duration.
const COOL_DOWN_FACTOR: u32 = 2;
/// Minimum interval between trainings.
const COOL_DOWN: Duration = Duration::from_millis(100);
/// Share of rules changed since the last training that starts another (OVS paper, §6: a remainder
/// of 10 %; half may come while the training runs).
const CHANGED_MAX: f64 = 0.05;
/// Minimum changes for a training.
const CHANGED_MIN: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add(RuleNumber),
    Delete(RuleNumber),
}

impl Change {
    fn undone(self) -> Change {
        match self {
            Change::Add(rule) => Change::Delete(rule),
            Change::Delete(rule) => Change::Add(rule),
        }
    }
}

/// When changes take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// At once; look-ups of changed rules are slower until the next training.
    #[default]
    Instant,
    /// After a training.
    Delayed,
}

/// A published policy.
#[derive(Clone, Debug)]
pub struct Version {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Changes when rules are renumbered.
    pub numbering: u64,
    /// Changes applied to it.
    seen: u64,
}

/// Why a change was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum StoreError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("there is no rule {0}; `fenxi ctl policy show` lists them")]
    NoSuchRule(RuleNumber),
    #[error(
        "there is nothing to undo: the last {HISTORY} batches of changes can be undone, each once"
    )]
    NothingToUndo,
}

/// The rules, the version in use, and the state for the next one.
#[derive(Debug)]
pub struct Store {
    rules: RuleSet,
    names: Names,
    update: Update,
    /// By rule: whether it exists.
    is_live: Vec<bool>,
    live: usize,
    current: Version,
    /// Changes applied to the previous version, which may be given back.
    before: u64,
    /// A policy that is not in use, and the number of changes applied to it.
    spare: Option<(Policy, u64)>,
    /// Changes that some version or training lacks, and the number of changes before them.
    journal: VecDeque<Change>,
    journal_from: u64,
    history: VecDeque<Vec<Change>>,
    training: Option<Started>,
    /// Changes at the last training, and the earliest time of the next.
    trained_at: u64,
    not_before: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Started {
    at: Instant,
    seen: u64,
}

/// Filters to train an index for, on another thread.
#[derive(Debug)]
pub struct Training {
    v4: Vec<Filter<u32>>,
    v6: Vec<Filter<u128>>,
}

/// A trained index, for [`Store::adopt`].
#[derive(Debug)]
pub struct Trained {
    v4: Classifier<u32>,
    v6: Classifier<u128>,
}

impl Training {
    /// Trains the index.
    ///
    /// # Errors
    /// There are too many filters.
    pub fn run(self) -> Result<Trained, TableFull> {
        Ok(Trained { v4: Classifier::new(&self.v4)?, v6: Classifier::new(&self.v6)? })
    }
}

impl Store {
    /// Compiles rules and trains their index.
    ///
    /// # Errors
    /// A rule names something that does not exist, or there are too many rules.
    pub fn new(rules: RuleSet, names: Names, update: Update) -> Result<Store, PolicyError> {
        let policy = Policy::new(&rules, &names)?;
        let live = rules.rules.len();
        Ok(Store {
            rules,
            names,
            update,
            is_live: vec![true; live],
            live,
            current: Version { policy: Arc::new(policy), numbering: 0, seen: 0 },
            before: 0,
            spare: None,
            journal: VecDeque::new(),
            journal_from: 0,
            history: VecDeque::new(),
            training: None,
            trained_at: 0,
            not_before: None,
        })
    }

    /// The current version.
    pub fn version(&self) -> &Version {
        &self.current
    }

    /// All rules, including deleted ones; see [`Store::is_live`].
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Whether the rule exists and is not deleted.
    pub fn is_live(&self, rule: RuleNumber) -> bool {
        self.is_live.get(rule as usize).copied().unwrap_or(false)
    }

    /// Number of live rules.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there are no live rules.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Whether changes wait for a training to take effect.
    pub fn has_pending(&self) -> bool {
        self.current.seen < self.changes()
    }

    /// Starts a batch of changes, which is applied as a whole or not at all.
    pub fn batch(&mut self) -> Batch<'_> {
        let before = self.rules.extent();
        Batch {
            rules: self.rules.rules.len(),
            store: self,
            before,
            changes: Vec::new(),
            deleted: HashSet::new(),
        }
    }

    /// Whether a batch can be undone.
    pub fn can_undo(&self) -> bool {
        !self.history.is_empty()
    }

    /// Undoes the last batch.
    ///
    /// # Errors
    /// There is none, or no room for the rules it deleted.
    pub fn undo(&mut self) -> Result<&Version, StoreError> {
        let changes = self.history.pop_back().ok_or(StoreError::NothingToUndo)?;
        let undone: Vec<Change> = changes.iter().rev().map(|change| change.undone()).collect();
        for &change in &undone {
            self.note(change);
        }
        self.make()?;
        Ok(&self.current)
    }

    /// Takes back a version no longer in use, so that the next batch need not copy the rules.
    /// `false` if it is useless: still in use, or with another index.
    pub fn give_back(&mut self, old: Version) -> bool {
        let Version { policy, numbering, seen } = old;
        let is_of_use = numbering == self.current.numbering
            && seen >= self.journal_from
            && policy.shares_index(&self.current.policy);
        match Arc::try_unwrap(policy) {
            Ok(policy) if is_of_use => {
                self.spare = Some((policy, seen));
                true
            }
            _ => false,
        }
    }

    /// Starts a training if one is due and none runs.
    pub fn training(&mut self, now: Instant) -> Option<Training> {
        let is_early = self.not_before.is_some_and(|not_before| now < not_before);
        if self.training.is_some() || is_early || !self.is_due() {
            return None;
        }
        let seen = self.changes();
        self.training = Some(Started { at: now, seen });
        let live = |rule: RuleNumber| self.is_live(rule);
        Some(Training {
            v4: self.rules.v4.iter().filter(|it| live(it.rule)).copied().collect(),
            v6: self.rules.v6.iter().filter(|it| live(it.rule)).copied().collect(),
        })
    }

    fn is_due(&self) -> bool {
        let changed = (self.changes() - self.trained_at) as usize;
        let many = CHANGED_MIN.max((self.live as f64 * CHANGED_MAX) as usize);
        changed >= many || self.update == Update::Delayed && self.has_pending()
    }

    /// Makes a version with the trained index. Versions before it are of no more use.
    ///
    /// # Errors
    /// There is no room for the rules added since the training began.
    pub fn adopt(&mut self, trained: Trained, now: Instant) -> Result<&Version, PolicyError> {
        let Some(Started { at, seen }) = self.training.take() else { return Ok(&self.current) };
        let took = now.saturating_duration_since(at);
        self.not_before = Some(now + COOL_DOWN.max(took * COOL_DOWN_FACTOR));
        self.trained_at = seen;
        let names = &self.names;
        let mut policy = Policy::with(trained.v4, trained.v6, &self.rules, names)?;
        let mut adopted = seen;
        if self.update == Update::Instant {
            for &change in self.journal.range((seen - self.journal_from) as usize..) {
                apply(&mut policy, &self.rules, change, names)?;
            }
            adopted = self.changes();
        }
        self.spare = None;
        self.show(policy, adopted);
        // The previous version has another index.
        self.before = adopted;
        self.forget();
        Ok(&self.current)
    }

    /// Notes that a training failed or was given up.
    pub fn abandon(&mut self, now: Instant) {
        self.training = None;
        self.not_before = Some(now + COOL_DOWN);
    }

    /// Renumbers the rules without the deleted ones, if most are deleted and no training uses the
    /// numbers. `true`: [`Store::version`] is a new one. Trains an index, so call it on a
    /// background thread.
    ///
    /// # Errors
    /// There is no room, which cannot happen as there was before.
    pub fn compact(&mut self) -> Result<bool, PolicyError> {
        let gone = self.rules.rules.len() - self.live;
        if gone < 2 * CHANGED_MIN || gone < self.live || self.training.is_some() {
            return Ok(false);
        }
        let rules = self.rules.compacted(|rule| !self.is_live(rule));
        let numbering = self.current.numbering + 1;
        let mut next = Store::new(rules, self.names.clone(), self.update)?;
        next.current.numbering = numbering;
        *self = next;
        Ok(true)
    }

    fn changes(&self) -> u64 {
        self.journal_from + self.journal.len() as u64
    }

    /// Records a change without applying it.
    fn note(&mut self, change: Change) {
        self.journal.push_back(change);
        let (rule, is_live) = match change {
            Change::Add(rule) => (rule, true),
            Change::Delete(rule) => (rule, false),
        };
        self.is_live.resize(self.rules.rules.len(), false);
        debug_assert_ne!(self.is_live[rule as usize], is_live, "rule {rule}");
        self.is_live[rule as usize] = is_live;
        self.live = if is_live { self.live + 1 } else { self.live - 1 };
    }

    /// Applies the recorded changes, unless they wait for a training.
    fn make(&mut self) -> Result<(), PolicyError> {
        if self.update == Update::Delayed {
            return Ok(());
        }
        let names = &self.names;
        let copy = || (Policy::clone(&self.current.policy), self.current.seen);
        let (mut policy, seen) = self.spare.take().unwrap_or_else(copy);
        for &change in self.journal.range((seen - self.journal_from) as usize..) {
            apply(&mut policy, &self.rules, change, names)?;
        }
        self.show(policy, self.changes());
        self.forget();
        Ok(())
    }

    /// Makes a policy the current version.
    fn show(&mut self, mut policy: Policy, seen: u64) {
        policy.changes = seen;
        self.before = self.current.seen;
        self.current.policy = Arc::new(policy);
        self.current.seen = seen;
    }

    /// Drops changes that every version and training has.
    fn forget(&mut self) {
        let training = self.training.map_or(u64::MAX, |started| started.seen);
        let keep_from = self.before.min(self.current.seen).min(training);
        while self.journal_from < keep_from {
            self.journal.pop_front();
            self.journal_from += 1;
        }
    }

    /// Checks the names in the rules from number `from` on, and the room for their filters.
    fn check(&self, from: usize) -> Result<(), PolicyError> {
        if self.rules.filters() > FILTERS_MAX {
            return Err(TableFull.into());
        }
        let names = &self.names;
        let mut rules = self.rules.rules[from..].iter();
        rules.try_for_each(|rule| Policy::check(&self.rules, rule, names))
    }
}

fn apply(
    policy: &mut Policy,
    rules: &RuleSet,
    change: Change,
    names: &Names,
) -> Result<(), PolicyError> {
    match change {
        Change::Add(rule) => policy.add(rules, rule, names),
        Change::Delete(rule) => {
            policy.delete(rule);
            Ok(())
        }
    }
}

/// Changes to be applied together; dropped without [`Batch::commit`], none is applied.
#[derive(Debug)]
pub struct Batch<'a> {
    store: &'a mut Store,
    /// The rules' size to restore unless the batch is committed.
    before: Extent,
    rules: usize,
    changes: Vec<Change>,
    deleted: HashSet<RuleNumber>,
}

impl Batch<'_> {
    /// Adds a rule: `add` appends one to the set, or none.
    ///
    /// # Errors
    /// The error of `add`.
    pub fn add<E>(
        &mut self,
        add: impl FnOnce(&mut RuleSet) -> Result<RuleNumber, E>,
    ) -> Result<RuleNumber, E> {
        let rule = add(&mut self.store.rules)?;
        self.changes.push(Change::Add(rule));
        Ok(rule)
    }

    /// Deletes a rule.
    ///
    /// # Errors
    /// There is no such rule, or the batch has deleted it before.
    pub fn delete(&mut self, rule: RuleNumber) -> Result<(), StoreError> {
        if !self.has(rule) || !self.deleted.insert(rule) {
            return Err(StoreError::NoSuchRule(rule));
        }
        self.changes.push(Change::Delete(rule));
        Ok(())
    }

    /// Whether the rule exists after the changes so far.
    pub fn has(&self, rule: RuleNumber) -> bool {
        let is_new = self.rules <= rule as usize && (rule as usize) < self.store.rules.rules.len();
        (self.store.is_live(rule) || is_new) && !self.deleted.contains(&rule)
    }

    /// Checks the names in a rule; [`Batch::commit`] checks all added ones.
    ///
    /// # Errors
    /// The rule names something that does not exist.
    pub fn check(&self, rule: RuleNumber) -> Result<(), PolicyError> {
        let Store { rules, names, .. } = &*self.store;
        Policy::check(rules, &rules.rules[rule as usize], names)
    }

    /// The rules, including those that the batch adds and deletes.
    pub fn rules(&self) -> &RuleSet {
        &self.store.rules
    }

    /// Applies the changes.
    ///
    /// # Errors
    /// A rule names something that does not exist, or there is no room; then nothing changes.
    pub fn commit(mut self) -> Result<Version, StoreError> {
        let changes = std::mem::take(&mut self.changes);
        self.store.check(self.rules)?;
        self.before = self.store.rules.extent();
        for &change in &changes {
            self.store.note(change);
        }
        self.store.make()?;
        if self.store.history.len() == HISTORY {
            self.store.history.pop_front();
        }
        self.store.history.push_back(changes);
        Ok(self.store.current.clone())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.store.rules.truncate(self.before);
    }
}

#[cfg(test)]
mod tests;
