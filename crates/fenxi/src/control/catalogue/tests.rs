//! Compares the table with its page and with the conventions of Prometheus.

use std::collections::BTreeSet;

use super::*;
use crate::sinks;

const PAGE: &str = include_str!("../../../../../docs/metrics.md");

/// Metrics of the data path, and of every kind of sink.
fn all() -> Vec<Metric> {
    let of_sinks = sinks::empty_reports().into_iter();
    let of_sinks = of_sinks.flat_map(|report| report.metrics);
    let own = CATALOGUE.iter().map(|row| row.metric);
    own.chain(of_sinks.map(|family| family.metric)).collect()
}

/// The rows of the page: what `docs/metrics.md` must say of each metric.
fn rows() -> Vec<String> {
    let row = |metric: &Metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        format!(
            "| `{}` | {} | {} | {} | {} |",
            metric.name,
            metric.kind.name(),
            metric.unit,
            labels.join(", "),
            metric.help
        )
    };
    all().iter().map(row).collect()
}

#[test]
fn the_page_has_a_row_for_each_metric_and_no_other() {
    let found: Vec<&str> = PAGE.lines().filter(|line| line.starts_with("| `")).collect();
    let wanted = rows();
    assert!(found == wanted, "the rows of docs/metrics.md must be\n{}", wanted.join("\n"));
}

#[test]
fn names_follow_the_conventions() {
    let all = all();
    let names: BTreeSet<&str> = all.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all.len());
    for metric in all {
        let name = metric.name;
        let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.starts_with("fenxi_") && name.chars().all(is_plain), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert!(metric.help.ends_with('.') && !metric.help.contains(['\n', '|']), "{name}");
        assert_eq!(metric.unit == "seconds", name.contains("_seconds"), "{name}");
        let forbidden = ["le", "address", "src", "dst", "src_port", "dst_port"];
        // Hosts have metrics only where names.metrics asks for them.
        let may_name_hosts = name == "fenxi_host_bytes_per_second";
        let is_allowed = |label: &&str| may_name_hosts || !forbidden.contains(label);
        assert!(metric.labels.iter().all(is_allowed), "{name}");
    }
    assert!(TIMES.contains(&0.01), "what a label may take");
}
