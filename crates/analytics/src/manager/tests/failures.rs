//! What a device that fails or hangs does to the tasks that share its executor.

use super::*;

#[test]
fn a_device_that_fails_leaves_the_other_tasks_alone() {
    let failing = Plan { fails: true, ..Plan::at_once() };
    let mut world = World::new(vec![Plan::at_once(), failing]);
    for flow in 0..10 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(3);
    }
    assert_eq!((world.fates(0), world.fates(1)), ([10, 0, 0], [0, 0, 10]));
    assert_eq!(world.class(0, 9), Some(1));
}

#[test]
fn a_probe_takes_its_executor_and_is_not_kept_from_it() {
    let failing = Plan { fails: true, ..Plan::at_once() };
    let slow = Arc::new(AtomicBool::new(false));
    let other = Plan { hangs: slow.clone(), ..Plan::at_once() };
    let mut world = World::new(vec![other, failing]);
    world.emit(1, 0, 1, 99);
    world.rounds(3);
    let probes = |world: &World| world.manager.tasks()[1].counters().devices[0].probes;
    // A batch of the other task is on the executor while the back-off ends, and for some time
    // after.
    world.now_us += 9_000;
    slow.store(true, Ordering::Relaxed);
    world.emit(0, 0, 1, 99);
    world.rounds(200);
    assert_eq!(probes(&world), 0);
    // Then the probe goes, though the other task always has another batch.
    slow.store(false, Ordering::Relaxed);
    world.fill(0);
    world.rounds(1);
    assert_eq!((probes(&world), world.batches(0)), (1, 1));
    world.rounds(1);
    assert_eq!(world.batches(0), 2);
}

#[test]
fn a_session_that_hangs_leaves_the_other_tasks_of_its_executor_alone() {
    let hanging = Plan { hangs: Arc::new(true.into()), ..Plan::at_once() };
    let mut world = World::new(vec![Plan::at_once(), hanging]);
    world.emit(1, 0, 1, 99);
    world.rounds(600);
    for flow in 1..10 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(3);
    }
    assert_eq!((world.fates(0), world.fates(1)), ([9, 0, 0], [0, 0, 10]));
    world.producers.clear();
    world.manager.drain();
    world.rounds(2);
    assert!(world.manager.is_done());
}

#[test]
fn where_a_shared_device_hangs_all_its_tasks_shed_until_it_answers() {
    let hangs = Arc::new(AtomicBool::new(true));
    let shares = || Plan { executor: 1, hangs: hangs.clone(), ..Plan::at_once() };
    let mut world = World::new(vec![shares(), shares()]);
    for flow in 0..20 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(100);
    }
    // Each loses a batch by its own deadline, one after the other; then every series is shed.
    for task in 0..2 {
        let counters = world.manager.tasks()[task].counters();
        assert!(counters.failed_no_other_device > 0, "task {task}");
        assert!(counters.shed_no_device > 0, "task {task}");
        assert_eq!(counters.devices[0].failures(FailureKind::Deadline), 1);
        assert_eq!(world.fates(task)[2], 20);
    }
    // It answers, and is probed after its back-off.
    hangs.store(false, Ordering::Relaxed);
    world.rounds(1100);
    for task in 0..2 {
        world.emit(task, 20, 2, 99);
        world.rounds(4);
        assert_eq!(world.class(task, 20), Some(2), "task {task}");
    }
}
