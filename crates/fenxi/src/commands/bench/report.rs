//! What an experiment found, as a table, as JSON and as CSV.

use std::fmt::Write as _;

use serde::Serialize;

use super::machine::Machine;
use super::rounds::Rates;

/// Unit of most figures.
pub const MPPS: &str = "Mpps";

/// One figure.
#[derive(Debug)]
pub struct Figure {
    /// What was measured: in a plot, the line.
    pub line: String,
    /// Where on the plot's axis; `None` for a figure that stands alone.
    pub x: Option<f64>,
    pub unit: &'static str,
    pub median: f64,
    pub best: f64,
    /// The least that the median should be.
    pub bar: Option<f64>,
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
        Figure {
            line: line.into(),
            x: None,
            unit,
            median: value,
            best: value,
            bar: None,
        }
    }

    pub fn at(self, x: f64) -> Figure {
        Figure { x: Some(x), ..self }
    }

    pub fn at_least(self, bar: f64) -> Figure {
        let bar = Some(bar);
        Figure { bar, ..self }
    }

    fn holds(&self) -> Option<bool> {
        self.bar.map(|bar| self.median >= bar)
    }
}

/// All that an experiment found.
#[derive(Debug)]
pub struct Report {
    pub bench: &'static str,
    pub title: &'static str,
    /// Name of the axis of [`Figure::x`].
    pub x: &'static str,
    pub machine: Machine,
    pub figures: Vec<Figure>,
    /// Results that there are not, and what they need.
    pub skipped: Vec<String>,
}

#[derive(Serialize)]
struct Object<'a> {
    bench: &'a str,
    machine: &'a Machine,
    results: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    name: String,
    value: f64,
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

    /// One object on one line: of each figure the median, and the best under a name of its own.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let outcomes = self.figures.iter().flat_map(|figure| {
            let name = self.name(figure);
            let median = Outcome {
                name: name.clone(),
                value: figure.median,
                unit: figure.unit,
                bar: figure.bar,
                holds: figure.holds(),
            };
            let best = Outcome {
                name: format!("{name}, best"),
                value: figure.best,
                unit: figure.unit,
                bar: None,
                holds: None,
            };
            [median, best]
        });
        serde_json::to_string(&Object {
            bench: self.bench,
            machine: &self.machine,
            results: outcomes.collect(),
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let names: Vec<String> = self.figures.iter().map(|it| self.name(it)).collect();
        let width = names.iter().map(String::len).max().unwrap_or_default();
        let mut page = format!("{}\n{}\n\n", self.title, self.machine.line());
        let _ = writeln!(page, "{:width$}  {:>10}  {:>10}", "", "median", "best");
        for (name, figure) in names.iter().zip(&self.figures) {
            let verdict = match (figure.bar, figure.holds()) {
                (Some(bar), Some(true)) => format!("  at least {bar}: holds"),
                (Some(bar), _) => format!("  at least {bar}: MISSED"),
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

    /// A row for each figure.
    pub fn to_csv(&self) -> String {
        let mut rows = String::from("line,x,median,best,unit,bar,holds\n");
        for figure in &self.figures {
            let _ = writeln!(
                rows,
                "\"{}\",{},{},{},{},{},{}",
                figure.line,
                figure.x.map_or(String::new(), |x| x.to_string()),
                figure.median,
                figure.best,
                figure.unit,
                figure.bar.map_or(String::new(), |bar| bar.to_string()),
                figure
                    .holds()
                    .map_or(String::new(), |holds| holds.to_string()),
            );
        }
        rows
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
            ],
            skipped: Vec::new(),
        };
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(json["results"][0]["holds"], true);
        assert_eq!(json["results"][2]["name"], "b, burst 32");
        assert_eq!(json["results"][2]["holds"], false);
        let text = report.to_text();
        assert!(text.contains("at least 2: MISSED") && text.contains("at least 0.5: holds"));
        assert!(report.to_csv().contains("\n\"b\",32,1,1,Mpps,2,false\n"));
    }
}
