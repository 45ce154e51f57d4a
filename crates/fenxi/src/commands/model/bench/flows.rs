//! The labelled flows of a table, as a bundle's model would meet them.

use std::collections::BTreeMap;
use std::path::Path;

use accel::Bundle;
use serde::Serialize;

use super::super::columns::Columns;
use super::super::table::{Row, Table};
use crate::exit::Failure;
use dataplane::bundle::{OUTLIERS, UNKNOWN};

/// The most rows read of a table; they take less than 1 GB, and less than 100 MB with ten lengths
/// each.
pub const FLOWS_MAX: usize = 500_000;

/// Values of the column `confidence` with which a label counts: none, and found in the flow's
/// bytes.
const CERTAIN: [&str; 2] = ["", "dpi"];

#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Column of the model's output.
    pub class: u16,
    /// Elements of its series, K at most.
    pub elements: usize,
    /// Whether fenxi asks a model about it: not where it began mid-stream, unless the model was
    /// trained for that.
    pub is_asked: bool,
    /// Whether it is one of TCP that began before its first packet.
    pub is_midstream: bool,
    /// Protocol and destination port of its first packet, if the table has them.
    pub port: Option<(u8, u16)>,
    pub line: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    pub rows: usize,
    pub unlabelled: usize,
    /// With a label that was guessed, by the column `confidence`.
    pub uncertain: usize,
    /// With a label that the bundle does not have, where it has no class for others either.
    pub not_in_bundle: usize,
    pub midstream: usize,
    /// Asked about at no depth, because they have fewer elements than the first.
    pub short: usize,
    pub scored: usize,
}

pub struct Flows {
    /// In the order of the table.
    pub flows: Vec<Flow>,
    /// The series of each, channel after channel of K numbers.
    pub series: Vec<Vec<f32>>,
    /// What the model wants of each besides its series.
    pub contexts: Vec<Vec<f32>>,
    pub classes: Vec<String>,
    /// The class of labels that the bundle does not have, if it has one.
    pub outlier: Option<u16>,
    /// Labels that the bundle does not have, with their flows.
    pub other_labels: BTreeMap<String, usize>,
    pub counts: RowCounts,
}

impl Flows {
    /// Reads a table for a bundle; the label is in `column`.
    pub fn read(path: &Path, bundle: &Bundle, column: &str) -> Result<Flows, Failure> {
        let mut table = Table::open(path)?;
        let columns = Columns::find(&table, bundle)?;
        let label = Label::find(&table, column)?;
        let mut flows = Flows::from_bundle(bundle);
        while let Some(row) = table.next_row()? {
            flows.counts.rows += 1;
            if flows.counts.rows > FLOWS_MAX {
                return Err(
                    row.refuse(&format!("more than {FLOWS_MAX} flows; give a part of the table"))
                );
            }
            flows.add(&row, &columns, &label, bundle)?;
        }
        flows.check(path, column, bundle)?;
        Ok(flows)
    }

    fn from_bundle(bundle: &Bundle) -> Flows {
        let mut classes: Vec<String> = bundle.labels().iter().map(|it| it.name.clone()).collect();
        if bundle.shape().classes > classes.len() {
            classes.push(UNKNOWN.to_owned());
        }
        let outlier = classes.iter().position(|name| OUTLIERS.contains(&name.as_str()));
        Flows {
            flows: Vec::new(),
            series: Vec::new(),
            contexts: Vec::new(),
            classes,
            outlier: outlier.map(|class| class as u16),
            other_labels: BTreeMap::new(),
            counts: RowCounts::default(),
        }
    }

    fn add(
        &mut self,
        row: &Row<'_>,
        columns: &Columns,
        label: &Label,
        bundle: &Bundle,
    ) -> Result<(), Failure> {
        let name = label.read(row)?;
        if name.is_empty() {
            self.counts.unlabelled += 1;
            return Ok(());
        }
        if !CERTAIN.contains(&row.cell(label.confidence).to_ascii_lowercase().as_str()) {
            self.counts.uncertain += 1;
            return Ok(());
        }
        let Some(class) = self.class_of(name) else {
            self.counts.not_in_bundle += 1;
            return Ok(());
        };
        let (elements, series) = columns.series(row)?;
        self.series.push(series);
        self.contexts.push(columns.context(row)?);
        let is_midstream = columns.is_midstream(row)?;
        let is_asked = bundle.midstream() || !is_midstream;
        let is_short = elements < bundle.depths()[0].elements;
        self.counts.midstream += usize::from(!is_asked);
        self.counts.short += usize::from(is_asked && is_short);
        self.counts.scored += usize::from(is_asked && !is_short);
        self.flows.push(Flow {
            class,
            elements,
            is_asked,
            is_midstream,
            port: columns.port(row)?,
            line: row.line,
        });
        Ok(())
    }

    /// The name of the class for labels that the bundle does not have.
    pub fn other_class(&self) -> Option<&str> {
        Some(&self.classes[usize::from(self.outlier?)])
    }

    /// The class of a label; the class for others if the bundle does not have the label.
    fn class_of(&mut self, name: &str) -> Option<u16> {
        let own = self.classes.iter().position(|class| class == name);
        if own.is_none() {
            *self.other_labels.entry(name.to_owned()).or_default() += 1;
        }
        own.map(|class| class as u16).or(self.outlier)
    }

    fn check(&self, path: &Path, column: &str, bundle: &Bundle) -> Result<(), Failure> {
        let refuse = |problem: String| Err(Failure::data(format!("{}: {problem}", path.display())));
        if self.counts.rows == 0 {
            return refuse("no flows below the line of column names".to_owned());
        }
        let others: usize = self.other_labels.values().sum();
        if self.flows.is_empty() && others == 0 {
            return refuse(format!(
                "no flow has a label in `{column}` that counts; label the flows, or see \"Scores\" \
                 in docs/model.md"
            ));
        }
        if self.flows.is_empty() || others == self.flows.len() {
            let first = |names: &mut dyn Iterator<Item = &String>| {
                names.take(3).cloned().collect::<Vec<_>>().join(", ")
            };
            return refuse(format!(
                "no label in `{column}` ({}, …) is one of the model's ({}, …); name another column \
                 with --column",
                first(&mut self.other_labels.keys()),
                first(&mut self.classes.iter())
            ));
        }
        let first_depth = bundle.depths()[0].elements;
        let is_scored = |it: &&Flow| it.is_asked && it.elements >= first_depth;
        let mut scored = self.flows.iter().filter(is_scored);
        let Some(first) = scored.next() else {
            return refuse(format!(
                "no flow with a label has {first_depth} elements of unit {}, at which the model is \
                 first asked; give longer \
                 flows that do not begin mid-stream",
                bundle.unit()
            ));
        };
        if scored.all(|it| it.class == first.class) {
            let class = &self.classes[usize::from(first.class)];
            return refuse(format!(
                "all flows have one class in `{column}`, {class}; scores need two or more: add \
                 flows of other labels"
            ));
        }
        Ok(())
    }
}

struct Label {
    column: usize,
    /// `protocol` is the first part of `label` where a table has no such column.
    is_first_part: bool,
    confidence: Option<usize>,
}

impl Label {
    fn find(table: &Table, name: &str) -> Result<Label, Failure> {
        let is_first_part = name == "protocol" && table.column(name).is_none();
        let is_first_part = is_first_part && table.column("label").is_some();
        let at = if is_first_part { "label" } else { name };
        let unknown = || {
            let all = table.columns().join(", ");
            table.refuse_header(&format!("no column `{at}`; name one with --column: {all}"))
        };
        Ok(Label {
            column: table.column(at).ok_or_else(unknown)?,
            is_first_part,
            confidence: table.column("confidence"),
        })
    }

    fn read<'a>(&self, row: &Row<'a>) -> Result<&'a str, Failure> {
        let label = row.name(Some(self.column))?;
        Ok(match self.is_first_part {
            true => label.split('.').next().unwrap_or_default().trim(),
            false => label,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Reads a table for the shipped bundle of protocols.
    fn read(text: &str, column: &str) -> Result<Flows, Failure> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/protocol");
        Flows::read(file.path(), &Bundle::open(Path::new(dir)).unwrap(), column)
    }

    #[test]
    fn rows_are_counted_by_what_becomes_of_them() {
        let text = "proto,dport,flags,data_lengths,label,confidence\n\
                    17,53,,60 -70,DNS,dpi\n\
                    6,80,2 18,300,HTTP,\n\
                    6,80,24 16,300 -900,HTTP,DPI\n\
                    6,80,2,,HTTP,dpi\n\
                    6,80,2,300,,dpi\n\
                    6,80,2,300,HTTP,port\n\
                    6,8000,194,300,Zabbix,dpi\n";
        let flows = read(text, "label").unwrap();
        let expected = RowCounts {
            rows: 7,
            unlabelled: 1,
            uncertain: 1,
            not_in_bundle: 0,
            midstream: 1,
            short: 1,
            scored: 3,
        };
        assert_eq!(flows.counts, expected);
        assert_eq!(flows.other_labels["Zabbix"], 1);
        assert_eq!(Some(flows.flows[4].class), flows.outlier);
        assert_eq!(flows.series[0][..3], [60.0, -70.0, 0.0]);
        // The model is not told of a port that names the flow, and nobody knows the server of the
        // one that began mid-stream.
        let contexts = [1, 2, 4].map(|at| flows.contexts[at].as_slice());
        assert_eq!(contexts, [[6.0, 0.0], [6.0, 0.0], [6.0, 8000.0]]);
    }

    #[test]
    fn a_protocol_is_the_first_part_of_a_label() {
        let text = "proto,dport,data_lengths,label\n17,53,60,DNS.Google\n6,80,300,HTTP\n";
        let flows = read(text, "protocol").unwrap();
        assert!(flows.other_labels.is_empty());
        assert_eq!(read(text, "label").unwrap().other_labels.len(), 1);
    }

    #[test]
    fn a_table_that_says_nothing_of_the_model_is_refused() {
        let head = "proto,dport,data_lengths,label\n";
        let long = format!("17,53,60,{}\n", "x".repeat(600));
        for (rows, message) in [
            ("", "no flows below"),
            ("17,53,60,\n", "no flow has a label in `label`"),
            (
                "17,53,60,a\n6,80,60,b\n",
                "no label in `label` (a, b, …) is one of the model's (HTTP, TLS, DNS, …)",
            ),
            ("17,53,60,DNS\n17,53,60,DNS\n", "all flows have one class in `label`, DNS"),
            ("17,53,,DNS\n6,80,,HTTP\n", "no flow with a label has 1 elements"),
            ("17,53,60,DNS\n17,70000,60,DNS\n", "line 3: dport: \"70000\""),
            (&long, "line 2: a name of 600 bytes"),
        ] {
            let refused = read(&format!("{head}{rows}"), "label").err().unwrap();
            assert!(refused.to_string().contains(message), "{message}: {refused}");
            assert_eq!(refused.code(), 65);
            assert_eq!(refused.to_string().lines().count(), 1);
        }
        let refused = read(head, "family").err().unwrap().to_string();
        assert!(
            refused.contains("line 1: no column `family`; name one with --column: proto, dport"),
            "{refused}"
        );
    }
}
