//! The summary of a run: one JSON object for programs, a page of text for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use analytics::Trigger;
use flowmgr::DepthCounters;
use flowmgr::record::EndReason;
use flowmgr::verdict::Verdict;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::outcome::{LiveSums, RunOutcome};
use crate::protocol::{EgressRow, ScoredTask, ServiceRow};
use crate::scores;
use crate::sinks::Report;
use dataplane::placement::Role;
use series::{Cache, Device, Phases, Series, Slo, Swaps};
use task::Task;
use times::Quantiles;

/// Declares what is printed of some counters: each field with its value.
macro_rules! printed {
    ($(#[$meta:meta])* $name:ident($($from:ident: $source:ty),*) [$($prelude:tt)*] {
        $($(#[$attribute:meta])* $field:ident: $type:ty = $value:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(serde::Serialize)]
        pub struct $name {
            $($(#[$attribute])* $field: $type,)*
        }

        impl $name {
            pub fn new($($from: $source),*) -> $name {
                $($prelude)*
                $name { $($field: $value,)* }
            }
        }
    };
}

mod series;
mod task;
mod times;

printed! {
    /// What `--json` prints. The fields are documented in `docs/summary.md`.
    Summary(outcome: &RunOutcome) [
        let (flow, sums) = (&outcome.flows, &outcome.series());
        let (all_packets, wall) = (flow.verdicts.total(), outcome.wall.as_secs_f64());
        let all_bytes = outcome.bytes + flow.merged.header_bytes;
        let verdict = |it: Verdict| (it.name().to_owned(), json!(flow.verdicts.get(it)));
    ] {
        pipeline: Pipeline = Pipeline::new(outcome),
        packets: u64 = all_packets,
        bytes: u64 = all_bytes,
        verdicts: Map<String, Value> = Verdict::ALL.into_iter().map(verdict).collect(),
        merged: Merged = Merged::new(flow.merged),
        flows: Flows = Flows::new(flow),
        series: Series = Series::new(&flow.depths, sums),
        labels: BTreeMap<String, u64> = labels(outcome),
        batches: BTreeMap<&'static str, Batches> = batches(sums),
        cache: Cache = Cache::new(&sums.cache),
        decided: Decided = Decided::new(flow, &outcome.names[0].depths),
        coverage: Coverage = Coverage::new(flow),
        devices: Vec<Device> = sums.devices.iter().map(Device::new).collect(),
        /// Why each task's model runs on its devices, where the model decided.
        devices_why: Vec<String> = outcome.devices_why.clone(),
        phases_ms: Phases = Phases::new(&sums.phases),
        slo: Slo = Slo::new(&sums.slo),
        swaps: Swaps = Swaps::new(&outcome.swaps),
        table: Table = Table::new(&outcome.table),
        #[serde(skip_serializing_if = "Option::is_none")]
        live: Option<Live> = outcome.live.map(|sums| Live::new(sums, &outcome.sinks)),
        /// Sums per service and egress.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        services: Vec<ServiceRow> = outcome.services.clone(),
        #[serde(flatten, serialize_with = "as_fields")]
        sinks: Vec<SinkSum> = sums_of(&outcome.sinks, |report| &report.summary),
        /// Lines of the text about sinks.
        #[serde(skip)]
        sink_lines: Vec<String> = lines_of(&outcome.sinks),
        clock_steps: u64 = outcome.clock_steps,
        interrupted: bool = outcome.interrupted,
        wall_s: f64 = wall,
        packets_per_s: f64 = all_packets as f64 / wall,
        bits_per_s: f64 = all_bytes as f64 * 8.0 / wall,
        time_to_label_ms: Quantiles = Quantiles::from_us(&sums.time_to_label_us()),
        /// Each task, if there are several; then the fields above are sums, and labels are the
        /// first's.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tasks: Vec<Task> = Task::all(outcome),
        /// Of tasks whose labels are bands.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        scores: Vec<ScoredTask> = scores::of_tasks(&outcome.names, &flow.scores),
    }
}

/// Name and value of a sink's counter.
type SinkSum = (&'static str, u64);

printed! {
    /// Packets that GRO, LRO or TSO merged from several.
    Merged(merged: flowmgr::Merged) [] {
        /// Packets with known segments.
        packets: u64 = merged.packets,
        /// Their segments; each counts as a packet.
        segments: u64 = merged.segments,
        /// Packets with unknown segments, which count as one packet.
        unknown: u64 = merged.unknown,
    }
}

impl Merged {
    fn write_text(&self, page: &mut String) -> std::fmt::Result {
        let Merged { packets, segments, unknown } = self;
        if *packets > 0 {
            writeln!(
                page,
                "merged    {packets} packets received were {segments} on the wire, and count as \
                such"
            )?;
        }
        if *unknown > 0 {
            writeln!(
                page,
                "merged    {unknown} packets are longer than the usual MTU or the interface's, and \
                count as one each: of which packets they were merged is not known"
            )?;
        }
        Ok(())
    }
}

printed! {
    Live(live: LiveSums, reports: &[Report]) [
        let texts = reports.iter().filter_map(|report| report.live_text.as_ref());
    ] {
        #[serde(flatten)]
        sums: LiveSums = live,
        #[serde(flatten, serialize_with = "as_fields")]
        sinks: Vec<SinkSum> = sums_of(reports, |report| &report.live_summary),
        /// The sinks' part of the text line.
        #[serde(skip)]
        text: String = texts.map(|text| format!("; {text}")).collect(),
    }
}

fn sums_of(sinks: &[Report], sums: impl Fn(&Report) -> &Vec<SinkSum>) -> Vec<SinkSum> {
    sinks.iter().flat_map(|report| sums(report).clone()).collect()
}

fn lines_of(sinks: &[Report]) -> Vec<String> {
    let lines = sinks.iter().map(|report| report.summary_text.clone());
    lines.flatten().collect()
}

/// Writes each counter as a field of the surrounding object.
fn as_fields<S: Serializer>(sums: &[SinkSum], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(sums.iter().copied())
}

printed! {
    /// Layout and threads.
    Pipeline(outcome: &RunOutcome) [
        // Threads and counters are in the same order: by pipeline, then by flow worker.
        let mut packets = outcome.packets_by_worker.iter().copied();
        let thread = |(thread, core): &(dataplane::placement::Thread, Option<usize>)| Thread {
            name: thread.to_string(),
            core: *core,
            packets: match thread.role {
                Role::Flow(_) => packets.next(),
                Role::Analytics(_) | Role::Session(_) => None,
            },
        };
    ] {
        layout: String = outcome.layout.to_string(),
        instances: usize = outcome.instances,
        /// How the cores were chosen, in words.
        placement: String = outcome.cores.reason.clone(),
        threads: Vec<Thread> = outcome.cores.iter().map(thread).collect(),
    }
}

#[derive(Serialize)]
struct Thread {
    name: String,
    /// `None`: not pinned.
    core: Option<usize>,
    /// `None`: not a flow worker.
    packets: Option<u64>,
}

printed! {
    Flows(flows: &flowmgr::Counters) [
        let of = |reason: EndReason| flows.flows_ended[reason as usize];
        let ends = EndReason::ALL.into_iter().filter(|&reason| reason != EndReason::Active);
    ] {
        begun: u64 = flows.flows_begun.total(),
        midstream: u64 = flows.flows_midstream,
        ended: Map<String, Value> =
            ends.map(|reason| (reason.name().to_owned(), json!(of(reason)))).collect(),
        /// Interim records, written on active timeouts.
        reported: u64 = of(EndReason::Active),
    }
}

#[derive(Serialize)]
struct Batches {
    count: u64,
    mean_size: f64,
    padding_share: f64,
}

printed! {
    /// Shares, 0 to 1.
    Coverage(sums: &flowmgr::Counters) [
        let labelled = sums.verdicts.get(Verdict::Labelled);
        let reported = sums.flows_ended[EndReason::Active as usize];
        let ended = sums.flows_ended.iter().sum::<u64>() - reported;
        let all_packets = labelled + sums.verdicts.get(Verdict::Unlabelled);
    ] {
        /// Share of flows with a label.
        flows: f64 = share(sums.flows_labelled().iter().sum(), ended),
        /// Share of packets of flows that had a label already.
        packets: f64 = share(labelled, all_packets),
        /// Share of bytes of flows that were in such packets.
        bytes: f64 = share(sums.labelled_bytes, sums.flow_bytes),
        /// Share of flows that ended before their K-th packet.
        ended_before_k: f64 = share(sums.flows_short, ended),
    }
}

impl Coverage {
    fn write_text(&self, page: &mut String) -> std::fmt::Result {
        let flows = match self.flows {
            1.0 => "all".to_owned(),
            share => format!("{:.1} % of", share * 100.0),
        };
        writeln!(
            page,
            "labelled  {flows} flows; {:.1} % of packets and {:.1} % of bytes came after the \
            label; {:.1} % of flows ended before the model was asked",
            self.packets * 100.0,
            self.bytes * 100.0,
            self.ended_before_k * 100.0
        )
    }
}

printed! {
    /// Flows with a label, by what decided it. The counts are the first task's.
    Decided(flows: &flowmgr::Counters, all: &[usize]) [
        let (asked, decided) = decided_by_depth(all, &flows.depths);
        let first = flows.depths.first();
    ] {
        /// Numbers of packets after which the model is asked.
        #[serde(skip)]
        depths: Vec<usize> = asked,
        /// The model's answer at each of these depths.
        by_depth: Vec<u64> = decided,
        by_port: u64 = flows.flows_by_port,
        /// An answer (counted in `by_depth` too) that contradicts the port of the server.
        contradicting: u64 = first.map_or(0, |first| first.flows_contradicting),
        /// An answer that was not sure, because the flow ended before the next depth.
        unsure: u64 = flows.flows_unsure,
        by_rule: u64 = flows.flows_by_rule,
    }
}

impl Decided {
    /// Writes the line if labels come from more than one source.
    fn write_text(&self, page: &mut String) -> std::fmt::Result {
        if self.by_depth.len() < 2 && self.by_port == 0 && self.by_rule == 0 {
            return Ok(());
        }
        let by_rule = match self.by_rule {
            0 => String::new(),
            by_rule => format!("; by rule: {by_rule}"),
        };
        let contradicting = match self.contradicting {
            0 => String::new(),
            flows => format!("; contradicting the port: {flows}"),
        };
        writeln!(
            page,
            "decided   {}; ended while unsure: {}; by port: {}{contradicting}{by_rule}",
            by_depth(&self.depths, &self.by_depth),
            self.unsure,
            self.by_port
        )
    }
}

/// The depths at which the model is asked, without depth 0 of ports, and the flows that each
/// decided.
fn decided_by_depth(depths: &[usize], counters: &[DepthCounters]) -> (Vec<usize>, Vec<u64>) {
    let both = depths.iter().zip(counters).filter(|(depth, _)| **depth > 0);
    both.map(|(&depth, counters)| (depth, counters.flows_decided)).unzip()
}

/// Flows that each depth decided: `after 1, 2, 3 packets: 389, 3, 12`.
fn by_depth(depths: &[usize], flows: &[u64]) -> String {
    let depths: Vec<String> = depths.iter().map(usize::to_string).collect();
    let flows: Vec<String> = flows.iter().map(u64::to_string).collect();
    format!("after {} packets: {}", depths.join(", "), flows.join(", "))
}

printed! {
    Table(table: &crate::outcome::Table) [] {
        max_flows: usize = table.max_flows,
        mib: usize = table.bytes.div_ceil(1 << 20),
        pages: &'static str = table.pages.name(),
    }
}

impl Summary {
    pub fn to_json(&self) -> String {
        // Numbers, strings and maps with string keys always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A page for people.
    pub fn to_text(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_flows(&mut page);
        let _ = self.write_work(&mut page);
        page
    }

    fn write_flows(&self, page: &mut String) -> std::fmt::Result {
        writeln!(
            page,
            "packets   {} ({} bytes) in {:.3} s: {:.3} Mpps, {:.3} Gb/s",
            self.packets,
            self.bytes,
            self.wall_s,
            self.packets_per_s / 1e6,
            self.bits_per_s / 1e9
        )?;
        if let Some(live) = &self.live {
            writeln!(
                page,
                "live      {}: {} received, {} dropped at the ring, {} before it, {} left in it, \
                {} forwarded, {} not forwarded, {} dropped by rules{}",
                live.sums.mode,
                live.sums.received,
                live.sums.kernel_dropped,
                live.sums.nic_dropped,
                live.sums.unread,
                live.sums.sent,
                live.sums.unsent,
                live.sums.ruled_out,
                live.text
            )?;
            let (copied, lost) = (live.sums.copied, live.sums.copies_lost);
            if copied + lost > 0 {
                writeln!(page, "mirror    {copied} packets copied, {lost} copies lost")?;
            }
        }
        writeln!(page, "verdicts  {}", listed(&self.verdicts))?;
        self.merged.write_text(page)?;
        let (begun, ended) = (self.flows.begun, listed(&self.flows.ended));
        writeln!(page, "flows     {begun} begun; ended: {ended}")?;
        if self.clock_steps > 0 {
            let steps = self.clock_steps;
            writeln!(page, "clock     the clock that stamps packets stepped {steps} times")?;
        }
        for service in &self.services {
            let sum = |of: fn(&EgressRow) -> u64| service.egresses.iter().map(of).sum::<u64>();
            writeln!(
                page,
                "service   {}: {} flows begun, {} answered, {} ended; {} packets in, {} out",
                service.name,
                sum(|it| it.flows_begun),
                sum(|it| it.flows_answered),
                sum(|it| it.flows_ended),
                sum(|it| it.packets_in),
                sum(|it| it.packets_out)
            )?;
        }
        self.series.write_text(page)?;
        self.cache.write_text(page)?;
        labels_line(&self.labels, page)?;
        self.decided.write_text(page)?;
        for ScoredTask { task, models, .. } in &self.scores {
            for it in models {
                let hits: u64 = it.bands.iter().map(|band| band.hits).sum();
                writeln!(
                    page,
                    "bands     {task}: right for {:.1} % of {} flows; {} more were cut",
                    100.0 * share(hits, it.flows),
                    it.flows,
                    it.cut
                )?;
            }
        }
        for line in &self.sink_lines {
            writeln!(page, "{line}")?;
        }
        self.coverage.write_text(page)
    }

    /// Devices and times.
    fn write_work(&self, page: &mut String) -> std::fmt::Result {
        let mut reasons = self.devices_why.clone();
        reasons.retain(|why| !why.is_empty());
        reasons.dedup();
        if !reasons.is_empty() {
            writeln!(page, "devices   {}", reasons.join("; "))?;
        }
        if !self.tasks.is_empty() {
            self.swaps.write_text(page)?;
            let mut tasks = self.tasks.iter();
            return tasks.try_for_each(|task| task.write_text(page));
        }
        for device in &self.devices {
            device.write_text(page)?;
        }
        self.swaps.write_text(page)?;
        self.slo.write_text(page)?;
        writeln!(page, "times     to label {} ms", self.time_to_label_ms)
    }
}

fn labels(outcome: &RunOutcome) -> BTreeMap<String, u64> {
    let classes = outcome.names[0].classes.iter().cloned();
    classes.zip(outcome.flows.flows_labelled().iter().copied()).collect()
}

/// `part / whole`; 0 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn batches(series: &analytics::Counters) -> BTreeMap<&'static str, Batches> {
    let by_trigger = |trigger: Trigger| {
        let sums = series.batches(trigger);
        let rows = sums.series + sums.padding;
        let batches = Batches {
            count: sums.batches,
            mean_size: share(rows, sums.batches),
            padding_share: share(sums.padding, rows),
        };
        (trigger.name(), batches)
    };
    Trigger::ALL.into_iter().map(by_trigger).collect()
}

/// Labels by number of flows, highest first.
fn labels_line(labels: &BTreeMap<String, u64>, page: &mut String) -> std::fmt::Result {
    let mut labels: Vec<_> = labels.iter().filter(|(_, flows)| **flows > 0).collect();
    labels.sort_by_key(|&(label, flows)| (std::cmp::Reverse(*flows), label));
    let labels = labels.iter().map(|(label, flows)| format!("{label} {flows}"));
    writeln!(page, "labels    {}", joined(labels))
}

/// Lists `name count` for all counts that are not 0.
fn listed(sums: &Map<String, Value>) -> String {
    let some = sums.iter().filter(|(_, count)| **count != json!(0));
    joined(some.map(|(name, count)| format!("{name} {count}")))
}

/// The parts with commas between them, or `none`.
fn joined(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
