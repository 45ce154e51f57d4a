//! An analytics manager in virtual time: the bench advances the clock, and devices are ready when
//! the clock says so.
//!
//! Only the devices take time. So the result depends on the policy, the profile and the arrivals
//! alone, it is the same on every machine, and hours pass in seconds. The manager is the real one:
//! a round takes the time as an argument and reads no clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use accel::{Classification, Device, DeviceError, Profile, Sizes};
use analytics::{Accelerator, Manager, Policy};
use cring::{Features, Series};

use super::{SLOTS, manager};
use crate::rng::Rng;
use fenxi::exit::Failure;
use fenxi_benches::series::Feed;

const NAME: &str = "virtual";
/// Packets in a series; the devices do not look at them.
const K: usize = 10;
/// The clock goes on by this when nothing happens: how exactly a timeout is met.
const TICK_NS: u64 = 10_000;
/// When a device without a batch is ready.
const NEVER: u64 = u64::MAX;

/// A time that several objects of one thread share, ns.
type Time = Arc<AtomicU64>;

/// A device that is ready when the virtual clock has reached the end of its batch.
struct VirtualDevice {
    profile: Profile,
    sizes: Sizes,
    input: Vec<f32>,
    results: Vec<Classification>,
    now_ns: Time,
    /// When the batch in flight is ready.
    ready_ns: Time,
}

impl Device for VirtualDevice {
    fn requested(&self) -> &str {
        NAME
    }

    fn effective(&self) -> &str {
        NAME
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.ready_ns.load(Ordering::Relaxed) == NEVER
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * K]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        let latency_ns = self.profile.latency(rows).as_nanos() as u64;
        let end_ns = self.now_ns.load(Ordering::Relaxed) + latency_ns;
        self.ready_ns.store(end_ns, Ordering::Relaxed);
        self.results.resize(rows, Classification::default());
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        if self.now_ns.load(Ordering::Relaxed) < self.ready_ns.load(Ordering::Relaxed) {
            return None;
        }
        self.ready_ns.store(NEVER, Ordering::Relaxed);
        Some(Ok(&self.results))
    }
}

/// A manager, equal devices, and series that arrive as a Poisson process.
pub struct Simulation {
    pub manager: Manager,
    feed: Feed,
    rng: Rng,
    now_ns: Time,
    ready_ns: Vec<Time>,
}

impl Simulation {
    /// `devices` devices of one profile, all with these sizes.
    ///
    /// # Errors
    /// When the manager refuses the policy or the sizes.
    pub fn new(
        policy: Policy,
        profile: Profile,
        sizes: &Sizes,
        devices: usize,
    ) -> Result<Simulation, Failure> {
        let sample = Series::new(0, K, Features::LENGTHS);
        let (feed, inlet) = Feed::new(vec![sample], SLOTS);
        let now_ns = Time::default();
        let ready_ns: Vec<Time> = (0..devices).map(|_| Arc::new(NEVER.into())).collect();
        let accelerator = |ready_ns: &Time| Accelerator {
            device: Box::new(VirtualDevice {
                profile,
                sizes: sizes.clone(),
                input: vec![0.0; sizes.largest() * K],
                results: Vec::with_capacity(sizes.largest()),
                now_ns: now_ns.clone(),
                ready_ns: ready_ns.clone(),
            }),
            profile: Some(profile),
            deadline: None,
            lane: 0,
        };
        let accelerators = ready_ns.iter().map(accelerator).collect();
        Ok(Simulation {
            manager: manager(policy, K, inlet, accelerators)?,
            feed,
            rng: Rng::new(1),
            now_ns,
            ready_ns,
        })
    }

    /// `seconds` of arrivals at this rate, a round whenever something happens; `after_round` sees
    /// the manager after each.
    pub fn run(&mut self, rate_per_s: f64, seconds: f64, mut after_round: impl FnMut(&Manager)) {
        let began_ns = self.now_ns.load(Ordering::Relaxed);
        let end_ns = began_ns + (seconds * 1e9) as u64;
        let gap_ns = |rng: &mut Rng| (rng.gap(rate_per_s) * 1e9) as u64;
        let (mut now_ns, mut arrival_ns) = (began_ns, began_ns + gap_ns(&mut self.rng));
        while now_ns < end_ns {
            let ready = self.ready_ns.iter().map(|it| it.load(Ordering::Relaxed));
            let happens_ns = ready.min().map_or(arrival_ns, |it| it.min(arrival_ns));
            now_ns = happens_ns.clamp(now_ns, now_ns + TICK_NS);
            while arrival_ns <= now_ns {
                self.feed.push(arrival_ns);
                arrival_ns += gap_ns(&mut self.rng);
            }
            self.feed.publish();
            self.round(now_ns);
            after_round(&self.manager);
        }
    }

    /// Series that found the ring full.
    pub fn shed(&self) -> u64 {
        self.feed.shed
    }

    /// No more arrivals, until the last series has its label.
    pub fn settle(&mut self) {
        while self.manager.tasks()[0].counters().undecided() > 0 {
            self.round(self.now_ns.load(Ordering::Relaxed) + TICK_NS);
        }
    }

    fn round(&mut self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
        self.manager.round(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::series::CARRY_OVER;

    #[test]
    fn a_device_takes_its_profiles_time_and_no_more() {
        let profile = Profile { t0_us: 1000.0, t1_us: 0.0 };
        let sizes = Sizes::Any { cap: 1 };
        let mut simulation = Simulation::new(CARRY_OVER, profile, &sizes, 1).unwrap();
        simulation.run(100_000.0, 1.0, |_| ());
        // One row a millisecond, and those on their way at the end.
        let inferred = simulation.manager.tasks()[0].counters().inferred;
        assert!((998..=1000).contains(&inferred), "{inferred}");
        assert!(simulation.shed() > 90_000);
    }
}
