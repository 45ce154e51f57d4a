//! The pane of services.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::{DIM, HEAD, NAME, PLAIN, short, styled};
use crate::protocol::{Quantiles, ServiceRow};
use crate::text::{cut, left, right};

/// Columns of a service's name, and of the figures: flows in flight, new ones, bytes, two times
/// each with its 99 %, weight.
const NAME_COLUMNS: usize = 10;
const WIDTHS: [usize; 8] = [5, 5, 6, 5, 6, 5, 6, 6];
/// Least columns of a server: an IPv4 address.
const SERVER_COLUMNS: usize = 15;

/// A line for each server.
pub fn lines(services: &[ServiceRow], width: usize) -> Vec<Line<'static>> {
    // A narrow screen goes without the last columns.
    let fixed_of = |figures: usize| WIDTHS[..figures].iter().map(|width| width + 1).sum::<usize>();
    let room = width.saturating_sub(NAME_COLUMNS + 1 + SERVER_COLUMNS);
    let fits = (0..=WIDTHS.len()).rev().find(|figures| fixed_of(*figures) <= room).unwrap_or(0);
    let fixed = fixed_of(fits);
    let server = width.saturating_sub(NAME_COLUMNS + 1 + fixed);
    let row = |name: &str, egress: &str, figures: [String; 8], styles: [Style; 2]| {
        let [name_style, style] = styles;
        let mut rest = format!(" {}", left(egress, server));
        for (figure, width) in figures.iter().zip(WIDTHS).take(fits) {
            rest.push(' ');
            rest += &right(figure, width);
        }
        Line::from(vec![
            Span::styled(left(name, NAME_COLUMNS), name_style),
            Span::styled(rest, style),
        ])
    };
    let titles = ["FLOWS", "NEW/S", "B/S", "HAND", "99 %", "RESP", "99 %", "WEIGHT"];
    let titles = titles.map(str::to_owned);
    let mut lines = vec![row("SERVICE", "SERVER (TIMES IN ms)", titles, [HEAD, HEAD])];
    let ms = |us: u64| match us {
        0..1_000_000 => format!("{:.1}", us as f64 / 1e3),
        _ => format!("{:.0}", us as f64 / 1e3),
    };
    let times =
        |of: Option<Quantiles>| of.map_or(Default::default(), |it| [ms(it.p50), ms(it.p99)]);
    for service in services {
        lines.extend(service.shown().map(|it| {
            let [[hand, hand_99], [resp, resp_99]] =
                [times(it.handshake_us), times(it.response_us)];
            let figures = [
                short(it.flows_in_flight as f64),
                it.flows_per_s.map_or(String::new(), |rate| format!("{rate:.1}")),
                it.bytes_per_s.map_or(String::new(), short),
                hand,
                hand_99,
                resp,
                resp_99,
                it.weight.map_or(String::new(), |weight| format!("{weight:.2}")),
            ];
            row(&service.name, &it.egress, figures, [NAME, PLAIN])
        }));
    }
    if services.is_empty() {
        let none = "no services; docs/services.md says how to configure one";
        lines.push(styled(cut(none, width), DIM));
    }
    lines
}
