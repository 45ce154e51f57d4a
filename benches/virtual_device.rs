//! A device in virtual time: a batch takes the time that its profile says, by a clock that the
//! caller of the manager moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use accel::{Classification, Device, DeviceError, Profile, Sizes};

/// When a device without a batch is ready.
const NEVER: u64 = u64::MAX;

/// A time that several objects of one thread share, ns.
pub type Time = Arc<AtomicU64>;

pub fn now(time: &Time) -> u64 {
    time.load(Ordering::Relaxed)
}

/// Answers with the class that is the first element of the row.
pub struct VirtualDevice {
    k: usize,
    profile: Profile,
    sizes: Sizes,
    /// Whether a batch moves the clock, as on the manager's thread; otherwise the device works
    /// beside it, as an accelerator.
    pub takes_the_thread: bool,
    input: Vec<f32>,
    results: Vec<Classification>,
    clock: Time,
    /// When the batch in flight is ready.
    pub ready_ns: Time,
}

impl VirtualDevice {
    /// A device on the manager's thread, for series of `k` elements.
    pub fn new(k: usize, profile: Profile, sizes: Sizes, clock: Time) -> VirtualDevice {
        VirtualDevice {
            k,
            profile,
            takes_the_thread: true,
            input: vec![0.0; sizes.largest() * k],
            results: Vec::with_capacity(sizes.largest()),
            sizes,
            clock,
            ready_ns: Arc::new(NEVER.into()),
        }
    }
}

impl Device for VirtualDevice {
    fn requested(&self) -> &str {
        "virtual"
    }

    fn effective(&self) -> &str {
        "virtual"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        now(&self.ready_ns) == NEVER
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * self.k]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        let end_ns = now(&self.clock) + self.profile.latency(rows).as_nanos() as u64;
        self.ready_ns.store(end_ns, Ordering::Relaxed);
        if self.takes_the_thread {
            self.clock.store(end_ns, Ordering::Relaxed);
        }
        self.results.clear();
        let rows = self.input[..rows * self.k].chunks_exact(self.k);
        let answer = |row: &[f32]| Classification { class: row[0] as u16, confidence: 1.0 };
        self.results.extend(rows.map(answer));
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        if now(&self.clock) < now(&self.ready_ns) {
            return None;
        }
        self.ready_ns.store(NEVER, Ordering::Relaxed);
        Some(Ok(&self.results))
    }
}
