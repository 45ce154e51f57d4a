//! Logs when a device's profile has drifted, and stores the new one for the next start.
//!
//! The analytics thread finds a drift and only counts it ([`DeviceProfile`]): it already plans by
//! current times. A thread of its own writes the file, because a disk may hang and the control
//! thread must not.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use accel::Profile;
use analytics::DeviceProfile;
use dataplane::profiles::Stored;
use dataplane::state::SharedState;
use tracing::{info, warn};

use super::collector::Collector;

/// Minimum time between two messages on a device: with bursty traffic its times vary, because an
/// idle core sleeps and loses its caches.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Devices as of earlier polls.
#[derive(Default)]
pub struct Drifts {
    /// The devices, analytics manager by analytics manager.
    seen: Vec<Seen>,
    /// The threads that store drifted profiles.
    writers: Vec<JoinHandle<()>>,
}

/// A device at the last message, or at its start.
#[derive(Clone, Default)]
struct Seen {
    profile: Option<DeviceProfile>,
    logged: Option<Instant>,
}

/// The profiles before and after a drift.
#[derive(Debug, PartialEq)]
struct Drift {
    from: Profile,
    to: Profile,
    /// Mean size of the last batches.
    rows: f64,
}

impl Drifts {
    pub fn poll(&mut self, collector: &Collector, state: &Arc<SharedState>) {
        self.writers.retain(|writer| !writer.is_finished());
        // Bounds the threads while a disk hangs; drifts meanwhile are found later.
        if !self.writers.is_empty() {
            return;
        }
        let (mut place, at) = (0, Instant::now());
        for watched in &collector.analytics {
            for (task, snapshot) in watched.latest.tasks.iter().enumerate() {
                for ((_, device), now) in snapshot.devices().zip(&snapshot.profiles) {
                    if let Some(drift) = self.compare(place, *now, at) {
                        let device = device.requested.clone();
                        let thread = watched.thread.to_string();
                        let writer = drift.store(state.clone(), task, device, thread);
                        self.writers.extend(writer);
                    }
                    place += 1;
                }
            }
        }
    }

    /// Keeps the device's profile, and returns its drift since the last message.
    fn compare(&mut self, place: usize, now: Option<DeviceProfile>, at: Instant) -> Option<Drift> {
        if place >= self.seen.len() {
            self.seen.resize(place + 1, Seen::default());
        }
        let Seen { profile, logged } = &mut self.seen[place];
        let now = now?;
        // A device starts without a drift; after a swap it goes on with its predecessor's count.
        let before = profile.filter(|before| before.started == now.started);
        let (drifts, from) = match (before, &profile) {
            (Some(before), _) => (before.drifts, before.reference),
            (None, Some(other)) => (other.drifts, now.started),
            (None, None) => (0, now.started),
        };
        if now.drifts == drifts {
            *profile = Some(now);
            return None;
        }
        if logged.is_some_and(|logged| at.saturating_duration_since(logged) < LOG_EVERY) {
            return None;
        }
        (*profile, *logged) = (Some(now), Some(at));
        Some(Drift { from, to: now.reference, rows: now.rows })
    }
}

impl Drift {
    /// What has drifted, in a line.
    fn line(&self) -> String {
        let Drift { from, to, rows } = self;
        let us = |line: &Profile| line.t0_us + line.t1_us * rows;
        let (times, how, cure) = match us(to) / us(from) {
            slower if slower >= 1.0 => (slower, "slower", "; is the machine busy?"),
            faster => (1.0 / faster, "faster", ""),
        };
        format!(
            "the model is {times:.1} times {how} than measured: {:.0} µs for a batch of \
            {rows:.0}, not {:.0} µs{cure}",
            us(to),
            us(from)
        )
    }

    fn store(
        self,
        state: Arc<SharedState>,
        task: usize,
        device: String,
        thread: String,
    ) -> Option<JoinHandle<()>> {
        let line = self.line();
        let without = format!("{device} of {thread}: {line}");
        let write = move || {
            let tasks = state.get().tasks;
            let Some(task) = tasks.get(task) else { return };
            let what = format!("{device} of {thread}, task {}: {line}", task.name);
            let profiles = state.profiles();
            match profiles.drifted(&device, &task.model.sha256, self.to) {
                Stored::At(path) => {
                    let path = path.display();
                    info!("{what}; the next start begins with that: {path}");
                }
                Stored::Nowhere => info!(
                    "{what}; this run goes by that; name a folder in accel.profiles, or measure \
                    again with `fenxi profile --device {device}`, for the next"
                ),
                Stored::Failed(error) => {
                    warn!("{what}; it cannot be stored for the next start: {error}");
                }
            }
        };
        let writer = std::thread::Builder::new().name("profiles".to_owned());
        let spawned = writer.spawn(write);
        spawned.inspect_err(|error| warn!("{without}; no thread to store it: {error}")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(t0_us: f64) -> Profile {
        Profile { t0_us, t1_us: 2.0 }
    }

    fn profile(started: f64, reference: f64, drifts: u64) -> Option<DeviceProfile> {
        Some(DeviceProfile {
            started: line(started),
            reference: line(reference),
            expected: line(reference),
            rows: 40.0,
            drifts,
        })
    }

    fn drift(from: f64, to: f64) -> Option<Drift> {
        Some(Drift { from: line(from), to: line(to), rows: 40.0 })
    }

    #[test]
    fn each_drift_is_found_once() {
        let (mut drifts, begin) = (Drifts::default(), Instant::now());
        let mut look =
            |place, now, minutes: u32| drifts.compare(place, now, begin + minutes * LOG_EVERY);
        assert_eq!(look(0, None, 0), None);
        assert_eq!(look(1, profile(20.0, 20.0, 0), 0), None);
        assert_eq!(look(1, profile(20.0, 60.0, 1), 0), drift(20.0, 60.0));
        assert_eq!(look(1, profile(20.0, 60.0, 1), 1), None);
        assert_eq!(look(1, profile(20.0, 20.0, 2), 1), drift(60.0, 20.0));
        // Another model after a swap.
        assert_eq!(look(1, profile(70.0, 70.0, 2), 2), None);
        assert_eq!(look(1, profile(70.0, 30.0, 3), 2), drift(70.0, 30.0));
        // A device that drifts before the first poll, and a model that drifts between two polls.
        assert_eq!(look(2, profile(20.0, 90.0, 1), 2), drift(20.0, 90.0));
        assert_eq!(look(2, profile(50.0, 90.0, 2), 3), drift(50.0, 90.0));
    }

    #[test]
    fn what_comes_and_goes_is_said_once_a_minute() {
        let (mut drifts, begin) = (Drifts::default(), Instant::now());
        let mut said = Vec::new();
        for seconds in 0..120_u32 {
            let is_slow = seconds % 10 < 5;
            let now = profile(20.0, if is_slow { 60.0 } else { 20.0 }, u64::from(seconds / 5));
            let at = begin + Duration::from_secs(seconds.into());
            said.extend(drifts.compare(0, now, at));
        }
        // Messages at 5 s and, with the drifts in between, at 65 s.
        assert_eq!(said, [drift(60.0, 20.0).unwrap(), drift(20.0, 20.0).unwrap()]);
    }

    #[test]
    fn a_drift_is_one_line() {
        let between = |from, to| drift(from, to).unwrap().line();
        assert_eq!(
            between(120.0, 20.0),
            "the model is 2.0 times faster than measured: 100 µs for a batch of 40, not 200 µs"
        );
        assert_eq!(
            between(20.0, 120.0),
            "the model is 2.0 times slower than measured: 200 µs for a batch of 40, not 100 µs; is \
            the machine busy?"
        );
    }
}
