//! A model that answers after several numbers of elements: which answer is the flow's label, and
//! what it costs.

use cring::Unit;

use super::*;
use crate::PortLabel;
use crate::record::{DecidedBy, Decision};

const DEPTHS: [usize; 3] = [2, 4, 6];
const SURE: u16 = 30_000;

fn depths(effect: Effect) -> Config {
    Config { tasks: vec![task(&DEPTHS, SURE)], effect, ..config() }
}

const UNSURE: Label = class(1, SURE - 1);
const SURE_0: Label = class(0, SURE);

const fn class(class: u16, confidence: u16) -> Label {
    Label::Class { class, confidence, source: Source::Model, model: 0 }
}

impl Bench {
    /// Sends `packets` of one flow.
    fn send(&mut self, packets: usize) {
        for _ in 0..packets {
            let at = self.manager.walk.flows.position as i64;
            self.burst(&[tcp(at, 1, 2, TCP_ACK)]);
        }
    }

    /// The tasks whose series wait.
    fn asked(&mut self) -> Vec<u8> {
        let waiting = self.ring.waiting();
        (0..waiting).map(|at| self.ring.get(at).series.task).collect()
    }

    /// Answers the series of one task, which stays on the ring.
    fn answer_to(&mut self, task: u8, label: Label) {
        let at = self.asked().iter().position(|&asked| asked == task);
        let flow = self.ring.get(at.expect("it was asked")).flow;
        let labels = self.manager.labels();
        let word = labels.word(task, flow.index);
        word.decide(flow.generation, label).expect("it is awaited");
    }

    fn end(&mut self) -> FlowRecord {
        self.manager.drain();
        self.settle();
        let [flow] = self.flows().try_into().expect("one flow");
        flow
    }
}

#[test]
fn live_a_flow_is_asked_about_until_an_answer_is_sure() {
    let mut bench = Bench::new(depths(Effect::Arrival));
    bench.send(2);
    assert_eq!(bench.asked(), [0]);
    assert_eq!(bench.ring.get(0).series.k(), 2);
    bench.answer_to(0, UNSURE);
    bench.send(2);
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled]);
    assert_eq!((bench.asked(), bench.labels()), (vec![0, 1], 0));
    bench.answer_to(1, SURE_0);
    bench.send(3);
    assert_eq!(bench.verdicts(), [Verdict::Labelled]);
    assert_eq!(bench.asked(), [0, 1], "the third depth is not asked");
    bench.settle();
    assert_eq!(bench.labels(), 1);
    let decision = bench.end().decisions[0].expect("a label");
    assert_eq!((decision.class, decision.depth), (0, 4));
    let counters = bench.manager.counters();
    let decided: Vec<u64> = counters.depths.iter().map(|it| it.flows_decided).collect();
    assert_eq!(decided, [0, 1, 0]);
    assert_eq!(counters.labels_given(), [1, 0, 0]);
    assert_eq!(counters.flows_labelled(), [1, 0, 0]);
    assert_eq!(counters.labelled_by_class[0].packets, 3);
}

#[test]
fn the_answer_that_decides_counts_for_packets_though_its_record_came_before_them() {
    let mut bench = Bench::new(depths(Effect::Arrival));
    bench.send(2);
    bench.answer_to(0, UNSURE);
    bench.settle();
    bench.send(2);
    bench.answer_to(1, SURE_0);
    bench.settle();
    assert_eq!(bench.labels(), 1);
    bench.send(3);
    assert_eq!(bench.verdicts(), [Verdict::Labelled]);
    let by_class = &bench.manager.counters().labelled_by_class;
    assert_eq!((by_class[0].packets, by_class[1].packets), (3, 0));
    assert_eq!(bench.asked(), [0, 1], "the third depth is not asked");
}

#[test]
fn a_deeper_answer_waits_for_the_one_before_it() {
    let mut bench = Bench::new(depths(Effect::Arrival));
    bench.send(4);
    bench.answer_to(1, SURE_0);
    bench.settle();
    bench.send(1);
    assert_eq!((bench.labels(), bench.verdicts()), (0, vec![Verdict::Unlabelled]));
    bench.answer_to(0, class(2, 60_000));
    (0..3).for_each(|_| bench.settle());
    bench.send(1);
    assert_eq!((bench.labels(), bench.verdicts()), (1, vec![Verdict::Labelled]));
    let decision = bench.end().decisions[0].expect("a label");
    // Class 2 is `unknown`, and never sure.
    assert_eq!((decision.class, decision.depth), (0, 4));
}

#[test]
fn the_last_depth_decides_and_its_answer_stands() {
    let mut bench = Bench::new(depths(Effect::Arrival));
    bench.send(6);
    (0..3).for_each(|task| bench.answer_to(task, UNSURE));
    bench.send(2);
    assert_eq!(bench.verdicts(), [Verdict::Labelled]);
    let decision = bench.end().decisions[0].expect("a label");
    assert_eq!((decision.class, decision.depth), (1, 6));
    assert_eq!((bench.labels(), bench.manager.counters().flows_unsure), (1, 0));
}

#[test]
fn a_flow_that_ends_before_gets_its_port_or_the_best_it_has() {
    let port = PortLabel { protocol: wire::TCP, port: 80, class: 0, precision: 65_000 };
    for (ports, expected) in [
        (vec![], (1, DecidedBy::Model, 2, SURE - 1)),
        (vec![port], (0, DecidedBy::Port, 0, 65_000)),
    ] {
        let mut config = depths(Effect::Arrival);
        config.tasks[0].ports = ports;
        let mut bench = Bench::new(config);
        bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
        bench.send(2);
        bench.answer_to(0, UNSURE);
        let flow = bench.end();
        let decision = flow.decisions[0].expect("a label");
        let Decision { class, decided_by, depth, confidence, .. } = decision;
        assert_eq!((class, decided_by, depth, confidence), expected);
        assert_eq!((decision.time_to_label_us, bench.labels()), (None, 0));
        let counters = bench.manager.counters();
        let by_port = u64::from(decided_by == DecidedBy::Port);
        assert_eq!((counters.flows_by_port, counters.flows_unsure), (by_port, 1 - by_port));
        assert_eq!(counters.flows_labelled().iter().sum::<u64>(), 1);
    }
}

/// A port names no flow without an element of a series, and none whose server is not known.
#[test]
fn ports_name_flows_with_payload_from_their_beginning() {
    let port = PortLabel { protocol: wire::TCP, port: 80, class: 0, precision: 65_000 };
    let task = TaskConfig { unit: Unit::Data, ports: vec![port], ..TaskConfig::lengths(3, 3) };
    let config = Config { tasks: vec![task], ..config() };
    for (flags, payload, is_named) in [(TCP_SYN, 1, true), (TCP_SYN, 0, false), (TCP_ACK, 1, false)]
    {
        let mut bench = Bench::new(config.clone());
        bench.burst(&[tcp(0, 1, 2, flags)]);
        let with_payload = Tcp { payload, ..tcp(1, 1, 2, TCP_ACK) };
        bench.burst(&[with_payload]);
        assert_eq!(bench.end().decisions[0].is_some(), is_named);
    }
}

/// By packet time every depth is asked, and packets count as labelled from the deciding depth on.
#[test]
fn by_packet_time_the_label_counts_from_the_depth_that_decides() {
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];
    for order in orders {
        let mut bench = Bench::new(depths(Effect::PacketTime { delay_us: 0 }));
        bench.send(9);
        assert_eq!(bench.asked(), [0, 1, 2]);
        let fates = &bench.fates;
        assert_eq!((fates[0].verdict, fates[0].depths), (Verdict::Labelled, 0b111));
        assert_eq!(bench.manager.counters().verdicts.get(Verdict::Labelled), 8, "promised");
        for task in order {
            bench.answer_to(task, [UNSURE, SURE_0, class(1, 65_535)][usize::from(task)]);
            bench.settle();
        }
        let decision = bench.end().decisions[0].expect("a label");
        assert_eq!((decision.class, decision.depth), (0, 4));
        assert_eq!(bench.labels(), 1);
        let counters = bench.manager.counters();
        assert_eq!(counters.verdicts.get(Verdict::Labelled), 6);
        assert_eq!(counters.labelled_by_class[0].packets, 6);
        assert_eq!(counters.labelled_bytes, 6 * 40);
    }
}

proptest! {
    /// Live and by packet time, and in whatever order answers come, a flow has the same label at
    /// its end.
    #[test]
    fn live_and_replay_agree(
        packets in 0..9usize,
        answers in prop::array::uniform3((
            0..3u16,
            prop::sample::select(vec![0, SURE - 1, SURE, u16::MAX]),
        )),
        late in prop::array::uniform3(any::<bool>()),
        reports in any::<bool>(),
    ) {
        let effects = [Effect::Arrival, Effect::PacketTime { delay_us: 0 }];
        let ends = effects.map(|effect| {
            let mut bench = Bench::new(Config {
                settings: Settings {
                    active_timeout_s: if reports { 1 } else { 0 },
                    ..config().settings
                },
                ..depths(effect)
            });
            let mut answered = [false; 3];
            for packet in 0..packets {
                bench.burst(&[tcp(packet as i64 * SECOND_US, 1, 2, TCP_ACK)]);
                for task in bench.asked() {
                    let at = usize::from(task);
                    if !answered[at] && !late[at] {
                        bench.answer_to(task, class(answers[at].0, answers[at].1));
                        answered[at] = true;
                    }
                }
                bench.settle();
            }
            for task in bench.asked() {
                let at = usize::from(task);
                if !answered[at] {
                    bench.answer_to(task, class(answers[at].0, answers[at].1));
                }
            }
            bench.manager.drain();
            (0..4).for_each(|_| bench.settle());
            assert!(bench.manager.is_settled());
            let counters = bench.manager.counters();
            let labelled: u64 = counters.labelled_by_class.iter().map(|it| it.packets).sum();
            assert_eq!(labelled, counters.verdicts.get(Verdict::Labelled));
            assert!(bench.labels() <= 1);
            let last = bench.flows().pop();
            last.and_then(|flow| flow.decisions[0]).map(|it| (it.class, it.depth, it.confidence))
        });
        prop_assert_eq!(ends[0], ends[1]);
    }
}
