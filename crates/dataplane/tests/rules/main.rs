//! A flow worker whose rules change between bursts, against linear search: each packet gets what
//! its flow's rule says, by the rules in force or, while flows are being updated in turn, by the
//! previous rules; and records know the rule.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

mod parts;
#[path = "../common/small_table.rs"]
mod small_table;

use std::convert::Infallible;
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, never, unbounded};
use dataplane::clock::Clock;
use dataplane::flow_worker::{FlowOutcome, FlowWorker, Hooks, Limits, Parts};
use dataplane::rules::{RulesInForce, RulesUpdate};
use dataplane::run::Run;
use dataplane::settings::{SettingsSender, Update, settings};
use flowmgr::{Effect, renewed_max};
use parts::{DROPPED, FLOWS, Recorded, Sent, Told, frame, key, manager};
use policy::classifier::Linear;
use policy::rule::{Condition, RuleAction};
use policy::{Dscp, Filter, Key, Names, Ports, RuleNumber, RuleSet, Store, StoreError};
use proptest::prelude::*;

const BURST: usize = 64;
/// A rule that is written: prefixes of both ends, a port of the source or any, priority and what is
/// done.
#[derive(Clone, Copy, Debug)]
struct Written {
    ends: [(u32, u8); 2],
    port: Option<u16>,
    priority: u32,
    does: u8,
}

fn written() -> impl Strategy<Value = Written> {
    let length = || prop_oneof![Just(24_u8), Just(28), Just(30), Just(32)];
    let end = |base: u32, hosts: u32| {
        (base..base + hosts, length()).prop_map(|(address, length)| {
            let prefix = address & (u32::MAX << (32 - length));
            (prefix, length)
        })
    };
    let ends = [end(0x0a00_0000, 16), end(0x0a00_0100, 5)];
    let port = proptest::option::of(4000..4003_u16);
    (ends, port, 0..3_u32, 0..=DROPPED).prop_map(|(ends, port, priority, does)| Written {
        ends,
        port,
        priority,
        does,
    })
}

fn add(set: &mut RuleSet, rule: &Written) -> RuleNumber {
    let action = RuleAction {
        // 0: an exception, whose flows' packets stay as they are.
        dscp: Dscp::new(rule.does).filter(|_| rule.does != 0),
        drop: rule.does == DROPPED,
        ..RuleAction::default()
    };
    let added = set.push(rule.priority, Condition::default(), action, (0, 0));
    let (number, rank) = added.unwrap();
    let [(source, source_length), (destination, destination_length)] = rule.ends;
    let ports =
        |port: Option<u16>| Ports { first: port.unwrap_or(0), last: port.unwrap_or(u16::MAX) };
    set.v4.push(Filter {
        source,
        destination,
        source_length,
        destination_length,
        protocol: None,
        in_port: 0,
        source_ports: ports(rule.port),
        destination_ports: ports(None),
        rule: number,
        is_conditional: false,
        rank,
    });
    number
}

/// What happens to a worker.
#[derive(Clone, Debug)]
enum Step {
    /// Packets of these flows come, each forward or in reverse.
    Packets(Vec<(usize, bool)>),
    /// Rules are added and, of those that are there, some deleted, as one batch.
    Change(Vec<Written>, Vec<prop::sample::Index>),
    /// The last batch is undone.
    Undo,
    /// All flows go on while nothing changes.
    Rest,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let packets = || proptest::collection::vec((0..FLOWS, any::<bool>()), 1..=BURST);
    let indices = proptest::collection::vec(any::<prop::sample::Index>(), 0..4);
    let added = proptest::collection::vec(written(), 0..6);
    let step = prop_oneof![
        6 => packets().prop_map(Step::Packets),
        3 => (added, indices).prop_map(|(added, deleted)| Step::Change(added, deleted)),
        1 => Just(Step::Undo),
        1 => Just(Step::Rest),
    ];
    proptest::collection::vec(step, 1..40)
}

/// The worker, and what is known of each flow.
struct World {
    store: Store,
    worker: JoinHandle<FlowOutcome>,
    bursts: Sender<Vec<Vec<u8>>>,
    left: Receiver<Vec<u8>>,
    records: Receiver<(usize, Option<u32>)>,
    settings: SettingsSender,
    run_ended: Receiver<Infallible>,
    /// Changes so far.
    version: usize,
    flows: Vec<Option<Known>>,
}

/// What the rules of a version say about a flow.
#[derive(Clone, Copy, Debug)]
struct Known {
    version: usize,
    /// Direction of the packet that began the flow.
    is_reverse: bool,
    order: Option<u32>,
    does: u8,
}

impl World {
    fn new(rules: &[Written]) -> World {
        let mut set = RuleSet::default();
        for rule in rules {
            add(&mut set, rule);
        }
        let store = Store::new(set, Names::default(), policy::Update::Instant).unwrap();
        let (bursts, told) = unbounded();
        let (sent, left) = unbounded();
        let (recorded, records) = unbounded();
        let (settings, port) = settings();
        let manager = manager();
        let rules = RulesUpdate::new(in_force(&store), manager.max_flows(), false).unwrap();
        let worker = FlowWorker::new(Parts {
            number: 0,
            manager,
            effect: Effect::Arrival,
            ports: vec![Box::new(Told::new(told))],
            flows_belong_to_ports: false,
            egress: Some(Box::new(Sent(sent))),
            sinks: vec![Box::new(Recorded::new(recorded))],
            clock: Clock::Packets,
            hooks: Hooks { settings: Some(port), ..Hooks::default() },
            rules: Some(rules),
            run: Arc::new(Run::new(1, 0).0),
            limits: Limits { burst: BURST, handover: Duration::ZERO, give_up_after: Duration::MAX },
        });
        World {
            store,
            worker: spawn(|| worker.run()),
            bursts,
            left,
            records,
            settings,
            run_ended: never(),
            version: 0,
            flows: vec![None; FLOWS],
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Packets(packets) => self.packets(packets),
            Step::Change(added, deleted) => self.change(|store| {
                let live: Vec<RuleNumber> = (0..store.rules().rules.len() as u32)
                    .filter(|&rule| store.is_live(rule))
                    .collect();
                let mut batch = store.batch();
                for rule in added {
                    let added = batch.add(|set| Ok::<_, StoreError>(add(set, rule)));
                    added.unwrap();
                }
                for index in deleted.iter().filter(|_| !live.is_empty()) {
                    // A rule may be drawn twice.
                    let _ = batch.delete(live[index.index(live.len())]);
                }
                batch.commit().unwrap();
            }),
            Step::Undo if self.store.can_undo() => self.change(|store| {
                store.undo().unwrap();
            }),
            Step::Undo => {}
            Step::Rest => self.rest(),
        }
    }

    /// Changes the rules, and waits until the worker uses them.
    fn change(&mut self, change: impl FnOnce(&mut Store)) {
        let old = self.store.version().clone();
        change(&mut self.store);
        // A batch may be empty.
        self.version += usize::from(!self.store.version().policy.has_rules_of(&old.policy));
        let update =
            Update { settings: None, rules: Some(RulesUpdate::again(in_force(&self.store))) };
        self.settings.send(update).unwrap();
        self.settings.taken(&self.run_ended).unwrap();
        assert!(self.store.give_back(old), "somebody holds the old version");
    }

    /// Sends one burst; each packet must leave as its flow's rule says.
    fn packets(&mut self, packets: &[(usize, bool)]) {
        let frames = packets.iter().map(|&packet| frame(packet)).collect();
        self.bursts.send(frames).unwrap();
        let left = self.left.recv().unwrap();
        assert_eq!(left.len(), packets.len());
        let (mut renewed, mut put_off) = (0, 0);
        let most = renewed_max(packets.len());
        for (&(flow, is_reverse), left) in packets.iter().zip(left) {
            let known = match self.flows[flow] {
                None => self.look_up(flow, is_reverse),
                Some(known) if known.version == self.version => known,
                Some(known) if renewed < most => {
                    renewed += 1;
                    self.look_up(flow, known.is_reverse)
                }
                Some(known) => {
                    put_off += 1;
                    known
                }
            };
            self.flows[flow] = Some(known);
            assert_eq!(left, known.does, "flow {flow}: {known:?}");
        }
        assert!(put_off == 0 || renewed == most);
    }

    /// As many bursts as it takes for each flow to have its turn; then all have what the rules in
    /// force say.
    fn rest(&mut self) {
        let begun = (0..FLOWS).filter(|&flow| self.flows[flow].is_some());
        let begun: Vec<(usize, bool)> = begun.map(|flow| (flow, false)).collect();
        // Flows have their turns in the order of their packets.
        for burst in begun.chunks(BURST) {
            for _ in 0..burst.len().div_ceil(renewed_max(burst.len())) {
                self.packets(burst);
            }
        }
        for (flow, _) in begun {
            let known = self.flows[flow].unwrap();
            let now = self.look_up(flow, known.is_reverse);
            assert_eq!((known.version, known.does), (self.version, now.does));
        }
    }

    /// The first rule that has the flow, by looking at all that are there.
    fn look_up(&self, flow: usize, is_reverse: bool) -> Known {
        let set = self.store.rules();
        let live = set.v4.iter().filter(|it| self.store.is_live(it.rule));
        let linear = Linear::new(&live.copied().collect::<Vec<_>>());
        let key = match (key(flow), is_reverse) {
            (key, false) => key,
            (key, true) => Key {
                source: key.destination,
                destination: key.source,
                source_port: key.destination_port,
                destination_port: key.source_port,
                ..key
            },
        };
        let rule = linear.find(&key, |_| true);
        let does = rule.map_or(0, |rule| match set.action(rule) {
            RuleAction { drop: true, .. } => DROPPED,
            action => action.dscp.map_or(0, Dscp::code_point),
        });
        Known {
            version: self.version,
            is_reverse,
            order: rule.map(|rule| set.rules[rule as usize].rank.order()),
            does,
        }
    }

    /// The end: each flow's record has the rule of its last answer.
    fn finish(self) {
        drop(self.bursts);
        let outcome = self.worker.join().unwrap();
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let records: Vec<_> = self.records.iter().collect();
        let begun = self.flows.iter().flatten().count();
        assert_eq!(records.len(), begun);
        for (flow, order) in records {
            assert_eq!(order, self.flows[flow].unwrap().order, "flow {flow}");
        }
    }
}

fn in_force(store: &Store) -> RulesInForce {
    RulesInForce::of(store.version().policy.clone(), store.version().numbering)
}

#[test]
fn flows_do_not_look_up_again_when_only_the_index_is_new() {
    let mut store =
        Store::new(RuleSet::default(), Names::default(), policy::Update::Instant).unwrap();
    let (mut rules, _) = RulesUpdate::new(in_force(&store), FLOWS, false).unwrap().begin();
    let mut is_change = |store: &Store| {
        let change = RulesUpdate::again(in_force(store)).replace(&mut rules);
        assert!(Arc::ptr_eq(&rules.in_force().policy, &store.version().policy));
        change.is_some()
    };
    let mut batch = store.batch();
    for source in 0..300 {
        let rule = Written { ends: [(source, 32), (0, 0)], port: None, priority: 0, does: 1 };
        batch.add(|set| Ok::<_, StoreError>(add(set, &rule))).unwrap();
    }
    batch.commit().unwrap();
    assert!(is_change(&store));
    let training = store.training(Instant::now()).unwrap();
    store.adopt(training.run().unwrap(), Instant::now()).unwrap();
    assert!(!is_change(&store));
    store.undo().unwrap();
    assert!(is_change(&store));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn packets_get_what_the_rules_in_force_say_or_those_of_before_until_their_turn(
        rules in proptest::collection::vec(written(), 0..30),
        steps in steps(),
    ) {
        let mut world = World::new(&rules);
        steps.iter().for_each(|step| world.take(step));
        world.rest();
        world.finish();
    }
}
