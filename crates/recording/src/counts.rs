//! What managers have counted, number by number with a name: what a recording and its replay are compared by.
//!
//! Durations are in it, too: a replay takes them from the recorded clocks, so they come out the same.

use analytics::{FailureKind, Trigger};
use flowmgr::Counters;
use flowmgr::record::EndReason;
use flowmgr::verdict::Verdict;
use hdrhistogram::Histogram;

use super::event::Counts;

/// Of a flow manager.
pub fn of_flows(counters: &Counters, classes: &[String]) -> Counts {
    // All of them, so that a new counter is not forgotten here.
    let Counters {
        verdicts,
        flow_bytes,
        tagged_bytes,
        tagged_by_class,
        flows_begun,
        flows_ended,
        flows_short,
        flows_one_way,
        flows_midstream,
        evictions,
        clock_rebased,
        expiry_lag,
        tasks: _,
    } = counters;
    let mut counts = Sums::default();
    for verdict in Verdict::ALL {
        counts.add(&["verdicts", verdict.name()], verdicts.of(verdict));
    }
    counts.add(&["flow_bytes"], *flow_bytes);
    counts.add(&["tagged_bytes"], *tagged_bytes);
    for (class, volume) in classes.iter().zip(tagged_by_class) {
        counts.add(&["tagged", class, "packets"], volume.packets);
        counts.add(&["tagged", class, "bytes"], volume.bytes);
    }
    for (ip, protocol, flows) in flows_begun.by_kind() {
        counts.add(&["flows_begun", ip, protocol], flows);
    }
    for reason in EndReason::ALL {
        let flows = flows_ended[reason as usize];
        counts.add(&["flows_ended", reason.name()], flows);
    }
    counts.add(&["flows_short"], *flows_short);
    counts.add(&["flows_one_way"], *flows_one_way);
    counts.add(&["flows_midstream"], *flows_midstream);
    for (kind, flows) in evictions.by_kind() {
        counts.add(&["evictions", kind], flows);
    }
    counts.add(&["clock_rebased"], *clock_rebased);
    for (at, flows) in expiry_lag.flows().iter().enumerate() {
        counts.add(&["expiry_lag", &at.to_string()], *flows);
    }
    let lag_us = (expiry_lag.sum_s() * 1e6).round() as u64;
    counts.add(&["expiry_lag", "sum_us"], lag_us);
    for (class, labels) in classes.iter().zip(counters.labels_given()) {
        counts.add(&["labels_given", class], *labels);
    }
    for (class, flows) in classes.iter().zip(counters.flows_labelled()) {
        counts.add(&["flows_labelled", class], *flows);
    }
    counts.add(&["series_emitted"], counters.series_emitted());
    counts.add(&["series_withheld"], counters.series_withheld());
    counts.add(&["series_shed"], counters.series_shed());
    counts.add(&["series_shed_half_open"], counters.series_shed_half_open());
    counts.0
}

/// Of an analytics manager.
pub fn of_series(counters: &analytics::Counters) -> Counts {
    let mut counts = Sums::default();
    for (name, count) in [
        ("series", counters.series),
        ("cached", counters.cached),
        ("inferred", counters.inferred),
        ("shed_no_device", counters.shed_no_device),
        ("failed_no_other_device", counters.failed_no_other_device),
        ("failed_after_retry", counters.failed_after_retry),
        ("retried", counters.retried),
        ("post_mortem", counters.post_mortem),
        ("swaps", counters.swaps),
        ("last_swap_ns", counters.last_swap.as_nanos() as u64),
        ("slo.periods", counters.slo.periods),
        ("slo.violations", counters.slo.violations),
    ] {
        counts.add(&[name], count);
    }
    for trigger in Trigger::ALL {
        let batches = counters.batches(trigger);
        let name = trigger.name();
        counts.add(&["batches", name, "batches"], batches.batches);
        counts.add(&["batches", name, "series"], batches.series);
        counts.add(&["batches", name, "padding"], batches.padding);
    }
    of_cache(&counters.cache, &mut counts);
    for (at, device) in counters.devices.iter().enumerate() {
        of_device(&at.to_string(), device, &mut counts);
    }
    for (name, times) in [
        ("time_to_cached_label_us", &counters.time_to_cached_label_us),
        (
            "time_to_inferred_label_us",
            &counters.time_to_inferred_label_us,
        ),
        ("ring_wait_us", &counters.phases.ring_wait_us),
        ("batch_wait_us", &counters.phases.batch_wait_us),
        ("device_us", &counters.phases.device_us),
    ] {
        counts.histogram(&[name], times);
    }
    counts.0
}

fn of_cache(cache: &analytics::CacheCounters, counts: &mut Sums) {
    for (name, count) in [
        ("lookups", cache.lookups),
        ("hits", cache.hits),
        ("audits_agree", cache.audits_agree),
        ("audits_differ", cache.audits_differ),
        ("bypassed", cache.bypassed),
        ("turned_off", cache.turned_off),
        ("turned_on", cache.turned_on),
        ("is_off", cache.is_off.into()),
        ("entries", cache.entries),
        ("lookup_ns", cache.lookup_time.as_nanos() as u64),
        ("insert_ns", cache.insert_time.as_nanos() as u64),
    ] {
        counts.add(&["cache", name], count);
    }
}

fn of_device(at: &str, device: &analytics::DeviceCounters, counts: &mut Sums) {
    for (name, count) in [
        ("batches", device.batches),
        ("series", device.series),
        ("padding", device.padding),
        ("busy_ns", device.busy.as_nanos() as u64),
        ("probes", device.probes),
        ("went_down", device.went_down),
        ("came_back", device.came_back),
    ] {
        counts.add(&["devices", at, name], count);
    }
    for kind in FailureKind::ALL {
        let failures = device.failures(kind);
        counts.add(&["devices", at, "failures", kind.name()], failures);
    }
    counts.histogram(&["devices", at, "batch_series"], &device.batch_series);
}

/// What is not 0, by name.
#[derive(Default)]
struct Sums(Counts);

impl Sums {
    fn add(&mut self, name: &[&str], count: u64) {
        if count != 0 {
            self.0.insert(name.join("."), count);
        }
    }

    /// By its number of values, their sum and the largest.
    fn histogram(&mut self, name: &[&str], histogram: &Histogram<u64>) {
        let mut add = |what, count| self.add(&[name, &[what]].concat(), count);
        let values = histogram.iter_recorded();
        let sum = values.fold(0_u64, |sum, it| {
            let part = it
                .value_iterated_to()
                .wrapping_mul(it.count_since_last_iteration());
            sum.wrapping_add(part)
        });
        add("count", histogram.len());
        add("sum", sum);
        if !histogram.is_empty() {
            add("max", histogram.max());
        }
    }
}

/// The first of the counters that differ, and how many do.
pub fn difference(recorded: &Counts, replayed: &Counts) -> Option<(String, u64, u64, usize)> {
    let of = |counts: &Counts, name: &String| counts.get(name).copied().unwrap_or(0);
    let mut names: Vec<&String> = recorded.keys().chain(replayed.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| of(recorded, name) != of(replayed, name));
    let first = *names.first()?;
    let (was, is) = (of(recorded, first), of(replayed, first));
    Some((first.clone(), was, is, names.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_left_out_is_0() {
        let counts = |pairs: &[(&str, u64)]| -> Counts {
            let pairs = pairs
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count));
            pairs.collect()
        };
        let recorded = counts(&[("b", 2), ("c", 0), ("d", 1)]);
        assert_eq!(difference(&recorded, &recorded), None);
        assert_eq!(difference(&recorded, &counts(&[("b", 2), ("d", 1)])), None);
        let other = counts(&[("a", 7), ("b", 2), ("d", 3)]);
        let found = difference(&recorded, &other);
        assert_eq!(found, Some(("a".to_owned(), 0, 7, 2)));
    }
}
