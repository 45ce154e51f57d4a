//! Series that are answered at once: the packet that completes one carries its label.

use super::rules::dscp;
use super::*;
use crate::RuleQuestion;
use crate::ids::TaskId;

const DEPTHS: [usize; 3] = [2, 4, 6];
const SURE: u16 = 30_000;

/// Answers by the series itself, so that any order of series gives the same answers.
struct ByContent;

impl Part for ByContent {
    fn answer(&mut self, asked: &Slot, labels: &dyn cring::Labels, _: Option<Label>) -> Label {
        let word = labels.word(asked.series.task, asked.flow.index);
        assert_eq!(word.read(), (asked.flow.generation, Label::Pending));
        answer(asked.series.signed_lengths(), asked.series.task)
    }
}

fn answer(lengths: impl Iterator<Item = i32>, task: u8) -> Label {
    let sum = lengths.fold(i32::from(task), |sum, length| sum.wrapping_mul(31) ^ length);
    let confidence = sum.unsigned_abs().wrapping_mul(2_654_435_761) >> 16;
    Label::Class {
        class: (sum.unsigned_abs() % 2) as u16,
        confidence: confidence as u16,
        source: Source::Model,
        model: 0,
    }
}

fn bench(config: Config) -> Bench<ByContent> {
    let rings = config.tasks.iter().map(|_| Vec::new()).collect();
    Bench {
        manager: Manager::with_parts(config, rings, ByContent).unwrap(),
        ring: ring(2).1,
        records: Vec::new(),
        fates: Vec::new(),
    }
}

fn live() -> Config {
    let mut config = Config { effect: Effect::Arrival, ..config() };
    config.settings.actions = Actions::of_dscp(&[Some(46), Some(46), None]);
    config
}

fn one_flow() -> Vec<Tcp> {
    (0..6).map(|at| tcp(at, 1, 2, TCP_ACK)).collect()
}

#[test]
fn the_packet_that_completes_a_series_carries_its_label() {
    for effect in [Effect::Arrival, Effect::PacketTime { delay_us: 0 }] {
        let mut bench = bench(Config { effect, ..live() });
        let left = bench.burst(&one_flow());
        let (before, behind) = ([Verdict::Unlabelled; 2], [Verdict::Labelled; 4]);
        assert_eq!(bench.verdicts(), [&before[..], &behind[..]].concat());
        if effect == Effect::Arrival {
            let dscp: Vec<u8> = left.chunks(40).map(|frame| frame[1] >> 2).collect();
            assert_eq!(dscp, [0, 0, 46, 46, 46, 46]);
        }
        let flows = bench.finish();
        assert_eq!((bench.labels(), flows.len()), (1, 1));
        let counters = bench.manager.counters();
        let class = usize::from(flows[0].decisions[0].unwrap().class);
        let labelled = counters.labelled_by_class[class];
        assert_eq!((labelled.packets, labelled.bytes), (4, 160), "{effect:?}");
        assert_eq!(counters.labelled_bytes, 160);
    }
}

#[test]
fn with_a_delay_it_counts_later() {
    let effect = Effect::PacketTime { delay_us: 2 };
    let mut bench = bench(Config { effect, ..live() });
    bench.burst(&one_flow());
    let labelled = bench.verdicts().iter().position(|it| *it == Verdict::Labelled);
    assert_eq!(labelled, Some(4));
}

/// All in the burst in which the flow begins, so that its first packets wait for the first answer.
#[test]
fn a_rule_by_label_applies_to_the_packet_that_completes_the_series() {
    let mut bench = bench(live());
    bench.begin_rules(false);
    let rules =
        |question: &RuleQuestion| dscp(1, 10 + 10 * u8::from(question.classes[0].is_some()));
    assert_eq!(bench.ruled(&one_flow(), rules), [10, 10, 20, 20, 20, 20]);
    let later = [tcp(9, 1, 2, TCP_ACK)];
    assert_eq!(bench.ruled(&later, |_| panic!("its rule is known")), [20]);
    let counters = bench.manager.counters();
    assert_eq!(counters.verdicts.total(), 7);
    assert_eq!(counters.verdicts.get(Verdict::Labelled), 5);
    assert_eq!(counters.labelled_bytes, 200);
}

#[test]
fn the_same_where_its_rule_was_known_before() {
    let mut bench = bench(live());
    bench.begin_rules(false);
    let rules =
        |question: &RuleQuestion| dscp(1, 10 + 10 * u8::from(question.classes[0].is_some()));
    let packets = one_flow();
    assert_eq!(bench.ruled(&packets[..1], rules), [10]);
    assert_eq!(bench.ruled(&packets[1..], rules), [10, 20, 20, 20, 20]);
    assert_eq!(bench.manager.counters().verdicts.get(Verdict::Labelled), 4);
}

#[test]
fn another_tasks_action_applies_to_the_packet_that_completes_its_series() {
    let mut config = live();
    config.tasks = vec![task(&[2], 0), task(&[4], 0)];
    let [of_first, of_second] = [[Some(10); 2], [Some(20); 2]].map(|dscp| dscp.to_vec());
    config.settings.actions = Actions::of_tasks(vec![of_first, of_second]);
    let mut bench = bench(config);
    let left = bench.burst(&one_flow());
    let dscp: Vec<u8> = left.chunks(40).map(|frame| frame[1] >> 2).collect();
    assert_eq!(dscp, [0, 10, 10, 20, 20, 20]);
    let counters = bench.manager.counters();
    assert_eq!(counters.labelled_bytes, 200, "each packet once");
}

/// What a flow's packets are by then, told from all of them at once.
#[derive(Default)]
struct Expected {
    lengths: Vec<i32>,
    is_labelled: bool,
}

impl Expected {
    fn packet(&mut self, length: i32) -> Verdict {
        self.lengths.push(length);
        if let Some(rank) = DEPTHS.iter().position(|&k| k == self.lengths.len())
            && !self.is_labelled
            && let Label::Class { confidence, .. } =
                answer(self.lengths.iter().copied(), rank as u8)
        {
            self.is_labelled = confidence >= SURE || rank == DEPTHS.len() - 1;
        }
        match self.is_labelled {
            true => Verdict::Labelled,
            false => Verdict::Unlabelled,
        }
    }
}

fn packets() -> impl Strategy<Value = Vec<Tcp>> {
    let packet = (1_u8..4, 4_u8..6, any::<bool>(), 0_u8..40);
    let packet = packet.prop_map(|(near, far, is_reverse, payload)| {
        let (from, to) = if is_reverse { (far, near) } else { (near, far) };
        Tcp { payload, ..tcp(0, from, to, TCP_ACK) }
    });
    proptest::collection::vec(packet, 1..80).prop_map(|mut packets| {
        packets.iter_mut().zip(0..).for_each(|(packet, at)| packet.time_us = at);
        packets
    })
}

proptest! {
    /// Whatever the bursts, each packet has the label that its flow has with it. By packet time it
    /// has the first answer's until a record says that a deeper one decided.
    #[test]
    fn each_packet_has_the_label_of_its_flow_by_then(
        packets in packets(),
        cuts in proptest::collection::vec(1_usize..20, 80),
        is_live: bool,
        has_rules: bool,
        is_asked: bool,
    ) {
        let effect = match is_live {
            true => Effect::Arrival,
            false => Effect::PacketTime { delay_us: 0 },
        };
        let first = task(&DEPTHS, SURE);
        let mut second = task(&[5], 0);
        second.asked.after = if is_asked { vec![TaskId::FIRST] } else { Vec::new() };
        let config = Config { effect, tasks: vec![first, second], ..live() };
        let mut bench = bench(config);
        if has_rules {
            bench.begin_rules(false);
        }
        let mut expected: HashMap<[u8; 2], (u8, Expected)> = HashMap::new();
        let (mut left, mut labelled) = (&packets[..], 0);
        for cut in cuts {
            let (burst, rest) = left.split_at(cut.min(left.len()));
            left = rest;
            let dscps = bench.ruled(burst, |question| {
                dscp(1, 10 + 10 * u8::from(question.classes[0].is_some()))
            });
            for (at, packet) in burst.iter().enumerate() {
                let mut ends = [packet.from, packet.to];
                ends.sort_unstable();
                let (opener, flow) = expected.entry(ends).or_insert((packet.from, <_>::default()));
                let sign = if *opener == packet.from { 1 } else { -1 };
                let mut verdict = flow.packet(sign * (40 + i32::from(packet.payload)));
                labelled += u64::from(verdict == Verdict::Labelled);
                if !is_live && flow.lengths.len() >= DEPTHS[0] {
                    verdict = Verdict::Labelled;
                }
                prop_assert_eq!(bench.fates[at].verdict, verdict, "packet {}", packet.time_us);
                prop_assert_eq!(
                    bench.fates[at].label_of.is_some_and(|_| bench.fates[at].depths & 7 != 0),
                    verdict == Verdict::Labelled && !is_live
                );
                if is_live && has_rules {
                    let expected = 10 + 10 * u8::from(verdict == Verdict::Labelled);
                    prop_assert_eq!(dscps[at], expected, "packet {}", packet.time_us);
                }
            }
            bench.settle();
        }
        bench.finish();
        let counters = bench.manager.counters();
        prop_assert_eq!(counters.verdicts.total(), packets.len() as u64);
        let by_class = counters.labelled_by_class.iter();
        prop_assert_eq!(by_class.map(|it| it.packets).sum::<u64>(), labelled);
        prop_assert_eq!(counters.verdicts.get(Verdict::Labelled), labelled);
    }
}
