//! Held against comparing each filter with each.

use std::net::Ipv4Addr;

use super::*;
use crate::hours::{DAY_MINUTES, Hours, LocalTime};
use crate::rule::{Condition, RuleAction};
use crate::{Facts, Filter, Gates, Key, Label, Mark, Moment, Names, Policy, Ports, Rank, Tuple};

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn prefix(&mut self) -> (u32, u8) {
        use crate::Address as _;
        let length = [0, 1, 2, 8, 9, 32][self.below(6) as usize];
        let address = (self.below(4) as u32) << 30 | (self.below(4) as u32) << 23;
        (address.prefix(length), length)
    }

    fn ports(&mut self) -> Ports {
        match self.below(4) {
            0 => Ports::one(80),
            1 => Ports { first: 0, last: 1023 },
            _ => Ports::ANY,
        }
    }
}

fn marked(bits: u32) -> RuleAction {
    RuleAction { mark: Some(Mark { bits, mask: u32::MAX }), ..RuleAction::default() }
}

/// Rules that often meet.
fn random(rules: u32, seed: u64) -> RuleSet {
    let dice = &mut Dice(seed);
    let mut set = RuleSet::default();
    for _ in 0..rules {
        let mut condition = Condition::default();
        match dice.below(13) {
            12 => condition.hosts.names = vec!["laptop".to_owned()],
            8 => condition.vlans = vec![0..=0, 20..=29],
            9 => condition.dscps = 1 << 46 | 1,
            10 => {
                let (days, from) = (1 << dice.below(7), 60 * dice.below(24) as u16);
                condition.hours = vec![Hours { days, from, to: DAY_MINUTES }];
            }
            11 => condition.profile = Some("kids".to_owned()),
            0 => condition.labels = vec!["DNS".to_owned()],
            1 => condition.over.bytes = Some(1000),
            2 => condition.over.bits_per_s = Some(999),
            3 => condition.behaviours = 1 + dice.below(31) as u8,
            _ => {}
        }
        let mut action = marked(dice.below(3) as u32 + 1);
        if dice.below(10) == 0 {
            action.sample = Some(30_000);
        }
        let is_conditional = !condition.is_none() || action.sample.is_some();
        let (rule, rank) = set.push(dice.below(3) as u32, condition, action, (0, 1)).unwrap();
        for _ in 0..=dice.below(2) {
            let ((source, source_length), (destination, destination_length)) =
                (dice.prefix(), dice.prefix());
            set.v4.push(Filter {
                source,
                destination,
                source_length,
                destination_length,
                protocol: [None, Some(6), Some(17)][dice.below(3) as usize],
                in_port: dice.below(2) as u8,
                source_ports: Ports::ANY,
                destination_ports: dice.ports(),
                rule,
                is_conditional,
                rank,
            });
        }
    }
    set
}

/// Whether a filter of another rule that comes first takes all flows of this one.
fn is_idle(set: &RuleSet, filter: &Filter<u32>) -> bool {
    set.v4.iter().any(|other| {
        other.rule != filter.rule
            && other.rank < filter.rank
            && takes_all_of(set, other.rule, filter.rule)
            && other.covers(filter)
    })
}

#[test]
fn check_finds_what_comparing_each_with_each_finds() {
    for seed in 0..60 {
        let set = random(30 + seed as u32 * 3, seed);
        let report = check(&set, 10_000);
        let mut unreachable = Vec::new();
        let mut idle_filters = 0;
        for rule in 0..set.rules.len() as RuleNumber {
            let own = || set.v4.iter().filter(|filter| filter.rule == rule);
            match own().all(|filter| is_idle(&set, filter)) {
                true => unreachable.push(rule),
                false => idle_filters += own().filter(|filter| is_idle(&set, filter)).count(),
            }
        }
        let found: Vec<RuleNumber> = report.unreachable.iter().map(|found| found.rule).collect();
        assert_eq!((found, report.idle_filters), (unreachable, idle_filters), "{seed}");
        let (mut crossings, mut exceptions) = (0, 0);
        let awake: Vec<&Filter<u32>> =
            set.v4.iter().filter(|filter| !is_idle(&set, filter)).collect();
        for (place, one) in awake.iter().enumerate() {
            for two in &awake[..place] {
                if one.rule != two.rule
                    && !have_one_action(&set, one.rule, two.rule)
                    && one.overlaps(two)
                {
                    match one.covers(two) || two.covers(one) {
                        true => exceptions += 1,
                        false => crossings += 1,
                    }
                }
            }
        }
        assert_eq!((report.crossings, report.exceptions), (crossings, exceptions), "{seed}");
        assert_eq!((report.not_compared, report.not_overlapped), (0, 0));
    }
}

#[test]
fn causes_are_told_apart() {
    let mut set = RuleSet::default();
    let mut add = |condition: Condition, action: RuleAction, length: u8| {
        let is_conditional = !condition.is_none() || action.sample.is_some();
        let (rule, rank) = set.push(0, condition, action, (0, 1)).unwrap();
        set.v4.push(Filter {
            source: 0,
            destination: 0,
            source_length: length,
            destination_length: 0,
            protocol: None,
            in_port: 0,
            source_ports: Ports::ANY,
            destination_ports: Ports::ANY,
            rule,
            is_conditional,
            rank,
        });
    };
    let labelled = || Condition { labels: vec!["DNS".to_owned()], ..Condition::default() };
    let sampled = RuleAction { sample: Some(1), ..marked(9) };
    add(Condition::default(), sampled, 8);
    add(labelled(), marked(1), 8);
    add(labelled(), marked(1), 8);
    add(labelled(), marked(2), 8);
    add(Condition::default(), marked(3), 8);
    add(Condition::default(), marked(3), 8);
    add(Condition::default(), marked(4), 8);
    add(labelled(), marked(4), 9);
    let _ = set.push(0, Condition::default(), marked(1), (0, 1)).unwrap();
    let found: Vec<_> =
        check(&set, 99).unreachable.into_iter().map(|it| (it.rule, it.by, it.cause)).collect();
    assert_eq!(
        found,
        [
            (2, Some(1), Cause::Duplicate),
            (3, Some(1), Cause::Contradiction),
            (5, Some(4), Cause::Duplicate),
            (6, Some(4), Cause::Contradiction),
            (7, Some(1), Cause::Shadowed),
            (8, None, Cause::Empty),
        ]
    );
}

#[test]
fn a_large_hostile_set_is_left_in_time() {
    // All of one source and destination, with ports that never cover each other.
    let mut set = RuleSet::default();
    for number in 0..10_000_u32 {
        let (rule, rank) = set.push(0, Condition::default(), marked(number + 1), (0, 1)).unwrap();
        set.v4.push(Filter {
            source: 0,
            destination: 0,
            source_length: 0,
            destination_length: 0,
            protocol: None,
            in_port: 0,
            source_ports: Ports::one(number as u16),
            destination_ports: Ports::ANY,
            rule,
            is_conditional: false,
            rank: Rank::new(0, rule),
        });
        assert_eq!(rank, Rank::new(0, rule));
    }
    let report = check(&set, 10);
    assert_eq!(report.unreachable, []);
    assert!(report.not_compared > 0 && report.not_overlapped > 0);
}

#[test]
fn explain_agrees_with_the_data_path() {
    let labels = ["DNS", "TLS"].map(|name| Label {
        name: name.to_owned(),
        taxonomy: String::new(),
        target: String::new(),
    });
    let names = Names { labels: vec![labels.clone().into()], ..Names::default() };
    let dice = &mut Dice(5);
    for seed in 0..20 {
        let set = random(60, seed);
        let policy = Policy::new(&set, &names).unwrap();
        for _ in 0..200 {
            let key = Key {
                source: dice.prefix().0,
                destination: dice.prefix().0,
                source_port: 4000,
                destination_port: [80, 443, 8080][dice.below(3) as usize],
                protocol: [6, 17][dice.below(2) as usize],
                in_port: dice.below(3) as u8,
            };
            let class = [None, Some(0), Some(1)][dice.below(3) as usize];
            let facts = Facts {
                classes: std::array::from_fn(|task| class.filter(|_| task == 0)),
                behaviour: dice.below(5) as u8,
                bytes: dice.below(2001),
                packets: 1,
                age_us: dice.below(20_000_000),
                // In no share, or in each.
                sample: [u16::MAX, 0][dice.below(2) as usize],
                vlan: [0, 20, 30][dice.below(3) as usize],
                dscp: [0, 34, 46][dice.below(3) as usize],
            };
            let moment = Moment {
                time: LocalTime { day: dice.below(7) as u8, minute: dice.below(1440) as u16 },
                profiles: (0..dice.below(2)).map(|_| "kids".to_owned()).collect(),
                hosts: [("laptop".to_owned(), vec![Ipv4Addr::from_bits(key.source).into()])]
                    .into_iter()
                    .take(dice.below(2) as usize)
                    .collect(),
            };
            let tuple = Tuple::V4(key);
            let label: Vec<_> =
                class.map(|class| labels[usize::from(class)].clone()).into_iter().collect();
            let explanation = explain(&set, &tuple, &label, &facts, &moment);
            let mut expected = explanation.winner();
            if facts.sample == 0 {
                let first = explanation
                    .matches
                    .iter()
                    .find(|found| matches!(found.verdict, Verdict::Share(_) | Verdict::Wins));
                expected = first.map(|found| found.rule);
            }
            let mut decided = Vec::new();
            let gates = Gates::new(&set.conditions, &moment);
            policy.decide(&[crate::Ask { tuple, facts }], &gates, &mut decided);
            assert_eq!(decided, [expected]);
        }
    }
}
