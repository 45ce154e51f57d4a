//! One moment of a run as lines of a given width.

mod services;

use crate::protocol::{FlowRow, Measured, RuleSums, TaskRow, Top};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::figures::{duration, grouped, plural, scaled};
use crate::text::{cut, left, right};

/// Below this a terminal gets a few lines without tables.
const COLUMNS_LEAST: usize = 60;
const LINES_LEAST: usize = 12;

/// What fills the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pane {
    /// Labels, hosts and flows.
    #[default]
    Overview,
    /// All labels.
    Labels,
    /// All hosts.
    Hosts,
    /// All flows.
    Flows,
    /// Devices and losses.
    Health,
    /// Services and their servers.
    Services,
}

/// Order of the flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Highest rate first.
    #[default]
    Rate,
    /// Most bytes first.
    Bytes,
    /// Youngest first.
    Age,
}

impl SortBy {
    /// The next one.
    pub fn next(self) -> SortBy {
        match self {
            SortBy::Rate => SortBy::Bytes,
            SortBy::Bytes => SortBy::Age,
            SortBy::Age => SortBy::Rate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            SortBy::Rate => "rate",
            SortBy::Bytes => "bytes",
            SortBy::Age => "age",
        }
    }
}

/// What is shown, and how.
#[derive(Debug, Default)]
pub struct Screen {
    /// The latest moment; `None`: there has been no answer yet.
    pub top: Option<Top>,
    /// Why there is no newer one.
    pub problem: Option<String>,
    /// What fills the screen.
    pub pane: Pane,
    /// Order of the flows.
    pub sort: SortBy,
    /// Rows scrolled past.
    pub scrolled: usize,
    /// The moment stays.
    pub is_paused: bool,
}

/// From this width on all columns of flows are there.
const COLUMNS_ALL: usize = 120;
/// The DSCP of most packets, which nobody has set.
const DSCP_DEFAULT: &str = "DF";
/// Columns of a flow's label.
const LABEL_COLUMNS: usize = 14;

struct Column {
    title: &'static str,
    width: usize,
    is_number: bool,
    of: fn(&FlowRow) -> String,
}

const fn column(
    title: &'static str,
    width: usize,
    is_number: bool,
    of: fn(&FlowRow) -> String,
) -> Column {
    Column { title, width, is_number, of }
}

/// The columns between the label and the two ends, in order.
const COLUMNS: [Column; 11] = [
    column("CONF", 4, true, |flow| flow.confidence.map_or(String::new(), |it| format!("{it:.2}"))),
    column("BY", 5, false, |flow| flow.decided_by.clone().unwrap_or_default()),
    column("L4", 4, false, |flow| flow.transport.clone()),
    column("PKT/S", 6, true, |flow| short(flow.packets_per_s)),
    column("B/S", 6, true, |flow| short(flow.bytes_per_s)),
    column("BYTES", 6, true, |flow| short(flow.bytes as f64)),
    column("AGE", 6, true, |flow| duration(flow.age_s)),
    column("RTT ms", 6, true, |flow| {
        let us = flow.measured.as_ref().and_then(Measured::round_trip_us);
        us.map_or(String::new(), |us| format!("{:.1}", us as f64 / 1e3))
    }),
    column("AGAIN", 5, true, |flow| {
        let again = flow.measured.as_ref().and_then(Measured::retransmits);
        again.map_or(String::new(), |count| short(count as f64))
    }),
    column("DSCP", 9, false, FlowRow::shown_dscp),
    column("DOES", 11, false, |flow| flow.behaviour.clone().unwrap_or_default()),
];

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const NAME: Style = Style::new().fg(Color::Cyan);

impl Screen {
    /// The lines of the screen, at most `height`, none wider than `width`.
    pub fn lines(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let Some(top) = &self.top else { return self.waiting(width, height) };
        if width < COLUMNS_LEAST || height < LINES_LEAST {
            return self.reduced(top, width, height);
        }
        let mut lines = self.header(top, width);
        let left = height - lines.len() - 1;
        match self.pane {
            Pane::Overview => self.overview(top, width, left, &mut lines),
            Pane::Labels => lines.extend(self.scroll(labels(top, width), left)),
            Pane::Hosts => lines.extend(self.scroll(hosts(top, width), left)),
            Pane::Flows => lines.extend(self.scroll(self.flows(top, width), left)),
            Pane::Health => lines.extend(self.scroll(health(top, width), left)),
            Pane::Services => {
                lines.extend(self.scroll(services::lines(&top.services, width), left));
            }
        }
        lines.truncate(height - 1);
        lines.resize(height - 1, Line::default());
        lines.push(self.keys(top, width));
        lines
    }

    /// The same as text, without what is empty at the end.
    pub fn text(&self, width: usize, height: usize) -> String {
        let mut text = String::new();
        for line in self.lines(width, height) {
            let line: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    fn waiting(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let what = self.problem.as_deref().unwrap_or("waiting for the first answer …");
        let lines = [
            styled(cut(what, width), if self.problem.is_some() { BAD } else { PLAIN }),
            styled(cut("trying again; q quits", width), DIM),
        ];
        lines.into_iter().take(height).collect()
    }

    /// A few lines for a terminal without room for tables.
    fn reduced(&self, top: &Top, width: usize, height: usize) -> Vec<Line<'static>> {
        let lost: u64 = top.losses.0.iter().map(|(_, count)| count).sum();
        let mut lines = vec![
            styled(cut(&format!("{} q quits", top.state), width), BOLD),
            styled(
                cut(
                    &format!("{}pps {} fl", scaled(top.packets_per_s), grouped(top.flows_now)),
                    width,
                ),
                PLAIN,
            ),
        ];
        if let Some(problem) = self.problem.as_ref().or(top.problems.first()) {
            lines.push(styled(cut(problem, width), BAD));
        } else if lost > 0 {
            lines.push(styled(cut(&format!("lost {}", grouped(lost)), width), BAD));
        }
        for row in &top.labels {
            let name = row.label.as_deref().unwrap_or("(no label)");
            lines
                .push(styled(cut(&format!("{name} {}B/s", scaled(row.bytes_per_s)), width), PLAIN));
        }
        lines.truncate(height);
        lines
    }

    fn header(&self, top: &Top, width: usize) -> Vec<Line<'static>> {
        let state = match top.state.as_str() {
            "ready" => GOOD,
            _ => BAD,
        };
        let paused = if self.is_paused { "  PAUSED" } else { "" };
        let rest = format!(
            "  up {}  model {}  {} of {} flows{paused}",
            duration(top.uptime_s),
            top.model,
            grouped(top.flows_now),
            grouped(top.flows_max),
        );
        let name = format!("fenxi {}  ", top.version);
        let used = name.chars().count() + top.state.chars().count();
        let lost: Vec<String> = top
            .losses
            .present()
            .map(|(noun, count)| format!("{} {noun}", grouped(*count)))
            .collect();
        let rates = format!(
            "{}pps  {}B/s  to label {:.2} ms (median) {:.2} ms (99 %)  ",
            scaled(top.packets_per_s),
            scaled(top.bytes_per_s),
            top.label_p50_ms,
            top.label_p99_ms,
        );
        let left_over = width.saturating_sub(rates.chars().count());
        let loss = match lost.is_empty() {
            true => Span::styled(cut("nothing lost", left_over), GOOD),
            false => Span::styled(cut(&format!("lost: {}", lost.join(", ")), left_over), BAD),
        };
        let mut lines = vec![
            Line::from(vec![
                Span::styled(cut(&name, width), BOLD),
                Span::styled(cut(&top.state, width), state),
                Span::styled(cut(&rest, width.saturating_sub(used)), PLAIN),
            ]),
            Line::from(vec![Span::styled(cut(&rates, width), PLAIN), loss]),
        ];
        if !top.tasks.is_empty() {
            lines.push(styled(cut(&tasks_line(&top.tasks), width), PLAIN));
        }
        if let Some(rules) = &top.rules {
            lines.push(styled(cut(&rules_line(rules), width), PLAIN));
        }
        let problems = self.problem.iter().chain(&top.problems).take(2);
        lines.extend(problems.map(|problem| styled(cut(problem, width), BAD)));
        lines
    }

    fn overview(&self, top: &Top, width: usize, height: usize, lines: &mut Vec<Line<'static>>) {
        // Two fifths for labels and hosts, side by side; the rest for flows.
        let upper = (height * 2 / 5).max(3);
        let half = width / 2 - 1;
        let (labels, hosts) = (labels(top, half), hosts(top, width - half - 2));
        for row in 0..upper.min(labels.len().max(hosts.len())) {
            let mut spans = match labels.get(row) {
                Some(line) => line.spans.clone(),
                None => vec![Span::raw(" ".repeat(half))],
            };
            spans.push(Span::raw("  "));
            if let Some(line) = hosts.get(row) {
                spans.extend(line.spans.iter().cloned());
            }
            lines.push(Line::from(spans));
        }
        let used = upper.min(labels.len().max(hosts.len()));
        lines.extend(self.scroll(self.flows(top, width), height - used));
    }

    /// The heading and as many rows as there is room for, from the one scrolled to.
    fn scroll(&self, lines: Vec<Line<'static>>, height: usize) -> Vec<Line<'static>> {
        let rows = lines.len().saturating_sub(1);
        let room = height.saturating_sub(1);
        let skipped = self.scrolled.min(rows.saturating_sub(room.min(rows)));
        let mut lines = lines.into_iter();
        let heading = lines.next();
        heading.into_iter().chain(lines.skip(skipped)).take(height).collect()
    }

    fn flows(&self, top: &Top, width: usize) -> Vec<Line<'static>> {
        let mut rows: Vec<&FlowRow> = top.flows.iter().collect();
        match self.sort {
            SortBy::Rate => {}
            SortBy::Bytes => rows.sort_by_key(|row| std::cmp::Reverse(row.bytes)),
            SortBy::Age => rows.sort_by(|a, b| a.age_s.total_cmp(&b.age_s)),
        }
        let columns = self.columns(top, width);
        let fixed: usize = columns.iter().map(|column| column.width + 1).sum();
        // What is left belongs to the two ends.
        let ends = width.saturating_sub(LABEL_COLUMNS + fixed + 2);
        let ends = [ends / 2, ends - ends / 2];
        let row = |label: &str, cells: Vec<String>, from: &str, to: &str, styles: [Style; 2]| {
            let mut rest = String::new();
            for (cell, column) in cells.iter().zip(&columns) {
                rest.push(' ');
                rest += &match column.is_number {
                    true => right(cell, column.width),
                    false => left(cell, column.width),
                };
            }
            for (end, width) in [from, to].into_iter().zip(ends) {
                rest.push(' ');
                rest += &left(end, width);
            }
            Line::from(vec![
                Span::styled(left(label, LABEL_COLUMNS), styles[0]),
                Span::styled(rest, styles[1]),
            ])
        };
        let titles = columns.iter().map(|column| column.title.to_owned()).collect();
        let title = format!("FLOWS by {}", self.sort.name());
        let mut lines = vec![row(&title, titles, "FROM", "TO", [HEAD, HEAD])];
        lines.extend(rows.into_iter().map(|flow| {
            let label = flow.shown_labels();
            let style = if flow.label.is_some() { NAME } else { DIM };
            let cells = columns.iter().map(|column| (column.of)(flow)).collect();
            let [from, to] = flow.shown_ends();
            row(&label, cells, &from, &to, [style, PLAIN])
        }));
        lines
    }

    /// A narrow screen has the more important columns only. Where flows are measured, the round
    /// trip is one of them, and where some have a DSCP, it takes the place of the behaviour.
    fn columns(&self, top: &Top, width: usize) -> Vec<&'static Column> {
        let is_narrow = width < COLUMNS_ALL;
        let is_measured = top.flows.iter().any(|flow| flow.measured.is_some());
        let has_dscp = |flow: &FlowRow| flow.dscp_set.is_some() || flow.dscp_seen != DSCP_DEFAULT;
        let has_dscps = top.flows.iter().any(has_dscp);
        let by_bytes = self.sort == SortBy::Bytes;
        let is_shown = |column: &&Column| match column.title {
            "BY" | "PKT/S" => !is_narrow,
            "B/S" => !is_narrow || !by_bytes,
            "BYTES" => !is_narrow || by_bytes,
            "CONF" => !is_narrow || !is_measured,
            "RTT ms" => is_measured,
            "AGAIN" => is_measured && !is_narrow,
            "DSCP" => has_dscps,
            "DOES" => !is_narrow || !has_dscps,
            _ => true,
        };
        COLUMNS.iter().filter(is_shown).collect()
    }

    fn keys(&self, top: &Top, width: usize) -> Line<'static> {
        let pause = if self.is_paused { "p go on" } else { "p pause" };
        let scroll = match top.services.is_empty() {
            true => " ↑↓ scroll",
            false => "6 services ↑↓",
        };
        let keys =
            format!("1 overview 2 labels 3 hosts 4 flows 5 health {scroll} s sort {pause} q quit");
        styled(left(&keys, width), HEAD)
    }
}

fn styled(text: String, style: Style) -> Line<'static> {
    Line::from(Span::styled(text, style))
}

/// `protocol 3.40k labels, 1.4 ms device 120 labels, 18.2 ms`: the time that 99 of 100 labels
/// take.
fn tasks_line(tasks: &[TaskRow]) -> String {
    let each = tasks.iter().map(|task| {
        let labels = short(task.labels as f64);
        format!("{} {} labels, {:.1} ms", task.task, labels.trim(), task.label_p99_ms)
    });
    each.collect::<Vec<_>>().join("  ")
}

/// `1,204 rules  3.40k look-ups/s  12 % without a rule  changed 5.0s ago`.
fn rules_line(rules: &RuleSums) -> String {
    let changed = match (rules.is_pending, rules.updated_ago_s) {
        (true, _) => "  changes wait for an index".to_owned(),
        (false, Some(ago_s)) => format!("  changed {} ago", duration(ago_s)),
        (false, None) => String::new(),
    };
    let share = 100.0 * rules.unmatched as f64 / rules.lookups.max(1) as f64;
    format!(
        "{} {}  {} look-ups/s  {share:.0} % without a rule{changed}",
        grouped(rules.rules),
        plural(rules.rules, "rule"),
        short(rules.lookups_per_s),
    )
}

fn short(value: f64) -> String {
    scaled(value).replace(' ', "")
}

fn labels(top: &Top, width: usize) -> Vec<Line<'static>> {
    let name = width.saturating_sub(7 + 8 + 8);
    let row = |cells: [&str; 4], styles: [Style; 2]| {
        Line::from(vec![
            Span::styled(left(cells[0], name), styles[0]),
            Span::styled(
                format!(" {} {} {}", right(cells[1], 6), right(cells[2], 7), right(cells[3], 7)),
                styles[1],
            ),
        ])
    };
    let mut lines = vec![row(["LABEL", "FLOWS", "PKT/S", "B/S"], [HEAD, HEAD])];
    lines.extend(top.labels.iter().map(|rate| {
        let style = if rate.label.is_some() { NAME } else { DIM };
        row(
            [
                rate.label.as_deref().unwrap_or("(no label)"),
                &short(rate.flows as f64),
                &short(rate.packets_per_s),
                &short(rate.bytes_per_s),
            ],
            [style, PLAIN],
        )
    }));
    lines
}

fn hosts(top: &Top, width: usize) -> Vec<Line<'static>> {
    let name = width.saturating_sub(7 + 8 + 11);
    let row = |cells: [&str; 4], styles: [Style; 2]| {
        Line::from(vec![
            Span::styled(
                format!("{} {} {} ", left(cells[0], name), right(cells[1], 6), right(cells[2], 7)),
                styles[0],
            ),
            Span::styled(left(cells[3], 10), styles[1]),
        ])
    };
    let mut lines = vec![row(["HOST", "FLOWS", "B/S", "MOST"], [HEAD, HEAD])];
    lines.extend(top.hosts.iter().map(|host| {
        row(
            [
                host.shown(),
                &short(host.flows as f64),
                &short(host.bytes_per_s),
                host.label.as_deref().unwrap_or("-"),
            ],
            [PLAIN, NAME],
        )
    }));
    lines
}

fn health(top: &Top, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![styled(left("DEVICES, AND WHAT WAS LOST SINCE THE START", width), HEAD)];
    for device in &top.devices {
        let text = format!(
            "{}: {}, {} series, {} failures",
            device.named(),
            device.state,
            grouped(device.series),
            grouped(device.failures)
        );
        let style = if device.state == "up" { GOOD } else { BAD };
        lines.push(styled(cut(&text, width), style));
    }
    if top.devices.is_empty() {
        lines.push(styled(cut("no device yet: the model is being opened", width), DIM));
    }
    for (noun, count) in &top.losses.0 {
        let style = if *count > 0 { BAD } else { PLAIN };
        lines.push(styled(cut(&format!("{} {noun}", grouped(*count)), width), style));
    }
    lines
}

#[cfg(test)]
mod tests;
