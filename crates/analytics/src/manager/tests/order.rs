//! Which task fires first: by due times, and by priorities when rings are full.

use super::*;

#[test]
fn the_task_that_is_due_first_fires_first_and_one_batch_an_executor() {
    let patient = |ms| Plan {
        policy: Policy::Timeout { timeout: Duration::from_millis(ms) },
        ..Plan::at_once()
    };
    let mut world = World::new(vec![patient(2), patient(1)]);
    world.emit(0, 0, 1, 99);
    world.emit(1, 0, 1, 99);
    world.rounds(1);
    // Both are overdue: the more urgent one takes the executor, the other has it in the next round.
    world.now_us += 10_000;
    world.rounds(1);
    assert_eq!(*world.log.lock().unwrap(), [(1, 1)]);
    world.rounds(1);
    assert_eq!(*world.log.lock().unwrap(), [(1, 1), (0, 1)]);
    // On executors of their own they fire side by side.
    let mut world = World::new(vec![Plan::at_once(), Plan { executor: 1, ..Plan::at_once() }]);
    world.emit(0, 0, 1, 99);
    world.emit(1, 0, 1, 99);
    world.rounds(1);
    assert_eq!(world.log.lock().unwrap().len(), 2);
}

#[test]
fn what_works_on_the_managers_thread_is_submitted_last() {
    let elsewhere = || Plan { executor: 1, ..Plan::at_once() };
    let mut world = World::new(vec![Plan::at_once(), elsewhere()]);
    for flow in 0..3 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(2);
    }
    let log = world.log.lock().unwrap();
    assert_eq!(log[..4], [(11, 1), (0, 1), (11, 1), (0, 1)]);
}

#[test]
fn where_nothing_is_due_the_task_that_has_waited_longest_fires_first() {
    let full = || Plan { policy: Policy::Max, ..Plan::at_once() };
    let mut world = World::new(vec![full(), full()]);
    let batch = |world: &mut World, task, flows: std::ops::Range<u32>| {
        flows.for_each(|flow| world.emit(task, flow, 1, 99));
    };
    // The first task never runs out of full batches.
    batch(&mut world, 1, 0..8);
    for flows in [0, 8, 16].map(|first| first..first + 8) {
        batch(&mut world, 0, flows);
        world.rounds(1);
    }
    assert_eq!(*world.log.lock().unwrap(), [(0, 8), (1, 8), (0, 8)]);
}

#[test]
fn in_a_crowd_the_task_with_the_greatest_priority_goes_first() {
    let of = |priority| Plan { priority, ..Plan::at_once() };
    let mut world = World::new(vec![of(1), of(2), of(0)]);
    let play = |world: &mut World, rounds| {
        for _ in 0..rounds {
            (0..3).for_each(|task| world.fill(task));
            world.rounds(1);
        }
        [0, 1, 2].map(|task| world.batches(task))
    };
    // One batch a round: all are of the second task.
    assert_eq!(play(&mut world, 40), [0, 40, 0]);
    // What it leaves goes to the others, in their order.
    for _ in 0..40 {
        world.fill(0);
        world.fill(2);
        world.rounds(1);
    }
    let [first, second, third] = [0, 1, 2].map(|task| world.batches(task));
    assert!(first > 25 && second < 50 && third == 0, "{first} {second}");
}

#[test]
fn a_priority_that_changes_counts_from_then_on() {
    let mut world = World::new(vec![Plan::at_once(), Plan::at_once()]);
    let play = |world: &mut World| {
        let before = world.batches(1);
        for _ in 0..20 {
            (0..2).for_each(|task| world.fill(task));
            world.rounds(1);
        }
        world.batches(1) - before
    };
    assert!(play(&mut world) < 15, "they take turns");
    let new = Config { priority: 1, ..config(Policy::None) };
    world.configure(1, &new);
    assert_eq!(play(&mut world), 20);
}

#[test]
fn a_task_that_an_important_one_waits_for_is_not_starved() {
    let of = |priority, plan| Plan { priority, ..plan };
    let mut world = World::new(vec![
        of(0, Plan::at_once()),
        of(0, Plan::after(vec![below(0, 65_535)])),
        of(9, Plan::after(vec![below(1, 65_535)])),
        of(5, Plan::at_once()),
    ]);
    for flow in 0..50 {
        (0..3).for_each(|task| world.emit(task, flow, 1, 50));
        for _ in 0..8 {
            world.fill(3);
            world.rounds(1);
        }
        assert_eq!(world.class(2, flow), Some(1), "flow {flow}");
    }
    assert!(world.batches(3) > 200);
}

#[test]
fn nor_does_that_task_starve_the_important_one() {
    let important =
        Plan { policy: Policy::Max, priority: 9, ..Plan::after(vec![below(0, 65_535)]) };
    let mut world = World::new(vec![Plan::at_once(), important]);
    // The first task always has a batch, which is due at once. The second one's never are.
    for flow in 0..64 {
        world.emit(0, flow, 1, 50);
        world.emit(1, flow, 1, 50);
        world.rounds(1);
    }
    for _ in 0..20 {
        world.fill(0);
        world.rounds(1);
    }
    let [first, second] = [0, 1].map(|task| world.batches(task));
    assert!(second >= 7, "{first} {second}");
}
