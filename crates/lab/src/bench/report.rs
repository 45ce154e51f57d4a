//! The results of an experiment, as a table and as JSON.

use std::fmt::{self, Write as _};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::rounds::Rates;
use fenxi::machine::Machine;

/// Unit of most figures.
pub const MPPS: &str = "Mpps";
/// Unit of a rate, or a time, divided by another one of the same run.
pub const RATIO: &str = "ratio";

/// One figure.
#[derive(Debug)]
pub struct Figure {
    /// What was measured; in a plot, the name of the line.
    pub line: String,
    /// Place on the plot's x axis; `None` for a single figure.
    pub x: Option<f64>,
    pub unit: &'static str,
    pub median: f64,
    pub best: f64,
    /// The bar that the median should meet.
    pub bar: Option<Bar>,
}

/// The value that a figure should meet.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    pub fn value(self) -> f64 {
        match self {
            Bar::AtLeast(value) | Bar::AtMost(value) => value,
        }
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Bar::AtLeast(least) => value >= least,
            Bar::AtMost(most) => value <= most,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::AtLeast(least) => write!(f, "at least {least}"),
            Bar::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

impl Figure {
    /// Rates per second in millions of `unit`.
    pub fn millions(line: impl Into<String>, unit: &'static str, rates: &Rates) -> Figure {
        Figure {
            line: line.into(),
            x: None,
            unit,
            median: rates.median() / 1e6,
            best: rates.best() / 1e6,
            bar: None,
        }
    }

    /// A single value.
    pub fn one(line: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        Figure { line: line.into(), x: None, unit, median: value, best: value, bar: None }
    }

    /// A value by medians, and by the best.
    pub fn pair(line: impl Into<String>, unit: &'static str, [median, best]: [f64; 2]) -> Figure {
        Figure { best, ..Figure::one(line, unit, median) }
    }

    /// One rate by another; both are given by medians and by the best.
    pub fn ratio(line: impl Into<String>, rate: [f64; 2], by: [f64; 2]) -> Figure {
        Figure::pair(line, RATIO, [rate[0] / by[0], rate[1] / by[1]])
    }

    /// Repeated measurements of something that is better if smaller.
    pub fn smaller(line: impl Into<String>, unit: &'static str, mut values: Vec<f64>) -> Figure {
        values.sort_by(f64::total_cmp);
        Figure {
            best: values.first().copied().unwrap_or_default(),
            ..Figure::one(line, unit, values.get(values.len() / 2).copied().unwrap_or_default())
        }
    }

    /// A quantile of repeated runs. Each run is a histogram of integers; `per_unit` of them make
    /// one `unit`.
    pub fn quantile(
        line: impl Into<String>,
        unit: &'static str,
        per_unit: f64,
        runs: &[Histogram<u64>],
        quantile: f64,
    ) -> Figure {
        let of = |run: &Histogram<u64>| run.value_at_quantile(quantile) as f64 / per_unit;
        Figure::smaller(line, unit, runs.iter().map(of).collect())
    }

    pub fn at(self, x: f64) -> Figure {
        Figure { x: Some(x), ..self }
    }

    pub fn at_least(self, bar: f64) -> Figure {
        let bar = Some(Bar::AtLeast(bar));
        Figure { bar, ..self }
    }

    pub fn at_most(self, bar: f64) -> Figure {
        let bar = Some(Bar::AtMost(bar));
        Figure { bar, ..self }
    }

    fn holds(&self) -> Option<bool> {
        self.bar.map(|bar| bar.holds(self.median))
    }
}

/// All results of an experiment.
#[derive(Debug)]
pub struct Report {
    pub bench: &'static str,
    pub title: &'static str,
    /// Name of the axis that [`Figure::x`] is on.
    pub x: &'static str,
    pub machine: Machine,
    pub figures: Vec<Figure>,
    /// Results that are missing, and what they need.
    pub skipped: Vec<String>,
}

#[derive(Serialize)]
struct Object<'a> {
    bench: &'a str,
    title: &'a str,
    /// Name of the axis that `x` of a result is on.
    x: &'a str,
    machine: &'a Machine,
    results: Vec<Outcome<'a>>,
}

#[derive(Serialize)]
struct Outcome<'a> {
    name: String,
    line: &'a str,
    x: Option<f64>,
    value: f64,
    best: f64,
    unit: &'static str,
    bar: Option<f64>,
    holds: Option<bool>,
}

impl Report {
    fn name(&self, figure: &Figure) -> String {
        match figure.x {
            Some(x) => format!("{}, {} {x}", figure.line, self.x),
            None => figure.line.clone(),
        }
    }

    /// One JSON object on one line.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let outcomes = self.figures.iter().map(|figure| Outcome {
            name: self.name(figure),
            line: &figure.line,
            x: figure.x,
            value: figure.median,
            best: figure.best,
            unit: figure.unit,
            bar: figure.bar.map(Bar::value),
            holds: figure.holds(),
        });
        serde_json::to_string(&Object {
            bench: self.bench,
            title: self.title,
            x: self.x,
            machine: &self.machine,
            results: outcomes.collect(),
        })
    }

    /// A table for people.
    pub fn to_text(&self) -> String {
        let names: Vec<String> = self.figures.iter().map(|it| self.name(it)).collect();
        let width = names.iter().map(String::len).max().unwrap_or_default();
        let mut page = format!("{}\n{}\n\n", self.title, self.machine.line());
        let _ = writeln!(page, "{:width$}  {:>10}  {:>10}", "", "median", "best");
        for (name, figure) in names.iter().zip(&self.figures) {
            let verdict = match (figure.bar, figure.holds()) {
                (Some(bar), Some(true)) => format!("  {bar}: holds"),
                (Some(bar), _) => format!("  {bar}: MISSED"),
                _ => String::new(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                page,
                "{name:width$}  {:>10.3}  {:>10.3}  {}{verdict}",
                figure.median, figure.best, figure.unit
            );
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_hold_or_not_by_the_median_and_names_tell_the_point() {
        let report = Report {
            bench: "walk",
            title: "A title",
            x: "burst",
            machine: Machine::here(flowmgr::Pages::Plain),
            figures: vec![
                Figure::one("a", "share", 0.5).at_least(0.5),
                Figure::one("b", MPPS, 1.0).at_least(2.0).at(32.0),
                Figure::smaller("c", "ms", vec![3.0, 1.0, 2.0]).at_most(2.0),
            ],
            skipped: Vec::new(),
        };
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(json["results"][0]["holds"], true);
        assert_eq!(json["results"][1]["name"], "b, burst 32");
        assert_eq!(json["results"][1]["holds"], false);
        assert_eq!(json["results"][2]["holds"], true);
        assert_eq!(json["results"][2]["best"], 1.0);
        let text = report.to_text();
        assert!(text.contains("at least 2: MISSED") && text.contains("at least 0.5: holds"));
        assert!(text.contains("at most 2: holds"));
    }
}
