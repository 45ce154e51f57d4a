//! The manager in virtual time: only devices take time, so what a policy comes to is the same on
//! every machine.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so; clippy sees only #[test] functions as tests"
)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use accel::{Device, Profile, Sizes};
use analytics::{Accelerator, CacheConfig, Config, Counters, Manager, Policy, Task, Trigger};
use cring::{Feature, Features, Series};
use fenxi_benches::series::Feed;
use fenxi_benches::virtual_device::{Time, VirtualDevice, now};

/// Packets in a series; the devices do not look at them.
const K: usize = 10;
/// Slots of a ring; the default of the configuration.
const SLOTS: usize = 4096;
/// The clock goes on by this when nothing happens: how exactly a timeout is met.
const TICK_NS: u64 = 10_000;
const TIMEOUT: Duration = Duration::from_millis(10);
/// The carry-over policy with the defaults of the configuration.
const CARRY_OVER: Policy =
    Policy::CarryOver { timeout: TIMEOUT, phi: 0.2, max_wait: Duration::from_millis(50) };

/// A task's policy, its devices, and how many series a second it gets.
struct Plan {
    policy: Policy,
    profile: Profile,
    sizes: Sizes,
    devices: usize,
    rate_per_s: f64,
}

/// Series of one task, a Poisson process.
struct Arrivals {
    feed: Feed,
    rate_per_s: f64,
    next_ns: u64,
    random: u64,
}

impl Arrivals {
    fn until(&mut self, now_ns: u64) {
        while self.next_ns <= now_ns {
            self.feed.push(self.next_ns);
            // Xorshift64*; the upper bits are from 0 to below 1.
            self.random ^= self.random >> 12;
            self.random ^= self.random << 25;
            self.random ^= self.random >> 27;
            let bits = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
            let share = bits as f64 / (1_u64 << 53) as f64;
            self.next_ns += (-(1.0 - share).ln() / self.rate_per_s * 1e9) as u64;
        }
        self.feed.publish();
    }
}

struct World {
    manager: Manager,
    arrivals: Vec<Arrivals>,
    clock: Time,
    ready_ns: Vec<Time>,
}

impl World {
    fn new(plans: &[Plan], takes_the_thread: bool) -> World {
        let clock = Time::default();
        let (mut tasks, mut arrivals, mut all_ready_ns) = (Vec::new(), Vec::new(), Vec::new());
        for plan in plans {
            let sample = Series::new(6, K, Features::LENGTHS);
            let (feed, inlet) = Feed::new(vec![sample], SLOTS);
            let random = 0x9e37_79b9_7f4a_7c15 + arrivals.len() as u64;
            arrivals.push(Arrivals { feed, rate_per_s: plan.rate_per_s, next_ns: 0, random });
            let devices = (0..plan.devices).map(|_| {
                let (profile, sizes) = (plan.profile, plan.sizes.clone());
                let mut device = VirtualDevice::new(K, profile, sizes, clock.clone());
                device.takes_the_thread = takes_the_thread;
                all_ready_ns.push(device.ready_ns.clone());
                let device: Box<dyn Device> = Box::new(device);
                Accelerator { profile: Some(plan.profile), ..device.into() }
            });
            let config = Config {
                context: Vec::new(),
                k: K,
                features: vec![Feature::SignedLength],
                policy: plan.policy,
                cache: CacheConfig { prefix: 0, entries: 0, audit: 0.0 },
                probe: Vec::new(),
                word: 0,
                priority: 0,
                after: analytics::After::default(),
            };
            let devices = devices.collect();
            tasks.push(Task::new(config, vec![inlet], devices).unwrap());
        }
        World { manager: Manager::new(tasks), arrivals, clock, ready_ns: all_ready_ns }
    }

    /// Goes on for this long, a round whenever something happens; `after_round` sees the manager.
    fn run(&mut self, seconds: f64, mut after_round: impl FnMut(&Manager)) {
        let end_ns = now(&self.clock) + (seconds * 1e9) as u64;
        while now(&self.clock) < end_ns {
            let now_ns = now(&self.clock);
            self.arrivals.iter_mut().for_each(|it| it.until(now_ns));
            self.manager.round(now_ns);
            after_round(&self.manager);
            if now(&self.clock) == now_ns {
                let arrivals = self.arrivals.iter().map(|it| it.next_ns);
                let next_ns = arrivals.chain(self.ready_ns.iter().map(now)).min().unwrap();
                let next_ns = next_ns.clamp(now_ns + 1, now_ns + TICK_NS);
                self.clock.store(next_ns, Ordering::Relaxed);
            }
        }
    }

    fn counters(&self, task: usize) -> &Counters {
        self.manager.tasks()[task].counters()
    }

    /// 99th percentile of the time to label, ms.
    fn p99_ms(&self, task: usize) -> f64 {
        self.counters(task).time_to_label_us().value_at_quantile(0.99) as f64 / 1e3
    }
}

fn one(policy: Policy, cap: usize, rate_per_s: f64) -> Plan {
    // A CPU core with a model of some 100 k weights.
    let profile = Profile { t0_us: 5.0, t1_us: 4.0 };
    Plan { policy, profile, sizes: Sizes::Any { cap }, devices: 1, rate_per_s }
}

fn slo(ms: u64) -> Policy {
    Policy::Slo { latency_goal: Duration::from_millis(ms), delta: 0.05 }
}

/// Rows given to devices so far: series, padding.
fn rows(counters: &Counters) -> (u64, u64) {
    let batches = Trigger::ALL.map(|trigger| counters.batches(trigger));
    batches.iter().fold((0, 0), |sum, of| (sum.0 + of.series, sum.1 + of.padding))
}

#[test]
fn labels_come_within_the_timeout_or_the_goal() {
    let mut world = World::new(&[one(CARRY_OVER, 256, 50_000.0)], false);
    world.run(2.0, |_| ());
    assert!(world.p99_ms(0) <= 10.0, "{} ms", world.p99_ms(0));

    let mut world = World::new(&[one(slo(2), 1024, 50_000.0)], false);
    world.run(2.0, |_| ());
    assert!(world.p99_ms(0) <= 2.0, "{} ms", world.p99_ms(0));
    // The share of control periods above their objective that Batchy reports at the same δ.
    let slo = world.counters(0).slo;
    assert!(slo.violations as f64 <= 0.09 * slo.periods as f64, "{slo:?}");
}

/// FENXI Fig. 8. Padding takes the same share of a batch's time as of its rows.
#[test]
fn carry_over_pads_a_fifth_of_what_a_timeout_pads() {
    let profile = Profile { t0_us: 100.0, t1_us: 2.0 };
    let sizes = Sizes::Fixed((3..=10).map(|x| 1 << x).collect());
    let padding_s = |policy| {
        let sizes = sizes.clone();
        // 300 series wait at T: one batch of 512 with 212 rows of padding, or 256 and none.
        let plan = Plan { policy, profile, sizes, devices: 1, rate_per_s: 30_000.0 };
        let mut world = World::new(&[plan], false);
        let (mut before, mut padding_s) = ((0, 0), 0.0);
        world.run(2.0, |manager| {
            // One device takes one batch a round at most.
            let now = rows(manager.tasks()[0].counters());
            let (series, padding) = (now.0 - before.0, now.1 - before.1);
            let size = series + padding;
            if size > 0 {
                let batch_s = profile.latency(size as usize).as_secs_f64();
                padding_s += batch_s * padding as f64 / size as f64;
                before = now;
            }
        });
        // All that waits is labelled by then.
        assert!(world.p99_ms(0) < 60.0, "{} ms", world.p99_ms(0));
        padding_s
    };
    let (timeout, carry_over) =
        (padding_s(Policy::Timeout { timeout: TIMEOUT }), padding_s(CARRY_OVER));
    assert!((0.06..0.12).contains(&timeout), "{timeout} s");
    assert!(carry_over < timeout / 5.0, "{carry_over} of {timeout} s");
}

#[test]
fn two_devices_do_twice_as_much_as_one() {
    let profile = Profile { t0_us: 100.0, t1_us: 15.0 };
    let labels = |devices| {
        let plan = Plan { profile, devices, ..one(CARRY_OVER, 256, 130_000.0) };
        let mut world = World::new(&[plan], false);
        world.run(5.0, |_| ());
        world.counters(0).inferred as f64
    };
    let ratio = labels(2) / labels(1);
    assert!((1.9..=2.0).contains(&ratio), "{ratio}");
}

/// Two tasks share a thread that batches of one series keep busy for nine tenths of the time.
#[test]
fn goals_of_two_tasks_on_a_thread_are_kept_with_less_load() {
    let profiles = [Profile { t0_us: 5.0, t1_us: 1.7 }, Profile { t0_us: 5.0, t1_us: 4.0 }];
    let run = |policies: [Policy; 2]| {
        let plans = [0, 1]
            .map(|task| Plan { profile: profiles[task], ..one(policies[task], 256, 57_000.0) });
        let mut world = World::new(&plans, true);
        world.run(6.0, |_| ());
        let us = profiles.iter().enumerate().map(|(task, profile)| {
            let counters = world.counters(task);
            let batches = Trigger::ALL.map(|trigger| counters.batches(trigger).batches);
            let batches = batches.iter().sum::<u64>() as f64;
            profile.t0_us * batches + profile.t1_us * rows(counters).0 as f64
        });
        let load = us.sum::<f64>() / 6e6;
        (world, load)
    };
    let (none, load_of_none) = run([Policy::None, Policy::None]);
    let (world, load) = run([slo(3), slo(3)]);
    assert!(load_of_none < 1.0 && load < load_of_none / 1.5, "{load} against {load_of_none}");
    for task in [0, 1] {
        let slo = world.counters(task).slo;
        assert!(slo.periods >= 50 && slo.violations as f64 <= 0.09 * slo.periods as f64, "{slo:?}");
        let (labels, of_none) = (world.counters(task).inferred, none.counters(task).inferred);
        assert!(labels as f64 > 0.99 * of_none as f64, "{labels} of {of_none}");
    }
}
