//! The plan against hand-computed cases, and against a search through all plans.

use super::super::model::Turnaround;
use super::super::projection::Projection;
use super::super::*;
use super::plant::{Load, Share, load};
use proptest::prelude::*;

fn measures(loads: &[Load], rates_per_s: &[f64]) -> Vec<TaskMeasure> {
    let each = loads.iter().zip(rates_per_s);
    let measure = |(load, rate): (&Load, &f64)| TaskMeasure {
        rate_per_s: *rate,
        batches_per_s: *rate,
        batch: 1.0,
        batch_in: 1.0,
        profile: load.task.profile,
        waited: 1.0,
    };
    each.map(measure).collect()
}

/// A controller that knows these rates, and no labels.
fn controller(loads: &[Load], rates_per_s: &[f64], turnaround: Turnaround) -> Controller {
    let tasks = loads.iter().map(|load| load.task.clone()).collect();
    let mut controller = Controller::new(Graph::new(tasks, vec![1]).unwrap(), Kind::Slo);
    controller.model.turnaround = turnaround;
    let paths = vec![PathMeasure::default(); controller.graph().paths().len()];
    let measures = measures(loads, rates_per_s);
    controller.model.take(&measures, &paths, WAITS_LEAST);
    controller
}

/// One step of the projected gradient from this plan.
fn step_from(controller: &mut Controller, plan: &[f64]) -> Vec<f64> {
    for (task, b) in controller.model.tasks.iter_mut().zip(plan) {
        task.b = *b;
    }
    let paths = controller.graph().paths().len();
    Projection::new(plan.len(), paths).step(&mut controller.model);
    controller.model.tasks.iter().map(|task| task.b).collect()
}

/// What the plan can change of the load.
fn overhead(controller: &Controller) -> f64 {
    let tasks = controller.model.tasks.iter();
    let overhead = tasks.map(|task| task.rate * task.profile.t0_us / task.series());
    overhead.sum()
}

fn is_near(a: f64, b: f64, part: f64) -> bool {
    (a - b).abs() <= part * b.abs().max(1e-9)
}

#[test]
fn alone_a_task_goes_to_its_goal_in_one_step() {
    let loads = [load(20.0, 2.0, 512, 2000, 0.05, &[])];
    let mut controller = controller(&loads, &[50_000.0], Turnaround::Planned);
    let plan = step_from(&mut controller, &[10.0]);
    // b/50,000 + 20 us + 2 us b = 1.9 ms.
    assert!(is_near(plan[0], 1880.0 / 22.0, 1e-6), "{plan:?}");
    // A second one finds nothing to do.
    assert_eq!(step_from(&mut controller, &plan), plan);
}

#[test]
fn two_tasks_on_one_path_share_it_by_the_roots_of_their_costs() {
    let loads = [load(5.0, 2.0, 512, 1_000_000, 0.0, &[]), load(20.0, 2.0, 512, 4000, 0.0, &[0])];
    let rates = [40_000.0, 10_000.0];
    let mut controller = controller(&loads, &rates, Turnaround::Constant);
    let mut plan = vec![10.0, 10.0];
    for _ in 0..20 {
        plan = step_from(&mut controller, &plan);
    }
    // min 0.2/x + 0.2/y, both in batches per µs, for 27 x + 102 y = 4000 - 25: x/y = √(102/27).
    let y = 3975.0 / ((27.0_f64 * 102.0).sqrt() + 102.0);
    let x = y * (102.0_f64 / 27.0).sqrt();
    assert!(is_near(plan[0], x, 0.01) && is_near(plan[1], y, 0.01), "{plan:?}, not {x}, {y}");
}

#[test]
fn a_task_at_its_largest_batch_leaves_the_rest_to_others() {
    let loads = [load(5.0, 2.0, 16, 1_000_000, 0.0, &[]), load(20.0, 2.0, 512, 4000, 0.0, &[0])];
    let mut controller = controller(&loads, &[40_000.0, 10_000.0], Turnaround::Constant);
    let mut plan = vec![10.0, 10.0];
    for _ in 0..20 {
        plan = step_from(&mut controller, &plan);
    }
    assert_eq!(plan[0], 16.0);
    assert!(is_near(plan[1], (3975.0 - 27.0 * 16.0) / 102.0, 0.01), "{plan:?}");
}

#[test]
fn devices_that_would_not_keep_up_get_batches_where_they_pay_most() {
    let loads = [load(20.0, 2.0, 512, 300, 0.0, &[]), load(5.0, 2.0, 512, 300, 0.0, &[])];
    let mut controller = controller(&loads, &[100_000.0, 100_000.0], Turnaround::Planned);
    controller.recovery.keep_up(&mut controller.model);
    let b = [0, 1].map(|task| controller.model.tasks[task].b);
    // 0.9 of the time, less 0.4 for the rows, for 2/x + 0.5/y: x is twice y.
    assert!(is_near(b[0], 6.0, 1e-6) && is_near(b[1], 3.0, 1e-6), "{b:?}");
    // Alone: (20 us + 2 us b) 0.2/us <= 0.9 b: b >= 8, whatever the goal.
    let mut alone = super::optimum::controller(&loads[..1], &[200_000.0], Turnaround::Planned);
    alone.recovery.keep_up(&mut alone.model);
    assert!(is_near(alone.model.tasks[0].b, 8.0, 1e-6));
}

#[test]
fn a_path_over_its_budget_takes_the_same_part_from_all() {
    let loads = [load(5.0, 2.0, 512, 1_000_000, 0.0, &[]), load(20.0, 2.0, 512, 4000, 0.0, &[0])];
    let mut controller = controller(&loads, &[40_000.0, 10_000.0], Turnaround::Constant);
    controller.model.tasks[0].b = 101.0;
    controller.model.tasks[1].b = 51.0;
    controller.recovery.recover(&mut controller.model);
    let b = [0, 1].map(|task| controller.model.tasks[task].b);
    assert!(is_near((b[0] - 1.0) / (b[1] - 1.0), 2.0, 1e-6), "{b:?}");
    assert!(is_near(controller.model.delay_us(1), 4000.0, 1e-6));
    // No batch fits: every task is short-circuited.
    controller.model.paths[1].budget_us = 40.0;
    controller.recovery.recover(&mut controller.model);
    assert_eq!([0, 1].map(|task| controller.model.tasks[task].b), [0.0, 0.0]);
}

#[test]
fn goals_that_cannot_hold_are_named() {
    let loads = [load(20.0, 2.0, 512, 2000, 0.05, &[]), load(5.0, 2.0, 512, 3000, 0.05, &[0])];
    let graph = Graph::new(loads.iter().map(|load| load.task.clone()).collect(), vec![1]).unwrap();
    // 20 + 1024 and 5 + 1024 µs.
    let [violation] = inherent_violations(&graph)[..] else { panic!() };
    assert_eq!((violation.task, violation.device_set), (0, 0));
    assert_eq!(violation.turnaround, Duration::from_micros(2073));
}

#[test]
fn impossible_graphs_are_refused() {
    let refused = |follows: &[&[usize]]| {
        let tasks = follows.iter().map(|it| load(5.0, 2.0, 32, 1000, 0.05, it).task);
        Graph::new(tasks.collect(), vec![1]).err().map(|error| error.to_string())
    };
    assert_eq!(refused(&[&[], &[0], &[0], &[1, 2]]), None);
    let is_refused = |follows: &[&[usize]], why: &str| {
        let error = refused(follows).unwrap();
        assert!(error.starts_with(why), "{error}");
    };
    is_refused(&[&[1], &[0]], "task 0 follows itself");
    is_refused(&[&[2]], "task 0 names task or device set 2,");
    is_refused(&[&[] as &[usize]; 65], "65 tasks: one controller takes 64");
    let mut task = load(5.0, 2.0, 32, 1000, 0.05, &[]).task;
    assert!(Graph::new(vec![task.clone()], vec![0]).is_err());
    task.goal = Some(Goal { latency: Duration::ZERO, delta: 0.05 });
    let error = Graph::new(vec![task], vec![1]).err().unwrap().to_string();
    assert_eq!(error, "task 0: its profile, goal or delta is out of range");
}

#[test]
fn a_task_that_is_followed_through_another_one_makes_no_path_of_its_own() {
    let graph = |follows: &[Vec<usize>]| {
        let tasks = follows.iter().map(|it| load(5.0, 2.0, 32, 1000, 0.05, it).task);
        Graph::new(tasks.collect(), vec![1]).unwrap()
    };
    // A row in which each waits for all before.
    let row: Vec<Vec<usize>> = (0..64).map(|task| (0..task).collect()).collect();
    let row = graph(&row);
    assert_eq!(row.paths().len(), 64);
    assert_eq!(row.paths()[63].tasks, (0..64).collect::<Vec<_>>());
    // Both branches stay, and what comes before them is on their paths.
    let join = graph(&[vec![], vec![0], vec![0], vec![0, 1, 2]]);
    let ends: Vec<_> = join.paths()[3..].iter().map(|it| &it.tasks[..]).collect();
    assert_eq!(ends, [[0, 1, 3], [0, 2, 3]]);
}

#[test]
fn all_tasks_that_a_configuration_can_have_fit_however_they_follow_each_other() {
    // Layers of tasks, each after all tasks of all layers before: no other graph has more chains.
    // At most 3^(n/3) chains lead to a task behind n others.
    let tasks = cring::TASKS_MAX;
    let mut most = 0;
    for ends in 0..1 << (tasks - 1) {
        let layer = |task: usize| (ends & ((1 << task) - 1) as u32).count_ones();
        let of = |task: usize| {
            let before: Vec<usize> = (0..task).filter(|it| layer(*it) < layer(task)).collect();
            load(5.0, 2.0, 32, 1000, 0.05, &before).task
        };
        let graph = Graph::new((0..tasks).map(of).collect(), vec![1]).unwrap();
        most = most.max(graph.paths().len());
    }
    assert!((16..=PATHS_MAX).contains(&most), "{most}");
}

#[test]
fn paths_that_end_at_one_task_halve_what_they_share_once() {
    let loads = [
        load(5.0, 2.0, 512, 90_000, 0.0, &[]),
        load(5.0, 2.0, 512, 90_000, 0.0, &[0]),
        load(5.0, 2.0, 512, 90_000, 0.0, &[0]),
        load(5.0, 2.0, 512, 90_000, 0.0, &[1, 2]),
    ];
    let late = PathMeasure { late: 500, near: 500, labels: 1000, ..PathMeasure::default() };
    for within in [true, false] {
        let mut controller = controller(&loads, &[1e5; 4], Turnaround::Constant);
        for task in &mut controller.model.tasks {
            task.b = 64.0;
        }
        for path in [3, 4] {
            match within {
                true => assert!(controller.cut(path, 900, 1000)),
                false => controller.judge(path, &late),
            }
            assert_eq!(controller.model.paths[path].budget_us, 45_000.0);
        }
        let b = [0, 1, 2, 3].map(|task| controller.model.tasks[task].b);
        assert_eq!(b, [32.0; 4], "within a period: {within}");
    }
}

/// Follows none, a row, or all the first.
fn follows(shape: usize, task: usize) -> Vec<usize> {
    match (shape, task) {
        (_, 0) | (0, _) => vec![],
        (1, _) => vec![task - 1],
        _ => vec![0],
    }
}

prop_compose! {
    fn graphs()(
        tasks in 2..4usize,
        shape in 0..3usize,
        profiles in prop::collection::vec((5.0..20.0f64, 1.7..4.0f64), 3),
        rates in prop::collection::vec(3_000.0..30_000.0f64, 3),
        goals in prop::collection::vec(2000..12_000u64, 3),
        cap in prop_oneof![Just(32usize), Just(256)],
    ) -> (Vec<Load>, Vec<f64>) {
        let of = |i: usize| {
            let (t0, t1) = profiles[i];
            Load { share: Share(0.0, 1.0), ..load(t0, t1, cap, goals[i], 0.05, &follows(shape, i)) }
        };
        ((0..tasks).map(of).collect(), rates[..tasks].to_vec())
    }
}

/// The least overhead of all plans that keep all budgets, on a grid of `sizes` sizes.
fn search(controller: &mut Controller, sizes: usize) -> f64 {
    let tasks = controller.model.tasks.len();
    let largest = controller.model.tasks[0].largest;
    let size = |i: usize| largest.powf(i as f64 / (sizes - 1) as f64);
    let mut best = f64::INFINITY;
    for plan in 0..sizes.pow(tasks as u32) {
        let mut rest = plan;
        for task in &mut controller.model.tasks {
            task.b = size(rest % sizes);
            rest /= sizes;
        }
        let overhead = overhead(controller);
        let paths = controller.model.paths.len();
        if overhead < best && (0..paths).all(|path| controller.model.excess_us(path) <= 0.0) {
            best = overhead;
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn repeated_steps_come_to_the_best_plan_there_is(
        (loads, rates) in graphs(),
    ) {
        let mut controller = controller(&loads, &rates, Turnaround::Planned);
        let labels = vec![PathMeasure::default(); controller.graph().paths().len()];
        for _ in 0..60 {
            controller.step(&measures(&loads, &rates), &labels);
            for path in 0..labels.len() {
                let excess_us = controller.model.excess_us(path);
                let most_us = 1e-6 * controller.model.paths[path].budget_us;
                prop_assert!(excess_us <= most_us, "{excess_us}");
            }
        }
        let found = overhead(&controller);
        let plan: Vec<f64> = controller.model.tasks.iter().map(|task| task.b).collect();
        let best = search(&mut controller, 40);
        prop_assert!(found <= 1.03 * best, "{found} by {plan:?}, {best} is possible");
    }

    #[test]
    fn a_step_never_increases_the_load_nor_breaks_a_goal(
        (loads, rates) in graphs(),
        start in prop::collection::vec(0.0..1.0f64, 3),
        is_bound: bool,
    ) {
        let mut controller = controller(&loads, &rates, Turnaround::Planned);
        let parts = start[..loads.len()].iter();
        let mut plan: Vec<f64> = parts.map(|part| 1.0 + part * 31.0).collect();
        for (task, b) in controller.model.tasks.iter_mut().zip(&plan) {
            task.b = *b;
        }
        if is_bound {
            controller.recovery.recover(&mut controller.model);
            plan = controller.model.tasks.iter().map(|task| task.b).collect();
        }
        let paths = controller.model.paths.len();
        let held = (0..paths).map(|path| controller.model.excess_us(path) <= 0.0);
        let held: Vec<bool> = held.collect();
        let before = overhead(&controller);
        step_from(&mut controller, &plan);
        prop_assert!(overhead(&controller) <= before * (1.0 + 1e-9));
        // Another task may have become the longest in the way; recovery sees to that.
        controller.recovery.recover(&mut controller.model);
        for (path, held) in held.iter().enumerate() {
            let excess_us = controller.model.excess_us(path);
            let most_us = 1e-6 * controller.model.paths[path].budget_us;
            prop_assert!(!held || excess_us <= most_us, "{excess_us}");
        }
    }

    #[test]
    fn whatever_is_measured_triggers_and_budgets_stay_within_bounds(
        (loads, _) in graphs(),
        kind in prop_oneof![Just(Kind::Slo), Just(Kind::OnOff)],
        periods in prop::collection::vec(any_period(), 1..20),
    ) {
        let tasks: Vec<Task> = loads.iter().map(|load| load.task.clone()).collect();
        let mut controller = Controller::new(Graph::new(tasks, vec![1]).unwrap(), kind);
        let paths = controller.graph().paths().len();
        for (measures, path, late) in periods {
            controller.step(&measures[..loads.len()], &vec![path; paths]);
            controller.cut(0, late, 1000);
            for (number, load) in loads.iter().enumerate() {
                prop_assert!(controller.trigger(number) <= load.task.sizes.largest());
                let b = controller.model.tasks[number].b;
                let largest = load.task.sizes.largest() as f64;
                prop_assert!(b == 0.0 || (1.0..=largest).contains(&b), "{b}");
                let excess_us = controller.model.excess_us(0);
                prop_assert!(excess_us.is_finite(), "{excess_us}");
            }
        }
    }
}

fn any_period() -> impl Strategy<Value = ([TaskMeasure; 3], PathMeasure, u64)> {
    let number = || prop_oneof![1 => Just(0.0), 4 => 0.0..300.0f64];
    let share = prop_oneof![Just(0.0), Just(1.0)];
    let rate = prop_oneof![1 => Just(0.0), 4 => 0.0..1e6f64];
    let numbers = (rate, number(), number(), number(), number(), share);
    let task = numbers.prop_map(|(rate, batch, batch_in, t0_us, t1_us, waited)| TaskMeasure {
        rate_per_s: rate,
        batches_per_s: if batch > 0.0 { rate / batch } else { 0.0 },
        batch,
        batch_in,
        profile: accel::Profile { t0_us, t1_us },
        waited,
    });
    let path = (0.0..1e5f64, 0..3000u64, 0..60u64).prop_map(|(us, labels, late)| PathMeasure {
        p95_us: us,
        p99_us: us,
        labels,
        late: late.min(labels),
        near: (2 * late).min(labels),
    });
    ([task.clone(), task.clone(), task], path, 0..100u64)
}
