//! The series in the summary: outcomes, cache, devices, times, swaps.

use std::fmt::{self, Write as _};

use analytics::{CacheCounters, Counters, DeviceCounters, FailureKind, SloCounters};
use flowmgr::DepthCounters;
use serde_json::{Map, Value, json};

use super::share;
use super::times::Quantiles;

printed! {
    /// Series by outcome: emitted = cached + inferred + not asked + shed + failed. `depths` may
    /// belong to several tasks.
    Series(depths: &[DepthCounters], series: &Counters) [
        let sum = |of: fn(&DepthCounters) -> u64| depths.iter().map(of).sum::<u64>();
        let (full, half_open) = (sum(|it| it.series_shed), sum(|it| it.series_shed_half_open));
    ] {
        emitted: u64 = sum(|it| it.series_emitted),
        withheld: u64 = sum(|it| it.series_withheld),
        /// Complete series that were not emitted, because the task is not asked about their flows.
        #[serde(skip_serializing_if = "is_zero")]
        flows_not_asked: u64 = sum(|it| it.flows_not_asked),
        cached: u64 = series.cached,
        inferred: u64 = series.inferred,
        /// Series emitted and excluded by the label of another task.
        #[serde(skip_serializing_if = "is_zero")]
        not_asked: u64 = series.not_asked,
        shed: u64 = full + series.shed(),
        shed_ring_full: u64 = full - half_open,
        shed_half_open: u64 = half_open,
        shed_no_device: u64 = series.shed_no_device,
        failed: u64 = series.failed(),
        failed_no_other_device: u64 = series.failed_no_other_device,
        failed_after_retry: u64 = series.failed_after_retry,
        retried: u64 = series.retried,
        post_mortem: u64 = series.post_mortem,
    }
}

impl Series {
    /// Writes the counts; reasons only if they are not 0.
    pub fn write_text(&self, page: &mut String) -> fmt::Result {
        write!(
            page,
            "series    {} emitted = {} cached + {} inferred",
            self.emitted, self.cached, self.inferred
        )?;
        if self.not_asked > 0 {
            write!(page, " + {} not asked", self.not_asked)?;
        }
        write!(page, " + {} shed + {} failed", self.shed, self.failed)?;
        let reasons = [
            ("not classified, began mid-stream:", self.withheld),
            ("not asked about, by the flow:", self.flows_not_asked),
            ("shed: ring full", self.shed_ring_full),
            ("shed: half-open", self.shed_half_open),
            ("shed: no device", self.shed_no_device),
            ("failed: no other device", self.failed_no_other_device),
            ("failed: after a retry", self.failed_after_retry),
            ("retried", self.retried),
        ];
        for (reason, series) in reasons.into_iter().filter(|(_, series)| *series > 0) {
            write!(page, "; {reason} {series}")?;
        }
        writeln!(page)
    }
}

printed! {
    Cache(cache: &CacheCounters) [] {
        lookups: u64 = cache.lookups,
        hits: u64 = cache.hits,
        seconds: f64 = cache.lookup_time.as_secs_f64(),
        insert_seconds: f64 = cache.insert_time.as_secs_f64(),
        audits_agree: u64 = cache.audits_agree,
        audits_differ: u64 = cache.audits_differ,
        bypassed: u64 = cache.bypassed,
        turned_off: u64 = cache.turned_off,
        turned_on: u64 = cache.turned_on,
    }
}

impl Cache {
    pub fn write_text(&self, page: &mut String) -> fmt::Result {
        if self.lookups + self.bypassed == 0 {
            return Ok(());
        }
        let audits = self.audits_agree + self.audits_differ;
        writeln!(
            page,
            "cache     {:.1} % of {} look-ups hit; {:.2} % of {audits} audited hits wrong; {} not \
            looked up, turned off {} times",
            share(self.hits, self.lookups) * 100.0,
            self.lookups,
            share(self.audits_differ, audits) * 100.0,
            self.bypassed,
            self.turned_off
        )
    }
}

/// For fields that only runs with a `when` have.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference to the field")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

printed! {
    /// One session of a device.
    Device(device: &DeviceCounters) [
        let count = |kind: FailureKind| (kind.name().to_owned(), json!(device.failures(kind)));
    ] {
        requested: String = device.requested.clone(),
        effective: String = device.effective.clone(),
        batches: u64 = device.batches,
        series: u64 = device.series,
        padding: u64 = device.padding,
        busy_s: f64 = device.busy.as_secs_f64(),
        failures: Map<String, Value> = FailureKind::ALL.into_iter().map(count).collect(),
        probes: u64 = device.probes,
        went_down: u64 = device.went_down,
        came_back: u64 = device.came_back,
        last_error: Option<String> = device.last_error.clone(),
    }
}

impl Device {
    pub fn write_text(&self, page: &mut String) -> fmt::Result {
        write!(
            page,
            "device    {} ({}): {} series in {} batches, busy {:.3} s",
            self.requested, self.effective, self.series, self.batches, self.busy_s
        )?;
        if let Some(error) = &self.last_error {
            write!(
                page,
                "; went down {}, came back {}; failures: {}; the last one: {error}",
                self.went_down,
                self.came_back,
                super::listed(&self.failures)
            )?;
        }
        writeln!(page)
    }
}

printed! {
    /// How the time to a label is spent.
    Phases(phases: &analytics::Phases) [] {
        ring_wait: Quantiles = Quantiles::from_us(&phases.ring_wait_us),
        batch_wait: Quantiles = Quantiles::from_us(&phases.batch_wait_us),
        device: Quantiles = Quantiles::from_us(&phases.device_us),
    }
}

printed! {
    Slo(slo: &SloCounters) [] {
        periods: u64 = slo.periods,
        violations: u64 = slo.violations,
    }
}

impl Slo {
    /// Writes the line of the goal, if the policy is `slo` and had a control period.
    pub fn write_text(&self, page: &mut String) -> fmt::Result {
        if self.periods == 0 {
            return Ok(());
        }
        writeln!(
            page,
            "slo       latency goal missed in {} of {} periods",
            self.violations, self.periods
        )
    }
}

printed! {
    Swaps(swaps: &dataplane::state::Swaps) [] {
        done: u64 = swaps.done,
        refused: u64 = swaps.refused,
        reverted: u64 = swaps.reverted,
        last_refusal: Option<String> = swaps.last_refusal.clone(),
    }
}

impl Swaps {
    /// Writes the line of swaps, if any were requested.
    pub fn write_text(&self, page: &mut String) -> fmt::Result {
        let Swaps { done, refused, reverted, .. } = self;
        if done + refused == 0 {
            return Ok(());
        }
        write!(page, "swaps     {done} done, {refused} refused")?;
        if *reverted > 0 {
            write!(page, ", {reverted} reverted")?;
        }
        match &self.last_refusal {
            Some(reason) => writeln!(page, "; the last one: {reason}"),
            None => writeln!(page),
        }
    }
}
