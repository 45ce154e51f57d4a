//! The round under any course of events: bursts on several inputs, devices of all speeds that fail
//! now and then, flows that end too early. After every round and at the end everything must add up.

use super::device::{Deed, class_of};
use super::world::{K, Plan, World, row_of, series};
use crate::batching::SloPlan as BatchPlan;
use crate::executors::Executors;
use crate::{CacheConfig, Policy, Trigger};
use accel::{Profile, Sizes};
use cring::Label;
use proptest::prelude::*;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_micros(100);
const MAX_WAIT: Duration = Duration::from_micros(400);
const PHI: f64 = 0.2;
/// What the policies believe that devices take; devices take other times.
const PROFILE: Option<Profile> = Some(Profile { t0_us: 10.0, t1_us: 1.0 });
const DEADLINE: Duration = Duration::from_micros(300);

#[derive(Clone, Debug)]
enum Event {
    /// New flows on a ring input, this many or as many as the ring has room for.
    Emit(usize, usize),
    /// The clock goes on.
    Pass { us: u64 },
    /// A flow ends, the n-th newest of a ring input.
    Retire(usize, usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..2usize, 1..12usize).prop_map(|(ring_input, count)| Event::Emit(ring_input, count)),
        1 => (0..2usize, 30..80usize)
            .prop_map(|(ring_input, count)| Event::Emit(ring_input, count)),
        5 => (1..60u64).prop_map(|us| Event::Pass { us }),
        1 => (300..500u64).prop_map(|us| Event::Pass { us }),
        1 => (0..2usize, 0..20usize).prop_map(|(ring_input, nth)| Event::Retire(ring_input, nth)),
    ];
    prop::collection::vec(event, 1..150)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::None),
        Just(Policy::Max),
        Just(Policy::Timeout { timeout: TIMEOUT }),
        Just(Policy::CarryOver { timeout: TIMEOUT, phi: PHI, max_wait: MAX_WAIT }),
        Just(Policy::Slo { latency_goal: MAX_WAIT, delta: 0.05 }),
        Just(Policy::OnOff { latency_goal: MAX_WAIT, delta: 0.05 }),
    ]
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        8 => (0..6usize).prop_map(Deed::Works),
        1 => (0..6usize).prop_map(Deed::FailsAtPoll),
        1 => Just(Deed::FailsAtSubmit),
        1 => Just(Deed::GivesNan),
        1 => Just(Deed::GivesTooFew),
        1 => (20..60usize).prop_map(Deed::Works),
    ];
    prop::collection::vec(deed, 1..8)
}

fn devices() -> impl Strategy<Value = Vec<(Sizes, Vec<Deed>)>> {
    let sizes = prop_oneof![
        3 => Just(Sizes::Fixed(vec![4, 8, 16, 32])),
        1 => Just(Sizes::Fixed(vec![1, 5, 11])),
        1 => Just(Sizes::Any { cap: 20 }),
    ];
    prop::collection::vec((sizes, deeds()), 1..4)
}

/// A world of two inputs, small rings, and these.
fn world(policy: Policy, devices: Vec<(Sizes, Vec<Deed>)>) -> World {
    let mut plan = Plan::new(policy);
    plan.inputs = 2;
    plan.devices = devices;
    plan.deadline = Some(DEADLINE);
    plan.profile = PROFILE;
    let mut world = plan.start();
    follow_a_plan(&mut world, policy);
    world
}

/// Gives a task with a goal a plan in which series wait. It holds for one control period, longer
/// than the events take. Without a plan everything would go at once.
fn follow_a_plan(world: &mut World, policy: Policy) {
    world.task.round(0);
    let (trigger, budget) = match policy {
        Policy::OnOff { .. } => (18, Duration::MAX),
        _ => (18, MAX_WAIT * 95 / 100),
    };
    world.task.follow(BatchPlan { trigger, budget });
}

/// What holds after every round.
fn check_round(world: &World, policy: Policy) -> Result<(), TestCaseError> {
    let task = &world.task;
    world.check_sum();
    let waiting = task.rings.waiting();
    prop_assert!(task.dispatch.up() > 0 || waiting == 0, "without a device nothing waits");

    // Without a reason in the devices, none waits longer than its policy says.
    let oldest_ns = task.rings.oldest_seen_ns();
    if let (Some(oldest_ns), Some(_)) =
        (oldest_ns, task.dispatch.free(&Executors::none_shared()).next())
    {
        let waited = Duration::from_nanos(world.now_ns - oldest_ns);
        let timer = Duration::from_nanos(world.now_ns - task.timer_ns);
        match policy {
            Policy::None => prop_assert!(false, "{waiting} wait beside an idle device"),
            Policy::Timeout { timeout } => prop_assert!(timer < timeout, "timer {timer:?}"),
            Policy::CarryOver { timeout, max_wait, .. } => prop_assert!(
                timer < timeout && waited < max_wait,
                "timer {timer:?}, waited {waited:?}"
            ),
            // As long as it takes to fill a batch, or the plan's.
            Policy::Max | Policy::OnOff { .. } => {}
            Policy::Slo { latency_goal, .. } => prop_assert!(waited < latency_goal),
        }
    }
    Ok(())
}

/// Each ring input's series went out in the order in which they came in, once each, and retried
/// ones twice.
fn check_order(world: &World) -> Result<(), TestCaseError> {
    let counters = world.task.counters();
    let (mut last, mut first_time, mut again) = ([None; 2], 0, 0);
    for batch in world.batches() {
        for (ring_input, flow) in batch.series().iter().map(World::flow_of) {
            if last[ring_input] < Some(flow) {
                last[ring_input] = Some(flow);
                first_time += 1;
            } else {
                again += 1;
            }
        }
    }
    prop_assert_eq!(first_time + counters.shed(), counters.series);
    prop_assert_eq!(again, counters.batches(Trigger::Retry).series);
    prop_assert!(again <= counters.retried);
    Ok(())
}

/// The batches' counters agree with what the devices saw, and padding keeps to the policy.
fn check_batches(world: &World, policy: Policy) -> Result<(), TestCaseError> {
    let counters = world.task.counters();
    let seen = world.batches();
    let all = Trigger::ALL.map(|trigger| counters.batches(trigger));
    let series: u64 = all.iter().map(|b| b.series).sum();
    let rows: u64 = series + all.iter().map(|b| b.padding).sum::<u64>();
    prop_assert_eq!(all.iter().map(|b| b.batches).sum::<u64>(), seen.len() as u64);
    prop_assert_eq!(series, seen.iter().map(|b| b.series().len() as u64).sum::<u64>());
    prop_assert_eq!(rows, seen.iter().map(|b| b.rows.len() as u64).sum::<u64>());

    for trigger in [Trigger::Full, Trigger::CarryOver] {
        prop_assert_eq!(counters.batches(trigger).padding, 0);
    }
    if let Policy::CarryOver { phi, .. } = policy {
        let at_timeout = counters.batches(Trigger::Timeout);
        let rows = at_timeout.series + at_timeout.padding;
        prop_assert!(at_timeout.padding as f64 <= phi * rows as f64);
    }
    Ok(())
}

/// Every flow that still lives has its own label, or knows that none will come.
fn check_labels(world: &World, ended: Ended) -> Result<(), TestCaseError> {
    let mut unlabelled = ended.unlabelled;
    for (ring_input, source) in world.sources.iter().enumerate() {
        for (flow, series) in source.emitted.iter().enumerate() {
            match world.label(ring_input, flow) {
                None => {}
                Some(Label::Class { class, .. }) => {
                    prop_assert_eq!(class, class_of(&row_of(series)));
                }
                Some(Label::Unlabelled) => unlabelled += 1,
                Some(label) => prop_assert!(false, "{ring_input}/{flow}: {label:?}"),
            }
        }
    }
    let counters = world.task.counters();
    let emitted: usize = world.sources.iter().map(|s| s.emitted.len()).sum();
    prop_assert_eq!(counters.series, emitted as u64);
    prop_assert_eq!(counters.undecided(), 0);
    // No label was written twice: the second would be a further post-mortem one.
    prop_assert_eq!(
        ended.waiting,
        counters.post_mortem + counters.failed() + counters.shed() - unlabelled
    );
    prop_assert_eq!(
        counters.time_to_label_us().len(),
        counters.cached + counters.inferred - counters.post_mortem
    );
    Ok(())
}

/// Flows that ended before the end.
#[derive(Clone, Copy, Default)]
struct Ended {
    /// While they waited for a label.
    waiting: u64,
    /// When their devices had failed, or none was up.
    unlabelled: u64,
}

/// Lets the events happen, with a round after each.
fn play(
    world: &mut World,
    events: &[Event],
    mut emit: impl FnMut(&mut World, usize, usize),
    mut check: impl FnMut(&World) -> Result<(), TestCaseError>,
) -> Result<Ended, TestCaseError> {
    let mut ended = Ended::default();
    for event in events {
        match *event {
            Event::Emit(ring_input, count) => emit(world, ring_input, count),
            Event::Pass { us } => world.now_ns += us * 1000,
            Event::Retire(ring_input, nth) => {
                if let Some(flow) = world.sources[ring_input].emitted.len().checked_sub(nth + 1) {
                    match world.retire(ring_input, flow) {
                        Some(Label::Pending) => ended.waiting += 1,
                        Some(Label::Unlabelled) => ended.unlabelled += 1,
                        _ => {}
                    }
                }
            }
        }
        world.task.round(world.now_ns);
        check(world)?;
    }
    world.finish();
    Ok(ended)
}

/// Series of which many begin alike, and some are the same.
fn emit_alike(world: &mut World, ring_input: usize, count: usize) {
    for _ in 0..count {
        let number = world.sources[ring_input].emitted.len() * 7 % 12;
        let lengths = [60.0, -((number % 3) as f32 + 1.0), number as f32 + 40.0];
        if !world.emit(ring_input, series(lengths)) {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nothing_is_lost_reordered_doubled_or_forgotten(
        policy in policies(),
        devices in devices(),
        events in events(),
    ) {
        let mut world = world(policy, devices);
        let emit = |world: &mut World, ring_input, count| {
            world.emit_new(ring_input, count);
        };
        let ended = play(&mut world, &events, emit, |world| check_round(world, policy))?;
        check_order(&world)?;
        check_batches(&world, policy)?;
        check_labels(&world, ended)?;
    }

    #[test]
    fn an_exact_cache_changes_no_label(
        policy in policies(),
        devices in devices(),
        events in events(),
        entries in 1..20usize,
        audit in prop_oneof![Just(0.0), Just(0.3), Just(1.0)],
    ) {
        let mut plan = Plan::new(policy);
        plan.inputs = 2;
        plan.devices = devices;
        plan.profile = PROFILE;
        plan.cache = CacheConfig { prefix: K, entries, audit };
        let mut world = plan.start();
        follow_a_plan(&mut world, policy);
        let ended = play(&mut world, &events, emit_alike, |_| Ok(()))?;
        check_batches(&world, policy)?;
        check_labels(&world, ended)?;

        let counters = world.task.counters();
        prop_assert_eq!(counters.cache.lookups, counters.series);
        prop_assert_eq!(counters.cache.hits, counters.cached);
        prop_assert_eq!(counters.cache.audits_differ, 0);
        let audited = (counters.cached as f64 * audit) as u64;
        prop_assert!(counters.cache.audits_agree <= audited + 1);
        if counters.devices.iter().all(|device| device.failures_total() == 0) {
            prop_assert!(counters.cache.audits_agree >= audited);
        }
    }

    #[test]
    fn a_short_prefix_gives_the_label_of_a_series_that_begins_alike(events in events()) {
        let mut plan = Plan::new(Policy::None);
        plan.inputs = 2;
        plan.cache = CacheConfig { prefix: 2, entries: 2, audit: 1.0 };
        let mut world = plan.start();
        play(&mut world, &events, emit_alike, |_| Ok(()))?;
        let mut differing = 0;
        for (ring_input, source) in world.sources.iter().enumerate() {
            for (flow, series) in source.emitted.iter().enumerate() {
                let Some(Label::Class { class, .. }) = world.label(ring_input, flow) else {
                    continue;
                };
                let alike = (0..12).filter(|number| -series.signed(1) == number % 3 + 1);
                let first = series.signed(1) as f32;
                let mut classes = alike.map(|n| class_of(&[60.0, first, n as f32 + 40.0]));
                prop_assert!(classes.any(|c| c == class));
                differing += u64::from(class != class_of(&row_of(series)));
            }
        }
        let counters = world.task.counters();
        let audits = counters.cache.audits_agree + counters.cache.audits_differ;
        prop_assert_eq!(audits, counters.cached);
        prop_assert!(differing <= counters.cache.audits_differ);
    }
}
