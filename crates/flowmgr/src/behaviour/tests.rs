use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds {
    bulk_bytes: 100_000,
    small_bytes: 300,
    interactive_packets_max: 30,
    realtime_packets_min: 10,
    hold_s: 3,
    idle_s: 10,
};

fn sample(packets: [u64; 2], length: u64, is_udp: bool) -> Sample {
    Sample { packets, bytes: packets.map(|packets| packets * length), seconds: 1, is_udp }
}

/// The behaviours that a flow has behind each of these samples.
fn behind(samples: &[Sample]) -> Vec<Behaviour> {
    let mut state = State::default();
    let see = |sample: &Sample| {
        state.see(sample, &BOUNDS);
        state.now()
    };
    samples.iter().map(see).collect()
}

#[test]
fn a_shape_asks_for_small_packets_both_ways_and_a_rate() {
    use Behaviour::{Interactive, None, Realtime};
    let cases = [
        ([50, 50], 200, true, Realtime),
        ([10, 10], 300, true, Realtime),
        ([10, 9], 300, true, Interactive),
        ([50, 50], 301, true, None),
        ([50, 50], 200, false, None),
        ([50, 0], 200, true, None),
        ([30, 1], 60, false, Interactive),
        ([31, 1], 60, false, None),
        ([1, 0], 60, false, None),
    ];
    for (packets, length, is_udp, expected) in cases {
        let sample = sample(packets, length, is_udp);
        assert_eq!(BOUNDS.shape(&sample), expected, "{sample:?}");
    }
    // Rates are averages over the sample.
    let long = Sample { seconds: 5, ..sample([60, 60], 100, true) };
    assert_eq!(BOUNDS.shape(&long), Realtime);
}

#[test]
fn a_behaviour_must_hold_before_it_is_taken_and_before_it_goes() {
    use Behaviour::{None, Realtime};
    let (call, other) = (sample([50, 50], 200, true), sample([500, 20], 900, true));
    assert_eq!(behind(&[call; 4]), [None, None, Realtime, Realtime]);
    assert_eq!(
        behind(&[call, call, other, call, call, call]),
        [None, None, None, None, None, Realtime],
        "two and one are not three in a row"
    );
    assert_eq!(
        behind(&[call, call, call, other, other, call, other, other, other]),
        [None, None, Realtime, Realtime, Realtime, Realtime, Realtime, Realtime, None]
    );
}

#[test]
fn bulk_is_taken_at_once_and_comes_back_behind_all_others() {
    let (call, download) = (sample([50, 50], 200, true), sample([900, 400], 1400, true));
    let mut state = State::default();
    state.cross();
    assert_eq!(state.now(), Behaviour::Bulk);
    state.see(&download, &BOUNDS);
    state.fall_silent();
    assert_eq!(state.now(), Behaviour::Idle);
    assert_eq!(state.active(), Behaviour::Bulk);
    state.see(&call, &BOUNDS);
    assert_eq!(state.now(), Behaviour::Bulk, "one packet ends silence");
    (0..2).for_each(|_| state.see(&call, &BOUNDS));
    assert_eq!(state.now(), Behaviour::Realtime);
    (0..3).for_each(|_| state.see(&download, &BOUNDS));
    assert_eq!(state.now(), Behaviour::Bulk);
}

#[test]
fn what_was_before_silence_comes_back_with_a_packet() {
    let typing = sample([5, 5], 80, false);
    let mut state = State::default();
    (0..3).for_each(|_| state.see(&typing, &BOUNDS));
    assert_eq!(state.now(), Behaviour::Interactive);
    state.fall_silent();
    state.fall_silent();
    assert_eq!(state.now(), Behaviour::Idle);
    state.see(&typing, &BOUNDS);
    assert_eq!(state.now(), Behaviour::Interactive);
}

#[test]
fn a_flow_takes_the_documented_memory() {
    assert_eq!(BEHAVIOUR_BYTES, 40);
}

proptest! {
    /// Whatever comes: from sample to sample a behaviour changes only to what the last `hold_s` of
    /// them showed, or from silence; and who was `bulk` is never nothing again.
    #[test]
    fn changes_are_held_and_bulk_is_never_lost(events in prop::collection::vec(0..6u8, 1..60)) {
        let mut state = State::default();
        let mut shapes = Vec::new();
        let mut was_bulk = false;
        for event in events {
            let seen = match event {
                0 => { state.fall_silent(); shapes.clear(); continue }
                1 => { state.cross(); was_bulk = true; shapes.clear(); continue }
                2 => sample([50, 50], 200, true),
                3 => sample([3, 3], 100, true),
                _ => sample([500, 200], 1000, true),
            };
            let before = state.active();
            state.see(&seen, &BOUNDS);
            shapes.push(BOUNDS.shape(&seen));
            let now = state.now();
            prop_assert_ne!(now, Behaviour::Idle);
            prop_assert!(!(was_bulk && now == Behaviour::None));
            if now != before {
                let last = shapes.iter().rev().take(3);
                let shows = |shape: &Behaviour| match now {
                    Behaviour::Bulk => *shape == Behaviour::None,
                    _ => *shape == now,
                };
                prop_assert!(shapes.len() >= 3 && last.into_iter().all(shows));
            }
        }
    }

    /// Samples, crossings and records in any order: each packet counts for one behaviour.
    #[test]
    fn what_is_counted_adds_up(events in prop::collection::vec((0..4u8, 1..2000u64), 1..60)) {
        let mut behaviours = Behaviours::new(1, BOUNDS).unwrap();
        behaviours.begin_in(0, 0);
        let mut counts = Counts::default();
        let (mut all, mut counted) = ([0, 0], [0, 0]);
        let mut second = 0;
        for (event, many) in events {
            counts.packets[0] += many;
            counts.bytes[0] += 100 * many;
            all = [all[0] + many, all[1] + 100 * many];
            let step = match event {
                0 => {
                    second += 1;
                    behaviours.sample(0, &counts, second, true)
                }
                1 => Some(behaviours.cross(0, &counts)),
                2 => {
                    behaviours.report(0, &counts);
                    counts = Counts::default();
                    None
                }
                _ => None,
            };
            if let Some(step) = step {
                counted = [counted[0] + step.packets, counted[1] + step.bytes];
            }
        }
        let step = behaviours.end(0, &counts);
        prop_assert_eq!([counted[0] + step.packets, counted[1] + step.bytes], all);
    }
}
