//! The model by hand, and the controller on a clock that the test moves.

use super::*;
use proptest::prelude::*;

const GOAL: Duration = Duration::from_millis(2);
const DELTA: f64 = 0.05;
const MS: u64 = 1_000_000;
const PROFILE: Profile = Profile {
    t0_us: 20.0,
    t1_us: 2.0,
};
const ANY: Sizes = Sizes::Any { cap: 1000 };

/// One period of 50 ms in which so many series came and were labelled, so many of them after `late_ns`.
fn period(
    controller: &mut Controller,
    now_ns: &mut u64,
    series: u64,
    late: u64,
    late_ns: u64,
) -> Option<Adjustment> {
    let _ = controller.control(*now_ns);
    controller.arrived(series as usize);
    for i in 0..series {
        controller.labelled(if i < late { late_ns } else { MS });
    }
    *now_ns += 50 * MS;
    controller.control(*now_ns)
}

fn trigger(controller: &Controller, now: usize) -> usize {
    controller.trigger(now, Adjustment::Step, PROFILE, &ANY, 1)
}

/// Goes on at 50,000 series a second until the trigger stays.
fn settled(controller: &mut Controller, now_ns: &mut u64) -> usize {
    let mut b = 1;
    for _ in 0..40 {
        assert_eq!(
            period(controller, now_ns, 2500, 0, 0),
            Some(Adjustment::Step)
        );
        b = trigger(controller, b);
    }
    b
}

#[test]
fn the_trigger_converges_to_the_largest_that_the_model_allows() {
    let (mut controller, mut now_ns) = (Controller::new(GOAL, DELTA), 0);
    let mut triggers = vec![1];
    for _ in 0..12 {
        period(&mut controller, &mut now_ns, 2500, 0, 0);
        triggers.push(trigger(&controller, triggers[triggers.len() - 1]));
    }
    // b/50,000 + 20 us + 2 us b <= 1.9 ms: b <= 85.45, by steps of 85/8.
    assert_eq!(triggers[..5], [1, 11, 21, 31, 41]);
    assert_eq!(triggers[9..], [85; 4]);
}

#[test]
fn a_violation_cuts_at_once_and_by_half() {
    let (mut controller, mut now_ns) = (Controller::new(GOAL, DELTA), 0);
    let b = settled(&mut controller, &mut now_ns);
    assert_eq!(b, 85);
    // One in a hundred of the expected 2,500 may be late; the next one cuts, long before the period is over.
    controller.arrived(100);
    (0..25).for_each(|_| controller.labelled(3 * MS));
    assert_eq!(controller.control(now_ns + MS), None);
    controller.labelled(3 * MS);
    assert_eq!(controller.control(now_ns + MS), Some(Adjustment::Cut));
    assert_eq!(controller.budget(), Duration::from_micros(950));
    let cut = controller.trigger(b, Adjustment::Cut, PROFILE, &ANY, 1);
    assert_eq!(cut, 42, "half of 85");
    // Once per period, which counts as one in violation.
    assert_eq!(controller.control(now_ns + 2 * MS), None);
    assert_eq!(
        controller.control(now_ns + 1000 * MS),
        Some(Adjustment::Step)
    );
    assert_eq!((controller.periods, controller.violations), (41, 1));
}

#[test]
fn the_budget_comes_back_in_steps_and_shrinks_near_the_goal() {
    let (mut controller, mut now_ns) = (Controller::new(GOAL, DELTA), 0);
    assert_eq!(
        period(&mut controller, &mut now_ns, 1000, 20, 3 * MS),
        Some(Adjustment::Cut)
    );
    let budgets = [(); 40].map(|()| {
        period(&mut controller, &mut now_ns, 1000, 10, 3 * MS);
        controller.budget().as_nanos() as u64
    });
    assert_eq!(budgets[0], 950_000 + 1_900_000 / 32);
    assert_eq!(budgets[15..], [1_900_000; 25]);
    // 11 of 1,000 above D(1 - delta), none above D.
    period(&mut controller, &mut now_ns, 1000, 11, 1_950_000);
    assert_eq!(controller.budget().as_nanos(), 1_900_000 - 1_900_000 / 32);
    assert_eq!(controller.violations, 1);
}

#[test]
fn a_period_without_labels_counts_neither_way() {
    let (mut controller, mut now_ns) = (Controller::new(GOAL, DELTA), 0);
    controller.control(now_ns);
    for _ in 0..5 {
        now_ns += 1000 * MS;
        assert_eq!(controller.control(now_ns), Some(Adjustment::Step));
    }
    assert_eq!((controller.periods, controller.violations), (0, 0));
    assert_eq!(trigger(&controller, 1), 1);
}

#[test]
fn a_period_has_enough_labels_or_lasts_a_second() {
    let mut controller = Controller::new(GOAL, DELTA);
    assert_eq!(controller.control(0), None);
    (0..99).for_each(|_| controller.labelled(MS));
    assert_eq!(controller.control(999 * MS), None);
    assert_eq!(controller.control(1000 * MS), Some(Adjustment::Step));
    (0..100).for_each(|_| controller.labelled(MS));
    assert_eq!(controller.control(1049 * MS), None);
    assert_eq!(controller.control(1050 * MS), Some(Adjustment::Step));
}

#[test]
fn no_cut_goes_below_what_keeps_up() {
    let (mut controller, mut now_ns) = (Controller::new(GOAL, DELTA), 0);
    for _ in 0..20 {
        period(&mut controller, &mut now_ns, 10_000, 0, 0); // 200,000 a second
    }
    // (20 us + 2 us b) 0.2/us <= 0.9 b: b >= 8.
    let b = controller.trigger(9, Adjustment::Cut, PROFILE, &ANY, 1);
    assert_eq!(b, 8);
    // Two devices share.
    assert_eq!(controller.trigger(9, Adjustment::Cut, PROFILE, &ANY, 2), 4);
    // A device that cannot keep up gets the largest batches.
    let slow = Profile {
        t0_us: 20.0,
        t1_us: 5.0,
    };
    assert_eq!(controller.trigger(9, Adjustment::Cut, slow, &ANY, 1), 1000);
    let fixed = Sizes::Fixed(vec![16, 64]);
    assert_eq!(
        controller.trigger(64, Adjustment::Cut, PROFILE, &fixed, 1),
        32
    );
}

#[test]
fn fixed_sizes_are_climbed_one_by_one() {
    let (mut controller, mut now_ns) = (Controller::new(GOAL, DELTA), 0);
    let sizes = Sizes::Fixed((3..=10).map(|x| 1 << x).collect());
    let mut triggers = vec![1];
    for _ in 0..6 {
        period(&mut controller, &mut now_ns, 2500, 0, 0);
        let now = triggers[triggers.len() - 1];
        triggers.push(controller.trigger(now, Adjustment::Step, PROFILE, &sizes, 1));
    }
    assert_eq!(triggers, [1, 8, 16, 32, 64, 64, 64]);
}

fn situation(waiting: usize, age_us: u64, sizes: &Sizes) -> Situation<'_> {
    Situation {
        waiting,
        oldest_waited: Duration::ZERO,
        oldest_age: Duration::from_micros(age_us),
        timer: Duration::ZERO,
        sizes,
        profile: Some(PROFILE),
        plan: Plan {
            trigger: 80,
            budget: Duration::from_micros(1900),
        },
        ring_full: false,
        draining: false,
    }
}

fn fired(now: &Situation<'_>) -> Option<(usize, usize, Trigger)> {
    match decide(now) {
        Decision::Fire(Fire {
            take,
            size,
            trigger,
            ..
        }) => Some((take, size, trigger)),
        _ => None,
    }
}

#[test]
fn it_waits_for_the_trigger_or_until_the_oldest_must_go() {
    assert_eq!(fired(&situation(79, 0, &ANY)), None);
    assert_eq!(fired(&situation(80, 0, &ANY)), Some((80, 80, Trigger::Slo)));
    // 30 series take 80 us.
    assert_eq!(fired(&situation(30, 1819, &ANY)), None);
    assert_eq!(
        fired(&situation(30, 1820, &ANY)),
        Some((30, 30, Trigger::MaxWait))
    );
    // Of more than the trigger as many as still fit, but not fewer than the trigger, nor than 8 T0 / T1 = 80.
    assert_eq!(
        fired(&situation(500, 1000, &ANY)),
        Some((440, 440, Trigger::Slo))
    );
    assert_eq!(
        fired(&situation(500, 5000, &ANY)),
        Some((80, 80, Trigger::Slo))
    );
    let full = Situation {
        ring_full: true,
        ..situation(30, 0, &ANY)
    };
    assert_eq!(fired(&full), Some((30, 30, Trigger::RingFull)));
}

#[test]
fn fixed_sizes_are_filled_or_padded_at_the_last_moment() {
    let sizes = Sizes::Fixed(vec![8, 64, 512]);
    assert_eq!(
        fired(&situation(100, 1000, &sizes)),
        Some((64, 64, Trigger::Slo))
    );
    // A batch of 64 takes 148 us, whatever is in it.
    assert_eq!(fired(&situation(9, 1751, &sizes)), None);
    assert_eq!(
        fired(&situation(9, 1752, &sizes)),
        Some((9, 64, Trigger::MaxWait))
    );
    let few = Situation {
        plan: Plan {
            trigger: 1,
            budget: Duration::from_micros(100),
        },
        ..situation(3, 0, &sizes)
    };
    assert_eq!(fired(&few), Some((3, 8, Trigger::Slo)));
}

proptest! {
    #[test]
    fn triggers_and_budget_stay_within_bounds(
        goal_us in 1u64..1_000_000,
        delta in 0.0..0.9f64,
        t0_us in 0.0..1e5f64,
        t1_us in 0.001..1e4f64,
        cap in 1usize..5000,
        is_fixed: bool,
        devices in 0usize..4,
        periods in prop::collection::vec((0u64..3000, 0u64..50, 0u64..3_000_000), 1..30),
    ) {
        let sizes = if is_fixed { Sizes::Fixed(vec![cap, 2 * cap, 8 * cap]) } else { Sizes::Any { cap } };
        let profile = Profile { t0_us, t1_us };
        let mut controller = Controller::new(Duration::from_micros(goal_us), delta);
        let (mut now_ns, mut b) = (0, 1);
        for (series, late, late_ns) in periods {
            let Some(adjustment) = period(&mut controller, &mut now_ns, series, late, late_ns) else { continue };
            let before = b;
            b = controller.trigger(b, adjustment, profile, &sizes, devices);
            prop_assert!((1..=sizes.largest()).contains(&b));
            prop_assert!(controller.budget() <= Duration::from_micros(goal_us).mul_f64(1.0 - delta));
            let least = controller.least(profile, &sizes, devices);
            if adjustment == Adjustment::Cut {
                prop_assert!(b <= (before / 2).max(least).max(1));
            }
            let model_us = b as f64 / (controller.rate * 1e3) + profile.t0_us + profile.t1_us * b as f64;
            let smallest = sizes.fitting(1).unwrap();
            prop_assert!(b <= least.max(smallest) || model_us <= controller.budget_ns / 1e3 * 1.000_001);
        }
        prop_assert!(controller.violations <= controller.periods);
    }
}
