//! Series that are answered at once: no ring, and the same counters.

use super::device::{Deed, class_of};
use super::world::{Plan, World, row_of, series};
use super::*;
use crate::{After, Need, Test};
use accel::Sizes;
use cring::{Depth, Label, LabelWord, Series, Slot, Source, TaskWords};
use std::cell::Cell;

fn world(deeds: Vec<Deed>) -> World {
    Plan { inputs: 0, devices: vec![(Sizes::Any { cap: 4 }, deeds)], ..Plan::new(Policy::None) }
        .start()
}

fn words() -> Vec<LabelWord> {
    vec![LabelWord::new()]
}

fn asked(series: Series) -> Slot {
    Slot { emitted_ns: 1000, series, ..Slot::default() }
}

fn class(label: Label) -> Option<u16> {
    match label {
        Label::Class { class, source: Source::Model, .. } => Some(class),
        _ => None,
    }
}

#[test]
fn each_series_has_its_own_answer_and_counts_as_inferred() {
    let mut world = world(vec![Deed::Works(0)]);
    let looks = Cell::new(0);
    for number in 0..9 {
        let series = series([1.0, -2.0, number as f32]);
        let clock = || {
            looks.set(looks.get() + 1);
            3000
        };
        let label = world.task.answer(&asked(series), &words(), None, clock);
        assert_eq!(class(label), Some(class_of(&row_of(&series))));
    }
    assert_eq!(looks.get(), 4, "the first and the ninth are timed");
    assert_eq!(world.batch_sizes(), [(1, 1); 9]);
    world.task.count_answers();
    world.check_sum();
    let counters = world.task.counters();
    assert_eq!((counters.series, counters.inferred, counters.decided()), (9, 9, 9));
    assert_eq!(counters.time_to_inferred_label_us.len(), 9);
    assert_eq!(counters.time_to_inferred_label_us.max(), 2);
    assert_eq!(counters.devices[0].series, 9);
    assert!(world.task.is_done());
}

#[test]
fn a_device_that_fails_is_probed_by_rounds_and_works_again() {
    for deed in [Deed::FailsAtSubmit, Deed::FailsAtPoll(0), Deed::GivesNan, Deed::GivesNoClass] {
        let mut world = world(vec![deed, Deed::Works(0), Deed::Works(0)]);
        let ask = |world: &mut World| {
            class(world.task.answer(&asked(series([1.0; 3])), &words(), None, || 3000))
        };
        assert_eq!(ask(&mut world), None, "{deed:?}");
        assert_eq!(ask(&mut world), None, "{deed:?}: it is down");
        let counters = world.task.counters();
        assert_eq!((counters.failed(), counters.shed(), counters.undecided()), (1, 1, 0));
        for at in 1..4 {
            world.round_at_ms(10 * at);
        }
        assert!(ask(&mut world).is_some(), "{deed:?}");
        world.task.count_answers();
        world.check_sum();
        assert_eq!(world.task.counters().devices[0].came_back, 1);
    }
}

#[test]
fn a_task_that_another_label_rules_out_is_not_asked() {
    let mut world = world(vec![Deed::Works(0)]);
    let words_of =
        TaskWords { first: 0, depths: vec![Depth { sure: 0, classes: 2, contradicts: None }] };
    let test = Test::Confidence(0..=100);
    let after = After { needs: vec![Need { words: words_of, test }] };
    world.task.rings = Rings::new(Vec::new(), after);
    for (confidence, is_asked) in [(100, true), (101, false)] {
        let words = words();
        let flow = asked(series([1.0; 3]));
        words[0].pend(0);
        let label = Label::Class { class: 0, confidence, source: Source::Model, model: 0 };
        words[0].decide(0, label).unwrap();
        let label = world.task.answer(&flow, &words, None, || 3000);
        assert_eq!(class(label).is_some(), is_asked, "{confidence}");
    }
    world.task.count_answers();
    let counters = world.task.counters();
    assert_eq!((counters.inferred, counters.not_asked, counters.undecided()), (1, 1, 0));
}
