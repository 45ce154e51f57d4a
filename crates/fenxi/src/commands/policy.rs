//! `fenxi policy`: checks files of rules, explains which rule a flow gets, counts rules.

mod check;
mod explain;
mod stats;

use std::path::Path;
use std::sync::Arc;

use policy::{Label, RuleNumber, RuleSet};
use rulefiles::{Format, Options, ReadError, Rules, write};

pub use self::check::check;
pub use self::explain::explain;
pub use self::stats::stats;
use crate::cli::{RuleFile, RuleFormat};
use crate::exit::Failure;

/// Maximum values of a list that a line shows.
const SHOWN_VALUES: usize = 4;

/// Reads the rules, which may name these interfaces, or any if there are none.
fn read(file: &RuleFile, interfaces: &[String]) -> Result<Rules, Failure> {
    let format = file.format.map(|format| match format {
        RuleFormat::Toml => Format::Toml,
        RuleFormat::Csv => Format::Csv,
        RuleFormat::ClassBench => Format::ClassBench,
    });
    let options = Options { format, interfaces, takes_pipes: true, ..Options::default() };
    Ok(rulefiles::read(&file.file, &options)?)
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        let line = error.to_string();
        match error {
            ReadError::Open { .. } => Failure::no_input(line),
            ReadError::Read { .. } => Failure::io(line),
            ReadError::Wrong { .. } => Failure::data(line),
        }
    }
}

fn labels(dir: &Path) -> Result<Arc<[Label]>, Failure> {
    Ok(dataplane::bundle::labels(&super::model::open(dir)?))
}

/// Place and name of a rule: `rules.toml:12 (guests)`.
fn title(rules: &RuleSet, rule: RuleNumber) -> String {
    let place = rules.place_of(&rules.rules[rule as usize]);
    match rules.name(rule) {
        Some(name) => format!("{place} ({name})"),
        None => place,
    }
}

/// A rule as text, with long lists cut.
fn text(rules: &RuleSet, rule: RuleNumber) -> String {
    write::one(rules, rule, Some(SHOWN_VALUES))
}
