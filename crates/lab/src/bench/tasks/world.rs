//! The real analytics manager with its tasks in virtual time: only devices take time, and they
//! take the thread's. Flows come as a Poisson process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use accel::{Device, Sizes};
use analytics::{
    Accelerator, After, CacheConfig, Config, Counters, Manager, Need, Policy, RingInput, Round,
    Settings, Standby, Task, Test,
};
use cring::{
    Depth, Feature, Features, FlowRef, Label, LabelWord, Labels, Producer, Series, Slot, TaskWords,
};
use fenxi_benches::virtual_device::{Time, VirtualDevice, now};

use super::graphs::Case;
use crate::bench::series::SLOTS;
use crate::rng::{Lot, Rng};
use fenxi::exit::Failure;

/// Elements of a series; the first is the flow's class, with which devices answer.
const K: usize = 3;
/// Flows that the table holds for each slot of the rings, so that none makes room for another
/// while it waits for a label.
const FLOWS_PER_SLOT: usize = 4;
/// The clock goes on by this while something waits and nothing happens: how exactly an age is met.
const TICK_NS: u64 = 5_000;

/// A manager of a case's tasks, and what comes down its rings.
pub struct World {
    manager: Manager,
    pub flows: Flows,
    clock: Time,
    configs: Vec<Config>,
}

impl World {
    /// Each task has its policy.
    ///
    /// # Errors
    /// The manager refuses a policy.
    pub fn new(case: &Case, policies: &[Policy], seed: u64) -> Result<World, Failure> {
        let clock = Time::default();
        let (flows, inputs) = Flows::new(case, seed);
        let (mut configs, mut tasks) = (Vec::new(), Vec::new());
        for (number, (input, policy)) in inputs.into_iter().zip(policies).enumerate() {
            let config = config(case, number, *policy);
            configs.push(config.clone());
            let (profile, sizes) = (case.nodes[number].profile, Sizes::Any { cap: case.cap });
            let device = VirtualDevice::new(K, profile, sizes, clock.clone());
            let device: Box<dyn Device> = Box::new(device);
            let accelerator = Accelerator { profile: Some(profile), ..device.into() };
            let task = Task::new(config, vec![input], vec![accelerator]);
            tasks.push(task.map_err(|error| Failure::software(error.to_string()))?);
        }
        Ok(World { manager: Manager::new(tasks), flows, clock, configs })
    }

    /// Goes on until then, or to the end of the batch that runs then.
    pub fn run_until(&mut self, end_ns: u64) {
        while self.now_ns() < end_ns {
            let now_ns = self.now_ns();
            self.flows.arrive(now_ns);
            let round = self.manager.round(now_ns);
            if self.now_ns() == now_ns && round == Round::Idle {
                let next_ns = match self.manager.undecided() > 0 {
                    true => self.flows.next_ns.min(now_ns + TICK_NS),
                    false => self.flows.next_ns,
                };
                self.clock.store(next_ns.min(end_ns), Ordering::Relaxed);
            }
        }
    }

    pub fn now_ns(&self) -> u64 {
        now(&self.clock)
    }

    /// What each task has counted.
    pub fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.manager.tasks().iter().map(|task| task.counters())
    }

    /// Changes the policies of all tasks as a reload does.
    ///
    /// # Errors
    /// The manager refuses a policy.
    pub fn reload(&mut self, policies: &[Policy]) -> Result<(), Failure> {
        let tasks = self.manager.tasks_mut().iter_mut();
        for ((task, old), policy) in tasks.zip(&mut self.configs).zip(policies) {
            let new = Config { policy: *policy, ..old.clone() };
            let settings = Settings::change(old, &new);
            let settings = settings.map_err(|error| Failure::software(error.to_string()))?;
            let standby = Standby { model: None, settings: Some(settings) };
            task.prepare(standby)
                .map_err(|refused| Failure::software(refused.error.to_string()))?;
            task.commit();
            let _retired = task.take_retired();
            *old = new;
        }
        Ok(())
    }
}

/// A task of a case.
fn config(case: &Case, number: usize, policy: Policy) -> Config {
    let classes = case.shares.len();
    let need = |(before, wanted): &(usize, Vec<bool>)| Need {
        words: TaskWords {
            first: *before as u8,
            depths: vec![Depth { sure: 0, classes, contradicts: None }],
        },
        test: Test::Class { is_wanted: wanted.clone(), without: false },
    };
    Config {
        k: K,
        features: vec![Feature::SignedLength],
        context: Vec::new(),
        policy,
        cache: CacheConfig { prefix: 0, entries: 0, audit: 0.0 },
        probe: Vec::new(),
        word: number as u8,
        priority: 0,
        after: After { needs: case.nodes[number].after.iter().map(need).collect() },
    }
}

/// The label words of all flows; a flow's words for all tasks are adjacent.
struct Words {
    words: Vec<LabelWord>,
    tasks: usize,
}

impl Labels for Words {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        &self.words[index as usize * self.tasks + usize::from(task)]
    }
}

/// The flow manager's side.
pub struct Flows {
    /// Flows a second.
    pub rate: f64,
    /// By task, then class: whether the task's ring gets series of such flows.
    emitted: Vec<Vec<bool>>,
    rings: Vec<Producer<Slot>>,
    words: Arc<Words>,
    rng: Rng,
    classes: Lot<u16>,
    next_ns: u64,
    /// Flows so far.
    count: usize,
    /// Flows that have label words of their own.
    table: usize,
    /// Series that found their ring full.
    pub shed: u64,
}

impl Flows {
    /// The flows of a case, and a ring for each of its tasks.
    fn new(case: &Case, seed: u64) -> (Flows, Vec<RingInput>) {
        let tasks = case.nodes.len();
        let table = FLOWS_PER_SLOT * SLOTS * tasks;
        let words = (0..tasks * table).map(|_| LabelWord::new()).collect();
        let words = Arc::new(Words { words, tasks });
        let ring = |_| {
            let (ring, series) = cring::ring(SLOTS);
            (ring, RingInput { series, labels: words.clone() })
        };
        let (rings, inputs) = (0..tasks).map(ring).unzip();
        let flows = Flows {
            rate: case.rate,
            emitted: case.nodes.iter().map(|node| node.emitted.clone()).collect(),
            rings,
            words,
            rng: Rng::new(seed),
            classes: Lot::new((0..).zip(case.shares.iter().copied())),
            next_ns: 0,
            count: 0,
            table,
            shed: 0,
        };
        (flows, inputs)
    }

    /// Begins all flows that have come until now.
    fn arrive(&mut self, now_ns: u64) {
        if self.next_ns > now_ns {
            return;
        }
        while self.next_ns <= now_ns {
            self.begin();
            self.next_ns += (self.rng.gap(self.rate) * 1e9) as u64;
        }
        self.rings.iter_mut().for_each(Producer::publish);
    }

    fn begin(&mut self) {
        let index = (self.count % self.table) as u32;
        self.count += 1;
        let class = self.classes.draw(&mut self.rng).unwrap_or_default();
        for (task, ring) in (0..).zip(&mut self.rings) {
            let word = self.words.word(task, index);
            let generation = word.retire();
            if !self.emitted[usize::from(task)][usize::from(class)] {
                continue;
            }
            word.pend(generation);
            let pushed = ring.push(|slot| {
                slot.flow = FlowRef { index, generation };
                slot.emitted_ns = self.next_ns;
                slot.series = Series::new(6, K, Features::LENGTHS);
                slot.series.set_signed(0, i32::from(class));
                slot.series.task = task;
            });
            if !pushed {
                self.shed += 1;
                // It cannot be post-mortem, because the ring does not have the series.
                let _ = word.decide(generation, Label::Unlabelled);
            }
        }
    }
}
