//! The series' walk without a model: what a policy's decision costs, and what a series costs from
//! ring slot to label word where the device answers at once.

use accel::{Classification, Device, DeviceError, Sizes};
use analytics::batching::{Situation, SloPlan};
use analytics::{Accelerator, CacheConfig, Config, Manager, Policy, Round, Task};
use cring::{Feature, Features, Series};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fenxi_benches::series::Feed;
use std::hint::black_box;
use std::time::Duration;

const K: usize = 10;
const LARGEST: usize = 64;
/// Series per round.
const SERIES: u32 = LARGEST as u32;

/// Answers at the next poll that everything is of class 0.
struct NullDevice {
    sizes: Sizes,
    input: [f32; LARGEST * K],
    answers: [Classification; LARGEST],
    rows: Option<usize>,
}

impl Device for NullDevice {
    fn requested(&self) -> &str {
        "null"
    }

    fn effective(&self) -> &str {
        "null"
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
        black_box(&self.input);
        self.rows = Some(rows);
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        self.rows.take().map(|rows| Ok(&self.answers[..rows]))
    }
}

fn sizes() -> Sizes {
    Sizes::Fixed(vec![1, 8, 16, 32, LARGEST])
}

fn decide(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    let (sizes, timeout) = (sizes(), Duration::from_millis(10));
    let carry_over = Policy::CarryOver { timeout, phi: 0.2, max_wait: 5 * timeout };
    for (name, policy) in [
        ("none", Policy::None),
        ("timeout", Policy::Timeout { timeout }),
        ("carry_over", carry_over),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                policy.decide(black_box(&Situation {
                    waiting: 19,
                    oldest_waited: Duration::from_millis(12),
                    oldest_age: Duration::from_millis(12),
                    timer: Duration::from_millis(11),
                    sizes: &sizes,
                    profile: None,
                    plan: SloPlan::AT_ONCE,
                    ring_full: false,
                    draining: false,
                    stalled: false,
                }))
            });
        });
    }
    group.finish();
}

/// A series of its own for each number.
fn fill(series: &mut Series, number: u64) {
    series.begin(6, K, Features::LENGTHS);
    let lengths = series.channel_mut(Feature::SignedLength);
    for (i, length) in lengths.iter_mut().enumerate() {
        *length = (number >> (6 * i)) as u16 & 63;
    }
}

/// One full batch: pushed, looked up, gathered, submitted, collected, labelled.
fn round(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round");
    group.throughput(Throughput::Elements(SERIES.into()));
    for (name, prefix, is_hit) in
        [("model", 0, false), ("cache_misses", K, false), ("cache_hits", K, true)]
    {
        let (mut feed, inlet) = Feed::new(Vec::new(), 2 * LARGEST);
        let device = NullDevice {
            sizes: sizes(),
            input: [0.0; LARGEST * K],
            answers: [Classification::default(); LARGEST],
            rows: None,
        };
        let accelerator = Accelerator::from(Box::new(device) as Box<dyn Device>);
        let config = Config {
            context: Vec::new(),
            k: K,
            features: vec![Feature::SignedLength],
            policy: Policy::None,
            cache: CacheConfig { prefix, entries: 1 << 16, audit: 0.0 },
            probe: Vec::new(),
            word: 0,
            priority: 0,
            after: analytics::After::default(),
        };
        let task = Task::new(config, vec![inlet], vec![accelerator]);
        let mut task = task.expect("a valid configuration");
        // The device costs nothing, so a cache that reckoned would step aside.
        task.set_cost_clock(|| 0);
        let mut manager = Manager::new(vec![task]);
        let mut number = 0u64;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for _ in 0..SERIES {
                    number += u64::from(!is_hit);
                    feed.push_with(0, |series| fill(series, number));
                }
                feed.publish();
                while manager.round(0) != Round::Idle {}
            });
        });
        assert_eq!((manager.tasks()[0].counters().post_mortem, feed.shed), (0, 0));
        assert_eq!(manager.undecided(), 0);
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(40);
    targets = decide, round
}
criterion_main!(benches);
