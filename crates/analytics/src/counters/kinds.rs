//! How counters that are not plain numbers are added, copied and listed.

/// Distributions of the same bounds, which all managers have.
pub(super) mod histograms {
    use hdrhistogram::Histogram;

    pub fn merge(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
        // Only a value above the bounds could be refused.
        let added = sum.add(other);
        debug_assert!(added.is_ok(), "{added:?}");
    }

    pub fn copy_from(copy: &mut Histogram<u64>, from: &Histogram<u64>) {
        copy.reset();
        merge(copy, from);
    }

    /// The number of values, their sum, each value rounded up to its bucket's largest, and the
    /// largest value.
    pub fn list(counter: &Histogram<u64>, name: &str, each: &mut dyn FnMut(&str, u64)) {
        let sum = counter.iter_recorded().fold(0_u64, |sum, it| {
            let values = it.count_since_last_iteration();
            sum.wrapping_add(it.value_iterated_to().wrapping_mul(values))
        });
        each(&format!("{name}.count"), counter.len());
        each(&format!("{name}.sum"), sum);
        each(&format!("{name}.max"), counter.max());
    }
}

/// Devices are not added: another manager's devices are appended.
pub(super) mod devices {
    use crate::DeviceCounters;
    use cring::Counter;

    pub fn merge(all: &mut Vec<DeviceCounters>, other: &[DeviceCounters]) {
        all.extend_from_slice(other);
    }

    pub fn copy_from(copy: &mut [DeviceCounters], from: &[DeviceCounters]) {
        for (copy, device) in copy.iter_mut().zip(from) {
            copy.copy_from(device);
        }
    }

    pub fn list(counters: &[DeviceCounters], name: &str, each: &mut dyn FnMut(&str, u64)) {
        for (at, device) in counters.iter().enumerate() {
            device.list(&format!("{name}.{at}"), each);
        }
    }
}

/// The longest of several times.
pub(super) mod longest {
    use cring::Counter;
    use std::time::Duration;

    pub fn merge(longest: &mut Duration, other: &Duration) {
        *longest = (*longest).max(*other);
    }

    pub fn copy_from(copy: &mut Duration, from: &Duration) {
        *copy = *from;
    }

    pub fn list(counter: &Duration, name: &str, each: &mut dyn FnMut(&str, u64)) {
        counter.list(name, each);
    }
}

/// Names and messages, which are not counted: a sum keeps its own.
pub(super) mod texts {
    pub fn merge<T>(_: &mut T, _: &T) {}

    pub fn copy_from<T: Clone>(copy: &mut T, from: &T) {
        copy.clone_from(from);
    }

    pub fn list<T>(_: &T, _: &str, _: &mut dyn FnMut(&str, u64)) {}
}

#[cfg(test)]
mod tests {
    use crate::Counters;
    use crate::batching::{Fire, Trigger};
    use crate::failure::Failure;
    use std::time::Duration;

    use cring::Source;

    use accel::{Profile, Shape, SimulatedDevice, Sizes};

    fn counters() -> Counters {
        let profile = Profile { t0_us: 0.0, t1_us: 0.0 };
        let shape = Shape { channels: 1, k: 2, context: 0, classes: 2 };
        let device = SimulatedDevice::new(profile, Sizes::Any { cap: 8 }, shape);
        let device: Box<dyn accel::Device> = Box::new(device);
        Counters::new(&[device.into()])
    }

    #[test]
    fn a_copy_says_all_that_the_original_says_whatever_it_said_before() {
        let mut original = counters();
        original.series = 3;
        original.fired(0, &Fire { take: 3, size: 4, trigger: Trigger::Full, more: false }, 1);
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
