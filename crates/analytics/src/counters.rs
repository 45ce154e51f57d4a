//! What an analytics manager counts. Each counter belongs to one thread, the manager's, and only grows.
//!
//! The fates of a series exclude each other, so they add up: see [`Counters::undecided`].

use crate::Trigger;
use crate::batching::Fire;
use accel::{Device, DeviceError};
use cring::PostMortem;
use hdrhistogram::Histogram;
use std::time::Duration;

/// All that one manager has counted since it was made.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Series looked at in the rings.
    pub series: u64,
    /// Series that were given a label from the prefix cache.
    pub cached: u64,
    /// Series that were given a label by the model.
    pub inferred: u64,
    /// Series that the manager gave up unseen by a device. No policy does so today; what a flow manager sheds at a full
    /// ring is counted there.
    pub shed: u64,
    /// Series whose device failed.
    pub failed: u64,
    /// Labels, of those cached and inferred, that found their flow gone.
    pub post_mortem: u64,
    /// Batches, by [`Trigger`] as index.
    batches: [BatchCounters; Trigger::ALL.len()],
    /// The prefix cache.
    pub cache: CacheCounters,
    /// The devices, in the order in which the manager was given them.
    pub devices: Vec<DeviceCounters>,
    /// Time from a series' emission to its label, in µs, saturated at an hour; labels that found their flow gone are not
    /// in it. Values are exact to 0.1 %.
    pub time_to_label_us: Histogram<u64>,
}

/// The batches that one trigger fired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounters {
    /// Batches fired, also those that failed.
    pub batches: u64,
    /// Rows with a series, audits among them.
    pub series: u64,
    /// Rows of padding.
    pub padding: u64,
}

/// The prefix cache's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Series looked up.
    pub lookups: u64,
    /// Those that were found.
    pub hits: u64,
    /// Audited hits where the model said the same class.
    pub audits_agree: u64,
    /// Audited hits where the model said another class. An audit whose device failed is in neither.
    pub audits_differ: u64,
    /// Wall time that looking up took, with the writing of the labels found. Entering results is not in it.
    pub lookup_time: Duration,
}

/// One device's work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// The device as it was asked for.
    pub requested: String,
    /// What does the work.
    pub effective: String,
    /// Batches given to it.
    pub batches: u64,
    /// Batches that it refused or failed on.
    pub failures: u64,
    /// What it said the last time.
    pub last_error: Option<String>,
}

/// Bounds of the time to label.
const TIME_TO_LABEL_US_MAX: u64 = 3_600_000_000;
const TIME_TO_LABEL_DIGITS: u8 = 3;

impl Counters {
    #[expect(
        clippy::expect_used,
        reason = "constant bounds, met by every test that makes a manager"
    )]
    pub(crate) fn new<'a>(devices: impl Iterator<Item = &'a dyn Device>) -> Self {
        Self {
            series: 0,
            cached: 0,
            inferred: 0,
            shed: 0,
            failed: 0,
            post_mortem: 0,
            batches: Default::default(),
            cache: CacheCounters::default(),
            devices: devices
                .map(|device| DeviceCounters {
                    requested: device.requested().to_owned(),
                    effective: device.effective().to_owned(),
                    ..DeviceCounters::default()
                })
                .collect(),
            time_to_label_us: Histogram::new_with_bounds(
                1,
                TIME_TO_LABEL_US_MAX,
                TIME_TO_LABEL_DIGITS,
            )
            .expect("1 µs to an hour can be counted with 3 digits"),
        }
    }

    /// Series looked at that have met no fate yet: they wait in a ring or are on their way through a device.
    #[must_use]
    pub fn undecided(&self) -> u64 {
        self.series - self.cached - self.inferred - self.shed - self.failed
    }

    /// The batches that this trigger fired.
    #[must_use]
    pub fn batches(&self, trigger: Trigger) -> BatchCounters {
        self.batches[trigger as usize]
    }

    pub(crate) fn fired(&mut self, fire: &Fire) {
        let counters = &mut self.batches[fire.trigger as usize];
        counters.batches += 1;
        counters.series += fire.take as u64;
        counters.padding += (fire.size - fire.take) as u64;
    }

    /// A class was offered to the flow that asked for it at `emitted_ns`.
    pub(crate) fn labelled(&mut self, taken: Result<(), PostMortem>, emitted_ns: u64, now_ns: u64) {
        match taken {
            Ok(()) => {
                let time_us = now_ns.saturating_sub(emitted_ns) / 1000;
                self.time_to_label_us.saturating_record(time_us);
            }
            Err(_) => self.post_mortem += 1,
        }
    }
}

impl CacheCounters {
    pub(crate) fn audited(&mut self, agrees: bool) {
        if agrees {
            self.audits_agree += 1;
        } else {
            self.audits_differ += 1;
        }
    }
}

impl DeviceCounters {
    pub(crate) fn failed(&mut self, error: &DeviceError) {
        self.failures += 1;
        self.last_error = Some(error.to_string());
    }
}
