//! The metrics: each declared once, with the way to read it.
//!
//! From this table come the scrape, `docs/metrics.md` (a test holds the page against it) and the figures of `fenxi ctl
//! status`. Names, units and labels follow the conventions of Prometheus: base units, `_total` for what only grows, sums
//! over labels that mean something, and never an address or a port as a label.
//!
//! Counters are those of the threads, as [`super::collector`] has gathered them; nothing is counted here.

use analytics::Trigger;
use flowmgr::record::EndReason;
use flowmgr::verdict::Verdict;

use super::State;
use super::exposition::{Sample, Value};
use super::view::View;
use read::{
    buckets, count, devices, ends, failures, labels, number, pipelines, queues, sample, stalls,
    sums, workers,
};

mod read;

/// What becomes of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They only grow.
    Counter,
    /// They go up and down.
    Gauge,
    /// They are counted by size.
    Histogram,
}

impl Kind {
    /// The name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
pub struct Metric {
    /// As Prometheus knows it.
    pub name: &'static str,
    /// What becomes of its values.
    pub kind: Kind,
    /// What one of the value is; empty where it counts nothing.
    pub unit: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it says, in one line.
    pub help: &'static str,
    /// Reads it.
    pub samples: fn(&View<'_>) -> Vec<Sample>,
}

const fn metric(
    kind: Kind,
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    samples: fn(&View<'_>) -> Vec<Sample>,
) -> Metric {
    Metric {
        name,
        kind,
        unit,
        labels,
        help,
        samples,
    }
}

const C: Kind = Kind::Counter;
const G: Kind = Kind::Gauge;
const H: Kind = Kind::Histogram;

/// Upper bounds for times, in seconds; 10 ms, what a label may take, is one.
const TIMES: [f64; 14] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
];

/// Upper bounds for batches, in series.
const SIZES: [f64; 11] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

const US: f64 = 1e-6;

/// Every metric, in the order of the page.
#[rustfmt::skip] // A table: a metric in three lines reads better than in ten.
pub static CATALOGUE: &[Metric] = &[
    metric(G, "fenxi_build_info", "", &["version"],
        "1; the label says what runs.",
        |view| vec![count(&[view.facts.version], 1)]),
    metric(G, "fenxi_model_info", "", &["model", "version", "sha256"],
        "1; the labels say with which model the run began. Whether it still does, fenxi_model_swaps_total tells.",
        |view| { let model = &view.facts.model; vec![count(&[&model.name, &model.version, &model.sha256], 1)] }),
    metric(G, "fenxi_state", "", &["state"],
        "1 for the state that the run is in, 0 for the others.",
        |view| State::ALL.map(|state| count(&[state.name()], u64::from(state == view.state))).into()),
    metric(G, "fenxi_uptime_seconds", "seconds", &[],
        "Time since the run began.",
        |view| vec![number(&[], view.uptime.as_secs_f64())]),
    metric(G, "fenxi_balance", "packets, series or flows", &["pipeline", "of"],
        "What is missing (above 0) or too much (below 0) where what came in is held against what became of it. Always 0.",
        |view| pipelines(view, |sums, pipeline| {
            let balance = sums.balance;
            let parts = [("packets", balance.packets), ("series", balance.series), ("flows", balance.flows)];
            parts.map(|(of, missing)| number(&[pipeline, of], missing as f64)).into()
        })),

    metric(C, "fenxi_port_packets_total", "packets", &["port", "queue"],
        "Packets taken from a port.",
        |view| queues(view, |flows, port, queue| count(&[port, queue], flows.received))),
    metric(C, "fenxi_port_bytes_total", "bytes", &["port", "queue"],
        "Bytes that these packets had on the wire.",
        |view| queues(view, |flows, port, queue| count(&[port, queue], flows.bytes))),
    metric(C, "fenxi_port_kernel_dropped_total", "packets", &["port", "queue"],
        "Packets that found the port's receive ring full.",
        |view| queues(view, |flows, port, queue| count(&[port, queue], flows.kernel_dropped))),
    metric(C, "fenxi_port_sent_total", "packets", &["port", "queue"],
        "Packets sent on, mode inline.",
        |view| queues(view, |flows, port, queue| count(&[port, queue], flows.sent))),
    metric(C, "fenxi_port_unsent_total", "packets", &["port", "queue"],
        "Packets to be sent on that were not: the interface did not take them, or they were cut or too long.",
        |view| queues(view, |flows, port, queue| count(&[port, queue], flows.unsent))),
    metric(C, "fenxi_packets_total", "packets", &["pipeline", "verdict"],
        "Packets by what became of them; each has exactly one verdict.",
        |view| pipelines(view, |sums, pipeline| Verdict::ALL.map(|verdict|
            count(&[pipeline, verdict.name()], sums.flows.counters.verdicts.of(verdict))).into())),
    metric(C, "fenxi_label_packets_total", "packets", &["pipeline", "label"],
        "Packets that carry a label, by label.",
        |view| labels(view, |sums, class| sums.flows.counters.tagged_by_class[class].packets)),
    metric(C, "fenxi_label_bytes_total", "bytes", &["pipeline", "label"],
        "Bytes of these packets at the IP layer.",
        |view| labels(view, |sums, class| sums.flows.counters.tagged_by_class[class].bytes)),
    metric(C, "fenxi_label_flows_total", "flows", &["pipeline", "label"],
        "Flows that have ended with a label, by label.",
        |view| labels(view, |sums, class| sums.flows.counters.flows_labelled[class])),

    metric(G, "fenxi_flow_table_entries", "flows", &["pipeline", "worker"],
        "Flows in a flow manager's table.",
        |view| workers(view, |flows, pipeline, worker| count(&[pipeline, worker], flows.alive))),
    metric(G, "fenxi_flow_table_capacity_entries", "flows", &["pipeline", "worker"],
        "Flows that the table has room for.",
        |view| workers(view, |_, pipeline, worker| count(&[pipeline, worker], view.facts.table_entries))),
    metric(C, "fenxi_flows_begun_total", "flows", &["pipeline"],
        "Flows begun.",
        |view| sums(view, |sums| sums.flows.counters.flows_begun)),
    metric(C, "fenxi_flows_ended_total", "flows", &["pipeline", "reason"],
        "Flows whose last record was made, by what ended them.",
        |view| pipelines(view, |sums, pipeline| ends().map(|reason|
            count(&[pipeline, reason.name()], sums.flows.counters.flows_ended[reason as usize])).collect())),
    metric(C, "fenxi_flows_short_total", "flows", &["pipeline"],
        "Flows that ended before their K-th packet, and so without a series.",
        |view| sums(view, |sums| sums.flows.counters.flows_short)),
    metric(C, "fenxi_flow_reports_total", "records", &["pipeline"],
        "Records of flows that went on after an active timeout.",
        |view| sums(view, |sums| sums.flows.counters.flows_ended[EndReason::Active as usize])),
    metric(G, "fenxi_flows_unrecorded", "flows", &["pipeline"],
        "Flows that have ended and wait for their record.",
        |view| sums(view, |sums| sums.flows.unrecorded)),
    metric(C, "fenxi_records_total", "records", &["sink"],
        "Records written.",
        |view| vec![count(&["json"], view.facts.records.written())]),
    metric(C, "fenxi_records_dropped_total", "records", &["sink", "reason"],
        "Records not written: queue_full, the writer or its reader is too slow; write_failed, as where the disk is full.",
        |view| vec![
            count(&["json", "queue_full"], view.pipelines.iter().map(|sums| sums.flows.records_dropped).sum()),
            count(&["json", "write_failed"], view.facts.records.failed())]),

    metric(C, "fenxi_series_emitted_total", "series", &["pipeline"],
        "Flows that reached their K-th packet.",
        |view| sums(view, |sums| sums.flows.counters.series_emitted)),
    metric(C, "fenxi_series_total", "series", &["pipeline", "outcome"],
        "Series by what became of them.",
        |view| pipelines(view, |sums, pipeline| {
            let (series, full) = (&sums.analytics, sums.flows.counters.series_shed);
            [("cached", series.cached), ("inferred", series.inferred), ("shed", full + series.shed()), ("failed", series.failed())]
                .map(|(outcome, series)| count(&[pipeline, outcome], series)).into()
        })),
    metric(C, "fenxi_series_lost_total", "series", &["pipeline", "reason"],
        "Series shed or failed, by why.",
        |view| pipelines(view, |sums, pipeline| {
            let series = &sums.analytics;
            [("ring_full", sums.flows.counters.series_shed), ("no_device", series.shed_no_device),
             ("no_other_device", series.failed_no_other_device), ("after_retry", series.failed_after_retry)]
                .map(|(reason, series)| count(&[pipeline, reason], series)).into()
        })),
    metric(C, "fenxi_series_retried_total", "series", &["pipeline"],
        "Series given to a second device because the first one failed.",
        |view| sums(view, |sums| sums.analytics.retried)),
    metric(G, "fenxi_series_waiting", "series", &["pipeline", "place"],
        "Series without an outcome: unseen in a ring, or seen and waiting for a batch or its result.",
        |view| pipelines(view, |sums, pipeline| vec![
            count(&[pipeline, "ring"], sums.in_rings), count(&[pipeline, "batch"], sums.analytics.undecided())])),
    metric(G, "fenxi_ring_capacity_slots", "series", &["pipeline"],
        "Room in all rings of the pipeline.",
        |view| sums(view, |_| view.facts.ring_slots)),

    metric(G, "fenxi_cache_capacity_entries", "prefixes", &["pipeline"],
        "Prefixes that each of the pipeline's caches remembers; 0: it is off.",
        |view| sums(view, |_| view.facts.cache_entries)),
    metric(C, "fenxi_cache_lookups_total", "series", &["pipeline", "result"],
        "Series looked up in the prefix cache.",
        |view| pipelines(view, |sums, pipeline| {
            let cache = &sums.analytics.cache;
            [("hit", cache.hits), ("miss", cache.lookups - cache.hits)]
                .map(|(result, series)| count(&[pipeline, result], series)).into()
        })),
    metric(C, "fenxi_cache_audits_total", "series", &["pipeline", "result"],
        "Hits inferred as well, by whether the model said the same.",
        |view| pipelines(view, |sums, pipeline| {
            let cache = &sums.analytics.cache;
            [("agree", cache.audits_agree), ("differ", cache.audits_differ)]
                .map(|(result, series)| count(&[pipeline, result], series)).into()
        })),
    metric(C, "fenxi_cache_bypassed_total", "series", &["pipeline"],
        "Series not looked up, because the cache cost more than it saved and had turned itself off.",
        |view| sums(view, |sums| sums.analytics.cache.bypassed)),

    metric(C, "fenxi_batches_total", "batches", &["pipeline", "trigger"],
        "Batches by what fired them.",
        |view| pipelines(view, |sums, pipeline| Trigger::ALL.map(|trigger|
            count(&[pipeline, trigger.name()], sums.analytics.batches(trigger).batches)).into())),
    metric(H, "fenxi_batch_size_series", "series", &["pipeline", "device", "session"],
        "Series in a batch, without padding.",
        |view| devices(view, |device, _| buckets(&SIZES, 1.0, &device.batch_series))),
    metric(C, "fenxi_batch_padding_series_total", "series", &["pipeline", "device", "session"],
        "Rows of padding in batches.",
        |view| devices(view, |device, _| Value::Count(device.padding))),
    metric(G, "fenxi_device_up", "", &["pipeline", "device", "session"],
        "1 while a device is given batches, else 0. A session is an analytics manager's number and its device's.",
        |view| devices(view, |_, state| Value::Count(u64::from(state.is_up())))),
    metric(C, "fenxi_device_busy_seconds_total", "seconds", &["pipeline", "device", "session"],
        "Time from submission to result, of batches that came back good.",
        |view| devices(view, |device, _| Value::Number(device.busy.as_secs_f64()))),
    metric(C, "fenxi_device_failures_total", "batches", &["pipeline", "device", "session", "reason"],
        "Batches and probes that failed.",
        failures),

    metric(H, "fenxi_series_wait_seconds", "seconds", &["pipeline", "place"],
        "Time that series waited in a ring, and then for their batch. Bounds are exact to 1 %, and never flatter.",
        |view| pipelines(view, |sums, pipeline| {
            let phases = &sums.analytics.phases;
            [("ring", &phases.ring_wait_us), ("batch", &phases.batch_wait_us)]
                .map(|(place, waits)| sample(&[pipeline, place], buckets(&TIMES, US, waits))).into()
        })),
    metric(H, "fenxi_inference_duration_seconds", "seconds", &["pipeline"],
        "Time that series spent on a device, from their batch to its result. Bounds as above.",
        |view| pipelines(view, |sums, pipeline|
            vec![sample(&[pipeline], buckets(&TIMES, US, &sums.analytics.phases.device_us))])),
    metric(H, "fenxi_label_latency_seconds", "seconds", &["pipeline"],
        "Time from a flow's K-th packet to its label. Bounds are exact to 0.1 %, and never flatter.",
        |view| pipelines(view, |sums, pipeline|
            vec![sample(&[pipeline], buckets(&TIMES, US, &sums.analytics.time_to_label_us))])),
    metric(C, "fenxi_labels_discarded_total", "labels", &["pipeline", "reason"],
        "Labels that did not become a flow's: post_mortem, the flow had ended.",
        |view| pipelines(view, |sums, pipeline| vec![count(&[pipeline, "post_mortem"], sums.analytics.post_mortem)])),
    metric(C, "fenxi_slo_periods_total", "periods", &["pipeline", "result"],
        "Policy slo: control periods, by whether 99 of 100 labels kept the goal.",
        |view| pipelines(view, |sums, pipeline| {
            let slo = &sums.analytics.slo;
            [("kept", slo.periods - slo.violations), ("violated", slo.violations)]
                .map(|(result, periods)| count(&[pipeline, result], periods)).into()
        })),
    metric(C, "fenxi_model_swaps_total", "exchanges", &["pipeline"],
        "Exchanges of the model, by each analytics manager.",
        |view| sums(view, |sums| sums.analytics.swaps)),

    metric(C, "fenxi_thread_cpu_seconds_total", "seconds", &["thread"],
        "Time on a CPU of the threads that there are; those of one name together.",
        |view| view.threads.iter().map(|time| number(&[&time.name], time.seconds)).collect()),
    metric(C, "fenxi_worker_stalls_total", "stalls", &["worker"],
        "How often a thread of the data path has not answered for more than a second.",
        stalls),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = include_str!("../../../../docs/metrics.md");

    /// The rows of the page: what `docs/metrics.md` must say of each metric.
    fn rows() -> Vec<String> {
        let row = |metric: &Metric| {
            let labels: Vec<String> = metric
                .labels
                .iter()
                .map(|label| format!("`{label}`"))
                .collect();
            format!(
                "| `{}` | {} | {} | {} | {} |",
                metric.name,
                metric.kind.name(),
                metric.unit,
                labels.join(", "),
                metric.help
            )
        };
        CATALOGUE.iter().map(row).collect()
    }

    #[test]
    fn the_page_has_a_row_for_each_metric_and_no_other() {
        let found: Vec<&str> = PAGE
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        let wanted = rows();
        assert!(
            found == wanted,
            "the rows of docs/metrics.md must be\n{}",
            wanted.join("\n")
        );
    }

    #[test]
    fn names_follow_the_conventions() {
        let names: BTreeSet<&str> = CATALOGUE.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
        for metric in CATALOGUE {
            let name = metric.name;
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(
                name.starts_with("fenxi_") && name.chars().all(is_plain),
                "{name}"
            );
            assert_eq!(
                name.ends_with("_total"),
                metric.kind == Kind::Counter,
                "{name}"
            );
            assert!(
                metric.help.ends_with('.') && !metric.help.contains(['\n', '|']),
                "{name}"
            );
            assert_eq!(
                metric.unit == "seconds",
                name.contains("_seconds"),
                "{name}"
            );
            let forbidden = ["le", "address", "src", "dst", "src_port", "dst_port"];
            assert!(
                metric.labels.iter().all(|label| !forbidden.contains(label)),
                "{name}"
            );
        }
        assert!(TIMES.contains(&0.01), "what a label may take");
    }
}
