//! A port names a flow with its first packet, and the model is still asked: what its answers
//! change.

use super::*;
use crate::PortLabel;
use crate::record::{DecidedBy, Decision, LabelRecord};
use crate::rules::{RuleAnswer, RuleMemory, RulesChange};

const SURE: u16 = 30_000;
/// From here on an answer contradicts the port, but at the first depth.
const CONTRADICTS: u16 = 40_000;
/// The port's class.
const BY_PORT: u16 = 1;
const UNKNOWN: u16 = 2;

/// Depths of 2 and 4 packets behind the ports, of which 80 is of class 1.
fn ports_first(effect: Effect) -> Config {
    let port = PortLabel { protocol: wire::TCP, port: 80, class: BY_PORT, precision: 65_000 };
    let mut task = TaskConfig { midstream: false, ports: vec![port], ..task(&[0, 2, 4], SURE) };
    task.depths[2].contradicts = Some(CONTRADICTS);
    Config {
        tasks: vec![task],
        settings: Settings {
            actions: Actions::of_dscp(&[Some(46), Some(10), None]),
            ..config().settings
        },
        effect,
        record_series: crate::SeriesShare::NONE,
        ..config()
    }
}

/// The same without the port in the table.
fn without_port(effect: Effect) -> Config {
    let mut config = ports_first(effect);
    config.tasks[0].ports.clear();
    config
}

fn answer(class: u16, confidence: u16) -> Label {
    Label::Class { class, confidence, source: Source::Model, model: 0 }
}

impl Bench {
    /// Sends a flow's SYN and `packets` packets behind it, each as a burst that is settled. Returns
    /// the DSCPs with which they left.
    fn begin(&mut self, packets: usize) -> Vec<u8> {
        let flags = std::iter::once(TCP_SYN).chain(std::iter::repeat_n(TCP_ACK, packets));
        let dscps = flags.map(|flags| {
            let at = self.manager.walk.flows.position as i64;
            let data = self.burst(&[tcp(at, 1, 2, flags)]);
            self.settle();
            data[1] >> 2
        });
        dscps.collect()
    }

    fn word(&self, depth: u8) -> Label {
        self.manager.labels().word(depth, 0).read().1
    }

    fn decide(&mut self, depth: u8, label: Label) {
        let word = self.manager.labels();
        let word = word.word(depth, 0);
        word.decide(word.read().0, label).expect("it is awaited");
        self.settle();
    }

    /// The labels recorded: class, who decided, depth, and whether it contradicts the port.
    fn said(&self) -> Vec<(u16, DecidedBy, u8, bool)> {
        let label = |record: &Record| match record {
            Record::Label(LabelRecord { decision, .. }) => Some(parts(*decision)),
            _ => None,
        };
        self.records.iter().filter_map(label).collect()
    }

    fn last(&mut self) -> Option<(u16, DecidedBy, u8, bool)> {
        self.manager.drain();
        (0..3).for_each(|_| self.settle());
        let decision = self.flows().pop().expect("a flow").decisions[0];
        decision.map(parts)
    }
}

fn parts(it: Decision) -> (u16, DecidedBy, u8, bool) {
    let contradicts = it.contradicts == Some(BY_PORT);
    assert_eq!(contradicts, it.contradicts.is_some());
    (it.class, it.decided_by, it.depth, contradicts)
}

const PORT: (u16, DecidedBy, u8, bool) = (BY_PORT, DecidedBy::Port, 0, false);

#[test]
fn live_the_label_is_there_with_the_first_packet_and_stands() {
    let mut bench = Bench::new(ports_first(Effect::Arrival));
    assert_eq!(bench.begin(3), [10; 4]);
    assert_eq!(bench.said(), [PORT]);
    assert_eq!(bench.records[0].flow().map(|flow| flow.first_us), Some(0));
    // A depth without a bound is not asked, and an answer that is not sure enough changes nothing.
    assert_eq!(bench.word(1), Label::Unlabelled);
    bench.decide(2, answer(0, CONTRADICTS - 1));
    let data = bench.burst(&[tcp(9, 1, 2, TCP_ACK)]);
    assert_eq!(data[1] >> 2, 10);
    assert_eq!((bench.last(), bench.said()), (Some(PORT), vec![PORT]));
    let counters = bench.manager.counters();
    assert_eq!(counters.labelled_by_class[1].packets, 5);
    assert_eq!(counters.verdicts.get(Verdict::Labelled), 5);
    assert_eq!((counters.flows_by_port, counters.depths[0].flows_contradicting), (1, 0));
    assert_eq!(
        (counters.labels_given(), counters.flows_labelled()),
        (&[0, 1, 0][..], &[0, 1, 0][..])
    );
}

#[test]
fn live_a_contradiction_is_the_label_from_then_on() {
    for (class, dscp) in [(0, 46), (UNKNOWN, 0)] {
        let mut bench = Bench::new(ports_first(Effect::Arrival));
        bench.begin(3);
        bench.decide(2, answer(class, CONTRADICTS));
        let data = bench.burst(&[tcp(9, 1, 2, TCP_ACK)]);
        assert_eq!(data[1] >> 2, dscp);
        let contradiction = (class, DecidedBy::Model, 4, true);
        assert_eq!(bench.said(), [PORT, contradiction]);
        assert_eq!(bench.last(), Some(contradiction));
        let counters = bench.manager.counters();
        let by_class: Vec<u64> = counters.labelled_by_class.iter().map(|it| it.packets).collect();
        assert_eq!((by_class[1], by_class[usize::from(class)]), (4, 1));
        assert_eq!((counters.flows_by_port, counters.depths[0].flows_contradicting), (0, 1));
        let decided: Vec<u64> = counters.depths.iter().map(|it| it.flows_decided).collect();
        assert_eq!(decided, [0, 0, 1]);
    }
}

/// The packets of a burst have one label, though an answer may come within it.
#[test]
fn live_an_answer_that_comes_within_a_burst_counts_from_the_next_on() {
    let mut bench = Bench::new(ports_first(Effect::Arrival));
    bench.begin(3);
    let word = bench.manager.labels();
    let word = word.word(2, 0);
    word.decide(word.read().0, answer(0, u16::MAX)).unwrap();
    let data = bench.burst(&[tcp(9, 1, 2, TCP_ACK)]);
    assert_eq!(data[1] >> 2, 10);
    bench.settle();
    let data = bench.burst(&[tcp(10, 1, 2, TCP_ACK)]);
    assert_eq!(data[1] >> 2, 46);
}

#[test]
fn the_model_is_asked_what_may_contradict_a_port_and_is_not_told_of_it() {
    let (all, second) = ([(1, 2, 80), (2, 4, 80)], [(2, 4, 0)]);
    for (config, expected) in [
        (ports_first(Effect::Arrival), &second[..]),
        (ports_first(Effect::PacketTime { delay_us: 0 }), &second),
        (without_port(Effect::Arrival), &all),
    ] {
        let mut bench = Bench::new(config);
        bench.begin(3);
        let asked: Vec<_> = (0..bench.ring.waiting())
            .map(|at| {
                let series = bench.ring.get(at).series;
                (series.task, series.k(), series.server_port)
            })
            .collect();
        assert_eq!(asked, expected);
    }
}

#[test]
fn a_flow_whose_port_says_nothing_is_decided_as_ever() {
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 0 }] {
        let mut bench = Bench::new(without_port(effect));
        assert_eq!(bench.begin(3), [0; 4]);
        bench.decide(1, answer(0, SURE - 1));
        if effect == Effect::Arrival {
            assert_eq!(bench.said(), []);
        }
        bench.decide(2, answer(0, SURE));
        bench.burst(&[tcp(9, 1, 2, TCP_ACK)]);
        let label = (0, DecidedBy::Model, 4, false);
        assert_eq!(bench.last(), Some(label));
        assert_eq!(bench.said(), [label]);
        assert_eq!(bench.manager.counters().flows_by_port, 0);
    }
}

/// Nobody knows the server of a flow that began mid-stream.
#[test]
fn a_flow_that_began_midstream_has_no_label_by_its_port() {
    let mut bench = Bench::new(ports_first(Effect::Arrival));
    bench.burst(&[tcp(0, 1, 2, TCP_ACK)]);
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled]);
    assert_eq!(bench.last(), None);
}

/// A SYN that nobody answers has its label, but no packets of a series: it can be evicted as any
/// other.
#[test]
fn a_label_by_port_makes_no_flow_live_longer() {
    let mut config = ports_first(Effect::Arrival);
    config.settings.half_open_timeout_s = 2;
    let mut bench = Bench::new(config);
    bench.begin(0);
    bench.manager.pass(10 * SECOND_US);
    (0..8).for_each(|_| bench.manager.pass(10 * SECOND_US));
    assert_eq!(bench.manager.flows_alive(), 0);
}

#[test]
fn by_packet_time_packets_have_the_ports_label_until_the_contradiction_counts() {
    let mut bench = Bench::new(ports_first(Effect::PacketTime { delay_us: 2 }));
    // Packets at 0 to 7 µs; the second depth is complete at 3 and counts from 5 on.
    bench.begin(7);
    assert_eq!(bench.manager.counters().verdicts.get(Verdict::Labelled), 8);
    assert_eq!(bench.said(), [PORT]);
    bench.decide(2, answer(0, CONTRADICTS));
    let contradiction = (0, DecidedBy::Model, 4, true);
    assert_eq!(bench.said(), [PORT, contradiction]);
    assert_eq!(bench.last(), Some(contradiction));
    let counters = bench.manager.counters();
    let by_class: Vec<u64> = counters.labelled_by_class.iter().map(|it| it.packets).collect();
    assert_eq!(by_class, [3, 5, 0]);
    assert_eq!(counters.verdicts.get(Verdict::Labelled), 8);
}

/// Questions about flows by the walk, answered by `rule` by the class that each has.
fn ruled(
    bench: &mut Bench,
    packets: &[Tcp],
    rule: impl Fn(Option<u16>) -> RuleAnswer,
) -> Vec<Option<u16>> {
    let mut asked = Vec::new();
    let mut data: Vec<u8> = Vec::new();
    let packet = |data: &mut Vec<u8>, it: &Tcp| {
        let (at, bytes) = (data.len(), it.bytes());
        data.extend(&bytes);
        Packet {
            at,
            captured: bytes.len() as u32,
            wire: u32::MAX,
            link: 101,
            time_us: it.time_us,
            rss: None,
            gso: Gso::NONE,
        }
    };
    let packets: Vec<Packet> = packets.iter().map(|it| packet(&mut data, it)).collect();
    let Bench { manager, fates, .. } = bench;
    manager.burst(&mut data, &packets, 0, fates);
    while !manager.rule_questions().is_empty() {
        let classes = manager.rule_questions().iter().map(|it| it.classes[0]);
        let classes: Vec<_> = classes.collect();
        let answers: Vec<_> = classes.iter().map(|&class| rule(class)).collect();
        manager.answer_rules(&answers, &mut data, &packets, 0, fates);
        asked.extend(classes);
    }
    asked
}

fn with_rules(effect: Effect) -> Bench {
    let config = ports_first(effect);
    let memory = RuleMemory::new(config.max_flows).unwrap();
    let mut bench = Bench::new(config);
    bench.manager.change_rules(&mut RulesChange {
        label_tasks: 1,
        has_bounds: false,
        has_behaviours: false,
        is_renumbered: true,
        memory: Some(memory),
        ..RulesChange::default()
    });
    bench
}

#[test]
fn rules_know_the_ports_label_with_the_first_packet_and_the_contradiction() {
    let mut bench = with_rules(Effect::Arrival);
    let silent = |_: Option<u16>| RuleAnswer::default();
    let packets: Vec<Tcp> =
        (0..4).map(|at| tcp(at, 1, 2, if at == 0 { TCP_SYN } else { TCP_ACK })).collect();
    assert_eq!(ruled(&mut bench, &packets, silent), [Some(BY_PORT)]);
    assert_eq!(bench.verdicts(), [Verdict::Labelled; 4]);
    bench.settle();
    assert!(bench.manager.rule_questions().is_empty());
    bench.decide(2, answer(0, CONTRADICTS));
    let [question] = bench.manager.rule_questions() else {
        panic!("the label is another one");
    };
    assert!(question.classes[0] == Some(0) && question.is_label_new);
    bench.manager.answer_rules(&[RuleAnswer::default()], &mut [], &[], 0, &mut Vec::new());
    let again = ruled(&mut bench, &[tcp(9, 1, 2, TCP_ACK)], silent);
    assert_eq!(again, []);
    let by_class = &bench.manager.counters().labelled_by_class;
    assert_eq!((by_class[0].packets, by_class[1].packets), (1, 4));
}

#[test]
fn rules_know_the_port_labels_of_other_tasks_with_the_first_packet() {
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 0 }] {
        let mut config = ports_first(effect);
        config.tasks.insert(0, TaskConfig::lengths(3, 3));
        let memory = RuleMemory::new(config.max_flows).unwrap();
        let (producers, _consumers): (Vec<_>, Vec<_>) = [ring(64), ring(64)].into_iter().unzip();
        let producers = producers.into_iter().map(|ring| vec![ring]).collect();
        let mut bench = Bench {
            manager: Manager::with_rings(config, producers).unwrap(),
            ..Bench::new(super::config())
        };
        let mut change =
            RulesChange { label_tasks: 0b10, memory: Some(memory), ..RulesChange::default() };
        bench.manager.change_rules(&mut change);
        bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
        let by_port = bench.manager.rule_questions()[0].classes[1];
        let Bench { manager, fates, .. } = &mut bench;
        let mut data = [0; 64];
        let packet = Packet {
            at: 0,
            captured: 40,
            wire: u32::MAX,
            link: 101,
            time_us: 0,
            rss: None,
            gso: Gso::NONE,
        };
        manager.answer_rules(&[RuleAnswer::default()], &mut data, &[packet], 0, fates);
        match effect {
            Effect::Arrival => assert_eq!(by_port, Some(BY_PORT)),
            // The label word behind the first task's.
            Effect::PacketTime { .. } => assert_eq!((by_port, fates[0].depths), (None, 0b10)),
        }
    }
}

#[test]
fn a_rule_that_gives_a_label_or_asks_nothing_comes_before_the_port() {
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 0 }] {
        for (rule, expected) in [
            (
                RuleAnswer { class: Some(0), ..RuleAnswer::default() },
                Some((0, DecidedBy::Rule, 0, false)),
            ),
            (RuleAnswer { unasked: u8::MAX, ..RuleAnswer::default() }, None),
            (RuleAnswer::default(), Some(PORT)),
        ] {
            let mut bench = with_rules(effect);
            ruled(&mut bench, &[tcp(0, 1, 2, TCP_SYN)], |_| rule);
            let labelled = bench.verdicts() == [Verdict::Labelled];
            assert_eq!(labelled, expected.is_some());
            assert_eq!(bench.last(), expected);
            assert_eq!(bench.said(), Vec::from_iter(expected));
            let counters = bench.manager.counters();
            let labelled: u64 = counters.labelled_by_class.iter().map(|it| it.packets).sum();
            assert_eq!(labelled, u64::from(expected.is_some()));
            assert_eq!(labelled, counters.verdicts.get(Verdict::Labelled));
        }
    }
}

/// The task behind another one of three packets, its labels set DSCPs; and the ends of their rings.
fn behind_another(mut config: Config) -> (Bench, Vec<Consumer<Slot>>) {
    config.tasks.insert(0, TaskConfig::lengths(3, 3));
    config.settings.actions = Actions::of_tasks([[None; 3], [Some(46), Some(10), None]]);
    let (producers, consumers): (Vec<_>, Vec<_>) = [ring(64), ring(64)].into_iter().unzip();
    let producers = producers.into_iter().map(|ring| vec![ring]).collect();
    let manager = Manager::with_rings(config, producers).unwrap();
    (Bench { manager, ..Bench::new(super::config()) }, consumers)
}

#[test]
fn a_task_that_comes_after_another_is_asked_at_its_depths_alone() {
    let mut config = ports_first(Effect::Arrival);
    config.tasks[0].asked.after = [TaskId::FIRST].into_iter().collect();
    let (mut bench, _consumers) = behind_another(config);
    bench.begin(4);
    let depths = bench.manager.counters().depths.iter();
    // The second one is the ports'.
    assert_eq!(depths.map(|it| it.series_emitted).collect::<Vec<_>>(), [1, 0, 1, 1]);
}

#[test]
fn ports_name_flows_for_other_tasks_too() {
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 0 }] {
        let (mut bench, _consumers) = behind_another(ports_first(effect));
        let dscps = bench.begin(3);
        // The words of the second task: 1 its port's, 2 and 3 its depths'.
        bench.decide(3, answer(0, CONTRADICTS));
        if effect == Effect::Arrival {
            assert_eq!(dscps, [10; 4]);
            let data = bench.burst(&[tcp(9, 1, 2, TCP_ACK)]);
            assert_eq!(data[1] >> 2, 46);
        }
        let contradiction = (0, DecidedBy::Model, 4, true);
        if effect == Effect::Arrival {
            assert_eq!(bench.said(), [PORT, contradiction]);
        }
        bench.manager.drain();
        bench.decide(0, answer(UNKNOWN, SURE));
        (0..3).for_each(|_| bench.settle());
        let flow = bench.flows().pop().expect("a flow");
        assert_eq!(flow.decisions[1].map(parts), Some(contradiction));
        let counters = &bench.manager.counters().depths;
        assert_eq!((counters[0].flows_contradicting, counters[1].flows_contradicting), (0, 1));
    }
}

proptest! {
    /// Live and by packet time, and in whatever order answers come, a flow has the same label at
    /// its end, and packets add up.
    #[test]
    fn live_and_replay_agree(
        packets in 1..8usize,
        is_named in any::<bool>(),
        answers in prop::array::uniform2((
            0..3u16,
            prop::sample::select(vec![0, SURE, CONTRADICTS, u16::MAX]),
        )),
        late in prop::array::uniform2(any::<bool>()),
        reports in any::<bool>(),
        rules in any::<bool>(),
    ) {
        let effects = [Effect::Arrival, Effect::PacketTime { delay_us: 0 }];
        let ends = effects.map(|effect| {
            let mut config = match is_named {
                true => ports_first(effect),
                false => without_port(effect),
            };
            config.settings.active_timeout_s = u32::from(reports);
            let memory = RuleMemory::new(config.max_flows).unwrap();
            let mut bench = Bench::new(config);
            if rules {
                bench.manager.change_rules(&mut RulesChange {
        label_tasks: 1,
                    memory: Some(memory),
                    ..RulesChange::default()
                });
            }
            let mut answered = [false; 2];
            for packet in 0..packets {
                let flags = if packet == 0 { TCP_SYN } else { TCP_ACK };
                let packet = tcp(packet as i64 * SECOND_US, 1, 2, flags);
                ruled(&mut bench, &[packet], |_| RuleAnswer::default());
                for at in 0..bench.ring.waiting() {
                    let depth = bench.ring.get(at).series.task;
                    let number = usize::from(depth) - 1;
                    if !answered[number] && !late[number] {
                        bench.decide(depth, answer(answers[number].0, answers[number].1));
                        answered[number] = true;
                    }
                }
                bench.settle();
            }
            for at in 0..bench.ring.waiting() {
                let depth = bench.ring.get(at).series.task;
                let number = usize::from(depth) - 1;
                if !answered[number] {
                    bench.decide(depth, answer(answers[number].0, answers[number].1));
                }
            }
            let last = bench.last();
            assert!(bench.manager.is_settled());
            let counters = bench.manager.counters();
            let labelled: u64 = counters.labelled_by_class.iter().map(|it| it.packets).sum();
            assert_eq!(labelled, counters.verdicts.get(Verdict::Labelled));
            assert!(bench.said().len() <= 1 + usize::from(is_named));
            last
        });
        prop_assert_eq!(ends[0], ends[1]);
        // The rule itself.
        if is_named {
            let elements = [2, 4].iter().filter(|&&k| packets >= k).count();
            let (class, confidence) = answers[1];
            let contradicts = elements == 2 && class != BY_PORT && confidence >= CONTRADICTS;
            let expected = match contradicts {
                true => (class, DecidedBy::Model, 4, true),
                false => PORT,
            };
            prop_assert_eq!(ends[0], Some(expected));
        }
    }
}
