//! One task: what the policy `slo` keeps to alone, it keeps to here.

use super::super::*;
use super::plant::{Arrivals, Plant, load, mean_load, violated};

fn single(slower: f64) -> Plant {
    let mut plant = Plant::new(vec![load(20.0, 2.0, 512, 2000, 0.05, &[])], Kind::Slo);
    plant.arrivals = Arrivals::Even;
    plant.rate_per_s = 50_000.0;
    plant.slower = slower;
    plant
}

#[test]
fn batches_are_large_and_in_time() {
    let mut plant = single(1.0);
    plant.play(10);
    let periods = plant.play(10);
    // b/50,000 + 20 us + 2 us b = 1.9 ms has the solution 85.
    for period in &periods {
        assert!((70.0..=86.0).contains(&period.tasks[0].batch), "{period:?}");
        assert!(period.paths[0].p99_us <= 2000.0);
    }
    assert_eq!(violated(&periods), 0);
}

#[test]
fn at_low_rates_age_decides() {
    let mut plant = single(1.0);
    plant.rate_per_s = 500.0;
    let periods = plant.play(50);
    assert!(periods.iter().all(|period| period.paths[0].late == 0));
}

#[test]
fn a_goal_longer_than_a_period_has_batches_of_more_than_a_period() {
    for (goal_us, least) in [(150_000, 120.0), (200_000, 160.0), (450_000, 380.0)] {
        let task = load(20.0, 2.0, 512, goal_us, 0.05, &[]);
        let mut plant = Plant::new(vec![task], Kind::Slo);
        plant.arrivals = Arrivals::Even;
        plant.rate_per_s = 1000.0;
        plant.play(60);
        let periods = plant.play(60);
        let batches: f64 = periods.iter().map(|it| it.tasks[0].batches_per_s / 10.0).sum();
        let mean = 6000.0 / batches;
        assert!(mean >= least, "{goal_us} us: batches of {mean}");
        assert_eq!(violated(&periods), 0, "{goal_us} us");
    }
}

#[test]
fn a_task_that_comes_less_often_than_its_goal_is_not_batched() {
    let task = load(20.0, 2.0, 512, 200_000, 0.05, &[]);
    let mut plant = Plant::new(vec![task], Kind::Slo);
    plant.arrivals = Arrivals::Even;
    plant.rate_per_s = 2.0;
    let periods = plant.play(60);
    assert!(periods.iter().skip(10).all(|it| it.triggers == [0]));
}

#[test]
fn a_wrong_profile_does_not_break_the_goal() {
    // Four times slower than it says; 8 us a row are 40 % of the device.
    let periods = single(4.0).play(40);
    assert!(violated(&periods) * 100 <= 9 * 40, "{} violated", violated(&periods));
}

#[test]
fn a_rate_that_falls_or_leaps_is_followed() {
    let mut plant = single(1.0);
    let mut all = 0;
    for rate in [50_000.0, 1_000.0, 200_000.0, 20_000.0] {
        plant.rate_per_s = rate;
        all += violated(&plant.play(10));
    }
    assert!(all * 100 <= 9 * 40, "{all} violated");
}

#[test]
fn poisson_arrivals_and_hold_ups_cost_few_violations() {
    for (hold_up_us, most) in [(0.0, 0), (300.0, 9), (1200.0, 9)] {
        let mut plant = single(1.0);
        plant.arrivals = Arrivals::Poisson;
        plant.hold_up_us = (hold_up_us > 0.0).then_some((37_000.0, hold_up_us));
        let periods = plant.play(80);
        let violated = violated(&periods);
        println!("{hold_up_us} us: {violated} of 80, load {:.3}", mean_load(&periods[10..]));
        assert!(violated * 100 <= most * 80, "{hold_up_us}: {violated} violated");
    }
}

#[test]
fn a_violation_cuts_at_once_and_once_per_period() {
    let mut plant = single(1.0);
    plant.play(10);
    let controller = &mut plant.controller;
    assert_eq!(controller.trigger(0), 85);
    // One in a hundred of the expected 5,000 may be late; the next one cuts, long before the period
    // is over.
    assert!(!controller.cut(0, 45, 200));
    assert!(controller.cut(0, 55, 200));
    assert_eq!(controller.trigger(0), 42);
    assert_eq!(controller.budget(0), Duration::from_micros(950));
    assert!(!controller.cut(0, 100, 300));
    // It comes back by steps of a 32nd of 1.9 ms.
    plant.play(1);
    assert_eq!(plant.controller.budget(0), Duration::from_nanos(950_000 + 1_900_000 / 32));
}

#[test]
fn no_cut_goes_below_what_keeps_up() {
    let mut plant = single(1.0);
    plant.rate_per_s = 200_000.0;
    plant.play(10);
    let mut cuts = 0;
    for _ in 0..12 {
        cuts += usize::from(plant.controller.cut(0, 100_000, 100_000));
        // (20 us + 2 us b) 0.2/us <= 0.9 b: b >= 8.
        assert!(plant.controller.trigger(0) >= 8, "{}", plant.controller.trigger(0));
        plant.play(1);
    }
    assert!(cuts > 0);
}

#[test]
fn hold_ups_beyond_the_goal_do_not_end_batching() {
    let mut plant = single(1.0);
    plant.arrivals = Arrivals::Poisson;
    plant.hold_up_us = Some((37_000.0, 2500.0));
    plant.play(20);
    // Without batches it is 0.7, and as many goals are broken.
    let load = mean_load(&plant.play(20));
    assert!(load <= 0.4, "{load}");
}
