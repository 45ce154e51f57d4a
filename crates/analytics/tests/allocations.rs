//! A round allocates nothing once the manager is warm: not to look, to gather, to collect, nor to label, under any
//! policy, with a cache that is full, and while series are shed because no device is up.
//!
//! Counted are those of the test's own thread, for the harness has others. What allocates by design is not here: the text of a device's error, and a swap of the model.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

use accel::{Classification, Device, DeviceError, Profile, Sizes};
use allocation_counter::measure;
use analytics::{Accelerator, CacheConfig, Config, Manager, Policy, RingInput, Task};
use cring::{Feature, Features, FlowRef, LabelWord, Labels, Producer, Slot};
use std::sync::Arc;
use std::time::Duration;

const K: usize = 10;
const LARGEST: usize = 64;
const FLOWS: u32 = 512;

/// Answers at the next poll, until it is told to fail for ever.
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

struct World {
    manager: Manager,
    words: Arc<Vec<LabelWord>>,
    producer: Producer<Slot>,
    number: u32,
    now_ns: u64,
}

impl World {
    /// Two devices that do so many batches each.
    fn new(policy: Policy, prefix: usize, batches: usize) -> Self {
        let (producer, series) = cring::ring(1024);
        let words: Arc<Vec<_>> = Arc::new((0..FLOWS).map(|_| LabelWord::new()).collect());
        let labels = words.clone();
        let accelerator = |()| Accelerator {
            device: Box::new(Quick {
                sizes: Sizes::Fixed(vec![8, LARGEST]),
                input: vec![0.0; LARGEST * K],
                answers: vec![Classification::default(); LARGEST],
                rows: None,
                batches_left: batches,
            }),
            profile: Some(Profile {
                t0_us: 10.0,
                t1_us: 0.1,
            }),
            deadline: Some(Duration::from_millis(1)),
            lane: 0,
        };
        let config = Config {
            context: Vec::new(),
            k: K,
            features: vec![Feature::SignedLength],
            policy,
            cache: CacheConfig {
                prefix,
                entries: 200,
                audit: 0.1,
            },
            probe: Vec::new(),
            word: 0,
            priority: 0,
            after: analytics::After::default(),
        };
        let task = Task::new(
            config,
            vec![RingInput { series, labels }],
            [(), ()].map(accelerator).into(),
        );
        Self {
            manager: Manager::new(vec![task.unwrap()]),
            words,
            producer,
            number: 0,
            now_ns: 0,
        }
    }

    /// Rounds of 50 µs with five new series each, of which every third has been there before.
    fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for _ in 0..5 {
                let index = self.number % FLOWS;
                let word = self.words.word(0, index);
                let generation = word.retire();
                word.pend(generation);
                let length = if self.number.is_multiple_of(3) {
                    7
                } else {
                    self.number as u16
                };
                self.number += 1;
                assert!(self.producer.push(|slot| {
                    slot.flow = FlowRef { index, generation };
                    slot.emitted_ns = self.now_ns;
                    slot.series.begin(6, K, Features::LENGTHS);
                    slot.series.channel_mut(Feature::SignedLength)[0] = length;
                }));
            }
            self.producer.publish();
            self.now_ns += 50_000;
            self.manager.round(self.now_ns);
        }
    }
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
        Policy::CarryOver {
            timeout,
            phi: 0.2,
            max_wait: 5 * timeout,
        },
        Policy::Slo {
            latency_goal: 2 * timeout,
            delta: 0.05,
        },
    ] {
        let mut world = World::new(policy, 0, usize::MAX);
        assert_eq!(allocations(&mut world), 0, "{policy:?}");
        let counters = world.manager.tasks()[0].counters();
        assert!(
            counters.inferred > 19_000 && counters.failed() == 0,
            "{policy:?}"
        );
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
    assert_eq!(
        world.manager.tasks()[0]
            .health()
            .filter(|device| device.state.is_up())
            .count(),
        0
    );
    let probes = |world: &World| {
        world.manager.tasks()[0]
            .counters()
            .devices
            .iter()
            .map(|d| d.probes)
            .sum::<u64>()
    };
    let probed = probes(&world);
    let allocated = measure(|| world.rounds(2000)).count_total;
    // Each failed probe leaves its name and its message behind.
    assert!(allocated <= 10 * (probes(&world) - probed));
    assert!(world.manager.tasks()[0].counters().shed_no_device > 9000);
}

/// What whoever watches copies into memory that it has.
#[test]
fn a_copy_of_the_counters_allocates_nothing() {
    let mut world = World::new(Policy::None, K, usize::MAX);
    let mut copy = world.manager.tasks()[0].counters().clone();
    world.rounds(2000);
    let copied = measure(|| copy.copy_from(world.manager.tasks()[0].counters()));
    assert_eq!(copied.count_total, 0);
    assert_eq!(copy.series, world.manager.tasks()[0].counters().series);
}
