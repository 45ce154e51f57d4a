//! Rules: the walk's questions, and what answers do.

use super::*;
use crate::rules::{RuleAnswer, RuleMemory, RulesChange, renewed_max};

fn live() -> Config {
    Config { effect: Effect::Arrival, record_series: crate::SeriesShare::NONE, ..config() }
}

/// A bench whose manager has rules.
fn with_rules(config: Config, has_bounds: bool) -> Bench {
    let mut bench = Bench::new(config);
    bench.begin_rules(has_bounds);
    bench
}

impl<P: Part> Bench<P> {
    pub(super) fn begin_rules(&mut self, has_bounds: bool) {
        let flows = self.manager.max_flows();
        self.manager.change_rules(&mut RulesChange {
            label_tasks: 1,
            has_bounds,
            has_behaviours: true,
            is_renumbered: true,
            memory: Some(RuleMemory::new(flows).unwrap()),
            ..RulesChange::default()
        });
    }
}

fn change(bench: &mut Bench) {
    bench.manager.change_rules(&mut RulesChange::default());
}

pub(super) fn dscp(rule: u32, dscp: u8) -> RuleAnswer {
    RuleAnswer { rule: Some(rule), action: Action::of_dscp(Some(dscp)), ..RuleAnswer::default() }
}

fn drop(rule: u32) -> RuleAnswer {
    RuleAnswer {
        rule: Some(rule),
        action: Action { drop: true, ..Action::default() },
        unasked: u8::MAX,
        ..RuleAnswer::default()
    }
}

impl<P: Part> Bench<P> {
    /// Walks a burst whose questions are answered by `rules`, by the flow's low host; returns the
    /// DSCPs as packets leave.
    pub(super) fn ruled(
        &mut self,
        packets: &[Tcp],
        rules: impl Fn(&crate::RuleQuestion) -> RuleAnswer,
    ) -> Vec<u8> {
        let (mut data, burst) = frames(packets);
        self.manager.burst(&mut data, &burst, 0, &mut self.fates);
        while !self.manager.rule_questions().is_empty() {
            let answers: Vec<_> = self.manager.rule_questions().iter().map(&rules).collect();
            self.manager.answer_rules(&answers, &mut data, &burst, 0, &mut self.fates);
        }
        let dscp = |packet: &Packet| data[packet.at + 1] >> 2;
        burst.iter().map(dscp).collect()
    }

    fn count_asked(&mut self, packets: &[Tcp], rule: RuleAnswer) -> usize {
        let asked = std::cell::Cell::new(0);
        self.ruled(packets, |_| {
            asked.set(asked.get() + 1);
            rule
        });
        asked.get()
    }

    fn balance(&self, packets: u64) {
        assert_eq!(self.manager.counters().verdicts.total(), packets);
    }
}

fn frames(packets: &[Tcp]) -> (Vec<u8>, Vec<Packet>) {
    let mut data = Vec::new();
    let mut burst = Vec::new();
    for packet in packets {
        let bytes = packet.bytes();
        burst.push(Packet {
            at: data.len(),
            captured: bytes.len() as u32,
            wire: u32::MAX,
            link: 101,
            time_us: packet.time_us,
            rss: None,
            gso: Gso::NONE,
        });
        data.extend(bytes);
    }
    (data, burst)
}

#[test]
fn a_flow_is_asked_about_once_with_all_its_packets_of_the_burst() {
    let mut bench = with_rules(live(), false);
    let packets = [tcp(0, 1, 2, TCP_SYN), tcp(1, 3, 4, TCP_SYN), tcp(2, 2, 1, TCP_SYN | TCP_ACK)];
    let left = bench.ruled(&packets, |question| {
        assert!(question.classes[0].is_none() && question.before.is_none());
        dscp(7, if question.packets == 2 { 10 } else { 20 })
    });
    assert_eq!(left, [10, 20, 10]);
    // It has its action by now.
    assert_eq!(bench.count_asked(&[tcp(3, 1, 2, TCP_ACK)], drop(1)), 0);
    assert_eq!(bench.verdicts(), [Verdict::Unlabelled]);
    bench.balance(4);
    let flows = bench.finish();
    assert_eq!(flows[0].rule, Some(7));
}

#[test]
fn what_the_rule_leaves_out_is_as_the_label_says() {
    let mut bench = with_rules(live(), false);
    let none = RuleAnswer::default();
    let packets = [tcp(0, 1, 2, TCP_SYN), tcp(1, 2, 1, TCP_ACK), tcp(2, 1, 2, TCP_ACK)];
    assert_eq!(bench.ruled(&packets, |_| none), [0; 3]);
    bench.answer(CLASS_0);
    let next = [tcp(3, 1, 2, TCP_ACK)];
    let left = bench.ruled(&next, |question| {
        assert_eq!(question.classes[0], Some(0));
        none
    });
    assert_eq!((left, bench.verdicts()), (vec![46], vec![Verdict::Labelled]));
    assert_eq!(bench.ruled(&next, |_| unreachable!()), [46]);
    change(&mut bench);
    assert_eq!(bench.ruled(&next, |_| dscp(0, 12)), [12], "the rule's goes first");
    assert_eq!(bench.manager.counters().labelled_by_class[0].packets, 3);
}

#[test]
fn dropped_packets_are_counted_as_such_only() {
    let mut bench = with_rules(live(), false);
    bench.ruled(&[tcp(0, 1, 2, TCP_SYN); 3], |_| drop(3));
    assert_eq!(bench.verdicts(), [Verdict::Dropped; 3]);
    bench.ruled(&[tcp(1, 1, 2, TCP_SYN)], |_| unreachable!());
    assert_eq!(bench.verdicts(), [Verdict::Dropped]);
    assert_eq!(bench.ring.waiting(), 0, "no series");
    // A flow that has its label.
    let none = |_: &_| RuleAnswer::default();
    bench.ruled(&[tcp(0, 3, 4, TCP_ACK); 3], none);
    bench.answer(CLASS_0);
    bench.ruled(&[tcp(1, 3, 4, TCP_ACK); 2], none);
    change(&mut bench);
    bench.ruled(&[tcp(1, 3, 4, TCP_ACK)], |_| drop(3));
    assert_eq!(bench.verdicts(), [Verdict::Dropped]);
    let counters = bench.manager.counters();
    assert_eq!(counters.labelled_by_class[0].packets, 2);
    assert_eq!(counters.labelled_bytes, 80);
    assert_eq!(counters.verdicts.get(Verdict::Dropped), 5);
    bench.balance(10);
}

#[test]
fn a_rule_that_asks_nothing_keeps_the_first_packets_from_a_series() {
    let mut config = live();
    config.tasks[0].depths[0].k = 1;
    let mut bench = with_rules(config, false);
    let nothing = RuleAnswer { rule: Some(0), unasked: u8::MAX, ..RuleAnswer::default() };
    bench.ruled(&[tcp(0, 1, 2, TCP_SYN), tcp(0, 3, 4, TCP_SYN)], |question| {
        match question.flow_id {
            0 => nothing,
            _ => RuleAnswer::default(),
        }
    });
    bench.ruled(&[tcp(1, 1, 2, TCP_ACK)], |_| unreachable!());
    assert_eq!(bench.ring.waiting(), 1);
    bench.finish();
    let counters = bench.manager.counters();
    assert_eq!((counters.flows_unasked, counters.flows_short), (1, 0));
    assert_eq!(counters.series_emitted(), 1);
}

#[test]
fn a_rule_gives_the_label_at_once() {
    let one = config().tasks;
    let depths = vec![task(&[3, 4, 5], 0)];
    let effects = [Effect::Arrival, Effect::PacketTime { delay_us: 500 }];
    for (effect, tasks) in effects.into_iter().flat_map(|it| [(it, &one), (it, &depths)]) {
        let config = Config {
            effect,
            tasks: tasks.clone(),
            record_series: crate::SeriesShare::NONE,
            ..config()
        };
        let mut bench = with_rules(config, false);
        let labelled = RuleAnswer { rule: Some(9), class: Some(1), ..RuleAnswer::default() };
        bench.ruled(&[tcp(0, 1, 2, TCP_SYN), tcp(1, 2, 1, TCP_ACK)], |_| labelled);
        assert_eq!(bench.verdicts(), [Verdict::Labelled; 2]);
        for time_us in 2..8 {
            bench.ruled(&[tcp(time_us, 1, 2, TCP_ACK)], |_| unreachable!());
            assert_eq!(bench.verdicts(), [Verdict::Labelled]);
        }
        bench.settle();
        assert_eq!((bench.labels(), bench.ring.waiting()), (1, 0));
        let flow = bench.finish().remove(0);
        let decision = flow.decisions[0].unwrap();
        assert_eq!(
            (decision.class, decision.decided_by, decision.depth),
            (1, crate::record::DecidedBy::Rule, 0)
        );
        let counters = bench.manager.counters();
        assert_eq!((counters.flows_by_rule, counters.labels_given()[1]), (1, 1));
        assert_eq!(counters.labelled_by_class[1].packets, 8);
        assert_eq!(counters.depths[0].flows_decided, 0);
        assert_eq!(counters.series_emitted(), 0);
    }
}

#[test]
fn after_a_change_flows_take_turns_and_keep_their_actions_until_then() {
    let mut config = live();
    (config.max_flows, config.buckets) = (128, 16);
    let mut bench = with_rules(config, false);
    let packets: Vec<Tcp> = (0..100).map(|i| tcp(0, i, 200, TCP_ACK)).collect();
    assert_eq!(bench.count_asked(&packets, dscp(0, 10)), 100, "all have begun");
    change(&mut bench);
    let mut renewed = 0;
    for _ in 0..100_usize.div_ceil(renewed_max(100)) {
        let left = bench.ruled(&packets, |question| {
            assert_eq!(question.before, Some(0));
            dscp(0, 20)
        });
        let now = left.iter().filter(|dscp| **dscp == 20).count();
        assert!(now <= renewed + renewed_max(100), "{now}");
        assert!(left.iter().all(|dscp| [10, 20].contains(dscp)));
        renewed = now;
    }
    assert_eq!(renewed, 100);
}

#[test]
fn a_flow_that_was_silent_is_looked_up_again_once_stamps_have_come_round() {
    let mut bench = with_rules(live(), false);
    bench.ruled(&[tcp(0, 1, 2, TCP_ACK)], |_| dscp(0, 10));
    bench.ruled(&[tcp(10, 3, 4, TCP_ACK)], |_| dscp(0, 10));
    let hour = 3600 * SECOND_US;
    assert_eq!(
        bench.count_asked(&[tcp(11, 1, 2, TCP_ACK)], dscp(0, 10)),
        0,
        "without changes, a flow may be silent for long"
    );
    // As many changes as there are stamps.
    for change_at in 0..126 {
        bench.ruled(&[tcp(20 + change_at, 5, 6, TCP_ACK)], |_| dscp(0, 10));
        change(&mut bench);
    }
    assert_eq!(bench.ruled(&[tcp(hour, 3, 4, TCP_ACK)], |_| dscp(0, 20)), [20]);
}

#[test]
fn a_flow_that_waits_for_its_turn_is_not_taken_for_known_when_stamps_come_round() {
    let mut config = live();
    (config.max_flows, config.buckets) = (128, 16);
    let mut bench = with_rules(config, false);
    let packets: Vec<Tcp> = (0..40).map(|i| tcp(0, i, 200, TCP_ACK)).collect();
    bench.count_asked(&packets, dscp(0, 10));
    change(&mut bench);
    bench.count_asked(&packets, dscp(0, 20));
    for _ in 0..125 {
        change(&mut bench);
    }
    // Flows that were answered then have the oldest possible stamp; the others have none.
    let left = renewed_max(40)..40;
    let asked = (1..=40).map(|time_us| {
        let packets: Vec<Tcp> = left.clone().map(|i| tcp(time_us, i as u8, 200, TCP_ACK)).collect();
        bench.count_asked(&packets, dscp(0, 30))
    });
    assert_eq!(asked.sum::<usize>(), left.len());
}

#[test]
fn bounds_are_looked_at_as_packets_come_and_go_on_over_reports() {
    let mut config = live();
    config.settings.active_timeout_s = 10;
    let mut bench = with_rules(config, true);
    let limited = |question: &crate::RuleQuestion| match question.packets > 100 {
        true => dscp(1, 8),
        false => RuleAnswer::default(),
    };
    let mut first = None;
    for i in 0..400 {
        // A report comes between.
        let packet = tcp(i * SECOND_US / 10, 1, 2, TCP_ACK);
        if bench.ruled(&[packet], limited)[0] == 8 {
            first.get_or_insert(i);
        } else {
            assert_eq!(first, None, "packet {i}");
        }
        bench.answer(Label::Unlabelled);
        bench.settle();
    }
    assert!((100..132).contains(&first.unwrap()), "{first:?}");
}

#[test]
fn questions_that_nobody_answers_are_asked_again() {
    let mut bench = with_rules(live(), false);
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    assert_eq!(bench.manager.rule_questions().len(), 1);
    bench.burst(&[tcp(1, 1, 2, TCP_ACK)]);
    assert_eq!(bench.manager.rule_questions().len(), 1);
    assert_eq!(bench.ruled(&[tcp(2, 1, 2, TCP_ACK)], |_| dscp(0, 10)), [10]);
}

#[test]
fn a_label_that_comes_between_packets_raises_a_question() {
    let mut bench = with_rules(live(), false);
    bench.ruled(&[tcp(0, 1, 2, TCP_ACK); 3], |_| RuleAnswer::default());
    bench.answer(CLASS_0);
    bench.settle();
    let question = bench.manager.rule_questions()[0];
    assert_eq!((question.classes[0], question.packets), (Some(0), 3));
    bench.manager.answer_rules(&[dscp(4, 12)], &mut [], &[], 0, &mut Vec::new());
    let next = tcp(1, 1, 2, TCP_ACK);
    assert_eq!(bench.ruled(&[next], |_| unreachable!()), [12]);
}

/// The first question is raised by a label, without a frame.
#[test]
fn a_flow_from_before_the_rules_has_its_dscp_and_no_known_vlan() {
    let mut bench = Bench::new(live());
    let mut bytes = tcp(0, 1, 2, TCP_ACK).bytes();
    bytes[1] = 0x28;
    bench.frames(&[(0, bytes), (1, tcp(1, 1, 2, TCP_ACK).bytes()), (2, tcp(2, 1, 2, 0).bytes())]);
    bench.begin_rules(false);
    bench.ruled(&[tcp(3, 3, 4, TCP_SYN)], |_| RuleAnswer::default());
    bench.answer(CLASS_0);
    bench.settle();
    let questions = bench.manager.rule_questions();
    let seen: Vec<_> = questions.iter().map(|it| (it.packets, it.vlan, it.dscp)).collect();
    assert_eq!(seen, [(3, crate::VLAN_UNKNOWN, 10)]);
    bench.ruled(&[tcp(4, 1, 2, TCP_ACK)], |question| {
        assert_eq!((question.vlan, question.dscp), (0, 10), "of its frame, and of the first");
        RuleAnswer::default()
    });
}

#[test]
fn records_of_a_replay_have_one_order_whatever_the_bursts() {
    let mut config = config();
    config.tasks[0].depths[0].k = 1;
    let packets: Vec<Tcp> = (0..60)
        .flat_map(|i| {
            let at = i64::from(i) * 10;
            let flags = if i % 3 == 0 { TCP_RST } else { TCP_ACK };
            [tcp(at, i, 100, TCP_SYN), tcp(at + 5, 100, i, flags)]
        })
        .collect();
    let rules = |question: &crate::RuleQuestion| match question.flow_id % 4 {
        0 => RuleAnswer { class: Some(1), ..RuleAnswer::default() },
        1 => drop(1),
        2 => dscp(2, 9),
        _ => RuleAnswer::default(),
    };
    let run = |size: usize| {
        let mut bench = with_rules(config.clone(), true);
        let mut fates = Vec::new();
        for packets in packets.chunks(size) {
            bench.ruled(packets, rules);
            let seen = |fate: &Fate| (fate.verdict, fate.label_of.is_some(), fate.by_rule());
            fates.extend(bench.fates.iter().map(seen));
            bench.answer(CLASS_0);
            bench.settle();
        }
        bench.finish();
        (fates, format!("{:?}", bench.records))
    };
    let (fates, records) = run(1);
    for size in [2, 7, 60] {
        let (others, said) = run(size);
        assert_eq!(fates, others, "{size}");
        assert_eq!(records, said, "{size}");
    }
}

#[test]
fn packets_that_were_counted_elsewhere_may_go_beyond_a_bound() {
    for has_bounds in [false, true] {
        let config = Config { expects_counts: true, ..live() };
        let mut bench = with_rules(config, has_bounds);
        let opening = [tcp(0, 1, 2, TCP_SYN), tcp(1, 2, 1, TCP_SYN | TCP_ACK)];
        bench.ruled(&opening, |_| dscp(7, 10));
        let counted = super::counted::counted(1000, [5, 5]);
        assert!(bench.manager.count(&counted));
        let questions = bench.manager.rule_questions();
        assert_eq!(questions.len(), usize::from(has_bounds));
        assert!(questions.iter().all(|it| it.packets == 12));
    }
}
