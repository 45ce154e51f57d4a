//! Labelled flows over time as stacked bars, in SVG.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::protocol::Point;

use crate::figures::grouped;
use crate::text::html;

/// The colours of the labels that come most; legible on light and on dark (Okabe and Ito 2008,
/// somewhat deeper).
const COLOURS: [&str; 7] =
    ["#3b82c4", "#e08e1b", "#2a9d6f", "#c65d9b", "#7a6fd0", "#c9483a", "#5aa9d6"];
/// All other labels.
const REST: &str = "#98a2ae";

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 150.0;
/// Room on the left for the numbers, and below for the times.
const LEFT: f64 = 44.0;
const BELOW: f64 = 20.0;
/// Points in the chart, and seconds between two of them.
const POINTS: u32 = 120;
const EVERY_S: u32 = 5;

/// Writes the chart with its legend.
pub fn write(out: &mut String, history: &[Point]) -> std::fmt::Result {
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for (label, count) in history.iter().flat_map(|point| &point.labels) {
        *sums.entry(label).or_default() += count;
    }
    let mut ranked: Vec<(&str, u64)> = sums.into_iter().collect();
    ranked.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let colour = |label: &str| {
        let rank = ranked.iter().position(|(name, _)| *name == label);
        rank.and_then(|rank| COLOURS.get(rank)).copied().unwrap_or(REST)
    };
    let total = |point: &Point| point.labels.iter().map(|(_, count)| count).sum::<u64>();
    let most = history.iter().map(total).max().unwrap_or(0).max(1);
    write!(
        out,
        "<svg id=\"history\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Flows labelled \
         in each {EVERY_S} seconds\">\
         <path d=\"M{LEFT} .5H{WIDTH}M{LEFT} {}H{WIDTH}M{LEFT} {HEIGHT}H{WIDTH}\" \
         stroke=\"var(--line)\" fill=\"none\"/>\
         <text x=\"{}\" y=\"11\" text-anchor=\"end\">{}</text><text x=\"{}\" y=\"{HEIGHT}\" \
         text-anchor=\"end\">0</text>",
        HEIGHT + BELOW,
        HEIGHT / 2.0,
        LEFT - 8.0,
        grouped(most),
        LEFT - 8.0,
    )?;
    let step = (WIDTH - LEFT) / f64::from(POINTS);
    for minutes in [10, 8, 6, 4, 2] {
        let at = WIDTH - f64::from(minutes * 60 / EVERY_S) * step;
        write!(out, "<text x=\"{at:.0}\" y=\"{}\">-{minutes} min</text>", HEIGHT + 15.0)?;
    }
    for point in history {
        let place = f64::from(point.ago_s / EVERY_S + 1);
        let x = WIDTH - place * step;
        let mut y = HEIGHT;
        for (label, count) in &point.labels {
            let height = *count as f64 / most as f64 * (HEIGHT - 4.0);
            y -= height;
            write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
                 fill=\"{}\"><title>{}: {}</title></rect>",
                step - 1.0,
                colour(label),
                html(label),
                grouped(*count)
            )?;
        }
    }
    out.push_str("</svg><div class=\"legend\">");
    for (label, count) in ranked.iter().take(COLOURS.len()) {
        write!(
            out,
            "<span><svg width=\"10\" height=\"10\" viewBox=\"0 0 10 10\" class=\"key\"><rect \
             width=\"10\" height=\"10\" rx=\"2\" fill=\"{}\"/></svg>{} {}</span>",
            colour(label),
            html(label),
            grouped(*count)
        )?;
    }
    if ranked.len() > COLOURS.len() {
        let rest: u64 = ranked.iter().skip(COLOURS.len()).map(|(_, count)| count).sum();
        write!(
            out,
            "<span><svg width=\"10\" height=\"10\" viewBox=\"0 0 10 10\" class=\"key\"><rect \
             width=\"10\" height=\"10\" rx=\"2\" fill=\"{REST}\"/></svg>others {}</span>",
            grouped(rest)
        )?;
    }
    match ranked.is_empty() {
        true => out.push_str("<span>No flow got a label in this time.</span>"),
        // Where a screen is narrow, the chart has no numbers.
        false => write!(out, "<span>at most {} in {EVERY_S} s</span>", grouped(most))?,
    }
    out.push_str("</div>");
    Ok(())
}
