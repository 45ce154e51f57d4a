//! The metrics: each declared once, with the function that reads it.
//!
//! The scrape, `docs/metrics.md` (a test compares them) and the figures of `fenxi ctl status` come
//! from this table. Names, units and labels follow the conventions of Prometheus: base units,
//! `_total` for counters, labels whose sum makes sense, and no address or port as a label, except
//! where names.metrics asks for hosts.
//!
//! Nothing is counted here: [`super::collector`] gathers the threads' counters. Sinks declare their
//! own metrics, which follow the table.

use analytics::Trigger;
use dataplane::state::TaskState;
use flowmgr::record::EndReason;
use flowmgr::verdict::Verdict;

use super::State;
use super::view::{View, series_lost};
use crate::metric::{
    Family, Kind, Metric, Sample, TIMES, US, Value, buckets, count, number, sample,
};
use crate::version;
use learn::OUTCOMES;
use read::{
    balances, behaviours, by, by_pipeline, devices, drops, ends, failures, labels, lags, mirrored,
    parts, pipelines, ports, profiles, queues, rules, rules_coverage, rules_updates, scores,
    seconds_since_epoch, stalls, sums, task_labels, task_sums, tasks, times_by, workers,
};

mod read;

pub use read::rule_volumes;

/// A metric of the data path, and the function that reads it.
struct Row {
    metric: Metric,
    samples: fn(&View<'_>) -> Vec<Sample>,
}

const fn metric(
    kind: Kind,
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    samples: fn(&View<'_>) -> Vec<Sample>,
) -> Row {
    Row { metric: Metric::new(kind, name, unit, labels, help), samples }
}

/// The metrics of what this run has, with their samples, in the order of the page.
pub fn families(view: &View<'_>) -> Vec<Family> {
    let own =
        CATALOGUE.iter().map(|row| Family { metric: row.metric, samples: (row.samples)(view) });
    let sinks = view.collector.sinks.iter();
    let all = own.chain(sinks.flat_map(|report| report.metrics.iter().cloned()));
    all.filter(|family| is_on(view, family.metric.name) && !family.samples.is_empty()).collect()
}

/// Whether the run has the part that a metric is of.
fn is_on(view: &View<'_>, name: &str) -> bool {
    let state = &view.run_state;
    match name {
        _ if name.starts_with("fenxi_policy_") => state.rules.rules.is_some(),
        _ if name.starts_with("fenxi_cache_") => state.tasks.iter().any(|it| it.cache_entries > 0),
        _ => true,
    }
}

const C: Kind = Kind::Counter;
const G: Kind = Kind::Gauge;
const H: Kind = Kind::Histogram;

/// Upper bounds for batches, in series.
const SIZES: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Features of this build: ports, ways to mark, devices.
const FEATURES: &str = "af_packet,capture,ctnetlink,onnxruntime,simulated";

/// The metrics of the data path, in the order of the page.
#[rustfmt::skip] // A table: a metric in three lines reads better than in ten.
static CATALOGUE: &[Row] = &[
    metric(G, "fenxi_build_info", "", &["version", "revision", "features"],
        "1; the labels say what runs. The revision is the checkout's in release builds, or \
        FENXI_REVISION of the build; otherwise unknown.",
        |_| vec![count(&[version::NUMBER, version::REVISION, FEATURES], 1)]),
    metric(G, "fenxi_model_info", "", &["task", "model", "version", "sha256", "generation"],
        "1; the labels say which model a task uses. Records name the same generation, which \
        grows with each swap and canary.",
        |view| {
            let tasks = view.run_state.tasks.iter();
            tasks.map(|TaskState { name, model, .. }| {
                let generation = model.generation.to_string();
                count(&[name, &model.name, &model.version, &model.sha256, &generation], 1)
            }).collect()
        }),
    metric(G, "fenxi_state", "", &["state"],
        "1 for the current state of the run, 0 for the others.",
        |view| State::ALL
            .map(|state| count(&[state.name()], u64::from(state == view.health.state))).into()),
    metric(G, "fenxi_uptime_seconds", "seconds", &[],
        "Time since the run began.",
        |view| vec![number(&[], view.uptime.as_secs_f64())]),
    metric(C, "fenxi_config_reloads_total", "reloads", &["result"],
        "Reloads of the configuration: applied; refused, and the old one stays; reverted, because \
        nobody confirmed it.",
        |view| {
            let it = &view.run_state.reloads;
            [("applied", it.applied), ("refused", it.refused), ("reverted", it.reverted)]
                .map(|(result, reloads)| count(&[result], reloads)).into()
        }),
    metric(G, "fenxi_config_last_success_timestamp_seconds", "seconds", &[],
        "When a configuration was last applied, at the start or by a reload, since the epoch.",
        |view| vec![number(&[], seconds_since_epoch(view.run_state.configured))]),
    metric(G, "fenxi_config_unconfirmed_seconds", "seconds", &[],
        "Time left until an unconfirmed reload is undone; 0 if no reload waits to be confirmed.",
        |view| {
            let left = view.run_state.unconfirmed().unwrap_or_default();
            vec![number(&[], left.as_secs_f64())]
        }),
    metric(G, "fenxi_helpers_abandoned", "threads", &[],
        "Threads that open a model or read files, missed their deadline and still run. They \
        keep memory, and perhaps a core.",
        |view| vec![count(&[], view.run_state.abandoned.len() as u64)]),
    metric(G, "fenxi_balance", "packets, series, flows, marks, labels or elements",
        &["pipeline", "task", "of"],
        "What came in, less what is accounted for: above 0 if something is missing, below 0 if \
        there is too much. Always 0. Of series by task; of all else task is all.",
        balances),

    metric(C, "fenxi_port_offered_packets_total", "packets", &["port", "queue"],
        "Packets that the kernel had for a flow manager's receive ring, including those it \
        dropped.",
        |view| ports(view, |port| port.rx.offered)),
    metric(G, "fenxi_port_up", "", &["port", "queue"],
        "1 while the port's interface exists and is up, otherwise 0.",
        |view| ports(view, |port| u64::from(!port.rx.is_away))),
    metric(C, "fenxi_port_packets_total", "packets", &["port", "queue"],
        "Packets received from a port; one that was merged from several counts once.",
        |view| ports(view, |port| port.rx.received)),
    metric(G, "fenxi_port_counts_in_kernel", "", &["port", "queue"],
        "1 while only the first packets of each flow come up and the kernel counts the others \
        (io.capture = first); 0 also where it refused to.",
        |view| ports(view, |port| u64::from(port.rx.counts_in_kernel))),
    metric(G, "fenxi_port_labels_in_kernel", "", &["port", "queue"],
        "1 while the kernel labels flows, too (io.capture = kernel); 0 also where it cannot.",
        |view| ports(view, |port| u64::from(port.rx.labels_in_kernel))),
    metric(C, "fenxi_port_counted_packets_total", "packets", &["port", "queue"],
        "Packets that the kernel counted instead of sending them up; each has the verdict counted.",
        |view| ports(view, |port| port.rx.counted)),
    metric(C, "fenxi_port_counted_bytes_total", "bytes", &["port", "queue"],
        "Bytes of the frames of these packets.",
        |view| ports(view, |port| port.rx.counted_bytes)),
    metric(G, "fenxi_port_flows_forgotten", "flows", &["port", "queue"],
        "Flows whose counts the kernel gave up because its table was full; packets counted \
        since the last reading are missing in their records.",
        |view| ports(view, |port| port.rx.forgotten)),
    metric(C, "fenxi_port_bytes_total", "bytes", &["port", "queue"],
        "Bytes of these packets.",
        |view| ports(view, |port| port.rx.bytes)),
    metric(C, "fenxi_port_merged_packets_total", "packets", &["port", "queue"],
        "Of these, packets that GRO, LRO or TSO merged from several, or that are longer than the \
        MTU.",
        |view| ports(view, |port| port.rx.merged)),
    metric(C, "fenxi_port_stray_packets_total", "packets", &["port", "queue"],
        "Packets that stayed with the flow manager of their queue for lack of room at the one \
        of their flow.",
        |view| ports(view, |port| port.rx.strays)),
    metric(G, "fenxi_port_waiting_packets", "packets", &["port", "queue"],
        "Packets that wait in a receive ring.",
        |view| ports(view, |port| port.rx.waiting)),
    metric(C, "fenxi_port_dropped_packets_total", "packets", &["port", "queue", "reason"],
        "Packets lost before fenxi could read them: in the receive ring by queue, before it with \
        queue = all.",
        drops),
    metric(C, "fenxi_port_sent_total", "packets", &["port", "queue"],
        "Packets sent on a port, mode inline.",
        |view| ports(view, |port| port.tx.sent)),
    metric(C, "fenxi_port_unsent_total", "packets", &["port", "queue", "reason"],
        "Packets not sent on a port: refused, the port was full or down; too_long for its MTU, or \
        merged and impossible to split; cut when captured; rule, a rule drops it.",
        |view| queues(view, |port, &[name, queue]| {
            let (tx, ruled_out) = (&port.tx, port.ruled_out);
            let too_long = tx.too_long + tx.unsplit;
            [("refused", tx.refused), ("too_long", too_long), ("cut", tx.cut), ("rule", ruled_out)]
                .map(|(reason, packets)| count(&[name, queue, reason], packets)).into()
        })),
    metric(C, "fenxi_mirror_packets_total", "packets", &["port", "queue"],
        "Copies of packets sent on the interface of policy.mirror, as rules ask for them, mode \
        inline.",
        |view| mirrored(view, |copied, labels| vec![count(labels, copied.sent)])),
    metric(C, "fenxi_mirror_bytes_total", "bytes", &["port", "queue"],
        "Bytes of the frames of these copies.",
        |view| mirrored(view, |copied, labels| vec![count(labels, copied.sent_bytes)])),
    metric(C, "fenxi_mirror_lost_packets_total", "packets", &["port", "queue", "reason"],
        "Copies not sent, for the same reasons as packets.",
        |view| mirrored(view, |copied, &[name, queue]| {
            let too_long = copied.too_long + copied.unsplit;
            [("refused", copied.refused), ("too_long", too_long), ("cut", copied.cut)]
                .map(|(reason, packets)| count(&[name, queue, reason], packets)).into()
        })),
    metric(C, "fenxi_merged_packets_total", "packets", &["pipeline", "segments"],
        "Packets received that were merged: known, each segment counts as a packet; unknown, \
        it counts as one packet of a wrong length.",
        |view| by_pipeline(view, |sums| {
            let merged = sums.flows.counters.merged;
            [("known", merged.packets), ("unknown", merged.unknown)]
        })),
    metric(C, "fenxi_segments_total", "packets", &["pipeline"],
        "Packets on the wire that the merged packets with known segments are.",
        |view| sums(view, |sums| sums.flows.counters.merged.segments)),
    metric(C, "fenxi_packets_total", "packets", &["pipeline", "verdict"],
        "Packets by verdict, as many as on the wire; each has exactly one.",
        |view| by_pipeline(view, |sums| Verdict::ALL.map(|verdict|
            (verdict.name(), sums.flows.counters.verdicts.get(verdict))))),
    metric(C, "fenxi_label_packets_total", "packets", &["pipeline", "label"],
        "Packets that carry a label of the first task, by label.",
        |view| labels(view, |sums, class| sums.flows.counters.labelled_by_class[class].packets)),
    metric(C, "fenxi_label_bytes_total", "bytes", &["pipeline", "label"],
        "Bytes of these packets at the IP layer.",
        |view| labels(view, |sums, class| sums.flows.counters.labelled_by_class[class].bytes)),
    metric(C, "fenxi_label_flows_total", "flows", &["pipeline", "task", "label"],
        "Flows that ended with a label of the task, by label.",
        |view| task_labels(view, |flows| &flows.flows_labelled)),
    metric(C, "fenxi_labels_total", "labels", &["pipeline", "task", "label"],
        "Labels given to flows, by label, counted when they are given.",
        |view| task_labels(view, |flows| &flows.labels_given)),

    metric(G, "fenxi_server_cells", "cells", &["pipeline"],
        "Cells of the memory of servers in use; 0 where no model reads it.",
        |view| sums(view, |sums| sums.flows.counters.servers.cells)),
    metric(C, "fenxi_server_cells_evicted_total", "cells", &["pipeline"],
        "Cells of the memory of servers that made room for others; see servers.entries.",
        |view| sums(view, |sums| sums.flows.counters.servers.evicted)),
    metric(C, "fenxi_flows_to_unknown_servers_total", "flows", &["pipeline"],
        "Flows that began to a server of which no ended flow is remembered.",
        |view| sums(view, |sums| sums.flows.counters.servers.unknown)),

    metric(C, "fenxi_band_flows_total", "flows", &["pipeline", "task", "label", "true_label"],
        "Ended flows that a task of bands gave one in time, by it and the true one.",
        |view| scores(view, |score, &[pipeline, task], names| {
            let of_label = |(class, label): (usize, &String)| {
                let flows = names.iter().zip(score.flows_of(class));
                flows.map(|(band, flows)| count(&[pipeline, task, label, band], *flows))
                    .collect::<Vec<_>>()
            };
            names.iter().enumerate().flat_map(of_label).collect()
        })),
    metric(C, "fenxi_band_bytes_total", "bytes", &["pipeline", "task", "label"],
        "Their bytes behind the deciding packet.",
        |view| scores(view, |score, &[pipeline, task], names| {
            let bytes = names.iter().zip(&score.bytes);
            bytes.map(|(label, bytes)| count(&[pipeline, task, label], *bytes)).collect()
        })),
    metric(C, "fenxi_band_flows_cut_total", "flows", &["pipeline", "task"],
        "Further such flows, cut before their band was known.",
        |view| scores(view, |score, labels, _| vec![count(labels, score.cut)])),
    metric(G, "fenxi_band_calibration_error_ratio", "ratio", &["pipeline", "task"],
        "Expected calibration error of confidences, in ten ranges; 0 without flows.",
        |view| scores(view, |score, labels, _|
            vec![number(labels, score.calibration_error().unwrap_or(0.0))])),

    metric(C, "fenxi_flows_decided_total", "flows", &["pipeline", "task", "depth"],
        "Flows whose label an answer of the model decided, by the elements of the series that it \
        is to.",
        |view| pipelines(view, |sums, pipeline| {
            let tasks = sums.tasks.iter().zip(&view.run_state.tasks);
            tasks.flat_map(|(sums, task)| {
                let depths = task.depths.iter().zip(&sums.decided);
                let depths = depths.filter(|(depth, _)| **depth > 0);
                depths.map(|(depth, flows)|
                    count(&[pipeline, &task.name, &depth.to_string()], *flows))
            }).collect()
        })),
    metric(C, "fenxi_flows_undecided_total", "flows", &["pipeline", "named_by"],
        "Ended flows that no sure answer of the first task named: port, their server's port \
        did; unsure, an answer that was not sure.",
        |view| by_pipeline(view, |sums| {
            let counters = &sums.flows.counters;
            [("port", counters.flows_by_port), ("unsure", counters.flows_unsure)]
        })),

    metric(C, "fenxi_flows_contradicting_total", "flows", &["pipeline", "task"],
        "Flows that their server's port had named until an answer of the model contradicted \
        it.",
        |view| pipelines(view, |sums, pipeline| {
            let tasks = sums.tasks.iter().zip(&view.run_state.tasks);
            tasks.map(|(sums, task)|
                count(&[pipeline, &task.name], sums.flows.flows_contradicting)).collect()
        })),

    metric(C, "fenxi_behaviour_flows_total", "flows", &["pipeline", "behaviour"],
        "Flows that took a behaviour, each as often as it did; none: again.",
        |view| behaviours(view, |sums| sums.flows)),
    metric(C, "fenxi_behaviour_packets_total", "packets", &["pipeline", "behaviour"],
        "Packets of flows while they had the behaviour, counted about once a second; before \
        the first as none.",
        |view| behaviours(view, |sums| sums.packets)),
    metric(C, "fenxi_behaviour_bytes_total", "bytes", &["pipeline", "behaviour"],
        "Bytes of these packets at the IP layer.",
        |view| behaviours(view, |sums| sums.bytes)),
    metric(C, "fenxi_flows_by_rule_total", "flows", &["pipeline", "what"],
        "Flows about which no model was asked because of a rule: labelled, the rule gave a \
        label; unasked, they ended, with a label of a rule or without.",
        |view| by_pipeline(view, |sums| {
            let counters = &sums.flows.counters;
            [("labelled", counters.flows_by_rule), ("unasked", counters.flows_unasked)]
        })),
    metric(G, "fenxi_policy_rules", "rules", &[],
        "Rules in force.",
        |view| vec![count(&[], view.run_state.rules.rules.unwrap_or(0))]),
    metric(G, "fenxi_policy_index_coverage_ratio", "ratio", &[],
        "Share of the rules' filters that the trained index finds; the others are in hash \
        tables.",
        |view| vec![number(&[], rules_coverage(view))]),
    metric(G, "fenxi_policy_remainder_filters", "filters", &[],
        "Filters of rules in hash tables: those that no model covers, and those added since the \
        last training.",
        |view| vec![count(&[], view.run_state.rules.remainder)]),
    metric(C, "fenxi_policy_updates_total", "updates", &["op", "result"],
        "Changes of the rules in a running program, applied, or refused, and the rules stay; \
        refused reloads count in fenxi_config_reloads_total.",
        rules_updates),
    metric(C, "fenxi_policy_trainings_total", "trainings", &[],
        "Indices that were trained after changes of the rules, and put to use.",
        |view| vec![count(&[], view.run_state.rules_updates.trainings)]),
    metric(C, "fenxi_policy_lookups_total", "flows", &["pipeline", "result"],
        "Flows looked up among the rules, each as often as it was: matched, a rule was found; \
        unmatched, none.",
        |view| by_pipeline(view, |sums| {
            let rules = &sums.flows.rules;
            [("matched", rules.lookups - rules.unmatched), ("unmatched", rules.unmatched)]
        })),
    metric(C, "fenxi_policy_rule_flows_total", "flows", &["rule"],
        "Flows that got the rule, by its name; rules without a name or beyond 1,024 as other. \
        Begins again when the rules are replaced.",
        |view| rules(view, |rule| rule.flows)),
    metric(C, "fenxi_policy_rule_packets_total", "packets", &["rule"],
        "Packets of flows that had the rule last. Open flows count as the tables were last \
        looked at: once a second at most.",
        |view| rules(view, |rule| rule.packets)),
    metric(C, "fenxi_policy_rule_bytes_total", "bytes", &["rule"],
        "Bytes of these packets at the IP layer.",
        |view| rules(view, |rule| rule.bytes)),

    metric(G, "fenxi_flow_table_entries", "flows", &["pipeline", "worker"],
        "Flows in a flow manager's table.",
        |view| workers(view, |flows| flows.alive)),
    metric(G, "fenxi_flow_table_capacity_entries", "flows", &["pipeline", "worker"],
        "Capacity of a flow manager's table.",
        |view| workers(view, |_| view.facts.table_entries)),
    metric(G, "fenxi_flows_half_open", "flows", &["pipeline", "worker"],
        "Flows in a flow manager's table that nobody has answered yet. Many, with evictions, \
        mean a flood from forged addresses.",
        |view| workers(view, |flows| flows.half_open)),
    metric(C, "fenxi_flows_evicted_total", "flows", &["pipeline", "kind"],
        "Flows evicted from a full table: half_open; closed, already ended; idle, silent for \
        longer than the idle timeout. Flows in use never are.",
        |view| by_pipeline(view, |sums| sums.flows.counters.evictions.by_kind())),
    metric(C, "fenxi_flows_begun_total", "flows", &["pipeline", "ip", "proto"],
        "Flows begun, by IP version and transport.",
        |view| pipelines(view, |sums, pipeline| sums.flows.counters.flows_begun.by_kind()
            .map(|(ip, proto, flows)| count(&[pipeline, ip, proto], flows)).into())),
    metric(C, "fenxi_flows_midstream_total", "flows", &["pipeline"],
        "TCP flows whose first packet seen was not the opening SYN.",
        |view| sums(view, |sums| sums.flows.counters.flows_midstream)),
    metric(C, "fenxi_flows_ended_total", "flows", &["pipeline", "reason"],
        "Flows whose last record was made, by the reason of their end.",
        |view| pipelines(view, |sums, pipeline| {
            let ended = &sums.flows.counters.flows_ended;
            ends().map(|reason| count(&[pipeline, reason.name()], ended[reason as usize])).collect()
        })),
    metric(C, "fenxi_flows_short_total", "flows", &["pipeline"],
        "Flows that ended before their K-th packet and therefore have no series.",
        |view| sums(view, |sums| sums.flows.counters.flows_short)),
    metric(C, "fenxi_flows_one_way_total", "flows", &["pipeline"],
        "Ended flows with packets in one direction only: scans, or answers that take another \
        path.",
        |view| sums(view, |sums| sums.flows.counters.flows_one_way)),
    metric(H, "fenxi_flow_expiry_lag_seconds", "seconds", &["pipeline"],
        "Time from the timeout of a silent flow to its end; up to 1 s is no delay.",
        |view| pipelines(view, |sums, pipeline|
            vec![sample(&[pipeline], lags(&sums.flows.counters.expiry_lag))])),
    metric(C, "fenxi_clock_steps_total", "steps", &["pipeline", "worker"],
        "Steps of the clock that stamps packets: in a capture, back by more than 60 s; live, \
        each time the system clock was set.",
        |view| workers(view, |flows| flows.clock_steps)),
    metric(C, "fenxi_flow_reports_total", "records", &["pipeline"],
        "Records of flows that continued after an active timeout.",
        |view| sums(view, |sums| sums.flows.counters.flows_ended[EndReason::Active as usize])),
    metric(G, "fenxi_flows_unrecorded", "flows", &["pipeline"],
        "Flows that ended and wait for their record.",
        |view| sums(view, |sums| sums.flows.unrecorded)),

    metric(C, "fenxi_series_emitted_total", "series", &["pipeline", "task"],
        "Series of flows that reached their K-th packet and were sent to the task.",
        |view| task_sums(view, |sums| sums.flows.series_emitted)),
    metric(C, "fenxi_series_withheld_total", "series", &["pipeline", "task"],
        "Flows that reached their K-th packet and were not sent to the model, because they \
        began mid-stream.",
        |view| task_sums(view, |sums| sums.flows.series_withheld)),
    metric(C, "fenxi_flows_not_asked_total", "flows", &["pipeline", "task"],
        "Flows excluded by a rule, or by the when of the task or of one that it waits for.",
        |view| task_sums(view, |sums| sums.flows.flows_not_asked)),
    metric(C, "fenxi_series_total", "series", &["pipeline", "task", "outcome"],
        "Series by outcome; not_asked, ruled out by the label of another task, or the flow's model \
        has gone.",
        |view| by(view, |sums| {
            let (it, full) = (&sums.analytics, sums.flows.series_shed);
            [("cached", it.cached), ("inferred", it.inferred), ("not_asked", it.not_asked),
             ("shed", full + it.shed()), ("failed", it.failed())]
        })),
    metric(C, "fenxi_series_lost_total", "series", &["pipeline", "task", "reason"],
        "Series shed or failed, by reason.",
        |view| by(view, |sums| {
            let shed = [sums.flows.series_shed, sums.flows.series_shed_half_open];
            series_lost(shed, &sums.analytics)
        })),
    metric(C, "fenxi_series_retried_total", "series", &["pipeline", "task"],
        "Series sent to a second device because the first one failed.",
        |view| task_sums(view, |sums| sums.analytics.retried)),
    metric(G, "fenxi_series_waiting", "series", &["pipeline", "task", "place"],
        "Series without an outcome yet: in a ring, waiting for a batch or another task's label, \
        or on a device.",
        |view| by(view, |sums| {
            let batch = sums.analytics.undecided() - sums.on_devices;
            [("ring", sums.in_rings), ("batch", batch), ("device", sums.on_devices)]
        })),
    metric(G, "fenxi_ring_capacity_slots", "series", &["pipeline"],
        "Capacity of all rings of the pipeline.",
        |view| sums(view, |_| view.facts.ring_slots)),

    metric(G, "fenxi_cache_entries", "prefixes", &["pipeline", "task"],
        "Prefixes in the task's caches, including prefixes of an earlier model until they are \
        evicted.",
        |view| task_sums(view, |sums| sums.analytics.cache.entries)),
    metric(G, "fenxi_cache_capacity_entries", "prefixes", &["pipeline", "task"],
        "Capacity of the task's caches; 0 if they are off.",
        |view| pipelines(view, |_, pipeline| view.run_state.tasks.iter()
            .map(|task| count(&[pipeline, &task.name], task.cache_entries)).collect())),
    metric(C, "fenxi_cache_lookups_total", "series", &["pipeline", "task", "result"],
        "Series looked up in the prefix cache.",
        |view| by(view, |sums| {
            let cache = &sums.analytics.cache;
            [("hit", cache.hits), ("miss", cache.lookups - cache.hits)]
        })),
    metric(C, "fenxi_cache_audits_total", "series", &["pipeline", "task", "result"],
        "Cache hits that the model classified as well, by whether it agreed.",
        |view| by(view, |sums| {
            let cache = &sums.analytics.cache;
            [("agree", cache.audits_agree), ("differ", cache.audits_differ)]
        })),
    metric(C, "fenxi_cache_bypassed_total", "series", &["pipeline", "task"],
        "Series not looked up, because the cache cost more than it saved and turned itself off.",
        |view| task_sums(view, |sums| sums.analytics.cache.bypassed)),

    metric(C, "fenxi_batches_total", "batches", &["pipeline", "task", "trigger"],
        "Batches by trigger.",
        |view| by(view, |sums| Trigger::ALL.map(|trigger|
            (trigger.name(), sums.analytics.batches(trigger).batches)))),
    metric(H, "fenxi_batch_size_series", "series", &["pipeline", "task", "device", "session"],
        "Series in a batch, without padding.",
        |view| devices(view, |device, _| buckets(&SIZES, 1.0, &device.batch_series))),
    metric(C, "fenxi_batch_padding_series_total", "series",
        &["pipeline", "task", "device", "session"],
        "Rows of padding in batches.",
        |view| devices(view, |device, _| Value::Count(device.padding))),
    metric(G, "fenxi_device_up", "", &["pipeline", "task", "device", "session"],
        "1 while a device is given batches, otherwise 0. A session is the number of an analytics \
        manager and the number of its device.",
        |view| devices(view, |_, state| Value::Count(u64::from(state.is_up())))),
    metric(C, "fenxi_device_busy_seconds_total", "seconds",
        &["pipeline", "task", "device", "session"],
        "Time from submission to result of successful batches.",
        |view| devices(view, |device, _| Value::Number(device.busy.as_secs_f64()))),
    metric(C, "fenxi_device_failures_total", "batches",
        &["pipeline", "task", "device", "session", "reason"],
        "Batches and probes that failed.",
        failures),
    metric(C, "fenxi_device_kept_failures_total", "batches",
        &["pipeline", "task", "device", "session"],
        "Batches of canaries and models before that failed.",
        |view| devices(view, |device, _| Value::Count(device.kept_failures))),

    metric(G, "fenxi_device_profile_seconds", "seconds",
        &["pipeline", "task", "device", "session", "part"],
        "What a batch is expected to take now, where a policy plans by it: fixed, and \
        per_series.",
        parts),
    metric(G, "fenxi_device_profile_drift_ratio", "ratio",
        &["pipeline", "task", "device", "session"],
        "Relative error of the stored profile at the mean batch size; positive if batches take \
        longer. Reset to 0 when a lasting drift is stored.",
        |view| profiles(view, |profile| Value::Number(profile.drift()))),
    metric(C, "fenxi_device_profile_drifts_total", "drifts",
        &["pipeline", "task", "device", "session"],
        "How often the profile was off by more than 25 % and was replaced by measured times.",
        |view| profiles(view, |profile| Value::Count(profile.drifts))),

    metric(H, "fenxi_series_wait_seconds", "seconds", &["pipeline", "task", "place"],
        "Time that series waited in a ring, and then for their batch.",
        |view| times_by(view, |sums| {
            let phases = &sums.analytics.phases;
            [("ring", &phases.ring_wait_us), ("batch", &phases.batch_wait_us)]
        })),
    metric(H, "fenxi_inference_duration_seconds", "seconds", &["pipeline", "task"],
        "Time that series spent on a device, from the submission of their batch to its \
        result.",
        |view| tasks(view, |sums, labels|
            vec![sample(labels, buckets(&TIMES, US, &sums.analytics.phases.device_us))])),
    metric(H, "fenxi_label_latency_seconds", "seconds", &["pipeline", "task", "source"],
        "Time from a flow's K-th packet to its label, by the source of the label.",
        |view| times_by(view, |sums| {
            let it = &sums.analytics;
            [("cache", &it.time_to_cached_label_us), ("device", &it.time_to_inferred_label_us)]
        })),
    metric(C, "fenxi_labels_discarded_total", "labels", &["pipeline", "task", "reason"],
        "Labels that were not given to a flow: post_mortem, the flow had ended; low_confidence, \
        the flow got unknown instead.",
        |view| by(view, |sums| {
            let unknown = sums.flows.labels_given.last().copied().unwrap_or(0);
            [("post_mortem", sums.analytics.post_mortem), ("low_confidence", unknown)]
        })),
    metric(C, "fenxi_slo_periods_total", "periods", &["pipeline", "task", "result"],
        "Policy slo: control periods, by whether 99 of 100 labels met the goal.",
        |view| by(view, |sums| {
            let slo = &sums.analytics.slo;
            [("kept", slo.periods - slo.violations), ("violated", slo.violations)]
        })),
    metric(C, "fenxi_model_swaps_total", "swaps", &["result"],
        "Swaps of the model in all analytics managers: done; refused, and the old one stays; \
        reverted, with a reload that nobody confirmed or after a promotion.",
        |view| {
            let swaps = view.run_state.swaps();
            [("done", swaps.done), ("refused", swaps.refused), ("reverted", swaps.reverted)]
                .map(|(result, swaps)| count(&[result], swaps)).into()
        }),

    metric(C, "fenxi_model_offers_total", "candidates", &["task", "outcome"],
        "Candidates offered for the model: judged good, canary, promoted, kept, withdrawn, \
        rolled_back, fallen_back, back; else why they were refused.",
        |view| view.run_state.tasks.iter().flat_map(|TaskState { name, offers, .. }| {
            OUTCOMES.map(|it| count(&[name, it], offers.outcomes.get(it).copied().unwrap_or(0)))
        }).collect()),
    metric(C, "fenxi_model_truths_total", "flows", &["task", "outcome"],
        "Flows that a teacher named: taken, held out; others; strange, with a label that the model \
        lacks.",
        |view| view.run_state.tasks.iter().flat_map(|TaskState { name, offers, .. }| {
            let [taken, others, strange] = offers.truths;
            [("taken", taken), ("others", others), ("strange", strange)]
                .map(|(outcome, flows)| count(&[name, outcome], flows))
        }).collect()),
    metric(C, "fenxi_thread_cpu_seconds_total", "seconds", &["thread"],
        "CPU time of the threads that run now; threads of the same name are added.",
        |view| view.threads.iter().map(|(name, seconds)| number(&[name], *seconds)).collect()),
    metric(C, "fenxi_worker_stalls_total", "stalls", &["worker"],
        "How often a thread of the data path did not answer for more than a second.",
        stalls),
    metric(G, "fenxi_host_bytes_per_second", "bytes per second", &["host", "address"],
        "Rates of the busiest hosts, as many as names.metrics says; the address is the busiest of \
        the host.",
        |view| view.busiest.iter().map(|host| {
            number(&[host.name.as_deref().unwrap_or(""), &host.address], host.bytes_per_s)
        }).collect()),
];

#[cfg(test)]
mod tests;
