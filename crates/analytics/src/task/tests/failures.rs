//! Devices that fail under traffic. Every round checks that everything adds up.

use super::*;
use crate::{DeviceState, FailureKind};

const FOREVER: Deed = Deed::Works(usize::MAX);

fn sizes() -> Sizes {
    Sizes::Fixed(vec![4, 8, 16])
}

/// A world of devices with these deeds, and a deadline of 5 ms.
fn world(deeds: &[&[Deed]]) -> World {
    let mut plan = Plan::new(Policy::None);
    let devices = deeds.iter().map(|deeds| (sizes(), deeds.to_vec()));
    plan.devices = devices.collect();
    plan.deadline = Some(Duration::from_millis(5));
    plan.start()
}

fn states(world: &World) -> Vec<DeviceState> {
    world.task.health().map(|device| device.state).collect()
}

#[test]
fn every_kind_of_failure_is_told_apart_and_retried_elsewhere() {
    for (deed, kind, message) in [
        (
            Deed::FailsAtSubmit,
            FailureKind::Error,
            "device fake failed on a batch of 4 rows: it was told to",
        ),
        (
            Deed::FailsAtPoll(1),
            FailureKind::Error,
            "device fake failed on a batch of 4 rows: it was told to",
        ),
        (
            Deed::GivesTooFew,
            FailureKind::WrongShape,
            "device fake gave 3 results for a batch of 4 rows",
        ),
        (
            Deed::GivesNoClass,
            FailureKind::WrongShape,
            "device fake gave row 0 the class 65535; labels have classes below 4096",
        ),
        (
            Deed::GivesNan,
            FailureKind::NotAProbability,
            "device fake gave row 3 the confidence NaN, which is not a probability",
        ),
        (FOREVER, FailureKind::Deadline, "device fake has not answered within its deadline of 5ms"),
    ] {
        let mut world = world(&[&[deed], &[Deed::Works(0)]]);
        world.emit_new(0, 4);
        for now_ms in 0..9 {
            world.round_at_ms(now_ms);
        }
        let counters = world.task.counters();
        assert_eq!((counters.inferred, counters.retried, counters.failed()), (4, 4, 0), "{deed:?}");
        assert_eq!(counters.batches(Trigger::Retry).series, 4);
        let device = &counters.devices[0];
        assert_eq!((device.failures(kind), device.failures_total(), device.went_down), (1, 1, 1));
        assert_eq!(device.last_error.as_deref(), Some(message));
        assert_eq!(counters.devices[1].failures_total(), 0);
        assert!(
            (0..4).all(|flow| world.class(0, flow)
                == Some(class_of(&row_of(&world.sources[0].emitted[flow]))))
        );
        assert!(!states(&world)[0].is_up() && states(&world)[1].is_up());
    }
}

#[test]
fn a_series_is_retried_once() {
    let mut world = world(&[&[Deed::FailsAtPoll(0)], &[Deed::FailsAtPoll(0)], &[Deed::Works(0)]]);
    world.emit_new(0, 4);
    for now_ms in 0..4 {
        world.round_at_ms(now_ms);
    }
    let counters = world.task.counters();
    assert_eq!((counters.retried, counters.failed_after_retry, counters.inferred), (4, 4, 0));
    assert_eq!(world.label(0, 3), Some(Label::Unlabelled));
}

#[test]
fn without_a_device_series_are_shed_at_once() {
    let mut world = world(&[&[Deed::Works(0), Deed::FailsAtPoll(0), Deed::Works(0)]]);
    world.emit_new(0, 4);
    world.round_at_ms(0);
    world.round_at_ms(1);
    world.emit_new(0, 20);
    world.round_at_ms(2); // 16 go
    world.round_at_ms(3); // and fail; the rest is shed in the same round
    let counters = world.task.counters();
    assert_eq!((counters.failed_no_other_device, counters.shed_no_device), (16, 4));
    assert_eq!(world.label(0, 4), Some(Label::Unlabelled));
    assert_eq!(world.label(0, 23), Some(Label::Unlabelled));
    for now_ms in 4..12 {
        world.emit_new(0, 30);
        world.round_at_ms(now_ms);
        assert_eq!(world.task.counters().undecided(), 0);
    }
    let health = world.task.health().next().unwrap();
    assert_eq!((health.state, health.since_ns), (DeviceState::Down, 3_000_000));
    assert!(health.last_error.unwrap().contains("it was told to"));
    // 10 ms after the failure it is probed, and a round later it is back.
    world.round_at_ms(13);
    assert_eq!(states(&world), [DeviceState::Probing]);
    world.round_at_ms(14);
    assert_eq!(states(&world), [DeviceState::Up]);
    world.emit_new(0, 4);
    world.round_at_ms(15);
    world.round_at_ms(16);
    let counters = world.task.counters();
    assert_eq!((counters.inferred, counters.shed()), (8, 244));
    let device = &counters.devices[0];
    assert_eq!((device.probes, device.went_down, device.came_back), (1, 1, 1));
}

#[test]
fn a_hung_device_stays_down_until_it_has_answered_and_been_probed() {
    // It answers after 40 ms, and then works.
    let mut world = world(&[&[Deed::Works(39), Deed::Works(0)], &[Deed::Works(0)]]);
    world.emit_new(0, 4);
    for now_ms in 0..40 {
        world.round_at_ms(now_ms);
        assert_eq!(states(&world)[0] == DeviceState::Hung, now_ms > 5);
        world.emit_new(0, 1);
    }
    assert_eq!(world.task.counters().devices[0].probes, 0);
    let inferred = world.task.counters().inferred;
    world.round_at_ms(41);
    assert!(world.task.counters().inferred <= inferred + 1, "the late answer is of no use");
    assert_eq!(states(&world)[0], DeviceState::Probing);
    world.round_at_ms(42);
    assert_eq!(states(&world)[0], DeviceState::Up);
    world.finish();
    assert_eq!(world.task.counters().inferred, 44);
    assert_eq!(world.task.counters().devices[0].failures(FailureKind::Deadline), 1);
}

#[test]
fn an_answer_that_is_late_but_there_is_used() {
    let mut world = world(&[&[Deed::Works(0)]]);
    world.emit_new(0, 4);
    world.round_at_ms(0);
    world.round_at_ms(500); // as long as a slow device without a thread keeps the round
    let counters = world.task.counters();
    assert_eq!(counters.inferred, 4);
    assert_eq!(counters.devices[0].failures(FailureKind::Deadline), 1);
    assert_eq!(states(&world), [DeviceState::Down]);
}

#[test]
fn a_probe_must_be_sane_and_in_time() {
    for deed in [
        Deed::FailsAtSubmit,
        Deed::FailsAtPoll(0),
        Deed::GivesNan,
        Deed::GivesTooFew,
        Deed::Works(6),
    ] {
        let mut world = world(&[&[Deed::FailsAtPoll(0), deed, Deed::Works(0)]]);
        world.emit_new(0, 1);
        for now_ms in 0..=29 {
            world.round_at_ms(now_ms);
            assert!(now_ms == 0 || !states(&world)[0].is_up(), "{deed:?} at {now_ms} ms");
        }
        // Down since 1 ms, probed at 11; the second probe not before 20 ms more.
        for now_ms in 30..40 {
            world.round_at_ms(now_ms);
        }
        assert_eq!(states(&world), [DeviceState::Up], "{deed:?}");
        assert_eq!(world.task.counters().devices[0].probes, 2);
    }
}

#[test]
fn retries_wait_for_a_busy_device_and_go_before_what_is_new() {
    let mut world = world(&[&[Deed::FailsAtPoll(0)], &[Deed::Works(2)]]);
    world.emit_new(0, 32);
    world.round_at_ms(0);
    world.round_at_ms(0);
    world.emit_new(0, 16);
    world.round_at_ms(1);
    assert_eq!(world.batches().len(), 2, "both have 16");
    world.round_at_ms(1);
    let batch = &world.batches()[2];
    assert_eq!((batch.device, World::flow_of(&batch.rows[0])), (1, (0, 0)));
    world.finish();
    assert_eq!(world.task.counters().inferred, 48);
}

#[test]
fn an_audit_is_not_retried() {
    let mut plan = Plan::new(Policy::None);
    plan.cache = exact_cache(1.0);
    plan.devices = vec![
        (sizes(), vec![Deed::Works(0), Deed::FailsAtPoll(0)]),
        (sizes(), vec![Deed::Works(0)]),
    ];
    let mut world = plan.start();
    let like = series([9.0; K]);
    for now_ms in [0, 2, 4] {
        // The second is an audit on device 1, the third on device 0, which fails.
        world.emit(0, like);
        world.round_at_ms(now_ms);
        world.round_at_ms(now_ms + 1);
    }
    world.finish();
    let counters = world.task.counters();
    assert_eq!((counters.cached, counters.retried, counters.failed()), (2, 0, 0));
    assert_eq!(counters.cache.audits_agree, 1);
}

#[test]
fn traffic_goes_on_whatever_fails() {
    let slow = Deed::Works(100);
    for deeds in [
        [Deed::Works(1), Deed::Works(0), Deed::FailsAtPoll(1)],
        [Deed::Works(0), Deed::FailsAtSubmit, Deed::Works(2)],
        [Deed::Works(1), slow, Deed::Works(1)],
        [Deed::GivesNan, Deed::Works(0), Deed::Works(0)],
        [Deed::Works(0), Deed::GivesTooFew, slow],
    ] {
        let mut world = world(&[&deeds, &[Deed::Works(1)]]);
        for now in 0..3000 {
            world.emit_again(0, series([1.0, (now % 900) as f32, 3.0]));
            world.emit_again(0, series([2.0, (now % 900) as f32, 3.0]));
            world.round_at_us(now * 100);
        }
        world.finish();
        let counters = world.task.counters();
        assert_eq!(counters.inferred, 6000, "{deeds:?}: the other device takes all");
        assert!(
            counters.retried > 0 && counters.devices[0].came_back > 0,
            "{deeds:?}: {counters:?}"
        );
    }
}
