//! What matters first: what the traffic is, whether anything is lost, whether labels are in time.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::view::View;

/// A run in few figures, since its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Packets received.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets per second, lately.
    pub packets_per_s: f64,
    /// Flows in the tables.
    pub flows: u64,
    /// Of these, flows that nobody has answered yet.
    #[serde(default)]
    pub half_open: u64,
    /// Flows that the tables have room for.
    pub flows_max: u64,
    /// Flows begun.
    pub flows_begun: u64,
    /// Flows that were given a label, by label; those without one are not there.
    pub labels: BTreeMap<String, u64>,
    /// Flows that were not asked about, because they began mid-stream.
    pub series_withheld: u64,
    /// Marks written to connections.
    pub marks_written: u64,
    /// Marks not written because the connection had one already.
    pub marks_kept: u64,
    /// Marks for which there was no connection.
    pub marks_not_found: u64,
    /// Packets lost before they could be read.
    pub dropped: u64,
    /// Packets to be sent on that were not.
    pub unsent: u64,
    /// Packets that found no room in the flow table: not lost, but without a label.
    pub table_full: u64,
    /// Flows that made room for others in a full table.
    #[serde(default)]
    pub evicted: u64,
    /// Series given up.
    pub series_lost: u64,
    /// Records given up.
    pub records_dropped: u64,
    /// Marks given up: the kernel refused them, or the queue was full.
    pub marks_lost: u64,
    /// Time from the K-th packet to the label: the median, ms.
    pub label_p50_ms: f64,
    /// 99 of 100 labels are not later, ms.
    pub label_p99_ms: f64,
    /// The model.
    pub model: String,
}

impl Overview {
    /// Of all pipelines together.
    pub fn of(view: &View<'_>) -> Overview {
        let (collector, pipelines) = (view.collector, &view.pipelines);
        let sum =
            |read: &dyn Fn(&super::view::PipelineSums) -> u64| pipelines.iter().map(read).sum();
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
            times
                .as_ref()
                .map_or(0.0, |times| times.value_at_quantile(quantile) as f64 / 1e3)
        };
        let nics: u64 = collector.dropped.iter().map(|nic| nic.total()).sum();
        let full = flowmgr::verdict::Verdict::TableFull;
        Overview {
            packets: collector.received(),
            bytes: sum(&|it| it.flows.port_counters().rx.bytes),
            packets_per_s: collector.packets_per_s,
            flows: sum(&|it| it.flows.alive),
            half_open: sum(&|it| it.flows.half_open),
            flows_max: view.facts.table_entries * collector.flows.len() as u64,
            flows_begun: sum(&|it| it.flows.counters.flows_begun.total()),
            labels: labels(view),
            series_withheld: sum(&|it| it.flows.counters.series_withheld()),
            marks_written: collector.marks.written,
            marks_kept: collector.marks.kept,
            marks_not_found: collector.marks.not_found,
            dropped: nics + sum(&|it| it.flows.port_counters().rx.dropped),
            unsent: sum(&|it| it.flows.port_counters().tx.unsent()),
            table_full: sum(&|it| it.flows.counters.verdicts.of(full)),
            evicted: sum(&|it| {
                let kinds = it.flows.counters.evictions.by_kind();
                kinds.iter().map(|(_, flows)| flows).sum()
            }),
            series_lost: sum(&|it| {
                it.flows.counters.series_shed() + it.analytics.shed() + it.analytics.failed()
            }),
            records_dropped: sum(&|it| it.flows.records_dropped),
            marks_lost: collector.marks.failed() + collector.marks.dropped,
            label_p50_ms: ms(0.5),
            label_p99_ms: ms(0.99),
            model: view.run_state.model.name.clone(),
        }
    }

    /// All that should have been done for packets and flows, and was not.
    pub fn lost(&self) -> u64 {
        self.dropped + self.unsent + self.series_lost + self.records_dropped + self.marks_lost
    }
}

fn labels(view: &View<'_>) -> BTreeMap<String, u64> {
    let names = &view.facts.labels;
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
impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}pps, {} flows, {} lost, model {}",
            scaled(self.packets_per_s),
            grouped(self.flows),
            grouped(self.lost()),
            self.model
        )
    }
}

/// Three digits or so, with the prefix of the unit that follows: `12.3 k`.
pub fn scaled(value: f64) -> String {
    let (value, prefix) = match value {
        v if v >= 999.5e6 => (v / 1e9, "G"),
        v if v >= 999.5e3 => (v / 1e6, "M"),
        v if v >= 999.5 => (v / 1e3, "k"),
        v => return format!("{v:.0} "),
    };
    let digits = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {prefix}")
}

/// A count with its thousands apart: `1,234`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        let counts = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let rates = [0.0, 12.4, 999.4, 999.6, 12_345.0, 123_456.0, 1.5e6, 2.0e9].map(scaled);
        assert_eq!(
            rates,
            [
                "0 ", "12 ", "999 ", "1.00 k", "12.3 k", "123 k", "1.50 M", "2.00 G"
            ]
        );
    }
}
