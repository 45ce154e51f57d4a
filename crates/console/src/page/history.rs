//! The page at `/history` of the control port: a report, with its other orders and filters as
//! links.

use std::fmt::Write as _;

use super::view::encoded;
use super::{bar, head};
use crate::figures::{grouped, scaled};
use crate::report::{By, OTHER, Query, Report, ReportRow, Sort, TOP_MAX};
use crate::text::html;

/// Times that the page offers, with the words of a query.
const TIMES: [(&str, &str, &str); 6] = [
    ("today", "today", "now"),
    ("yesterday", "yesterday", "today"),
    ("since yesterday", "yesterday", "now"),
    ("7 days", "7d", "now"),
    ("30 days", "30d", "now"),
    ("a year", "365d", "now"),
];

/// The page of an answer; in place of one that could not be given, the reason.
pub fn history(query: &Query, answer: &Result<Report, String>) -> String {
    let mut page = String::with_capacity(32 << 10);
    // Writing to a string cannot fail.
    let _ = write(&mut page, query, answer);
    page
}

fn write(out: &mut String, query: &Query, answer: &Result<Report, String>) -> std::fmt::Result {
    head(out, "History");
    out.push_str("<header><h1>History</h1><p><a href=\"/\">Now</a></p></header>");
    choices(out, query)?;
    match answer {
        Ok(report) => rows(out, query, report)?,
        Err(why) => write!(out, "<p class=\"problem\">{}</p>", html(why))?,
    }
    out.push_str(
        "<footer>Sums are written every history.every_s (60 s by default). In a terminal: fenxi \
         report.</footer>",
    );
    out.push_str("</main></body></html>");
    Ok(())
}

/// Links to other times and rows, and to the same without each of the filters.
fn choices(out: &mut String, query: &Query) -> std::fmt::Result {
    out.push_str("<p>");
    for (shown, since, until) in TIMES {
        let other = Query { since: since.to_owned(), until: until.to_owned(), ..query.clone() };
        choice(out, query, &other, shown)?;
    }
    out.push_str("</p><p>By ");
    for by in By::ALL {
        choice(out, query, &Query { by, sort: by.sort(), ..query.clone() }, by.name())?;
    }
    out.push_str("</p>");
    for (place, (by, value)) in query.filters.iter().enumerate() {
        let mut other = query.clone();
        other.filters.remove(place);
        let link = link(&other);
        let (by, value) = (by.name(), html(value));
        write!(out, "<p>Only {by} <b>{value}</b>: <a href=\"{link}\">all</a></p>")?;
    }
    Ok(())
}

fn choice(out: &mut String, now: &Query, other: &Query, shown: &str) -> std::fmt::Result {
    match now == other {
        true => write!(out, "<b>{shown}</b> "),
        false => write!(out, "<a href=\"{}\">{shown}</a> ", link(other)),
    }
}

fn rows(out: &mut String, query: &Query, report: &Report) -> std::fmt::Result {
    let (since, until) = (html(&report.since), html(&report.until));
    write!(out, "<section id=\"report\" class=\"wide\"><h2>{since} to {until}</h2>")?;
    if report.rows.is_empty() {
        return write!(out, "<p>{}</p></section>", html(&report.emptiness()));
    }
    out.push_str("<table><tr>");
    for sort in Sort::ALL {
        let (class, shown) = match sort {
            Sort::Name => ("", report.by.name()),
            sort => (" class=\"n\"", sort.name()),
        };
        write!(out, "<th{class}>")?;
        choice(out, query, &Query { sort, ..query.clone() }, shown)?;
    }
    out.push_str("<th>");
    let most = report.rows.iter().map(|row| row.volume.bytes()).max().unwrap_or(0);
    for row in &report.rows {
        let bar = bar(row.volume.bytes() as f64, most as f64);
        out.push_str("<tr><td class=\"name\">");
        name(out, query, row)?;
        figures(out, row)?;
        write!(out, "<td class=\"share\">{bar}")?;
    }
    let total = ReportRow { key: Some("total".to_owned()), name: None, volume: report.total };
    out.push_str("<tr><td class=\"name\">total");
    figures(out, &total)?;
    out.push_str("<td></table>");
    if report.more > 0 {
        let more = Query { top: (query.top * 10).min(TOP_MAX), ..query.clone() };
        let count = grouped(report.more);
        write!(out, "<p><a href=\"{}\">{count} more</a></p>", link(&more))?;
    }
    out.push_str("</section>");
    Ok(())
}

/// What the row is, as a link to a report of it alone.
fn name(out: &mut String, query: &Query, row: &ReportRow) -> std::fmt::Result {
    let shown = html(&row.shown());
    let is_filter = report_filter(query, row);
    match is_filter {
        Some(only) => write!(out, "<a href=\"{}\">{shown}</a>", link(&only)),
        None => write!(out, "{shown}"),
    }
}

/// The report of a row alone; hours, flows without a label and what is not told apart have none.
fn report_filter(query: &Query, row: &ReportRow) -> Option<Query> {
    let next = match query.by {
        By::Label => By::Host,
        By::Host => By::Label,
        By::Service => By::Host,
        By::Hour => return None,
    };
    let key = row.key.clone().filter(|key| key != OTHER)?;
    let mut filters = query.filters.clone();
    filters.retain(|(by, _)| *by != query.by);
    filters.push((query.by, key));
    Some(Query { by: next, sort: next.sort(), filters, ..query.clone() })
}

fn figures(out: &mut String, row: &ReportRow) -> std::fmt::Result {
    let volume = &row.volume;
    for count in [volume.flows, volume.packets()] {
        write!(out, "<td class=\"n\">{}", grouped(count))?;
    }
    for bytes in [volume.bytes_up, volume.bytes_down, volume.bytes()] {
        write!(out, "<td class=\"n\">{}B", scaled(bytes as f64))?;
    }
    Ok(())
}

/// The address of a report, as text in HTML.
fn link(query: &Query) -> String {
    let mut link = String::from("/history?");
    let (by, sort, top) = (query.by.name(), query.sort.name(), query.top.to_string());
    let words = [("since", &*query.since), ("until", &query.until), ("by", by), ("sort", sort)];
    let filters = query.filters.iter().map(|(by, value)| (by.name(), value.as_str()));
    for (key, value) in words.into_iter().chain([("top", &*top)]).chain(filters) {
        link += &format!("{key}={}&amp;", encoded(value));
    }
    link.truncate(link.len() - "&amp;".len());
    link
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Volume;

    const HOSTILE: &str = "\"><script>alert(1)</script>&by=host\u{1b}[2J";

    #[test]
    fn names_are_text_and_links_keep_them() {
        let query =
            Query { filters: vec![(By::Host, HOSTILE.to_owned())], ..Query::new(By::Label) };
        let row = |key: Option<&str>| ReportRow {
            key: key.map(str::to_owned),
            name: None,
            volume: Volume { flows: 2, bytes_up: 7_000, ..Volume::default() },
        };
        let report = Report {
            since: "then".to_owned(),
            until: "now".to_owned(),
            by: query.by,
            sort: query.sort,
            begins: None,
            rows: vec![row(Some(HOSTILE)), row(Some("other")), row(None)],
            more: 5,
            total: Volume::default(),
        };
        let page = history(&query, &Ok(report));
        assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
        assert!(
            page.contains("label=%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E%26by%3Dhost%1B")
        );
        assert!(page.contains("<td class=\"name\">(no label)<") && page.contains("7.00 kB"));
        assert!(page.contains("<td class=\"name\">other<"), "what is not told apart has no link");
        assert!(page.contains("top=200") && page.contains(">5 more<"));
        assert!(!page.contains("style="), "the policy allows no style attributes");
        let refused = history(&query, &Err(HOSTILE.to_owned()));
        assert!(!refused.contains("<script") && refused.contains("class=\"problem\""));
    }
}
