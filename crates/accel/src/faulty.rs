//! Fault injection: a device that wraps another and fails on purpose, for tests and for trying out
//! how failures are handled.
//!
//! [`Faults`] say what fails and when. They count runs, which are accepted batches, from 1. The
//! errors equal a real device's, so that code that handles them cannot see a difference. A run that
//! fails at once does not reach the inner device; for all others the inner device runs the batch,
//! and its results are delayed or replaced.

use std::time::{Duration, Instant};

use crate::device::{Classification, Device, DeviceError, Sizes};
use crate::faults::{Fault, Faults};

/// A batch in flight.
struct Flight {
    rows: usize,
    run: u64,
    started: Instant,
    /// The results and when to return them, once the inner device has them.
    answer: Option<(Instant, Result<(), DeviceError>)>,
}

/// A device with injected faults.
pub struct FaultyDevice {
    inner: Box<dyn Device>,
    faults: Faults,
    runs: u64,
    flight: Option<Flight>,
    results: Vec<Classification>,
}

impl FaultyDevice {
    /// Wraps `device`. The wrapper is idle and has the name and sizes of `device`.
    pub fn new(device: Box<dyn Device>, faults: Faults) -> Self {
        Self {
            results: Vec::with_capacity(device.sizes().largest()),
            inner: device,
            faults,
            runs: 0,
            flight: None,
        }
    }

    /// The error of a run that fails without the inner device.
    fn failure(&self, rows: usize, run: u64) -> Option<DeviceError> {
        let fails = |fault| {
            matches!(fault, Fault::Error { .. } | Fault::ErrorEvery { .. } | Fault::Vanish { .. })
        };
        self.faults.in_run(run).any(fails).then(|| DeviceError::Run {
            device: self.requested().to_owned(),
            rows,
            cause: format!("injected fault in run {run}"),
        })
    }

    /// The error that replaces the inner device's results.
    fn damage(&mut self, rows: usize, run: u64) -> Option<DeviceError> {
        self.faults.in_run(run).find_map(|fault| match fault {
            Fault::Nan { .. } => {
                Some(DeviceError::NotAProbability { row: 0, class: 0, value: f32::NAN })
            }
            Fault::Shape { .. } => Some(DeviceError::Output {
                device: self.inner.requested().to_owned(),
                rows,
                classes: self.inner.probabilities().len() / rows,
                found: format!("float32 [{rows}]"),
            }),
            _ => None,
        })
    }

    /// Takes the inner device's results, if they are ready and were not taken yet.
    fn collect(&mut self) {
        let Some(Flight { rows, run, started, answer: None }) = self.flight else {
            return;
        };
        let Some(outcome) = self.inner.poll() else {
            return;
        };
        let outcome = outcome.map(|results| {
            self.results.clear();
            self.results.extend_from_slice(results);
        });
        let outcome = self.damage(rows, run).map_or(outcome, Err);
        let given_at = self.given_at(run, started);
        if let Some(flight) = &mut self.flight {
            flight.answer = Some((given_at, outcome));
        }
    }

    /// When to return the results of a run that the inner device has finished now.
    fn given_at(&self, run: u64, started: Instant) -> Instant {
        let now = Instant::now();
        let waits = self.faults.in_run(run).map(|fault| match fault {
            Fault::Hang { lasts, .. } => lasts,
            Fault::Slow { factor } => (now - started).saturating_mul(factor),
            _ => Duration::ZERO,
        });
        let lasts = waits.max().unwrap_or(Duration::ZERO);
        // An end beyond the range of the clock means never; a century is long enough.
        started.checked_add(lasts).unwrap_or(now + Duration::from_secs(100 * 365 * 86_400))
    }
}

impl Device for FaultyDevice {
    fn requested(&self) -> &str {
        self.inner.requested()
    }

    fn effective(&self) -> &str {
        self.inner.effective()
    }

    fn sizes(&self) -> &Sizes {
        self.inner.sizes()
    }

    fn is_idle(&self) -> bool {
        self.flight.is_none() && self.inner.is_idle()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        self.inner.input(rows)
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        self.inner.context(rows)
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        self.accepts(rows)?;
        let (run, started) = (self.runs + 1, Instant::now());
        let failure = self.failure(rows, run);
        if failure.is_none() {
            self.inner.submit(rows)?;
        }
        self.runs = run;
        self.flight =
            Some(Flight { rows, run, started, answer: failure.map(|error| (started, Err(error))) });
        // A device without a thread has run the batch by now. The run ends here, not at the next
        // poll.
        self.collect();
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        self.collect();
        let ready =
            |flight: &mut Flight| matches!(flight.answer, Some((at, _)) if at <= Instant::now());
        let (_, outcome) = self.flight.take_if(ready)?.answer?;
        Some(outcome.map(|()| self.results.as_slice()))
    }

    fn ready_at(&self) -> Option<Instant> {
        match &self.flight.as_ref()?.answer {
            Some((at, _)) => Some(*at),
            None => self.inner.ready_at(),
        }
    }

    fn probabilities(&mut self) -> &[f32] {
        self.inner.probabilities()
    }

    fn is_integer(&self) -> bool {
        self.inner.is_integer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Shape;
    use crate::profile::Profile;
    use crate::simulated::SimulatedDevice;

    const SHAPE: Shape = Shape { channels: 1, k: 2, context: 0, classes: 5 };

    fn faulty(faults: &str) -> FaultyDevice {
        let profile = Profile { t0_us: 0.0, t1_us: 0.0 };
        let device = SimulatedDevice::new(profile, Sizes::Any { cap: 4 }, SHAPE);
        FaultyDevice::new(Box::new(device), faults.parse().unwrap())
    }

    /// One letter per run: `.` for results, else what the error is.
    fn outcomes(faults: &str, runs: usize) -> String {
        let mut device = faulty(faults);
        let mut outcome = || {
            device.input(1).copy_from_slice(&[1.0, 1.0]);
            device.submit(1).unwrap();
            assert!(!device.is_idle());
            let outcome = loop {
                if let Some(outcome) = device.poll() {
                    break outcome;
                }
            };
            let letter = match outcome {
                Ok(results) => {
                    assert_eq!(results.len(), 1);
                    assert_eq!(results[0].class, 3);
                    '.'
                }
                Err(DeviceError::Run { .. }) => 'r',
                Err(DeviceError::NotAProbability { .. }) => 'n',
                Err(DeviceError::Output { .. }) => 's',
                Err(other) => panic!("{other}"),
            };
            assert!(device.is_idle());
            letter
        };
        (0..runs).map(|_| outcome()).collect()
    }

    #[test]
    fn each_fault_is_in_its_run() {
        assert_eq!(outcomes("error=3", 6), "..r...");
        assert_eq!(outcomes("error-every=2", 6), ".r.r.r");
        assert_eq!(outcomes("vanish=4", 6), "...rrr");
        assert_eq!(outcomes("nan=2", 6), ".n....");
        assert_eq!(outcomes("shape=2", 6), ".s....");
        assert_eq!(outcomes("hang=1:1,slow=3", 2), "..");
        assert_eq!(outcomes("error=1, error=2,nan=3,vanish=5,until=5", 7), "rrn.r..");
    }

    #[test]
    fn a_run_that_hangs_is_not_ready_and_says_until_when() {
        let mut device = faulty("hang=1:3600000,until=1");
        let started = Instant::now();
        device.submit(1).unwrap();
        assert!(device.poll().is_none() && !device.is_idle());
        assert!(device.ready_at().unwrap() >= started + Duration::from_secs(3600));
        assert!(matches!(device.submit(1), Err(DeviceError::Busy { .. })));
    }

    #[test]
    fn a_refused_batch_is_no_run() {
        let mut device = faulty("error=1");
        assert!(matches!(device.submit(9), Err(DeviceError::Rows { .. })));
        device.submit(1).unwrap();
        assert!(matches!(device.poll(), Some(Err(DeviceError::Run { rows: 1, .. }))));
    }
}
