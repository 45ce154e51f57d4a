//! A device in the clock of a bench that works on the manager's thread: to give it a batch takes
//! the time of the batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use accel::{Classification, Device, DeviceError, Profile, Sizes};

/// Numbers in a row; the first is the flow's class.
pub const K: usize = 3;

/// The clock of one bench, ns, and how long devices have worked.
#[derive(Default)]
pub struct Clock {
    now_ns: AtomicU64,
    busy_ns: AtomicU64,
}

impl Clock {
    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    pub fn busy_ns(&self) -> u64 {
        self.busy_ns.load(Ordering::Relaxed)
    }

    pub fn set(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
    }

    fn work(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
        self.busy_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Answers with the class that the row says.
pub struct InlineDevice {
    profile: Profile,
    sizes: Sizes,
    input: Vec<f32>,
    answers: Vec<Classification>,
    is_idle: bool,
    clock: Arc<Clock>,
}

impl InlineDevice {
    pub fn new(profile: Profile, cap: usize, clock: Arc<Clock>) -> InlineDevice {
        InlineDevice {
            profile,
            sizes: Sizes::Any { cap },
            input: vec![0.0; K * cap],
            answers: Vec::with_capacity(cap),
            is_idle: true,
            clock,
        }
    }
}

impl Device for InlineDevice {
    fn requested(&self) -> &str {
        "inline"
    }

    fn effective(&self) -> &str {
        "inline"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.is_idle
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..K * rows]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        let latency = self.profile.latency(rows);
        self.clock.work(latency.as_nanos() as u64);
        self.answers.clear();
        let rows = self.input[..K * rows].chunks_exact(K);
        self.answers
            .extend(rows.map(|row| Classification { class: row[0] as u16, confidence: 1.0 }));
        self.is_idle = false;
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        if std::mem::replace(&mut self.is_idle, true) {
            return None;
        }
        Some(Ok(&self.answers))
    }
}
