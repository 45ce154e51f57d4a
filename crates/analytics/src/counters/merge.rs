//! The sums of several managers, for whoever reports them together, and copies of them into memory that is there.

use super::{BatchCounters, CacheCounters, Counters, DeviceCounters, Phases, SloCounters};
use hdrhistogram::Histogram;

impl Counters {
    /// Adds what another manager counted; its devices come behind this one's.
    pub fn merge(&mut self, other: &Counters) {
        let Counters {
            series,
            cached,
            inferred,
            shed_no_device,
            failed_no_other_device,
            failed_after_retry,
            retried,
            post_mortem,
            batches,
            cache,
            devices,
            time_to_cached_label_us,
            time_to_inferred_label_us,
            phases,
            slo,
            swaps,
            last_swap,
        } = other;
        self.series += series;
        self.cached += cached;
        self.inferred += inferred;
        self.shed_no_device += shed_no_device;
        self.failed_no_other_device += failed_no_other_device;
        self.failed_after_retry += failed_after_retry;
        self.retried += retried;
        self.post_mortem += post_mortem;
        for (sum, batches) in self.batches.iter_mut().zip(batches) {
            sum.merge(batches);
        }
        self.cache.merge(cache);
        self.devices.extend_from_slice(devices);
        add(&mut self.time_to_cached_label_us, time_to_cached_label_us);
        add(
            &mut self.time_to_inferred_label_us,
            time_to_inferred_label_us,
        );
        self.phases.merge(phases);
        self.slo.merge(slo);
        self.swaps += swaps;
        self.last_swap = self.last_swap.max(*last_swap);
    }
}

impl Counters {
    /// Becomes what the same manager has counted by now. Unlike a clone it allocates nothing, but where a device says for
    /// the first time, or at greater length, what went wrong.
    pub fn copy_from(&mut self, other: &Counters) {
        let Counters {
            series,
            cached,
            inferred,
            shed_no_device,
            failed_no_other_device,
            failed_after_retry,
            retried,
            post_mortem,
            batches,
            cache,
            devices,
            time_to_cached_label_us,
            time_to_inferred_label_us,
            phases,
            slo,
            swaps,
            last_swap,
        } = other;
        self.series = *series;
        self.cached = *cached;
        self.inferred = *inferred;
        self.shed_no_device = *shed_no_device;
        self.failed_no_other_device = *failed_no_other_device;
        self.failed_after_retry = *failed_after_retry;
        self.retried = *retried;
        self.post_mortem = *post_mortem;
        self.batches = *batches;
        self.cache = *cache;
        debug_assert_eq!(self.devices.len(), devices.len(), "of the same manager");
        for (copy, device) in self.devices.iter_mut().zip(devices) {
            copy.copy_from(device);
        }
        copy(&mut self.time_to_cached_label_us, time_to_cached_label_us);
        copy(
            &mut self.time_to_inferred_label_us,
            time_to_inferred_label_us,
        );
        self.phases.copy_from(phases);
        self.slo = *slo;
        self.swaps = *swaps;
        self.last_swap = *last_swap;
    }
}

/// Makes a histogram like another one of the same bounds.
fn copy(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.reset();
    add(into, from);
}

impl DeviceCounters {
    fn copy_from(&mut self, other: &DeviceCounters) {
        let DeviceCounters {
            requested,
            effective,
            batches,
            series,
            padding,
            batch_series,
            busy,
            probes,
            failures,
            went_down,
            came_back,
            last_error,
        } = other;
        self.requested.clone_from(requested);
        self.effective.clone_from(effective);
        self.batches = *batches;
        self.series = *series;
        self.padding = *padding;
        copy(&mut self.batch_series, batch_series);
        self.busy = *busy;
        self.probes = *probes;
        self.failures = *failures;
        self.went_down = *went_down;
        self.came_back = *came_back;
        self.last_error.clone_from(last_error);
    }
}

/// Adds a histogram of the same bounds.
pub(super) fn add(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    // Only a value above the bounds could be refused, and all managers have the same.
    let added = sum.add(other);
    debug_assert!(added.is_ok(), "{added:?}");
}

impl Phases {
    fn copy_from(&mut self, other: &Phases) {
        let Phases {
            ring_wait_us,
            batch_wait_us,
            device_us,
        } = other;
        copy(&mut self.ring_wait_us, ring_wait_us);
        copy(&mut self.batch_wait_us, batch_wait_us);
        copy(&mut self.device_us, device_us);
    }

    fn merge(&mut self, other: &Phases) {
        let Phases {
            ring_wait_us,
            batch_wait_us,
            device_us,
        } = other;
        add(&mut self.ring_wait_us, ring_wait_us);
        add(&mut self.batch_wait_us, batch_wait_us);
        add(&mut self.device_us, device_us);
    }
}

impl SloCounters {
    fn merge(&mut self, other: &SloCounters) {
        let SloCounters {
            periods,
            violations,
        } = other;
        self.periods += periods;
        self.violations += violations;
    }
}

impl BatchCounters {
    fn merge(&mut self, other: &BatchCounters) {
        let BatchCounters {
            batches,
            series,
            padding,
        } = other;
        self.batches += batches;
        self.series += series;
        self.padding += padding;
    }
}

impl CacheCounters {
    fn merge(&mut self, other: &CacheCounters) {
        let CacheCounters {
            lookups,
            hits,
            audits_agree,
            audits_differ,
            bypassed,
            turned_off,
            turned_on,
            is_off,
            entries,
            lookup_time,
            insert_time,
        } = other;
        self.lookups += lookups;
        self.hits += hits;
        self.audits_agree += audits_agree;
        self.audits_differ += audits_differ;
        self.bypassed += bypassed;
        self.turned_off += turned_off;
        self.turned_on += turned_on;
        self.is_off |= is_off;
        self.entries += entries;
        self.lookup_time += *lookup_time;
        self.insert_time += *insert_time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::{Fire, Trigger};
    use crate::failure::Failure;
    use std::time::Duration;

    use cring::Source;

    use accel::{Profile, Shape, SimulatedDevice, Sizes};

    fn counters() -> Counters {
        let profile = Profile {
            t0_us: 0.0,
            t1_us: 0.0,
        };
        let shape = Shape {
            channels: 1,
            k: 2,
            classes: 2,
        };
        let device = SimulatedDevice::new(profile, Sizes::Any { cap: 8 }, shape);
        let device: Box<dyn accel::Device> = Box::new(device);
        Counters::new(&[device.into()])
    }

    #[test]
    fn a_copy_says_all_that_the_original_says_whatever_it_said_before() {
        let mut original = counters();
        original.series = 3;
        original.fired(
            0,
            &Fire {
                take: 3,
                size: 4,
                trigger: Trigger::Full,
                more: false,
            },
        );
        original.labelled(Source::Model, Ok(()), 5_000_000);
        original.devices[0].failed(&Failure::deadline("d", Duration::ZERO));
        let mut copy = counters();
        copy.labelled(Source::Cache, Ok(()), 7_000_000);
        for counters in [&original, &counters()] {
            copy.copy_from(counters);
            assert_eq!(format!("{copy:?}"), format!("{counters:?}"));
        }
    }
}
