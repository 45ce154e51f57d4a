//! Runs that take too long are stopped, as far as ONNX Runtime can: between two nodes of the graph, those of a loop's body
//! too. So a loop that does not end is stopped, and a single node that does not end is not.
//!
//! Each session says when its run began; whoever has time calls [`stop_late_runs`] now and then. A run costs the session two
//! stores and a look at the clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ort::session::{NoSelectedOutputs, RunOptions};

/// All that there are in this process; a library of which there is one.
static GUARDS: Mutex<Vec<Weak<Guard>>> = Mutex::new(Vec::new());

/// The runs of one session.
pub(super) struct Guard {
    options: RunOptions<NoSelectedOutputs>,
    /// When the run under way began, in µs since the first guard, and 1 at least; 0: there is none.
    began_us: AtomicU64,
    /// How long runs may take, in µs; 0: for ever.
    limit_us: AtomicU64,
    /// The run that was late at the last look, by when it began.
    suspect_us: AtomicU64,
    /// The options say that runs stop.
    is_stopped: AtomicBool,
}

impl Guard {
    /// Without a limit.
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

    /// From now on runs may take so long.
    pub fn limit(&self, limit: Duration) {
        let us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        self.limit_us.store(us, Ordering::Relaxed);
    }

    /// A run begins; with these options.
    pub fn begin(&self) -> ort::Result<&RunOptions<NoSelectedOutputs>> {
        if self.is_stopped.swap(false, Ordering::AcqRel) {
            self.options.unterminate()?;
        }
        self.began_us.store(now_us(), Ordering::Release);
        Ok(&self.options)
    }

    /// The run has ended.
    pub fn end(&self) {
        self.began_us.store(0, Ordering::Release);
    }

    /// Stops the run if it is late at two looks in a row: after one, the whole process may have stood still.
    fn look(&self, most: Option<Duration>) {
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
            // If it fails the run goes on, and is looked at again.
            let _ = self.options.terminate();
        }
    }
}

/// Stops the runs of all sessions that take longer than their limit, or than `most`. To be called some ten times a second; a
/// run is stopped at the second call that finds it late.
pub fn stop_late_runs(most: Option<Duration>) {
    let guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    for guard in guards.iter().filter_map(Weak::upgrade) {
        guard.look(most);
    }
}

fn now_us() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let us = BEGAN.get_or_init(Instant::now).elapsed().as_micros();
    u64::try_from(us).unwrap_or(u64::MAX).max(1)
}
