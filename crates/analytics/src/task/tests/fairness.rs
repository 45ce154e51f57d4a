//! Several inputs, several devices: in which order they are served.

use super::*;

#[test]
fn more_than_the_largest_size_goes_out_in_several_batches() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.devices = vec![
        (Sizes::Fixed(vec![4, 16]), vec![Deed::Works(0)]),
        (Sizes::Any { cap: 5 }, vec![Deed::Works(0)]),
    ];
    let mut world = plan.start();
    world.emit_new(0, 30);
    world.round_at_ms(0);
    let batches = world.batches();
    let devices: Vec<_> = batches.iter().map(|b| (b.device, b.rows.len())).collect();
    assert_eq!(devices, [(0, 16), (1, 5)]);
    // Nine wait: not enough for device 0, whose turn it is, but enough for the other.
    world.round_at_ms(1);
    assert_eq!(world.batches()[2].device, 1);
    assert_eq!(world.task.counters().batches(Trigger::Full).batches, 3);
}

#[test]
fn a_full_size_feeds_both_devices_under_any_policy() {
    for policy in [
        Policy::None,
        Policy::Max,
        Policy::Timeout { timeout: T },
        CARRY_OVER,
        Policy::Slo { latency_goal: T, delta: 0.05 },
        Policy::OnOff { latency_goal: T, delta: 0.05 },
    ] {
        let mut plan = Plan::new(policy);
        plan.profile = Some(CHEAP);
        plan.devices[0].1 = vec![Deed::Works(3)];
        plan.devices.push(plan.devices[0].clone());
        let mut world = plan.start();
        // Each device does 16 in four rounds, so 8 a round is what both can do.
        for now_us in 0..4000 {
            for i in 0..8 {
                world.emit_again(0, series([i as f32; K]));
            }
            world.round_at_us(now_us * 10);
        }
        let devices = &world.task.counters().devices;
        let batches: Vec<_> = devices.iter().map(|device| device.batches).collect();
        assert!(batches[0].abs_diff(batches[1]) <= 1, "{policy:?}: {batches:?}");
        let series: u64 = devices.iter().map(|device| device.series).sum();
        assert!(series >= 31_900, "{policy:?}: {series} of 32,000");
    }
}

#[test]
fn idle_devices_take_turns() {
    let mut plan = Plan::new(Policy::None);
    plan.devices.push(plan.devices[0].clone());
    let mut world = plan.start();
    for now_ms in 0..6 {
        world.emit_new(0, 1);
        world.round_at_ms(now_ms);
    }
    let devices: Vec<_> = world.batches().iter().map(|b| b.device).collect();
    assert_eq!(devices, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn the_oldest_goes_first_whatever_its_inlet() {
    for first in [0, 1] {
        let mut plan = Plan::new(Policy::Timeout { timeout: T });
        plan.inputs = 2;
        let mut world = plan.start();
        let inputs = [first, 1 - first, first];
        for (now_ms, ring_input) in inputs.into_iter().enumerate() {
            world.emit_new(ring_input, 1);
            world.round_at_ms(now_ms as u64);
        }
        world.round_at_ms(10);
        let batch = &world.batches()[0];
        let came: Vec<_> = batch.series().iter().map(|r| World::flow_of(r).0).collect();
        assert_eq!(came, inputs);
    }
}

#[test]
fn two_flooded_inlets_share_alike() {
    let mut plan = Plan::new(Policy::None);
    plan.inputs = 2;
    let mut world = plan.start();
    for _ in 0..100 {
        world.emit_new(0, 64);
        world.emit_new(1, 64);
        world.round_at_ms(0);
    }
    let batches = world.batches();
    let rows: Vec<_> = batches.iter().flat_map(|batch| batch.series()).collect();
    let first = rows.iter().filter(|row| World::flow_of(row).0 == 0).count();
    assert_eq!(rows.len(), 1600);
    assert!(first.abs_diff(800) <= 64, "{first} of 1600");
}

#[test]
fn a_flooded_inlet_delays_another_by_its_ring_at_most() {
    let mut plan = Plan::new(Policy::None);
    plan.inputs = 2;
    let mut world = plan.start();
    for round in 0..100 {
        world.emit_new(0, 64);
        if round % 10 == 0 {
            world.emit_new(1, 1);
        }
        let batches_before = world.batches().len();
        world.round_at_ms(0);
        assert_eq!(world.batches().len(), batches_before + 1);
    }
    // 64 slots are four batches; the label comes a round later.
    let mut light = 0;
    for (i, batch) in world.batches().iter().enumerate() {
        for row in batch.series() {
            let (ring_input, flow) = World::flow_of(row);
            if ring_input == 1 {
                assert!(i <= flow * 10 + 5, "flow {flow} in batch {i}");
                light += 1;
            }
        }
    }
    assert_eq!(light, 10);
}

#[test]
fn what_comes_in_one_round_counts_together_whatever_the_inlet() {
    let mut plan = Plan::new(Policy::None);
    plan.inputs = 4;
    let mut world = plan.start();
    for now_ms in 0..10 {
        for ring_input in 0..4 {
            world.emit_new(ring_input, 2);
        }
        world.round_at_ms(2 * now_ms);
        world.round_at_ms(2 * now_ms + 1);
    }
    let (measure, _) = world.task.measured(0.1, CHEAP);
    assert_eq!((measure.rate_per_s, measure.batch_in), (800.0, 8.0));
}

#[test]
fn a_round_looks_at_a_bounded_number() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = exact_cache(0.0);
    plan.ring_slots = 256;
    let mut world = plan.start();
    world.emit(0, series([1.0; K]));
    world.round_at_ms(0);
    world.round_at_ms(1);
    for _ in 0..200 {
        world.emit(0, series([1.0; K]));
    }
    world.sources.clear();
    for seen in [64, 128, 192] {
        world.round_at_ms(2);
        assert_eq!(world.task.counters().cached, seen);
        assert!(!world.task.is_done(), "nothing waits, but something is unseen");
    }
    world.round_at_ms(2);
    assert_eq!(world.task.counters().cached, 200);
    assert!(world.task.is_done());
}
