//! Several tasks on one thread: which is asked, which fires first, and that the sums of each add
//! up.

mod failures;
mod goals;
mod order;

use super::*;
use crate::{
    After, CacheConfig, Coming, Config, FailureKind, Need, NewModel, Policy, RingInput, Settings,
    Standby, Test,
};
use accel::{Classification, Device, DeviceError, Profile, Sizes};
use cring::{
    Depth, Feature, Features, FlowRef, Label, LabelWord, Labels, Producer, Series, Slot, TaskWords,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const CLASSES: usize = 3;
const TASKS: usize = 4;
/// A batch on its way for longer than this counts as lost.
const DEADLINE: Duration = Duration::from_millis(5);

/// The label words of all tasks, flow by flow.
struct Words(Vec<LabelWord>);

impl Labels for Words {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        &self.0[index as usize * TASKS + usize::from(task)]
    }
}

/// Which device ran a batch of how many rows, in order: the task's number, plus 10 for each
/// executor.
type Log = Arc<Mutex<Vec<(usize, usize)>>>;

/// Answers at the next poll: the class is the first number of a row, the confidence a hundredth of
/// the second.
struct Echo {
    number: usize,
    sizes: Sizes,
    input: Vec<f32>,
    answers: Vec<Classification>,
    in_flight: bool,
    /// Once it has failed it never works again.
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
            self.answers.push(Classification { class: row[0] as u16, confidence: row[1] / 100.0 });
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

    fn probabilities(&mut self) -> &[f32] {
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

/// One task: its policy, what it depends on, and the executor of its device or two devices.
struct Plan {
    policy: Policy,
    after: After,
    executor: u8,
    second_executor: Option<u8>,
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
            executor: 0,
            second_executor: None,
            batch_us: None,
            fails: false,
            hangs: Arc::default(),
            priority: 0,
        }
    }

    fn after(needs: Vec<Need>) -> Plan {
        Plan { after: After { needs }, ..Plan::at_once() }
    }

    fn accelerator(
        &self,
        number: usize,
        executor: u8,
        fails: bool,
        log: &Log,
    ) -> crate::Accelerator {
        let device: Box<dyn Device> = Box::new(Echo {
            number: number + 10 * usize::from(executor),
            sizes: Sizes::Any { cap: 8 },
            input: vec![0.0; 16],
            answers: Vec::with_capacity(8),
            in_flight: false,
            fails,
            hangs: self.hangs.clone(),
            log: log.clone(),
        });
        let profile = self.batch_us.map(|t0_us| Profile { t0_us, t1_us: 0.0 });
        crate::Accelerator { executor, profile, deadline: Some(DEADLINE), ..device.into() }
    }
}

fn below(task: u8, confidence: u16) -> Need {
    Need { words: words_of(task), test: Test::Confidence(0..=confidence - 1) }
}

fn words_of(task: u8) -> TaskWords {
    TaskWords { first: task, depths: vec![Depth { sure: 0, classes: CLASSES, contradicts: None }] }
}

fn config(policy: Policy) -> Config {
    Config {
        k: 2,
        features: vec![Feature::SignedLength],
        context: Vec::new(),
        policy,
        cache: CacheConfig { prefix: 0, entries: 0, audit: 0.0 },
        probe: Vec::new(),
        word: 0,
        priority: 0,
        after: After::default(),
    }
}

fn slo(ms: u64) -> Policy {
    Policy::Slo { latency_goal: Duration::from_millis(ms), delta: 0.05 }
}

impl World {
    fn new(plans: Vec<Plan>) -> World {
        let words = Words((0..64 * TASKS).map(|_| LabelWord::new()).collect());
        let (words, log) = (Arc::new(words), Log::default());
        let mut producers = Vec::new();
        let tasks = plans.into_iter().enumerate().map(|(number, plan)| {
            let (producer, series) = cring::ring(64);
            producers.push(producer);
            let input = RingInput { series, labels: words.clone() };
            let fails_first = plan.fails && plan.second_executor.is_none();
            let first = plan.accelerator(number, plan.executor, fails_first, &log);
            let second = plan.second_executor;
            let second =
                second.map(|executor| plan.accelerator(number, executor, plan.fails, &log));
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
        World { manager, producers, words, log, now_us: 0, turn: 0 }
    }

    /// A flow asks a task, with the answer that it is to give.
    fn emit(&mut self, task: u8, flow: u32, class: u16, percent: u16) {
        self.words.word(task, flow).pend(0);
        self.push(task, flow, class, percent);
    }

    /// The same for a flow that has asked already.
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

    /// Gives each task a series every millisecond, for `ms` milliseconds; flows are used again when
    /// their labels are there.
    fn play(&mut self, ms: u32) {
        for _ in 0..ms {
            self.turn = (self.turn + 1) % 64;
            (0..self.producers.len() as u8).for_each(|task| self.ask(task));
            self.rounds(100);
        }
    }

    /// A new flow, in the place whose turn it is, asks a task.
    fn ask(&mut self, task: u8) {
        let generation = self.words.word(task, self.turn).retire();
        self.words.word(task, self.turn).pend(generation);
        self.push_of(task, (self.turn, generation), 1, 99);
    }

    /// As many flows ask a task as its ring has room for.
    fn fill(&mut self, task: u8) {
        while self.producers[usize::from(task)].free() > 0 {
            self.turn = (self.turn + 1) % 64;
            self.ask(task);
        }
    }

    /// Sets the policy of a task from now on.
    fn set_policy(&mut self, task: usize, policy: Policy) {
        self.configure(task, &config(policy));
    }

    fn configure(&mut self, task: usize, new: &Config) {
        let task = &mut self.manager.tasks_mut()[task];
        let settings = Settings::change(&config(task.terms().policy), new).unwrap();
        task.prepare(Standby { model: None, settings: Some(settings) }).unwrap();
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

    /// Series by their outcome: inferred, not asked, shed or failed.
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
    assert_eq!(world.manager.undecided(), 6, "the expensive one waits for the cheap one");
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
        policy: Policy::Timeout { timeout: Duration::from_millis(ms) },
        ..Plan::at_once()
    };
    let urgent = Plan {
        policy: Policy::Slo { latency_goal: Duration::from_millis(2), delta: 0.05 },
        batch_us: Some(100.0),
        ..Plan::at_once()
    };
    let rest = |second| {
        let mut world = World::new(vec![patient(80), second]);
        world.emit(0, 0, 1, 99);
        world.rounds(1);
        assert_eq!(world.manager.undecided(), 1);
        world.manager.time_until_due(world.now_us * 1000 + 10_000_000)
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
    assert_eq!([0, 1, 2].map(|flow| world.class(2, flow)), [Some(0), None, None]);
    assert_eq!(world.fates(2), [1, 2, 0]);
}

#[test]
fn a_task_that_failed_counts_as_unsure_and_one_that_was_not_asked_ends_the_chain() {
    let failing = Plan { fails: true, ..Plan::at_once() };
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
fn full_batches_are_not_waited_for_where_a_replay_waits_for_their_labels() {
    let on_off = Policy::OnOff { latency_goal: Duration::from_millis(2), delta: 0.05 };
    for (policy, gathers, is_labelled) in
        [(Policy::Max, true, true), (Policy::Max, false, false), (on_off, true, true)]
    {
        let plan = Plan { policy, batch_us: Some(100.0), ..Plan::at_once() };
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
