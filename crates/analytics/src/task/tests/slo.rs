//! The policy `slo` in the round, on a device that is as fast as its profile, or is not.

use super::*;

const GOAL: Duration = Duration::from_millis(2);
const SLO: Policy = Policy::Slo { latency_goal: GOAL, delta: 0.05 };
const PROFILE: Profile = Profile { t0_us: 20.0, t1_us: 2.0 };
/// Time between two rounds.
const STEP_US: u64 = 10;

/// A device that really takes what the profile says, times `slower`, for batches of any size up to
/// 512.
fn world(slower: f64) -> World {
    let mut plan = Plan::new(SLO);
    plan.profile = Some(PROFILE);
    plan.ring_slots = 4096;
    let per_row = slower * PROFILE.t1_us / STEP_US as f64;
    plan.devices = vec![(
        Sizes::Any { cap: 512 },
        vec![Deed::Takes { polls: slower * PROFILE.t0_us / STEP_US as f64, per_row }],
    )];
    plan.start()
}

/// Plays `seconds` seconds of evenly spaced series.
fn play(world: &mut World, rate_per_s: f64, seconds: f64) {
    let mut due = 0.0;
    for _ in 0..(seconds * 1e6) as u64 / STEP_US {
        due += rate_per_s * STEP_US as f64 / 1e6;
        while due >= 1.0 {
            assert!(world.emit_again(0, series([1.0, 2.0, 3.0])));
            due -= 1.0;
        }
        let now_us = world.now_ns / 1000 + STEP_US;
        world.round_at_us(now_us);
    }
}

fn violations(world: &World) -> (u64, u64) {
    let slo = world.task.counters().slo;
    (slo.violations, slo.periods)
}

#[test]
fn batches_are_large_and_in_time() {
    let mut world = world(1.0);
    play(&mut world, 50_000.0, 1.0);
    let batches = |world: &World| world.task.counters().devices[0].batches;
    let before = batches(&world);
    play(&mut world, 50_000.0, 0.5);
    // b/50,000 + 20 us + 2 us b = 1.9 ms has the solution 85.
    let mean = 25_000 / (batches(&world) - before);
    assert!((70..=86).contains(&mean), "{mean}");
    let counters = world.task.counters();
    assert!(counters.time_to_label_us().value_at_quantile(0.99) <= 2000);
    let (violations, periods) = violations(&world);
    assert_eq!((violations, periods >= 12), (0, true));
    assert!(counters.batches(Trigger::Slo).batches > counters.batches(Trigger::MaxWait).batches);
}

#[test]
fn at_low_rates_age_decides() {
    let mut world = world(1.0);
    play(&mut world, 500.0, 5.0);
    let counters = world.task.counters();
    assert!(counters.time_to_label_us().max() <= 2000, "{}", counters.time_to_label_us().max());
    let (violations, periods) = violations(&world);
    assert!(violations == 0 && periods > 5, "{violations} of {periods}");
}

#[test]
fn a_wrong_profile_does_not_break_the_goal() {
    // Four times slower than it says; 8 us a row are 40 % of the device.
    let mut world = world(4.0);
    play(&mut world, 50_000.0, 4.0);
    let (violations, periods) = violations(&world);
    assert!(violations * 100 <= 9 * periods, "{violations} of {periods}");
}

#[test]
fn a_device_that_is_slower_than_its_profile_has_drifted_after_some_seconds() {
    let profile = |world: &World| world.task.profiles().next().flatten().unwrap();
    let mut world = world(2.0);
    assert_eq!(profile(&world).drift(), 0.0);
    play(&mut world, 20_000.0, 4.0);
    let found = profile(&world);
    assert!((0.8..1.6).contains(&found.drift()), "{found:?}");
    assert_eq!((found.drifts, found.reference), (0, PROFILE));
    play(&mut world, 20_000.0, 4.0);
    let found = profile(&world);
    assert_eq!((found.drifts, found.started), (1, PROFILE));
    // What it really takes, up to one round more until it is polled, and the batch sizes of the
    // time in which it drifted.
    let real = PROFILE.latency(found.rows as usize) * 2;
    let known = found.reference.latency(found.rows as usize);
    let share = known.as_secs_f64() / real.as_secs_f64();
    assert!((0.75..1.25).contains(&share), "{found:?}");
    world.finish();
}

#[test]
fn a_rate_that_falls_or_leaps_is_followed() {
    let mut world = world(1.0);
    for rate in [50_000.0, 1_000.0, 200_000.0, 20_000.0] {
        play(&mut world, rate, 1.0);
    }
    let (violations, periods) = violations(&world);
    assert!(violations * 100 <= 9 * periods, "{violations} of {periods}");
    world.finish();
}

#[test]
fn poisson_arrivals_and_hold_ups_cost_few_violations() {
    // Every 37 ms the thread is held up. The budget makes room for it where it can.
    for (hold_up_us, is_beyond_goal) in [(0, false), (300, false), (1200, false), (2500, true)] {
        let mut world = world(1.0);
        let (mut due_us, mut random) = (0.0, 0x9E37_79B9_7F4A_7C15_u64);
        for step in 0..400_000 {
            let now_us = world.now_ns / 1000 + STEP_US;
            while due_us < now_us as f64 {
                assert!(world.emit_again(0, series([1.0, 2.0, 3.0])));
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
                due_us -= (1.0 - uniform).ln() * 20.0; // 50,000 a second
            }
            let held_up = if step % 3700 == 0 { hold_up_us } else { 0 };
            world.round_at_us(now_us + held_up);
        }
        let (violations, periods) = violations(&world);
        let counters = world.task.counters();
        let p99_us = counters.time_to_label_us().value_at_quantile(0.99);
        assert!(is_beyond_goal || violations * 100 <= 9 * periods, "{violations} of {periods}");
        assert!(is_beyond_goal || p99_us <= 2000, "{p99_us} us at the 99th percentile");
        // Smaller batches would not help against a hold-up longer than the goal.
        let device = &counters.devices[0];
        let mean = device.series / device.batches;
        assert!(!is_beyond_goal || mean >= 20, "batches of {mean}");
    }
}

#[test]
fn a_device_without_a_profile_is_refused() {
    let plan = Plan::new(SLO);
    let config = Config {
        context: Vec::new(),
        k: K,
        features: vec![Feature::SignedLength],
        policy: plan.policy,
        cache: NO_CACHE,
        probe: Vec::new(),
        word: 0,
        priority: 0,
        after: crate::After::default(),
    };
    let (_, consumer) = cring::ring(8);
    let ring_input = RingInput { series: consumer, labels: std::sync::Arc::new(Vec::new()) };
    let device = FakeDevice::new(0, Sizes::Any { cap: 8 }, Vec::new(), Default::default());
    let device: Box<dyn accel::Device> = Box::new(device);
    let refused = |profile, device| {
        let accelerator = Accelerator { device, profile, deadline: None, executor: 0 };
        Task::new(config, vec![ring_input], vec![accelerator]).err().unwrap()
    };
    let error = refused(None, device).to_string();
    assert!(error.starts_with("device fake has no profile"), "{error}");
}
