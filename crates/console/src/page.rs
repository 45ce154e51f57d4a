//! The page at `/` of the control port, and a flow's explanation at `/flow`: each one file without
//! anything from elsewhere, whole without scripts.

mod chart;
mod history;
mod table;
mod view;

use std::fmt::Write as _;

use crate::explanation;
use crate::figures::{duration, grouped, scaled};
use crate::protocol::{Body, Column, FlowRow, Measured, Quantiles, Reply, Top};
use crate::text::html;
use table::{bar, link, plain, row};

use view::Sorted;
pub use view::{Orders, View, decoded};

pub use history::history;

/// The one inline style.
pub const STYLE: &str = include_str!("page/style.css");
/// The one inline script.
pub const SCRIPT: &str = include_str!("page/script.js");

/// Rows of the tables of labels and hosts.
const ROWS: usize = 12;

/// The page of a moment.
pub fn page(top: &Top, view: &View) -> String {
    let mut out = String::with_capacity(48 << 10);
    // Writing to a string cannot fail.
    let _ = write(&mut out, top, view);
    out
}

/// The page of a flow: the answer to [`crate::protocol::Request::Explain`].
pub fn flow(reply: &Reply) -> String {
    let mut out = String::new();
    head(&mut out, "a flow");
    out.push_str("<header><h1>fenxi</h1><a href=\"/\">all flows</a></header>");
    let why = reply.error.as_deref().map(html);
    let _ = match (&reply.body, why) {
        (Some(Body::Explained(it)), _) => write!(
            out,
            "<section><h2>Why this label</h2><pre>{}</pre></section>",
            // Lines stay lines.
            explanation::text(it).lines().map(html).collect::<Vec<_>>().join("\n")
        ),
        (_, why) => write!(out, "<p class=\"problem\">{}</p>", why.unwrap_or_default()),
    };
    out.push_str("</main></body></html>");
    out
}

/// Up to the main part, without what stands in it.
fn head(out: &mut String, title: &str) {
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} - \
         fenxi</title>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><link rel=\"icon\" \
         href=\"data:,\"><style>{STYLE}</style></head><body><main>"
    );
}

fn write(out: &mut String, top: &Top, view: &View) -> std::fmt::Result {
    head(out, &html(&top.state));
    out.push_str("<a class=\"skip\" href=\"#flows\">Skip to the flows</a>");
    header(out, top, view)?;
    figures(out, top)?;
    out.push_str("<section><h2>Flows labelled, last ten minutes</h2>");
    chart::write(out, &top.history)?;
    out.push_str("</section>");
    filters(out, view)?;
    out.push_str("<div class=\"grid\">");
    labels(out, top, view)?;
    hosts(out, top, view)?;
    out.push_str("</div>");
    flows(out, &top.flows, view)?;
    services(out, top)?;
    out.push_str("<div class=\"grid\">");
    tasks(out, top)?;
    devices(out, top)?;
    losses(out, top)?;
    out.push_str("</div>");
    write!(
        out,
        "<footer>Past traffic: <a href=\"/history\">/history</a>. Figures for programs: \
         <a href=\"/metrics\">/metrics</a>. Health: <a href=\"/readyz?verbose\">/readyz</a>.\
         </footer>\
         </main><script>{SCRIPT}</script></body></html>"
    )
}

fn header(out: &mut String, top: &Top, view: &View) -> std::fmt::Result {
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
    for problem in view.problem.iter().chain(&top.problems) {
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

/// The form that filters labels, hosts and flows.
fn filters(out: &mut String, view: &View) -> std::fmt::Result {
    let filter = &view.filter;
    let port = filter.port.map(|it| it.to_string());
    out.push_str("<form role=\"search\">");
    for (name, title, value) in [
        ("label", "Label", &filter.label),
        ("host", "Host", &filter.host),
        ("port", "Port", &port),
        ("dscp_seen", "DSCP seen", &filter.dscp_seen),
        ("dscp_set", "DSCP set", &filter.dscp_set),
    ] {
        let value = html(value.as_deref().unwrap_or(""));
        write!(out, "<label>{title} <input name=\"{name}\" value=\"{value}\"></label>")?;
    }
    for (name, order) in view.orders.set() {
        write!(out, "<input type=\"hidden\" name=\"{name}\" value=\"{order}\">")?;
    }
    out.push_str("<button>Filter</button><a href=\"/\">Show all</a></form>");
    Ok(())
}

fn labels(out: &mut String, top: &Top, view: &View) -> std::fmt::Result {
    let most = top.labels.iter().map(|it| it.bytes_per_s).fold(0.0, f64::max);
    let headings = [
        ("Label", Some(Column::Label)),
        ("#Flows", Some(Column::Flows)),
        ("#Packets/s", Some(Column::Packets)),
        ("#Bytes/s", Some(Column::Rate)),
        ("", None),
    ];
    table::open(out, ("labels", "Labels now"), Some((view, Sorted::Labels)), &headings)?;
    for it in top.labels.iter().take(ROWS) {
        let label = match &it.label {
            Some(label) => link(&view.filtered(|filter| filter.label = Some(label.clone())), label),
            None => "(no label)".to_owned(),
        };
        let (packets, bytes) = (scaled(it.packets_per_s), scaled(it.bytes_per_s));
        let share = ("share", bar(it.bytes_per_s, most));
        let flows = grouped(it.flows);
        row(out, &[("name", label), ("n", flows), ("n", packets), ("n", bytes), share])?;
    }
    table::close(out);
    Ok(())
}

fn hosts(out: &mut String, top: &Top, view: &View) -> std::fmt::Result {
    let most = top.hosts.iter().map(|it| it.bytes_per_s).fold(0.0, f64::max);
    let headings = [
        ("Host", Some(Column::Host)),
        ("#Flows", Some(Column::Flows)),
        ("#Bytes/s", Some(Column::Rate)),
        ("Most", Some(Column::Label)),
        ("", None),
    ];
    table::open(out, ("hosts", "Hosts now"), Some((view, Sorted::Hosts)), &headings)?;
    for it in top.hosts.iter().take(ROWS) {
        let host = Some(it.address.clone());
        let address = link(&view.filtered(|filter| filter.host = host), &it.address);
        let name = it.name.as_deref().map_or(String::new(), |name| html(name) + " ");
        let label = it.label.as_deref().map_or("-".to_owned(), html);
        let share = ("share", bar(it.bytes_per_s, most));
        let (flows, bytes) = (grouped(it.flows), scaled(it.bytes_per_s));
        row(out, &[("name", name + &address), ("n", flows), ("n", bytes), ("", label), share])?;
    }
    table::close(out);
    Ok(())
}

fn flows(out: &mut String, flows: &[FlowRow], view: &View) -> std::fmt::Result {
    let is_measured = flows.iter().any(|flow| flow.measured.is_some());
    let mut headings = vec![
        ("Label", Some(Column::Label)),
        ("#Confidence", Some(Column::Confidence)),
        ("By", Some(Column::By)),
        ("Protocol", Some(Column::Protocol)),
        ("From", Some(Column::From)),
        ("To", Some(Column::To)),
        ("#Bytes/s", Some(Column::Rate)),
        ("#Bytes", Some(Column::Bytes)),
        ("#Packets", Some(Column::Packets)),
        ("#Age", Some(Column::Age)),
        ("DSCP", Some(Column::Dscp)),
        ("Does", Some(Column::Does)),
    ];
    if is_measured {
        headings.push(("#Round trip, ms", Some(Column::Rtt)));
        headings.push(("#Sent again", Some(Column::Retransmits)));
    }
    table::open(out, ("flows", "Flows"), Some((view, Sorted::Flows)), &headings)?;
    for flow in flows {
        let class = if flow.label.is_some() { "name" } else { "name soft" };
        let [from, to] = flow.shown_ends();
        let mut cells = vec![
            (class, link(&format!("/flow?flow={}", flow.flow_id), &flow.shown_labels())),
            ("n", flow.confidence.map_or(String::new(), |it| format!("{it:.2}"))),
            ("", html(flow.decided_by.as_deref().unwrap_or(""))),
            ("", html(&flow.transport)),
            ("", html(&from)),
            ("", html(&to)),
            ("n", scaled(flow.bytes_per_s)),
            ("n", scaled(flow.bytes as f64)),
            ("n", grouped(flow.packets)),
            ("n", duration(flow.age_s)),
            ("", html(&flow.shown_dscp())),
            ("", html(flow.behaviour.as_deref().unwrap_or(""))),
        ];
        if is_measured {
            let measured = flow.measured.as_ref();
            let rtt = measured.and_then(Measured::round_trip_us);
            let again = measured.and_then(Measured::retransmits);
            cells.push(("n", rtt.map_or(String::new(), |us| format!("{:.1}", us as f64 / 1e3))));
            cells.push(("n", again.map_or(String::new(), grouped)));
        }
        row(out, &cells)?;
    }
    out.push_str("</table></div>");
    if flows.is_empty() {
        out.push_str("<p>No such flow is in the table now.</p>");
    }
    out.push_str("</section>");
    Ok(())
}

fn services(out: &mut String, top: &Top) -> std::fmt::Result {
    if top.services.is_empty() {
        return Ok(());
    }
    let headings = plain([
        "Service",
        "Server",
        "#In flight",
        "#New/s",
        "#Bytes/s",
        "#Handshake, ms",
        "#99 %",
        "#Response, ms",
        "#99 %",
        "#Weight",
    ]);
    table::open(out, ("services", "Services"), None, &headings)?;
    let ms = |of: Option<Quantiles>| {
        of.map_or([const { String::new() }; 2], |it| {
            [it.p50, it.p99].map(|us| format!("{:.1}", us as f64 / 1e3))
        })
    };
    for service in &top.services {
        for it in service.shown() {
            let [handshake, slow_handshake] = ms(it.handshake_us);
            let [response, slow_response] = ms(it.response_us);
            let cells = [
                ("name", html(&service.name)),
                ("name", html(&it.egress)),
                ("n", grouped(it.flows_in_flight)),
                ("n", it.flows_per_s.map_or(String::new(), |it| format!("{it:.1}"))),
                ("n", it.bytes_per_s.map_or(String::new(), scaled)),
                ("n", handshake),
                ("n", slow_handshake),
                ("n", response),
                ("n", slow_response),
                ("n", it.weight.map_or(String::new(), |it| format!("{it:.2}"))),
            ];
            row(out, &cells)?;
        }
    }
    table::close(out);
    Ok(())
}

fn devices(out: &mut String, top: &Top) -> std::fmt::Result {
    let headings = plain(["Device", "State", "#Series", "#Failures"]);
    table::open(out, ("devices", "Devices"), None, &headings)?;
    for it in &top.devices {
        let state = (if it.state == "up" { "good" } else { "bad" }, html(&it.state));
        let (series, failures) = (grouped(it.series), grouped(it.failures));
        row(out, &[("name", html(&it.named())), state, ("n", series), ("n", failures)])?;
    }
    table::close(out);
    Ok(())
}

fn tasks(out: &mut String, top: &Top) -> std::fmt::Result {
    if top.tasks.is_empty() {
        return Ok(());
    }
    let headings = plain(["Task", "Model", "#Series", "#Labels", "#Not asked", "#99 % within, ms"]);
    table::open(out, ("tasks", "Tasks"), None, &headings)?;
    for task in &top.tasks {
        let cells = [
            ("name", html(&task.task)),
            ("", html(&task.model)),
            ("n", grouped(task.series)),
            ("n", grouped(task.labels)),
            ("n", grouped(task.not_asked + task.flows_not_asked)),
            ("n", format!("{:.2}", task.label_p99_ms)),
        ];
        row(out, &cells)?;
    }
    table::close(out);
    Ok(())
}

fn losses(out: &mut String, top: &Top) -> std::fmt::Result {
    table::open(out, ("losses", "Lost since the start"), None, &[])?;
    for (noun, count) in &top.losses.0 {
        let class = if *count > 0 { "n bad" } else { "n" };
        row(out, &[("", html(noun)), (class, grouped(*count))])?;
    }
    table::close(out);
    Ok(())
}

#[cfg(test)]
mod tests;
