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
    balances, buckets, count, devices, drops, ends, failures, labels, lags, number, pipelines,
    queues, sample, seconds_since_epoch, stalls, sums, workers,
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

/// Which state of the source, where whoever builds says so.
const REVISION: &str = match option_env!("BUILD_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// What the program can do in this build: ports, ways to mark, and where models run.
const FEATURES: &str = "af_packet,capture,ctnetlink,onnxruntime,simulated";

/// Every metric, in the order of the page.
#[rustfmt::skip] // A table: a metric in three lines reads better than in ten.
pub static CATALOGUE: &[Metric] = &[
    metric(G, "fenxi_build_info", "", &["version", "revision", "features"],
        "1; the labels say what runs: revision is BUILD_REVISION of the build's environment, else unknown.",
        |view| vec![count(&[view.facts.version, REVISION, FEATURES], 1)]),
    metric(G, "fenxi_model_info", "", &["model", "version", "sha256", "generation"],
        "1; the labels say which model is in use. The generation is that of records, and grows with each exchange.",
        |view| {
            let model = &view.run_state.model;
            vec![count(&[&model.name, &model.version, &model.sha256, &model.generation.to_string()], 1)]
        }),
    metric(G, "fenxi_state", "", &["state"],
        "1 for the state that the run is in, 0 for the others.",
        |view| State::ALL.map(|state| count(&[state.name()], u64::from(state == view.state))).into()),
    metric(G, "fenxi_uptime_seconds", "seconds", &[],
        "Time since the run began.",
        |view| vec![number(&[], view.uptime.as_secs_f64())]),
    metric(C, "fenxi_config_reloads_total", "reloads", &["result"],
        "Reloads of the configuration: applied; refused, and the old one goes on; reverted, having been applied but not confirmed.",
        |view| {
            let reloads = &view.run_state.reloads;
            [("applied", reloads.applied), ("refused", reloads.refused), ("reverted", reloads.reverted)]
                .map(|(result, reloads)| count(&[result], reloads)).into()
        }),
    metric(G, "fenxi_config_last_success_timestamp_seconds", "seconds", &[],
        "When a configuration was last taken over, at the start or by a reload, since the epoch.",
        |view| vec![number(&[], seconds_since_epoch(view.run_state.configured))]),
    metric(G, "fenxi_config_unconfirmed_seconds", "seconds", &[],
        "Time left until a reload is undone that was not confirmed; 0: none waits to be.",
        |view| vec![number(&[], view.run_state.unconfirmed().map_or(0.0, |left| left.as_secs_f64()))]),
    metric(G, "fenxi_helpers_abandoned", "threads", &[],
        "Threads that were to open a model or read files, were late and were given up, and still run: they keep memory, and perhaps a core.",
        |view| vec![count(&[], view.run_state.abandoned.len() as u64)]),
    metric(G, "fenxi_balance", "packets, series, flows or marks", &["pipeline", "of"],
        "What is missing (above 0) or too much (below 0) where what came in is held against what became of it. Always 0.",
        balances),

    metric(C, "fenxi_port_offered_packets_total", "packets", &["port", "queue"],
        "Packets that the kernel had for a flow manager's receive ring, whatever became of them.",
        |view| queues(view, |port, labels| vec![count(labels, port.rx.offered)])),
    metric(G, "fenxi_port_up", "", &["port", "queue"],
        "1 while the port's interface is there and up, else 0.",
        |view| queues(view, |port, labels| vec![count(labels, u64::from(!port.rx.is_away))])),
    metric(C, "fenxi_port_packets_total", "packets", &["port", "queue"],
        "Packets taken from a port.",
        |view| queues(view, |port, labels| vec![count(labels, port.rx.received)])),
    metric(C, "fenxi_port_bytes_total", "bytes", &["port", "queue"],
        "Bytes that these packets had on the wire.",
        |view| queues(view, |port, labels| vec![count(labels, port.rx.bytes)])),
    metric(C, "fenxi_port_merged_packets_total", "packets", &["port", "queue"],
        "Of the packets taken from a port, those that are several merged by GRO, LRO or TSO, or longer than its MTU: labels go wrong.",
        |view| queues(view, |port, labels| vec![count(labels, port.rx.merged)])),
    metric(G, "fenxi_port_waiting_packets", "packets", &["port", "queue"],
        "Packets in a receive ring.",
        |view| queues(view, |port, labels| vec![count(labels, port.rx.waiting)])),
    metric(C, "fenxi_port_dropped_packets_total", "packets", &["port", "queue", "reason"],
        "Packets lost before fenxi could read them: those of the receive ring by queue, those before it with the queue all.",
        drops),
    metric(C, "fenxi_port_sent_total", "packets", &["port", "queue"],
        "Packets sent out of a port, mode inline.",
        |view| queues(view, |port, labels| vec![count(labels, port.tx.sent)])),
    metric(C, "fenxi_port_unsent_total", "packets", &["port", "queue", "reason"],
        "Packets to be sent out of a port that were not: refused, it was full or down; too_long for its MTU, or merged and not to be split again; cut when captured.",
        |view| queues(view, |port, &[name, queue]|
            [("refused", port.tx.refused), ("too_long", port.tx.too_long + port.tx.unsplit), ("cut", port.tx.cut)]
                .map(|(reason, packets)| count(&[name, queue, reason], packets)).into())),
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
        |view| labels(view, |sums, class| sums.flows.counters.flows_labelled()[class])),
    metric(C, "fenxi_labels_total", "labels", &["pipeline", "label"],
        "Labels given to flows, by label, as they are given.",
        |view| labels(view, |sums, class| sums.flows.counters.labels_given()[class])),

    metric(G, "fenxi_flow_table_entries", "flows", &["pipeline", "worker"],
        "Flows in a flow manager's table.",
        |view| workers(view, |flows, pipeline, worker| count(&[pipeline, worker], flows.alive))),
    metric(G, "fenxi_flow_table_capacity_entries", "flows", &["pipeline", "worker"],
        "Flows that the table has room for.",
        |view| workers(view, |_, pipeline, worker| count(&[pipeline, worker], view.facts.table_entries))),
    metric(G, "fenxi_flows_half_open", "flows", &["pipeline", "worker"],
        "Flows in a flow manager's table that nobody has answered yet. Many of them, and evictions, are a flood from forged addresses.",
        |view| workers(view, |flows, pipeline, worker| count(&[pipeline, worker], flows.half_open))),
    metric(C, "fenxi_flows_evicted_total", "flows", &["pipeline", "kind"],
        "Flows that made room for others in a full table: half_open; closed, they only lingered; idle, silent for longer than the idle timeout. None in use goes.",
        |view| pipelines(view, |sums, pipeline| sums.flows.counters.evictions.by_kind()
            .map(|(kind, flows)| count(&[pipeline, kind], flows)).into())),
    metric(C, "fenxi_flows_begun_total", "flows", &["pipeline", "ip", "proto"],
        "Flows begun, by IP version and transport.",
        |view| pipelines(view, |sums, pipeline| sums.flows.counters.flows_begun.by_kind()
            .map(|(ip, proto, flows)| count(&[pipeline, ip, proto], flows)).into())),
    metric(C, "fenxi_flows_midstream_total", "flows", &["pipeline"],
        "TCP flows begun of which the first packet seen was not the SYN that opens a connection, as after a restart.",
        |view| sums(view, |sums| sums.flows.counters.flows_midstream)),
    metric(C, "fenxi_flows_ended_total", "flows", &["pipeline", "reason"],
        "Flows whose last record was made, by what ended them.",
        |view| pipelines(view, |sums, pipeline| ends().map(|reason|
            count(&[pipeline, reason.name()], sums.flows.counters.flows_ended[reason as usize])).collect())),
    metric(C, "fenxi_flows_short_total", "flows", &["pipeline"],
        "Flows that ended before their K-th packet, and so without a series.",
        |view| sums(view, |sums| sums.flows.counters.flows_short)),
    metric(C, "fenxi_flows_one_way_total", "flows", &["pipeline"],
        "Ended flows of which all packets went the way of the first: scans, or answers that take another way.",
        |view| sums(view, |sums| sums.flows.counters.flows_one_way)),
    metric(H, "fenxi_flow_expiry_lag_seconds", "seconds", &["pipeline"],
        "Time from when a silent flow was over to its end. Timeouts are kept in whole seconds, so up to 1 s is no delay.",
        |view| pipelines(view, |sums, pipeline|
            vec![sample(&[pipeline], lags(&sums.flows.counters.expiry_lag))])),
    metric(C, "fenxi_clock_steps_total", "steps", &["pipeline", "worker"],
        "Steps of the clock that stamps packets, as each flow manager saw them: back by more than 60 s in a capture; live each time that the system clock was set.",
        |view| workers(view, |flows, pipeline, worker| count(&[pipeline, worker], flows.clock_steps))),
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
        "Flows that reached their K-th packet and were asked about.",
        |view| sums(view, |sums| sums.flows.counters.series_emitted())),
    metric(C, "fenxi_series_withheld_total", "series", &["pipeline"],
        "Flows that reached their K-th packet and were not asked about: they began mid-stream, and the model was not trained for that.",
        |view| sums(view, |sums| sums.flows.counters.series_withheld())),
    metric(C, "fenxi_series_total", "series", &["pipeline", "outcome"],
        "Series by what became of them.",
        |view| pipelines(view, |sums, pipeline| {
            let (series, full) = (&sums.analytics, sums.flows.counters.series_shed());
            [("cached", series.cached), ("inferred", series.inferred), ("shed", full + series.shed()), ("failed", series.failed())]
                .map(|(outcome, series)| count(&[pipeline, outcome], series)).into()
        })),
    metric(C, "fenxi_series_lost_total", "series", &["pipeline", "reason"],
        "Series shed or failed, by why.",
        |view| pipelines(view, |sums, pipeline| {
            let (series, flows) = (&sums.analytics, &sums.flows.counters);
            [("ring_full", flows.series_shed() - flows.series_shed_half_open()),
             ("half_open", flows.series_shed_half_open()), ("no_device", series.shed_no_device),
             ("no_other_device", series.failed_no_other_device), ("after_retry", series.failed_after_retry)]
                .map(|(reason, series)| count(&[pipeline, reason], series)).into()
        })),
    metric(C, "fenxi_series_retried_total", "series", &["pipeline"],
        "Series given to a second device because the first one failed.",
        |view| sums(view, |sums| sums.analytics.retried)),
    metric(G, "fenxi_series_waiting", "series", &["pipeline", "place"],
        "Series without an outcome: unseen in a ring, seen and waiting for a batch, or on their way through a device.",
        |view| pipelines(view, |sums, pipeline| {
            let batch = sums.analytics.undecided() - sums.on_devices;
            [("ring", sums.in_rings), ("batch", batch), ("device", sums.on_devices)]
                .map(|(place, series)| count(&[pipeline, place], series)).into()
        })),
    metric(G, "fenxi_ring_capacity_slots", "series", &["pipeline"],
        "Room in all rings of the pipeline.",
        |view| sums(view, |_| view.facts.ring_slots)),

    metric(G, "fenxi_cache_entries", "prefixes", &["pipeline"],
        "Prefixes in the pipeline's caches, those of an earlier model too until they make room.",
        |view| sums(view, |sums| sums.analytics.cache.entries)),
    metric(G, "fenxi_cache_capacity_entries", "prefixes", &["pipeline"],
        "Prefixes that the pipeline's caches have room for; 0: they are off.",
        |view| sums(view, |_| view.run_state.cache_entries)),
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
    metric(H, "fenxi_label_latency_seconds", "seconds", &["pipeline", "source"],
        "Time from a flow's K-th packet to its label, by where that came from. Bounds are exact to 0.1 %, and never flatter.",
        |view| pipelines(view, |sums, pipeline| {
            let series = &sums.analytics;
            [("cache", &series.time_to_cached_label_us), ("device", &series.time_to_inferred_label_us)]
                .map(|(source, times)| sample(&[pipeline, source], buckets(&TIMES, US, times))).into()
        })),
    metric(C, "fenxi_labels_discarded_total", "labels", &["pipeline", "reason"],
        "Labels that did not become a flow's: post_mortem, it had ended; low_confidence, it was given unknown instead.",
        |view| pipelines(view, |sums, pipeline| {
            let unknown = sums.flows.counters.labels_given().last().copied().unwrap_or(0);
            [("post_mortem", sums.analytics.post_mortem), ("low_confidence", unknown)]
                .map(|(reason, labels)| count(&[pipeline, reason], labels)).into()
        })),
    metric(C, "fenxi_slo_periods_total", "periods", &["pipeline", "result"],
        "Policy slo: control periods, by whether 99 of 100 labels kept the goal.",
        |view| pipelines(view, |sums, pipeline| {
            let slo = &sums.analytics.slo;
            [("kept", slo.periods - slo.violations), ("violated", slo.violations)]
                .map(|(result, periods)| count(&[pipeline, result], periods)).into()
        })),
    metric(C, "fenxi_model_swaps_total", "exchanges", &["result"],
        "Exchanges of the model, by all analytics managers: done; refused, and the old one goes on; reverted, with a reload that was not confirmed.",
        |view| {
            let swaps = &view.run_state.swaps;
            [("done", swaps.done), ("refused", swaps.refused), ("reverted", swaps.reverted)]
                .map(|(result, swaps)| count(&[result], swaps)).into()
        }),

    metric(C, "fenxi_marks_total", "marks", &["outcome"],
        "Marks of connections, mode mark: written; kept, the connection had a mark already; not_found, no connection has the flow's addresses; failed; dropped, the queue was full.",
        |view| {
            let marks = &view.collector.marks;
            [("written", marks.written), ("kept", marks.kept), ("not_found", marks.not_found), ("failed", marks.failed()), ("dropped", marks.dropped)]
                .map(|(outcome, marks)| count(&[outcome], marks)).into()
        }),
    metric(C, "fenxi_marks_failed_total", "marks", &["cause"],
        "Marks that the kernel refused, by why.",
        |view| view.collector.marks.failed_by_cause().map(|(cause, marks)| count(&[cause], marks)).collect()),
    metric(G, "fenxi_marks_waiting", "marks", &[],
        "Marks on their way to the kernel.",
        |view| vec![number(&[], view.collector.marks.waiting() as f64)]),
    metric(H, "fenxi_mark_latency_seconds", "seconds", &[],
        "Time from a label to the kernel's word that the connection has its mark. Bounds are exact to 1 %, and never flatter.",
        |view| vec![sample(&[], buckets(&TIMES, US, &view.collector.marks.latency_us))]),

    metric(C, "fenxi_thread_cpu_seconds_total", "seconds", &["thread"],
        "Time on a CPU of the threads that there are; those of one name together.",
        |view| view.threads.iter().map(|time| number(&[&time.name], time.seconds)).collect()),
    metric(C, "fenxi_worker_stalls_total", "stalls", &["worker"],
        "How often a thread of the data path has not answered for more than a second.",
        stalls),
];

#[cfg(test)]
mod tests;
