//! Samples of flows: one for each depth that was asked, with what was asked, answered, and came.

use super::*;
use crate::record::{Sample, SampleAnswer};
use crate::target::Came;
use crate::{SeriesShare, Target, TargetOf};

/// One task of the bands 0, 1 and `unknown`, asked after two and four packets.
fn sampling(effect: Effect) -> Config {
    let target = Some(Target { of: TargetOf::Volume, edges: vec![100] });
    let tasks = vec![TaskConfig { target, ..task(&[2, 4], 50_000) }];
    let record_series = SeriesShare::NONE;
    Config { tasks, effect, samples: SeriesShare::ALL, record_series, ..config() }
}

const fn band(class: u16, confidence: u16) -> Label {
    Label::Class { class, confidence, source: Source::Model, model: 3 }
}

/// Packets of a flow a second apart, of 40 bytes, to and fro; the last one ends it.
fn send(bench: &mut Bench, packets: std::ops::Range<i64>, is_end: bool) {
    for at in packets.clone() {
        let flags = if is_end && at + 1 == packets.end { TCP_RST } else { TCP_ACK };
        let [from, to] = if at % 2 == 0 { [1, 2] } else { [2, 1] };
        bench.burst(&[tcp(at * SECOND_US, from, to, flags)]);
    }
}

/// Answers the series that wait, each depth with its own label.
fn answer(bench: &mut Bench, labels: [Label; 2]) {
    let words = bench.manager.labels();
    for at in 0..bench.ring.waiting() {
        let slot = bench.ring.get(at);
        let task = slot.series.task;
        let word = words.word(task, slot.flow.index);
        let _ = word.decide(slot.flow.generation, labels[usize::from(task)]);
    }
    let waiting = bench.ring.waiting();
    bench.ring.release(waiting);
}

fn end(bench: &mut Bench) -> Vec<Sample> {
    bench.manager.drain();
    bench.settle();
    let sample = |record: &Record| match record {
        Record::Sample(sample) => Some((**sample).clone()),
        _ => None,
    };
    bench.records.iter().filter_map(sample).collect()
}

const fn said(class: u16, confidence: u16) -> Option<SampleAnswer> {
    Some(SampleAnswer { class, confidence, model: 3 })
}

#[test]
fn each_depth_has_its_own_answer_and_what_came_behind_it() {
    let labels = [band(0, 40_000), band(1, 60_000)];
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 0 }] {
        // Reports take nothing from it.
        for active_timeout_s in [0, 1] {
            let mut config = sampling(effect);
            config.settings.active_timeout_s = active_timeout_s;
            let mut bench = Bench::new(config);
            send(&mut bench, 0..2, false);
            assert_eq!(bench.ring.waiting(), 1);
            let asked = bench.ring.get(0).series;
            answer(&mut bench, labels);
            send(&mut bench, 2..4, false);
            answer(&mut bench, labels);
            bench.settle();
            send(&mut bench, 4..9, true);
            let [first, second] = end(&mut bench).try_into().unwrap();
            assert_eq!(first.series, asked, "as it was asked");
            assert_eq!((first.depth, first.answer), (2, said(0, 40_000)), "{effect:?}");
            assert_eq!((first.asked_after_us, first.bytes_so_far), (1_000_000, 80));
            assert_eq!(first.came, Came { bytes: 280, us: 7_000_000 });
            assert_eq!((second.depth, second.answer), (4, said(1, 60_000)));
            assert_eq!((second.asked_after_us, second.bytes_so_far), (3_000_000, 160));
            assert_eq!(second.came, Came { bytes: 200, us: 5_000_000 });
            let lengths: Vec<i32> = second.series.signed_lengths().collect();
            assert_eq!(lengths, [40, -40, 40, -40]);
            assert!(!first.is_cut && first.flow_id == second.flow_id && first.began_us == 0);
            assert_eq!([first.ports, second.ports], [[80; 2]; 2]);
        }
    }
}

#[test]
fn a_depth_that_was_not_asked_gives_none_and_one_without_answer_says_so() {
    // The first answer was sure, so live the second depth is not asked.
    let mut bench = Bench::new(sampling(Effect::Arrival));
    send(&mut bench, 0..2, false);
    answer(&mut bench, [band(1, 60_000); 2]);
    send(&mut bench, 2..9, false);
    let [only] = end(&mut bench).try_into().unwrap();
    assert_eq!((only.answer, only.is_cut), (said(1, 60_000), true));
    let mut bench = Bench::new(sampling(Effect::Arrival));
    send(&mut bench, 0..4, true);
    let unanswered = end(&mut bench);
    assert_eq!(unanswered.iter().map(|it| it.answer).collect::<Vec<_>>(), [None, None]);
    // An entry's next flow has none of the last one's.
    bench.records.clear();
    bench.burst(&[tcp(9 * SECOND_US, 1, 2, TCP_SYN)]);
    assert_eq!(end(&mut bench), []);
}

#[test]
fn a_share_of_the_flows_is_sampled_and_the_same_again() {
    let sampled = |share, seed| {
        let samples = SeriesShare::new(share);
        let hash = HashKind::Keyed { seed };
        let effect = Effect::PacketTime { delay_us: 0 };
        let mut bench = Bench::new(Config { samples, hash, ..sampling(effect) });
        for host in 0..=250 {
            let at = i64::from(host);
            bench.burst(&[tcp(at, host, 255, TCP_SYN), tcp(at, host, 255, TCP_RST)]);
            answer(&mut bench, [band(0, 1), band(0, 1)]);
            bench.manager.pass(at + 100 * SECOND_US);
            bench.settle();
        }
        end(&mut bench).iter().map(|it| it.flow_id).collect::<Vec<u64>>()
    };
    assert_eq!(sampled(1.0, 1).len(), 251);
    let quarter = sampled(0.25, 1);
    assert!((40..90).contains(&quarter.len()), "{}", quarter.len());
    assert_eq!(quarter, sampled(0.25, 1));
    assert_ne!(quarter, sampled(0.25, 2));
    assert_eq!(sampled(0.0, 1), []);
}

/// Tasks whose classes are no bands are sampled, too.
#[test]
fn what_came_is_known_without_a_target() {
    let mut config = sampling(Effect::PacketTime { delay_us: 0 });
    config.tasks[0].target = None;
    let mut bench = Bench::new(config);
    send(&mut bench, 0..4, true);
    answer(&mut bench, [band(0, 1), band(0, 1)]);
    let came: Vec<u64> = end(&mut bench).iter().map(|it| it.came.bytes).collect();
    assert_eq!(came, [80, 0]);
}

/// Live, the deeper depth's label takes the place of the first depth's, but not in its sample.
#[test]
fn a_first_depth_without_an_answer_does_not_get_the_deeper_one() {
    let mut bench = Bench::new(sampling(Effect::Arrival));
    send(&mut bench, 0..2, false);
    answer(&mut bench, [Label::Unlabelled, band(1, 60_000)]);
    send(&mut bench, 2..4, false);
    answer(&mut bench, [Label::Unlabelled, band(1, 60_000)]);
    bench.settle();
    send(&mut bench, 4..9, true);
    let answers: Vec<_> = end(&mut bench).iter().map(|it| it.answer).collect();
    assert_eq!(answers, [None, said(1, 60_000)]);
}
