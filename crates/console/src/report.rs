//! The history of traffic as `fenxi report` prints it and the page shows it: what is asked, what
//! was found, and the text of it.

use serde::Serialize;

use crate::figures::{grouped, scaled};
use crate::text::{columns, escape, left, right};

/// Rows of a report, where nobody asks for another number.
pub const TOP: usize = 20;
/// The host and the service of what an hour has no room to tell apart.
pub const OTHER: &str = "other";
/// The most rows of a report.
pub const TOP_MAX: usize = 10_000;
/// The widest that the first column gets.
const WIDTH_MAX: usize = 50;

/// What the rows of a report are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Labels of the first task.
    Label,
    /// Addresses of hosts.
    Host,
    /// Ports of servers, or services by their names.
    Service,
    /// Hours.
    Hour,
}

impl By {
    /// All, in the order in which they are offered.
    pub const ALL: [By; 4] = [By::Label, By::Host, By::Service, By::Hour];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            By::Label => "label",
            By::Host => "host",
            By::Service => "service",
            By::Hour => "hour",
        }
    }

    /// The one with this word.
    pub fn parse(word: &str) -> Option<By> {
        By::ALL.into_iter().find(|by| by.name() == word)
    }

    /// The order, where nobody asks for another one.
    pub const fn sort(self) -> Sort {
        match self {
            By::Hour => Sort::Name,
            _ => Sort::Bytes,
        }
    }
}

/// What comes first in a report: the most of it, or the least name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// Bytes of both directions.
    Bytes,
    /// Bytes from the host.
    Up,
    /// Bytes to the host.
    Down,
    /// Packets of both directions.
    Packets,
    /// Flows that ended.
    Flows,
    /// What the rows are.
    Name,
}

impl Sort {
    /// All, in the order of the columns.
    pub const ALL: [Sort; 6] =
        [Sort::Name, Sort::Flows, Sort::Packets, Sort::Up, Sort::Down, Sort::Bytes];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Bytes => "bytes",
            Sort::Up => "up",
            Sort::Down => "down",
            Sort::Packets => "packets",
            Sort::Flows => "flows",
            Sort::Name => "name",
        }
    }

    /// The one with this word.
    pub fn parse(word: &str) -> Option<Sort> {
        Sort::ALL.into_iter().find(|sort| sort.name() == word)
    }
}

/// What is asked of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The first hour, as it was written: `yesterday`.
    pub since: String,
    /// The end, as it was written.
    pub until: String,
    /// What the rows are.
    pub by: By,
    /// Their order.
    pub sort: Sort,
    /// How many rows.
    pub top: usize,
    /// Only this label, host or service, each once at most; all of them must hold.
    pub filters: Vec<(By, String)>,
}

impl Query {
    /// All traffic since yesterday.
    pub fn new(by: By) -> Query {
        let [since, until] = ["yesterday", "now"].map(str::to_owned);
        Query { since, until, by, sort: by.sort(), top: TOP, filters: Vec::new() }
    }

    /// Asks for this label, host or service only.
    ///
    /// # Errors
    /// Hours are no filter, the value is empty, or there is such a filter already.
    pub fn filter(&mut self, by: By, value: &str) -> Result<(), String> {
        if by == By::Hour || value.is_empty() {
            return Err("expected label=VALUE, host=VALUE or service=VALUE; since and until \
                        choose hours"
                .to_owned());
        }
        if self.filters.iter().any(|(other, _)| *other == by) {
            return Err(format!("{} is filtered twice; name one", by.name()));
        }
        self.filters.push((by, value.to_owned()));
        Ok(())
    }
}

/// Sums of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// Flows that ended.
    pub flows: u64,
    /// Packets from the host.
    pub packets_up: u64,
    /// Packets to the host.
    pub packets_down: u64,
    /// Bytes from the host, at the IP layer.
    pub bytes_up: u64,
    /// Bytes to the host, at the IP layer.
    pub bytes_down: u64,
}

impl Volume {
    /// Bytes of both directions.
    pub fn bytes(&self) -> u64 {
        self.bytes_up + self.bytes_down
    }

    /// Packets of both directions.
    pub fn packets(&self) -> u64 {
        self.packets_up + self.packets_down
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Begin of the first hour, in local time.
    pub since: String,
    /// End of the last hour, in local time.
    pub until: String,
    /// What the rows are.
    pub by: By,
    /// Their order.
    pub sort: Sort,
    /// Begin of the first hour that the history has of any traffic; `None`: it is empty.
    pub begins: Option<String>,
    /// The rows.
    pub rows: Vec<ReportRow>,
    /// How many rows there are besides.
    pub more: u64,
    /// The sum of all rows, shown or not.
    pub total: Volume,
}

/// The traffic of a label, host, service or hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportRow {
    /// Which; `None`: flows without a label.
    pub key: Option<String>,
    /// What the host is called, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its traffic.
    #[serde(flatten)]
    pub volume: Volume,
}

impl ReportRow {
    /// What the row is, for people.
    pub fn shown(&self) -> String {
        match (&self.key, &self.name) {
            (Some(key), Some(name)) => format!("{key} ({name})"),
            (Some(key), None) => key.clone(),
            (None, _) => "(no label)".to_owned(),
        }
    }
}

impl Report {
    /// Why there are no rows.
    pub fn emptiness(&self) -> String {
        match &self.begins {
            Some(begins) => {
                format!("No such traffic in this time. The history begins at {begins}.")
            }
            None => {
                "The history is empty: sums are written every history.every_s (60 s by default)."
                    .to_owned()
            }
        }
    }
}

/// The report as text.
pub fn text(report: &Report) -> String {
    let (by, sort) = (report.by.name(), report.sort.name());
    let mut page = format!("{} to {}, by {by}, sorted by {sort}\n", report.since, report.until);
    if report.rows.is_empty() {
        return page + &escape(&report.emptiness()) + "\n";
    }
    let names: Vec<String> = report.rows.iter().map(ReportRow::shown).collect();
    let width = names.iter().map(|name| columns(name)).max().unwrap_or(0);
    let width = width.clamp("service".len(), WIDTH_MAX);
    let title = left(&by.to_uppercase(), width);
    page += &format!(
        "\n{title}  {:>11} {:>13} {:>9} {:>9} {:>9} {:>6}\n",
        "FLOWS", "PACKETS", "UP", "DOWN", "BYTES", "SHARE"
    );
    for (name, row) in names.iter().zip(&report.rows) {
        page += &line(&left(name, width), &row.volume, &report.total);
    }
    if report.more > 0 {
        page += &format!("{} more; --top shows them\n", grouped(report.more));
    }
    page + &line(&left("total", width), &report.total, &report.total)
}

fn line(name: &str, volume: &Volume, total: &Volume) -> String {
    let scaled = |bytes: u64| right(&format!("{}B", scaled(bytes as f64)), 9);
    let share = 100.0 * volume.bytes() as f64 / total.bytes().max(1) as f64;
    format!(
        "{name}  {:>11} {:>13} {} {} {} {share:>4.1} %\n",
        grouped(volume.flows),
        grouped(volume.packets()),
        scaled(volume.bytes_up),
        scaled(volume.bytes_down),
        scaled(volume.bytes()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: Vec<ReportRow>) -> Report {
        Report {
            since: "2026-11-26 00:00 +01:00".to_owned(),
            until: "2026-11-27 20:00 +01:00".to_owned(),
            by: By::Host,
            sort: Sort::Bytes,
            begins: Some("2026-11-20 08:00 +01:00".to_owned()),
            rows,
            more: 3,
            total: Volume {
                flows: 1200,
                packets_up: 1000,
                packets_down: 500,
                bytes_up: 1_000_000,
                bytes_down: 3_000_000,
            },
        }
    }

    #[test]
    fn columns_line_up_and_names_are_harmless() {
        let volume = Volume { flows: 7, bytes_up: 1_000_000, ..Volume::default() };
        let row = |key: Option<&str>, name: Option<&str>| ReportRow {
            key: key.map(str::to_owned),
            name: name.map(str::to_owned),
            volume,
        };
        let rows = vec![row(Some("10.0.0.5"), Some("tv\u{1b}[2J")), row(None, None)];
        let page = text(&report(rows));
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(
            lines[0],
            "2026-11-26 00:00 +01:00 to 2026-11-27 20:00 +01:00, by host, sorted by bytes"
        );
        assert!(lines[2].starts_with("HOST  ") && lines[2].ends_with(" SHARE"), "{page}");
        assert!(lines[3].starts_with("10.0.0.5 (tv\\u{1b}[2J)  "), "{page}");
        assert!(lines[4].starts_with("(no label)  ") && lines[4].ends_with("25.0 %"), "{page}");
        assert_eq!(lines[5], "3 more; --top shows them");
        assert!(lines[6].starts_with("total") && lines[6].ends_with("4.00 MB 100.0 %"), "{page}");
        assert_eq!(lines[2].len(), lines[4].len());
    }

    #[test]
    fn an_empty_report_says_since_when_there_is_a_history() {
        let page = text(&report(Vec::new()));
        assert!(page.ends_with("The history begins at 2026-11-20 08:00 +01:00.\n"), "{page}");
    }
}
