//! What an analytics manager counts. Each counter belongs to one thread, the manager's, and only
//! grows.
//!
//! The outcomes of a series exclude each other, so they add up: see [`Counters::undecided`].

mod kinds;

use crate::batching::Fire;
use crate::cache::Transition;
use crate::failure::{Failure, FailureKind};
use crate::{Accelerator, Trigger};
use cring::{Counter, PostMortem, Source, counters};
use hdrhistogram::Histogram;
use kinds::{devices, histograms, longest, texts};
use std::time::Duration;

counters! {
    /// All that one manager has counted since it was made.
    #[derive(Clone, Debug)]
    pub struct Counters {
        /// Series looked at in the rings.
        pub series: u64,
        /// Series that were given a label from the prefix cache.
        pub cached: u64,
        /// Series that were given a label by the model.
        pub inferred: u64,
        /// Series passed over, because the label of another task says so.
        pub not_asked: u64,
        /// Series given up unseen, because no device was up.
        pub shed_no_device: u64,
        /// Series whose device failed while no other was up.
        pub failed_no_other_device: u64,
        /// Series whose device failed, and the one after it as well.
        pub failed_after_retry: u64,
        /// Series that were given to a second device because the first one failed. Not an outcome:
        /// each has its own later.
        pub retried: u64,
        /// Labels, cached or inferred, that found their flow gone.
        pub post_mortem: u64,
        /// Batches, by [`Trigger`] as index.
        batches: [BatchCounters; Trigger::ALL.len()],
        /// The prefix cache.
        pub cache: CacheCounters,
        /// The devices, in the order in which the manager was given them.
        pub devices: Vec<DeviceCounters> = devices,
        /// Time from a series' emission to its label, where that came from the prefix cache, in µs,
        /// exact to 0.1 % and saturated at an hour; without labels that found their flow gone.
        pub time_to_cached_label_us: Histogram<u64> = histograms,
        /// The same where it came from a device.
        pub time_to_inferred_label_us: Histogram<u64> = histograms,
        /// Where that time went.
        pub phases: Phases,
        /// The policy `slo`; only this policy counts here.
        pub slo: SloCounters,
        /// Models swapped on all devices.
        pub swaps: u64,
        /// How long the last swap took, from the first round that knew of it to the last device.
        pub last_swap: Duration = longest,
    }
}

counters! {
    /// Where the time to a label goes, in µs, exact to 1 %; saturated at an hour. The three add up
    /// to the time to label, except for a series that is retried: it has the waits of its first
    /// batch and the device time of its second. A label from the cache has only a ring wait, an
    /// audit nothing.
    #[derive(Clone, Debug)]
    pub struct Phases {
        /// From a series' emission to the round that saw it.
        pub ring_wait_us: Histogram<u64> = histograms,
        /// From then to its batch.
        pub batch_wait_us: Histogram<u64> = histograms,
        /// From the batch to its result.
        pub device_us: Histogram<u64> = histograms,
    }
}

counters! {
    /// How well the policy `slo` keeps its goals.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SloCounters {
        /// Control periods with a label in them.
        pub periods: u64,
        /// Periods in which the 99th percentile of the time to label was above the goal.
        pub violations: u64,
    }
}

counters! {
    /// The batches that one trigger fired.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BatchCounters {
        /// Batches fired, including failed ones.
        pub batches: u64,
        /// Rows with a series, including audits.
        pub series: u64,
        /// Rows of padding.
        pub padding: u64,
    }
}

counters! {
    /// The prefix cache's work.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CacheCounters {
        /// Series looked up.
        pub lookups: u64,
        /// Series that were found.
        pub hits: u64,
        /// Audited hits where the model said the same class.
        pub audits_agree: u64,
        /// Audited hits where the model said another class. An audit whose device failed counts as
        /// neither.
        pub audits_differ: u64,
        /// Series not looked up, because the cache had turned itself off.
        pub bypassed: u64,
        /// How often it turned itself off.
        pub turned_off: u64,
        /// How often it turned itself on again.
        pub turned_on: u64,
        /// Whether it is off now, except for trials.
        pub is_off: bool,
        /// Prefixes that it remembers, including an earlier model's until they make room.
        pub entries: u64,
        /// Time that look-ups took, including the writing of the labels found.
        pub lookup_time: Duration,
        /// Time that entering results took.
        pub insert_time: Duration,
    }
}

counters! {
    /// One device's work. Counting goes on when the device is swapped.
    #[derive(Clone, Debug)]
    pub struct DeviceCounters {
        /// The device as it was requested.
        pub requested: String = texts,
        /// What actually does the work.
        pub effective: String = texts,
        /// Batches given to it, without probes.
        pub batches: u64,
        /// Rows with a series in these batches.
        pub series: u64,
        /// Rows of padding in these batches.
        pub padding: u64,
        /// How many series its batches had, exact to 1 %.
        pub batch_series: Histogram<u64> = histograms,
        /// Time from submission to result, of all batches that did not fail.
        pub busy: Duration,
        /// Probes given to it.
        pub probes: u64,
        /// Batches and probes that failed, by [`FailureKind`] as index.
        failures: [u64; FailureKind::ALL.len()],
        /// Batches that failed on its counterpart with a canary or the model before.
        pub kept_failures: u64,
        /// How often it went from up to not up.
        pub went_down: u64,
        /// How often it came up again: brought back by a probe, or swapped for another.
        pub came_back: u64,
        /// The last error.
        pub last_error: Option<String> = texts,
    }
}

/// The longest time that is distinguished from longer ones.
const TIME_US_MAX: u64 = 3_600_000_000;
/// The largest batch that is distinguished from larger ones.
const BATCH_SERIES_MAX: u64 = 1 << 20;

#[expect(clippy::expect_used, reason = "constant bounds, met by every test that makes a manager")]
fn histogram(max: u64, digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, max, digits).expect("bounds that a histogram can have")
}

impl Counters {
    pub(crate) fn new(accelerators: &[Accelerator]) -> Self {
        Self {
            series: 0,
            cached: 0,
            inferred: 0,
            not_asked: 0,
            shed_no_device: 0,
            failed_no_other_device: 0,
            failed_after_retry: 0,
            retried: 0,
            post_mortem: 0,
            batches: Default::default(),
            cache: CacheCounters::default(),
            devices: accelerators.iter().map(DeviceCounters::new).collect(),
            time_to_cached_label_us: histogram(TIME_US_MAX, 3),
            time_to_inferred_label_us: histogram(TIME_US_MAX, 3),
            phases: Phases {
                ring_wait_us: histogram(TIME_US_MAX, 2),
                batch_wait_us: histogram(TIME_US_MAX, 2),
                device_us: histogram(TIME_US_MAX, 2),
            },
            slo: SloCounters::default(),
            swaps: 0,
            last_swap: Duration::ZERO,
        }
    }

    /// Adds what another manager counted; its devices come behind this one's.
    pub fn merge(&mut self, other: &Counters) {
        Counter::merge(self, other);
    }

    /// Copies what the same manager has counted by now. Unlike a clone it allocates nothing, unless
    /// a device has its first error or a longer one.
    pub fn copy_from(&mut self, other: &Counters) {
        debug_assert_eq!(self.devices.len(), other.devices.len(), "of the same manager");
        Counter::copy_from(self, other);
    }

    /// The counters of no manager: all 0.
    #[must_use]
    pub fn none() -> Self {
        Self::new(&[])
    }

    /// The managers, or some of them, have stopped for good. `came` series came down the rings in
    /// total: the undecided ones that were looked at have failed, all others are shed.
    pub fn give_up(&mut self, came: u64) {
        self.failed_no_other_device += self.undecided();
        self.shed_no_device += came.saturating_sub(self.series);
        self.series = self.series.max(came);
    }

    /// Series that the manager gave up before any device saw them; what a flow manager sheds at a
    /// full ring is counted there.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.shed_no_device
    }

    /// Series given up after a device had failed on them.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed_no_other_device + self.failed_after_retry
    }

    /// Series looked at that are still undecided: they wait in a ring or for a retry, or are on
    /// their way through a device.
    #[must_use]
    pub fn undecided(&self) -> u64 {
        self.series - self.decided()
    }

    /// Series that are decided.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.cached + self.inferred + self.not_asked + self.shed() + self.failed()
    }

    /// The batches that this trigger fired.
    #[must_use]
    pub fn batches(&self, trigger: Trigger) -> BatchCounters {
        self.batches[trigger as usize]
    }

    /// Counts `batches` equal batches as fired.
    pub(crate) fn fired(&mut self, device_slot: usize, fire: &Fire, batches: u64) {
        let (series, padding) = (fire.take as u64, (fire.size - fire.take) as u64);
        let counters = &mut self.batches[fire.trigger as usize];
        counters.batches += batches;
        counters.series += batches * series;
        counters.padding += batches * padding;
        let device = &mut self.devices[device_slot];
        device.batches += batches;
        device.series += batches * series;
        device.padding += batches * padding;
        device.batch_series.saturating_record_n(series, batches);
    }

    /// The first device answered `series` series at once, at least one.
    pub(crate) fn answered_at_once(
        &mut self,
        series: u64,
        waited_ns: u64,
        device_ns: u64,
        label_ns: u64,
    ) {
        self.inferred += series;
        self.devices[0].busy += Duration::from_nanos(series * device_ns);
        record(&mut self.phases.ring_wait_us, waited_ns, series);
        record(&mut self.phases.batch_wait_us, 0, series);
        record(&mut self.phases.device_us, device_ns, series);
        record(&mut self.time_to_inferred_label_us, label_ns, series);
    }

    /// Time from a series' emission to its label, wherever that came from.
    #[must_use]
    pub fn time_to_label_us(&self) -> Histogram<u64> {
        let mut all = self.time_to_cached_label_us.clone();
        histograms::merge(&mut all, &self.time_to_inferred_label_us);
        all
    }

    /// The class that `source` gave was offered to the flow, `time_ns` after it had asked.
    pub(crate) fn labelled(&mut self, source: Source, taken: Result<(), PostMortem>, time_ns: u64) {
        let times = match source {
            Source::Cache => {
                self.cached += 1;
                &mut self.time_to_cached_label_us
            }
            // Ports and rules give their labels elsewhere.
            Source::Model | Source::Port | Source::Rule => {
                self.inferred += 1;
                &mut self.time_to_inferred_label_us
            }
        };
        match taken {
            Ok(()) => times.saturating_record(time_ns / 1000),
            Err(_) => self.post_mortem += 1,
        }
    }
}

impl Phases {
    pub(crate) fn ring_waited(&mut self, time_ns: u64) {
        self.ring_wait_us.saturating_record(time_ns / 1000);
    }

    pub(crate) fn batch_waited(&mut self, time_ns: u64, series: u64) {
        record(&mut self.batch_wait_us, time_ns, series);
    }

    pub(crate) fn device_took(&mut self, time_ns: u64, series: u64) {
        record(&mut self.device_us, time_ns, series);
    }
}

/// Counts the same time for `series` series at once. A histogram would take a value for its
/// extremes even if it is there 0 times.
fn record(histogram: &mut Histogram<u64>, time_ns: u64, series: u64) {
    if series > 0 {
        histogram.saturating_record_n(time_ns / 1000, series);
    }
}

impl CacheCounters {
    pub(crate) fn looked_up(&mut self, series: u64, cost_ns: u64, turn: Option<Transition>) {
        self.lookups += series;
        self.lookup_time += Duration::from_nanos(cost_ns);
        match turn {
            Some(Transition::Off) => (self.turned_off, self.is_off) = (self.turned_off + 1, true),
            Some(Transition::On) => (self.turned_on, self.is_off) = (self.turned_on + 1, false),
            None => {}
        }
    }

    pub(crate) fn audited(&mut self, agrees: bool) {
        if agrees {
            self.audits_agree += 1;
        } else {
            self.audits_differ += 1;
        }
    }
}

impl DeviceCounters {
    fn new(accelerator: &Accelerator) -> Self {
        let device = accelerator.device.as_ref();
        Self {
            requested: device.requested().to_owned(),
            effective: device.effective().to_owned(),
            batches: 0,
            series: 0,
            padding: 0,
            batch_series: histogram(BATCH_SERIES_MAX, 2),
            busy: Duration::ZERO,
            probes: 0,
            failures: Default::default(),
            kept_failures: 0,
            went_down: 0,
            came_back: 0,
            last_error: None,
        }
    }

    pub(crate) fn replaced_by(&mut self, accelerator: &Accelerator, was_up: bool) {
        self.came_back += u64::from(!was_up);
        let device = accelerator.device.as_ref();
        self.requested = device.requested().to_owned();
        self.effective = device.effective().to_owned();
    }

    /// Batches and probes that failed in this way.
    #[must_use]
    pub fn failures(&self, kind: FailureKind) -> u64 {
        self.failures[kind as usize]
    }

    /// Batches and probes that failed.
    #[must_use]
    pub fn failures_total(&self) -> u64 {
        self.failures.iter().sum()
    }

    pub(crate) fn failed(&mut self, failure: &Failure) {
        self.failures[failure.kind as usize] += 1;
        self.last_error = Some(failure.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_has_met_a_fate() {
        let mut counters = Counters::none();
        (counters.series, counters.inferred) = (10, 7);
        counters.give_up(15);
        assert_eq!((counters.failed(), counters.shed()), (3, 5));
        assert_eq!((counters.series, counters.undecided()), (15, 0));
    }
}
