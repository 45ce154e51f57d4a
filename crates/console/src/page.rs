//! The page at `/` of the control port: one file without anything from elsewhere, whole without
//! scripts.

mod chart;

use std::fmt::Write as _;

use crate::protocol::{FlowRow, Top};

use crate::figures::{duration, grouped, scaled};
use crate::text::html;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Rows of the tables of labels and hosts.
const ROWS: usize = 12;

/// A page, and the digests with which a content security policy allows only its style and script.
pub struct Page {
    /// The document.
    pub html: String,
    /// The one inline style.
    pub style: &'static str,
    /// The one inline script.
    pub script: &'static str,
}

/// The page of a moment.
pub fn page(top: &Top) -> Page {
    let mut html = String::with_capacity(32 << 10);
    // Writing to a string cannot fail.
    let _ = write(&mut html, top);
    Page { html, style: STYLE, script: SCRIPT }
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

fn labels(out: &mut String, top: &Top) -> std::fmt::Result {
    let most = top.labels.iter().map(|it| it.bytes_per_s).fold(0.0, f64::max);
    out.push_str(
        "<section id=\"labels\"><h2>Labels now</h2><table><tr><th>Label<th class=\"n\">Flows<th \
         class=\"n\">Packets/s\
         <th class=\"n\">Bytes/s<th>",
    );
    for row in top.labels.iter().take(ROWS) {
        write!(
            out,
            "<tr><td class=\"name\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td \
             class=\"share\">{}",
            row.label.as_deref().map_or("(no label)".to_owned(), html),
            grouped(row.flows),
            scaled(row.packets_per_s),
            scaled(row.bytes_per_s),
            bar(row.bytes_per_s, most)
        )?;
    }
    out.push_str("</table></section>");
    Ok(())
}

fn hosts(out: &mut String, top: &Top) -> std::fmt::Result {
    let most = top.hosts.iter().map(|it| it.bytes_per_s).fold(0.0, f64::max);
    out.push_str(
        "<section id=\"hosts\"><h2>Hosts now</h2><table><tr><th>Host<th class=\"n\">Flows<th \
         class=\"n\">Bytes/s<th>Most<th>",
    );
    for row in top.hosts.iter().take(ROWS) {
        write!(
            out,
            "<tr><td class=\"name\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}<td \
             class=\"share\">{}",
            html(&row.address),
            grouped(row.flows),
            scaled(row.bytes_per_s),
            row.label.as_deref().map_or("-".to_owned(), html),
            bar(row.bytes_per_s, most)
        )?;
    }
    out.push_str("</table></section>");
    Ok(())
}

/// A bar as SVG: a style attribute would need a policy that allows all inline styles.
fn bar(value: f64, most: f64) -> String {
    let width = if most > 0.0 { 100.0 * value / most } else { 0.0 };
    format!(
        "<svg viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" height=\"8\" \
         aria-hidden=\"true\"><rect width=\"100\" height=\"8\" \
         fill=\"var(--bar-ground)\"/><rect width=\"{width:.1}\" height=\"8\" \
         fill=\"var(--bar)\"/></svg>"
    )
}

fn flows(out: &mut String, flows: &[FlowRow]) -> std::fmt::Result {
    out.push_str(
        "<section id=\"flows\" class=\"wide\"><h2>Flows of the highest \
         rate</h2><table><tr><th>Label<th class=\"n\">Confidence\
         <th>By<th>Protocol<th>From<th>To<th class=\"n\">Bytes/s<th class=\"n\">Bytes<th \
         class=\"n\">Packets<th class=\"n\">Age<th>Does",
    );
    for flow in flows.iter().take(2 * ROWS) {
        let class = match &flow.label {
            Some(_) => "name",
            None => "name soft",
        };
        let label = html(&flow.shown_labels());
        let confidence = flow.confidence.map_or(String::new(), |it| format!("{it:.2}"));
        write!(
            out,
            "<tr><td class=\"{class}\">{label}<td \
             class=\"n\">{confidence}<td>{}<td>{}<td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{}\
             <td class=\"n\">{}<td class=\"n\">{}<td>{}",
            html(flow.decided_by.as_deref().unwrap_or("")),
            html(&flow.transport),
            html(&flow.src),
            html(&flow.dst),
            scaled(flow.bytes_per_s),
            scaled(flow.bytes as f64),
            grouped(flow.packets),
            duration(flow.age_s),
            html(flow.behaviour.as_deref().unwrap_or(""))
        )?;
    }
    out.push_str("</table>");
    if flows.is_empty() {
        out.push_str("<p>No flow is in the table now.</p>");
    }
    out.push_str("</section>");
    Ok(())
}

fn devices(out: &mut String, top: &Top) -> std::fmt::Result {
    out.push_str(
        "<section id=\"devices\"><h2>Devices</h2><table><tr><th>Device<th>State<th \
         class=\"n\">Series<th class=\"n\">Failures",
    );
    for device in &top.devices {
        let sign = if device.state == "up" { "good" } else { "bad" };
        write!(
            out,
            "<tr><td class=\"name\">{}<td class=\"{sign}\">{}<td class=\"n\">{}<td class=\"n\">{}",
            html(&device.named()),
            html(&device.state),
            grouped(device.series),
            grouped(device.failures)
        )?;
    }
    out.push_str("</table></section>");
    Ok(())
}

/// Each of several tasks.
fn tasks(out: &mut String, top: &Top) -> std::fmt::Result {
    if top.tasks.is_empty() {
        return Ok(());
    }
    out.push_str(
        "<section id=\"tasks\"><h2>Tasks</h2><table><tr><th>Task<th>Model<th class=\"n\">Series<th \
         class=\"n\">Labels<th class=\"n\">Not \
         asked<th class=\"n\">99 % within, ms",
    );
    for task in &top.tasks {
        write!(
            out,
            "<tr><td class=\"name\">{}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td \
             class=\"n\">{}<td class=\"n\">{:.2}",
            html(&task.task),
            html(&task.model),
            grouped(task.series),
            grouped(task.labels),
            grouped(task.not_asked + task.flows_not_asked),
            task.label_p99_ms
        )?;
    }
    out.push_str("</table></section>");
    Ok(())
}

fn losses(out: &mut String, top: &Top) -> std::fmt::Result {
    out.push_str("<section id=\"losses\"><h2>Lost since the start</h2><table>");
    for (noun, count) in &top.losses.0 {
        let sign = if *count > 0 { "n bad" } else { "n" };
        write!(out, "<tr><td>{}<td class=\"{sign}\">{}", html(noun), grouped(*count))?;
    }
    out.push_str("</table></section>");
    Ok(())
}

#[cfg(test)]
mod tests;
