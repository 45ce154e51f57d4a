//! A swap of the model while series are under way.

use super::*;
use accel::Device;

fn standby(world: &World, devices: usize, generation: u16) -> Standby {
    let accelerators = (0..devices).map(|number| {
        let sizes = Sizes::Fixed(vec![4, 8, 16]);
        let device = FakeDevice::new(number, sizes, vec![Deed::Works(1)], world.log.clone());
        let device: Box<dyn Device> = Box::new(device.of_generation(generation));
        Accelerator::from(device)
    });
    Standby {
        model: Some(NewModel {
            accelerators: accelerators.collect(),
            generation,
            coming: Coming::Replaces,
        }),
        settings: None,
    }
}

/// Prepares and commits at once.
fn swap(world: &mut World, standby: Standby) {
    world.task.prepare(standby).unwrap();
    world.task.commit();
}

fn accelerators(standby: &Standby) -> usize {
    let model = standby.model.as_ref();
    model.map_or(0, |model| model.accelerators.len())
}

/// A flow's class is what the model of the generation that its label names says.
fn check_label(world: &World, flow: usize) -> u16 {
    let row = row_of(&world.sources[0].emitted[flow]);
    let Some(Label::Class { class, model, .. }) = world.label(0, flow) else {
        panic!("flow {flow} has {:?}", world.label(0, flow));
    };
    assert_eq!(class, class_by(model, &row), "flow {flow}, model {model}");
    model
}

#[test]
fn a_hundred_exchanges_under_load_lose_nothing() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.cache = exact_cache(0.2);
    plan.devices[0].1 = vec![Deed::Works(1)];
    plan.devices.push((Sizes::Fixed(vec![4, 8, 16]), vec![Deed::Works(2)]));
    let mut world = plan.start();
    let (mut retired, mut now_us) = (0, 0);
    for generation in 1..=100 {
        let first = world.sources[0].emitted.len();
        let other = standby(&world, 2, generation);
        swap(&mut world, other);
        let refused = {
            let offer = standby(&world, 2, 7);
            world.task.prepare(offer)
        }
        .unwrap_err();
        assert_eq!(refused.error, SwapError::UnderWay);
        assert_eq!(accelerators(&refused.standby), 2);
        for round in 0..20 {
            for i in 0..5 {
                // The cache already knows half of them.
                world
                    .emit(0, series([1.0, (i % 2) as f32, if i < 3 { 0.0 } else { round as f32 }]));
            }
            now_us += 700;
            world.round_at_us(now_us);
            if let Some(old) = world.task.take_retired() {
                retired += old.accelerators.len();
            }
        }
        // Those in use before are kept.
        assert_eq!(retired, 2 * usize::from(generation - 1));
        // Series asked for after the swap have answers of the new model.
        let model = check_label(&world, first + 50);
        assert_eq!(model, generation);
    }
    world.finish();
    let counters = world.task.counters();
    assert_eq!(counters.swaps, 100);
    assert!(counters.last_swap <= Duration::from_millis(5), "{:?}", counters.last_swap);
    assert_eq!((counters.undecided(), counters.failed(), counters.shed()), (0, 0, 0));
    assert!(counters.cached > 1000, "{}", counters.cached);
    assert_eq!(counters.cache.audits_differ, 0);
    assert_eq!(counters.series, world.sources[0].emitted.len() as u64);
    let models: Vec<u16> =
        (0..world.sources[0].emitted.len()).map(|flow| check_label(&world, flow)).collect();
    assert!(models.iter().all(|model| (0..=100).contains(model)));
}

#[test]
fn the_cache_forgets_the_old_model_even_where_generations_wrap() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = exact_cache(0.0);
    let mut world = plan.start();
    world.emit(0, series([1.0; K]));
    world.round_at_ms(0);
    world.round_at_ms(1);
    world.emit(0, series([2.0; K])); // in flight, so its answer is of the old model
    world.round_at_ms(2);
    // Another model, under the same number.
    let mut standby = standby(&world, 1, 1);
    standby.model.as_mut().unwrap().generation = 0;
    swap(&mut world, standby);
    for now_ms in 3..6 {
        world.emit(0, series([1.0; K]));
        world.emit(0, series([2.0; K]));
        world.round_at_ms(now_ms);
    }
    world.finish();
    assert_eq!(world.class(0, 1), Some(class_of(&[2.0; K])));
    for flow in 2..8 {
        let row = row_of(&world.sources[0].emitted[flow]);
        assert_eq!(world.class(0, flow), Some(class_by(1, &row)), "flow {flow}");
    }
    assert!(world.task.counters().cached > 0, "by what the new one said");
}

#[test]
fn a_hung_device_is_replaced_at_once() {
    let mut plan = Plan::new(Policy::None);
    plan.devices[0].1 = vec![Deed::Works(usize::MAX)];
    plan.deadline = Some(Duration::from_millis(5));
    let mut world = plan.start();
    world.emit_new(0, 4);
    world.round_at_ms(0);
    let other = standby(&world, 1, 1);
    swap(&mut world, other);
    for now_ms in 1..=5 {
        world.round_at_ms(now_ms);
        assert!(world.task.take_retired().is_none());
    }
    world.round_at_ms(6);
    let retired = world.task.take_retired().unwrap();
    assert!(!retired.can_come_back, "it hangs");
    let before = &mut world.task.swaps.before.as_mut().unwrap().dispatch.device_slots;
    assert!(!before.pop().unwrap().into_accelerator().device.is_idle());
    assert!(world.task.health().all(|device| device.state.is_up()));
    world.emit_new(0, 4);
    world.finish();
    assert_eq!(check_label(&world, 4), 1);
    let counters = world.task.counters();
    assert_eq!((counters.failed(), counters.inferred), (4, 4));
    assert_eq!((counters.devices[0].went_down, counters.devices[0].came_back), (1, 1));
    assert_eq!(counters.last_swap, Duration::from_millis(5));
}

#[test]
fn what_does_not_fit_is_refused_and_comes_back() {
    let mut world = Plan::new(Policy::None).start();
    let mut refused = |standby: Standby| {
        let refused = world.task.prepare(standby).unwrap_err();
        (accelerators(&refused.standby), refused.to_string())
    };
    let other = Plan::new(Policy::None).start();
    let (n, error) = refused(standby(&other, 2, 1));
    assert_eq!(n, 2);
    assert_eq!(error, "2 accelerators stand by for 1 devices: give one for each");
    let (_, error) = refused(standby(&other, 1, 256));
    assert_eq!(error, "model generation 256 does not fit a label: it lies below 256");
    let device = FakeDevice::new(0, Sizes::Fixed(vec![]), Vec::new(), other.log.clone());
    let device: Box<dyn Device> = Box::new(device);
    let (_, error) = refused(Standby {
        model: Some(NewModel {
            accelerators: vec![device.into()],
            generation: 1,
            coming: Coming::Replaces,
        }),
        settings: None,
    });
    assert!(error.contains("sizes are positive and ascend"), "{error}");
    // Nothing has changed.
    world.emit_new(0, 1);
    world.finish();
    assert_eq!(check_label(&world, 0), 0);
    assert_eq!(world.task.counters().swaps, 0);
}

#[test]
fn what_stands_by_changes_nothing_before_the_change_over() {
    let mut world = Plan::new(Policy::None).start();
    {
        let offer = standby(&world, 1, 7);
        world.task.prepare(offer)
    }
    .unwrap();
    let refused = {
        let offer = standby(&world, 1, 8);
        world.task.prepare(offer)
    }
    .unwrap_err();
    assert_eq!(refused.error, SwapError::UnderWay);
    world.emit_new(0, 4);
    for now_ms in 0..3 {
        world.round_at_ms(now_ms);
    }
    assert_eq!(check_label(&world, 0), 0);
    assert!(world.task.take_retired().is_none());
    assert_eq!(accelerators(&world.task.abort().expect("it stood by")), 1);
    world.task.commit();
    world.emit_new(0, 4);
    world.finish();
    assert_eq!(check_label(&world, 4), 0);
    assert_eq!(world.task.counters().swaps, 0);
}

fn settings(old: Policy, new: Policy, caches: [CacheConfig; 2]) -> Standby {
    let [old, new] = [(old, caches[0]), (new, caches[1])].map(|(policy, cache)| Config {
        context: Vec::new(),
        k: K,
        features: vec![Feature::SignedLength],
        policy,
        cache,
        probe: Vec::new(),
        word: 0,
        priority: 0,
        after: crate::After::default(),
    });
    Standby { model: None, settings: Some(Settings::change(&old, &new).unwrap()) }
}

#[test]
fn settings_hold_from_the_change_over_on_and_no_series_is_lost() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.cache = exact_cache(0.0);
    let mut world = plan.start();
    world.emit_new(0, 1);
    world.round_at_ms(0);
    assert_eq!(world.batch_sizes(), [], "it waits");
    let other = settings(CARRY_OVER, Policy::None, [exact_cache(0.0), exact_cache(0.5)]);
    swap(&mut world, other);
    world.round_at_ms(1);
    assert_eq!(world.batch_sizes(), [(1, 4)], "and waits no more");
    world.round_at_ms(2);
    assert!(world.task.take_retired().unwrap().settings.is_some());
    // The cache has kept what it knew, and its hits are audited now.
    let alike = world.sources[0].emitted[0];
    for now_ms in 3..7 {
        world.emit(0, alike);
        world.round_at_ms(now_ms);
    }
    let cache = world.task.counters().cache;
    assert_eq!((cache.hits, world.task.counters().cached), (4, 4));
    // Without a cache the same series is inferred.
    let other = settings(Policy::None, Policy::None, [exact_cache(0.5), NO_CACHE]);
    swap(&mut world, other);
    let before = world.task.counters().inferred;
    world.emit(0, alike);
    world.finish();
    let counters = world.task.counters();
    assert_eq!(counters.inferred, before + 1);
    assert!(counters.cache.audits_agree > 0);
    assert_eq!((counters.undecided(), counters.swaps), (0, 0));
}

#[test]
fn a_new_cache_holds_no_answer_and_takes_those_of_the_model_in_use() {
    let mut world = Plan::new(Policy::None).start();
    let other = standby(&world, 1, 1);
    swap(&mut world, other);
    world.round_at_ms(0);
    assert!(world.task.take_retired().is_some());
    let other = settings(Policy::None, Policy::None, [NO_CACHE, exact_cache(0.0)]);
    swap(&mut world, other);
    assert!(world.task.take_retired().is_some());
    for now_ms in 1..4 {
        world.emit(0, series([1.0; K]));
        world.round_at_ms(2 * now_ms);
        world.round_at_ms(2 * now_ms + 1);
    }
    world.finish();
    let counters = world.task.counters();
    assert_eq!((counters.inferred, counters.cached), (1, 2));
    assert_eq!(check_label(&world, 2), 1);
}

#[test]
fn there_is_one_canary_at_a_time_and_no_other_model_comes_beside_it() {
    let mut world = Plan::new(Policy::None).start();
    let prepare = |world: &mut World, coming: Coming, generation: u16| -> Result<(), SwapError> {
        let mut standby = standby(world, 1, generation);
        let model = standby.model.as_mut().unwrap();
        model.coming = coming;
        if matches!(coming, Coming::Promoted | Coming::Withdrawn) {
            model.accelerators.clear();
        }
        world.task.prepare(standby).map_err(|refused| refused.error)?;
        world.task.commit();
        world.round_at_ms(u64::from(generation));
        assert!(world.task.take_retired().is_some());
        Ok(())
    };
    for coming in [Coming::Promoted, Coming::Withdrawn] {
        let refused = prepare(&mut world, coming, 1);
        assert_eq!(refused, Err(SwapError::Canary("there is no canary")));
    }
    assert_eq!(prepare(&mut world, Coming::Canary, 1), Ok(()));
    for coming in [Coming::Canary, Coming::Replaces] {
        assert!(matches!(prepare(&mut world, coming, 2), Err(SwapError::Canary(_))));
    }
    assert_eq!(prepare(&mut world, Coming::Withdrawn, 1), Ok(()));
    assert_eq!(prepare(&mut world, Coming::Canary, 2), Ok(()));
    assert_eq!(world.task.counters().swaps, 0);
    assert_eq!(prepare(&mut world, Coming::Promoted, 2), Ok(()));
    assert_eq!(world.task.counters().swaps, 1);
    world.emit_new(0, 1);
    world.round_at_ms(5);
    world.finish();
    assert_eq!(check_label(&world, 0), 2);
}

#[test]
fn where_a_device_that_is_to_come_back_hangs_the_model_in_use_stays() {
    let mut plan = Plan::new(CARRY_OVER);
    plan.cache = exact_cache(0.0);
    plan.devices[0].1 = vec![Deed::Works(usize::MAX)];
    plan.deadline = Some(Duration::from_millis(5));
    let mut world = plan.start();
    world.emit_new(0, 1);
    world.round_at_ms(0);
    let other = standby(&world, 1, 1);
    swap(&mut world, other);
    // The flow that waited at the commit is the last batch of the model before.
    world.round_at_ms(1);
    assert!(world.task.take_retired().unwrap().can_come_back, "it may answer yet");
    let back = Standby {
        model: Some(NewModel { accelerators: Vec::new(), generation: 2, coming: Coming::Replaces }),
        settings: None,
    };
    swap(&mut world, back);
    world.emit_new(0, 3);
    for now_ms in 2..=6 {
        world.round_at_ms(now_ms);
        assert!(world.task.take_retired().is_none());
    }
    world.round_at_ms(7);
    let retired = world.task.take_retired().unwrap();
    assert!(retired.has_stayed && !retired.can_come_back);
    assert!(!retired.accelerators[0].device.is_idle(), "it hangs");
    for now_ms in [20, 60, 61, 62] {
        world.round_at_ms(now_ms);
    }
    assert_eq!([1, 2, 3].map(|flow| check_label(&world, flow)), [1; 3]);
    let other = standby(&world, 1, 3);
    swap(&mut world, other);
    world.emit_new(0, 1);
    world.round_at_ms(63);
    world.finish();
    assert_eq!(check_label(&world, 4), 3);
    let counters = world.task.counters();
    assert_eq!((counters.swaps, counters.failed(), counters.inferred), (2, 1, 4));
    // What fails beside the model in use is not its failure.
    let device = &counters.devices[0];
    assert_eq!((device.kept_failures, device.failures_total(), device.went_down), (1, 0, 0));
}

#[test]
fn a_canary_whose_device_fails_says_so_and_is_not_promoted() {
    let mut world = Plan::new(Policy::None).start();
    let sizes = Sizes::Fixed(vec![4, 8, 16]);
    let fails = FakeDevice::new(0, sizes, vec![Deed::FailsAtPoll(0)], world.log.clone());
    let device: Box<dyn Device> = Box::new(fails.of_generation(1));
    let of = |coming: Coming, accelerators: Vec<Accelerator>| Standby {
        model: Some(NewModel { accelerators, generation: 1, coming }),
        settings: None,
    };
    let canary = of(Coming::Canary, vec![device.into()]);
    swap(&mut world, canary);
    world.round_at_ms(0);
    assert!(world.task.take_retired().is_some());
    assert_eq!(world.task.canary_failure(), None);
    world.emit_new(0, 20);
    for now_ms in 1..6 {
        world.round_at_ms(now_ms);
    }
    let why = world.task.canary_failure().unwrap();
    assert!(why.contains("it was told to"), "{why}");
    let refused = world.task.prepare(of(Coming::Promoted, Vec::new())).unwrap_err();
    assert_eq!(refused.to_string(), "a device of the canary has failed");
    swap(&mut world, of(Coming::Withdrawn, Vec::new()));
    world.round_at_ms(6);
    assert!(world.task.take_retired().is_some());
    assert_eq!(world.task.canary_failure(), None);
    let counters = world.task.counters();
    assert!(counters.failed() > 0 && counters.inferred > 0);
    let device = &counters.devices[0];
    assert_eq!((device.kept_failures, device.failures_total()), (1, 0));
    world.finish();
}

#[test]
fn the_model_before_comes_back_once_it_has_answered_what_waits() {
    let mut plan = Plan::new(Policy::None);
    plan.devices[0].1 = vec![Deed::Works(2)];
    let mut world = plan.start();
    let nothing = Standby {
        model: Some(NewModel { accelerators: Vec::new(), generation: 1, coming: Coming::Replaces }),
        settings: None,
    };
    let refused = world.task.prepare(nothing).unwrap_err();
    assert_eq!(refused.error, SwapError::Count { found: 0, expected: 1 });
    let other = standby(&world, 1, 1);
    swap(&mut world, other);
    // One flow for the model before: it waited at the commit.
    world.emit_new(0, 4);
    world.round_at_ms(0);
    assert!(world.task.take_retired().is_some_and(|retired| retired.can_come_back));
    // The fake device of the first model goes on to answer as that model does.
    let back = Standby {
        model: Some(NewModel { accelerators: Vec::new(), generation: 0, coming: Coming::Replaces }),
        settings: None,
    };
    swap(&mut world, back);
    for now_ms in 1..9 {
        world.emit_new(0, 1);
        world.round_at_ms(now_ms);
    }
    assert!(world.task.take_retired().is_some_and(|it| it.accelerators.is_empty()));
    world.finish();
    let models: Vec<u16> = (0..12).map(|flow| check_label(&world, flow)).collect();
    assert_eq!((models[0], models[11]), (1, 0));
    let counters = world.task.counters();
    assert_eq!((counters.swaps, counters.undecided(), counters.failed()), (2, 0, 0));
}
