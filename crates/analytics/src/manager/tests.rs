//! Several tasks on one thread: who is asked, who fires first, and that sums close for each.

use super::*;
use crate::{
    After, CacheConfig, Config, FailureKind, Need, NewModel, Policy, RingInput, Settings, Standby,
    Test,
};
use accel::{Classification, Device, DeviceError, Profile, Sizes};
use cring::{
    Depth, Feature, Features, FlowRef, Label, LabelWord, Labels, Producer, Series, Slot, TaskWords,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const CLASSES: usize = 3;
const TASKS: usize = 4;
/// A batch on its way for longer counts as lost.
const DEADLINE: Duration = Duration::from_millis(5);

/// The label words of all tasks, flow by flow.
struct Words(Vec<LabelWord>);

impl Labels for Words {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        &self.0[index as usize * TASKS + usize::from(task)]
    }
}

/// Which device ran a batch of how many, in order: the task's number, and 10 for each lane.
type Log = Arc<Mutex<Vec<(usize, usize)>>>;

/// Answers at the next poll: the class is the first number of a row, the confidence a hundredth of the second.
struct Echo {
    number: usize,
    sizes: Sizes,
    input: Vec<f32>,
    answers: Vec<Classification>,
    in_flight: bool,
    /// Once it has failed it fails for ever.
    fails: bool,
    /// Nothing comes back while this holds.
    hangs: Arc<AtomicBool>,
    log: Log,
}

impl Device for Echo {
    fn requested(&self) -> &str {
        "echo"
    }

    fn effective(&self) -> &str {
        "echo"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        !self.in_flight
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..2 * rows]
    }

    fn context(&mut self, _: usize) -> &mut [f32] {
        &mut []
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        self.log.lock().unwrap().push((self.number, rows));
        self.answers.clear();
        for row in self.input[..2 * rows].chunks_exact(2) {
            self.answers.push(Classification {
                class: row[0] as u16,
                confidence: row[1] / 100.0,
            });
        }
        self.in_flight = true;
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        if self.hangs.load(Ordering::Relaxed) || !std::mem::take(&mut self.in_flight) {
            return None;
        }
        Some(match self.fails {
            true => Err(DeviceError::Gone {
                device: "echo".to_owned(),
                cause: "as the test wants it".to_owned(),
            }),
            false => Ok(&self.answers),
        })
    }

    fn probabilities(&self) -> &[f32] {
        &[]
    }
}

struct World {
    manager: Manager,
    producers: Vec<Producer<Slot>>,
    words: Arc<Words>,
    log: Log,
    now_us: u64,
    turn: u32,
}

/// One task: its policy, what it depends on, the lane of its device, or of two devices.
struct Plan {
    policy: Policy,
    after: After,
    lane: u8,
    second_lane: Option<u8>,
    /// What a batch takes by the device's profile, in µs.
    batch_us: Option<f64>,
    /// Its only device fails, or the second of two.
    fails: bool,
    /// While this holds its devices hang, which is noticed after [`DEADLINE`].
    hangs: Arc<AtomicBool>,
    priority: u8,
}

impl Plan {
    fn at_once() -> Plan {
        Plan {
            policy: Policy::None,
            after: After::default(),
            lane: 0,
            second_lane: None,
            batch_us: None,
            fails: false,
            hangs: Arc::default(),
            priority: 0,
        }
    }

    fn after(needs: Vec<Need>) -> Plan {
        Plan {
            after: After { needs },
            ..Plan::at_once()
        }
    }

    fn accelerator(&self, number: usize, lane: u8, fails: bool, log: &Log) -> crate::Accelerator {
        let device: Box<dyn Device> = Box::new(Echo {
            number: number + 10 * usize::from(lane),
            sizes: Sizes::Any { cap: 8 },
            input: vec![0.0; 16],
            answers: Vec::with_capacity(8),
            in_flight: false,
            fails,
            hangs: self.hangs.clone(),
            log: log.clone(),
        });
        let profile = self.batch_us.map(|t0_us| Profile { t0_us, t1_us: 0.0 });
        crate::Accelerator {
            lane,
            profile,
            deadline: Some(DEADLINE),
            ..device.into()
        }
    }
}

fn below(task: u8, confidence: u16) -> Need {
    Need {
        words: words_of(task),
        test: Test::Confidence(0..=confidence - 1),
    }
}

fn words_of(task: u8) -> TaskWords {
    TaskWords {
        first: task,
        depths: vec![Depth {
            sure: 0,
            classes: CLASSES,
        }],
    }
}

fn config(policy: Policy) -> Config {
    Config {
        k: 2,
        features: vec![Feature::SignedLength],
        context: Vec::new(),
        policy,
        cache: CacheConfig {
            prefix: 0,
            entries: 0,
            audit: 0.0,
        },
        probe: Vec::new(),
        word: 0,
        priority: 0,
        after: After::default(),
    }
}

fn slo(ms: u64) -> Policy {
    Policy::Slo {
        latency_goal: Duration::from_millis(ms),
        delta: 0.05,
    }
}

impl World {
    fn new(plans: Vec<Plan>) -> World {
        let words = Words((0..64 * TASKS).map(|_| LabelWord::new()).collect());
        let (words, log) = (Arc::new(words), Log::default());
        let mut producers = Vec::new();
        let tasks = plans.into_iter().enumerate().map(|(number, plan)| {
            let (producer, series) = cring::ring(64);
            producers.push(producer);
            let input = RingInput {
                series,
                labels: words.clone(),
            };
            let fails_first = plan.fails && plan.second_lane.is_none();
            let first = plan.accelerator(number, plan.lane, fails_first, &log);
            let second = plan.second_lane;
            let second = second.map(|lane| plan.accelerator(number, lane, plan.fails, &log));
            let config = Config {
                word: number as u8,
                priority: plan.priority,
                after: plan.after,
                ..config(plan.policy)
            };
            let accelerators = [first].into_iter().chain(second);
            Task::new(config, vec![input], accelerators.collect()).unwrap()
        });
        let manager = Manager::new(tasks.collect());
        World {
            manager,
            producers,
            words,
            log,
            now_us: 0,
            turn: 0,
        }
    }

    /// A flow asks a task, which is to answer so.
    fn emit(&mut self, task: u8, flow: u32, class: u16, percent: u16) {
        self.words.word(task, flow).pend(0);
        self.push(task, flow, class, percent);
    }

    /// The same, of a flow that has asked already.
    fn push(&mut self, task: u8, flow: u32, class: u16, percent: u16) {
        self.push_of(task, (flow, 0), class, percent);
    }

    fn push_of(&mut self, task: u8, (index, generation): (u32, u32), class: u16, percent: u16) {
        let now_ns = self.now_us * 1000;
        assert!(self.producers[usize::from(task)].push(|slot| {
            slot.flow = FlowRef { index, generation };
            slot.emitted_ns = now_ns;
            slot.series = Series::new(6, 2, Features::LENGTHS);
            slot.series.set_signed(0, i32::from(class));
            slot.series.set_signed(1, i32::from(percent));
            slot.series.task = task;
        }));
        self.producers[usize::from(task)].publish();
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.now_us += 10;
            self.manager.round(self.now_us * 1000);
            for task in self.manager.tasks() {
                let counters = task.counters();
                assert!(counters.decided() <= counters.series);
            }
        }
    }

    /// A series of each task every millisecond, for so many of them; flows are used again when their labels are there.
    fn play(&mut self, ms: u32) {
        for _ in 0..ms {
            self.turn = (self.turn + 1) % 64;
            (0..self.producers.len() as u8).for_each(|task| self.ask(task));
            self.rounds(100);
        }
    }

    /// A new flow in the place whose turn it is asks a task.
    fn ask(&mut self, task: u8) {
        let generation = self.words.word(task, self.turn).retire();
        self.words.word(task, self.turn).pend(generation);
        self.push_of(task, (self.turn, generation), 1, 99);
    }

    /// As many ask a task as its ring has room for.
    fn fill(&mut self, task: u8) {
        while self.producers[usize::from(task)].free() > 0 {
            self.turn = (self.turn + 1) % 64;
            self.ask(task);
        }
    }

    /// From now on this is the policy of a task.
    fn set_policy(&mut self, task: usize, policy: Policy) {
        let task = &mut self.manager.tasks_mut()[task];
        let settings = Settings::change(&config(task.policy()), &config(policy)).unwrap();
        task.prepare(Standby {
            model: None,
            settings: Some(settings),
        })
        .unwrap();
        task.commit();
    }

    fn batches(&self, task: usize) -> u64 {
        self.manager.tasks()[task].counters().devices[0].batches
    }

    fn class(&self, task: u8, flow: u32) -> Option<u16> {
        match self.words.word(task, flow).read().1 {
            Label::Class { class, .. } => Some(class),
            _ => None,
        }
    }

    /// Series by their fate: inferred, not asked, shed or failed.
    fn fates(&self, task: usize) -> [u64; 3] {
        let counters = self.manager.tasks()[task].counters();
        assert_eq!(counters.undecided(), 0);
        let lost = counters.shed() + counters.failed();
        [counters.inferred, counters.not_asked, lost]
    }
}

#[test]
fn an_expensive_task_is_asked_where_the_cheap_one_is_unsure() {
    let needs = vec![below(0, 58_982)];
    let mut world = World::new(vec![Plan::at_once(), Plan::after(needs)]);
    for (flow, percent) in [(0, 95), (1, 50), (2, 89)] {
        world.emit(0, flow, 1, percent);
        world.emit(1, flow, 2, 99);
    }
    world.rounds(1);
    assert_eq!(
        world.manager.undecided(),
        6,
        "the expensive one waits for the cheap one"
    );
    world.rounds(3);
    let expensive = [0, 1, 2].map(|flow| world.class(1, flow));
    assert_eq!(expensive, [None, Some(2), Some(2)]);
    assert_eq!(world.words.word(1, 0).read().1, Label::Unlabelled);
    assert_eq!((world.fates(0), world.fates(1)), ([3, 0, 0], [2, 1, 0]));
}

#[test]
fn a_series_that_came_before_the_one_it_waits_for_does_not_put_the_thread_to_sleep() {
    let mut world = World::new(vec![Plan::at_once(), Plan::after(vec![below(0, 58_982)])]);
    world.words.word(0, 0).pend(0);
    world.emit(1, 0, 2, 99);
    world.rounds(3);
    assert_eq!(world.manager.undecided(), 1);
    let rest = world.manager.time_until_due(world.now_us * 1000);
    assert!(rest <= Duration::from_millis(1), "{rest:?}");
    world.push(0, 0, 1, 50);
    world.rounds(4);
    assert_eq!((world.fates(0), world.fates(1)), ([1, 0, 0], [1, 0, 0]));
}

#[test]
fn a_patient_task_does_not_let_the_series_of_an_urgent_one_lie() {
    let patient = |ms| Plan {
        policy: Policy::Timeout {
            timeout: Duration::from_millis(ms),
        },
        ..Plan::at_once()
    };
    let urgent = Plan {
        policy: Policy::Slo {
            latency_goal: Duration::from_millis(2),
            delta: 0.05,
        },
        batch_us: Some(100.0),
        ..Plan::at_once()
    };
    let rest = |second| {
        let mut world = World::new(vec![patient(80), second]);
        world.emit(0, 0, 1, 99);
        world.rounds(1);
        assert_eq!(world.manager.undecided(), 1);
        world
            .manager
            .time_until_due(world.now_us * 1000 + 10_000_000)
    };
    // A series of the second task could come while the thread sleeps.
    assert_eq!(rest(urgent), Duration::ZERO);
    assert_eq!(rest(patient(4)), Duration::from_millis(2));
    assert_eq!(rest(patient(80)), Duration::from_millis(20));
}

#[test]
fn a_label_is_asked_for_by_its_class_and_by_both_of_two_tasks() {
    let is = |task, class: usize| Need {
        words: words_of(task),
        test: Test::Class {
            is_wanted: (0..CLASSES).map(|it| it == class).collect(),
            without: false,
        },
    };
    let join = Plan::after(vec![is(0, 1), is(1, 2)]);
    let mut world = World::new(vec![Plan::at_once(), Plan::at_once(), join]);
    for (flow, (first, second)) in [(1, 2), (1, 1), (0, 2)].into_iter().enumerate() {
        let flow = flow as u32;
        world.emit(0, flow, first, 99);
        world.emit(1, flow, second, 99);
        world.emit(2, flow, 0, 99);
    }
    world.rounds(4);
    assert_eq!(
        [0, 1, 2].map(|flow| world.class(2, flow)),
        [Some(0), None, None]
    );
    assert_eq!(world.fates(2), [1, 2, 0]);
}

#[test]
fn a_task_that_failed_counts_as_unsure_and_one_that_was_not_asked_ends_the_chain() {
    let failing = Plan {
        fails: true,
        ..Plan::at_once()
    };
    let mut world = World::new(vec![failing, Plan::after(vec![below(0, 58_982)])]);
    world.emit(0, 0, 1, 95);
    world.emit(1, 0, 2, 99);
    world.rounds(4);
    assert_eq!((world.fates(0), world.fates(1)), ([0, 0, 1], [1, 0, 0]));
    // Nobody asks the first task about this flow.
    world.emit(1, 1, 2, 99);
    world.rounds(4);
    assert_eq!(world.fates(1), [1, 1, 0]);
}

#[test]
fn a_flow_that_is_gone_holds_nothing_up() {
    let mut world = World::new(vec![Plan::at_once(), Plan::after(vec![below(0, 58_982)])]);
    world.words.word(0, 0).pend(0);
    world.emit(1, 0, 2, 99);
    world.rounds(2);
    assert_eq!(world.manager.undecided(), 1);
    for task in 0..2 {
        world.words.word(task, 0).retire();
    }
    // Other flows go on.
    world.emit(0, 1, 1, 50);
    world.emit(1, 1, 2, 99);
    world.rounds(4);
    assert_eq!(world.fates(1), [1, 1, 0]);
    assert_eq!(world.class(1, 1), Some(2));
}

#[test]
fn the_task_that_is_due_first_fires_first_and_one_batch_a_lane() {
    let patient = |ms| Plan {
        policy: Policy::Timeout {
            timeout: Duration::from_millis(ms),
        },
        ..Plan::at_once()
    };
    let mut world = World::new(vec![patient(2), patient(1)]);
    world.emit(0, 0, 1, 99);
    world.emit(1, 0, 1, 99);
    world.rounds(1);
    // Both are overdue: the more urgent one takes the lane, and the other has it in the next round.
    world.now_us += 10_000;
    world.rounds(1);
    assert_eq!(*world.log.lock().unwrap(), [(1, 1)]);
    world.rounds(1);
    assert_eq!(*world.log.lock().unwrap(), [(1, 1), (0, 1)]);
    // On lanes of their own they fire side by side.
    let mut world = World::new(vec![
        Plan::at_once(),
        Plan {
            lane: 1,
            ..Plan::at_once()
        },
    ]);
    world.emit(0, 0, 1, 99);
    world.emit(1, 0, 1, 99);
    world.rounds(1);
    assert_eq!(world.log.lock().unwrap().len(), 2);
}

#[test]
fn what_works_on_the_managers_thread_is_submitted_last() {
    let elsewhere = || Plan {
        lane: 1,
        ..Plan::at_once()
    };
    let mut world = World::new(vec![Plan::at_once(), elsewhere()]);
    for flow in 0..3 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(2);
    }
    let log = world.log.lock().unwrap();
    assert_eq!(log[..4], [(11, 1), (0, 1), (11, 1), (0, 1)]);
}

#[test]
fn where_nothing_is_due_the_task_that_has_waited_longest_fires_first() {
    let full = || Plan {
        policy: Policy::Max,
        ..Plan::at_once()
    };
    let mut world = World::new(vec![full(), full()]);
    let batch = |world: &mut World, task, flows: std::ops::Range<u32>| {
        flows.for_each(|flow| world.emit(task, flow, 1, 99));
    };
    // The first task never runs out of full batches.
    batch(&mut world, 1, 0..8);
    for flows in [0, 8, 16].map(|first| first..first + 8) {
        batch(&mut world, 0, flows);
        world.rounds(1);
    }
    assert_eq!(*world.log.lock().unwrap(), [(0, 8), (1, 8), (0, 8)]);
}

#[test]
fn in_a_crowd_the_task_with_the_greatest_priority_goes_first() {
    let of = |priority| Plan {
        priority,
        ..Plan::at_once()
    };
    let mut world = World::new(vec![of(1), of(2), of(0)]);
    let play = |world: &mut World, rounds| {
        for _ in 0..rounds {
            (0..3).for_each(|task| world.fill(task));
            world.rounds(1);
        }
        [0, 1, 2].map(|task| world.batches(task))
    };
    // One batch a round: all are of the second task.
    assert_eq!(play(&mut world, 40), [0, 40, 0]);
    // What it leaves is for the others, the first of them first.
    for _ in 0..40 {
        world.fill(0);
        world.fill(2);
        world.rounds(1);
    }
    let [first, second, third] = [0, 1, 2].map(|task| world.batches(task));
    assert!(first > 25 && second < 50 && third == 0, "{first} {second}");
}

#[test]
fn a_task_that_an_important_one_waits_for_is_not_starved() {
    let of = |priority, plan| Plan { priority, ..plan };
    let mut world = World::new(vec![
        of(0, Plan::at_once()),
        of(0, Plan::after(vec![below(0, 65_535)])),
        of(9, Plan::after(vec![below(1, 65_535)])),
        of(5, Plan::at_once()),
    ]);
    for flow in 0..50 {
        (0..3).for_each(|task| world.emit(task, flow, 1, 50));
        for _ in 0..8 {
            world.fill(3);
            world.rounds(1);
        }
        assert_eq!(world.class(2, flow), Some(1), "flow {flow}");
    }
    assert!(world.batches(3) > 200);
}

#[test]
fn nor_does_that_task_starve_the_important_one() {
    let important = Plan {
        policy: Policy::Max,
        priority: 9,
        ..Plan::after(vec![below(0, 65_535)])
    };
    let mut world = World::new(vec![Plan::at_once(), important]);
    // The first task always has a batch, which is due at once. The second one's never are.
    for flow in 0..64 {
        world.emit(0, flow, 1, 50);
        world.emit(1, flow, 1, 50);
        world.rounds(1);
    }
    for _ in 0..20 {
        world.fill(0);
        world.rounds(1);
    }
    let [first, second] = [0, 1].map(|task| world.batches(task));
    assert!(second >= 7, "{first} {second}");
}

#[test]
fn full_batches_are_not_waited_for_where_a_replay_waits_for_their_labels() {
    let on_off = Policy::OnOff {
        latency_goal: Duration::from_millis(2),
        delta: 0.05,
    };
    for (policy, gathers, is_labelled) in [
        (Policy::Max, true, true),
        (Policy::Max, false, false),
        (on_off, true, true),
    ] {
        let plan = Plan {
            policy,
            batch_us: Some(100.0),
            ..Plan::at_once()
        };
        let mut world = World::new(vec![plan]);
        if gathers {
            world.manager.gather();
        }
        for flow in 0..4 {
            world.emit(0, flow, 1, 99);
            world.rounds(100);
        }
        let waiting = world.manager.undecided();
        assert!(policy != Policy::Max || waiting == 4, "more come");
        world.rounds(500);
        let left = world.manager.undecided();
        assert_eq!(left == 0, is_labelled, "{policy:?}, {gathers}: {left}");
    }
}

#[test]
fn a_device_that_fails_leaves_the_other_tasks_alone() {
    let failing = Plan {
        fails: true,
        ..Plan::at_once()
    };
    let mut world = World::new(vec![Plan::at_once(), failing]);
    for flow in 0..10 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(3);
    }
    assert_eq!((world.fates(0), world.fates(1)), ([10, 0, 0], [0, 0, 10]));
    assert_eq!(world.class(0, 9), Some(1));
}

#[test]
fn a_probe_takes_its_lane_and_is_not_kept_from_it() {
    let failing = Plan {
        fails: true,
        ..Plan::at_once()
    };
    let slow = Arc::new(AtomicBool::new(false));
    let other = Plan {
        hangs: slow.clone(),
        ..Plan::at_once()
    };
    let mut world = World::new(vec![other, failing]);
    world.emit(1, 0, 1, 99);
    world.rounds(3);
    let probes = |world: &World| world.manager.tasks()[1].counters().devices[0].probes;
    // A batch of the other task is on the lane while the back-off ends, and for some time after.
    world.now_us += 9_000;
    slow.store(true, Ordering::Relaxed);
    world.emit(0, 0, 1, 99);
    world.rounds(200);
    assert_eq!(probes(&world), 0);
    // Then the probe goes, though the other task always has another batch.
    slow.store(false, Ordering::Relaxed);
    world.fill(0);
    world.rounds(1);
    assert_eq!((probes(&world), world.batches(0)), (1, 1));
    world.rounds(1);
    assert_eq!(world.batches(0), 2);
}

#[test]
fn a_session_that_hangs_leaves_the_other_tasks_of_its_lane_alone() {
    let hanging = Plan {
        hangs: Arc::new(true.into()),
        ..Plan::at_once()
    };
    let mut world = World::new(vec![Plan::at_once(), hanging]);
    world.emit(1, 0, 1, 99);
    world.rounds(600);
    for flow in 1..10 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(3);
    }
    assert_eq!((world.fates(0), world.fates(1)), ([9, 0, 0], [0, 0, 10]));
    world.producers.clear();
    world.manager.drain();
    world.rounds(2);
    assert!(world.manager.is_done());
}

#[test]
fn where_a_shared_device_hangs_all_its_tasks_shed_until_it_answers() {
    let hangs = Arc::new(AtomicBool::new(true));
    let shares = || Plan {
        lane: 1,
        hangs: hangs.clone(),
        ..Plan::at_once()
    };
    let mut world = World::new(vec![shares(), shares()]);
    for flow in 0..20 {
        world.emit(0, flow, 1, 99);
        world.emit(1, flow, 1, 99);
        world.rounds(100);
    }
    // Each loses a batch by its own deadline, one after the other; then all is shed.
    for task in 0..2 {
        let counters = world.manager.tasks()[task].counters();
        assert!(counters.failed_no_other_device > 0, "task {task}");
        assert!(counters.shed_no_device > 0, "task {task}");
        assert_eq!(counters.devices[0].failures(FailureKind::Deadline), 1);
        assert_eq!(world.fates(task)[2], 20);
    }
    // It answers, and is probed after its back-off.
    hangs.store(false, Ordering::Relaxed);
    world.rounds(1100);
    for task in 0..2 {
        world.emit(task, 20, 2, 99);
        world.rounds(4);
        assert_eq!(world.class(task, 20), Some(2), "task {task}");
    }
}

/// An urgent task and a slow one, on two devices that both may use; the slow one's second device fails or not.
fn urgent_and_slow(slow_us: f64, fails: bool) -> World {
    let goal = |ms, batch_us, fails| Plan {
        policy: Policy::Slo {
            latency_goal: Duration::from_millis(ms),
            delta: 0.05,
        },
        second_lane: Some(1),
        batch_us: Some(batch_us),
        fails,
        ..Plan::at_once()
    };
    World::new(vec![goal(2, 100.0, false), goal(50, slow_us, fails)])
}

/// The lanes on which a task's batches ran.
fn lanes_of(world: &World, task: usize) -> Vec<usize> {
    let log = world.log.lock().unwrap();
    let own = log.iter().filter(|(device, _)| device % 10 == task);
    let mut lanes: Vec<usize> = own.map(|(device, _)| device / 10).collect();
    lanes.sort_unstable();
    lanes.dedup();
    lanes
}

#[test]
fn a_slow_task_leaves_a_device_to_one_whose_goal_could_not_hold_otherwise() {
    let run = |mut world: World| {
        for flow in 0..40 {
            world.emit(0, flow, 1, 99);
            world.emit(1, flow, 1, 99);
            world.rounds(5);
        }
        // Until all were due.
        world.now_us += 100_000;
        world.rounds(10);
        world
    };
    // Both fit into two milliseconds: all devices are for all.
    let world = run(urgent_and_slow(500.0, false));
    let left = |world: &World| [0, 1].map(|task| world.manager.tasks()[task].devices_left());
    assert_eq!(left(&world), [0, 0]);
    assert_eq!(lanes_of(&world, 1), [0, 1]);
    // They do not: the slow one runs on the second device only.
    let world = run(urgent_and_slow(10_000.0, false));
    assert_eq!(left(&world), [0, 1]);
    assert_eq!(lanes_of(&world, 1), [1]);
    assert_eq!(lanes_of(&world, 0), [0, 1]);
    assert_eq!(
        [0, 1].map(|task| world.manager.tasks()[task].unreachable()),
        [None, None]
    );
    assert_eq!((world.fates(0)[0], world.fates(1)[0]), (40, 40));
    // Where that one is down, it goes to the first.
    let world = run(urgent_and_slow(10_000.0, true));
    assert_eq!(lanes_of(&world, 1), [0, 1]);
}

/// Two tasks with goals of 50 ms, which come to full batches of 8.
fn two_with_goals() -> World {
    let goal = || Plan {
        policy: slo(50),
        batch_us: Some(100.0),
        ..Plan::at_once()
    };
    let mut world = World::new(vec![goal(), goal()]);
    world.play(2000);
    let before = world.batches(0);
    world.play(80);
    assert_eq!(world.batches(0) - before, 10);
    world
}

#[test]
fn the_tasks_of_a_cascade_leave_each_other_their_part_of_the_goal() {
    let goal = |ms, needs| Plan {
        policy: slo(ms),
        batch_us: Some(100.0),
        ..Plan::after(needs)
    };
    // Alone, the first could wait 7 ms for a batch of 8. Both have to label within 10 ms.
    let cascade = vec![goal(50, vec![]), goal(10, vec![below(0, 65_535)])];
    let mut world = World::new(cascade);
    world.play(2000);
    let mut batches = [0, 1].map(|task| world.batches(task));
    let slo = |world: &World, task: usize| world.manager.tasks()[task].counters().slo;
    let before = [0, 1].map(|task| slo(&world, task));
    world.play(2000);
    for task in 0..2 {
        let slo = slo(&world, task);
        assert_eq!(slo.violations - before[task].violations, 0, "task {task}");
        assert!(slo.periods - before[task].periods >= 9, "{slo:?}");
        batches[task] = world.batches(task) - batches[task];
    }
    assert!(batches[0] >= 350, "batches of at most 6: {batches:?}");
    assert!(batches[1] <= 1500, "and not one by one: {batches:?}");
}

#[test]
fn a_shorter_goal_is_kept_at_once() {
    let mut world = two_with_goals();
    world.play(100);
    world.set_policy(0, slo(2));
    world.rounds(2);
    for _ in 0..100 {
        world.play(1);
        // Series that come now are labelled in time; those of the other task wait for their batch.
        world.rounds(100);
        assert_eq!(world.class(0, world.turn), Some(1));
    }
}

#[test]
fn a_change_of_one_task_leaves_the_others_their_batches() {
    let mut world = two_with_goals();
    let before = world.batches(0);
    world.set_policy(1, slo(40));
    world.play(80);
    assert_eq!(world.batches(0) - before, 10);
}

#[test]
fn a_goal_is_judged_by_the_model_in_use() {
    let of = |batch_us| Plan {
        policy: slo(2),
        batch_us: Some(batch_us),
        ..Plan::at_once()
    };
    let mut world = World::new(vec![of(100.0)]);
    world.rounds(1);
    assert_eq!(world.manager.tasks()[0].unreachable(), None);
    // The same sizes, and another profile.
    let accelerator = of(3_000.0).accelerator(0, 0, false, &world.log);
    let task = &mut world.manager.tasks_mut()[0];
    let model = NewModel {
        accelerators: vec![accelerator],
        generation: 1,
    };
    task.prepare(Standby {
        model: Some(model),
        settings: None,
    })
    .unwrap();
    task.commit();
    world.rounds(1);
    let unreachable = world.manager.tasks()[0].unreachable();
    assert_eq!(unreachable, Some(Duration::from_millis(3)));
}

#[test]
fn a_goal_that_is_shorter_than_a_batch_is_said_to_be_out_of_reach() {
    let slow = Plan {
        policy: Policy::Slo {
            latency_goal: Duration::from_millis(2),
            delta: 0.05,
        },
        batch_us: Some(3_000.0),
        ..Plan::at_once()
    };
    let mut world = World::new(vec![Plan::at_once(), slow]);
    world.rounds(1);
    let unreachable = [0, 1].map(|task| world.manager.tasks()[task].unreachable());
    // The task that nobody has measured counts with what is assumed of it.
    assert_eq!(unreachable, [None, Some(Duration::from_micros(3_180))]);
}
