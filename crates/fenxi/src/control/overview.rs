//! The main figures: traffic, losses, latency of labels.

use std::collections::BTreeMap;

use super::collector::Collector;
use super::view::View;
use crate::figures::{grouped, scaled};
use crate::protocol::{Overview, RuleSums, Sums, TaskRow};
use crate::sinks;
use dataplane::state::TaskState;

pub fn build(view: &View<'_>) -> Overview {
    let (collector, pipelines) = (view.collector, &view.pipelines);
    let sum = |read: &dyn Fn(&super::view::PipelineSums) -> u64| pipelines.iter().map(read).sum();
    let mut times: Option<hdrhistogram::Histogram<u64>> = None;
    for pipeline in pipelines {
        let own = pipeline.analytics.time_to_label_us();
        match &mut times {
            // All have the same bounds.
            Some(times) => {
                let _ = times.add(own);
            }
            None => times = Some(own),
        }
    }
    let ms = |quantile| {
        let us = times.as_ref().map_or(0, |times| times.value_at_quantile(quantile));
        us as f64 / 1e3
    };
    let nics: u64 = collector.dropped.iter().map(|nic| nic.total()).sum();
    let full = flowmgr::verdict::Verdict::TableFull;
    Overview {
        packets: collector.packets(),
        bytes: sum(&|it| {
            it.flows.port_counters().rx.bytes_seen() + it.flows.counters.merged.header_bytes
        }),
        packets_per_s: collector.packets_per_s,
        flows: sum(&|it| it.flows.alive),
        half_open: sum(&|it| it.flows.half_open),
        flows_max: view.facts.table_entries * collector.flows.len() as u64,
        flows_begun: sum(&|it| it.flows.counters.flows_begun.total()),
        labels: labels(view),
        series_withheld: sum(&|it| it.flows.counters.series_withheld()),
        dropped: nics + sum(&|it| it.flows.port_counters().rx.dropped),
        unsent: sum(&|it| it.flows.port_counters().tx.unsent()),
        table_full: sum(&|it| it.flows.counters.verdicts.get(full)),
        evicted: sum(&|it| {
            let kinds = it.flows.counters.evictions.by_kind();
            kinds.iter().map(|(_, flows)| flows).sum()
        }),
        series_lost: sum(&|it| {
            it.flows.counters.series_shed() + it.analytics.shed() + it.analytics.failed()
        }),
        sinks: status(collector),
        label_p50_ms: ms(0.5),
        label_p99_ms: ms(0.99),
        model: view.run_state.first().model.name.clone(),
        rules: rules(view),
        tasks: tasks(view),
    }
}

fn tasks(view: &View<'_>) -> Vec<TaskRow> {
    let names = &view.facts.names;
    if names.len() < 2 {
        return Vec::new();
    }
    let tasks = view.run_state.tasks.iter().enumerate();
    let row = |(number, state): (usize, &TaskState)| {
        let mut row = TaskRow {
            task: state.name.clone(),
            model: state.model.name.clone(),
            series: 0,
            not_asked: 0,
            flows_not_asked: 0,
            lost: 0,
            labels: 0,
            label_p99_ms: 0.0,
        };
        let mut sum = analytics::Counters::none();
        for task in view.pipelines.iter().filter_map(|it| it.tasks.get(number)) {
            row.series += task.flows.series_emitted;
            row.flows_not_asked += task.flows.flows_not_asked;
            row.lost += task.flows.series_shed;
            row.labels += task.flows.labels_given.iter().sum::<u64>();
            sum.merge(&task.analytics);
        }
        row.not_asked = sum.not_asked;
        row.lost += sum.shed() + sum.failed();
        row.label_p99_ms = sum.time_to_label_us().value_at_quantile(0.99) as f64 / 1e3;
        row
    };
    tasks.map(row).collect()
}

fn rules(view: &View<'_>) -> Option<RuleSums> {
    let (rules, updates) = (&view.run_state.rules, &view.run_state.rules_updates);
    let counts = view.pipelines.iter().map(|pipeline| &pipeline.flows.rules);
    Some(RuleSums {
        rules: rules.rules?,
        lookups: counts.clone().map(|counts| counts.lookups).sum(),
        unmatched: counts.map(|counts| counts.unmatched).sum(),
        lookups_per_s: view.collector.lookups_per_s,
        updates: updates.applied.iter().sum(),
        updates_refused: updates.refused.iter().sum(),
        updated_ago_s: updates.last.map(|last| last.elapsed().as_secs_f64()),
        is_pending: rules.is_pending,
    })
}

/// Sum of all losses: packets, series, and entries of sinks.
pub fn lost(overview: &Overview) -> u64 {
    let of_sinks = sinks::lost(&overview.sinks).map(|(_, count)| count);
    overview.dropped + overview.unsent + overview.series_lost + of_sinks.sum::<u64>()
}

fn status(collector: &Collector) -> Sums {
    let sums = collector.sinks.iter().flat_map(|report| &report.status);
    sums.map(|(name, sum)| ((*name).to_owned(), *sum)).collect()
}

fn labels(view: &View<'_>) -> BTreeMap<String, u64> {
    let names = &view.facts.labels[0];
    let mut labels = BTreeMap::new();
    for pipeline in &view.pipelines {
        for (class, given) in pipeline.flows.counters.labels_given().iter().enumerate() {
            if *given > 0 {
                let name = &names.shown()[names.place_of(class)];
                *labels.entry(name.clone()).or_default() += given;
            }
        }
    }
    labels
}

/// In one line, for a service manager: `12.3 kpps, 1,234 flows, 0 lost, model app-id-k10`.
pub fn line(overview: &Overview) -> String {
    format!(
        "{}pps, {} flows, {} lost, model {}",
        scaled(overview.packets_per_s),
        grouped(overview.flows),
        grouped(lost(overview)),
        overview.model
    )
}
