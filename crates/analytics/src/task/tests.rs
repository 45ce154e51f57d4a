//! The round by hand: one thing at a time, on a clock that the test moves.

mod at_once;
mod cache;
mod device;
mod failures;
mod fairness;
mod one_model;
mod slo;
mod swap;
mod timeline;
mod world;

use super::*;
use crate::CacheConfig;
use accel::{Profile, Sizes};
use cring::{Feature, Features, FlowRef, Label, Series, Source};
use device::{Deed, FakeDevice, class_by, class_of};
use world::{K, NO_CACHE, Plan, TCP, World, row_of, series};

const T: Duration = Duration::from_millis(10);
const CARRY_OVER: Policy =
    Policy::CarryOver { timeout: T, phi: 0.2, max_wait: Duration::from_millis(50) };

fn exact_cache(audit: f64) -> CacheConfig {
    CacheConfig { prefix: K, entries: 100, audit }
}

#[test]
fn a_series_becomes_a_label() {
    let mut world = Plan::new(Policy::None).start();
    assert!(!world.round_at_ms(0));
    world.emit(0, series([60.0, -1500.0, 52.0]));
    assert!(world.round_at_ms(1));
    assert_eq!(world.label(0, 0), Some(Label::Pending));
    assert_eq!(world.task.counters().undecided(), 1);
    assert!(world.round_at_ms(6));
    let label = Label::Class {
        class: class_of(&[60.0, -1500.0, 52.0]),
        confidence: 32_768,
        source: Source::Model,
        model: 0,
    };
    assert_eq!(world.label(0, 0), Some(label));
    let counters = world.task.counters();
    assert_eq!((counters.series, counters.inferred), (1, 1));
    assert_eq!(counters.time_to_label_us().len(), 1);
    assert_eq!(counters.time_to_label_us().max() / 10, 600);
    let phases = &counters.phases;
    let all = [&phases.ring_wait_us, &phases.batch_wait_us, &phases.device_us];
    assert_eq!(all.map(|phase| phase.len()), [1, 1, 1]);
    assert_eq!(all.map(|phase| phase.max() / 100), [10, 0, 50]);
    assert_eq!(world.batches()[0].rows, [[60.0, -1500.0, 52.0], [0.0; K], [0.0; K], [0.0; K]]);
    assert!(!world.round_at_ms(7));
}

#[test]
fn a_short_series_is_padded_and_a_long_one_cut() {
    let mut world = Plan::new(Policy::None).start();
    let of = |lengths: &[i32]| {
        let mut series = Series::new(TCP, lengths.len(), Features::LENGTHS);
        for (i, &length) in lengths.iter().enumerate() {
            series.set_signed(i, length);
        }
        series
    };
    let (short, long) = (of(&[60, -1500]), of(&[1, 2, 3, 4, 5]));
    world.emit(0, short);
    world.emit(0, long);
    world.round_at_ms(0);
    assert_eq!(world.batches()[0].rows[..2], [[60.0, -1500.0, 0.0], [1.0, 2.0, 3.0]]);
}

#[test]
fn the_timer_runs_from_the_first_series_that_waits() {
    let mut world = Plan::new(Policy::Timeout { timeout: T }).start();
    world.round_at_ms(100);
    world.emit_new(0, 1);
    world.round_at_ms(103);
    world.emit_new(0, 4);
    world.round_at_ms(112);
    assert_eq!(world.batch_sizes(), []);
    world.round_at_ms(113);
    assert_eq!(world.batch_sizes(), [(5, 8)]);
    // The batch left nothing behind, so what comes now starts the timer anew.
    world.emit_new(0, 1);
    world.round_at_ms(120);
    world.round_at_ms(129);
    assert_eq!(world.batch_sizes().len(), 1);
    world.round_at_ms(130);
    assert_eq!(world.batch_sizes(), [(5, 8), (1, 4)]);
}

#[test]
fn what_is_carried_over_waits_for_the_next_timeout() {
    let mut world = Plan::new(CARRY_OVER).start();
    world.emit_new(0, 9);
    world.round_at_ms(0);
    world.round_at_ms(10);
    assert_eq!(world.batch_sizes(), [(8, 8)]);
    // One is left, three come: enough for a batch, but the timer began anew at 10 ms.
    world.emit_new(0, 3);
    world.round_at_ms(19);
    assert_eq!(world.batch_sizes().len(), 1);
    world.round_at_ms(20);
    assert_eq!(world.batch_sizes(), [(8, 8), (4, 4)]);
    let batch = &world.batches()[1];
    let flows: Vec<_> = batch.series().iter().map(World::flow_of).collect();
    assert_eq!(flows, [(0, 8), (0, 9), (0, 10), (0, 11)]);
}

#[test]
fn too_few_for_a_batch_wait_another_timeout() {
    let mut world = Plan::new(CARRY_OVER).start();
    world.emit_new(0, 1);
    world.round_at_ms(0);
    world.round_at_ms(10);
    world.emit_new(0, 3);
    world.round_at_ms(19);
    assert_eq!(world.batch_sizes(), []);
    world.round_at_ms(20);
    assert_eq!(world.batch_sizes(), [(4, 4)]);
}

#[test]
fn a_lonely_series_is_padded_after_the_longest_wait() {
    let mut world = Plan::new(CARRY_OVER).start();
    world.emit_new(0, 1);
    for now_ms in 0..50 {
        world.round_at_ms(now_ms);
    }
    assert_eq!(world.batch_sizes(), []);
    world.round_at_ms(50);
    assert_eq!(world.batch_sizes(), [(1, 4)]);
    let batches = world.task.counters().batches(Trigger::MaxWait);
    assert_eq!((batches.batches, batches.series, batches.padding), (1, 1, 3));
}

#[test]
fn a_device_busy_at_the_timeout_is_fed_when_it_is_free() {
    let mut plan = Plan::new(Policy::Timeout { timeout: T });
    plan.devices[0].1 = vec![Deed::Works(2)];
    let mut world = plan.start();
    world.emit_new(0, 17);
    world.round_at_ms(0); // 16 at once, 1 left
    for now_ms in [5, 10] {
        world.round_at_ms(now_ms);
        assert_eq!(world.batch_sizes(), [(16, 16)]);
    }
    world.round_at_ms(11);
    assert_eq!(world.batch_sizes(), [(16, 16), (1, 4)]);
}

const CHEAP: Profile = Profile { t0_us: 5.0, t1_us: 2.0 };

#[test]
fn what_is_left_goes_at_once_where_that_is_cheaper_than_waiting() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.profile = Some(CHEAP);
    let mut world = plan.start();
    // 8, then 4 of the 5 left, although the device is busy in between; the last one fills none.
    world.emit_new(0, 13 - 4 + 1 + 3);
    world.round_at_ms(0);
    for now_ms in 10..14 {
        world.round_at_ms(now_ms);
    }
    assert_eq!(world.batch_sizes(), [(13, 16)]);
    world.emit_new(0, 11);
    world.round_at_ms(20);
    for now_us in 30_000..30_004 {
        world.round_at_us(now_us);
    }
    assert_eq!(world.batch_sizes()[1..], [(8, 8)]);
    world.emit_new(0, 3);
    world.round_at_ms(31);
    assert_eq!(world.batch_sizes().len(), 2, "the timer began anew");
    world.round_at_ms(40);
    assert_eq!(world.batch_sizes()[2..], [(4, 4)]);
    world.round_at_ms(41);
    // 13 that are left in two steps: 8, 4, and one waits.
    world.emit_new(0, 10);
    world.round_at_ms(50);
    world.round_at_ms(51);
    world.round_at_ms(52);
    assert_eq!(world.batch_sizes()[3..], [(8, 8), (4, 4)]);
}

#[test]
fn what_is_left_is_shared_out_in_one_round() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.profile = Some(CHEAP);
    plan.devices.push(plan.devices[0].clone());
    let mut world = plan.start();
    world.emit_new(0, 12);
    world.round_at_ms(0);
    world.round_at_ms(10);
    assert_eq!(world.batch_sizes(), [(8, 8), (4, 4)]);
    let batches = world.task.counters().batches(Trigger::CarryOver);
    assert_eq!(batches.batches, 1, "the second is no carry-over: nothing is left");
}

#[test]
fn a_full_ring_fires_what_waits() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.ring_slots = 8;
    plan.cache = exact_cache(0.0);
    let mut world = plan.start();
    world.emit(0, series([1.0; K]));
    world.round_at_ms(0);
    world.round_at_ms(50);
    world.round_at_ms(51);
    // One that waits, and seven behind it that are done at once and keep their slots.
    world.emit(0, series([2.0; K]));
    for _ in 0..7 {
        assert!(world.emit(0, series([1.0; K])));
    }
    assert!(!world.emit(0, series([1.0; K])));
    world.round_at_ms(52);
    assert_eq!(world.task.counters().batches(Trigger::RingFull).batches, 1);
    assert_eq!(world.task.counters().cached, 7);
    assert_eq!(world.emit_new(0, 10), 8);
}

#[test]
fn a_label_for_a_flow_that_is_gone_is_post_mortem() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = exact_cache(0.0);
    let mut world = plan.start();
    world.emit(0, series([1.0; K]));
    world.round_at_ms(0);
    assert_eq!(world.retire(0, 0), Some(Label::Pending));
    world.round_at_ms(1);
    // The answer is good for the cache all the same, and a hit can come too late as well.
    world.emit(0, series([1.0; K]));
    world.retire(0, 1);
    world.round_at_ms(2);
    let counters = world.task.counters();
    assert_eq!((counters.inferred, counters.cached), (1, 1));
    assert_eq!(counters.post_mortem, 2);
    assert_eq!(counters.time_to_label_us().len(), 0);
    assert_eq!(world.sources[0].words[0].read().1, Label::None);
}

#[test]
fn the_end_waits_for_what_is_on_its_way() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.devices[0].1 = vec![Deed::Works(1)];
    let mut world = plan.start();
    assert!(!world.task.is_done());
    world.emit_new(0, 3);
    world.sources.clear();
    world.round_at_ms(0);
    assert!(!world.task.is_done());
    world.task.drain();
    world.round_at_ms(0);
    assert_eq!(world.batch_sizes(), [(3, 4)]);
    world.round_at_ms(0);
    assert!(!world.task.is_done());
    world.round_at_ms(0);
    assert!(world.task.is_done());
    assert_eq!(world.task.counters().batches(Trigger::Drain).batches, 1);
}

#[test]
fn what_cannot_work_is_refused() {
    let refused = |inputs, k, sizes: Option<Sizes>| {
        let config = Config {
            context: Vec::new(),
            k,
            features: vec![Feature::SignedLength],
            policy: Policy::None,
            cache: NO_CACHE,
            probe: Vec::new(),
            word: 0,
            priority: 0,
            after: crate::After::default(),
        };
        let accelerators = sizes.into_iter().map(|sizes| {
            let device = FakeDevice::new(0, sizes, Vec::new(), Default::default());
            Accelerator::from(Box::new(device) as Box<dyn accel::Device>)
        });
        let refused = Task::new(config, inputs, accelerators.collect());
        refused.err().unwrap()
    };
    let inputs = || {
        let (_, series) = cring::ring(8);
        vec![RingInput { series, labels: std::sync::Arc::new(Vec::new()) }]
    };
    let any = Some(Sizes::Any { cap: 8 });
    let of = |inputs, k, sizes| refused(inputs, k, sizes).to_string();
    assert!(of(inputs(), K, None).contains("at least one device"));
    assert_eq!(
        of(inputs(), K + 1, any),
        "device fake wants 3 numbers per series, but the task has 1 of each of k = 4 elements: its \
         model has another k or \
         other features"
    );
    for sizes in [vec![], vec![0, 8], vec![8, 4], vec![4, 4]] {
        let error = of(inputs(), K, Some(Sizes::Fixed(sizes)));
        assert!(error.contains("sizes are positive and ascend"), "{error}");
    }
}
