//! The prefix cache in the round.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_hit_is_labelled_at_once() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = exact_cache(0.0);
    let mut world = plan.start();
    let same = series([60.0, -1500.0, 52.0]);
    // Twice in flight together: both are inferred.
    world.emit(0, same);
    world.emit(0, same);
    world.round_at_ms(0);
    world.round_at_ms(1);
    world.emit(0, same);
    world.round_at_ms(2);
    let Some(Label::Class { class, source, .. }) = world.label(0, 2) else {
        panic!("{:?}", world.label(0, 2));
    };
    assert_eq!((class, source), (class_of(&row_of(&same)), Source::Cache));
    let counters = world.task.counters();
    assert_eq!((counters.inferred, counters.cached), (2, 1));
    assert_eq!((counters.cache.lookups, counters.cache.hits), (3, 1));
    assert_eq!(world.batch_sizes(), [(2, 4)]);
}

#[test]
fn a_short_prefix_is_found_out_by_the_audit() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = CacheConfig { prefix: 2, ..exact_cache(0.5) };
    let mut world = plan.start();
    let like = |last| series([60.0, -1500.0, last]);
    world.emit(0, like(1.0));
    world.round_at_ms(0);
    world.round_at_ms(1);
    // Every second hit is audited: the second and the fourth.
    for last in [2.0, 3.0, 1.0, 1.0] {
        world.emit(0, like(last));
    }
    world.round_at_ms(2);
    let first = world.class(0, 0);
    assert!((1..5).all(|flow| world.class(0, flow) == first));
    assert_eq!(world.task.counters().undecided(), 0);
    world.finish();
    let counters = world.task.counters();
    assert_eq!((counters.inferred, counters.cached), (1, 4));
    let cache = counters.cache;
    assert_eq!((cache.audits_agree, cache.audits_differ), (1, 1));
    // The audit changed nothing.
    assert!((1..5).all(|flow| world.class(0, flow) == first));
    assert_eq!(counters.post_mortem, 0);
}

#[test]
fn an_audit_that_fails_leaves_the_label_alone() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = exact_cache(1.0);
    plan.devices[0].1 = vec![Deed::Works(0), Deed::FailsAtPoll(0)];
    let mut world = plan.start();
    world.emit(0, series([9.0; K]));
    world.round_at_ms(0);
    world.round_at_ms(1);
    world.emit(0, series([9.0; K]));
    world.round_at_ms(2);
    world.finish();
    assert_eq!(world.class(0, 1), Some(class_of(&[9.0; K])));
    let counters = world.task.counters();
    assert_eq!((counters.failed(), counters.cached), (0, 1));
    assert_eq!(counters.cache.audits_agree, 0);
    assert_eq!(counters.devices[0].failures_total(), 1);
}

#[test]
fn a_cache_that_does_not_pay_steps_aside_and_comes_back() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = CacheConfig { entries: 10_000, ..exact_cache(0.0) };
    let mut world = plan.start();
    // A look-up costs 1 µs a round at least, a round of eight series takes the device 8 µs.
    let clock = Arc::new(AtomicU64::new(0));
    let cost = Arc::clone(&clock);
    world.task.set_cost_clock(move || cost.fetch_add(1000, Ordering::Relaxed));
    let mut now_us = 0;
    let mut play = |world: &mut World, rounds: usize, is_alike: bool| {
        for _ in 0..rounds {
            for i in 0..8 {
                let number = if is_alike { i as f32 } else { now_us as f32 };
                assert!(world.emit_again(
                    0,
                    series([60.0 + i as f32, number % 60_000.0, number / 60_000.0])
                ));
            }
            now_us += 8;
            world.round_at_us(now_us);
        }
    };
    play(&mut world, 3000, false);
    let cache = world.task.counters().cache;
    assert_eq!((cache.turned_off, cache.is_off), (1, true));
    assert!(cache.hits < cache.lookups / 10);
    assert_eq!(cache.lookups + cache.bypassed, 24_000);
    play(&mut world, 12_000, true);
    let counters = world.task.counters();
    let cache = counters.cache;
    assert_eq!((cache.turned_off, cache.turned_on, cache.is_off), (1, 1, false));
    assert_eq!(cache.lookups + cache.bypassed, counters.series);
    assert!(cache.hits > 16_000);
}
