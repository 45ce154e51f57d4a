//! The store against the plain list of the rules that are there.

use proptest::prelude::*;

use super::*;
use crate::classifier::Linear;
use crate::classifier::tests::{random_filters, random_key};
use crate::rule::{Condition, RuleAction};
use crate::{Ask, Facts, Gates, Key, Tuple};

/// Adds one of the filters as a rule of its own.
fn add(rules: &mut RuleSet, filter: &Filter<u32>) -> RuleNumber {
    let (rule, rank) = rules
        .push(filter.rank.priority(), Condition::default(), RuleAction::default(), (0, 0))
        .unwrap();
    rules.v4.push(Filter { rule, rank, is_conditional: false, ..*filter });
    rule
}

fn store(filters: &[Filter<u32>], update: Update) -> Store {
    let mut rules = RuleSet::default();
    for filter in filters {
        add(&mut rules, filter);
    }
    Store::new(rules, Names::default(), update).unwrap()
}

fn asks(keys: &[Key<u32>]) -> Vec<Ask> {
    let ask = |&key| Ask { tuple: Tuple::V4(key), facts: Facts::default() };
    keys.iter().map(ask).collect()
}

/// What the rules that are there say.
fn expected(store: &Store, keys: &[Key<u32>]) -> Vec<Option<RuleNumber>> {
    let filters = store.rules().v4.iter().filter(|it| store.is_live(it.rule));
    let linear = Linear::new(&filters.copied().collect::<Vec<_>>());
    keys.iter().map(|key| linear.find(key, |_| true)).collect()
}

fn agrees(store: &Store, keys: &[Key<u32>]) {
    let mut found = Vec::new();
    store.version().policy.decide(&asks(keys), &Gates::default(), &mut found);
    assert_eq!(found, expected(store, keys));
}

fn keys(seed: u64, filters: &[Filter<u32>]) -> Vec<Key<u32>> {
    (0..64).map(|at| random_key(seed ^ at << 40, filters)).collect()
}

/// What is the same as long as the rules are, see [`Policy::has_rules_of`].
fn identity(store: &Store) -> (u64, u64) {
    let Version { policy, numbering, .. } = store.version();
    (*numbering, policy.changes)
}

/// Something that is done to a store.
#[derive(Clone, Debug)]
enum Step {
    /// Adds rules and deletes every n-th of the others, as one batch.
    Batch {
        adds: usize,
        delete_every: usize,
        is_given_back: bool,
    },
    Undo,
    Train,
    Adopt,
    Compact,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let batch = (0..40_usize, 2..60_usize, any::<bool>()).prop_map(
        |(adds, delete_every, is_given_back)| Step::Batch { adds, delete_every, is_given_back },
    );
    let step = prop_oneof![
        4 => batch,
        2 => Just(Step::Undo),
        2 => Just(Step::Train),
        2 => Just(Step::Adopt),
        1 => Just(Step::Compact),
    ];
    proptest::collection::vec(step, 1..25)
}

fn take_step(
    store: &mut Store,
    step: &Step,
    added: &[Filter<u32>],
    training: &mut Option<Training>,
    now: &mut Instant,
) {
    *now += Duration::from_secs(10);
    match *step {
        Step::Batch { adds, delete_every, is_given_back } => {
            let old = store.version().clone();
            let live: Vec<RuleNumber> =
                (0..store.rules().rules.len() as u32).filter(|&it| store.is_live(it)).collect();
            let mut batch = store.batch();
            for filter in added.iter().take(adds) {
                batch.add(|rules| Ok::<_, StoreError>(add(rules, filter))).unwrap();
            }
            for rule in live.iter().step_by(delete_every) {
                batch.delete(*rule).unwrap();
            }
            batch.commit().unwrap();
            if is_given_back {
                store.give_back(old);
            }
        }
        Step::Undo => match store.undo() {
            Ok(_) | Err(StoreError::NothingToUndo) => {}
            Err(error) => panic!("{error}"),
        },
        Step::Train => *training = store.training(*now).or(training.take()),
        Step::Adopt => {
            if let Some(training) = training.take() {
                store.adopt(training.run().unwrap(), *now).unwrap();
            }
        }
        Step::Compact => {
            store.compact().unwrap();
        }
    }
}

proptest! {
    #[test]
    fn every_version_is_that_of_the_rules_that_are_there(seed in any::<u64>(), steps in steps()) {
        let filters = random_filters::<u32>(seed, 1500);
        let mut store = store(&filters, Update::Instant);
        let (mut training, mut now) = (None, Instant::now());
        for (at, step) in steps.iter().enumerate() {
            let added = random_filters::<u32>(seed ^ at as u64, 40);
            let before = (identity(&store), store.is_live.clone());
            take_step(&mut store, step, &added, &mut training, &mut now);
            prop_assert_eq!(before.0 == identity(&store), before.1 == store.is_live);
            agrees(&store, &keys(seed ^ at as u64, &[filters.clone(), added].concat()));
        }
    }
}

#[test]
fn what_was_deleted_comes_back_in_its_old_place() {
    let filters = random_filters::<u32>(1, 300);
    let mut store = store(&filters, Update::Instant);
    let keys = keys(5, &filters);
    let before = expected(&store, &keys);
    let mut batch = store.batch();
    (0..150).for_each(|rule| batch.delete(rule).unwrap());
    batch.commit().unwrap();
    assert_eq!(store.len(), 150);
    agrees(&store, &keys);
    store.undo().unwrap();
    let mut found = Vec::new();
    store.version().policy.decide(&asks(&keys), &Gates::default(), &mut found);
    assert_eq!((found, store.len()), (before, 300));
    assert!(matches!(store.undo(), Err(StoreError::NothingToUndo)));
}

#[test]
fn a_batch_that_is_dropped_or_wrong_changes_nothing() {
    let filters = random_filters::<u32>(2, 20);
    let mut store = store(&filters, Update::Instant);
    let keys = keys(9, &filters);
    let mut batch = store.batch();
    batch.delete(3).unwrap();
    assert_eq!(
        batch.delete(3).unwrap_err().to_string(),
        "there is no rule 3; `fenxi ctl policy show` lists them"
    );
    batch.add(|rules| Ok::<_, StoreError>(add(rules, &filters[0]))).unwrap();
    drop(batch);
    assert_eq!((store.len(), store.rules().rules.len(), store.rules().v4.len()), (20, 20, 20));
    agrees(&store, &keys);

    let mut batch = store.batch();
    let named = |rules: &mut RuleSet| {
        let action = RuleAction { label: Some("DNS".to_owned()), ..RuleAction::default() };
        rules.push(0, Condition::default(), action, (0, 0)).map(|(rule, _)| rule)
    };
    batch.add(named).unwrap();
    let error = batch.commit().unwrap_err();
    assert!(error.to_string().contains("there is no label \"DNS\""), "{error}");
    assert_eq!((store.len(), store.rules().rules.len()), (20, 20));
}

#[test]
fn delayed_changes_count_once_they_were_trained() {
    let filters = random_filters::<u32>(3, 1200);
    let mut store = store(&filters, Update::Delayed);
    let keys = keys(11, &filters);
    let before = expected(&store, &keys);
    let mut batch = store.batch();
    (0..300).for_each(|rule| batch.delete(rule).unwrap());
    batch.commit().unwrap();
    let found = |store: &Store| {
        let mut found = Vec::new();
        store.version().policy.decide(&asks(&keys), &Gates::default(), &mut found);
        found
    };
    assert!(store.has_pending());
    assert_eq!(found(&store), before);
    let now = Instant::now();
    let training = store.training(now).unwrap();
    // Too late for this training.
    let mut batch = store.batch();
    batch.delete(400).unwrap();
    batch.commit().unwrap();
    store.adopt(training.run().unwrap(), now).unwrap();
    assert!(store.has_pending());
    let training = store.training(now + Duration::from_secs(10)).unwrap();
    store.adopt(training.run().unwrap(), now + Duration::from_secs(10)).unwrap();
    assert!(!store.has_pending());
    assert_eq!(found(&store), expected(&store, &keys));
}

#[test]
fn a_version_that_came_back_is_used_again() {
    let filters = random_filters::<u32>(4, 50);
    let mut store = store(&filters, Update::Instant);
    for rule in 0..10 {
        let old = store.version().clone();
        let mut batch = store.batch();
        batch.delete(rule).unwrap();
        batch.commit().unwrap();
        let held = old.clone();
        assert!(!store.give_back(old), "somebody holds it");
        assert!(store.give_back(held));
        assert!(store.journal.len() <= 2);
    }
    agrees(&store, &keys(1, &filters));
}

#[test]
fn a_refused_batch_leaves_nothing_behind() {
    let filters = random_filters::<u32>(7, 20);
    let mut store = store(&filters, Update::Instant);
    let mut batch = store.batch();
    let nobody_has = Condition { labels: vec!["Napster".to_owned()], ..Condition::default() };
    let push = |rules: &mut RuleSet| rules.push(0, nobody_has, RuleAction::default(), (0, 0));
    let added = batch.add(|rules| push(rules).map(|(rule, _)| rule));
    assert!(batch.has(added.unwrap()));
    batch.commit().unwrap_err();
    let mut batch = store.batch();
    let rule = batch.add(|rules| Ok::<_, StoreError>(add(rules, &filters[0])));
    assert_eq!(rule.unwrap(), 20);
    batch.delete(20).unwrap();
    assert!(!batch.has(20) && batch.has(19) && !batch.has(21));
    batch.delete(0).unwrap();
    batch.commit().unwrap();
    agrees(&store, &keys(7, &filters));
}
