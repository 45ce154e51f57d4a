//! The page at `/` of the control port: one file without anything from elsewhere, whole without
//! scripts.

mod chart;

use std::fmt::Write as _;

use crate::protocol::{FlowRow, Top};

use crate::figures::{duration, grouped, scaled};
use crate::text::html;

/// The one inline style.
pub const STYLE: &str = include_str!("page/style.css");
/// The one inline script.
pub const SCRIPT: &str = include_str!("page/script.js");

/// Rows of the tables of labels and hosts.
const ROWS: usize = 12;

/// The page of a moment.
pub fn page(top: &Top) -> String {
    let mut html = String::with_capacity(32 << 10);
    // Writing to a string cannot fail.
    let _ = write(&mut html, top);
    html
}

fn write(out: &mut String, top: &Top) -> std::fmt::Result {
    let state = html(&top.state);
    write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{state} - \
         fenxi</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"icon\" href=\"data:,\">\
         <style>{STYLE}</style></head><body><main>"
    )?;
    header(out, top)?;
    figures(out, top)?;
    out.push_str("<section class=\"wide\"><h2>Flows labelled, last ten minutes</h2>");
    chart::write(out, &top.history)?;
    out.push_str("</section><div class=\"grid\">");
    labels(out, top)?;
    hosts(out, top)?;
    out.push_str("</div>");
    flows(out, &top.flows)?;
    out.push_str("<div class=\"grid\">");
    tasks(out, top)?;
    devices(out, top)?;
    losses(out, top)?;
    out.push_str("</div>");
    write!(
        out,
        "<footer>Figures for programs: <a href=\"/metrics\">/metrics</a>. Health: <a \
         href=\"/readyz?verbose\">/readyz</a>.</footer>\
         </main><script>{SCRIPT}</script></body></html>"
    )
}

fn header(out: &mut String, top: &Top) -> std::fmt::Result {
    let sign = if top.state == "ready" { "good" } else { "bad" };
    write!(
        out,
        "<header><h1>fenxi</h1><span class=\"state {sign}\">{}</span><p>version {}, up {}, model \
         {}</p></header>",
        html(&top.state),
        html(&top.version),
        duration(top.uptime_s),
        html(&top.model)
    )?;
    for problem in &top.problems {
        write!(out, "<p class=\"problem\">{}</p>", html(problem))?;
    }
    Ok(())
}

fn figures(out: &mut String, top: &Top) -> std::fmt::Result {
    let lost: u64 = top.losses.0.iter().map(|(_, count)| count).sum();
    let sign = if lost == 0 { "good" } else { "bad" };
    out.push_str("<div class=\"figures\">");
    for (figure, what) in [
        (format!("{}pps", scaled(top.packets_per_s)), "packets received"),
        (format!("{}B/s", scaled(top.bytes_per_s)), "of all flows"),
        (grouped(top.flows_now), "flows in the table"),
        (format!("{:.2} ms", top.label_p50_ms), "to the label (median)"),
    ] {
        write!(out, "<section><b>{figure}</b><span>{what}</span></section>")?;
    }
    write!(
        out,
        "<section><b class=\"{sign}\">{}</b><span>lost, all kinds</span></section></div>",
        grouped(lost)
    )
}

/// Opens a section with a table. A column whose title begins with `#` holds numbers.
fn table(out: &mut String, attributes: &str, title: &str, columns: &[&str]) -> std::fmt::Result {
    write!(out, "<section {attributes}><h2>{title}</h2><table><tr>")?;
    for column in columns {
        match column.strip_prefix('#') {
            Some(column) => write!(out, "<th class=\"n\">{column}")?,
            None => write!(out, "<th>{column}")?,
        }
    }
    Ok(())
}

/// A row of a table: the class and the content of each cell.
fn row<const N: usize>(out: &mut String, cells: [(&str, String); N]) -> std::fmt::Result {
    out.push_str("<tr>");
    for (class, cell) in cells {
        match class {
            "" => write!(out, "<td>{cell}")?,
            class => write!(out, "<td class=\"{class}\">{cell}")?,
        }
    }
    Ok(())
}

fn labels(out: &mut String, top: &Top) -> std::fmt::Result {
    let most = top.labels.iter().map(|it| it.bytes_per_s).fold(0.0, f64::max);
    let columns = ["Label", "#Flows", "#Packets/s", "#Bytes/s", ""];
    table(out, "id=\"labels\"", "Labels now", &columns)?;
    for it in top.labels.iter().take(ROWS) {
        let label = it.label.as_deref().map_or("(no label)".to_owned(), html);
        let (packets, bytes) = (scaled(it.packets_per_s), scaled(it.bytes_per_s));
        let share = ("share", bar(it.bytes_per_s, most));
        row(out, [("name", label), ("n", grouped(it.flows)), ("n", packets), ("n", bytes), share])?;
    }
    out.push_str("</table></section>");
    Ok(())
}

fn hosts(out: &mut String, top: &Top) -> std::fmt::Result {
    let most = top.hosts.iter().map(|it| it.bytes_per_s).fold(0.0, f64::max);
    let columns = ["Host", "#Flows", "#Bytes/s", "Most", ""];
    table(out, "id=\"hosts\"", "Hosts now", &columns)?;
    for it in top.hosts.iter().take(ROWS) {
        let label = it.label.as_deref().map_or("-".to_owned(), html);
        let (address, bytes) = (html(&it.address), scaled(it.bytes_per_s));
        let share = ("share", bar(it.bytes_per_s, most));
        row(out, [("name", address), ("n", grouped(it.flows)), ("n", bytes), ("", label), share])?;
    }
    out.push_str("</table></section>");
    Ok(())
}

/// A bar as SVG: a style attribute would need a policy that allows all inline styles.
fn bar(value: f64, most: f64) -> String {
    let width = if most > 0.0 { 100.0 * value / most } else { 0.0 };
    format!(
        "<svg viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" height=\"8\" \
         aria-hidden=\"true\"><rect width=\"100\" height=\"8\" fill=\"var(--bar-ground)\"/><rect \
         width=\"{width:.1}\" height=\"8\" fill=\"var(--bar)\"/></svg>"
    )
}

fn flows(out: &mut String, flows: &[FlowRow]) -> std::fmt::Result {
    let columns = [
        "Label",
        "#Confidence",
        "By",
        "Protocol",
        "From",
        "To",
        "#Bytes/s",
        "#Bytes",
        "#Packets",
        "#Age",
        "Does",
    ];
    table(out, "id=\"flows\" class=\"wide\"", "Flows of the highest rate", &columns)?;
    for flow in flows.iter().take(2 * ROWS) {
        let class = if flow.label.is_some() { "name" } else { "name soft" };
        let cells = [
            (class, html(&flow.shown_labels())),
            ("n", flow.confidence.map_or(String::new(), |it| format!("{it:.2}"))),
            ("", html(flow.decided_by.as_deref().unwrap_or(""))),
            ("", html(&flow.transport)),
            ("", html(&flow.src)),
            ("", html(&flow.dst)),
            ("n", scaled(flow.bytes_per_s)),
            ("n", scaled(flow.bytes as f64)),
            ("n", grouped(flow.packets)),
            ("n", duration(flow.age_s)),
            ("", html(flow.behaviour.as_deref().unwrap_or(""))),
        ];
        row(out, cells)?;
    }
    out.push_str("</table>");
    if flows.is_empty() {
        out.push_str("<p>No flow is in the table now.</p>");
    }
    out.push_str("</section>");
    Ok(())
}

fn devices(out: &mut String, top: &Top) -> std::fmt::Result {
    table(out, "id=\"devices\"", "Devices", &["Device", "State", "#Series", "#Failures"])?;
    for it in &top.devices {
        let state = (if it.state == "up" { "good" } else { "bad" }, html(&it.state));
        let (series, failures) = (grouped(it.series), grouped(it.failures));
        row(out, [("name", html(&it.named())), state, ("n", series), ("n", failures)])?;
    }
    out.push_str("</table></section>");
    Ok(())
}

fn tasks(out: &mut String, top: &Top) -> std::fmt::Result {
    if top.tasks.is_empty() {
        return Ok(());
    }
    let columns = ["Task", "Model", "#Series", "#Labels", "#Not asked", "#99 % within, ms"];
    table(out, "id=\"tasks\"", "Tasks", &columns)?;
    for task in &top.tasks {
        let cells = [
            ("name", html(&task.task)),
            ("", html(&task.model)),
            ("n", grouped(task.series)),
            ("n", grouped(task.labels)),
            ("n", grouped(task.not_asked + task.flows_not_asked)),
            ("n", format!("{:.2}", task.label_p99_ms)),
        ];
        row(out, cells)?;
    }
    out.push_str("</table></section>");
    Ok(())
}

fn losses(out: &mut String, top: &Top) -> std::fmt::Result {
    out.push_str("<section id=\"losses\"><h2>Lost since the start</h2><table>");
    for (noun, count) in &top.losses.0 {
        let class = if *count > 0 { "n bad" } else { "n" };
        row(out, [("", html(noun)), (class, grouped(*count))])?;
    }
    out.push_str("</table></section>");
    Ok(())
}

#[cfg(test)]
mod tests;
