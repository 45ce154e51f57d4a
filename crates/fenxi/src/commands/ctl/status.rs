//! The page of `fenxi ctl status`.

use console::text::{cut, escape};

use crate::figures::{counted, duration, grouped, scaled};
use crate::protocol::{Overview, RuleSums, Status, TaskRow};
use crate::sinks;

pub(super) fn page(status: &Status) -> String {
    let mut page = format!(
        "{}: fenxi {}, process {}, up {:.0} s\n",
        status.state, status.version, status.pid, status.uptime_s
    );
    if let Some(left) = status.unconfirmed_s {
        page += &format!(
            "the last reload will be undone in {left:.0} s unless `fenxi ctl confirm` comes first\n"
        );
    }
    for check in &status.checks {
        let sign = if check.holds { '+' } else { '-' };
        page += &format!("[{sign}] {}: {}\n", check.name, check.reason);
    }
    page += &overview_lines(&status.overview);
    let lines = page.lines().flat_map(|line| folded(line, COLUMNS));
    let lines: Vec<String> = lines.collect();
    lines.join("\n") + "\n"
}

/// Columns of the terminal that the status fits into.
const COLUMNS: usize = 80;

/// Folds a line at `columns`. Lines after the first are indented.
fn folded(line: &str, columns: usize) -> Vec<String> {
    const INDENT: &str = "          ";
    let line = escape(line);
    if line.chars().count() <= columns {
        return vec![line.into_owned()];
    }
    let mut lines = Vec::new();
    let mut current = String::new();
    // The first column of names is as wide as the indent.
    for (at, word) in line.split(' ').enumerate() {
        let used = current.chars().count() + 1 + word.chars().count();
        if at > 0 && used > columns && !current.trim().is_empty() {
            lines.push(std::mem::replace(&mut current, INDENT.to_owned()));
            current += word;
        } else if at == 0 {
            current += word;
        } else {
            current.push(' ');
            current += word;
        }
    }
    lines.push(current);
    lines.into_iter().map(|line| cut(&line, columns)).collect()
}

fn rules_line(rules: &RuleSums) -> String {
    let mut line = format!(
        "rules     {} in force; {}, {} without a rule; {}",
        grouped(rules.rules),
        counted(rules.lookups, "look-up"),
        grouped(rules.unmatched),
        counted(rules.updates, "change")
    );
    if let Some(ago_s) = rules.updated_ago_s {
        let last = if rules.updates == 1 { "" } else { "the last " };
        line += &format!(", {last}{} ago", duration(ago_s));
    }
    if rules.updates_refused > 0 {
        line += &format!(", {} refused", grouped(rules.updates_refused));
    }
    if rules.is_pending {
        line += "; changes wait for an index";
    }
    line
}

fn task_line(task: &TaskRow) -> String {
    let mut line = format!(
        "task      {} ({}): {} series, {}, 99 % within {:.2} ms",
        task.task,
        task.model,
        grouped(task.series),
        counted(task.labels, "label"),
        task.label_p99_ms
    );
    let figures = [
        (task.flows_not_asked, "flows not asked about"),
        (task.not_asked, "series not asked about, by the label of another task"),
        (task.lost, "series lost"),
    ];
    for (count, what) in figures.into_iter().filter(|(count, _)| *count > 0) {
        line += &format!(", {} {what}", grouped(count));
    }
    line
}

const LABELS: usize = 8;

fn overview_lines(overview: &Overview) -> String {
    let n = grouped;
    let mut page = format!(
        "traffic   {} packets, {}B; now {}pps; {} of at most {} flows ({} half-open), {} begun\n",
        n(overview.packets),
        scaled(overview.bytes as f64),
        scaled(overview.packets_per_s),
        n(overview.flows),
        n(overview.flows_max),
        n(overview.half_open),
        n(overview.flows_begun)
    );
    let mut labels: Vec<_> = overview.labels.iter().collect();
    labels.sort_by_key(|&(label, flows)| (std::cmp::Reverse(*flows), label));
    let named = labels.iter().take(LABELS);
    let mut named: Vec<String> =
        named.map(|(label, flows)| format!("{label} {}", n(**flows))).collect();
    if labels.len() > LABELS {
        named.push(format!("and {} more", labels.len() - LABELS));
    }
    page.extend(overview.tasks.iter().map(|task| task_line(task) + "\n"));
    page += &format!(
        "labels    {} by {}: {}\n",
        n(overview.labels.values().sum()),
        overview.model,
        if named.is_empty() { "none".to_owned() } else { named.join(", ") }
    );
    if overview.series_withheld > 0 {
        page += &format!(
            "no label  {} flows began mid-stream, and the model was not trained for that\n",
            n(overview.series_withheld)
        );
    }
    if let Some(rules) = &overview.rules {
        page += &format!("{}\n", rules_line(rules));
    }
    for line in sinks::KINDS.iter().filter_map(|kind| kind.status_line(&overview.sinks)) {
        page += &format!("{line}\n");
    }
    let lost = sinks::lost(&overview.sinks).map(|(noun, count)| format!(", {} {noun}", n(count)));
    page += &format!(
        "lost      {} packets before they were read, {} not forwarded, {} series{}; {} packets \
         found the table full, {} flows \
         were evicted from it\n",
        n(overview.dropped),
        n(overview.unsent),
        n(overview.series_lost),
        lost.collect::<String>(),
        n(overview.table_full),
        n(overview.evicted)
    );
    page += &format!(
        "latency   K-th packet to label: median {:.2} ms, 99 % within {:.2} ms\n",
        overview.label_p50_ms, overview.label_p99_ms
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_a_line_of_the_status() {
        let mut rules = RuleSums {
            rules: 1204,
            lookups: 45_678,
            unmatched: 12,
            lookups_per_s: 0.0,
            updates: 0,
            updates_refused: 0,
            updated_ago_s: None,
            is_pending: false,
        };
        let line = "rules     1,204 in force; 45,678 look-ups, 12 without a rule; ";
        assert_eq!(rules_line(&rules), format!("{line}0 changes"));
        (rules.updates, rules.updated_ago_s) = (1, Some(75.0));
        assert_eq!(rules_line(&rules), format!("{line}1 change, 1m15s ago"));
        (rules.updates, rules.updates_refused, rules.is_pending) = (2, 3, true);
        let end = "2 changes, the last 1m15s ago, 3 refused; changes wait for an index";
        assert_eq!(rules_line(&rules), format!("{line}{end}"));
    }

    #[test]
    fn a_long_line_is_folded_and_set_in() {
        assert_eq!(folded("a b", 3), ["a b"]);
        let lines = folded("lost      12 packets, 3 series; 5 found it full", 24);
        assert_eq!(
            lines,
            ["lost      12 packets, 3", "          series; 5", "          found it full"]
        );
        assert_eq!(folded("x\u{1b}[2J", 80), ["x\\u{1b}[2J"]);
    }
}
