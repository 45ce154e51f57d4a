//! The series in the summary: outcomes, cache, devices, times, swaps.

use std::fmt::{self, Write as _};

use analytics::{CacheCounters, Counters, DeviceCounters, FailureKind, SloCounters};
use flowmgr::TaskCounters;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::share;
use super::times::Quantiles;
use crate::outcome::Outcome;

/// Series by outcome: emitted = cached + inferred + not asked + shed + failed.
#[derive(Serialize)]
pub struct Series {
    emitted: u64,
    withheld: u64,
    /// Complete series that were not emitted, because the task is not asked about their flows.
    #[serde(skip_serializing_if = "is_zero")]
    flows_not_asked: u64,
    cached: u64,
    inferred: u64,
    /// Series emitted and excluded by the label of another task.
    #[serde(skip_serializing_if = "is_zero")]
    not_asked: u64,
    shed: u64,
    shed_ring_full: u64,
    shed_half_open: u64,
    shed_no_device: u64,
    failed: u64,
    failed_no_other_device: u64,
    failed_after_retry: u64,
    retried: u64,
    post_mortem: u64,
}

impl Series {
    /// Sums of these depths, which may belong to several tasks.
    pub fn new(depths: &[TaskCounters], series: &Counters) -> Series {
        let sum = |of: fn(&TaskCounters) -> u64| depths.iter().map(of).sum::<u64>();
        let (shed, half_open) = (sum(|it| it.series_shed), sum(|it| it.series_shed_half_open));
        Series {
            emitted: sum(|it| it.series_emitted),
            withheld: sum(|it| it.series_withheld),
            flows_not_asked: sum(|it| it.flows_not_asked),
            cached: series.cached,
            inferred: series.inferred,
            not_asked: series.not_asked,
            shed: shed + series.shed(),
            shed_ring_full: shed - half_open,
            shed_half_open: half_open,
            shed_no_device: series.shed_no_device,
            failed: series.failed(),
            failed_no_other_device: series.failed_no_other_device,
            failed_after_retry: series.failed_after_retry,
            retried: series.retried,
            post_mortem: series.post_mortem,
        }
    }

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

#[derive(Serialize)]
pub struct Cache {
    lookups: u64,
    hits: u64,
    seconds: f64,
    insert_seconds: f64,
    audits_agree: u64,
    audits_differ: u64,
    bypassed: u64,
    turned_off: u64,
    turned_on: u64,
}

impl Cache {
    pub fn new(cache: &CacheCounters) -> Cache {
        Cache {
            lookups: cache.lookups,
            hits: cache.hits,
            seconds: cache.lookup_time.as_secs_f64(),
            insert_seconds: cache.insert_time.as_secs_f64(),
            audits_agree: cache.audits_agree,
            audits_differ: cache.audits_differ,
            bypassed: cache.bypassed,
            turned_off: cache.turned_off,
            turned_on: cache.turned_on,
        }
    }

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

#[derive(Serialize)]
pub struct Device {
    requested: String,
    effective: String,
    batches: u64,
    series: u64,
    padding: u64,
    busy_s: f64,
    failures: Map<String, Value>,
    probes: u64,
    went_down: u64,
    came_back: u64,
    last_error: Option<String>,
}

impl Device {
    pub fn new(device: &DeviceCounters) -> Device {
        let failures = FailureKind::ALL.into_iter();
        Device {
            requested: device.requested.clone(),
            effective: device.effective.clone(),
            batches: device.batches,
            series: device.series,
            padding: device.padding,
            busy_s: device.busy.as_secs_f64(),
            failures: failures
                .map(|kind| (kind.name().to_owned(), json!(device.failures(kind))))
                .collect(),
            probes: device.probes,
            went_down: device.went_down,
            came_back: device.came_back,
            last_error: device.last_error.clone(),
        }
    }

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

/// How the time to a label is spent.
#[derive(Serialize)]
pub struct Phases {
    ring_wait: Quantiles,
    batch_wait: Quantiles,
    device: Quantiles,
}

impl Phases {
    pub fn new(phases: &analytics::Phases) -> Phases {
        Phases {
            ring_wait: Quantiles::from_us(&phases.ring_wait_us),
            batch_wait: Quantiles::from_us(&phases.batch_wait_us),
            device: Quantiles::from_us(&phases.device_us),
        }
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ring, batch) = (self.ring_wait.short(), self.batch_wait.short());
        write!(f, "ring wait {ring}, batch wait {batch}, device {}", self.device.short())
    }
}

#[derive(Serialize)]
pub struct Slo {
    periods: u64,
    violations: u64,
}

impl Slo {
    pub fn new(slo: &SloCounters) -> Slo {
        Slo { periods: slo.periods, violations: slo.violations }
    }

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

#[derive(Serialize)]
pub struct Swaps {
    done: u64,
    refused: u64,
    reverted: u64,
    last_refusal: Option<String>,
}

impl Swaps {
    pub fn new(outcome: &Outcome) -> Swaps {
        let swaps = &outcome.swaps;
        Swaps {
            done: swaps.done,
            refused: swaps.refused,
            reverted: swaps.reverted,
            last_refusal: swaps.last_refusal.clone(),
        }
    }

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
