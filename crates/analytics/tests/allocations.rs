//! A round allocates nothing once the manager is warm: not to look, to gather, to collect, nor to
//! label, under any policy, with a cache that is full, while series are shed because no device is
//! up, and with several tasks that share devices and wait for each other.
//!
//! Only the test's own thread is counted, because the harness has others. What allocates by design
//! is not here: the text of a device's error, and a swap of the model.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

use accel::{Classification, Device, DeviceError, Profile, Sizes};
use allocation_counter::measure;
use analytics::{
    Accelerator, After, CacheConfig, Config, Manager, Need, Policy, RingInput, Task, Test,
};
use cring::{Depth, Feature, Features, FlowRef, LabelWord, Labels, Producer, Slot, TaskWords};
use std::sync::Arc;
use std::time::Duration;

const K: usize = 10;
const LARGEST: usize = 64;
const FLOWS: u32 = 512;

/// Answers at the next poll, until it is told to fail from then on.
struct Quick {
    sizes: Sizes,
    input: Vec<f32>,
    answers: Vec<Classification>,
    rows: Option<usize>,
    batches_left: usize,
}

impl Device for Quick {
    fn requested(&self) -> &str {
        "quick"
    }

    fn effective(&self) -> &str {
        "quick"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.rows.is_none()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * K]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        self.rows = Some(rows);
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let rows = self.rows.take()?;
        let Some(left) = self.batches_left.checked_sub(1) else {
            return Some(Ok(&[])); // too few
        };
        self.batches_left = left;
        Some(Ok(&self.answers[..rows]))
    }
}

/// The label words of two tasks.
struct Words([Vec<LabelWord>; 2]);

impl Labels for Words {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        &self.0[usize::from(task)][index as usize]
    }
}

struct World {
    manager: Manager,
    words: Arc<Words>,
    producers: Vec<Producer<Slot>>,
    number: u32,
    now_ns: u64,
}

impl World {
    /// One task with two devices that do `batches` batches each.
    fn new(policy: Policy, prefix: usize, batches: usize) -> Self {
        Self::with_tasks(&[policy], prefix, batches)
    }

    /// Tasks with these policies, one or two. All devices are on one executor, and the second task
    /// is asked where the first is unsure, which it always is.
    fn with_tasks(policies: &[Policy], prefix: usize, batches: usize) -> Self {
        let words = || (0..FLOWS).map(|_| LabelWord::new()).collect();
        let words = Arc::new(Words([words(), words()]));
        let mut producers = Vec::new();
        let tasks = (0..).zip(policies).map(|(word, policy)| {
            let (producer, series) = cring::ring(1024);
            producers.push(producer);
            let labels = words.clone();
            task(word, *policy, prefix, batches, RingInput { series, labels })
        });
        Self { manager: Manager::new(tasks.collect()), words, producers, number: 0, now_ns: 0 }
    }

    /// Rounds of 50 µs with five new series each, of which every third has been there before.
    fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for _ in 0..5 {
                let index = self.number % FLOWS;
                let length = if self.number.is_multiple_of(3) { 7 } else { self.number as u16 };
                self.number += 1;
                for (task, producer) in (0..).zip(&mut self.producers) {
                    let word = self.words.word(task, index);
                    let generation = word.retire();
                    word.pend(generation);
                    assert!(producer.push(|slot| {
                        slot.flow = FlowRef { index, generation };
                        slot.emitted_ns = self.now_ns;
                        slot.series.begin(6, K, Features::LENGTHS);
                        slot.series.channel_mut(Feature::SignedLength)[0] = length;
                        slot.series.task = task;
                    }));
                }
            }
            self.producers.iter_mut().for_each(Producer::publish);
            self.now_ns += 50_000;
            self.manager.round(self.now_ns);
        }
    }
}

/// A task with two devices, which waits for the one before it.
fn task(word: u8, policy: Policy, prefix: usize, batches: usize, ring: RingInput) -> Task {
    let needs = word.checked_sub(1).map(|before| Need {
        words: TaskWords {
            first: before,
            depths: vec![Depth { sure: 0, classes: 2, contradicts: None }],
        },
        test: Test::Confidence(0..=1000),
    });
    let needs = needs.into_iter().collect();
    let accelerator = |()| Accelerator {
        device: Box::new(Quick {
            sizes: Sizes::Fixed(vec![8, LARGEST]),
            input: vec![0.0; LARGEST * K],
            answers: vec![Classification::default(); LARGEST],
            rows: None,
            batches_left: batches,
        }),
        profile: Some(Profile { t0_us: 10.0, t1_us: 0.1 }),
        deadline: Some(Duration::from_millis(1)),
        executor: 0,
    };
    let config = Config {
        context: Vec::new(),
        k: K,
        features: vec![Feature::SignedLength],
        policy,
        cache: CacheConfig { prefix, entries: 200, audit: 0.1 },
        probe: Vec::new(),
        word,
        priority: word,
        after: After { needs },
    };
    Task::new(config, vec![ring], [(), ()].map(accelerator).into()).unwrap()
}

/// Allocations of this thread in 2,000 rounds, after as many to get warm.
fn allocations(world: &mut World) -> u64 {
    world.rounds(2000);
    measure(|| world.rounds(2000)).count_total
}

#[test]
fn a_warm_round_allocates_nothing() {
    let timeout = Duration::from_millis(1);
    for policy in [
        Policy::None,
        Policy::Timeout { timeout },
        Policy::CarryOver { timeout, phi: 0.2, max_wait: 5 * timeout },
        Policy::Slo { latency_goal: 2 * timeout, delta: 0.05 },
    ] {
        let mut world = World::new(policy, 0, usize::MAX);
        assert_eq!(allocations(&mut world), 0, "{policy:?}");
        let counters = world.manager.tasks()[0].counters();
        assert!(counters.inferred > 19_000 && counters.failed() == 0, "{policy:?}");
    }
}

#[test]
fn tasks_that_share_devices_and_wait_for_each_other_allocate_nothing() {
    let (latency_goal, delta) = (Duration::from_millis(5), 0.05);
    let timeout = Duration::from_millis(1);
    let slo = Policy::Slo { latency_goal, delta };
    let on_off = Policy::OnOff { latency_goal, delta };
    for policies in [
        [Policy::None, Policy::Max],
        [Policy::Max, Policy::None],
        [Policy::Timeout { timeout }, slo],
        [slo, slo],
        [on_off, on_off],
    ] {
        let mut world = World::with_tasks(&policies, 0, usize::MAX);
        assert_eq!(allocations(&mut world), 0, "{policies:?}");
        for task in world.manager.tasks() {
            let counters = task.counters();
            assert!(counters.inferred > 19_000, "{policies:?}: {counters:?}");
            assert_eq!((counters.failed(), counters.shed()), (0, 0));
        }
    }
}

#[test]
fn a_full_cache_allocates_nothing() {
    let mut world = World::new(Policy::None, K, usize::MAX);
    world.manager.tasks_mut()[0].set_cost_clock(|| 0);
    let allocated = allocations(&mut world);
    let cache = world.manager.tasks()[0].counters().cache;
    assert!(cache.hits > 5000 && cache.audits_agree > 500);
    assert_eq!(allocated, 0);
}

#[test]
fn shedding_allocates_nothing() {
    let mut world = World::new(Policy::None, 0, 10);
    world.rounds(100);
    assert_eq!(world.manager.tasks()[0].health().filter(|device| device.state.is_up()).count(), 0);
    let probes = |world: &World| {
        world.manager.tasks()[0].counters().devices.iter().map(|d| d.probes).sum::<u64>()
    };
    let probed = probes(&world);
    let allocated = measure(|| world.rounds(2000)).count_total;
    // Each failed probe leaves its name and its message behind.
    assert!(allocated <= 10 * (probes(&world) - probed));
    assert!(world.manager.tasks()[0].counters().shed_no_device > 9000);
}

/// A reader copies the counters into memory that it has.
#[test]
fn a_copy_of_the_counters_allocates_nothing() {
    let mut world = World::new(Policy::None, K, usize::MAX);
    let mut copy = world.manager.tasks()[0].counters().clone();
    world.rounds(2000);
    let copied = measure(|| copy.copy_from(world.manager.tasks()[0].counters()));
    assert_eq!(copied.count_total, 0);
    assert_eq!(copy.series, world.manager.tasks()[0].counters().series);
}
