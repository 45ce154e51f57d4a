//! Says when a device's profile has drifted, and has the new one stored for the next start.
//!
//! The analytics thread finds a drift and only counts it ([`DeviceProfile`]). It plans by what it expects at any moment, so
//! nothing has to change in this run. A thread of its own writes the file, because a disk may hang and the control thread
//! must not.

use std::sync::Arc;

use accel::Profile;
use analytics::DeviceProfile;
use dataplane::profiles::Stored;
use dataplane::state::SharedState;
use tracing::warn;

use super::collector::Collector;

/// The look before.
#[derive(Default)]
pub struct Drifts {
    /// The profiles then, analytics manager by analytics manager.
    seen: Vec<Option<DeviceProfile>>,
}

/// From what a profile has drifted to what.
#[derive(Debug, PartialEq)]
struct Drift {
    from: Profile,
    to: Profile,
    /// Mean size of the last batches.
    rows: f64,
}

impl Drifts {
    /// Says what has drifted since the last time, and has it stored.
    pub fn look(&mut self, collector: &Collector, state: &Arc<SharedState>) {
        let mut place = 0;
        for watched in &collector.analytics {
            for (task, snapshot) in watched.latest.tasks.iter().enumerate() {
                for ((_, device), now) in snapshot.devices().zip(&snapshot.profiles) {
                    if let Some(drift) = self.compare(place, *now) {
                        let device = device.requested.clone();
                        drift.store(state.clone(), task, device, watched.thread.to_string());
                    }
                    place += 1;
                }
            }
        }
    }

    /// Notes how a device stands; if its profile has drifted since it was last looked at, returns from what to what.
    fn compare(&mut self, place: usize, now: Option<DeviceProfile>) -> Option<Drift> {
        if place >= self.seen.len() {
            self.seen.resize(place + 1, None);
        }
        let before = std::mem::replace(&mut self.seen[place], now);
        let now = now?;
        // A device begins without a drift; one that takes another's place goes on with its count.
        let (drifts, from) = before.map_or((0, now.started), |it| (it.drifts, it.reference));
        (now.drifts > drifts).then_some(Drift {
            from,
            to: now.reference,
            rows: now.rows,
        })
    }
}

impl Drift {
    /// What has drifted, in a line.
    fn line(&self) -> String {
        let Drift { from, to, rows } = self;
        let us = |line: &Profile| line.t0_us + line.t1_us * rows;
        format!(
            "batches of {rows:.0} take {:.0} µs, {:.2} times what the profile says: {:.1} µs + {:.2} µs per series, not {:.1} + {:.2}",
            us(to),
            us(to) / us(from),
            to.t0_us,
            to.t1_us,
            from.t0_us,
            from.t1_us
        )
    }

    fn store(self, state: Arc<SharedState>, task: usize, device: String, thread: String) {
        let line = self.line();
        let without = format!("{device} of {thread}: {line}");
        let write = move || {
            let tasks = state.get().tasks;
            let Some(task) = tasks.get(task) else { return };
            let stored = state
                .profiles()
                .drifted(&device, &task.model.sha256, self.to);
            let then = match stored {
                Stored::At(path) => {
                    format!("the next start begins with that, from {}", path.display())
                }
                Stored::Nowhere => format!(
                    "the policy goes by that in this run only; see accel.profiles, or measure again with `fenxi profile \
                     --device {device}`"
                ),
                Stored::Failed(error) => format!("it cannot be stored for the next start: {error}"),
            };
            warn!("{device} of {thread}, task {}: {line}; {then}", task.name);
        };
        let writer = std::thread::Builder::new().name("profiles".to_owned());
        if let Err(error) = writer.spawn(write) {
            warn!("{without}; no thread to store it: {error}");
        }
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

    #[test]
    fn each_drift_is_found_once() {
        let mut drifts = Drifts::default();
        let drift = |from, to| {
            Some(Drift {
                from: line(from),
                to: line(to),
                rows: 40.0,
            })
        };
        assert_eq!(drifts.compare(0, None), None);
        assert_eq!(drifts.compare(1, profile(20.0, 20.0, 0)), None);
        assert_eq!(drifts.compare(1, profile(20.0, 60.0, 1)), drift(20.0, 60.0));
        assert_eq!(drifts.compare(1, profile(20.0, 60.0, 1)), None);
        assert_eq!(drifts.compare(1, profile(20.0, 20.0, 2)), drift(60.0, 20.0));
        // Another model in its place.
        assert_eq!(drifts.compare(1, profile(70.0, 70.0, 2)), None);
        // One that had drifted before it was looked at.
        assert_eq!(drifts.compare(2, profile(20.0, 90.0, 1)), drift(20.0, 90.0));
    }

    #[test]
    fn a_drift_is_one_line() {
        let drift = Drift {
            from: line(20.0),
            to: line(120.0),
            rows: 40.0,
        };
        assert_eq!(
            drift.line(),
            "batches of 40 take 200 µs, 2.00 times what the profile says: 120.0 µs + 2.00 µs per series, not 20.0 + 2.00"
        );
    }
}
