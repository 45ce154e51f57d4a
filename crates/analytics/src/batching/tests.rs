//! Algorithms 1 and 2 by hand, with the paper's sizes (2³ to 2¹⁰) and Φ = 0.2.

use super::*;
use proptest::prelude::*;

const T: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(50);
const NONE: Policy = Policy::None;
const MAX: Policy = Policy::Max;
const ON_OFF: Policy = Policy::OnOff { latency_goal: T, delta: 0.05 };
const TIMEOUT: Policy = Policy::Timeout { timeout: T };
const CARRY_OVER: Policy = Policy::CarryOver { timeout: T, phi: 0.2, max_wait: MAX_WAIT };

fn paper_sizes() -> Sizes {
    Sizes::Fixed((3..=10).map(|x| 1 << x).collect())
}

/// `waiting` series at the moment when T expires.
fn at_timeout(waiting: usize, sizes: &Sizes) -> Situation<'_> {
    Situation {
        waiting,
        oldest_waited: T,
        oldest_age: T,
        timer: T,
        sizes,
        profile: None,
        plan: SloPlan::AT_ONCE,
        ring_full: false,
        stalled: false,
        draining: false,
    }
}

/// `waiting` series a nanosecond before T expires.
fn before_timeout(waiting: usize, sizes: &Sizes) -> Situation<'_> {
    let almost = T - Duration::from_nanos(1);
    Situation { oldest_waited: almost, timer: almost, ..at_timeout(waiting, sizes) }
}

fn fire(take: usize, size: usize, trigger: Trigger) -> Decision {
    Decision::Fire(Fire { take, size, trigger, more: false })
}

#[test]
fn algorithm_1_by_hand() {
    let sizes = paper_sizes();
    // r, B = min {b ≥ r}
    for (r, size) in
        [(1, 8), (7, 8), (8, 8), (9, 16), (100, 128), (128, 128), (129, 256), (1023, 1024)]
    {
        let decision = TIMEOUT.decide(&at_timeout(r, &sizes));
        assert_eq!(decision, fire(r, size, Trigger::Timeout), "r = {r}");
    }
}

#[test]
fn algorithm_2_by_hand() {
    let sizes = paper_sizes();
    for (r, take, size, trigger) in [
        (7, 7, 8, Trigger::Timeout),         // padding 1/8 = 0.125
        (8, 8, 8, Trigger::Timeout),         // none
        (9, 8, 8, Trigger::CarryOver),       // 7/16 = 0.4375, one left
        (12, 8, 8, Trigger::CarryOver),      // 4/16 = 0.25
        (13, 13, 16, Trigger::Timeout),      // 3/16 = 0.1875
        (25, 16, 16, Trigger::CarryOver),    // 7/32 = 0.21875
        (26, 26, 32, Trigger::Timeout),      // 6/32 = 0.1875
        (100, 64, 64, Trigger::CarryOver),   // 28/128 = 0.21875
        (103, 103, 128, Trigger::Timeout),   // 25/128 = 0.1953125
        (819, 512, 512, Trigger::CarryOver), // 205/1024 = 0.2002
        (820, 820, 1024, Trigger::Timeout),  // 204/1024 = 0.1992
    ] {
        let decision = CARRY_OVER.decide(&at_timeout(r, &sizes));
        assert_eq!(decision, fire(take, size, trigger), "r = {r}");
    }
}

#[test]
fn padding_of_exactly_phi_is_allowed() {
    let sizes = Sizes::Fixed(vec![5, 10]);
    let decision = CARRY_OVER.decide(&at_timeout(8, &sizes));
    assert_eq!(decision, fire(8, 10, Trigger::Timeout));
}

#[test]
fn fewer_than_the_smallest_size_wait_for_the_next_timeout() {
    let sizes = paper_sizes();
    for r in 1..=6 {
        // Padding 2/8 and more.
        let decision = CARRY_OVER.decide(&at_timeout(r, &sizes));
        assert_eq!(decision, Decision::WaitAnotherTimeout, "r = {r}");
    }
}

#[test]
fn who_has_waited_long_enough_is_padded() {
    let sizes = paper_sizes();
    let waited = |waiting, timer| Situation {
        oldest_waited: MAX_WAIT,
        timer,
        ..at_timeout(waiting, &sizes)
    };
    for timer in [T / 2, T] {
        let decision = CARRY_OVER.decide(&waited(3, timer));
        assert_eq!(decision, fire(3, 8, Trigger::MaxWait));
    }
    // Carrying over serves the oldest without padding.
    let decision = CARRY_OVER.decide(&waited(9, T / 2));
    assert_eq!(decision, fire(8, 8, Trigger::CarryOver));
    let decision = CARRY_OVER.decide(&waited(7, T / 2));
    assert_eq!(decision, fire(7, 8, Trigger::MaxWait));
}

#[test]
fn those_left_behind_follow_where_that_takes_less_time_than_they_would_wait() {
    let sizes = paper_sizes();
    let profile = |t0_us| Profile { t0_us, t1_us: 10.0 };
    for (r, t0_us, take, more) in [
        (12, 5.0, 8, false),        // 4 are left and fill none
        (24, 5.0, 16, true),        // 8 are left: 85 us
        (24, 9_919.0, 16, true),    // 9,999 us
        (24, 9_920.0, 16, false),   // 10 ms, as long as T
        (100, 5.0, 64, true),       // 36 are left, of which 32 go
        (819, 5.0, 512, true),      // 307, of which 256 go
        (819, 7_500.0, 512, false), // in 10.06 ms
    ] {
        let now = Situation { profile: Some(profile(t0_us)), ..at_timeout(r, &sizes) };
        let expected = Fire { take, size: take, trigger: Trigger::CarryOver, more };
        assert_eq!(CARRY_OVER.decide(&now), Decision::Fire(expected), "r = {r}, T0 = {t0_us}");
    }
}

#[test]
fn nothing_fires_before_its_time() {
    let sizes = paper_sizes();
    for policy in [TIMEOUT, CARRY_OVER, MAX] {
        for r in [0, 1, 8, 1023] {
            assert_eq!(policy.decide(&before_timeout(r, &sizes)), Decision::Wait);
        }
    }
    assert_eq!(NONE.decide(&at_timeout(0, &sizes)), Decision::Wait);
}

#[test]
fn the_largest_size_fires_at_once() {
    let sizes = paper_sizes();
    for policy in [NONE, TIMEOUT, CARRY_OVER, MAX, ON_OFF] {
        for r in [1024, 1025, 5000] {
            let decision = policy.decide(&before_timeout(r, &sizes));
            assert_eq!(decision, fire(1024, 1024, Trigger::Full));
        }
    }
}

#[test]
fn without_a_policy_the_idle_device_gets_all() {
    let sizes = paper_sizes();
    for (r, size) in [(1, 8), (8, 8), (9, 16), (1000, 1024)] {
        let decision = NONE.decide(&before_timeout(r, &sizes));
        assert_eq!(decision, fire(r, size, Trigger::Idle));
    }
}

#[test]
fn the_largest_size_is_waited_for_however_long_it_takes_unless_a_ring_is_full() {
    let sizes = paper_sizes();
    for waited in [T, MAX_WAIT, Duration::from_secs(3600)] {
        let now = Situation {
            oldest_waited: waited,
            oldest_age: waited,
            timer: waited,
            ..at_timeout(1023, &sizes)
        };
        assert_eq!(MAX.decide(&now), Decision::Wait);
        let full = Situation { ring_full: true, ..now };
        assert_eq!(MAX.decide(&full), fire(1023, 1024, Trigger::RingFull));
    }
    let stalled = Situation { stalled: true, ..at_timeout(1023, &sizes) };
    assert_eq!(MAX.decide(&stalled), fire(1023, 1024, Trigger::MaxWait));
    let any = Sizes::Any { cap: 100 };
    assert_eq!(MAX.decide(&at_timeout(99, &any)), Decision::Wait);
    assert_eq!(MAX.decide(&at_timeout(100, &any)), fire(100, 100, Trigger::Full));
    assert_eq!(MAX.time_until_due(T, MAX_WAIT), Duration::MAX);
    assert_eq!(MAX.max_poll_interval(), POLL_INTERVAL_LONG);
}

#[test]
fn on_and_off_have_the_goal_and_the_decisions_of_slo() {
    let slo = Policy::Slo { latency_goal: T, delta: 0.05 };
    assert_eq!(ON_OFF.goal(), Some((T, 0.05)));
    assert_eq!(ON_OFF.goal(), slo.goal());
    assert_eq!(MAX.goal(), None);
    let sizes = paper_sizes();
    for r in [1, 8, 100, 1023, 1024] {
        let now = at_timeout(r, &sizes);
        assert_eq!(ON_OFF.decide(&now), slo.decide(&now));
    }
}

#[test]
fn any_size_means_no_padding_and_a_cap() {
    let sizes = Sizes::Any { cap: 100 };
    for policy in [TIMEOUT, CARRY_OVER] {
        let at = |r| policy.decide(&at_timeout(r, &sizes));
        let before = |r| policy.decide(&before_timeout(r, &sizes));
        assert_eq!(at(1), fire(1, 1, Trigger::Timeout));
        assert_eq!(at(99), fire(99, 99, Trigger::Timeout));
        assert_eq!(before(99), Decision::Wait);
        assert_eq!(before(100), fire(100, 100, Trigger::Full));
        assert_eq!(before(250), fire(100, 100, Trigger::Full));
    }
}

#[test]
fn at_the_end_all_is_fired() {
    let sizes = paper_sizes();
    for policy in [NONE, TIMEOUT, CARRY_OVER, MAX, ON_OFF] {
        for (r, size) in [(1, 8), (9, 16), (300, 512)] {
            let last = Situation { draining: true, ..before_timeout(r, &sizes) };
            assert_eq!(policy.decide(&last), fire(r, size, Trigger::Drain));
        }
    }
}

#[test]
fn a_full_ring_does_not_wait_for_the_timeout() {
    let sizes = paper_sizes();
    let full = |waiting| Situation { ring_full: true, ..before_timeout(waiting, &sizes) };
    assert_eq!(TIMEOUT.decide(&full(300)), fire(300, 512, Trigger::RingFull));
    assert_eq!(CARRY_OVER.decide(&full(300)), fire(256, 256, Trigger::CarryOver));
    assert_eq!(CARRY_OVER.decide(&full(500)), fire(500, 512, Trigger::RingFull));
    assert_eq!(CARRY_OVER.decide(&full(2)), fire(2, 8, Trigger::RingFull));
}

#[test]
fn triggers_are_named_in_their_order() {
    for (i, trigger) in Trigger::ALL.into_iter().enumerate() {
        assert_eq!(trigger as usize, i, "{}", trigger.name());
    }
}

prop_compose! {
    fn any_sizes()(
        fixed in prop::collection::btree_set(1usize..300, 1..6),
        cap in prop::option::weighted(0.2, 1usize..300),
    ) -> Sizes {
        match cap {
            Some(cap) => Sizes::Any { cap },
            None => Sizes::Fixed(fixed.into_iter().collect()),
        }
    }
}

#[test]
fn a_lull_is_a_part_of_the_timeout_but_never_so_long_that_others_wait() {
    let max_poll_interval =
        |ms| Policy::Timeout { timeout: Duration::from_millis(ms) }.max_poll_interval();
    assert_eq!(max_poll_interval(1), POLL_INTERVAL);
    assert_eq!(max_poll_interval(50), Duration::from_micros(12_500));
    assert_eq!(max_poll_interval(1000), POLL_INTERVAL_LONG);
    assert_eq!(NONE.max_poll_interval(), Duration::ZERO);
}

proptest! {
    #[test]
    fn what_is_fired_fits_and_is_padded_by_the_rules(
        sizes in any_sizes(),
        phi in 0.0..=0.5f64,
        waiting in 0usize..400,
        timer_ms in 0u64..20,
        waited_ms in 0u64..100,
        ring_full: bool,
        draining: bool,
        which in 0..4,
    ) {
        let policy = match which {
            0 => NONE,
            1 => TIMEOUT,
            3 => MAX,
            _ => Policy::CarryOver { timeout: T, phi, max_wait: MAX_WAIT },
        };
        let now = Situation {
            waiting,
            oldest_waited: Duration::from_millis(waited_ms),
            oldest_age: Duration::from_millis(waited_ms),
            timer: Duration::from_millis(timer_ms),
            sizes: &sizes,
            profile: None,
            plan: SloPlan::AT_ONCE,
            ring_full,
            stalled: false,
            draining,
        };
        if let Decision::Fire(Fire { take, size, trigger, more }) = policy.decide(&now) {
            prop_assert!(!more, "without a profile");
            prop_assert!(0 < take && take <= waiting && take <= size);
            match &sizes {
                Sizes::Any { cap } => prop_assert!(size == take && size <= *cap),
                Sizes::Fixed(sizes) => {
                    prop_assert!(sizes.contains(&size));
                    prop_assert!(!sizes.iter().any(|b| (take..size).contains(b)), "a smaller one \
                        holds them");
                }
            }
            let may_pad = [Trigger::MaxWait, Trigger::RingFull, Trigger::Drain].contains(&trigger);
            if which == 2 && !may_pad {
                prop_assert!((size - take) as f64 / size as f64 <= phi);
            }
        } else {
            prop_assert!(waiting == 0 || !draining && which != 0 && !ring_full);
            prop_assert!(waiting == 0 || which != 2 || waited_ms < 50);
            prop_assert!(which != 3 || waiting < sizes.largest());
        }
    }
}
