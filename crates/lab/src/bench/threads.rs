//! Threads of experiments: one per core, and joined without hiding a panic.

use std::thread::ScopedJoinHandle;

use dataplane::placement;

/// Keeps the calling thread on the `worker`-th (from 0) of the cores that the program may use.
/// Where the system refuses, or there are fewer cores, the thread runs anywhere, which costs speed
/// only.
pub fn pin(worker: usize) {
    placement::pin(placement::usable().get(worker).copied());
}

/// What a thread returned; goes on with its panic if it had one.
pub fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// CPU time of this thread, s: other processes on the core do not count.
pub fn thread_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
