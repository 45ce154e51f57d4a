//! How a plan is followed, by hand.

use super::*;
use accel::Sizes;

const PROFILE: Profile = Profile { t0_us: 20.0, t1_us: 2.0 };
const ANY: Sizes = Sizes::Any { cap: 1000 };

fn situation(waiting: usize, age_us: u64, sizes: &Sizes) -> Situation<'_> {
    Situation {
        waiting,
        oldest_waited: Duration::ZERO,
        oldest_age: Duration::from_micros(age_us),
        timer: Duration::ZERO,
        sizes,
        profile: Some(PROFILE),
        plan: SloPlan { trigger: 80, budget: Duration::from_micros(1900) },
        ring_full: false,
        stalled: false,
        draining: false,
    }
}

fn fired(now: &Situation<'_>) -> Option<(usize, usize, Trigger)> {
    match decide(now) {
        Decision::Fire(Fire { take, size, trigger, .. }) => Some((take, size, trigger)),
        _ => None,
    }
}

#[test]
fn it_waits_for_the_trigger_or_until_the_oldest_must_go() {
    assert_eq!(fired(&situation(79, 0, &ANY)), None);
    assert_eq!(fired(&situation(80, 0, &ANY)), Some((80, 80, Trigger::Slo)));
    // 30 series take 80 us.
    assert_eq!(fired(&situation(30, 1819, &ANY)), None);
    assert_eq!(fired(&situation(30, 1820, &ANY)), Some((30, 30, Trigger::MaxWait)));
    // With more than the trigger, as many as still fit, but no fewer than the trigger or than 8 T0
    // / T1 = 80.
    assert_eq!(fired(&situation(500, 1000, &ANY)), Some((440, 440, Trigger::Slo)));
    assert_eq!(fired(&situation(500, 5000, &ANY)), Some((80, 80, Trigger::Slo)));
    let full = Situation { ring_full: true, ..situation(30, 0, &ANY) };
    assert_eq!(fired(&full), Some((30, 30, Trigger::RingFull)));
    let stalled = Situation { stalled: true, ..situation(30, 0, &ANY) };
    assert_eq!(fired(&stalled), None, "age will fire them");
    let for_ever = Situation { plan: SloPlan { budget: Duration::MAX, ..stalled.plan }, ..stalled };
    assert_eq!(fired(&for_ever), Some((30, 30, Trigger::MaxWait)));
}

#[test]
fn fixed_sizes_are_filled_or_padded_at_the_last_moment() {
    let sizes = Sizes::Fixed(vec![8, 64, 512]);
    assert_eq!(fired(&situation(100, 1000, &sizes)), Some((64, 64, Trigger::Slo)));
    // A batch of 64 takes 148 us, whatever is in it.
    assert_eq!(fired(&situation(9, 1751, &sizes)), None);
    assert_eq!(fired(&situation(9, 1752, &sizes)), Some((9, 64, Trigger::MaxWait)));
    let few = Situation {
        plan: SloPlan { trigger: 1, budget: Duration::from_micros(100) },
        ..situation(3, 0, &sizes)
    };
    assert_eq!(fired(&few), Some((3, 8, Trigger::Slo)));
}
