//! The controller in a manager: goals of several tasks, and changes of one of them.

use super::*;

/// An urgent task and a slow one, on two devices that both may use; the slow one's second device
/// fails or not.
fn urgent_and_slow(slow_us: f64, fails: bool) -> World {
    let goal = |ms, batch_us, fails| Plan {
        policy: Policy::Slo { latency_goal: Duration::from_millis(ms), delta: 0.05 },
        second_executor: Some(1),
        batch_us: Some(batch_us),
        fails,
        ..Plan::at_once()
    };
    World::new(vec![goal(2, 100.0, false), goal(50, slow_us, fails)])
}

/// The executors on which a task's batches ran.
fn executors_of(world: &World, task: usize) -> Vec<usize> {
    let log = world.log.lock().unwrap();
    let own = log.iter().filter(|(device, _)| device % 10 == task);
    let mut executors: Vec<usize> = own.map(|(device, _)| device / 10).collect();
    executors.sort_unstable();
    executors.dedup();
    executors
}

#[test]
fn a_slow_task_leaves_a_device_to_one_whose_goal_could_not_hold_otherwise() {
    let run = |mut world: World| {
        for flow in 0..40 {
            world.emit(0, flow, 1, 99);
            world.emit(1, flow, 1, 99);
            world.rounds(5);
        }
        // Until all were due.
        world.now_us += 100_000;
        world.rounds(10);
        world
    };
    // Both fit into two milliseconds: all devices are for all.
    let world = run(urgent_and_slow(500.0, false));
    let left = |world: &World| [0, 1].map(|task| world.manager.tasks()[task].devices_left());
    assert_eq!(left(&world), [0, 0]);
    assert_eq!(executors_of(&world, 1), [0, 1]);
    // They do not: the slow one runs only on the second device.
    let world = run(urgent_and_slow(10_000.0, false));
    assert_eq!(left(&world), [0, 1]);
    assert_eq!(executors_of(&world, 1), [1]);
    assert_eq!(executors_of(&world, 0), [0, 1]);
    assert_eq!([0, 1].map(|task| world.manager.tasks()[task].unreachable()), [None, None]);
    assert_eq!((world.fates(0)[0], world.fates(1)[0]), (40, 40));
    // Where that one is down, it goes to the first.
    let world = run(urgent_and_slow(10_000.0, true));
    assert_eq!(executors_of(&world, 1), [0, 1]);
}

/// Two tasks with goals of 50 ms, which come to full batches of 8.
fn two_with_goals() -> World {
    let goal = || Plan { policy: slo(50), batch_us: Some(100.0), ..Plan::at_once() };
    let mut world = World::new(vec![goal(), goal()]);
    world.play(2000);
    let before = world.batches(0);
    world.play(80);
    assert_eq!(world.batches(0) - before, 10);
    world
}

#[test]
fn the_tasks_of_a_cascade_leave_each_other_their_part_of_the_goal() {
    let goal = |ms, needs| Plan { policy: slo(ms), batch_us: Some(100.0), ..Plan::after(needs) };
    // Alone, the first could wait 7 ms for a batch of 8. Both have to label within 10 ms.
    let cascade = vec![goal(50, vec![]), goal(10, vec![below(0, 65_535)])];
    let mut world = World::new(cascade);
    world.play(2000);
    let mut batches = [0, 1].map(|task| world.batches(task));
    let slo = |world: &World, task: usize| world.manager.tasks()[task].counters().slo;
    let before = [0, 1].map(|task| slo(&world, task));
    world.play(2000);
    for task in 0..2 {
        let slo = slo(&world, task);
        assert_eq!(slo.violations - before[task].violations, 0, "task {task}");
        assert!(slo.periods - before[task].periods >= 9, "{slo:?}");
        batches[task] = world.batches(task) - batches[task];
    }
    assert!(batches[0] >= 350, "batches of at most 6: {batches:?}");
    assert!(batches[1] <= 1500, "and not one by one: {batches:?}");
}

#[test]
fn a_shorter_goal_is_kept_at_once() {
    let mut world = two_with_goals();
    world.play(100);
    world.set_policy(0, slo(2));
    world.rounds(2);
    for _ in 0..100 {
        world.play(1);
        // Series that come now are labelled in time; the other task's wait for their batch.
        world.rounds(100);
        assert_eq!(world.class(0, world.turn), Some(1));
    }
}

#[test]
fn a_change_of_one_task_leaves_the_others_their_batches() {
    let mut world = two_with_goals();
    let before = world.batches(0);
    world.set_policy(1, slo(40));
    world.play(80);
    assert_eq!(world.batches(0) - before, 10);
}

#[test]
fn a_goal_is_judged_by_the_model_in_use() {
    let of = |batch_us| Plan { policy: slo(2), batch_us: Some(batch_us), ..Plan::at_once() };
    let mut world = World::new(vec![of(100.0)]);
    world.rounds(1);
    assert_eq!(world.manager.tasks()[0].unreachable(), None);
    // The same sizes, and another profile.
    let accelerator = of(3_000.0).accelerator(0, 0, false, &world.log);
    let task = &mut world.manager.tasks_mut()[0];
    let model =
        NewModel { accelerators: vec![accelerator], generation: 1, coming: Coming::Replaces };
    task.prepare(Standby { model: Some(model), settings: None }).unwrap();
    task.commit();
    world.rounds(1);
    let unreachable = world.manager.tasks()[0].unreachable();
    assert_eq!(unreachable, Some(Duration::from_millis(3)));
}

#[test]
fn a_goal_that_is_shorter_than_a_batch_is_said_to_be_out_of_reach() {
    let slow = Plan {
        policy: Policy::Slo { latency_goal: Duration::from_millis(2), delta: 0.05 },
        batch_us: Some(3_000.0),
        ..Plan::at_once()
    };
    let mut world = World::new(vec![Plan::at_once(), slow]);
    world.rounds(1);
    let unreachable = [0, 1].map(|task| world.manager.tasks()[task].unreachable());
    // The task that nobody has measured counts with an assumed profile.
    assert_eq!(unreachable, [None, Some(Duration::from_micros(3_180))]);
}
