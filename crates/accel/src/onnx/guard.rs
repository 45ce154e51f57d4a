//! Stops runs that take too long. ONNX Runtime stops a run between two nodes of the graph, also
//! inside a loop's body. So an endless loop is stopped, but a single node that does not return is
//! not.
//!
//! Each session notes when its run began, and some other thread calls [`stop_late_runs`] regularly.
//! This costs the session two stores and one reading of the clock per run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ort::session::{NoSelectedOutputs, RunOptions};

/// All guards of this process.
static GUARDS: Mutex<Vec<Weak<Guard>>> = Mutex::new(Vec::new());

/// The runs of one session.
pub(super) struct Guard {
    options: RunOptions<NoSelectedOutputs>,
    /// When the current run began, in µs since the first guard was made, at least 1; 0 if there is
    /// none.
    began_us: AtomicU64,
    /// How long a run may take, in µs; 0 for no limit.
    limit_us: AtomicU64,
    /// When the run began that was late at the last look.
    suspect_us: AtomicU64,
    /// Whether the options tell runs to stop.
    is_stopped: AtomicBool,
}

impl Guard {
    /// A guard without a limit.
    pub fn new() -> ort::Result<Arc<Guard>> {
        let guard = Arc::new(Guard {
            options: RunOptions::new()?,
            began_us: AtomicU64::new(0),
            limit_us: AtomicU64::new(0),
            suspect_us: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        guards.retain(|guard| guard.strong_count() > 0);
        guards.push(Arc::downgrade(&guard));
        Ok(guard)
    }

    /// Sets how long a run may take from now on.
    pub fn limit(&self, limit: Duration) {
        let us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        self.limit_us.store(us, Ordering::Relaxed);
    }

    /// Notes that a run begins and returns its options.
    pub fn begin(&self) -> ort::Result<&RunOptions<NoSelectedOutputs>> {
        if self.is_stopped.swap(false, Ordering::AcqRel) {
            self.options.unterminate()?;
        }
        self.began_us.store(now_us(), Ordering::Release);
        Ok(&self.options)
    }

    /// Notes that the run has ended.
    pub fn end(&self) {
        self.began_us.store(0, Ordering::Release);
    }

    /// Stops the run if it is late at two looks in a row. One is not enough, because the whole
    /// process may have been suspended.
    fn end_if_late(&self, most: Option<Duration>) {
        let began_us = self.began_us.load(Ordering::Acquire);
        let limit_us = match self.limit_us.load(Ordering::Relaxed) {
            0 => u64::MAX,
            limit_us => limit_us,
        };
        let most_us = most.map_or(u64::MAX, |most| most.as_micros() as u64);
        if began_us == 0 || now_us().saturating_sub(began_us) <= limit_us.min(most_us) {
            return;
        }
        if self.suspect_us.swap(began_us, Ordering::Relaxed) == began_us {
            self.is_stopped.store(true, Ordering::Release);
            // If stopping fails, the run continues and the next look tries again.
            let _ = self.options.terminate();
        }
    }
}

/// Stops the runs of all sessions that take longer than their limit, or than `most`. It is meant to
/// be called about ten times a second. A run is stopped by the second call that finds it late.
pub fn stop_late_runs(most: Option<Duration>) {
    let guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    for guard in guards.iter().filter_map(Weak::upgrade) {
        guard.end_if_late(most);
    }
}

fn now_us() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let us = BEGAN.get_or_init(Instant::now).elapsed().as_micros();
    u64::try_from(us).unwrap_or(u64::MAX).max(1)
}
