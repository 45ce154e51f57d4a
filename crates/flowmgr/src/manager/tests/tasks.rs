//! Several tasks: which flows each is asked about, when its series goes, what its labels do, and
//! what records say.

use cring::{TASKS_MAX, Unit};

use super::*;
use crate::record::LabelRecord;
use crate::rules::{RuleAnswer, RuleMemory, RulesChange};
use crate::{Asked, Direction, Inside};

const SURE: u16 = 30_000;

/// Three tasks: a first one after 2 packets, one of depths 2 and 4, and one after 3 packets with
/// data. A ring each.
fn tasks(effect: Effect, asked: Vec<Asked>) -> World {
    tasks_inside(effect, asked, Inside::default())
}

fn tasks_inside(effect: Effect, asked: Vec<Asked>, inside: Inside) -> World {
    let mut tasks = vec![task(&[2], SURE), task(&[2, 4], SURE), task(&[3], SURE)];
    tasks[2].unit = Unit::Data;
    tasks.iter_mut().zip(asked).for_each(|(task, asked)| task.asked = asked);
    let dscp = |class: usize, dscp| {
        let mut by_class = vec![None; 3];
        by_class[class] = Some(dscp);
        by_class
    };
    let actions = Actions::of_tasks([dscp(0, 46), Vec::new(), dscp(1, 10)]);
    let config = Config {
        tasks,
        inside,
        effect,
        record_series: crate::SeriesShare::NONE,
        settings: Settings { actions, ..config().settings },
        ..config()
    };
    let rings = [ring(64), ring(64), ring(64)];
    let (producers, consumers): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
    let producers = producers.into_iter().map(|ring| vec![ring]).collect();
    World {
        manager: Manager::with_rings(config, producers).unwrap(),
        rings: consumers,
        records: Vec::new(),
        now_us: 0,
    }
}

struct World {
    manager: Manager,
    rings: Vec<Consumer<Slot>>,
    records: Vec<Record>,
    now_us: i64,
}

impl World {
    /// Sends a packet from host 1 to host 2 for each of `payloads`; returns the DSCP that each has
    /// then.
    fn send(&mut self, payloads: &[u8]) -> Vec<u8> {
        let dscp = payloads.iter().map(|&payload| {
            self.now_us += 1;
            let packet = Tcp { payload, ..tcp(self.now_us, 1, 2, TCP_ACK) };
            let mut data = packet.bytes();
            let packet = Packet {
                at: 0,
                captured: data.len() as u32,
                wire: u32::MAX,
                link: 101,
                time_us: self.now_us,
                rss: None,
                gso: Gso::NONE,
            };
            self.manager.burst(&mut data, &[packet], 0, &mut Vec::new());
            data[1] >> 2
        });
        dscp.collect()
    }

    /// The depths whose series wait, task by task.
    fn waiting(&mut self) -> Vec<Vec<u8>> {
        let of_ring = |ring: &mut Consumer<Slot>| {
            let waiting = ring.waiting();
            (0..waiting).map(|at| ring.get(at).series.task).collect()
        };
        self.rings.iter_mut().map(of_ring).collect()
    }

    /// Answers a depth of the only flow.
    fn answer(&mut self, depth: u8, class: u16, confidence: u16) {
        let labels = self.manager.labels();
        let label = Label::Class { class, confidence, source: Source::Model, model: 0 };
        let word = labels.word(depth, 0);
        word.decide(word.read().0, label).expect("it is awaited");
        let records = &mut self.records;
        self.manager.settle(u64::MAX, 0, &mut |record| records.push(record.clone()));
    }

    /// The labels recorded so far: task, class, and the depth that decided.
    fn said(&self) -> Vec<(u8, u16, u8)> {
        let label = |record: &Record| match record {
            Record::Label(LabelRecord { task: TaskId(task), decision, .. }) => {
                Some((*task, decision.class, decision.depth))
            }
            _ => None,
        };
        self.records.iter().filter_map(label).collect()
    }

    fn end(&mut self) -> FlowRecord {
        self.manager.drain();
        let records = &mut self.records;
        self.manager.settle(u64::MAX, 0, &mut |record| records.push(record.clone()));
        assert!(self.manager.is_settled());
        match self.records.last() {
            Some(Record::Flow(flow)) => flow.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Puts other rules in force.
    fn change_rules(&mut self) {
        self.manager.change_rules(&mut RulesChange {
            memory: Some(RuleMemory::new(config().max_flows).unwrap()),
            ..RulesChange::default()
        });
    }

    /// Answers all questions alike; returns how many there were.
    fn answer_rules(&mut self, answer: RuleAnswer) -> usize {
        let questions = self.manager.rule_questions().len();
        let answers = vec![answer; questions];
        self.manager.answer_rules(&answers, &mut [], &[], 0, &mut Vec::new());
        questions
    }

    fn not_asked(&self) -> Vec<u64> {
        let tasks = self.manager.counters().depths.iter();
        tasks.map(|task| task.flows_not_asked).collect()
    }
}

fn after(tasks: &[u8]) -> Asked {
    Asked { after: tasks.iter().copied().map(TaskId).collect(), ..Asked::default() }
}

#[test]
fn each_task_has_its_series_and_its_labels() {
    let mut world = tasks(Effect::Arrival, Vec::new());
    world.send(&[0, 5, 0, 5, 5, 0]);
    assert_eq!(world.waiting(), [vec![0], vec![1, 2], vec![3]]);
    world.answer(0, 0, 60_000);
    // Not sure, so the next depth decides.
    world.answer(1, 2, SURE - 1);
    world.answer(2, 1, SURE);
    world.answer(3, 0, 100);
    assert_eq!(world.said(), [(0, 0, 2), (1, 1, 4), (2, 0, 3)]);
    let flow = world.end();
    let classes = |it: &Option<crate::record::Decision>| it.map(|it| it.class);
    assert_eq!(classes(&flow.decisions[0]), Some(0));
    let others: Vec<_> = flow.decisions[1..].iter().map(classes).collect();
    assert_eq!(others[..3], [Some(1), Some(0), None]);
    let counters = world.manager.counters();
    let decided: Vec<u64> = counters.depths.iter().map(|it| it.flows_decided).collect();
    assert_eq!(decided, [1, 0, 1, 1]);
}

#[test]
fn live_a_sure_answer_keeps_a_task_from_its_next_depth() {
    let mut world = tasks(Effect::Arrival, Vec::new());
    world.send(&[0, 0]);
    world.answer(1, 1, SURE);
    world.send(&[0, 0, 0]);
    assert_eq!(world.waiting()[1], [1]);
    assert_eq!(world.end().decisions[1].unwrap().depth, 2);
}

#[test]
fn what_ends_unsure_keeps_its_best_answer_and_what_was_not_asked_has_none() {
    let mut world = tasks(Effect::Arrival, Vec::new());
    world.send(&[0, 0]);
    world.answer(1, 1, SURE - 1);
    assert_eq!(world.said(), []);
    let flow = world.end();
    assert_eq!(flow.decisions[1].unwrap().class, 1);
    assert_eq!((flow.decisions[0], flow.decisions[2]), (None, None));
}

#[test]
fn a_task_that_comes_after_another_waits_for_all_that_one_may_want() {
    // The third task wants three elements with data, and what the second one's depths want.
    let mut world = tasks(Effect::Arrival, vec![after(&[]), after(&[]), after(&[1])]);
    world.send(&[5, 5, 5]);
    assert_eq!(world.waiting(), [vec![0], vec![1], vec![]]);
    world.send(&[0]);
    assert_eq!(world.waiting(), [vec![0], vec![1, 2], vec![3]]);
    let series = &world.rings[2].get(0).series;
    assert_eq!(series.signed_lengths().collect::<Vec<_>>(), [45; 3]);
    // The other way round: packets come before data.
    let mut world = tasks(Effect::Arrival, vec![after(&[2])]);
    world.send(&[5, 0, 0, 5, 0]);
    assert_eq!(world.waiting()[0], [0; 0]);
    world.send(&[5]);
    assert_eq!(world.waiting()[0], [0]);
}

#[test]
fn conditions_keep_a_task_from_a_flow_and_those_that_come_after_it() {
    let udp = Asked { protocols: vec![wire::UDP], ..Asked::default() };
    let asked = vec![Asked::default(), udp, after(&[1])];
    let mut world = tasks(Effect::Arrival, asked);
    world.send(&[5; 6]);
    assert_eq!(world.waiting(), [vec![0], vec![], vec![]]);
    assert_eq!(world.not_asked(), [0, 1, 0, 1]);
    let flow = world.end();
    assert_eq!(flow.decisions[1..], [None; TASKS_MAX - 1]);

    let asked = vec![Asked { directions: vec![Direction::Out], ..Asked::default() }];
    let inside = Inside(vec![("10.0.0.1".parse().unwrap(), 32)]);
    let mut world = tasks_inside(Effect::Arrival, asked, inside);
    world.send(&[5; 3]);
    assert_eq!(world.waiting()[0], [0]);
}

#[test]
fn labels_of_other_tasks_act_and_the_last_task_wins() {
    let mut world = tasks(Effect::Arrival, Vec::new());
    assert_eq!(world.send(&[5, 5, 5]), [0; 3]);
    // The third task has its label before the first.
    world.answer(3, 1, 60_000);
    assert_eq!(world.send(&[5]), [10]);
    world.answer(0, 0, 60_000);
    assert_eq!(world.send(&[5]), [10], "of two the later task's");
    // Another map: each flow looks its action up again.
    let mut settings =
        Settings { actions: Actions::of_dscp(&[Some(20), None, None]), ..config().settings };
    world.manager.configure(&mut settings);
    assert_eq!(world.send(&[5]), [20]);
    world.manager.configure(&mut settings);
    assert_eq!(world.send(&[5]), [10]);
    // A label that says nothing leaves what the first says.
    let mut world = tasks(Effect::Arrival, Vec::new());
    world.send(&[5, 5, 5]);
    world.answer(0, 0, 60_000);
    assert_eq!(world.send(&[5]), [46]);
    world.answer(3, 2, 60_000);
    assert_eq!(world.send(&[5]), [46]);
}

#[test]
fn a_label_acts_though_another_task_had_its_label_before() {
    let mut world = tasks(Effect::Arrival, Vec::new());
    world.send(&[5, 5, 5]);
    // It has no action.
    world.answer(3, 2, 60_000);
    assert_eq!(world.send(&[5, 5]), [0, 0]);
    world.answer(0, 0, 60_000);
    assert_eq!(world.send(&[5, 5]), [46, 46]);
}

#[test]
fn with_rules_a_label_acts_though_another_task_had_its_label_before() {
    for first in [0, 3] {
        let mut world = tasks(Effect::Arrival, Vec::new());
        world.change_rules();
        for payload in [5; 3] {
            world.send(&[payload]);
            world.answer_rules(RuleAnswer::default());
        }
        let of_task = |task: u8| (task, u16::from(task == 3));
        for (depth, class) in [of_task(first), of_task(3 - first)] {
            world.answer(depth, class, 60_000);
            assert_eq!(world.answer_rules(RuleAnswer::default()), 1);
            let alone = if depth == 0 { 46 } else { 10 };
            let expected = if depth == first { alone } else { 10 };
            assert_eq!(world.send(&[5]), [expected], "{first}, {depth}");
        }
    }
}

#[test]
fn a_rule_is_looked_up_again_when_a_label_comes_that_rules_ask_for() {
    for (label_tasks, asked) in [(0b100, 1), (0b010, 0), (0b001, 0)] {
        let mut world = tasks(Effect::Arrival, Vec::new());
        let mut settings = Settings { actions: Actions::of_dscp(&[None; 3]), ..config().settings };
        world.manager.configure(&mut settings);
        world.change_rules();
        world.manager.change_rules(&mut RulesChange { label_tasks, ..RulesChange::default() });
        for payload in [5; 3] {
            world.send(&[payload]);
            world.answer_rules(RuleAnswer::default());
        }
        world.answer(3, 2, 60_000);
        let questions = world.manager.rule_questions();
        assert_eq!(questions.len(), asked, "{label_tasks:#b}");
        for question in questions {
            assert!(question.is_by_same_rules && !question.is_label_new);
            assert_eq!(question.classes[..3], [None, None, Some(2)]);
        }
    }
}

#[test]
fn rules_that_change_between_two_depths_change_nothing_for_the_flow() {
    for (then, depths) in [(0, vec![]), (0b10, vec![1, 2])] {
        let now = then ^ 0b10;
        let unasked = |unasked| RuleAnswer { unasked, ..RuleAnswer::default() };
        let mut world = tasks(Effect::Arrival, Vec::new());
        world.change_rules();
        for _ in 0..2 {
            world.send(&[5]);
            world.answer_rules(unasked(now));
        }
        world.change_rules();
        for _ in 0..3 {
            world.send(&[5]);
            world.answer_rules(unasked(then));
        }
        assert_eq!(world.waiting()[1], depths);
        let not_asked = u64::from(depths.is_empty());
        assert_eq!(world.not_asked(), [0, not_asked, 0, 0]);
    }
}

#[test]
fn there_is_room_for_all_depths_that_a_packet_may_complete() {
    let mut world = tasks(Effect::Arrival, vec![after(&[]), after(&[2])]);
    assert!(world.manager.has_room(32));
    assert!(!world.manager.has_room(33), "64 slots, two depths");
    let mut world = tasks(Effect::Arrival, Vec::new());
    assert!(world.manager.has_room(64));
}

#[test]
fn packets_behind_the_last_series_are_not_looked_at() {
    let mut world = tasks(Effect::Arrival, Vec::new());
    world.send(&[5; 3]);
    let is_collected = |world: &World| {
        let hot = world.manager.walk.flows.entries.hot(0);
        hot.has_all(world.manager.walk.labels.collected())
    };
    assert!(!is_collected(&world));
    world.send(&[5]);
    assert!(is_collected(&world));
    world.send(&[5; 3]);
    assert_eq!(world.waiting(), [vec![0], vec![1, 2], vec![3]]);
}

#[test]
fn by_packet_time_it_is_noted_which_labels_count_for_a_packet() {
    let mut world = tasks(Effect::PacketTime { delay_us: 10 }, Vec::new());
    let mut depths = Vec::new();
    for _ in 0..16 {
        world.now_us += 1;
        let mut data = Tcp { payload: 5, ..tcp(world.now_us, 1, 2, TCP_ACK) }.bytes();
        let packet = Packet {
            at: 0,
            captured: data.len() as u32,
            wire: u32::MAX,
            link: 101,
            time_us: world.now_us,
            rss: None,
            gso: Gso::NONE,
        };
        let mut fates = Vec::new();
        world.manager.burst(&mut data, &[packet], 0, &mut fates);
        depths.push(fates[0].depths);
    }
    // The first task's series went at packet 2, the third one's at packet 3; the second one's
    // labels have no actions.
    assert_eq!(depths[..11], [0; 11]);
    assert_eq!(depths[11], 1);
    assert_eq!(depths[12..], [1 | 1 << 3; 4]);
    for depth in [0, 1, 2, 3] {
        world.answer(depth, 1, 60_000);
    }
    assert_eq!(world.said(), [(0, 1, 2), (1, 1, 2), (2, 1, 3)]);
    assert_eq!(world.end().decisions[2].unwrap().class, 1);
}

#[test]
fn a_cycle_of_tasks_is_refused() {
    for asked in [vec![after(&[0])], vec![after(&[1]), after(&[2]), after(&[0])], vec![after(&[3])]]
    {
        let rings: Vec<_> = (0..3).map(|_| vec![ring(64).0]).collect();
        let mut tasks = vec![task(&[3], 0); 3];
        tasks.iter_mut().zip(asked).for_each(|(task, asked)| task.asked = asked);
        let config = Config { tasks, ..config() };
        let refused = Manager::with_rings(config, rings).err().unwrap();
        assert!(refused.to_string().starts_with("after = "), "{refused}");
    }
}
